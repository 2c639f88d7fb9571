"""The file of a trace: what is written is read again, and what was cut off costs one record."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from redline.errors import ConfigError
from redline.timeline import (
    VERSION,
    CallEnded,
    CallsDropped,
    EndpointFacts,
    RunBegan,
    TraceFile,
    Tried,
    read_trace,
)

BEGAN = RunBegan(
    v=VERSION,
    at=1e9,
    workers=4,
    balance="p2c",
    endpoints=(EndpointFacts(name="a", slots=8, requests=("5/1s",), input_price=0.5),),
)


def call(number: int) -> CallEnded:
    return CallEnded(
        arrived_s=number / 8,
        done_s=number / 8 + 1,
        outcome="succeeded",
        input_tokens=number,
        output_tokens=3,
        blocks=(number, -7),
        tried=(
            Tried(endpoint="a", sent_s=0.25, done_s=0.5, error="server_failed"),
            Tried(endpoint="b", queued_s=0.5, sent_s=0.75, first_byte_s=0.8, done_s=1.0),
        ),
    )


def written(path: Path, count: int) -> list[CallEnded]:
    calls = [call(number) for number in range(count)]
    file = TraceFile(path)
    file.write([BEGAN, *calls])
    file.close()
    return calls


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    calls = written(path, 5)
    trace = read_trace(path, 100)
    assert [run.began for run in trace.runs] == [BEGAN]
    assert trace.runs[0].calls == calls
    assert (trace.total, trace.damaged, trace.is_cut) == (5, 0, False)


def test_another_run_adds_itself(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    written(path, 2)
    written(path, 3)
    assert [len(run.calls) for run in read_trace(path, 100).runs] == [2, 3]


def test_of_many_calls_the_latest_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    written(path, 2)
    calls = written(path, 30)
    trace = read_trace(path, 10)
    assert [run.calls for run in trace.runs] == [[], calls[-10:]]
    assert trace.total == 32


def test_a_file_cut_at_any_byte_is_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    calls = written(path, 2)
    data = path.read_bytes()
    first = data.index(b"\n") + 1
    for size in range(first, len(data) + 1):
        path.write_bytes(data[:size])
        trace = read_trace(path, 100)
        whole = data[first:size].count(b"\n")
        assert trace.runs[0].calls == calls[:whole]
        assert trace.is_cut == (data[size - 1 : size] != b"\n")
        written(path, 1)
        again = read_trace(path, 100)
        assert [len(run.calls) for run in again.runs] == [whole, 1]
        assert not again.is_cut
        assert again.damaged == 0


def test_a_file_cut_in_its_first_line_holds_no_run_and_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    written(path, 1)
    data = path.read_bytes()
    for size in (0, 1, 5, 13, data.index(b"\n")):
        path.write_bytes(data[:size])
        with pytest.raises(ConfigError, match="holds no run"):
            read_trace(path, 100)
        written(path, 1)
        assert read_trace(path, 100).total == 1


def test_damaged_lines_and_other_kinds_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    written(path, 2)
    with path.open("ab") as file:
        file.write(b'{"kind":"call","arrived_s":"x"}\n\xff\n{"kind":"state","at_s":1.5}\n')
        # Nested more deeply than any decoder follows.
        file.write(b'{"kind":"call","x":' + b"[" * 100_000 + b"\n")
        file.write(msgspec.json.encode(CallsDropped(7)) + b"\n")
    trace = read_trace(path, 100)
    assert (trace.total, trace.damaged, trace.runs[0].dropped) == (2, 3, 7)


@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt":"hello"}\n',
        b"text",
        b"\x00\xff" * 99,
        b"[1]\n",
        b'{"kind":"call"}\n',
        # A run without its time.
        b'{"kind":"run","v":1}\n{"kind":"call","arrived_s":0,"done_s":1,"outcome":"succeeded"}\n',
    ],
)
def test_another_file_is_refused_and_stays_as_it_is(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    for use in (TraceFile, lambda path: read_trace(path, 1)):
        with pytest.raises(ConfigError, match=re.escape(f"{path} is not a trace")):
            use(path)
    assert path.read_bytes() == data


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    path.write_bytes(b'{"kind":"run","v":2,"at":"another form"}\n')
    with pytest.raises(
        ConfigError, match="version 2, but this version of redline reads only versions up to 1"
    ):
        read_trace(path, 1)


def test_a_newer_version_of_a_later_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    written(path, 1)
    with path.open("ab") as file:
        file.write(b'{"kind":"run","v":2,"at":1.0}\n')
    with pytest.raises(
        ConfigError, match="version 2, but this version of redline reads only versions up to 1"
    ):
        read_trace(path, 1)


def test_a_trace_is_written_by_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    file = TraceFile(path)
    with pytest.raises(ConfigError, match="another run is writing this trace"):
        TraceFile(path)
    file.close()
    TraceFile(path).close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        TraceFile(tmp_path / "none" / "t.trace")
    assert "none/t.trace" in caught.value.where
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none", 1)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="the trace cannot be written"):
        TraceFile(tmp_path / "pipe")
