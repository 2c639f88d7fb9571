"""Sends that outlive the process: what the next one makes of the files, whatever is in them."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from redline.limits import Limits, Rate
from redline.limits.rule import Cost, Kind, RecentSends, Rules, Window
from redline.limits.server import Feedback, Stated
from redline.testing import ManualClock

RATE = Rate(10, 60.0)
ALL = ("any", "counter", "fixed", "moving", "bucket")
GUARD_S = 0.05


class Process:
    """A process with a window of its own, whose monotonic clock has its own zero."""

    def __init__(
        self,
        folder: Path,
        wall_s: float,
        *,
        rate: Rate = RATE,
        profile: str = "moving",
        kind: Kind = "requests",
        name: str = "gpu-1",
        old_names: tuple[str, ...] = (),
    ) -> None:
        self.clock = ManualClock(now_s=random.Random(wall_s).uniform(0, 1e6), wall_s=wall_s)
        self.window = Window(rate, kind=kind, profile=profile, guard_s=GUARD_S)
        self.recent = RecentSends(folder, name, self.clock, old_names)
        self.recent.keep(kind, self.window)

    def send(self, amount: int = 1) -> Any:
        booking = self.window.book(amount, self.clock.now_s())
        self.window.sent(booking, self.clock.now_s())
        return booking

    def wait_s(self, amount: int = 1) -> float:
        return self.window.wait_s(amount, self.clock.now_s())

    def dies(self) -> None:
        self.recent.close()


@pytest.mark.parametrize("profile", ALL)
def test_the_next_process_goes_on_where_this_one_died(tmp_path: Path, profile: str) -> None:
    rate = Rate(10, 60.0)
    first = Process(tmp_path, 1000.0, rate=rate, profile=profile)
    for _ in range(6):
        first.send()
        first.clock.advance(first.wait_s())
    first.dies()
    second = Process(tmp_path, first.clock.wall_s() + 3.0, rate=rate, profile=profile)
    first.clock.advance(3.0)
    for amount in (1, 4, 5, 10):
        assert second.wait_s(amount) == pytest.approx(first.wait_s(amount), abs=0.02)
    third = Process(tmp_path, first.clock.wall_s() + 120.0, rate=rate, profile=profile)
    assert third.wait_s(10 if profile != "bucket" else 9) == 0


@pytest.mark.parametrize("window_s", [60, 3600])
def test_tokens_sent_a_moment_ago_delay_the_next_process_by_their_pace_only(
    tmp_path: Path, window_s: int
) -> None:
    first = Process(tmp_path, 1000.0, rate=Rate(6000, 60.0), profile="any", kind="tokens")
    first.send(30)
    first.dies()
    rate = Rate(100 * window_s, float(window_s))
    second = Process(tmp_path, 1000.1, rate=rate, profile="any", kind="tokens")
    assert second.wait_s(30) == pytest.approx(0.2, abs=0.01)


def test_tokens_sent_more_than_a_window_ago_count_as_if_nothing_had_died(tmp_path: Path) -> None:
    """A sliding-window counter counts a share of them, however few calls there were."""
    first = Process(tmp_path, 1000.0, rate=Rate(6000, 60.0), profile="any", kind="tokens")
    first.send(5000)
    first.dies()
    second = Process(tmp_path, 1060.2, rate=Rate(6000, 60.0), profile="any", kind="tokens")
    first.clock.advance(60.2)
    begun_s = [process.clock.now_s() for process in (first, second)]
    for process in (first, second):
        while (wait_s := process.wait_s(5000)) > 0:
            process.clock.advance(wait_s)
    waits = [one.clock.now_s() - at for one, at in zip((first, second), begun_s, strict=True)]
    assert 40 < waits[0] <= waits[1] < waits[0] + 5


def test_it_survives_any_number_of_deaths(tmp_path: Path) -> None:
    for number in range(10):
        process = Process(tmp_path, 1000.0 + number)
        assert process.window.used(process.clock.now_s()) == number
        process.send()
        process.dies()
    assert Process(tmp_path, 1010.0).wait_s() == pytest.approx(50.05)


def test_a_full_window_of_records_is_kept_whole(tmp_path: Path) -> None:
    """As many as a window holds, for two windows: old ones are overwritten, and no others."""
    first = Process(tmp_path, 1000.0, rate=Rate(100_000, 1.0))
    for _ in range(8200):
        first.send()
        first.clock.advance(0.00026)
    counted = first.window.used(first.clock.now_s())
    assert 3900 < counted < 4100
    shutil.copytree(tmp_path, tmp_path / "killed")
    killed = Process(tmp_path / "killed", first.clock.wall_s(), rate=Rate(100_000, 1.0))
    # A claim is as much as was sent within a 64th of the window.
    assert counted - 1 <= killed.window.used(killed.clock.now_s()) <= counted * (1 + 1 / 32)
    first.dies()
    second = Process(tmp_path, first.clock.wall_s(), rate=Rate(100_000, 1.0))
    assert second.window.used(second.clock.now_s()) == pytest.approx(counted, abs=1)


def test_a_settlement_is_kept_too(tmp_path: Path) -> None:
    first = Process(tmp_path, 1000.0)
    first.window.settle(first.send(8), 2)
    second = Process(tmp_path, 1001.0)
    assert second.window.used(second.clock.now_s()) == 2


def test_a_booking_that_was_never_written_dies_with_its_process(tmp_path: Path) -> None:
    first = Process(tmp_path, 1000.0)
    first.window.book(5, first.clock.now_s())
    second = Process(tmp_path, 1001.0)
    assert second.window.used(second.clock.now_s()) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"redline0" + data[8:],
        lambda data: bytes(len(data)),
        lambda data: b"\xff" * len(data),
        lambda data: data[:8] + b"\xff" * (len(data) - 8),
        lambda data: data[:8] + b"\x7f" * (len(data) - 8),
        lambda data: random.Random(5).randbytes(len(data)),
        lambda data: data[:8] + random.Random(6).randbytes(len(data) - 8),
    ],
)
@pytest.mark.parametrize("profile", ["moving", "bucket"])
def test_a_damaged_or_foreign_file_stops_nobody(tmp_path: Path, damage: Any, profile: str) -> None:
    first = Process(tmp_path, 1000.0, profile=profile)
    first.send()
    first.dies()
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    second = Process(tmp_path, 1001.0, profile=profile)
    assert second.wait_s() <= 60.0 + GUARD_S + 1e-6
    second.clock.advance(61.0)
    assert second.wait_s() == 0
    second.send()
    third = Process(tmp_path, second.clock.wall_s(), profile=profile)
    assert third.wait_s(10) > 0


def test_files_of_windows_that_have_passed_are_removed(tmp_path: Path) -> None:
    for name in ("port-1", "port-2", "port-3"):
        Process(tmp_path, 1000.0, name=name).dies()
    (tmp_path / "notes-1s.txt").touch()
    (first, second, _) = sorted(tmp_path.glob("*.sends"))
    now_s = second.stat().st_mtime
    # Windows of 60 s: no send in the first file can count any more; one in the second still may.
    os.utime(first, (now_s - 181, now_s - 181))
    os.utime(second, (now_s - 119, now_s - 119))
    Process(tmp_path, 1001.0, name="port-3").dies()
    names = {path.name.partition("-requests")[0] for path in tmp_path.iterdir()}
    assert names == {"port-2", "port-3", "notes-1s.txt"}


def test_a_wall_clock_that_was_set_back_delays_by_a_window_at_most(tmp_path: Path) -> None:
    for profile in ALL:
        folder = tmp_path / profile
        first = Process(folder, 1_000_000.0, profile=profile)
        for _ in range(9):
            first.send()
        second = Process(folder, 900_000.0, profile=profile)
        assert second.wait_s(1) <= 60.0 + GUARD_S
        if profile != "bucket":
            # They may have been sent just now; one record may be counted ahead.
            assert 9 <= second.window.used(second.clock.now_s()) <= 2 * 9
        second.clock.advance(60.0 + GUARD_S)
        assert second.wait_s(1) <= 1e-6


class SteppedClock(ManualClock):
    """Its wall time may also be set, or go on while the machine sleeps and monotonic time stops."""

    def step(self, by_s: float) -> None:
        self._wall_s += by_s


@pytest.mark.parametrize("profile", ALL)
@pytest.mark.parametrize("step_s", [3600.0, 0.5, -0.5, -3600.0])
def test_sends_are_kept_though_the_wall_clock_steps(
    tmp_path: Path, step_s: float, profile: str
) -> None:
    rate = Rate(10, 1.0)
    clock = SteppedClock(now_s=500.0, wall_s=1_000_000.0)
    window = Window(rate, profile=profile, guard_s=GUARD_S)
    recent = RecentSends(tmp_path, "gpu-1", clock)
    recent.keep("requests", window)
    for number in range(30):
        clock.advance(window.wait_s(1, clock.now_s()))
        if number == 26:
            clock.step(step_s)
        window.sent(window.book(1, clock.now_s()), clock.now_s())
    # Killed, not closed.
    second = Process(tmp_path, clock.wall_s(), rate=rate, profile=profile)
    for amount in (1, 4, 10):
        first_s = window.wait_s(amount, clock.now_s())
        assert second.wait_s(amount) == pytest.approx(first_s, abs=0.02)


def test_a_clock_that_steps_in_a_burst_moves_what_is_counted_ahead(tmp_path: Path) -> None:
    rate = Rate(1000, 60.0)
    clock = SteppedClock(now_s=500.0, wall_s=1_000_000.0)
    window = Window(rate, profile="moving", guard_s=GUARD_S)
    RecentSends(tmp_path, "gpu-1", clock).keep("requests", window)
    for number in range(60):
        if number == 30:
            clock.step(3600.0)
        window.sent(window.book(1, clock.now_s()), clock.now_s())
    # Killed, not closed: all that was sent is in the file, and may be claimed once more.
    second = Process(tmp_path, clock.wall_s() + 1.0, rate=rate)
    assert 60 <= second.window.used(second.clock.now_s()) <= 60 + 1000 // 64


def test_another_window_begins_with_what_the_nearest_one_knew(tmp_path: Path) -> None:
    Process(tmp_path, 1000.0, rate=Rate(99, 3600.0)).send(7)
    Process(tmp_path, 1001.0, rate=Rate(5, 1.0)).send(2)
    (tmp_path / "gpu-1-requests-60s.sends").unlink(missing_ok=True)
    Process(tmp_path, 1000.0, rate=Rate(10, 60.0), name="gpu-2").send(3)
    (tmp_path / "gpu-2-requests-60s.sends").rename(tmp_path / "gpu-1-requests-60s.sends")

    def used(window_s: float) -> int:
        process = Process(tmp_path, 1010.5, rate=Rate(100, window_s))
        process.dies()
        for path in tmp_path.glob(f"*-{window_s:g}s.sends"):
            path.unlink()
        return process.window.used(process.clock.now_s())

    # The next longer one; within it only what is young enough; and the longest where none is.
    assert used(20.0) == 3
    assert used(5.0) == 0
    assert used(120.0) == 7
    assert used(86_400.0) == 7


def test_files_without_a_length_hide_none_that_have_one(tmp_path: Path) -> None:
    Process(tmp_path, 1000.0, rate=Rate(99, 3600.0)).send(7)
    for number in range(30):
        (tmp_path / f"gpu-1-requests-{number}xs.sends").touch()
    process = Process(tmp_path, 1001.0, rate=Rate(99, 60.0))
    assert process.window.used(process.clock.now_s()) == 7


@pytest.mark.parametrize("profile", ALL)
def test_a_lower_limit_waits_for_a_window_and_no_longer(tmp_path: Path, profile: str) -> None:
    first = Process(tmp_path, 1000.0, rate=Rate(1_000_000, 60.0), profile=profile)
    first.send(500_000)
    second = Process(tmp_path, 1001.0, rate=Rate(10, 60.0), profile=profile)
    assert second.wait_s() <= 60.0 + GUARD_S
    second.clock.advance(60.0 + GUARD_S)
    assert second.wait_s() <= 1e-6


def test_a_bucket_is_not_kept_waiting_by_what_a_larger_window_sent(tmp_path: Path) -> None:
    first = Process(tmp_path, 1000.0, rate=Rate(1_000_000, 60.0))
    first.send(500_000)
    second = Process(tmp_path, 1001.0, rate=Rate(10, 60.0), profile="bucket")
    assert second.wait_s() <= 60.0 + GUARD_S


@pytest.mark.parametrize("profile", ["any", "counter", "fixed", "moving"])
def test_what_a_bucket_gave_is_not_sent_again_under_another_profile(
    tmp_path: Path, profile: str
) -> None:
    first = Process(tmp_path, 1000.0, profile="bucket")
    sent = 0
    while first.wait_s() == 0:
        first.send()
        first.clock.advance(0.01)
        sent += 1
    first.dies()
    second = Process(tmp_path, 1001.0, profile=profile)
    assert second.wait_s() == pytest.approx(60.0 * sent / 10 - 1, abs=0.1)


def test_each_endpoint_and_each_kind_has_its_own_file(tmp_path: Path) -> None:
    Process(tmp_path, 1000.0, name="a").send(3)
    other = Process(tmp_path, 1000.0, name="b")
    assert other.window.used(other.clock.now_s()) == 0
    tokens = Window(Rate(10, 60.0), kind="tokens", profile="moving")
    other.recent.keep("tokens", tokens)
    assert tokens.used(other.clock.now_s()) == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_the_size_of_a_file_is_fixed(tmp_path: Path) -> None:
    process = Process(tmp_path, 1000.0)
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    for _ in range(9000):
        process.send()
        process.clock.advance(61.0)
    assert path.stat().st_size == size < 70_000
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_file_is_readable_by_the_users_who_may_read_the_results(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        Process(tmp_path, 1000.0).send()
    finally:
        os.umask(before)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_day_of_ten_million_fits(tmp_path: Path) -> None:
    rate = Rate(10_000_000, 86_400.0)
    first = Process(tmp_path, 1000.0, rate=rate)
    for _ in range(10_000):
        first.send(900)
        first.clock.advance(8.64)
    second = Process(tmp_path, first.clock.wall_s(), rate=rate)
    used = second.window.used(second.clock.now_s())
    assert used == pytest.approx(first.window.used(first.clock.now_s()), rel=0.001)
    assert used == pytest.approx(9_000_000, rel=0.001)


def test_a_folder_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    process = Process(tmp_path / "file" / "below", 1000.0)
    process.send()
    assert process.wait_s(10) > 0
    process.dies()


@pytest.mark.parametrize("fails_from", [1, 2, 5])
def test_a_disk_that_fails_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_from: int
) -> None:
    calls = 0
    write = os.pwrite

    def failing(*given: Any) -> int:
        nonlocal calls
        calls += 1
        if calls >= fails_from:
            raise OSError(28, "No space left on device")
        return write(*given)

    monkeypatch.setattr(os, "pwrite", failing)
    process = Process(tmp_path, 1000.0)
    for _ in range(8):
        process.send()
    assert process.window.used(process.clock.now_s()) == 8
    process.dies()
    monkeypatch.undo()
    second = Process(tmp_path, 1001.0)
    assert second.window.used(second.clock.now_s()) <= 2 * 8


def test_a_failed_beginning_leaves_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pwrite", failing)
    for _ in range(20):
        Process(tmp_path, 1000.0).dies()
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_sends_of_a_killed_process_are_not_taken_for_other_clients_of_a_bucket(
    tmp_path: Path,
) -> None:
    wall_s, sent = 1000.0, 0
    for _ in range(3):
        clock = ManualClock(now_s=wall_s / 7, wall_s=wall_s)
        rules = Rules(Limits(requests="100/50s", profile="bucket", guard_s=0.05))
        feedback = Feedback(rules)
        rules.keep_in(RecentSends(tmp_path, "gpu-1", clock))
        for _ in range(15):
            bookings = rules.book(Cost(), clock.now_s())
            for booking in bookings:
                booking.window.sent(booking, clock.now_s())
            sent += 1
            # Two are refilled per second.
            left = 100 - sent + int(2 * (clock.wall_s() - 1000.0))
            feedback.heard([Stated("requests", 100, left)], bookings, clock.now_s())
            clock.advance(0.1)
        wall_s = clock.wall_s()
        assert rules.lines[0].others == 0


def test_a_whole_budget_goes_on_and_so_do_limits_that_came_later(tmp_path: Path) -> None:
    def rules(wall_s: float) -> tuple[Rules, ManualClock]:
        clock = ManualClock(now_s=wall_s / 7, wall_s=wall_s)
        made = Rules(
            Limits(requests=("5/1s", "8/60s"), tokens="100/60s", profile="moving", guard_s=0.05)
        )
        made.keep_in(RecentSends(tmp_path, "gpu-1", clock))
        return made, clock

    def used(of: Rules, now_s: float) -> list[tuple[str, int]]:
        return [(str(line.window.rate), line.window.used(now_s)) for line in of.lines]

    first, clock = rules(1000.0)
    for _ in range(3):
        for booking in first.book(Cost(20), clock.now_s()):
            booking.window.sent(booking, clock.now_s())
    first.set_rates("tokens", [Rate(500, 120.0)], clock.now_s())
    for booking in first.book(Cost(30), clock.now_s()):
        booking.window.sent(booking, clock.now_s())
    second, clock = rules(1000.5)
    second.set_rates("tokens", [Rate(500, 120.0)], clock.now_s())
    *requests, (_, tokens) = used(second, clock.now_s())
    assert requests == [("5/1s", 4), ("8/60s", 4)]
    assert tokens >= 90


def test_sends_of_one_moment_are_counted_ahead_and_then_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 0
    write = os.pwrite

    def counting(*given: Any) -> int:
        nonlocal writes
        writes += 1
        return write(*given)

    monkeypatch.setattr(os, "pwrite", counting)
    rate = Rate(1000, 60.0)
    first = Process(tmp_path / "first", 1000.0, rate=rate)
    for _ in range(60):
        first.send()
    assert writes <= 20
    shutil.copytree(tmp_path / "first", tmp_path / "killed")
    killed = Process(tmp_path / "killed", 1001.0, rate=rate)
    assert 60 <= killed.window.used(killed.clock.now_s()) <= 60 + 1000 // 64
    first.recent.close()
    ended = Process(tmp_path / "first", 1001.0, rate=rate)
    assert ended.window.used(ended.clock.now_s()) == 60


@pytest.mark.parametrize("window_s", [1.0, 60.0, 86_400.0])
def test_settlements_after_a_burst_claim_no_more_than_a_64th_of_the_limit(
    tmp_path: Path, window_s: float
) -> None:
    rate = Rate(1_000_000, window_s)
    first = Process(tmp_path / "first", 1000.0, rate=rate)
    for booking in [first.send(4000) for _ in range(80)]:
        first.clock.advance(0.001)
        first.window.settle(booking, 800)
        killed_at = tmp_path / "killed"
        shutil.copytree(tmp_path / "first", killed_at)
        now_s = first.clock.now_s()
        killed = Process(killed_at, first.clock.wall_s(), rate=rate)
        found = killed.window.used(killed.clock.now_s())
        killed.dies()
        shutil.rmtree(killed_at)
        assert 0 <= found - first.window.used(now_s) <= rate.count / 32


def test_a_disk_that_is_full_after_a_restart_keeps_what_was_sent_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Process(tmp_path, 1000.0)
    first.send(8)
    first.dies()
    write = os.pwrite

    def failing(fd: int, data: bytes, offset: int) -> int:
        # The file's first write succeeds, as it does where blocks are given out later.
        if offset:
            raise OSError(28, "No space left on device")
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)
    Process(tmp_path, 1001.0).dies()
    monkeypatch.undo()
    third = Process(tmp_path, 1002.0)
    assert third.window.used(third.clock.now_s()) == 8
    assert [path.suffix for path in tmp_path.iterdir()] == [".sends"]


def test_an_old_name_of_an_endpoint_is_read_if_the_new_one_has_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "as it is missing"
    first = Process(folder, 1000.0, name="old")
    first.send(4)
    first.dies()
    second = Process(folder, 1001.0, name="new", old_names=("older", "old"))
    assert second.window.used(second.clock.now_s()) == 4
    second.send(3)
    second.dies()
    third = Process(folder, 1002.0, name="new", old_names=("older", "old"))
    assert third.window.used(third.clock.now_s()) == 7
    # The old file is not written.
    for name, used in (("old", 4), ("other", 0)):
        process = Process(folder, 1003.0, name=name)
        assert process.window.used(process.clock.now_s()) == used


class Killed(Exception):
    """The process was killed while it wrote."""


def sends_until_killed(process: Process, chance: random.Random) -> list[list[tuple[float, int]]]:
    """Sends and settles at many paces until it is killed; the states that it may have left behind.

    Those before its last step, and those after, unless that was a send, which has not left then.
    """
    window, clock = process.window, process.clock
    bookings: list[Any] = []
    while True:
        before = window.sends(clock.now_s())
        settles = bool(bookings) and chance.random() < 0.5
        try:
            if settles:
                window.settle(bookings.pop(chance.randrange(len(bookings))), chance.randint(0, 60))
            else:
                booking = window.book(chance.randint(1, 40), clock.now_s())
                window.sent(booking, clock.now_s())
                bookings.append(booking)
        except Killed:
            return [before, window.sends(clock.now_s())] if settles else [before]
        clock.advance(chance.choice([0.0, 0.0, 0.0001, 0.002, 0.03, 0.4]))


def shortfall(claimed: list[tuple[float, int]], left: list[tuple[float, int]]) -> int:
    """By how much the claim is below what was sent since some moment, at most."""
    return max(
        sum(amount for at_s, amount in left if at_s >= since_s)
        - sum(amount for at_s, amount in claimed if at_s >= since_s - 1e-4)
        for since_s, _ in left
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_death_at_any_write_leaves_no_fewer_sends_and_none_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each write is cut after each of its pages, as a kill may cut it."""
    rate, write = Rate(1_000_000, 8.0), os.pwrite
    first = Process(tmp_path, 1000.0, rate=rate)
    left_pages = random.Random(seed).randrange(600)

    def cutting(fd: int, data: Any, offset: int) -> int:
        nonlocal left_pages
        rest, at = bytes(data), offset
        while rest:
            if not left_pages:
                raise Killed
            left_pages -= 1
            length = 4096 - at % 4096
            write(fd, rest[:length], at)
            rest, at = rest[length:], at + length
        return len(data)

    monkeypatch.setattr(os, "pwrite", cutting)
    states = sends_until_killed(first, random.Random(seed))
    monkeypatch.undo()
    second = Process(tmp_path, first.clock.wall_s(), rate=rate)
    shift_s = first.clock.now_s() - second.clock.now_s()
    claimed = [
        (sent_s + shift_s, amount) for sent_s, amount in second.window.sends(second.clock.now_s())
    ]
    assert min(shortfall(claimed, left) for left in states) <= 0


def test_after_a_burst_a_death_leaves_the_exact_number_again(tmp_path: Path) -> None:
    rate = Rate(1000, 60.0)
    first = Process(tmp_path, 1000.0, rate=rate)
    for _ in range(60):
        first.send()
    for number in range(61, 70):
        first.clock.advance(0.3)
        first.send()
        shutil.copytree(tmp_path, tmp_path / f"killed-{number}")
        killed = Process(tmp_path / f"killed-{number}", first.clock.wall_s(), rate=rate)
        assert killed.window.used(killed.clock.now_s()) == number


def test_deaths_in_a_row_do_not_add_up_what_was_claimed(tmp_path: Path) -> None:
    rate = Rate(100_000, 60.0)
    first = Process(tmp_path, 1000.0, rate=rate)
    for _ in range(60):
        first.send()
    for number in range(10):
        again = Process(tmp_path, 1000.001 + number / 1000, rate=rate)
        assert 60 <= again.window.used(again.clock.now_s()) <= 120


def test_a_buckets_pace_is_kept_in_few_writes_and_never_below_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, write = 0, os.pwrite

    def counting(*given: Any) -> int:
        nonlocal writes
        writes += 1
        return write(*given)

    monkeypatch.setattr(os, "pwrite", counting)
    rate, chance = Rate(60_000, 60.0), random.Random(1)
    first = Process(tmp_path, 1000.0, rate=rate, profile="bucket")
    for number in range(2000):
        first.send()
        first.clock.advance(chance.choice([0.0, 0.0005, 0.002]))
        if number % 50 == 0:
            folder = tmp_path / f"killed-{number}"
            shutil.copytree(tmp_path, folder, ignore=shutil.ignore_patterns("killed-*"))
            killed = Process(folder, first.clock.wall_s(), rate=rate, profile="bucket")
            killed.recent.close()
            assert 0 <= killed.wait_s(60_000) - first.wait_s(60_000) + 1e-6 <= 0.1 + 2e-6
    assert writes <= 300


def test_a_buckets_pace_is_kept_exactly_where_calls_are_few(tmp_path: Path) -> None:
    first = Process(tmp_path, 1000.0, profile="bucket")
    for number in range(3):
        first.send()
        # Killed, not closed.
        second = Process(tmp_path, first.clock.wall_s(), profile="bucket")
        second.recent.close()
        assert second.wait_s(9) == pytest.approx(first.wait_s(9), abs=1e-6), number
        first.recent.attach("requests", first.window)
        first.clock.advance(1.0)


@pytest.mark.parametrize("pauses_s", [(0.0,), (0.0, 0.001, 0.001), (0.0, 0.06, 0.06), (0.3, 0.0)])
def test_a_bucket_that_is_closed_keeps_its_exact_pace(
    tmp_path: Path, pauses_s: tuple[float, ...]
) -> None:
    rate = Rate(6000, 60.0)
    first = Process(tmp_path, 1000.0, rate=rate, profile="bucket")
    for pause_s in pauses_s:
        first.clock.advance(pause_s)
        first.send()
    first.dies()
    second = Process(tmp_path, first.clock.wall_s(), rate=rate, profile="bucket")
    assert second.wait_s(6000) == pytest.approx(first.wait_s(6000), abs=1e-6)


def test_what_is_recalled_is_told_from_nothing(tmp_path: Path) -> None:
    first = Process(tmp_path, 1000.0)
    first.send()
    first.dies()
    recent, window = first.recent, Window(RATE, profile="moving")
    assert recent.recall("requests", window)
    assert not recent.recall("tokens", window)
    longer = Window(Rate(10, 3600.0), profile="moving")
    assert not recent.recall("requests", longer, is_first=False)
    assert recent.recall("requests", longer)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"")
    assert not recent.recall("requests", window)
    path.unlink()
    path.mkdir()
    assert not recent.recall("requests", window)
    assert window.used(first.clock.now_s()) == 1


def test_a_limit_whose_file_is_gone_may_be_dropped(tmp_path: Path) -> None:
    process = Process(tmp_path, 1000.0)
    for path in tmp_path.iterdir():
        path.unlink()
    process.recent.drop(process.window)
    process.recent.drop(process.window)
    process.send()
    assert not list(tmp_path.iterdir())
