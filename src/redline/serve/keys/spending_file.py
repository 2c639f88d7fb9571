"""Saves what tenants have spent today, for the next process and for other running processes.

The file is in the folder of the key file or, without keys, in the state folder:

    {"day": "2026-11-26", "dollars": {"acme": "1.25", "lab": "0.0021"}}

The day never goes back: setting the clock back does not restore a day's money. Each process adds
the money that it has committed since it last saved, and reads the total of all processes. Reserved
money counts as spent until it is settled: if a process is killed, its reservations still count as
spent, except those of its last second.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path

import msgspec

from redline.calls.cost import DOLLAR
from redline.clock import SYSTEM
from redline.errors import ConfigError, RedlineError
from redline.process import replace_file, write_all
from redline.serve.keys.day_money import DAY_S
from redline.serve.keys.file_lock import locked
from redline.serve.keys.tenants import Tenants

_EVERY_S = 1.0
_MOST_BYTES = 64 * 2**20
_MODE = 0o600
_MOST_DOLLARS = 10**9


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    day: date
    dollars: dict[str, str] = {}


def spending_path(keys: Path) -> Path:
    """Returns the path of the file for a key file: `keys.spent.json` for `keys.jsonl`."""
    return keys.with_name(f"{keys.stem}.spent.json")


class SpendingFile(msgspec.Struct, frozen=True):
    """The file at `path`. Calls block, and only one thread may call at a time."""

    path: Path

    def add(self, day: int, amounts: Mapping[str, int]) -> dict[str, int]:
        """Adds picodollars by tenant; returns the totals that all processes have committed.

        day: days since 1970-01-01; if the file is for a later day, that day is used instead. Raises
        ConfigError or JournalError: the amounts were not added, unless the disk failed after the
        file was replaced; then they count twice once they are added again.
        """
        today = datetime.fromtimestamp(day * DAY_S, UTC).date()
        with locked(self.path):
            today, totals = self._totals(today)
            if amounts:
                for name, amount in amounts.items():
                    totals[name] = max(0, totals.get(name, 0) + amount)
                dollars = {name: _dollars(total) for name, total in totals.items() if total}
                data = msgspec.json.encode(_Content(today, dollars)) + b"\n"
                replace_file(self.path, partial(_write, data))
        return totals

    def check(self) -> None:
        """Raises ConfigError if the file cannot be read and replaced; creates no file."""
        folder = self.path.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(
                f"cannot write {self.path}: {folder} is not writable",
                hint="keep the keys, or the state, in a writable folder",
            )
        if self.path.exists():
            self.add(int(SYSTEM.wall_s() // DAY_S), {})

    def _totals(self, today: date) -> tuple[date, dict[str, int]]:
        """Returns the day, `today` or a later one in the file, and its picodollars by tenant."""
        try:
            if self.path.stat().st_size > _MOST_BYTES:
                raise ConfigError(f"{self.path} is larger than {_MOST_BYTES // 2**20} MiB")
            data = self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {self.path}: {error.strerror}") from error
        if not data.strip():
            return today, {}
        try:
            content = msgspec.json.decode(data, type=_Content)
            if content.day < today:
                return today, {}
            totals = {name: _picodollars(text) for name, text in content.dollars.items()}
            return content.day, totals
        except (
            msgspec.DecodeError,
            UnicodeDecodeError,
            InvalidOperation,
            ValueError,
        ) as error:
            raise ConfigError(
                f"{self.path} is damaged: {error}",
                hint="delete it: today's spending then starts again at 0",
            ) from None


class SpendingKeeper:
    """Saves the spending of `tenants` to a file, at most once a second and at the end.

    on_error: called with the error if saving fails, once for each new error; saving is retried.
    """

    def __init__(
        self, path: Path, tenants: Tenants, on_error: Callable[[RedlineError], None]
    ) -> None:
        self._file = SpendingFile(path)
        self._tenants = tenants
        self._on_error = on_error
        self._said = ""

    def keep(self) -> None:
        """Saves the spending. Blocks while writing.

        Raises ConfigError or JournalError if the file cannot be read or written.
        """
        # Without the lock, two workers that end at the same time would both add the same amounts.
        with self._tenants.alone:
            day, amounts = self._tenants.unkept()
            self._tenants.kept(day, amounts, self._file.add(day, amounts))

    def end(self) -> None:
        """Saves the spending for the last time; passes an error to `on_error`."""
        try:
            self.keep()
        except RedlineError as error:
            self._failed(error)

    async def run(self) -> None:
        """Saves once a second, in a thread, until cancelled, and then once more.

        Call `keep` before this, and before calls are accepted.
        """
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                await self._turn()
        finally:
            self.end()

    async def _turn(self) -> None:
        day, amounts = self._tenants.unkept()
        adding = asyncio.ensure_future(asyncio.to_thread(self._file.add, day, amounts))
        try:
            # The thread cannot be stopped, and the amounts that it adds must not be added again.
            await asyncio.wait([adding])
        except asyncio.CancelledError:
            await asyncio.wait([adding])
            raise
        finally:
            if adding.done():
                self._absorb(day, amounts, adding)

    def _absorb(
        self, day: int, amounts: Mapping[str, int], adding: asyncio.Future[dict[str, int]]
    ) -> None:
        try:
            totals = adding.result()
        except RedlineError as error:
            self._failed(error)
        else:
            self._said = ""
            self._tenants.kept(day, amounts, totals)

    def _failed(self, error: RedlineError) -> None:
        if str(error) != self._said:
            self._said = str(error)
            self._on_error(error)


def _write(data: bytes, fd: int) -> None:
    os.fchmod(fd, _MODE)
    write_all(fd, [data])


def _dollars(picodollars: int) -> str:
    return f"{Decimal(picodollars) / DOLLAR:f}"


def _picodollars(dollars: str) -> int:
    stated = Decimal(dollars)
    # Checked before any arithmetic, which could overflow or take long with a large exponent.
    if not 0 <= stated <= _MOST_DOLLARS or (amount := stated * DOLLAR) != int(amount):
        raise ValueError(f"not an amount in dollars: {dollars[:40]}")
    return int(amount)
