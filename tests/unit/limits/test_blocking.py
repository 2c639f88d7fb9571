"""The limiter for threads: its windows, its order, and that nothing stays taken."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redline.clock import SYSTEM
from redline.errors import ConfigError, OverLimit
from redline.limits import Cost, Limits, Rate, SyncLimiter
from redline.testing import ManualClock
from support.catching import assert_caught

# Far beyond what any thread here waits; a thread that is lost fails its test by it.
LONG_S = 20.0


def in_threads(*jobs: Callable[[], None]) -> None:
    """Runs each job in a thread of its own; fails if one of them does not come to its end."""
    failures: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    assert not failures, failures


def check_windows(kind: Any) -> None:
    """No window and guard holds more than its limit, of calls or of tokens, by the stamps alone."""
    requests, tokens, guard_s = Rate(40, 0.1), Rate(300, 0.08), 0.01
    limits = Limits(requests=requests, tokens=tokens, guard_s=guard_s, profile="moving")
    limiter = kind(limits)
    sent: list[tuple[float, int]] = []

    def work(number: int) -> None:
        for turn in range(50):
            amount = 1 + (7 * number + turn) % 5
            with limiter(tokens=amount) as grant:
                sent.append((grant.sent_s, amount))

    in_threads(*(lambda number=number: work(number) for number in range(8)))
    assert len(sent) == 400
    sent.sort()
    for rate, of_tokens in ((requests, False), (tokens, True)):
        for end, (end_s, _) in enumerate(sent):
            begin_s = end_s - rate.window_s - guard_s + 1e-6
            inside = [amount for at_s, amount in sent[: end + 1] if at_s > begin_s]
            assert (sum(inside) if of_tokens else len(inside)) <= rate.count


class Queue:
    """A limiter of one call per 10 ms whose clock stands still until a test turns it."""

    WINDOW_S = 0.01

    def __init__(self, kind: Any, **limits: Any) -> None:
        limits.setdefault("requests", Rate(1, self.WINDOW_S))
        self.clock = ManualClock()
        self.limiter = kind(Limits(guard_s=0.0, **limits), self.clock)
        self.granted: list[str] = []
        self._threads: list[threading.Thread] = []

    def ask(self, name: str, tokens: int = 0, priority: int = 0) -> None:
        """A thread that asks, and is in the queue on return."""

        def work() -> None:
            with self.limiter(tokens, priority=priority):
                self.granted.append(name)

        before = self.limiter.waiting
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)
        wait_until(lambda: self.limiter.waiting > before)

    def serve(self) -> list[str]:
        """Turns the clock until all have had their turn; their order."""

        def all_served() -> bool:
            self.clock.advance(self.WINDOW_S / 5)
            return not any(thread.is_alive() for thread in self._threads)

        wait_until(all_served)
        return self.granted


def wait_until(is_so: Callable[[], bool]) -> None:
    begun_s = SYSTEM.now_s()
    pause = threading.Event()
    while not is_so():
        assert SYSTEM.now_s() < begun_s + LONG_S, "it does not come"
        pause.wait(0.001)


def check_order(kind: Any) -> None:
    queue = Queue(kind, tokens="100/0.01s")
    with queue.limiter():
        pass
    names = ["a", "large", "b", "c", "first", "d"]
    for name in names:
        queue.ask(name, 90 if name == "large" else 1, priority=-1 if name == "first" else 0)
    assert queue.serve() == ["first", "a", "large", "b", "c", "d"]


class InterruptingClock(ManualClock):
    """Raises KeyboardInterrupt at one of its readings, as a signal would."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at
        self._readings = 0

    def now_s(self) -> float:
        self._readings += 1
        if self._readings == self._at:
            raise KeyboardInterrupt
        return super().now_s()


def check_interrupts(kind: Any) -> None:
    """At whichever reading of the clock it comes, nothing stays taken and nobody stays behind."""
    interrupted = 0
    for at in itertools.count(1):
        clock = InterruptingClock(at)
        limiter = kind(Limits(requests="3/1s", tokens="100/1s", guard_s=0.0), clock)
        try:
            with limiter(tokens=60):
                pass
        except KeyboardInterrupt:
            interrupted += 1
        else:
            break
        assert limiter.waiting == 0
        clock.advance(5.0)
        for line in limiter.rules.lines:
            assert line.window.used(clock.now_s()) == 0
        served: list[int] = []
        in_threads(lambda served=served, limiter=limiter: serve_whole(limiter, served))
        assert served == [100]
    assert interrupted >= 4


def serve_whole(limiter: Any, served: list[int]) -> None:
    with limiter(tokens=100) as grant:
        served.append(grant.cost.tokens)


def test_an_interrupt_in_the_queue_lets_the_next_one_go() -> None:
    class Impatient(Exception):
        pass

    class Clock(ManualClock):
        def now_s(self) -> float:
            if threading.current_thread().name == "impatient" and queue.clock_is_turned:
                raise Impatient
            return super().now_s()

    queue: Any = Queue(SyncLimiter)
    queue.clock = Clock()
    queue.clock_is_turned = False
    queue.limiter = SyncLimiter(Limits(requests="1/10ms", guard_s=0.0), queue.clock)
    with queue.limiter():
        pass
    left = threading.Event()

    def impatient() -> None:
        try:
            with queue.limiter():
                pass
        except Impatient:
            left.set()

    threading.Thread(target=impatient, name="impatient", daemon=True).start()
    wait_until(lambda: queue.limiter.waiting == 1)
    queue.ask("next")
    queue.clock_is_turned = True
    assert queue.serve() == ["next"]
    assert left.wait(LONG_S)
    assert queue.limiter.waiting == 0


def test_an_exception_in_the_body_passes_and_the_call_counts_as_sent() -> None:
    clock = ManualClock()
    limiter = SyncLimiter(Limits(requests="2/1s", guard_s=0.0, profile="fixed"), clock)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), limiter():
            _ = 1 / 0
        clock.advance(0.1)
    assert limiter.waiting == 0
    assert limiter.rules.wait_s(Cost(), clock.now_s()) == pytest.approx(0.8)
    clock.advance(0.8)
    with limiter() as grant:
        assert grant.waited_s == 0


def test_more_than_a_limit_allows_at_all_is_refused_at_once() -> None:
    limiter = SyncLimiter(Limits(tokens="100/1s"), ManualClock())
    with pytest.raises(OverLimit), limiter(tokens=101):
        raise AssertionError("it was let in")
    assert limiter.waiting == 0
    with limiter(tokens=100):
        pass


@pytest.mark.parametrize("tokens", [-1, float("nan")])
def test_tokens_that_are_no_amount_are_refused_and_take_nothing(tokens: Any) -> None:
    limiter = SyncLimiter(Limits(tokens="100/1s"), ManualClock())
    with pytest.raises(ConfigError, match="tokens"), limiter(tokens=tokens):
        raise AssertionError("it was let in")
    with limiter(tokens=100) as grant:
        assert grant.waited_s == 0


@pytest.mark.parametrize("used", [-1, Cost(-5, 10), Cost(10, -5), Cost(-1)])
def test_usage_that_is_no_amount_is_refused_and_changes_nothing(used: int | Cost) -> None:
    clock = ManualClock()
    limiter = SyncLimiter(Limits(tokens="100/1s"), clock)
    with limiter(tokens=60) as grant, pytest.raises(ConfigError, match="0 or more, not"):
        grant.settle(used)
    assert limiter.rules.lines[0].window.used(clock.now_s()) == 60


def check_settling(kind: Any) -> None:
    clock = ManualClock()
    limiter = kind(
        Limits(input_tokens="100/1s", output_tokens="50/1s", guard_s=0.0, profile="moving"), clock
    )
    with limiter(80, output_tokens=40) as grant:
        grant.settle(Cost(20, 10))
    clock.advance(0.1)
    assert limiter.rules.wait_s(Cost(80, 40), clock.now_s()) == 0
    with limiter(80, output_tokens=40) as grant:
        # A sum keeps the ratio of the estimate.
        grant.settle(60)
    used = {line.kind: line.window.used(clock.now_s()) for line in limiter.rules.lines}
    assert used == {"input_tokens": 60, "output_tokens": 30}


def test_a_rate_alone_is_enough_and_a_grant_may_be_given_back() -> None:
    clock = ManualClock()
    limiter = SyncLimiter("1/1s", clock)
    limiter.acquire().release()
    limiter.acquire().sent(clock.now_s())
    assert limiter.rules.wait_s(Cost(), clock.now_s()) >= 1.0


def test_who_waits_for_a_call_to_be_written_is_woken_by_it() -> None:
    clock = ManualClock()
    limiter = SyncLimiter(Limits(requests="1/5ms", guard_s=0.0, profile="fixed"), clock)
    grant = limiter.acquire()
    clock.advance(1.0)
    served: list[int] = []

    def work() -> None:
        with limiter():
            served.append(1)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait_until(lambda: limiter.waiting == 1)
    grant.sent(clock.now_s() - 1.0)
    thread.join(LONG_S)
    assert served == [1]


@pytest.mark.parametrize("guard_s", [None, 0.0])
def test_the_usage_that_a_reply_states_counts(guard_s: float | None) -> None:
    clock = ManualClock()
    limits = Limits(
        input_tokens="100/60s", output_tokens="50/60s", guard_s=guard_s, profile="moving"
    )
    limiter = SyncLimiter(limits, clock)
    grant = limiter.acquire(Cost(80, 40))
    grant.sent(clock.now_s())
    grant.replied(0.1)
    assert [line.window.used(clock.now_s()) for line in limiter.rules.lines] == [80, 40]
    grant.replied(0.1, Cost(20, 10))
    assert [line.window.used(clock.now_s()) for line in limiter.rules.lines] == [20, 10]


def test_a_number_means_tokens() -> None:
    clock = ManualClock()
    limiter = SyncLimiter(Limits(tokens="100/1s"), clock)
    with pytest.raises(OverLimit):
        limiter.acquire(101)
    grant = limiter.acquire(60)
    assert grant.cost.tokens == 60
    assert limiter.rules.lines[0].window.used(clock.now_s()) == 60


@pytest.mark.parametrize(
    ("limits", "tokens", "next_s"),
    [({"requests": "8/1s"}, 0, 0.125), ({"tokens": "160/20s"}, 16, 2.0)],
)
def test_a_call_that_waits_for_nothing_lets_no_later_one_come_early(
    limits: Any, tokens: int, next_s: float
) -> None:
    """Neither idle time is caught up nor a lateness that there was not."""
    clock = ManualClock(1024.0)
    limiter = SyncLimiter(Limits(guard_s=0.0, **limits), clock)
    limiter.acquire(tokens).sent(clock.now_s())
    assert limiter.rules.wait_s(Cost(1), clock.now_s()) == pytest.approx(next_s)


@pytest.mark.parametrize(
    ("limits", "waited_s", "tokens", "next_s"),
    [
        # It waited for tokens and went on time: the request after it keeps its pace.
        ({"requests": "8/1s", "tokens": "80/10s"}, 0.5, 0, 0.125),
        # It waited for its request, a half of it longer than for tokens, which are caught up.
        ({"requests": "1/1s", "tokens": "160/20s"}, 1.0, 16, 1.5),
    ],
)
def test_only_what_another_limit_held_back_is_caught_up(
    limits: Any, waited_s: float, tokens: int, next_s: float
) -> None:
    clock = ManualClock(1024.0)
    limiter = SyncLimiter(Limits(guard_s=0.0, **limits), clock)
    first = limiter.acquire(4)
    first.sent(clock.now_s())
    granted: list[Any] = []
    thread = threading.Thread(target=lambda: granted.append(limiter.acquire(tokens)), daemon=True)
    thread.start()
    wait_until(lambda: limiter.waiting == 1)
    clock.advance(waited_s)
    # Usage wakes the thread, which otherwise sleeps by the machine's clock.
    first.settle(4)
    thread.join(LONG_S)
    (grant,) = granted
    assert grant.waited_s == waited_s
    grant.sent(clock.now_s())
    assert limiter.rules.wait_s(Cost(), clock.now_s()) == pytest.approx(next_s)


class Unguarded(SyncLimiter):
    def __init__(self, limits: Limits) -> None:
        super().__init__(msgspec.structs.replace(limits, guard_s=0.0))


class ByAmount(SyncLimiter):
    def acquire(self, cost: Any = 0, priority: int = 0) -> Any:
        return super().acquire(cost, cost.tokens)


class LastFirst(SyncLimiter):
    asked = 0

    def acquire(self, cost: Any = 0, priority: int = 0) -> Any:
        self.asked += 1
        return super().acquire(cost, -self.asked)


class Keeping(SyncLimiter):
    def give_back(self, taken: Any) -> None:
        pass


class Unsettled(SyncLimiter):
    def settle(self, taken: Any, used: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (check_windows, Unguarded),
        (check_order, ByAmount),
        (check_order, LastFirst),
        (check_interrupts, Keeping),
        (check_settling, Unsettled),
    ],
)
def test_a_wrong_limiter_is_noticed(check: Any, wrong: Any) -> None:
    assert_caught(check, SyncLimiter, wrong)
