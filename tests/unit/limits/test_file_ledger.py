"""The ledger in a file: whoever dies when, and whatever stands in it."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redline.errors import ConfigError, NoEndpoint
from redline.limits import Limits
from redline.limits.shared import (
    STALE_S,
    Change,
    FileLedger,
    LeaseRequest,
    described,
    file_ledger,
    lease_s_of,
    open_ledger,
    rules_of,
)
from redline.testing import ManualClock, virtual_run

LIMITS = Limits(requests="10/1s", profile="moving", guard_s=0.05)
WORDS = described(LIMITS)


def request(count: int, **changes: Any) -> LeaseRequest:
    return LeaseRequest(
        owner=changes.pop("owner", "a"),
        limits=WORDS,
        rules=rules_of(LIMITS, 0.05),
        wants=[(1,)] * count,
        guard_s=0.05,
        slack_s=0.05,
        lease_s=lease_s_of(LIMITS),
        **changes,
    )


def clock(now_s: float = 100.0) -> ManualClock:
    return ManualClock(now_s)


def turn(ledger: Any, count: int, **changes: Any) -> list[float]:
    times: list[float] = virtual_run(ledger.transact(request(count, **changes))).times
    return times


def opened(path: Path, now: ManualClock, name: str = "e") -> FileLedger:
    return FileLedger(path, name, WORDS, now)


def test_two_ledgers_at_one_path_share_a_limit(tmp_path: Path) -> None:
    now = clock()
    first, second = opened(tmp_path / "f", now), opened(tmp_path / "f", now)
    assert len(turn(first, 6)) == 6
    assert len(turn(second, 9, owner="b")) == 4


def test_endpoints_in_one_file_have_limits_of_their_own(tmp_path: Path) -> None:
    now = clock()
    first = opened(tmp_path / "f", now)
    second = opened(tmp_path / "f", now, name="other")
    assert len(turn(first, 10)) == len(turn(second, 10)) == 10


def test_a_later_process_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    now = clock()
    ledger = opened(tmp_path / "f", now)
    turn(ledger, 10)
    virtual_run(ledger.aclose())
    now.advance(0.5)
    assert turn(opened(tmp_path / "f", now), 1, owner="b") == []


@pytest.mark.parametrize("content", [b"{}\n", b"redline-limits-2\n" * 3, bytes(5000)])
def test_a_file_that_is_no_ledger_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ConfigError, match="is not a file of shared limits"):
        opened(tmp_path / "f", clock())
    assert (tmp_path / "f").read_bytes() == content


@pytest.mark.parametrize("made", [b"", b"redl"])
def test_a_file_whose_maker_died_is_made_again(tmp_path: Path, made: bytes) -> None:
    (tmp_path / "f").write_bytes(made)
    assert len(turn(opened(tmp_path / "f", clock()), 10)) == 10


def test_a_path_that_cannot_be_written_is_an_error_of_the_settings(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "f", tmp_path):
        with pytest.raises(ConfigError, match="cannot be saved in"):
            opened(path, clock())


def test_other_limits_are_refused_while_in_use(tmp_path: Path) -> None:
    now = clock()
    turn(opened(tmp_path / "f", now), 1)
    other = Limits(requests="20/1s")
    with pytest.raises(ConfigError, match="is in use for 10/1s requests"):
        open_ledger(str(tmp_path / "f"), other, "e", now)
    now.advance(2 * STALE_S)
    open_ledger(str(tmp_path / "f"), other, "e", now)


def test_no_limit_cannot_be_shared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no limit to share") as caught:
        open_ledger(str(tmp_path / "f"), Limits(), "e")
    assert "--requests" in caught.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:s3cret/@host:6379/0",
        "rediss://:s3cret?x@host",
        "redis://:a#s3cret@host",
        "redis://:[s3cret@host",
        "valkey://:s3cret@host",
        "REDIS+TLS://:s3cret@host",
    ],
)
def test_a_url_that_names_no_redis_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="the URL of the shared limits") as caught:
        open_ledger(url, LIMITS, "e")
    assert "s3cret" not in f"{caught.value} {caught.value.where} {caught.value.hint}"


def test_a_writer_killed_half_way_leaves_the_state_before(tmp_path: Path) -> None:
    """Cut anywhere in its write: what was told before still counts, nothing else does."""
    path, now = tmp_path / "f", clock()
    ledger = opened(path, now)
    # The third turn is written over the first one.
    assert [len(turn(ledger, count)) for count in (2, 4)] == [2, 4]
    before = path.read_bytes()
    assert len(turn(ledger, 3)) == 3
    after = path.read_bytes()
    changed = [at for at in range(len(after)) if before[at : at + 1] != after[at : at + 1]]
    for cut in range(changed[0], changed[-1] + 1):
        path.write_bytes(after[:cut] + before[cut:])
        assert len(turn(opened(path, now), 9, owner="b")) == 4


def test_a_damaged_file_counts_as_full(tmp_path: Path) -> None:
    path, now = tmp_path / "f", clock()
    turn(opened(path, now), 1)
    content = bytearray(path.read_bytes())
    content[-3] ^= 0xFF
    path.write_bytes(content)
    again = opened(path, now)
    assert turn(again, 10) == []
    now.advance(1.5)
    assert len(turn(again, 10)) == 10


def test_a_boot_moves_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock begins again; the wall clock says how long ago the last turn was."""
    path, now = tmp_path / "f", clock(5000.0)
    turn(opened(path, now), 10)
    for passed_s, free in [(0.4, 0), (2.0, 10)]:
        copy = path.with_name(f"after {passed_s}")
        copy.write_bytes(path.read_bytes())
        booted = ManualClock(30.0, now.wall_s() + passed_s)
        # The file in which Linux names the boot.
        monkeypatch.setattr(Path, "read_text", lambda *_: "another boot")
        ledger = opened(copy, booted)
        monkeypatch.undo()
        assert len(turn(ledger, 10, owner="b")) == free


def test_what_left_its_window_before_a_boot_keeps_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the machine has been up for less than a window."""
    path, now = tmp_path / "f", clock(5000.0)
    turn(opened(path, now), 10)
    booted = ManualClock(0.5, now.wall_s() + 60.0)
    monkeypatch.setattr(Path, "read_text", lambda *_: "another boot")
    ledger = opened(path, booted)
    monkeypatch.undo()
    assert len(turn(ledger, 10, owner="b")) == 10


def test_after_a_boot_a_bucket_gets_back_what_calls_did_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the machine has been up for less long than before."""
    limits = Limits(tokens="600/60s", profile="bucket", guard_s=0.05)

    def booked(ledger: FileLedger, *changes: Change) -> list[float]:
        rules = rules_of(limits, 0.1)
        asks = LeaseRequest("a", described(limits), rules, wants=[(500,)], changes=changes)
        times: list[float] = virtual_run(ledger.transact(asks)).times
        return times

    def of(now: ManualClock) -> FileLedger:
        return FileLedger(tmp_path / "f", "e", described(limits), now)

    before = clock(5000.0)
    booked(of(before))
    booted = ManualClock(30.0, before.wall_s() + 600.0)
    monkeypatch.setattr(Path, "read_text", lambda *_: "another boot")
    ledger = of(booted)
    monkeypatch.undo()
    (first_s,) = booked(ledger)
    booted.advance(5.0)
    assert len(booked(ledger, Change(first_s, first_s, (500,), (10,), first_s))) == 1


def test_a_deleted_file_is_made_again_at_its_path(tmp_path: Path) -> None:
    path, now = tmp_path / "f", clock()
    first = opened(path, now)
    turn(first, 2)
    path.unlink()
    # What it was given before is in no file any more; it knows of it itself.
    assert turn(first, 2, seen_s=now.now_s()) == []
    now.advance(5)
    assert len(turn(first, 6)) == 6
    assert len(turn(opened(path, now), 9, owner="b")) == 4


def test_a_short_write_is_an_error(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "f", clock())
    whole = os.pwrite

    def half(fd: int, data: bytes, offset: int) -> int:
        return whole(fd, data[: len(data) // 2], offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        try:
            given = turn(ledger, 1)
        except NoEndpoint:
            given = []
    assert given == [], "slots of a turn that is not kept were given away"


def test_a_full_file_forgets_what_is_unused_and_not_what_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_ledger, "_MOST_BYTES", 1000)
    path, now = tmp_path / "f", clock()
    for number in range(6):
        assert len(turn(opened(path, now, name=f"{number}" * 200), 10)) == 10
        now.advance(STALE_S)
    # A window of a day has not passed; what was used last is remembered.
    day = Limits(requests="10/1d", profile="moving", guard_s=0.05)

    def ask(number: int) -> int:
        ledger = FileLedger(path, f"{number}" * 200, described(day), now)
        asked = msgspec.structs.replace(
            request(10, owner="b"), limits=described(day), rules=rules_of(day, 0.05)
        )
        return len(virtual_run(ledger.transact(asked)).times)

    now.advance(STALE_S)
    for number in range(6):
        assert ask(number) == 10
        now.advance(STALE_S)
    assert [ask(5), ask(4)] == [0, 0]
    with pytest.raises(NoEndpoint, match="File too large"):
        [ask(number) for number in range(6)]


def test_a_lock_that_stays_held_is_an_error_in_time_and_freezes_nothing(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "f", clock())
    other = os.open(tmp_path / "f", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.05)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with pytest.raises(NoEndpoint, match="stay locked"):
            await ledger.transact(request(1))
        assert ticks >= 10
        fcntl.flock(other, fcntl.LOCK_UN)
        assert len((await ledger.transact(request(1))).times) == 1
        ticking.cancel()

    virtual_run(main())
    os.close(other)
