"""Makes the calls of one load, each when it is due, or when the user's previous call has ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import Any

import msgspec

from redline.clock import SYSTEM, Clock
from redline.errors import BudgetSpent, RedlineError
from redline.measure.callers import Answer, Caller
from redline.measure.resources import Watch
from redline.measure.tally import Ended, Tally

# A load ends if its first requests fail: this many, or as many as its concurrency if that is more.
_HOPELESS = 20
# A call that is due within this time is made at once: event loops wake to the nearest millisecond.
_DUE_S = 0.0005
# At most this many requests of a schedule are counted as unsent, so that the load ends at once.
_MOST_COUNTED = 1_000_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a load.

    schedule: when requests are due, in seconds since the start, in ascending order; a call with
    several requests is due with the last of them. None for a closed loop, in which each of
    `concurrency` users makes the next call when the previous one has ended.

    concurrency: maximum calls in flight; on a schedule, further calls wait, and their latency
    counts from when they were due. duration_s: how long calls are made; its first warm_up_s are not
    measured. most: maximum requests; None for no limit but the duration.
    """

    concurrency: int
    duration_s: float
    warm_up_s: float = 0.0
    most: int | None = None
    schedule: Iterable[float] | None = None


class Load:
    """A load in progress. Call `run` once; `interrupt` may be called at any time.

    requests: the requests in order; the load ends when they run out. tally: records each call.
    watch: observes this process during the load. begun_s: when the load began, monotonic.
    in_flight: the number of calls in flight. stopped: the error that ended the load because every
    other call would meet it too; None without such an error, or if a budget was spent after a
    success.
    """

    def __init__(
        self,
        plan: Plan,
        caller: Caller,
        requests: Iterator[Any],
        tally: Tally,
        *,
        watch: Watch,
        begun_s: float,
        clock: Clock = SYSTEM,
    ) -> None:
        self._plan = plan
        self._caller = caller
        self._requests = requests
        self._tally = tally
        self._watch = watch
        self._clock = clock
        self._begun_s = begun_s
        self._end_s = begun_s + plan.duration_s
        # The requests that the plan still allows.
        self._left = sys.maxsize if plan.most is None else plan.most
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._places = asyncio.Semaphore(plan.concurrency)
        self._full_s: float | None = None
        self._answered_s = 0.0
        self._unsent = self._cut = 0
        self._is_stopped = self._is_interrupted = False
        self._why = ""
        self._makers: list[asyncio.Task[None]] = []
        # The first exception that a call of a schedule raised; the target's errors are answers.
        self._defect: BaseException | None = None
        self.in_flight = 0
        self.stopped: RedlineError | None = None

    async def run(self) -> Ended:
        """Makes the calls, and returns when all of them have ended.

        Does not handle signals. Raises the first exception that a call raised, such as ConfigError.
        """
        plan = self._plan
        if plan.schedule is None:
            users = min(plan.concurrency, plan.most or plan.concurrency)
            work = [self._user() for _ in range(users)]
        else:
            work = [self._dispatch(plan.schedule)]
        self._makers = [asyncio.create_task(one) for one in work]
        watches = [asyncio.create_task(one) for one in (self._warm_up(), self._drop_unsent())]
        try:
            results = await asyncio.gather(*self._makers, return_exceptions=True)
            self._is_over()
            while self._tasks:
                await asyncio.wait(self._tasks)
            raised = [one for one in results if isinstance(one, Exception)]
            if (error := self._defect or next(iter(raised), None)) is not None:
                raise error
        finally:
            for watch in watches:
                watch.cancel()
            self._watch.stop()
            self._cancel()
        full_s = self._since(self._begun_s if self._full_s is None else self._full_s)
        return Ended(
            full_s=full_s,
            answered_s=max(self._answered_s, full_s),
            unsent=self._unsent,
            cut=self._cut,
            why=self._why,
            is_interrupted=self._is_interrupted,
        )

    def interrupt(self) -> None:
        """Stops making calls, and cancels the calls in flight."""
        self._is_interrupted = True
        self._stop("it was interrupted")
        self._cancel()

    def _cancel(self) -> None:
        for task in (*self._makers, *self._tasks):
            task.cancel()

    def _stop(self, why: str) -> None:
        """Stops making calls. Calls in flight are not cancelled."""
        if self._is_stopped:
            return
        self._is_stopped, self._why = True, why
        self._is_over()
        if self._plan.schedule is not None:
            for task in self._makers:
                task.cancel()

    def _is_over(self) -> None:
        """Records the time from which the load is no longer at its full level."""
        if self._full_s is None:
            self._full_s = min(self._clock.now_s(), self._end_s)
            self._watch.stop()

    async def _warm_up(self) -> None:
        """Starts the watch, and starts it over when the warm-up ends."""
        self._watch.start()
        await asyncio.sleep(self._plan.warm_up_s)
        if self._full_s is None:
            self._watch.start()

    async def _drop_unsent(self) -> None:
        """Cancels the calls that have not been sent when the load's time is up."""
        await self._until(self._end_s)
        self._caller.drop_unsent()

    def _since(self, at_s: float) -> float:
        return at_s - self._begun_s

    def _take(self, most: int) -> list[Any]:
        """Returns the next requests, at most `most`; none if there are no more."""
        taken = list(islice(self._requests, min(most, self._left)))
        self._left -= len(taken)
        return taken

    async def _user(self) -> None:
        """Makes one call after another, as one user of a closed loop."""
        while not self._is_stopped and (now_s := self._clock.now_s()) < self._end_s:
            requests = self._take(self._caller.takes)
            if not requests:
                self._is_over()
                return
            try:
                answer = await self._call(now_s, requests)
            except Exception as error:
                # Stop the other users as well.
                self._stop(str(error))
                raise
            if answer.kind:
                now_s = self._clock.now_s()
                again_s = now_s + self._caller.pause_s(answer, now_s)
                await self._until(min(again_s, self._end_s))
                if again_s >= self._end_s:
                    return

    async def _dispatch(self, schedule: Iterable[float]) -> None:
        """Makes each call when it is due, or later, as soon as the concurrency allows it."""
        clock, is_behind = self._clock, False
        calls = _calls(schedule, self._caller.takes, self._plan.duration_s)
        for times in calls:
            if times[0] >= self._plan.duration_s:
                await self._until(self._end_s)
                break
            times = times[: self._left]
            if not times:
                break
            due_s = self._begun_s + times[-1]
            if due_s - clock.now_s() > _DUE_S:
                is_behind = False
                await self._until(due_s)
            if not is_behind:
                self._watch.late.add(max(0.0, clock.now_s() - due_s))
            if not self._places.locked():
                await self._places.acquire()
            else:
                is_behind = True
                try:
                    await asyncio.wait_for(self._places.acquire(), self._end_s - clock.now_s())
                except TimeoutError:
                    self._count_unsent(chain(times, chain.from_iterable(calls)))
                    break
            requests = self._take(len(times))
            if not requests:
                break
            task = asyncio.create_task(self._call(due_s, requests))
            self._tasks.add(task)
            task.add_done_callback(self._forget)
        self._is_over()

    async def _until(self, due_s: float) -> None:
        if (wait_s := due_s - self._clock.now_s()) > _DUE_S:
            await asyncio.sleep(wait_s)

    def _count_unsent(self, times: Iterable[float]) -> None:
        """Counts the requests due at these times as unsent, if they are due in the window."""
        plan, most = self._plan, min(self._left, _MOST_COUNTED)
        due = takewhile(lambda at_s: at_s < plan.duration_s, times)
        self._unsent += sum(at_s >= plan.warm_up_s for at_s in islice(due, most))

    def _forget(self, task: asyncio.Task[Answer]) -> None:
        self._tasks.discard(task)
        self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._defect = self._defect or error
            self._stop(str(error))

    async def _call(self, scheduled_s: float, requests: Sequence[Any]) -> Answer:
        """Makes one call and adds it to the tally."""
        clock, tally = self._clock, self._tally
        self.in_flight += 1
        begun_s = clock.now_s()
        tally.offered(len(requests), self._caller.takes)
        try:
            answer = await self._caller.ask(requests)
        except asyncio.CancelledError:
            if scheduled_s - self._begun_s >= self._plan.warm_up_s:
                self._cut += len(requests)
            if self._is_interrupted:
                # Without an interrupt, only unsent calls are cancelled.
                tally.give_up(begun_s, clock.now_s(), len(requests))
            raise
        finally:
            self.in_flight -= 1
        done_s = clock.now_s()
        self._answered_s = max(self._answered_s, self._since(done_s))
        if not isinstance(answer.error, BudgetSpent) or not tally.succeeded:
            # After a success, a call refused by the budget is not a failure of the target.
            tally.add(scheduled_s, begun_s, done_s, answer)
        self._judge(answer)
        return answer

    def _judge(self, answer: Answer) -> None:
        """Ends the load after an error that every call would meet, or if all first calls fail."""
        error, tally = answer.error, self._tally
        if error is not None and error.stops_run:
            if not isinstance(error, BudgetSpent) or not tally.succeeded:
                self.stopped = error
            self._stop(error.what)
        elif not tally.succeeded and tally.failed >= max(_HOPELESS, self._plan.concurrency):
            self._stop(f"the first {tally.failed:,} requests failed")


def _calls(schedule: Iterable[float], takes: int, duration_s: float) -> Iterator[list[float]]:
    """Yields the due times of each call's requests: at most `takes`, on one side of duration_s."""
    times = list[float]()
    for at_s in schedule:
        if times and (len(times) == takes or at_s >= duration_s):
            yield times
            times = []
        times.append(at_s)
    if times:
        yield times
