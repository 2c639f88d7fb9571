"""--stop-at-error-rate and --longest-wait, as a person meets them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.sim_process import SimProcess
from support.until import wait_until

Rows = Callable[..., str]
PROMPT = ("--prompt", "{{ text }}", "-o", "out.jsonl")


def saved(name: str) -> list[int]:
    """The numbers of the rows in a file beside the input."""
    return [json.loads(line)["row"] for line in Path(name).read_text().splitlines()]


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
        "the prompt template does not fit the row: 'text' is undefined; "
        "the row's columns are: txt\n"
        "where: in.jsonl:100\n"
        "saved: 66 results in out.jsonl, failures beside it\n\n"
        "hint: with -o, the same command resumes with the remaining rows\n"
    )
    assert failed == 34
    assert f"continue with: redline run {name}" in told.err


def test_calls_in_flight_are_saved_when_a_share_of_failures_ends_the_run(
    cli: Any, rows: Rows
) -> None:
    count = 600
    name = rows(*({"text": str(number)} for number in range(count)))
    with SimProcess("--latency", "0.1-0.3", "--faults", "500=0.5") as sim:
        target = ("--base-url", sim.base_url, "--model", "m", "-c", "40", "--max-retries", "0")
        command = ("run", name, *target, *PROMPT)
        told = cli(*command, "--stop-at-error-rate", "30%")
        asked = sim.get("/sim/requests?limit=100000")["requests"]
        good, bad = saved("out.jsonl"), saved("out.failed.jsonl")
        assert told.status == 2
        found = re.search(r"error: (\d+) of the last (\d+) rows failed, and --stop", told.err)
        assert found is not None, told.err
        # That many decided it; those that were in flight ended later, well or not, and are saved.
        assert int(found[1]) < len(bad)
        assert len(good) + len(bad) == len(asked) < count
        # A row may have begun without a request, though no more rows than may be in flight.
        assert int(found[2]) <= len(asked) + 40
        assert [len(good), len(bad)] == [
            sum(one["status"] == status for one in asked) for status in (200, 500)
        ]
        assert f"saved: {len(good)} results in out.jsonl, failures beside it" in told.err
        sim.disturb()
        assert cli(*command).status == 1
        assert sorted(saved("out.jsonl") + bad) == list(range(1, count + 1))
        assert cli(*command, "--retry-failed").status == 0
        assert sim.stats()["received"] == count + len(bad)
    assert sorted(saved("out.jsonl")) == list(range(1, count + 1))


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
            r"\nerror: the endpoint asked redline to wait: no call can be sent for "
            r"(8 h 00|7 h 59) m, which is longer than --longest-wait \(10 m 00 s\)\n"
            r"saved: 0 of 20 results in out.jsonl\n\n"
            r"hint: with -o, the same command continues the run after that time\n$",
            told.err,
        ), told.err
        assert f"continue with: redline run {name}" in told.err
        sim.park("", 0.0)
        told = cli(*command, "--longest-wait", "10min")
    assert (told.status, told.summary[:26]) == (0, "20 rows = 20 succeeded + 0")


def test_a_quota_that_is_used_up_in_mid_run_ends_it_with_everything_saved(
    cli: Any, rows: Rows
) -> None:
    count = 300
    name = rows(*({"text": str(number)} for number in range(count)))
    with SimProcess("--latency", "0.05-0.1") as sim:

        def use_up() -> None:
            wait_until(lambda: sim.stats()["answered"] >= 30)
            sim.park("", 8 * 3600.0)

        using = threading.Thread(target=use_up)
        using.start()
        target = ("--base-url", sim.base_url, "--model", "m", "-c", "8")
        command = ("run", name, *target, *PROMPT, "--longest-wait", "10min")
        told = cli(*command)
        using.join()
        asked = sim.get("/sim/requests?limit=100000")["requests"]
        before = saved("out.jsonl")
        assert told.status == 2
        assert "error: the endpoint asked redline to wait: no call can be sent for " in told.err
        assert re.search(rf"\nsaved: {len(before)} (of {count} )?results in out.jsonl\n", told.err)
        assert 30 <= len(before) == sum(one["status"] == 200 for one in asked) < count
        assert f"continue with: redline run {name}" in told.err
        sim.park("", 0.0)
        assert cli(*command).status == 0
        assert sim.stats()["by_status"]["200"] == count
    after = saved("out.jsonl")
    assert after[: len(before)] == before
    assert sorted(after) == list(range(1, count + 1))
