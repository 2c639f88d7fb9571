"""The file of a timeline: appended to by each run, bounded, and never in the way of the job."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from redline.errors import ConfigError
from redline.timeline import (
    MOST_BYTES,
    NAME,
    TIMELINE_VERSION,
    Counters,
    Gatherer,
    LimitUse,
    RunEnd,
    RunFacts,
    Sketch,
    TimelineFile,
    Totals,
    Window,
    read_timeline,
)


def window(second: int) -> Window:
    return Window(
        begin_s=float(second),
        end_s=second + 1.0,
        samples=10,
        sent=second,
        held={"limit": 9, "slots": 1},
        errors={"rate_limited": 2},
        limits=(LimitUse("500 requests/min", 9, 480, 500, 60.0),),
        latency=Sketch.of([0.1 * second + 0.1] * 3),
    )


def test_an_end_may_quote_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    record(path, 1, RunEnd(at_s=1.0, how="stopped", what="cannot write full\udce9.jsonl"))
    (run,) = read_timeline(path).runs
    assert run.end is not None
    assert run.end.what == "cannot write full?.jsonl"


def test_an_error_may_have_half_of_a_surrogate_pair(tmp_path: Path) -> None:
    gatherer = Gatherer()
    gatherer.note_error("bad \ud83d half")
    file = TimelineFile(tmp_path / NAME)
    file.begin(RunFacts(v=1, at=0.0))
    file.add([gatherer.window(1.0, Counters(errors={"ValueError": 1}), Totals())], 1.0)
    file.close()
    assert read_timeline(tmp_path / NAME).windows[0].error == "bad ? half"


def record(path: Path, seconds: int, end: RunEnd | None = None, at: float = 0.0) -> TimelineFile:
    file = TimelineFile(path)
    file.begin(RunFacts(v=TIMELINE_VERSION, at=at, pid=7))
    for second in range(seconds):
        file.add([window(second)], at + second)
    if end is not None:
        file.end(end)
    file.close()
    return file


def test_each_run_adds_itself(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    record(path, 3)
    record(path, 2, RunEnd(at_s=2.5, how="stopped", what="no disk"), at=100.0)
    first, second = read_timeline(path).runs
    assert first.windows == [window(0), window(1), window(2)]
    assert (first.end, first.last_s) == (None, 3.0)
    assert (second.facts.at, second.windows) == (100.0, [window(0), window(1)])
    assert second.end is not None
    assert (second.end.what, second.last_s) == ("no disk", 2.5)


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_what_a_death_has_cut_off_costs_one_window(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "timeline.jsonl"
    record(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    found = read_timeline(path)
    assert found.is_cut
    assert found.runs[0].windows == [window(0), window(1)]
    record(path, 1)
    assert [len(run.windows) for run in read_timeline(path).runs] == [2, 1]
    assert not read_timeline(path).damaged


def test_kinds_and_fields_of_a_later_redline_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    record(path, 1)
    with path.open("a") as file:
        file.write('{"kind":"score","gain":2}\n')
        file.write('{"kind":"window","begin_s":1.0,"end_s":2.0,"novel":[1]}\n')
    found = read_timeline(path)
    assert len(found.runs[0].windows) == 2
    assert not found.damaged


@pytest.mark.parametrize(
    "other", [b'{"kind":"run","v":99,"at":0,"novel":{}}\n', b"\x00\xff torn\n", b'{"row": 1}\n']
)
def test_a_file_that_it_does_not_know_is_left_as_it_is(tmp_path: Path, other: bytes) -> None:
    path = tmp_path / "timeline.jsonl"
    path.write_bytes(other)
    file = record(path, 2)
    assert file.failure
    assert path.read_bytes() == other


def test_a_newer_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    path.write_bytes(b'{"kind":"run","v":99,"at":"soon"}\n')
    with pytest.raises(ConfigError, match="version 99"):
        read_timeline(path)


def test_the_file_of_a_long_job_stays_below_its_bound(tmp_path: Path) -> None:
    """Two and a half hours at a window a second, and two rewrites at least on the way."""
    path = tmp_path / "timeline.jsonl"
    file, biggest, rewrites, size = TimelineFile(path), 0, 0, 0
    file.begin(RunFacts(v=TIMELINE_VERSION, at=0.0))
    for minute in range(150):
        file.add([window(60 * minute + second) for second in range(60)], 60.0 * minute + 60)
        rewrites += path.stat().st_size < size
        size = path.stat().st_size
        biggest = max(biggest, size)
    file.close()
    (run,) = read_timeline(path).runs
    assert biggest <= MOST_BYTES + 30_000
    assert rewrites >= 2
    assert sum(one.sent for one in run.windows) == sum(range(9_000))
    assert run.windows[-1] == window(8_999)
    assert run.windows[0].span_s > 4


def test_a_full_disk_ends_the_timeline_and_raises_nothing(tmp_path: Path) -> None:
    """What was written stays readable. The limit on the size of files is a disk that is full."""
    path = tmp_path / "timeline.jsonl"
    file = TimelineFile(path)
    file.begin(RunFacts(v=TIMELINE_VERSION, at=0.0))
    file.add([window(0)], 0.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        file.add([window(1)], 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.failure == f"{path} cannot be written: File too large"
    file.add([window(2)], 2.0)
    file.end(RunEnd(at_s=2.0, how="finished"))
    file.close()
    found = read_timeline(path)
    assert found.runs[0].windows == [window(0)]
    assert not found.is_cut


def test_a_folder_that_is_gone_is_no_error_of_the_job(tmp_path: Path) -> None:
    assert "cannot be written" in (record(tmp_path / "gone" / "timeline.jsonl", 1).failure or "")
