"""Keeps a ledger in a file, for the processes of one machine.

A turn locks the file (flock, exclusive), reads the state, calls `transact`, writes the new state,
and unlocks the file; this takes about 100 us. If the process that holds the lock dies in any way,
the system releases the lock.

The file has a magic line, then two places for the state, each with a turn number and a checksum. A
turn writes to the older place, so a writer that is killed half-way leaves the state from before its
turn. That state is still valid: no process was given slots in the unfinished turn. If both places
are damaged, every window counts as full. A file that begins with anything but the magic line is not
a ledger and is never written.

Nothing is synced to disk. Times are those of CLOCK_MONOTONIC, which all processes of a machine
share until it reboots; a state from an earlier boot is shifted by the wall clock.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import struct
import zlib
from pathlib import Path

import msgspec

from redline.clock import SYSTEM, Clock
from redline.errors import ConfigError, NoEndpoint
from redline.limits.shared.schedule import STALE_S, Lease, LeaseRequest, State, transact
from redline.process import LockedFile

_MAGIC = b"redline-limits-1\n"
_HEADER = struct.Struct("<QII")  # turn, length, checksum
_PLACE_BYTES = 1 << 20
_MOST_BYTES = _PLACE_BYTES - _HEADER.size
_FIRST_PLACE = 4096
# The first and the longest pause between attempts to lock, and the longest wait for the lock, in
# seconds. A turn holds the lock for much less than 1 ms.
_FIRST_WAIT_S, _LONGEST_WAIT_S, _MOST_WAIT_S = 0.0005, 0.02, 1.0
# The most endpoints in a file; a new one replaces the one that has been unused for longest.
_MOST_STATES = 64
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Content(msgspec.Struct, array_like=True):
    """The content of a place: the states by name, and when and in which boot they were written."""

    turn: int
    boot_id: str
    now_s: float
    wall_s: float
    states: dict[str, State]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Content)


def check_path(path: Path) -> None:
    """Raises ConfigError if no file can be opened or created at `path`; creates nothing.

    Does not check the content of an existing file.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError as error:
        folder = path.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            reason = "is not writable" if folder.exists() else "does not exist"
            raise _unusable(path, f"{folder} {reason}") from error
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the shared limits cannot be saved in {path}: {reason}",
        hint="choose a file in a folder that exists and is writable",
    )


class FileLedger:
    """Keeps the state under `name` in the file at `path`, which is created if it does not exist.

    limits: the shared limits, in words. Raises ConfigError for a file that cannot be used, is not a
    ledger, or is in use for other limits.
    """

    lead_s = 0.0
    unsure_s = 0.0
    _file = LockedFile(-1)  # none is open yet

    def __init__(self, path: Path, name: str, limits: str, clock: Clock = SYSTEM) -> None:
        self._path = path
        self._name = name
        self._clock = clock
        self._boot_id = _boot_id()
        self._check(limits)

    def local_s(self, ledger_s: float) -> tuple[float, float]:
        """Returns the earliest and the latest local time that a ledger time can mean."""
        return ledger_s, ledger_s

    def stamp_s(self, local_s: float) -> float:
        """Returns the ledger time of a local time, or a later one."""
        return local_s

    async def transact(self, request: LeaseRequest) -> Lease:
        """Returns the lease. Raises NoEndpoint if the file stays locked or cannot be used."""
        wait_s, waited_s = _FIRST_WAIT_S, 0.0
        try:
            while not self._lock():
                if waited_s >= _MOST_WAIT_S:
                    raise NoEndpoint(
                        f"the shared limits in {self._path} stay locked",
                        hint="end or resume the process that holds the lock; it may be suspended",
                    )
                # Random, so that processes that collided once do not collide again.
                pause_s = wait_s * random.uniform(0.5, 1.5)
                await asyncio.sleep(pause_s)
                waited_s += pause_s
                wait_s = min(_LONGEST_WAIT_S, wait_s * 2)
            try:
                return self._turn(request)
            finally:
                fcntl.flock(self._file.fd, fcntl.LOCK_UN)
        except OSError as error:
            raise NoEndpoint(
                f"the shared limits in {self._path} cannot be used: {error.strerror or error}"
            ) from error
        except ConfigError as error:
            raise NoEndpoint(error.what, hint=error.hint) from error

    async def aclose(self) -> None:
        """Releases the file. May be called again."""
        self._file.close()

    def _check(self, limits: str) -> None:
        try:
            # If the file is locked, a process is using the ledger, and the first turn waits for it.
            state = self._read()[0].states.get(self._name) if self._lock() else None
        except OSError as error:
            raise _unusable(self._path, error.strerror or str(error)) from error
        finally:
            self._file.close()
        now_s = self._clock.now_s()
        if state is not None and state.limits != limits and now_s - state.touched_s < STALE_S:
            raise ConfigError(
                f"{self._path} is in use for {state.limits}, not for {limits}",
                hint="set the same limits in every process, or share through another file",
            )

    def _lock(self) -> bool:
        """Tries to lock the file at the path; returns whether this process holds the lock now."""
        if self._file.fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = LockedFile(os.open(self._path, flags, 0o600))
        if not self._file.try_lock():
            return False
        if self._file.is_at(self._path):
            return True
        # The file was moved or deleted: other processes use the file now at the path.
        self._file.close()
        return False

    def _turn(self, request: LeaseRequest) -> Lease:
        content, is_damaged = self._read()
        now_s = self._clock.now_s()
        if is_damaged:
            # The request claims a slot that the state does not contain, so windows count as full.
            request = msgspec.structs.replace(request, seen_s=max(request.seen_s, now_s))
        if content.boot_id != self._boot_id:
            passed_s = max(0.0, self._clock.wall_s() - content.wall_s)
            for state in content.states.values():
                state.restart(content.now_s - (now_s - passed_s))
        states = content.states
        state, lease = transact(states.pop(self._name, None), request, now_s)
        for name in [name for name in states if states[name].is_over(now_s)]:
            del states[name]
        if len(states) >= _MOST_STATES:
            del states[_unused(states)]
        number, wall_s = content.turn + 1, self._clock.wall_s()
        while True:
            kept = {**states, self._name: state}
            body = _ENCODER.encode(_Content(number, self._boot_id, now_s, wall_s, kept))
            if len(body) <= _MOST_BYTES:
                break
            # States in use are kept: if each turn dropped one, all windows would count as full.
            if not states or now_s - states[_unused(states)].touched_s < STALE_S:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            del states[_unused(states)]
        self._write(number, body)
        return lease

    def _read(self) -> tuple[_Content, bool]:
        """Returns the newest valid content, and whether content was written but none is valid.

        Raises ConfigError if the file is not a ledger.
        """
        magic = os.pread(self._file.fd, len(_MAGIC), 0)
        if len(magic) < len(_MAGIC) and _MAGIC.startswith(magic):
            # The file is new, or the process that created it was killed.
            os.pwrite(self._file.fd, _MAGIC, 0)
        elif magic != _MAGIC:
            raise ConfigError(
                f"{self._path} is not a file of shared limits",
                hint="choose another file, or one that does not exist yet",
            )
        headers = [os.pread(self._file.fd, _HEADER.size, _offset(place)) for place in (0, 1)]
        written = [_HEADER.unpack(header) for header in headers if len(header) == _HEADER.size]
        for turn, length, checksum in sorted(written, reverse=True):
            body = os.pread(
                self._file.fd, min(length, _MOST_BYTES), _offset(turn % 2) + _HEADER.size
            )
            if turn and zlib.crc32(body, turn % 2**32) == checksum:
                try:
                    return _DECODER.decode(body), False
                except msgspec.DecodeError:
                    continue
        return _Content(0, self._boot_id, 0.0, 0.0, {}), bool(written)

    def _write(self, turn: int, body: bytes) -> None:
        header = _HEADER.pack(turn, len(body), zlib.crc32(body, turn % 2**32))
        written = os.pwrite(self._file.fd, header + body, _offset(turn % 2))
        if written < len(header) + len(body):
            # The next turn would not see the slots of this one, so they must not be used.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _unused(states: dict[str, State]) -> str:
    """Returns the name of the state that has been unused for the longest time."""
    return min(states, key=lambda name: states[name].touched_s)


def _offset(place: int) -> int:
    return _FIRST_PLACE + place * _PLACE_BYTES


def _boot_id() -> str:
    """Returns the ID of the current boot; "" if the system does not report one."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
