"""Any calls at any times, failing, cut, given up or out of time: each has one outcome, its own.

Calls of a few requests, equal and different, determined and sampled, begin at random moments, some
are cancelled and some have deadlines, while the backend behind the cache succeeds, fails and is
slow at random. After each play:

  every call ended once, by an outcome, or by its own cancellation
  an answer is the answer to its own request, and was really given
  what the cache gives again was a whole success
  the backend was asked by at most one call at a time for each request that is determined, and not
  at all once it had answered it whole
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redline.apis import replies as apis
from redline.calls import Call, Load, Outcome, Request, Sink, failed
from redline.calls.cache import AnswerStore, Cached
from redline.errors import Rejected, ServerFailed, TimedOut
from redline.testing import VirtualClock, virtual_run
from support.catching import assert_caught

ENDINGS = ("whole", "whole", "cut", "rejected", "failed")


class Planned(NamedTuple):
    """One call. Times are in tenths of a second from its start; None for never."""

    text: str
    is_determined: bool
    start: int
    gives_up: int | None
    deadline: int | None


class Play(NamedTuple):
    calls: list[Planned]
    endings: list[str]
    latencies: list[int]


TENTHS = st.integers(0, 30)
PLAYS = st.builds(
    Play,
    st.lists(
        st.builds(
            Planned,
            st.sampled_from("aab"),
            st.sampled_from((True, True, True, False)),
            st.integers(0, 20),
            st.none() | st.none() | TENTHS,
            st.none() | st.none() | TENTHS,
        ),
        min_size=2,
        max_size=14,
    ),
    st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=12),
    st.lists(st.integers(0, 15), min_size=1, max_size=12),
)


class Inner:
    """Answers as planned, and watches who asks it."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.given: dict[str, str] = {}  # each answer, and how it ended
        self.asking: Counter[tuple[str, bool]] = Counter()
        self.answered: set[str] = set()
        self.problems: list[str] = []
        self.number = 0

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load()

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        text, is_determined = request.body["text"], "seed" in request.body
        number, self.number = self.number, self.number + 1
        self.asking[text, is_determined] += 1
        if is_determined and self.asking[text, True] > 1:
            self.problems.append(f"{text} is asked by two at a time")
        if is_determined and text in self.answered:
            self.problems.append(f"{text} is asked again")
        call.attempts += 1
        try:
            latencies = self._play.latencies
            await asyncio.sleep(latencies[number % len(latencies)] / 10)
        finally:
            self.asking[text, is_determined] -= 1
        return self._outcome(text, is_determined, number)

    def _outcome(self, text: str, is_determined: bool, number: int) -> Outcome:
        ending = self._play.endings[number % len(self._play.endings)]
        answer = f"{text}{number}"
        self.given[answer] = ending
        if ending == "rejected":
            return failed(Rejected(answer))
        if ending == "failed":
            return failed(ServerFailed(answer))
        if ending == "whole" and is_determined:
            self.answered.add(text)
        reason = "stop" if ending == "whole" else "length"
        choice = {"message": {"content": answer}, "finish_reason": reason}
        reply = apis.read("/v1/chat/completions", json.dumps({"choices": [choice]}).encode())
        return Outcome(status="succeeded", reply=reply)

    async def aclose(self) -> None:
        assert not +self.asking


async def ended(cached: Any, plan: Planned, clock: VirtualClock) -> Outcome | None:
    """The outcome of one call; None where it was given up."""
    await asyncio.sleep(plan.start / 10)
    body = {"text": plan.text, **({"seed": 1} if plan.is_determined else {})}
    call = Call()
    if plan.deadline is not None:
        call.deadline_s = clock.now_s() + plan.deadline / 10
    task = asyncio.ensure_future(cached.send(Request(body=body), call))
    if plan.gives_up is None:
        outcome: Outcome = await task
        return outcome
    await asyncio.wait([task], timeout=plan.gives_up / 10)
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


def check_play(play: Play, kind: Any) -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        inner = Inner(play)
        with tempfile.TemporaryDirectory() as folder:
            store = AnswerStore(Path(folder), 10_000_000, clock=clock)
            store.open()
            cached = kind(inner, store, "here", clock=clock)
            outcomes = await asyncio.gather(*(ended(cached, plan, clock) for plan in play.calls))
            await cached.aclose()
        assert inner.problems == []
        assert store.notes == []
        check_outcomes(play, inner, outcomes)

    # A call that waits for ever ends in Deadlock.
    virtual_run(main())


def check_outcomes(play: Play, inner: Inner, outcomes: list[Outcome | None]) -> None:
    own = Counter[str]()
    for plan, outcome in zip(play.calls, outcomes, strict=True):
        if outcome is None:
            assert plan.gives_up is not None
            continue
        if isinstance(outcome.error, TimedOut):
            assert plan.deadline is not None
            assert outcome.attempts == 0
            continue
        text = outcome.error.what if outcome.error is not None else outcome.output
        assert text[0] == plan.text
        assert text in inner.given
        if outcome.is_cached:
            assert plan.is_determined
            assert inner.given[text] == "whole"
            assert outcome.attempts == 0
        else:
            assert outcome.attempts == 1
            own[text] += 1
    assert all(count == 1 for count in own.values()), "an answer has one owner"


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PLAYS)
def test_each_call_has_one_outcome_and_it_is_its_own(play: Play) -> None:
    check_play(play, Cached)


# Plays that hold what the random ones mostly find by luck.
def calls(*plans: tuple[str, int, int | None]) -> list[Planned]:
    return [Planned(text, True, start, gives_up, None) for text, start, gives_up in plans]


PLAYED = {
    "cut": Play(calls(("a", 0, None), ("a", 1, None)), ["cut"], [5]),
    "two at a time": Play(calls(("a", 0, None), ("a", 1, None)), ["whole"], [5]),
    "asked again": Play(calls(("a", 0, None), ("a", 9, None)), ["whole"], [5]),
    "given up": Play(calls(("a", 0, 2), ("a", 1, None)), ["whole"], [5]),
    "another's answer": Play(calls(("a", 0, None), ("b", 9, None)), ["whole"], [5]),
}


@pytest.mark.parametrize("name", PLAYED)
def test_plays_that_are_easily_lost_keep_the_law(name: str) -> None:
    check_play(PLAYED[name], Cached)


class Forgetful(AnswerStore):
    """A store that keeps nothing."""

    def __init__(self, store: AnswerStore) -> None:
        self.store = store
        self.notes = store.notes

    def look_up(self, key: bytes) -> asyncio.Future[bytes | None]:
        return self.store.look_up(key)

    def put(self, key: bytes, value: bytes) -> None: ...

    async def aclose(self) -> None:
        await self.store.aclose()


class Confused(Forgetful):
    """A store that keeps all under one key."""

    def look_up(self, key: bytes) -> asyncio.Future[bytes | None]:
        return self.store.look_up(b"k" * 32)

    def put(self, key: bytes, value: bytes) -> None:
        self.store.put(b"k" * 32, value)


class Apart(Cached):
    """Knows nothing of the calls that are on their way."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.another = lambda: Cached(*given, **named)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        return await self.another().send(request, call, sink)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("two at a time", Apart),
        ("asked again", lambda inner, store, *more, **named: Cached(
            inner, Forgetful(store), *more, **named)),
        ("another's answer", lambda inner, store, *more, **named: Cached(
            inner, Confused(store), *more, **named)),
    ],
)  # fmt: skip
def test_a_cache_that_breaks_the_law_is_noticed(name: str, kind: Any) -> None:
    assert_caught(lambda kind: check_play(PLAYED[name], kind), Cached, kind)
