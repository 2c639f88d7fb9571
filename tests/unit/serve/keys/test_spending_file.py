"""What was spent today is known to the next process, and to others that share the file."""

from __future__ import annotations

import asyncio
import errno
import json
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError, RedlineError
from redline.serve.gateway import GatewaySettings
from redline.serve.keys import (
    DAY_S,
    Refused,
    SpendingFile,
    SpendingKeeper,
    Started,
    Tenants,
    TenantSettings,
    spending_path,
)
from redline.testing import WALL_START_S, ManualClock
from support.until import until

DOLLAR = 10**12
DAY = int(WALL_START_S // DAY_S)
SETTINGS = {name: TenantSettings(picodollars_per_day=10 * DOLLAR) for name in ("acme", "lab")}
TIMEOUT_S = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return spending_path(tmp_path / "keys.jsonl")


class Process:
    """What one gateway has of it."""

    def __init__(self, path: Path, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.tenants = Tenants(SETTINGS, self.clock)
        self.errors: list[RedlineError] = []
        self.keeper = SpendingKeeper(path, self.tenants, self.errors.append)
        self.keeper.keep()

    def start(self, name: str, dollars: float) -> Started | Refused:
        limits = self.tenants.of(name).limits
        return limits.try_start(self.clock.now_s(), 0, int(dollars * DOLLAR))

    def spend(self, name: str, dollars: float) -> None:
        call = self.start(name, dollars)
        assert isinstance(call, Started), call
        call.settle(self.clock.now_s(), 0, int(dollars * DOLLAR))


def test_what_was_spent_survives_a_restart(path: Path) -> None:
    first = Process(path)
    first.spend("acme", 6)
    first.spend("acme", 0.5)
    first.spend("lab", 0.000000000001)
    first.keeper.keep()
    assert json.loads(path.read_text("utf-8")) == {
        "day": "2026-01-01",
        "dollars": {"acme": "6.5", "lab": "0.000000000001"},
    }
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    second = Process(path)
    assert isinstance(second.start("acme", 3.6), Refused)
    second.spend("acme", 3.5)
    assert isinstance(second.start("acme", 0.001), Refused)
    second.spend("lab", 9)


def test_what_a_killed_process_had_reserved_stays_spent(path: Path) -> None:
    killed = Process(path)
    killed.start("acme", 4)
    killed.keeper.keep()
    after = Process(path)
    assert isinstance(after.start("acme", 6.1), Refused)
    after.spend("acme", 6)


def test_what_was_reserved_and_not_used_comes_free_for_all(path: Path) -> None:
    one, other = Process(path), Process(path)
    call = one.start("acme", 10)
    one.keeper.keep()
    other.keeper.keep()
    assert isinstance(other.start("acme", 1), Refused)
    assert isinstance(call, Started)
    call.settle(1.0, 0, DOLLAR)
    one.keeper.keep()
    other.keeper.keep()
    other.spend("acme", 9)
    other.keeper.keep()
    one.keeper.keep()
    assert isinstance(one.start("acme", 0.1), Refused)
    assert SpendingFile(path).add(DAY, {}) == {"acme": 10 * DOLLAR}


def test_a_new_day_begins_at_nothing(path: Path) -> None:
    clock = ManualClock()
    one = Process(path, clock)
    one.spend("acme", 10)
    one.keeper.keep()
    clock.advance(DAY_S)
    one.keeper.keep()
    one.spend("acme", 1)
    one.keeper.keep()
    assert SpendingFile(path).add(DAY + 1, {}) == {"acme": DOLLAR}
    assert Process(path, clock).tenants.of("acme").limits.money.committed == DOLLAR


class SetClock(ManualClock):
    def step(self, by_s: float) -> None:
        self._wall_s += by_s


def test_a_clock_that_is_set_back_does_not_bring_a_days_money_back(path: Path) -> None:
    clock, late = SetClock(), SetClock()
    one = Process(path, clock)
    clock.step(DAY_S)
    one.spend("acme", 10)
    one.keeper.keep()
    clock.step(-DAY_S)
    assert isinstance(one.start("acme", 1), Refused)
    one.spend("lab", 4)
    one.keeper.keep()
    after = Process(path, clock)
    assert isinstance(after.start("acme", 1), Refused)
    assert isinstance(after.start("lab", 7), Refused)
    after.spend("lab", 6)
    after.keeper.keep()
    late.step(DAY_S)
    assert isinstance(Process(path, late).start("lab", 1), Refused)
    late.step(DAY_S)
    Process(path, late).spend("lab", 10)


def test_nothing_is_written_if_nothing_was_spent(path: Path) -> None:
    one = Process(path)
    one.spend("acme", 1)
    one.keeper.keep()
    before = path.stat()
    one.keeper.keep()
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"\xff",
        b'{"day": "today"}',
        b'{"day": "2026-01-01", "dollars": {"a": "much"}}',
        b'{"day": "2026-01-01", "dollars": {"a": "-1"}}',
        b'{"day": "2026-01-01", "dollars": {"a": "NaN"}}',
        b'{"day": "2026-01-01", "dollars": {"a": "1e999999"}}',
        b'{"day": "2026-01-01", "dollars": {"a": "1e900000"}}',
        b'{"day": "2026-01-01", "dollars": {"a": "0.1e-12"}}',
        b'{"day": "2026-01-01", "dollars": {"a": 1}}',
        b'{"day": "2026-01-01", "spent": {}}',
    ],
)
def test_a_damaged_file_is_not_taken_for_nothing_spent(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="is damaged") as caught:
        Process(path)
    assert "delete it" in caught.value.hint
    assert path.read_bytes() == data


ADDING = """
import sys
from pathlib import Path
from redline.serve.keys import SpendingFile
file = SpendingFile(Path(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    file.add(int(sys.argv[3]), {"acme": 3, "lab": 1})
"""


def test_two_processes_lose_nothing(path: Path) -> None:
    command = [sys.executable, "-c", ADDING, str(path), "50", str(DAY)]
    writers = [subprocess.Popen(command) for _ in range(3)]
    assert [writer.wait(TIMEOUT_S) for writer in writers] == [0, 0, 0]
    assert SpendingFile(path).add(DAY, {}) == {"acme": 450, "lab": 150}


async def test_it_is_kept_while_it_runs_and_at_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.serve.keys.spending_file._EVERY_S", 0.01)
    one = Process(path)
    task = asyncio.create_task(one.keeper.run())
    one.spend("acme", 1)
    await until(lambda: SpendingFile(path).add(DAY, {}) == {"acme": DOLLAR})
    path.write_bytes(b"{")
    one.spend("acme", 2)
    await until(lambda: bool(one.errors))
    await asyncio.sleep(0.1)
    assert len(one.errors) == 1, "it is told once"
    path.unlink()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert SpendingFile(path).add(DAY, {}) == {"acme": 2 * DOLLAR}


async def test_a_turn_that_ends_in_the_middle_counts_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.serve.keys.spending_file._EVERY_S", 0.001)
    one = Process(path)
    entered, go_on = threading.Event(), threading.Event()
    real = SpendingFile.add

    def slow(self: SpendingFile, day: int, amounts: Any) -> dict[str, int]:
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            assert go_on.wait(TIMEOUT_S)
        return real(self, day, amounts)

    monkeypatch.setattr(SpendingFile, "add", slow)
    one.spend("acme", 1)
    task = asyncio.create_task(one.keeper.run())
    await until(entered.is_set)
    task.cancel()
    await asyncio.sleep(0.01)
    one.spend("acme", 2)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert real(SpendingFile(path), DAY, {}) == {"acme": 3 * DOLLAR}


async def test_a_file_that_cannot_be_read_for_a_while_is_told_and_kept_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.serve.keys.spending_file._EVERY_S", 0.001)
    one = Process(path)
    one.spend("acme", 1)
    task = asyncio.create_task(one.keeper.run())
    with monkeypatch.context() as broken:

        def fail(_: Path) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        broken.setattr(Path, "read_bytes", fail)
        await until(lambda: bool(one.errors))
        assert "cannot read" in one.errors[0].what
        assert len(one.errors) == 1
    await until(lambda: SpendingFile(path).add(DAY, {}) == {"acme": DOLLAR})
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_check_finds_what_a_start_would_find_and_makes_no_file(path: Path) -> None:
    keys = path.with_name("keys.jsonl")
    keys.touch()
    settings = GatewaySettings(endpoints=(), keys=keys)
    settings.check()
    assert not path.exists()
    path.write_text("{", "utf-8")
    with pytest.raises(ConfigError, match="is damaged"):
        settings.check()


def test_what_was_spent_on_a_day_includes_what_others_have_spent(path: Path) -> None:
    one = Process(path)
    one.spend("acme", 2)
    one.keeper.keep()
    two = Process(path)
    two.spend("acme", 1)
    money = two.tenants.of("acme").limits.money
    assert money.spent_on(DAY) == 3 * DOLLAR
    assert money.spent_on(DAY + 1) == 0
