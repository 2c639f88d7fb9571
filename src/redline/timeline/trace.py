"""Reads a trace: the latest calls of its runs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from redline.errors import ConfigError
from redline.timeline.lines import Records
from redline.timeline.records import VERSION, CallEnded, CallsDropped, Record, RunBegan

# How much is read to find the first line: more than a run with a thousand endpoints needs.
_LONGEST_BYTES = 1024 * 1024


class RecordedRun(msgspec.Struct):
    """One run of a trace.

    calls: in the order in which they ended. dropped: the number of calls that were not recorded.
    """

    began: RunBegan
    calls: list[CallEnded] = []
    dropped: int = 0


class Trace(msgspec.Struct):
    """The contents of a trace file.

    total: the number of calls in the file; `runs` holds only the latest of these calls. damaged:
    the number of lines that are not valid records. is_cut: whether the last record is incomplete.
    """

    runs: list[RecordedRun]
    total: int = 0
    damaged: int = 0
    is_cut: bool = False


_DECODE = msgspec.json.Decoder(Record).decode
_KNOWN = ("run", "call", "dropped")


def read_trace(path: Path, most: int) -> Trace:
    """Reads the trace from its file, with at most the `most` latest calls.

    Raises ConfigError if the file cannot be read, is empty, is not a trace, or was written by a
    newer version of redline.
    """
    try:
        with path.open("rb") as file:
            if not check_begin(file.fileno(), path):
                raise ConfigError(
                    f"{path} holds no run", hint="record one: redline run ... --trace FILE"
                )
            return _read(_records(file, path), most)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def check_begin(fd: int, path: Path) -> bool:
    """Whether the file begins with the record of a run; False if that line is missing or cut.

    Raises ConfigError if the file begins with anything else, or with a trace of a newer version.
    """
    data = os.pread(fd, _LONGEST_BYTES, 0)
    line, end, _ = data.partition(b"\n")
    if not data or (not end and b'{"kind":"run"'.startswith(line[:13])):
        # The first line is incomplete.
        return False
    if not any(_records([line + end], path)):
        raise ConfigError(
            f"{path} is not a trace",
            hint="to read, pass a file that redline run --trace wrote; to record, a new file",
        )
    return True


def _records(lines: Iterable[bytes], path: Path) -> Records[Record]:
    return Records(lines, _DECODE, known=_KNOWN, newest=VERSION, said=f"{path} is a trace of")


def _read(records: Records[Record], most: int) -> Trace:
    trace = Trace([])
    latest = deque[tuple[int, CallEnded]](maxlen=most)
    for record in records:
        if isinstance(record, RunBegan):
            trace.runs.append(RecordedRun(record))
        elif isinstance(record, CallsDropped):
            trace.runs[-1].dropped += record.calls
        else:
            trace.total += 1
            latest.append((len(trace.runs) - 1, record))
    for number, call in latest:
        trace.runs[number].calls.append(call)
    trace.damaged, trace.is_cut = records.damaged, records.is_cut
    return trace
