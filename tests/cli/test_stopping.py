"""--stop-at-error-rate and --longest-wait, as a person meets them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.sim_process import SimProcess

Rows = Callable[..., str]
PROMPT = ("--prompt", "{{ text }}", "-o", "out.jsonl")


def test_a_share_of_failures_ends_the_run_and_the_command_goes_on_behind_them(
    cli: Any, rows: Rows
) -> None:
    name = rows(*({"text": "a"} if number % 3 else {"txt": "a"} for number in range(600)))
    command = ("run", name, "--endpoint", "sim", *PROMPT, "-c", "1", "--stop-at-error-rate")
    told = cli(*command, "20%")
    assert told.status == 2
    failed = len(Path("out.failed.jsonl").read_text().splitlines())
    assert told.err.endswith(
        "\nerror: 34 of the last 100 rows failed, and --stop-at-error-rate is 20 %; the last with: "
        "the prompt template does not fit the row: 'text' is undefined; its columns are: txt\n"
        "where: in.jsonl:100\n"
        "saved: 66 results in out.jsonl, 34 failures beside it\n\n"
        "hint: the same command continues after the rows that failed; --retry-failed repeats "
        "those\n"
    )
    assert failed == 34
    assert f"continue with: redline run {name}" in told.err


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--stop-at-error-rate=20", "--stop-at-error-rate must be above 0 % and at most 100 %"),
        ("--stop-at-error-rate=0%", "--stop-at-error-rate must be above 0 % and at most 100 %"),
        ("--stop-at-error-rate=many", "--stop-at-error-rate must be above 0 % and at most 100 %"),
        ("--longest-wait=10 minutes", "--longest-wait is not a time: 10 minutes"),
        ("--longest-wait=0", "--longest-wait must be above 0 s"),
        ("--max-wait=5m", "did you mean --longest-wait?"),
        ("--max-error-rate=5%", "did you mean --stop-at-error-rate?"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli: Any, rows: Rows, flag: str, told: str) -> None:
    said = cli("run", rows({"text": "a"}), "--endpoint", "sim", *PROMPT, flag)
    assert said.status == 2
    assert told in said.err


def test_a_daily_quota_ends_the_run_in_place_of_a_wait(cli: Any, rows: Rows) -> None:
    name = rows(*({"text": str(number)} for number in range(20)))
    with SimProcess() as sim:
        command = ("run", name, "--base-url", sim.base_url, "--model", "m", *PROMPT)
        sim.park("", 8 * 3600.0)
        told = cli(*command, "--longest-wait", "10min")
        assert told.status == 2
        assert re.search(
            r"\nerror: the endpoint asked to wait: no call can be sent for (8 h 00|7 h 59) m, "
            r"longer than the 10 m 00 s of --longest-wait\nsaved: 0 of 20 results in out.jsonl\n\n"
            r"hint: run the same command after that time: it continues\n$",
            told.err,
        ), told.err
        assert f"continue with: redline run {name}" in told.err
        sim.park("", 0.0)
        told = cli(*command, "--longest-wait", "10min")
    assert (told.status, told.summary[:26]) == (0, "20 rows = 20 succeeded + 0")
