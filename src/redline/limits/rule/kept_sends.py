"""Writes sends to files, so that a run that is killed and restarted exceeds no limit.

Each window has a small file with its pace, a claim, and a ring of its records, each (wall time,
amount). Nothing is synced: the file is in the page cache, which survives the death of the process.
A crash of the machine may lose it, but a reboot takes longer than most windows last.

Writing each send would be one of the most expensive steps of a call. So the claim covers the sends
that are not in the ring yet: until the next write, at most the claimed amount may change, and only
for sends up to the claim's time. After a crash, the kept count is never too low. It is too high by
at most a 64th of the limit, or by the amount sent and settled in about a 64th of the window,
whichever is less. While few calls are sent, nothing is claimed, and each send is written.

A shared mapping would need no writes. But storing to it kills the process (SIGBUS) if the disk is
full (btrfs) or unreachable (NFS), and some file systems do not support mappings.
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
# The ring has room for all records of a window: at most 4,097, plus those not dropped yet
# (limits/rule/window.py).
_SLOTS = 4199
_SIZE = _FIRST_OFFSET + _SLOTS * _ENTRY_BYTES
# A claim is at most this share of the limit. It covers the same share of the window, but at most
# _CLAIM_MOST_S, and at least the time of one record.
_CLAIM_SHARE = 1 / 64
_CLAIM_MOST_S = 0.1
# While there are fewer changes in that time, each change is written and nothing is claimed.
_CLAIM_FROM = 8
# A file is removed this long after two windows without a write, in case the wall clock was set.
_EXPIRED_S = 60.0
# The wall clock has stepped if it moved by more than this relative to the monotonic clock.
_STEP_S = 0.1


class RecentSends:
    """The files of an endpoint's windows, in one folder.

    folder: created if it is missing. name: the endpoint's name in file names. old_names: its names
    in older versions of redline; if `name` has no file for a kind of limit, the first old name that
    has one is read. Files with old names are never written.
    A folder that cannot be written is ignored: the files matter only after the process has died,
    and the journal of a run, which is beside the folder, reports the problem to the user.
    """

    def __init__(
        self, folder: Path, name: str, clock: Clock, old_names: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._names = (name, *old_names)
        self._clock = clock
        self._rings: dict[Window, tuple[_Ring, Path]] = {}
        self.since_s = clock.now_s()  # earlier sends were made by an earlier process
        self._drop_expired()

    def keep(self, kind: str, window: Window) -> None:
        """Adds the kept sends to `window`, and keeps the window's sends from now on.

        kind: what the window counts, such as `requests`.
        """
        self.recall(kind, window)
        self.attach(kind, window)

    def recall(self, kind: str, window: Window, *, is_first: bool = True) -> bool:
        """Adds the sends of earlier processes to `window`; returns whether a valid file was found.

        is_first: whether no other window of this kind has recalled sends yet. If so, and if there
        is no file with this window length, one with another length is read.
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
        """Keeps the sends that `window` counts now, and its sends from now on."""
        path = self._path(kind, window.rate)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")
            ring = _Ring(fresh, self._clock, window.rate)
            self._rings[window] = (ring, path)
            window.attach(ring)
            ring.start()
            # A file that could not be written contains less than the file that it would replace.
            if ring.is_open:
                fresh.replace(path)
            else:
                fresh.unlink(missing_ok=True)
        except OSError:
            return

    def drop(self, window: Window) -> None:
        """Stops keeping `window`, whose sends another window now counts."""
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
        """Removes the files of windows that have passed, whatever their endpoint, key and limit.

        Otherwise, each run against a server whose port changes would leave files behind.
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
        """Returns the file with the shortest window that is at least as long as the rate's.

        If there is none, returns the file with the longest window; None without files. The limits
        may have been configured differently in an earlier run.
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
    """Keeps the sends of one window in its file.

    The file has wall times, because a monotonic clock restarts with the machine. But a wall clock
    may be set, and it runs on while the machine sleeps and the monotonic clock stops. The window
    counts in monotonic time, so if the two clocks have moved apart, the next write shifts all times
    in the file.

    At every moment, the file counts at least the amount that was sent, for at least as long: the
    claim covers a change that has not been written, and a claim is replaced only after the changes
    that it covered have been written.

    rate: the window's. A claim is at most a share of its count, for a share of its length.
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
        self._changed: dict[int, Record] = {}  # by number: records changed since the last write
        # How much may change between two writes, how much of that is left, and the latest send that
        # the claim covers. Before `start`, nothing is written.
        self._ahead = self._left = self._until_s = math.inf
        self._claimed = 0  # the claim in the file
        # Since when changes are counted, their number, and their total amount as of the last write.
        self._from_s = -math.inf
        self._changes, self._added = 0, 0.0
        # The current pace, and the pace in the file.
        self._full_at_s = self._told_full_at_s = -math.inf
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd: int | None = os.open(path, flags, 0o666)
        # Write the whole file first, so that a full disk is noticed here and not at a send.
        try:
            if os.pwrite(self._fd, image, 0) < _SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._abandon()
            # Leave the last space on a nearly full disk to the results.
            path.unlink(missing_ok=True)
            raise

    @property
    def is_open(self) -> bool:
        """Whether the file can be written."""
        return self._fd is not None

    def start(self) -> None:
        """Writes the records kept so far, without a claim; later changes are written as needed."""
        latest_s = max((record.sent_s for record in self._changed.values()), default=-math.inf)
        self._write_records()
        self._ahead, self._left, self._until_s, self._changes = 0, 0, latest_s, 0

    def keep(self, record: Record, change: int) -> None:
        self._changed[record.number] = record
        # A settled amount that is lower does not endanger the limit, but must be written as well.
        self._left -= change
        self._changes += 1
        if self._left < 0 or record.sent_s > self._until_s:
            self._write(record.sent_s)

    def keep_pace(self, full_at_s: float) -> None:
        told_s, self._full_at_s = self._told_full_at_s, full_at_s
        if not full_at_s <= told_s <= full_at_s + self._claim_s:
            # A pace that has just passed the one in the file will soon move on: write a later one.
            is_busy = 0 < full_at_s - told_s <= self._claim_s
            self._follow_clock()
            self._tell_pace(full_at_s + (self._claim_s / 2 if is_busy else 0.0))

    def close(self) -> None:
        """Writes the remaining records and the pace, without a claim, and closes the file."""
        self._follow_clock()
        self._write_records()
        if self._claimed:
            self._claim(0, self._until_s)
        if self._full_at_s != self._told_full_at_s:
            self._tell_pace(self._full_at_s)
        self._abandon()

    def _write(self, sent_s: float) -> None:
        """Writes the changed records, then a claim for the changes that may follow.

        Claims as much as has changed recently, at most a share of the limit. Therefore a burst
        costs one write each time its amount doubles, later one write per such share, and a steady
        flow costs about one write per claim_s. sent_s: when the changed record was sent.
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
        """Shifts all times in the file if the wall clock has stepped."""
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
        # If two records share a slot, the later one counts: the earlier one has left the window.
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
            # If the disk fails, the journal ends the run. These bytes matter only after a crash.
            self._abandon()

    def _abandon(self) -> None:
        self._changed.clear()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _to_wall_s(clock: Clock) -> float:
    """Returns the wall time minus the monotonic time, in seconds; never too small.

    An interruption between the two readings makes the difference larger. That is safe: a send that
    seems later than it was costs time, but one that seems earlier would exceed the limit.
    """
    now_s = clock.now_s()
    return clock.wall_s() - now_s


def _recall(path: Path, window: Window, clock: Clock) -> bool:
    """Adds the sends in `path` to `window`; returns False if the file is damaged or foreign."""
    data = path.read_bytes()
    if len(data) != _SIZE or not data.startswith(_MAGIC):
        return False
    now_s, to_wall_s = clock.now_s(), clock.wall_s() - clock.now_s()
    window.recall(sorted(_entries(data, now_s, to_wall_s)), now_s)
    pace_s = _HEADER.unpack_from(data)[1] - to_wall_s
    # A pace that is ahead by more than a window was written before the clock was set back.
    if now_s < pace_s <= now_s + window.rate.window_s + window.guard_s:
        window.resume_pace(pace_s)
    return True


def _entries(data: bytes, now_s: float, to_wall_s: float) -> Iterator[tuple[float, int]]:
    """Yields (time, amount) of the sends."""
    for wall_s, amount in _ENTRY.iter_unpack(data[_CLAIM_OFFSET:]):
        sent_s = wall_s - to_wall_s
        # A time in the future was written before the wall clock was set back.
        if 0 < amount <= MAX_COUNT and not math.isnan(sent_s):
            yield min(sent_s, now_s), round(amount)
