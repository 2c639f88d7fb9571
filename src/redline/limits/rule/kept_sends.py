"""Sends that outlive the process: a run that is killed and started again does not overshoot.

Each window has a small file: a ring of its records, (wall time, amount), behind a header of (magic,
pace). A send is one `pwrite` into the page cache, which survives the death of the process, though
not of the machine; a machine takes longer to start than most windows last. Nothing is synced.
If many sends share a record, their number is written ahead, twice what it is: a death then
leaves a count that is too high by half of one record at most.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from redline.clock import Clock
from redline.limits.rule.rate import MAX_COUNT, Rate
from redline.limits.rule.window import GRAIN, Record, Window

_MAGIC = b"redline1"
_HEADER = struct.Struct("<8sd")
_ENTRY = struct.Struct("<dd")
_PACK_ENTRY, _ENTRY_BYTES, _FIRST_OFFSET = _ENTRY.pack, _ENTRY.size, _HEADER.size
# A window holds at most 4,097 records and those that are not swept out yet (limits/rule/window.py);
# a larger ring loses none of them.
_SLOTS = 4200
_SIZE = _HEADER.size + _SLOTS * _ENTRY.size
# After two windows, nothing in a file counts. It is kept this much longer, as clocks are corrected.
_EXPIRED_S = 60.0


class RecentSends:
    """The windows' files in one folder, for one endpoint.

    folder: made if it is missing. name: of the endpoint, as a part of file names. old_name: what an
    older version called it; read if `name` has no file for the kind of limit, and never written.
    A folder that cannot be written is passed over: it matters only after a death, and the run's
    journal, which is beside it, reports it to the user.
    """

    def __init__(self, folder: Path, name: str, clock: Clock, old_name: str = "") -> None:
        self._folder = folder
        self._name = name
        self._old_name = old_name
        self._clock = clock
        self._rings: dict[Window, tuple[_Ring, Path]] = {}
        self._drop_expired()

    def keep(self, kind: str, window: Window) -> None:
        """Adds the kept sends to `window`, and keeps its sends from now on.

        kind: what the window counts, such as `requests`.
        """
        path = self._path(kind, window.rate)
        try:
            old = path if path.exists() else self._nearest(self._name, kind, window.rate)
            if old is None and self._old_name:
                old = self._nearest(self._old_name, kind, window.rate)
            if old is not None:
                _recall(old, window, self._clock)
        except OSError:
            return
        self.attach(kind, window)

    def attach(self, kind: str, window: Window) -> None:
        """Keeps the sends that `window` counts now, and those from now on."""
        path = self._path(kind, window.rate)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")
            to_wall_s = self._clock.wall_s() - self._clock.now_s()
            ring = _Ring(fresh, to_wall_s, window.rate.window_s * GRAIN)
            self._rings[window] = (ring, path)
            window.attach(ring)
            fresh.replace(path)
        except OSError:
            return

    def drop(self, window: Window) -> None:
        """Stops keeping `window`, whose sends another window has taken over."""
        kept = self._rings.pop(window, None)
        if kept is not None:
            ring, path = kept
            ring.close()
            if all(path != other for _, other in self._rings.values()):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        for ring, _ in self._rings.values():
            ring.close()

    def _drop_expired(self) -> None:
        """Removes the files of windows that have passed, whatever their URL, key and limit.

        Otherwise a server whose port changes would leave files behind with each run.
        """
        for path in self._folder.glob("*s.sends"):
            try:
                window_s = float(path.stem.rpartition("-")[2].removesuffix("s"))
                if path.stat().st_mtime + 2 * window_s + _EXPIRED_S < time.time():
                    path.unlink()
            except (OSError, ValueError):
                continue

    def _path(self, kind: str, rate: Rate) -> Path:
        return self._folder / f"{self._name}-{kind}-{rate.window_s:.15g}s.sends"

    def _nearest(self, name: str, kind: str, rate: Rate) -> Path | None:
        """The file of this kind with the shortest window not below the rate's, otherwise with the
        longest.

        The limits may have been configured differently last time.
        """
        stem = f"{name}-{kind}-"
        found: list[tuple[bool, float, Path]] = []
        for path in self._folder.glob(f"{stem}*s.sends"):
            try:
                window_s = float(path.name.removeprefix(stem).removesuffix("s.sends"))
            except ValueError:
                continue
            is_short = window_s < rate.window_s
            found.append((is_short, -window_s if is_short else window_s, path))
        return min(found)[2] if found else None


class _Ring:
    """A window's Keeper. Times are wall times: a monotonic clock starts again with the machine.

    grain_s: how far apart the sends of one record may be.
    """

    def __init__(self, path: Path, to_wall_s: float, grain_s: float) -> None:
        self._to_wall_s = to_wall_s
        self._grain_s = grain_s
        self._last: Record | None = None
        # Of the last record: its amount, and what the file says ahead of it; 0 if it is exact.
        self._amount = self._told = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        self._fd: int | None = os.open(path, flags, 0o600)
        # Written completely at first, so that a full disk is noticed here and not at a send.
        try:
            written = os.pwrite(
                self._fd, _HEADER.pack(_MAGIC, 0.0) + bytes(_SIZE - _HEADER.size), 0
            )
            if written < _SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self.close()
            # A disk that is nearly full needs its last space for results.
            path.unlink(missing_ok=True)
            raise

    def begin(self, record: Record) -> None:
        if self._told:
            self._correct()
        self._last = record
        self._amount = amount = record.amount
        fd = self._fd
        if fd is None:
            return
        try:
            # As in _tell, without the call: every send passes here.
            data = _PACK_ENTRY(record.sent_s + self._to_wall_s, amount)
            os.pwrite(fd, data, _FIRST_OFFSET + record.number % _SLOTS * _ENTRY_BYTES)
        except OSError:
            self.close()

    def keep(self, record: Record) -> None:
        amount = record.amount
        if record is self._last:
            if amount > self._amount:
                self._amount = amount
                if amount > self._told:
                    self._told = 2 * amount
                    self._tell(record, self._told, record.first_s + self._grain_s)
                return
            self._amount, self._told = amount, 0
        self._tell(record, amount, record.sent_s)

    def keep_pace(self, full_at_s: float) -> None:
        if self._fd is not None:
            try:
                os.pwrite(self._fd, _HEADER.pack(_MAGIC, full_at_s + self._to_wall_s), 0)
            except OSError:
                self.close()

    def close(self) -> None:
        if self._fd is not None and self._told:
            self._correct()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _correct(self) -> None:
        """Writes the exact amount of the last record, which gets no more sends."""
        last, told, self._told = self._last, self._told, 0
        if last is not None and told != last.amount:
            self._tell(last, last.amount, last.sent_s)

    def _tell(self, record: Record, amount: int, sent_s: float) -> None:
        fd = self._fd
        if fd is None:
            return
        data = _PACK_ENTRY(sent_s + self._to_wall_s, amount)
        try:
            os.pwrite(fd, data, _FIRST_OFFSET + record.number % _SLOTS * _ENTRY_BYTES)
        except OSError:
            # If the disk fails, the run ends by its journal. These bytes matter only after a kill.
            self.close()


def _recall(path: Path, window: Window, clock: Clock) -> None:
    """Adds the sends in `path` to `window`; a damaged or foreign file is ignored."""
    data = path.read_bytes()
    if len(data) != _SIZE or not data.startswith(_MAGIC):
        return
    now_s, to_wall_s = clock.now_s(), clock.wall_s() - clock.now_s()
    span_s = window.rate.window_s + window.guard_s
    window.recall(sorted(_entries(data, now_s, to_wall_s, span_s)))
    pace_s = _HEADER.unpack_from(data)[1] - to_wall_s
    # A pace further ahead than a window comes from a clock that was set back.
    if now_s < pace_s <= now_s + span_s:
        window.resume_pace(pace_s)


def _entries(
    data: bytes, now_s: float, to_wall_s: float, span_s: float
) -> Iterator[tuple[float, int]]:
    """(stamp, amount) of the sends that are younger than span_s."""
    for wall_s, amount in _ENTRY.iter_unpack(data[_HEADER.size :]):
        sent_s = wall_s - to_wall_s
        # A stamp in the future comes from a wall clock that was set back meanwhile; also NaN.
        if 0 < amount <= MAX_COUNT and sent_s > now_s - span_s:
            yield min(sent_s, now_s), round(amount)
