"""Manages the SQLite files in a cache folder, and a thread's connection to the one in use.

A file is never renamed or replaced: SQLite finds a file's journal by the file's name, and would
apply it to a new file of that name (sqlite.org/howtocorrupt.html). Files are numbered instead: a
damaged file is left as it is, and the first process that finds the damage creates the file with the
next number.

SQLite uses a rollback journal. A write-ahead log has an index that every process maps into its
memory, and truncating a mapped file kills its readers with SIGBUS, which cannot be caught. If a
file is read and written only by system calls, its truncation is an error like any other damage.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from redline.process import DaemonThreads

if TYPE_CHECKING:
    # Imported only in functions that use it: a program without a cache does not load SQLite.
    import sqlite3

T = TypeVar("T")

# The format's version is in the name, so that older and newer versions of redline use separate
# files.
_NAME = re.compile(r"answers-v1\.(\d{1,9})\.sqlite3")
# auto_vacuum lets free pages be returned to the file system. It must come before the first table.
_SCHEMA = """
    PRAGMA auto_vacuum = INCREMENTAL;
    CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, value BLOB, used INTEGER);
    CREATE INDEX IF NOT EXISTS by_use ON answers (used);
"""
_IS_MADE = "SELECT 1 FROM sqlite_master WHERE name = 'by_use'"
_BUSY_S = 5.0
_MOST_NOTES = 8
_MOST_SET_ASIDE = 3


class Files:
    """The numbered files of one folder, and the number of the file in use. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.number = max(self._numbers(), default=1)
        self._lock = threading.Lock()
        self._set_aside = 0

    def path(self, number: int) -> Path:
        return self.folder / f"answers-v1.{number}.sqlite3"

    def give_up(self, number: int, error: sqlite3.Error) -> bool:
        """Switches from the damaged file `number` to the next; returns False after 3 such files."""
        with self._lock:
            if self.number != number:
                return True
            if self._set_aside >= _MOST_SET_ASIDE:
                return False
            self._set_aside += 1
            # Another process may have created the next file.
            self.number = max(max(self._numbers(), default=0), number + 1)
        self.note(
            f"{self.path(number)} is damaged ({error}) and left as it is; "
            f"{self.path(self.number).name} is used in its place"
        )
        return True

    def note(self, text: str) -> None:
        """Adds a message for the user unless it is already there; at most 8 messages."""
        with self._lock:
            if text not in self.notes and len(self.notes) < _MOST_NOTES:
                self.notes.append(text)

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.folder)
        except OSError:
            # The folder has disappeared; the next attempt to open a file reports it.
            return []
        found = (_NAME.fullmatch(name) for name in names)
        return [int(match[1]) for match in found if match is not None]


class Database:
    """A thread with its connection to the file in use. name: the thread's name."""

    def __init__(self, files: Files, name: str) -> None:
        self._files = files
        self._thread = DaemonThreads(1, name)
        self._number = 0
        self._database: sqlite3.Connection | None = None

    def do(self, work: Callable[[sqlite3.Connection], T], otherwise: T, what: str) -> T:
        """Returns the result of `work`; after an SQLite error, notes it and returns `otherwise`.

        If the file is damaged, `work` is repeated on the next file. what: the note's first words.
        """
        import sqlite3

        while True:
            try:
                return work(self.opened())
            except sqlite3.Error as error:
                self.close()
                if not (_is_damage(error) and self._files.give_up(self._number, error)):
                    self._files.note(f"{what}: {error}")
                    return otherwise

    async def run(self, work: Callable[[sqlite3.Connection], T], otherwise: T, what: str) -> T:
        """Runs `do` in the thread; returns its result, or `otherwise` after any exception."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._thread, self.do, work, otherwise, what)
        await asyncio.wait([running])
        error = running.exception()
        if error is None:
            return running.result()
        self._files.note(f"{what}: {error!r}")
        return otherwise

    async def aclose(self) -> None:
        """Closes the connection and ends the thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self.close)
        self._thread.shutdown()

    def opened(self) -> sqlite3.Connection:
        """Returns a connection to the file in use. Raises sqlite3.Error."""
        if self._database is not None and self._number != self._files.number:
            self.close()
        if self._database is None:
            self._number = self._files.number
            self._database = _opened(self._files.path(self._number))
        return self._database

    def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            import sqlite3

            try:
                database.close()
            except sqlite3.Error:
                # The next connection to the file rolls back uncommitted changes.
                pass


def _opened(path: Path) -> sqlite3.Connection:
    """Opens a connection, creating the tables if needed. Raises sqlite3.Error."""
    import sqlite3

    gives_up_s = time.monotonic() + _BUSY_S
    while True:
        database = sqlite3.connect(
            path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            database.execute("PRAGMA mmap_size = 0")
            database.execute("PRAGMA synchronous = NORMAL")
            # Also for a file from an older version of redline, which used a write-ahead log.
            database.execute("PRAGMA journal_mode = DELETE").fetchone()
            # Only if needed: creating tables would wait for a writer, which a reader must not do.
            if database.execute(_IS_MADE).fetchone() is None:
                database.executescript(_SCHEMA)
            return database
        except sqlite3.Error as error:
            database.close()
            # If several processes create the file at the same time, some fail without waiting.
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > gives_up_s:
                raise
            time.sleep(0.05)


def try_out(database: sqlite3.Connection) -> bool:
    """Checks that the file can be read and written. Returns True, or raises sqlite3.Error."""
    database.execute("SELECT key, value, used FROM answers LIMIT 1").fetchall()
    database.execute("BEGIN IMMEDIATE")
    database.execute("ROLLBACK")
    return True


def number_of(database: sqlite3.Connection, name: str) -> int:
    """Returns the value of a numeric PRAGMA."""
    value: int = database.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the error shows that the file is not a valid cache file."""
    import sqlite3

    damages = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return _code(error) in damages


def _code(error: sqlite3.Error) -> int:
    """Returns SQLite's primary error code; -1 for an error of the Python module itself."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code & 0xFF if code >= 0 else code
