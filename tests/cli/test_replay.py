"""`redline route replay`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.traces import TokenServer, record

Cli = Callable[..., Any]


@pytest.fixture
def trace() -> str:
    """Of a run by round_robin over two servers, one of them ten times slower."""
    servers = [TokenServer("fast", speed=1.0, slots=4), TokenServer("slow", speed=0.1, slots=4)]
    record(Path("t"), servers, calls=300, workers=12, strategy="round_robin")
    return "t"


def test_the_table_says_what_each_strategy_would_have_made(cli: Cli, trace: str) -> None:
    told = cli("route", "replay", trace)
    assert (told.status, told.err) == (0, "")
    lines = told.out.splitlines()
    assert (
        lines[0]
        == "t: 300 answered calls; 12 workers, each of which sends a call when its last one ends"
    )
    assert lines[2] == "time of a call at each server, fitted to the trace:"
    model = r"\n  slow  .* ms per output token, 4 at once; typically [01]% off, 150 calls\n"
    assert re.search(model, told.out)
    (head,) = (at for at, line in enumerate(lines) if "makespan s" in line)
    assert lines[head].split() == [
        *("mean", "s", "p50", "s", "p99", "s", "makespan", "s", "fast", "slow")
    ]
    assert lines[head + 1].startswith("as recorded ")
    assert lines[head + 1].endswith(" 50%   50%")
    names = [line.split()[0] for line in lines[head + 2 :] if line and "%" in line]
    assert {"p2c", "round_robin", "weighted_score", "normalized_score"} <= {*names}
    assert names.index("p2c") < names.index("round_robin")
    assert "replayed as recorded (round_robin), the calls have a mean latency " in told.out
    assert lines[-1].startswith("recommended: ")
    assert lines[-1].endswith("below round_robin's")


def test_a_server_with_one_call_is_described_in_the_singular(cli: Cli, trace: str) -> None:
    lines = Path(trace).read_bytes().splitlines(keepends=True)
    of_slow = [line for line in lines[1:] if b'"slow"' in line]
    kept = [line for line in lines if line not in of_slow[1:]]
    Path(trace).write_bytes(b"".join([*kept, b'{"kind":"dropped","calls":1}\n']))
    told = cli("route", "replay", trace)
    assert told.out.count("guessed, 1 call\n") == 1
    assert "note: 1 call was not recorded, " in told.out


def test_json_has_everything(cli: Cli, trace: str) -> None:
    told = cli("route", "replay", trace, "--json", "--calls", "250")
    found = json.loads(told.out)
    assert (found["calls"], found["total"], found["workers"]) == (250, 300, 12)
    assert found["recommended"] in {one["strategy"] for one in found["scored"]}
    assert found["services"]["slow"]["words"].endswith(" ms per output token, 4 at once")
    for one in found["scored"]:
        assert sum(one["shares"].values()) == pytest.approx(1.0)
        assert one["p50_s"] <= one["p99_s"] <= one["makespan_s"]
        assert len(one["runs"]) == 5


def test_a_name_with_hidden_characters_is_whole_in_json(cli: Cli, trace: str) -> None:
    Path(trace).rename("t\u200b")
    told = cli("route", "replay", "t\u200b", "--json", "--calls", "30")
    assert "\u200b" not in told.out
    assert json.loads(told.out)["trace"] == "t\u200b"


def test_a_cut_record_is_noted(cli: Cli, trace: str) -> None:
    data = Path(trace).read_bytes()
    Path(trace).write_bytes(data[:-7])
    told = cli("route", "replay", trace, "--calls", "30")
    assert told.status == 0
    assert "note: its last record was cut off\n" in told.out


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"prompt":"x"}\n', "error: t is not a trace\n"),
        (b"", "error: t holds no run\n"),
        (
            b'{"kind":"run","v":9}\n',
            "error: t is a trace of version 9, but this version of redline reads only ",
        ),
        (b'{"kind":"run","v":1,"at":1.0}\n', "error: the trace is of a run with one endpoint: "),
    ],
)
def test_what_is_no_trace_of_several_endpoints_is_refused(
    cli: Cli, data: bytes, error: str
) -> None:
    Path("t").write_bytes(data)
    told = cli("route", "replay", "t")
    assert (told.status, told.out) == (2, "")
    assert told.err.startswith(error)
    assert "hint: " in told.err


def test_a_group_of_commands_has_help_and_hints(cli: Cli) -> None:
    assert cli("route").out == cli("route", "--help").out
    assert "replay  Score every strategy on a recorded run." in cli("route").out
    told = cli("route", "reply")
    assert told.status == 2
    assert told.err == "error: unknown command: reply\n\nhint: did you mean replay?\n"
    assert cli("route", "replay", "none").err.startswith("error: none cannot be read: No such file")
