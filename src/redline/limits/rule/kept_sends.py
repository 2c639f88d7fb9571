"""Sends that outlive the process: a run that is killed and started again does not overshoot.

Each window has a small file: its pace, a claim, and a ring of its records, each (wall time,
amount). It is in the page cache, which survives the death of the process, though not of the
machine; a machine takes longer to start than most windows last. Nothing is synced.

A write for each send would be one of the most expensive steps of a call. The claim is an entry for
sends that are not in the ring yet: before the next write, at most its amount may change, in sends
until its time. After a death, the kept count is never too low; it is too high by at most a
64th of the limit, or by what was sent and settled within about a 64th of the window if that is
less. While few calls are sent, nothing is claimed, and each send is written.

A shared mapping would need no writes. But a store to it kills the process (SIGBUS) if the disk is
full (btrfs) or unreachable (NFS), and some file systems support no mappings.
"""

from __future__ import annotations

import errno
import math
import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from redline.clock import Clock
from redline.limits.rule.rate import MAX_COUNT, Rate
from redline.limits.rule.window import GRAIN, Record, Window

_MAGIC = b"redline1"
_HEADER = struct.Struct("<8sd")
_ENTRY = struct.Struct("<dd")
_ENTRY_BYTES = _ENTRY.size
_CLAIM_OFFSET = _HEADER.size
_FIRST_OFFSET = _CLAIM_OFFSET + _ENTRY_BYTES
# A window holds at most 4,097 records and those that are not swept out yet (limits/rule/window.py);
# a larger ring loses none of them.
_SLOTS = 4199
_SIZE = _FIRST_OFFSET + _SLOTS * _ENTRY_BYTES
# A claim is this share of a limit at most. It lasts for the same share of the window, at most
# _CLAIM_MOST_S, and at least as long as a record.
_CLAIM_SHARE = 1 / 64
_CLAIM_MOST_S = 0.1
# While fewer changes come in that time, each is written and nothing is claimed.
_CLAIM_FROM = 8
# Beyond two windows, which hold all that a file can say: room for a clock that was corrected.
_EXPIRED_S = 60.0
# By how much the wall clock must have moved against the monotonic one for that to be a step.
_STEP_S = 0.1


class RecentSends:
    """The windows' files in one folder, for one endpoint.

    folder: created if it is missing. name: of the endpoint, as a part of file names. old_names: its
    names in older versions; the first that has files for the kind of limit is read if `name` has
    none. Files with old names are never written.
    A folder that cannot be written is ignored: it matters only after a death, and the run's
    journal, which is beside it, reports it to the user.
    """

    def __init__(
        self, folder: Path, name: str, clock: Clock, old_names: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._names = (name, *old_names)
        self._clock = clock
        self._rings: dict[Window, tuple[_Ring, Path]] = {}
        self.since_s = clock.now_s()  # what was sent before is an earlier process's
        self._drop_expired()

    def keep(self, kind: str, window: Window) -> None:
        """Adds the kept sends to `window`, and keeps its sends from now on.

        kind: what the window counts, such as `requests`.
        """
        self.recall(kind, window)
        self.attach(kind, window)

    def recall(self, kind: str, window: Window, *, is_first: bool = True) -> bool:
        """Adds to `window` the sends that earlier processes kept; returns whether there was a file.

        is_first: no window of this kind has recalled before; otherwise that one has already added
        the sends in files of other windows.
        """
        path = self._path(kind, window.rate)
        try:
            old = path if path.exists() else None
            if old is None and is_first:
                found = (self._nearest(name, kind, window.rate) for name in self._names)
                old = next(filter(None, found), None)
            return old is not None and _recall(old, window, self._clock)
        except OSError:
            return False

    def attach(self, kind: str, window: Window) -> None:
        """Keeps the sends that `window` counts now, and those from now on."""
        path = self._path(kind, window.rate)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")
            ring = _Ring(fresh, self._clock, window.rate)
            self._rings[window] = (ring, path)
            window.attach(ring)
            ring.start()
            # A file that could not be written has less than the one that it would replace.
            if ring.is_open:
                fresh.replace(path)
            else:
                fresh.unlink(missing_ok=True)
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
        return self._folder / f"{self._names[0]}-{kind}-{rate.window_s:.15g}s.sends"

    def _nearest(self, name: str, kind: str, rate: Rate) -> Path | None:
        """The file with the shortest window not below the rate's; without one, with the longest.

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
    """A window's Keeper. The file has wall times: a monotonic clock restarts with the machine.

    A wall clock may be set, and continues while the machine sleeps and the monotonic one stops. The
    window counts by the monotonic one; so after a step, the next write moves all times in the file.

    At every moment the file counts at least the amount that was sent, and until at least as late: a
    change that has not been written is covered by the claim, and a claim is replaced only after the
    changes that it covered have been written.

    rate: of the window. A claim is at most a share of its count, for a share of its length.
    """

    def __init__(self, path: Path, clock: Clock, rate: Rate) -> None:
        window_s = rate.window_s
        self._clock = clock
        self._to_wall_s = _to_wall_s(clock)
        self._claim_s = max(window_s * GRAIN, min(window_s * _CLAIM_SHARE, _CLAIM_MOST_S))
        self._most_ahead = rate.count * _CLAIM_SHARE
        image = bytearray(_SIZE)
        image[: len(_MAGIC)] = _MAGIC
        self._entries = memoryview(image)[_FIRST_OFFSET:]
        self._changed: dict[int, Record] = {}  # by number: changed since the last write
        # How much may change between two writes, how much still may, and until when it may be sent.
        # Before `start` nothing is written.
        self._ahead = self._left = self._until_s = math.inf
        self._claimed = 0  # as the file has it
        # Since when changes are counted, how many there were, and by how much in all at the last
        # write.
        self._from_s = -math.inf
        self._changes, self._added = 0, 0.0
        # The pace: as it is, and as the file has it.
        self._full_at_s = self._told_full_at_s = -math.inf
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd: int | None = os.open(path, flags, 0o666)
        # Written completely at first, so that a full disk is noticed here and not at a send.
        try:
            if os.pwrite(self._fd, image, 0) < _SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._abandon()
            # A disk that is nearly full needs its last room for results.
            path.unlink(missing_ok=True)
            raise

    @property
    def is_open(self) -> bool:
        """Whether the file can be written."""
        return self._fd is not None

    def start(self) -> None:
        """Writes what was kept so far, without a claim; from now on each change counts."""
        latest_s = max((record.sent_s for record in self._changed.values()), default=-math.inf)
        self._write_records()
        self._ahead, self._left, self._until_s, self._changes = 0, 0, latest_s, 0

    def keep(self, record: Record, change: int) -> None:
        self._changed[record.number] = record
        # A decrease does not endanger the limit; it counts as a change, so that it is written.
        self._left -= change
        self._changes += 1
        if self._left < 0 or record.sent_s > self._until_s:
            self._write(record.sent_s)

    def keep_pace(self, full_at_s: float) -> None:
        told_s, self._full_at_s = self._told_full_at_s, full_at_s
        if not full_at_s <= told_s <= full_at_s + self._claim_s:
            # The pace soon moves on again if it has just moved past the one in the file.
            is_busy = 0 < full_at_s - told_s <= self._claim_s
            self._follow_clock()
            self._tell_pace(full_at_s + (self._claim_s / 2 if is_busy else 0.0))

    def close(self) -> None:
        """Writes what was sent, without a claim, and closes the file."""
        self._follow_clock()
        self._write_records()
        if self._claimed:
            self._claim(0, self._until_s)
        if self._full_at_s != self._told_full_at_s:
            self._tell_pace(self._full_at_s)
        self._abandon()

    def _write(self, sent_s: float) -> None:
        """Writes the records that have changed, then a claim for what may follow.

        It claims the amount that has changed recently, at most a share of the limit. Therefore a
        burst costs a write each time it has doubled, later one for each such share, and a steady
        flow about one for each claim_s. sent_s: of the changed send.
        """
        self._follow_clock()
        self._write_records()
        self._added += self._ahead - self._left
        since_s = sent_s - self._from_s
        is_busy = self._changes >= _CLAIM_FROM and since_s <= 2 * self._claim_s
        ahead = int(min(self._added, self._most_ahead)) if is_busy else 0
        if ahead * self._changes < self._added:
            # The claim would not cover one more change.
            ahead = 0
        if since_s > self._claim_s:
            self._from_s, self._changes, self._added = sent_s, 0, 0
        self._until_s = max(self._until_s, self._from_s + self._claim_s if ahead else sent_s)
        if ahead or self._claimed:
            self._claim(ahead, self._until_s)
        self._ahead = self._left = ahead

    def _follow_clock(self) -> None:
        """Moves all times in the file by as much as the wall clock has stepped, if it has."""
        to_wall_s = _to_wall_s(self._clock)
        step_s = to_wall_s - self._to_wall_s
        if abs(step_s) <= _STEP_S:
            return
        self._to_wall_s = to_wall_s
        entries = self._entries
        for offset in range(0, len(entries), _ENTRY_BYTES):
            wall_s, amount = _ENTRY.unpack_from(entries, offset)
            if amount:
                _ENTRY.pack_into(entries, offset, wall_s + step_s, amount)
        self._put(entries, _FIRST_OFFSET)
        if self._claimed:
            self._claim(self._claimed, self._until_s)
        if self._told_full_at_s > -math.inf:
            self._tell_pace(self._told_full_at_s)

    def _write_records(self) -> None:
        changed, entries = self._changed, self._entries
        if not changed:
            return
        to_wall_s, pack_into = self._to_wall_s, _ENTRY.pack_into
        # The later of two that share a slot counts: the other one has left the window.
        numbers = sorted(changed)
        for number in numbers:
            record, offset = changed[number], number % _SLOTS * _ENTRY_BYTES
            pack_into(entries, offset, record.sent_s + to_wall_s, record.amount)
        (first, low), (last, high) = divmod(numbers[0], _SLOTS), divmod(numbers[-1], _SLOTS)
        if first != last:
            low, high = 0, _SLOTS - 1
        start = low * _ENTRY_BYTES
        changed.clear()
        self._put(entries[start : (high + 1) * _ENTRY_BYTES], _FIRST_OFFSET + start)

    def _claim(self, amount: int, until_s: float) -> None:
        self._claimed = amount
        self._put(_ENTRY.pack(until_s + self._to_wall_s, amount), _CLAIM_OFFSET)

    def _tell_pace(self, full_at_s: float) -> None:
        self._told_full_at_s = full_at_s
        self._put(_HEADER.pack(_MAGIC, full_at_s + self._to_wall_s), 0)

    def _put(self, data: bytes | memoryview, offset: int) -> None:
        if self._fd is None:
            return
        try:
            if os.pwrite(self._fd, data, offset) < len(data):
                self._abandon()
        except OSError:
            # If the disk fails, the journal ends the run. These bytes only matter after a death.
            self._abandon()

    def _abandon(self) -> None:
        self._changed.clear()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _to_wall_s(clock: Clock) -> float:
    """The difference of the clocks; never too small, even if interrupted between the readings.

    A send that seems later than it was costs time, one that seems earlier exceeds the limit.
    """
    now_s = clock.now_s()
    return clock.wall_s() - now_s


def _recall(path: Path, window: Window, clock: Clock) -> bool:
    """Adds the sends in `path` to `window`; False for a damaged or foreign file."""
    data = path.read_bytes()
    if len(data) != _SIZE or not data.startswith(_MAGIC):
        return False
    now_s, to_wall_s = clock.now_s(), clock.wall_s() - clock.now_s()
    span_s = window.rate.window_s + window.guard_s
    window.recall(sorted(_entries(data, now_s, to_wall_s, span_s)))
    pace_s = _HEADER.unpack_from(data)[1] - to_wall_s
    # A pace further ahead than a window comes from a clock that was set back.
    if now_s < pace_s <= now_s + span_s:
        window.resume_pace(pace_s)
    return True


def _entries(
    data: bytes, now_s: float, to_wall_s: float, span_s: float
) -> Iterator[tuple[float, int]]:
    """(stamp, amount) of the sends that are younger than span_s."""
    for wall_s, amount in _ENTRY.iter_unpack(data[_CLAIM_OFFSET:]):
        sent_s = wall_s - to_wall_s
        # A stamp in the future comes from a wall clock that was set back meanwhile; also NaN.
        if 0 < amount <= MAX_COUNT and sent_s > now_s - span_s:
            yield min(sent_s, now_s), round(amount)
