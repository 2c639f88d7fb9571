"""Stores the timeline of a job: one bounded file of JSON lines, to which each run appends.

kind         meaning
run          a run has begun; later records belong to it, with times in seconds since it began
prediction   its rate of answers, predicted from earlier runs; written before its first window
window       the state of the run over a period of time
end          the run has ended, and how; without this record, it is running or was killed

Readers skip kinds and fields that they do not know. TIMELINE_VERSION changes when the meaning of a
known kind or field changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Literal

import msgspec

from redline._version import __version__
from redline.errors import ConfigError, JournalError
from redline.process import drop_unfinished, write_all, write_file
from redline.timeline.lines import Records
from redline.timeline.prediction import Prediction
from redline.timeline.window import Window, coarsened

TIMELINE_VERSION = 1
NAME = "timeline.jsonl"
# The maximum size of a job's file, however long the job runs. While the file is smaller, windows
# keep their resolution.
MOST_BYTES = 1_000_000
# A file above that size is shortened to half of it, so that it is rewritten rarely: at most once in
# about ten minutes.
_LEFT_BYTES = MOST_BYTES // 2
MOST_RUNS = 50
# When a timeline is shortened, windows may be as long as this share of their age; the share doubles
# until the timeline is small enough.
_FINEST_SHARE = 1 / 1200
_LONGEST_SHOWN = 500


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, tag="run", tag_field="kind"):
    """The facts of a run at its start.

    v: TIMELINE_VERSION. at: when it began, in seconds since 1970-01-01 UTC. pid, host: of its
    process. redline: the version. input: the input's path, URL or name. slots: maximum calls in
    flight at the start. endpoints: the names of the first 12, or the name of the function that the
    job calls. limits: the first 12 configured ones, after headroom, in words. is_batched: whether
    rows go through the Batch API. has_budget: whether it has a budget in money; None in a record of
    an older version of redline.
    """

    v: int
    at: float
    pid: int = 0
    host: str = ""
    redline: str = __version__
    input: str = ""
    model: str = ""
    slots: int = 0
    endpoints: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    is_batched: bool = False
    has_budget: bool | None = None


Ending = Literal["finished", "interrupted", "stopped"]


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, tag="end", tag_field="kind"):
    """How and when a run ended.

    at_s: in seconds since it began. at: in seconds since 1970-01-01 UTC; None in a record of an
    older version of redline. how: `finished` if it came to the end of its rows, `interrupted` by
    the user, or `stopped` by an error, which `what` describes.
    """

    at_s: float
    how: Ending
    what: str = ""
    at: float | None = None


class RunHistory(msgspec.Struct, kw_only=True):
    """The recorded history of one run. end: None while the run is running, or if it was killed.

    prediction: for this run, if one was made because its settings differ from those of the previous
    run; otherwise None.
    """

    facts: RunFacts
    windows: list[Window] = []
    end: RunEnd | None = None
    prediction: Prediction | None = None

    @property
    def last_s(self) -> float:
        """The time of the run's last sign of life, in seconds since the run began."""
        latest_s = self.windows[-1].end_s if self.windows else 0.0
        return latest_s if self.end is None else max(latest_s, self.end.at_s)


class Timeline(msgspec.Struct):
    """The recorded runs of a job.

    runs: oldest first. damaged: the number of lines that are not valid records.
    is_cut: whether the last record is incomplete. written: when the file was last written, in
    seconds since 1970-01-01 UTC.
    """

    runs: list[RunHistory]
    damaged: int = 0
    is_cut: bool = False
    written: float = 0.0

    @property
    def seen(self) -> float:
        """The time of the latest run's last sign of life, in seconds since 1970-01-01 UTC."""
        run = self.runs[-1]
        seen = run.facts.at + run.last_s
        if run.end is not None:
            return seen if run.end.at is None else run.end.at
        # The run's own clock stops while the machine sleeps, and ignores changes of the wall clock.
        return max(seen, self.written)

    @property
    def windows(self) -> list[Window]:
        """The windows of all runs, in order, with times relative to their own run."""
        return [window for run in self.runs for window in run.windows]


Entry = RunFacts | Prediction | Window | RunEnd
_ENCODE_LINES = msgspec.json.Encoder().encode_lines
_DECODE = msgspec.json.Decoder(Entry).decode
_KNOWN = ("run", "prediction", "window", "end")


def read_timeline(path: Path) -> Timeline:
    """Reads the timeline from its file.

    Raises FileNotFoundError if the file does not exist, and ConfigError if it cannot be read or was
    written by a newer version of redline.
    """
    try:
        written = path.stat().st_mtime
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(f"{path} does not exist") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    timeline = _parsed(data, path)
    timeline.written = written
    return timeline


def _parsed(data: bytes, path: Path) -> Timeline:
    timeline = Timeline([])
    entries: Records[Entry] = Records(
        BytesIO(data), _DECODE, known=_KNOWN, newest=TIMELINE_VERSION, said=f"{path} has"
    )
    for entry in entries:
        if isinstance(entry, RunFacts):
            timeline.runs.append(RunHistory(facts=entry))
        elif isinstance(entry, Window):
            timeline.runs[-1].windows.append(entry)
        elif isinstance(entry, Prediction):
            timeline.runs[-1].prediction = entry
        else:
            timeline.runs[-1].end = entry
    timeline.damaged, timeline.is_cut = entries.damaged, entries.is_cut
    return timeline


def shortened(timeline: Timeline, now: float, most_bytes: int) -> Timeline:
    """Returns the timeline shortened to `most_bytes`: old windows are merged, then runs dropped.

    now: in seconds since 1970-01-01 UTC. At most MOST_RUNS runs are kept; the oldest runs go first.
    The latest run always stays, with at least one window if it has any.
    """
    runs = timeline.runs[-MOST_RUNS:]
    share = _FINEST_SHARE
    while True:
        runs = [_coarser(run, now, share) for run in runs]
        if sum(len(_lines_of(run)) for run in runs) <= most_bytes:
            return Timeline(runs)
        if all(len(run.windows) <= 1 for run in runs):
            if len(runs) == 1:
                return Timeline(runs)
            runs = runs[1:]
        share *= 2


def _coarser(run: RunHistory, now: float, share: float) -> RunHistory:
    now_s = max(now - run.facts.at, run.last_s)
    return msgspec.structs.replace(run, windows=coarsened(run.windows, now_s, share))


def _lines_of(run: RunHistory) -> bytes:
    entries = (run.facts, run.prediction, *run.windows, run.end)
    return _ENCODE_LINES(entry for entry in entries if entry is not None)


class TimelineFile:
    """A job's timeline, open for the run that holds its output's lock. All methods block.

    An incomplete last line, as a killed process may leave behind, is removed. A file that is not a
    timeline, was written by a newer version of redline, or cannot be written is left unchanged:
    `failure` then gives the reason, and nothing is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: str | None = None
        self._fd = -1
        self._size_bytes = 0

    def begin(self, facts: RunFacts) -> list[RunHistory]:
        """Records the start of a run; returns the earlier runs, none if the file cannot be read."""
        runs: list[RunHistory] = []
        with self._failing():
            drop_unfinished(self.path)
            runs = self._open()
        self._write([facts])
        return runs

    def predict(self, prediction: Prediction) -> None:
        """Records the prediction for the run; call it before `add`."""
        self._write([prediction])

    def add(self, windows: Sequence[Window], now: float) -> None:
        """Records windows of the run. now: the time, in seconds since 1970-01-01 UTC."""
        self._write(windows)
        if self._size_bytes > MOST_BYTES and self.failure is None:
            self._shorten(now)

    def end(self, end: RunEnd) -> None:
        """Records the end of the run."""
        # The error may quote a file name that is not UTF-8.
        what = end.what[:_LONGEST_SHOWN].encode("utf-8", "replace").decode()
        self._write([msgspec.structs.replace(end, what=what)])

    def close(self) -> None:
        """Closes the file. May be called repeatedly."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _open(self) -> list[RunHistory]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o666)
        data = self.path.read_bytes()
        timeline = _parsed(data, self.path)
        if data and not timeline.runs and (timeline.damaged or not timeline.is_cut):
            raise ConfigError(f"{self.path} is not a timeline")
        end = data.rfind(b"\n") + 1
        os.ftruncate(self._fd, end)
        os.lseek(self._fd, end, os.SEEK_SET)
        self._size_bytes = end
        return timeline.runs

    def _write(self, entries: Iterable[Entry]) -> None:
        if self.failure is not None:
            return
        lines = _ENCODE_LINES(entries)
        with self._failing():
            try:
                write_all(self._fd, [lines])
            except OSError:
                # If the incomplete line cannot be removed, readers skip it.
                with suppress(OSError):
                    os.ftruncate(self._fd, self._size_bytes)
                raise
            self._size_bytes += len(lines)

    def _shorten(self, now: float) -> None:
        """Replaces the file with a shorter one; a kill leaves either of the two, complete."""
        with self._failing():
            timeline = shortened(read_timeline(self.path), now, _LEFT_BYTES)
            data = b"".join(map(_lines_of, timeline.runs))
            write_file(self.path, data)
            self.close()
            self._open()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Records an error in the block as `failure`; nothing is written from then on."""
        try:
            yield
        except (ConfigError, JournalError) as error:
            self.failure = error.what
        except OSError as error:
            self.failure = f"{self.path} cannot be written: {error.strerror}"
        if self.failure is not None:
            self.close()
