"""Stores answers on disk, in an SQLite file that several processes may use at once.

  lookups      the lookups of one turn of the event loop go to a thread together; those that arrive
               while the thread reads form the next group
  answers      an answer that `put` accepts can be looked up at once; it is written later, with its
               group, by another thread than that of the lookups
  the bound    the least recently used answers are deleted before a group would exceed the bound
  damage       an answer with a wrong checksum counts as absent; for a damaged file see file.py
  failures     what the disk cannot store or read counts as absent, and a note says so

Only `AnswerStore.open` blocks the event loop. A lookup takes 10 us if the file is in memory, but an
unknown time if it is not, so lookups run in a thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from redline.calls.cache.file import Database, Files, number_of, try_out
from redline.calls.cache.key import KEY_BYTES
from redline.clock import SYSTEM, Clock
from redline.errors import ConfigError
from redline.structs import check_types

if TYPE_CHECKING:
    import sqlite3

DEFAULT_BYTES = 1_000_000_000
# SQLite's own pages and indices take some of the bound; below this no room is left for answers.
LEAST_BYTES = 1_000_000
Lookup = asyncio.Future[bytes | None]
# Values and when they were last used, by key.
Found = dict[bytes, tuple[bytes, int]]

_CHECK_BYTES = 8
# A group is written this long after its first answer: a crash loses at most the answers of this
# time, and not every answer needs its own transaction.
_GROUP_S = 0.2
_GROUP_BYTES = 4 * 1024 * 1024
# If the disk does not keep up, answers beyond this are not stored.
_MOST_PENDING_BYTES = 64 * 1024 * 1024
# Another use of an answer within this time is not recorded.
_USED_EVERY_S = 600
# An answer above 1/8 of the bound would displace too many others.
_LARGEST_SHARE = 8
# Each time the bound is reached, at least 1/64 of it is freed.
_FREED_SHARE = 64
_MOST_IN_ONE_QUERY = 128


class Cache(msgspec.Struct, frozen=True):
    """The settings of the answer cache.

    folder: None for redline/answers in $XDG_CACHE_HOME, or in ~/.cache if that is not set.
    max_bytes: the largest size of the file in use, approximately; at least 1,000,000, 1 GB by
    default. The least recently used answers are deleted first, and an answer above an eighth of
    this size is not stored. includes_sampled: also store answers that were sampled at random, so
    that identical requests get the same answer. Raises ConfigError if max_bytes is too small.
    """

    folder: str | os.PathLike[str] | None = None
    max_bytes: int = DEFAULT_BYTES
    includes_sampled: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        if self.max_bytes < LEAST_BYTES:
            raise ConfigError(
                f"a cache needs at least {LEAST_BYTES:,} bytes, not {self.max_bytes:,}",
                hint="omit its size for the default of 1 GB",
            )


class AnswerStore:
    """Stores values under 32-byte keys in `folder`, in at most about `max_bytes`.

    Call `open` first, then all other methods on one event loop.
    """

    def __init__(self, folder: Path, max_bytes: int, *, clock: Clock = SYSTEM) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._max_bytes = max_bytes
        self._clock = clock
        self._wanted: list[tuple[bytes, Lookup]] = []
        self._reading: asyncio.Task[None] | None = None
        self._pending: dict[bytes, bytes] = {}
        self._pending_bytes = 0
        self._new_bytes = 0  # of the pending answers that are not yet being written
        self._used: set[bytes] = set()
        self._writing: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()
        self._is_closed = False

    def open(self) -> None:
        """Opens or creates the file. Blocks. Raises ConfigError if nothing can be stored."""
        try:
            # Answers may be confidential, so only the owner may read the folder.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files = Files(self.folder)
            self.notes = self._files.notes
            self._reader = Database(self._files, "redline-cache-read")
            self._writer = Database(self._files, "redline-cache-write")
            is_open = self._writer.do(try_out, False, "SQLite says")
        except OSError as error:
            raise _unusable(self.folder, error.strerror or str(error)) from error
        if not is_open:
            raise _unusable(self.folder, self.notes[-1])

    def look_up(self, key: bytes) -> Lookup:
        """Returns a future of the answer under `key`: None if absent, or if the store is closed."""
        future: Lookup = asyncio.get_running_loop().create_future()
        value = self._pending.get(key)
        if value is not None or self._is_closed:
            future.set_result(value)
            return future
        self._wanted.append((key, future))
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_on())
        return future

    def put(self, key: bytes, value: bytes) -> None:
        """Stores `value` under `key`, if the store is open and `value` is not too large.

        Never waits: if the disk cannot keep up, the value is dropped, and a note says so.
        """
        size = len(value)
        if self._is_closed or size > self._max_bytes // _LARGEST_SHARE:
            return
        if self._pending_bytes + size > _MOST_PENDING_BYTES:
            self._files.note(
                "answers arrived faster than the disk could store them; some are not cached"
            )
            return
        self._pending_bytes += size - len(self._pending.get(key, b""))
        self._pending[key] = value
        self._new_bytes += size
        if self._new_bytes >= _GROUP_BYTES:
            self._is_due.set()
        self._write_soon()

    async def aclose(self) -> None:
        """Writes pending answers and closes the file. Lookups that have not begun return None."""
        self._is_closed = True
        self._answer(self._wanted, {})
        self._wanted = []
        if self._reading is not None:
            await asyncio.wait([self._reading])
        await self.flush()
        await self._reader.aclose()
        await self._writer.aclose()

    async def flush(self) -> None:
        """Waits until every pending answer is in the file, or noted as lost."""
        while self._writing is not None:
            self._is_due.set()
            await asyncio.wait([self._writing])

    async def _read_on(self) -> None:
        """Completes lookups until none is left; those that wait together are read together."""
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, []
                work = partial(self._read, [key for key, _ in wanted])
                found = await self._reader.run(work, Found(), "answers cannot be looked up")
                self._answer(wanted, found)
        finally:
            self._reading = None

    def _answer(self, wanted: Sequence[tuple[bytes, Lookup]], found: Found) -> None:
        stale_s = self._clock.wall_s() - _USED_EVERY_S
        for key, future in wanted:
            value, used_s = found.get(key, (None, 0))
            if not future.done():
                future.set_result(value)
            if value is not None and used_s < stale_s:
                self._used.add(key)
        if self._used:
            self._write_soon()

    def _read(self, keys: Sequence[bytes], database: sqlite3.Connection) -> Found:
        """Reads values and the times of their last use, in the reading thread."""
        found: Found = {}
        for start in range(0, len(keys), _MOST_IN_ONE_QUERY):
            part = keys[start : start + _MOST_IN_ONE_QUERY]
            # Powers of two, so that few different statements are prepared.
            size = 1 << (len(part) - 1).bit_length()
            places = ",".join("?" * size)
            rows = database.execute(
                f"SELECT key, value, used FROM answers WHERE key IN ({places})",
                [*part, *[part[-1]] * (size - len(part))],
            )
            for key, sealed, used_s in rows:
                value = _unsealed(key, sealed)
                if value is None:
                    self._files.note("some stored answers were damaged and are requested again")
                else:
                    found[key] = (value, used_s if isinstance(used_s, int) else 0)
        return found

    def _write_soon(self) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_on())

    async def _write_on(self) -> None:
        """Writes new answers and times of use until none are left, each group when it is due."""
        try:
            while self._pending or self._used:
                try:
                    async with asyncio.timeout(_GROUP_S):
                        await self._is_due.wait()
                except TimeoutError:
                    pass
                self._is_due.clear()
                await self._write_group()
        finally:
            self._writing = None

    async def _write_group(self) -> None:
        group, used = [*self._pending.items()], [*self._used]
        self._new_bytes = 0
        self._used.clear()
        work = partial(self._write, group, used)
        await self._writer.run(work, None, "answers cannot be stored")
        # The group is written or lost: from here on, lookups of its answers read the file.
        for key, value in group:
            if self._pending.get(key) is value:
                del self._pending[key]
                self._pending_bytes -= len(value)

    def _write(
        self,
        group: Sequence[tuple[bytes, bytes]],
        used: Iterable[bytes],
        database: sqlite3.Connection,
    ) -> None:
        """Writes a group and the times of use in one transaction, in the writing thread."""
        now_s = int(self._clock.wall_s())
        rows = [(key, _sealed(key, value), now_s) for key, value in group]
        database.execute("BEGIN IMMEDIATE")
        self._make_room(database, sum(len(row[1]) for row in rows))
        database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", rows)
        database.executemany(
            "UPDATE answers SET used = ? WHERE key = ?", [(now_s, key) for key in used]
        )
        self._make_room(database, 0)
        database.execute("COMMIT")
        if number_of(database, "page_count") * number_of(database, "page_size") > self._max_bytes:
            # Run as a script: `execute` would make only one step, which frees one page.
            database.executescript("PRAGMA incremental_vacuum")

    def _make_room(self, database: sqlite3.Connection, wanted_bytes: int) -> None:
        """Deletes the least recently used answers until `wanted_bytes` more fit in the bound."""
        page_bytes = number_of(database, "page_size")
        while True:
            pages = number_of(database, "page_count") - number_of(database, "freelist_count")
            over = pages * page_bytes + wanted_bytes - self._max_bytes
            if over <= 0:
                return
            freed, oldest = 0, []
            least = max(over, self._max_bytes // _FREED_SHARE)
            for number, size in database.execute(
                "SELECT rowid, length(value) FROM answers ORDER BY used, rowid"
            ):
                oldest.append((number,))
                freed += size + KEY_BYTES
                if freed >= least:
                    break
            if not oldest:
                return
            database.executemany("DELETE FROM answers WHERE rowid = ?", oldest)


def _sealed(key: bytes, value: bytes) -> bytes:
    """Returns a checksum that is valid only under this key, followed by the value."""
    return blake2b(value, digest_size=_CHECK_BYTES, key=key).digest() + value


def _unsealed(key: bytes, sealed: object) -> bytes | None:
    """Returns the value; None if its checksum is wrong."""
    if not isinstance(sealed, bytes):
        return None
    value = sealed[_CHECK_BYTES:]
    check = blake2b(value, digest_size=_CHECK_BYTES, key=key).digest()
    return value if sealed[:_CHECK_BYTES] == check else None


def _unusable(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"answers cannot be stored in {folder}: {reason}",
        hint="choose another folder (--cache-dir; for serve, --state), or run without the cache",
    )
