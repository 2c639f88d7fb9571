"""Processes that share a limit through a file and through Redis, against real servers."""

from __future__ import annotations

import asyncio
import builtins
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.errors import ConfigError, NoEndpoint
from redline.limits import Limits
from redline.limits.shared import (
    STALE_S,
    Change,
    Lease,
    LeaseRequest,
    RedisLedger,
    SharedLimiter,
    State,
    described,
    lease_s_of,
    open_ledger,
    rules_of,
    transact,
)
from redline.limits.shared import limiter as shared_module
from redline.limits.shared import redis_ledger as redis_module
from redline.limits.shared import schedule as schedule_module
from support.catching import assert_caught
from support.lateness import judge
from support.redis_server import RedisServer, needs_redis, redis_server
from support.simulated import simulated

pytestmark = pytest.mark.real
WORKER = Path(__file__).parents[1] / "support" / "sharing_worker.py"
GUARD_S = 0.05
# What processes, more than there are cores, may delay one another.
FOUR_GUARD_S = 0.25


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def target(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "file":
        return str(tmp_path / "limits")
    server: RedisServer = request.getfixturevalue("redis")
    return server.url


KINDS = ["file", pytest.param("redis", marks=needs_redis)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_four_processes_are_as_fast_as_one_and_one_of_them_dies(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Kill -9 midway: no rejection by the server's own count, and the share is used again."""
    where = target(kind, request, tmp_path)
    judge(lambda _: check_four_processes(where), late_s=FOUR_GUARD_S / 2)


def check_four_processes(where: str) -> None:
    rate, each, guard_s = 100, 200, FOUR_GUARD_S
    limits = Limits(requests=f"{rate}/1s", guard_s=guard_s)
    with simulated("--requests", f"{rate}/1s", "--algorithm", "moving") as sim:
        command = [sys.executable, str(WORKER), sim.base_url, where]
        command += [f"{rate}/1s", str(each), str(guard_s)]
        workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(4)
        ]
        try:
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == b"ready\n"
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(b"\n")
                worker.stdin.flush()
            while sim.stats()["received"] < 3 * rate:
                assert workers[0].poll() is None
                time.sleep(0.05)
            workers[0].send_signal(signal.SIGKILL)
            killed_s = time.monotonic()
            for worker in workers[1:]:
                assert worker.wait(timeout=60) == 0
        finally:
            for worker in workers:
                worker.kill()
                worker.wait(timeout=20)
                for pipe in (worker.stdin, worker.stdout):
                    assert pipe is not None
                    pipe.close()
        stats, arrivals_s = sim.stats(), [record["arrival_s"] for record in sim.requests()]
    arrivals_s.sort()
    assert stats["rejected"] == 0
    assert len(arrivals_s) >= 3 * each + 40
    span_s = 1 + guard_s
    one_s = (len(arrivals_s) - 1) * span_s / rate
    lease_s = lease_s_of(limits)
    print(
        f"{where}: {len(arrivals_s)} calls, {(arrivals_s[-1] - arrivals_s[0]) / one_s:.4f} of one"
    )
    assert arrivals_s[-1] - arrivals_s[0] <= one_s * 1.02 + lease_s
    # The dead one's share: in the windows after its end all of the limit is used, but for a lease.
    after = [at_s for at_s in arrivals_s if killed_s <= at_s <= killed_s + 3 * span_s]
    assert len(after) >= 3 * rate * 0.96 - rate * lease_s


@pytest.mark.parametrize("kind", KINDS)
def test_limiters_of_one_process_share_too(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    limits = Limits(requests="50/1s", profile="moving", guard_s=GUARD_S)
    where = target(kind, request, tmp_path)
    sent_s: list[float] = []

    async def use(limiter: SharedLimiter) -> None:
        async def call() -> None:
            grant = await limiter.acquire()
            sent_s.append(time.monotonic())
            grant.sent(sent_s[-1])

        await asyncio.gather(*(call() for _ in range(60)))
        await limiter.aclose()

    async def main() -> None:
        limiters = [SharedLimiter(limits, open_ledger(where, limits, "two")) for _ in range(2)]
        await asyncio.gather(*map(use, limiters))

    asyncio.run(main())
    assert len(sent_s) == 120
    for first_s, later_s in zip(sent_s, sent_s[50:], strict=False):
        assert later_s - first_s >= 1.05 - 1e-6


LIMITS = [
    Limits(requests="10/1s", profile="moving", guard_s=GUARD_S),
    Limits(requests=("30/1s", "100/10s"), tokens="2000/2s", guard_s=GUARD_S),
    Limits(requests="40/1s", output_tokens="5000/1s", profile="bucket", guard_s=GUARD_S),
]
# Asked for so often that it is used up, and what a sliding counter reads decides.
STEADY = Limits(tokens="400/1s", guard_s=GUARD_S)


# Turns of a history, the longest.
MOST_TURNS = 200


def history(
    seed: int, limits: Limits, turns: int = MOST_TURNS, from_s: float = 1.79e9
) -> Iterator[tuple[LeaseRequest, float, list[Lease]]]:
    """Requests of three processes; each may use what was answered to those before it."""
    draw = random.Random(seed)
    rates = schedule_module.rated(limits)
    leases: list[Lease] = []
    slots: list[tuple[float, list[int]]] = []
    now_s = from_s
    steps_s = [0.03, 0.06, 0.09] if limits is STEADY else [0.0, 0.001, 0.02, 0.3, 2.0]
    for turn in range(turns):
        now_s += draw.choice(steps_s) if draw.random() > 0.02 else -1.0
        wants = [
            [1 if kind == "requests" else draw.randint(0, rate.count // 8) for kind, rate in rates]
            for _ in range(draw.choice([0, 1, 3, 8]))
        ]
        changes = []
        for stamp_s, amounts in draw.sample(slots, min(len(slots), 3)):
            used = [draw.randint(0, amount) for amount in amounts]
            to_s, planned_s = stamp_s - draw.random() / 20, stamp_s - 0.07
            was_sent = draw.random() < 2 / 3
            changes.append(Change(stamp_s, to_s, amounts, used, planned_s, was_sent))
        seen_s = now_s + 5 if turn == 40 else 0.0
        request = LeaseRequest(
            owner=draw.choice("abc"),
            limits=described(limits) if draw.random() > 0.03 else "others",
            rules=rules_of(limits, draw.choice([0.05, 0.02])),
            wants=wants,
            changes=changes,
            guard_s=0.05,
            slack_s=0.02,
            lead_s=draw.choice([0.0, 0.003]),
            lease_s=lease_s_of(limits),
            seen_s=seen_s,
            park_s=now_s + 1 if draw.random() < 0.05 else 0.0,
            busy_s=(0.0, 0.03, 5.0)[turn % 3],
        )
        yield request, now_s, leases
        slots += [
            (at_s + 0.02 + 0.05, want) for at_s, want in zip(leases[-1].times, wants, strict=False)
        ]


@pytest.mark.slow
@needs_redis
@settings(max_examples=12, deadline=None)
@pytest.mark.parametrize("limits", [*LIMITS, STEADY], ids=["requests", "joint", "bucket", "steady"])
@given(seed=st.integers(0, 2**32), turns=st.integers(1, MOST_TURNS))
def test_the_rule_in_lua_is_the_rule_in_python(
    redis: RedisServer, limits: Limits, seed: int, turns: int
) -> None:
    """The same histories give the same leases and leave the same state, to the last bit."""
    agreed(redis, history(seed, limits, turns))


# Of several runs, one after the other: other counts, windows, grains and profiles.
CHANGED = [
    Limits(requests=("1000/30s", "90000/1d"), guard_s=GUARD_S),
    Limits(requests="1200/30s", tokens="900/60s", profile="moving", guard_s=GUARD_S),
    Limits(requests="600/60s", tokens="90k/60s", profile="bucket", guard_s=GUARD_S),
    Limits(tokens="500/2s", guard_s=GUARD_S),
]


def runs(seed: int) -> Iterator[tuple[LeaseRequest, float, list[Lease]]]:
    """Histories under one set of limits after another."""
    draw, now_s = random.Random(seed), 1.79e9
    for _ in range(5):
        for turn in history(draw.randrange(2**32), draw.choice(CHANGED), 20, now_s):
            yield turn
            now_s = turn[1]
        now_s += STALE_S + 2 * draw.random()


@needs_redis
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_rules_go_on_alike_under_other_limits(redis: RedisServer, seed: int) -> None:
    agreed(redis, runs(seed))


@pytest.mark.slow
@needs_redis
@pytest.mark.parametrize("limits", [*LIMITS, STEADY], ids=["requests", "joint", "bucket", "steady"])
def test_the_histories_plan_many_slots(redis: RedisServer, limits: Limits) -> None:
    assert sum(agreed(redis, history(seed, limits)) for seed in range(3)) > 30


def agreed(redis: RedisServer, turns: Iterator[Any], **unheard: Any) -> int:
    """How many slots both rules planned alike. unheard: what the one in Python is told instead."""
    import redis as redis_py

    state: State | None = None
    planned = 0
    with redis_py.Redis.from_url(redis.url) as client:
        client.delete("{same}")
        for request, now_s, leases in turns:
            blob = msgspec.msgpack.encode(request)
            answer: Any = client.eval(redis_module.SCRIPT, 1, "{same}", blob, repr(now_s))
            heard = msgspec.structs.replace(request, **unheard)
            state, lease = transact(state, heard, now_s)
            assert msgspec.msgpack.decode(answer, type=Lease) == lease
            kept: Any = client.get("{same}")
            assert msgspec.msgpack.decode(kept, type=State) == state
            leases.append(lease)
            planned += len(lease.times)
    return planned


@pytest.mark.slow
@needs_redis
@pytest.mark.parametrize(
    "unheard", [{"changes": []}, {"busy_s": 0.0}, {"lead_s": 0.0}, {"seen_s": 0.0}, {"park_s": 0.0}]
)
def test_a_rule_that_does_not_hear_is_noticed(redis: RedisServer, unheard: dict[str, Any]) -> None:
    def check(unheard: dict[str, Any]) -> None:
        for seed in range(8):
            agreed(redis, history(seed, (*LIMITS[:2], STEADY)[seed % 3]), **unheard)

    assert_caught(check, {}, unheard)


@needs_redis
def test_the_key_expires_by_itself(redis: RedisServer) -> None:
    import redis as redis_py

    async def main(ledger: RedisLedger) -> None:
        limiter = SharedLimiter(LIMITS[0], ledger)
        (await limiter.acquire()).release()
        await limiter.aclose()

    ledger = RedisLedger(redis.url, "expiring", described(LIMITS[0]))
    with redis_py.Redis.from_url(redis.url) as client:
        before = set(client.scan_iter("redline:{*}"))
        asyncio.run(main(ledger))
        (key,) = set(client.scan_iter("redline:{*}")) - before
        left_ms: Any = client.pttl(key)
    assert 0 < left_ms <= 65_000


@needs_redis
def test_other_limits_under_the_same_name_are_refused(redis: RedisServer) -> None:
    async def use() -> None:
        limiter = SharedLimiter(LIMITS[0], open_ledger(redis.url, LIMITS[0], "taken"))
        (await limiter.acquire()).release()
        await limiter.aclose()

    asyncio.run(use())
    with pytest.raises(ConfigError, match="is in use for 10/1s requests"):
        open_ledger(redis.url, LIMITS[1], "taken")


@needs_redis
def test_a_key_with_something_else_is_an_error_of_the_settings(redis: RedisServer) -> None:
    import redis as redis_py

    async def use() -> None:
        limiter = SharedLimiter(LIMITS[0], open_ledger(redis.url, LIMITS[0], "overwritten"))
        (await limiter.acquire()).release()
        await limiter.aclose()

    with redis_py.Redis.from_url(redis.url) as client:
        before = set(client.scan_iter("redline:{*}"))
        asyncio.run(use())
        (key,) = set(client.scan_iter("redline:{*}")) - before
        for value in (b"text", msgspec.msgpack.encode(["a", "list"])):
            client.set(key, value)
            with pytest.raises(ConfigError, match="does not hold shared limits"):
                open_ledger(redis.url, LIMITS[0], "overwritten")


@needs_redis
def test_a_redis_that_is_not_there_is_an_error_of_the_settings() -> None:
    url = "redis://someone:secret@127.0.0.1:1/0"
    with pytest.raises(ConfigError, match=r"cannot be shared through redis://127.0.0.1:1/0") as it:
        open_ledger(url, LIMITS[0], "e")
    assert "secret" not in str(it.value)


@needs_redis
def test_a_url_that_is_none_is_an_error_of_the_settings() -> None:
    with pytest.raises(ConfigError, match="cannot be shared through"):
        open_ledger("redis://127.0.0.1:port/0", LIMITS[0], "e")


@pytest.mark.slow
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "redis" or name.startswith("redis."):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError) as caught:
        open_ledger("redis://127.0.0.1:1", LIMITS[0], "e")
    assert caught.value.hint == "pip install 'redline[redis]'"


@needs_redis
def test_a_redis_that_is_lost_is_waited_for_and_never_a_free_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes back empty: what was sent before counts as a full window."""
    limits = Limits(requests="20/1s", profile="moving", guard_s=GUARD_S)
    sent_s: list[float] = []

    async def call(limiter: SharedLimiter) -> None:
        grant = await limiter.acquire()
        sent_s.append(time.monotonic())
        grant.sent(sent_s[-1])

    async def main(server: RedisServer) -> None:
        limiter = SharedLimiter(limits, open_ledger(server.url, limits, "e"))
        await asyncio.gather(*(call(limiter) for _ in range(20)))
        server.stop()
        waiting = [asyncio.create_task(call(limiter)) for _ in range(20)]
        await asyncio.sleep(0.3)
        assert len(sent_s) == 20
        server.start()
        await asyncio.gather(*waiting)
        server.stop()
        monkeypatch.setattr(shared_module, "GIVE_UP_S", 0.5)
        with pytest.raises(NoEndpoint, match="cannot be used"):
            await asyncio.wait_for(call(limiter), 20)
        await limiter.aclose()

    with redis_server() as server:
        asyncio.run(main(server))
    assert len(sent_s) == 40
    assert all(b - a >= 1.05 - 1e-6 for a, b in zip(sent_s, sent_s[20:], strict=False))


def test_the_doubt_of_a_clock_narrows_with_every_turn() -> None:
    offset = redis_module.Offset()
    offset.saw(100.0, 5.0, 5.2)
    offset.saw(101.0, 6.1, 6.15)
    low_s, high_s = offset.bounds_s(6.15)
    assert low_s == pytest.approx(-94.9, abs=1e-3)
    assert high_s == pytest.approx(-94.85, abs=1e-3)
