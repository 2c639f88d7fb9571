"""What an endpoint's answers do to its limits, and what of them outlives a run, by key."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from redline.calls.http import EndpointLimits, Shared, Stores
from redline.calls.wire import Answer, Endpoint
from redline.errors import RateLimited, ServerFailed
from redline.limits import Cost, Grant, Limits, Rate
from redline.limits.discover import FoundRates
from redline.limits.rule import Kind, RecentSends, Window
from redline.limits.shared import SharedLimiter
from redline.sim import TokenBucket
from redline.testing import ManualClock, virtual_run
from redline.waist import Outcome
from support.catching import assert_caught
from support.sharing import Memory, MemoryLedger

URL = "http://127.0.0.1:1/v1"
HEADERS = {"x-ratelimit-limit-requests": "5", "x-ratelimit-remaining-requests": "4"}
STATED = Answer(200, HEADERS, b"{}")
OURS = Limits(requests="10/60s", profile="moving", guard_s=0.05)


class Running:
    """The limits of one process, whose sends are a few milliseconds apart."""

    def __init__(self, limits: Limits, key: str | None, url: str = URL, **stores: Path) -> None:
        self.clock = ManualClock(now_s=100.0, wall_s=1e9)
        endpoint = Endpoint(base_url=url, api_key=key, limits=limits)
        self.limits = EndpointLimits(endpoint, self.clock, Shared(stores=Stores(**stores)))

    def send(self) -> bool:
        """False if it would have to wait for longer than another one's place in a burst."""
        limiter = self.limits.limiter
        self.clock.advance(min(0.01, limiter.room_s(Cost(), self.clock.now_s())))
        grant = limiter.acquire_now(Cost())
        if grant is not None:
            grant.sent(self.clock.now_s())
        return grant is not None

    def found(self) -> list[tuple[Kind, Rate]]:
        """The rates that the next search for this model starts from."""
        self.limits.begin({"model": "m"})
        return self.limits.limiter.found_rates()

    def close(self) -> None:
        virtual_run(self.limits.aclose())


def used(key: str | None, folder: Path, url: str = URL) -> int:
    """How many of a limit of ten are taken when the next process begins."""
    running = Running(OURS, key, url, recent=folder)
    return 10 - sum(running.send() for _ in range(11))


def test_sends_are_kept_by_endpoint_and_key(tmp_path: Path) -> None:
    mine = Running(OURS, "sk-mine", recent=tmp_path)
    assert all(mine.send() for _ in range(6))
    mine.close()
    assert "sk-mine" not in " ".join(path.name for path in tmp_path.iterdir())
    copy = shutil.copytree(tmp_path, tmp_path / "copy")
    assert used("sk-mine", tmp_path) == 6
    assert used("sk-other", copy) == 0
    assert used(None, copy) == 0


@pytest.mark.parametrize("url", ["https://host/v1", "https://host/v1/", "HTTPS://Host:443/v1"])
def test_an_address_has_one_account_however_it_is_written(tmp_path: Path, url: str) -> None:
    mine = Running(OURS, "sk-mine", "https://host/v1", recent=tmp_path)
    assert all(mine.send() for _ in range(6))
    mine.close()
    assert used("sk-mine", tmp_path, url) == 6


def test_sends_that_an_older_version_kept_by_the_url_are_taken_up_once(tmp_path: Path) -> None:
    clock = ManualClock(now_s=100.0, wall_s=1e9)
    older = RecentSends(tmp_path, hashlib.sha256(URL.encode()).hexdigest()[:12], clock)
    window = Window(Rate(10, 60.0), profile="moving", guard_s=0.05)
    older.keep("requests", window)
    window.sent(window.book(3, 100.0), 100.0)
    older.close()
    first = Running(OURS, "sk-mine", recent=tmp_path)
    assert first.send()
    assert first.send()
    first.close()
    # Five and not eight: the old file is not read beside the new one.
    assert used("sk-mine", tmp_path) == 5
    assert used("sk-other", tmp_path) == 3


def test_sends_that_an_older_version_kept_by_the_url_as_written_are_taken_up(
    tmp_path: Path,
) -> None:
    clock, key = ManualClock(now_s=100.0, wall_s=1e9), hashlib.sha256(b"sk-mine").hexdigest()[:12]
    written = f"{URL}/ {key}"
    older = RecentSends(tmp_path, hashlib.sha256(written.encode()).hexdigest()[:12], clock)
    window = Window(Rate(10, 60.0), profile="moving", guard_s=0.05)
    older.keep("requests", window)
    window.sent(window.book(3, 100.0), 100.0)
    older.close()
    assert used("sk-other", tmp_path, f"{URL}/") == 0
    assert used("sk-mine", tmp_path, f"{URL}/") == 3


def searched(path: Path, key: str) -> list[str]:
    """The limits that a search begins with under this key."""
    steering = Running(Limits(rate="auto"), key, memory=path).limits
    steering.begin({"model": "m"})
    return [str(rate) for _, rate in steering.limiter.found_rates()]


def test_found_rates_are_kept_by_endpoint_and_key(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    fresh = searched(path, "sk-mine")
    path.write_text(
        f'{{"v": 1, "rates": [{{"endpoint": "{URL}", "model": "m", "count": 50, "window_s": 1}}]}}'
    )
    by_url = searched(path, "sk-mine")
    assert by_url == searched(path, "sk-other") != fresh
    digest = hashlib.sha256(b"sk-mine").hexdigest()[:12]
    FoundRates(path).remember(URL, digest, "m", Rate(7, 1.0))
    assert searched(path, "sk-other") == by_url != searched(path, "sk-mine")
    assert "sk-mine" not in path.read_text()


def test_a_stated_limit_ends_the_search() -> None:
    steering = Running(Limits(rate="auto"), None).limits
    steering.begin({"model": "m"})
    grant = steering.limiter.acquire_now(Cost())
    assert steering.search is not None
    assert grant is not None
    grant.sent(100.0)
    steering.heard(STATED, grant, 100.1)
    assert steering.search is None
    assert [(kind, rate.count) for kind, rate in steering.limiter.found_rates()] == [
        ("requests", 5)
    ]


@pytest.mark.parametrize("status", [503, 529])
def test_an_overload_stops_the_search(status: int) -> None:
    running = Running(Limits(rate="auto", concurrency=64), None)
    steering, error = running.limits, ServerFailed("overloaded", status=status)
    steering.begin({"model": "m"})
    for _ in range(10):
        now_s = running.clock.now_s()
        steering.sent(now_s)
        steering.ended(Outcome(status="exhausted", error=error), now_s, 1, now_s + 0.01)
        running.clock.advance(0.5)
    ((_, rate),) = steering.limiter.found_rates()
    assert rate.count == 1
    assert rate.window_s == pytest.approx(0.05)


@pytest.mark.parametrize("rate", ["auto", "stated"])
def test_a_429_lowers_the_concurrency_unless_a_rate_is_searched_for(rate: str) -> None:
    running = Running(Limits(rate=rate, concurrency="auto"), None)
    steering, error = running.limits, RateLimited("too many", status=429)
    steering.begin({"model": "m"})
    before = steering.slots.count
    for _ in range(3):
        now_s = running.clock.now_s()
        steering.sent(now_s)
        steering.ended(Outcome(status="exhausted", error=error), now_s, 1, now_s + 0.01)
        running.clock.advance(0.5)
    assert (steering.slots.count == before) == (rate == "auto")


def test_no_more_calls_wait_at_an_endpoint_than_a_limit_that_is_found_soon_sends() -> None:
    steering = Running(Limits(rate="auto"), None).limits
    steering.begin({"model": "m"})
    grant = steering.limiter.acquire_now(Cost())
    assert grant is not None
    grant.sent(100.0)
    steering.heard(STATED, grant, 100.1)
    # Of a pool's calls, all others may go to any of its endpoints.
    assert steering.ahead.count == Limits(requests="5/60s").ahead() < Limits(rate="auto").ahead()


@pytest.mark.parametrize(
    ("limits", "ahead"),
    [
        (Limits(tokens="600/60s"), 1),
        (Limits(tokens="18k/60s"), 30),
        (Limits(tokens="600/60s", profile="fixed"), 60),
        (Limits(tokens="6m/60s"), 64),
        (Limits(tokens="18k/60s", input_tokens="4800/60s"), 20),
        (Limits(tokens="18k/60s", requests="5/1s"), 5),
    ],
)
def test_no_more_calls_wait_at_an_endpoint_than_its_token_limit_soon_sends(
    limits: Limits, ahead: int
) -> None:
    steering = Running(limits, None).limits
    for _ in range(5):
        steering.expects(Cost(4, 6))
    assert steering.ahead.count == ahead


class Obedient(SharedLimiter):
    """Changes what was stated by what one process is told."""

    def heard(self, stated: Any, grant: Grant) -> None:
        self.park(1060.0)


def check_what_is_shared_stays_as_stated(kind: type[SharedLimiter]) -> None:
    async def main() -> None:
        shared = Limits(requests="10/60s", guard_s=0.05)
        ledger = MemoryLedger(Memory())
        clock = ledger.clock
        limiter = kind(shared, ledger, clock)
        steering = EndpointLimits(
            Endpoint(base_url=URL, limits=shared), clock, Shared(limiter=limiter)
        )
        grant = await limiter.acquire(Cost())
        grant.sent(clock.now_s())
        steering.heard(STATED, grant, clock.now_s() + 0.1)
        steering.ended(Outcome(status="succeeded"), 0.0, 1, clock.now_s())
        assert limiter.most("requests") == 10
        assert limiter.room_s(Cost(), clock.now_s()) == 0
        refused = Outcome(status="exhausted", error=RateLimited("too many", status=429))
        steering.ended(refused, 0.0, 1, clock.now_s())
        assert limiter.room_s(Cost(), clock.now_s()) == pytest.approx(1.0)
        await steering.aclose()

    virtual_run(main(), start_s=1000.0, limit_s=600.0)


def test_what_is_shared_stays_as_stated_and_pauses_after_a_429() -> None:
    assert_caught(check_what_is_shared_stays_as_stated, SharedLimiter, Obedient)


def test_a_found_rate_is_reported_while_a_higher_one_is_tried(tmp_path: Path) -> None:
    memory = tmp_path / "found.json"
    running = Running(Limits(rate="auto", concurrency=8), None, memory=memory)
    limits, clock, server = running.limits, running.clock, TokenBucket(Rate(20, 1.0))
    limits.begin({"model": "m"})
    reported, tried = set(), set()
    for _ in range(3000):
        clock.advance(max(1e-4, limits.limiter.room_s(Cost(), clock.now_s())))
        grant = limits.limiter.acquire_now(Cost())
        assert grant is not None
        sent_s = clock.now_s()
        grant.sent(sent_s)
        limits.sent(sent_s)
        outcome = Outcome(status="exhausted", error=RateLimited("too many", status=429))
        if server.wait_s(1, sent_s) == 0:
            server.take(1, sent_s)
            outcome = Outcome(status="succeeded")
        clock.advance(0.001)
        limits.ended(outcome, sent_s, 1, clock.now_s())
        if limits.found():
            reported.add(*limits.found())
            tried |= {f"{rate} requests" for _, rate in limits.limiter.found_rates()}
    assert tried > reported > set()
    running.close()
    ((_, rate),) = Running(Limits(rate="auto"), None, memory=memory).found()
    assert f"{rate} requests" in reported
