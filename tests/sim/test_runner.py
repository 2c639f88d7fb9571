"""The one-outcome law of a run, in virtual time, under seeded scripts of faults and endings."""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from redline.calls import Call, Outcome, Reply, Request, Retry, RetryPolicy
from redline.errors import (
    BadReply,
    ConfigError,
    Disconnected,
    JournalError,
    NoEndpoint,
    RateLimited,
    Refused,
    Rejected,
    ServerFailed,
    TimedOut,
)
from redline.job.settings import Ask, Hooks, Job, Prompting
from redline.job.work import (
    GRACE_S,
    HOPELESS_ROWS,
    Backpressure,
    Feed,
    Renderer,
    Runner,
    Tally,
)
from redline.job.work.backpressure import LARGE_ROW_BYTES
from redline.journal import Brief, NotKept, Result
from redline.process import Unblocked
from redline.sources import open_source
from redline.testing import ScriptedBackend, Send, Step, VirtualClock, virtual_run
from redline.timeline import Gatherer
from redline.waist import Sink
from support.catching import assert_caught


async def unused(row: object) -> None:
    """Stands for the job's call; the scripted backend answers in its place."""


class Harness:
    """A runner over a scripted backend, with everything it ended."""

    def __init__(
        self,
        rows: object,
        backend: ScriptedBackend,
        *,
        wired: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """wired: changes of the runner's parts. settings: of the job."""
        self.backend = backend
        self.tally = Tally()
        clock = VirtualClock(asyncio.get_running_loop())
        job = Job(rows=rows, call=unused, **settings)
        self.results: list[Result] = []
        load = Backpressure()
        self.feed = Feed(
            open_source(rows), lambda keys, undone, marks: undone, job.limit, load=load
        )
        parts: dict[str, Any] = {
            "backend": Retry(backend, job.retry, clock=clock, listener=self.tally, seed=1),
            "slots": 8,
            "supply": self.feed,
            "source_name": "rows",
            "renderer": Renderer(job.prompting),
            "results": NotKept(self._count),
            "load": load,
            "on_result": self._keep,
        }
        self.runner = Runner(job=job, clock=clock, **(parts | (wired or {})))

    def _count(self, rows: list[Brief]) -> None:
        succeeded = sum(row.status == "succeeded" for row in rows)
        self.tally.rows_saved(succeeded, len(rows) - succeeded, {})

    async def _keep(self, result: Result) -> None:
        self.results.append(result)

    async def run(self) -> None:
        try:
            await self.runner.run()
        finally:
            await self.feed.aclose()

    @property
    def unfinished(self) -> int:
        return self.runner.offered - self.tally.saved

    def check_law(self) -> None:
        """Offered = succeeded + failed + unfinished, and no row ended twice."""
        rows = Counter(result.row.number for result in self.results)
        assert all(count == 1 for count in rows.values())
        assert self.tally.saved == len(self.results)
        assert self.runner.offered == self.tally.saved + self.unfinished
        assert self.unfinished >= 0
        assert self.backend.in_flight == 0
        assert self.tally.retrying == 0


def rows(count: int) -> list[dict[str, int]]:
    return [{"n": number} for number in range(1, count + 1)]


FAULTS = (
    lambda: RateLimited("429", status=429, retry_after_s=2.0),
    lambda: RateLimited("429", status=429),
    lambda: ServerFailed("503", status=503),
    lambda: TimedOut("attempt", 5.0),
    lambda: Disconnected("reset"),
    lambda: BadReply("not JSON"),
    lambda: Rejected("400", status=400),
)


def faulty(seed: int, share: float) -> ScriptedBackend:
    source = random.Random(seed)

    def step(send: Send) -> Step:
        return source.choice(FAULTS)() if source.random() < share else Reply(output=send.number)

    return ScriptedBackend(step, latency_s=lambda send: source.uniform(0.1, 3.0))


@pytest.mark.parametrize("seed", range(30))
def test_every_row_gets_exactly_one_outcome_whatever_fails(seed: int) -> None:
    async def main() -> None:
        run = Harness(rows(300), faulty(seed, 0.3))
        await run.run()
        run.check_law()
        assert run.unfinished == 0
        assert {result.row.number for result in run.results} == set(range(1, 301))
        assert run.feed.is_input_done

    virtual_run(main())


@pytest.mark.parametrize("seed", range(20))
def test_a_drain_at_any_moment_finishes_what_is_on_the_wire_and_loses_nothing(seed: int) -> None:
    async def main() -> None:
        run = Harness(rows(300), faulty(seed, 0.3))
        task = asyncio.create_task(run.run())
        await asyncio.sleep(random.Random(seed).uniform(0, 40))
        on_wire = run.backend.in_flight
        sends, cancelled = len(run.backend.sends), run.backend.cancelled
        run.runner.drain()
        await task
        run.check_law()
        assert run.backend.cancelled == cancelled
        assert len(run.backend.sends) == sends
        assert on_wire <= 24

    virtual_run(main())


def test_no_attempt_follows_a_drain_however_short_the_wait_for_it() -> None:
    """Each attempt fails a second after it began, and would be made again within a millisecond."""

    async def main() -> None:
        backend = ScriptedBackend([ServerFailed("503", status=503)], latency_s=1.02)
        policy = RetryPolicy(max_retries=100, base_s=0.001, cap_s=0.001)
        run = Harness(rows(5), backend, retry=policy)
        task = asyncio.create_task(run.run())
        await asyncio.sleep(0.5)
        run.runner.drain()
        await task
        run.check_law()
        assert (len(backend.sends), backend.cancelled) == (5, 0)
        assert run.unfinished == 5

    virtual_run(main())


@pytest.mark.parametrize("latency_s", [1.5, 2.0])
def test_a_row_whose_time_is_up_during_a_drain_has_failed(latency_s: float) -> None:
    async def main() -> None:
        backend = ScriptedBackend([ServerFailed("503", status=503)], latency_s=latency_s)
        run = Harness(rows(5), backend, row_deadline_s=1.5)
        task = asyncio.create_task(run.run())
        await asyncio.sleep(0.5)
        run.runner.drain()
        await task
        run.check_law()
        assert (run.tally.failed, run.unfinished) == (5, 0)
        assert {result.outcome.status for result in run.results} == {"exhausted"}

    virtual_run(main())


@pytest.mark.parametrize("seed", range(10))
def test_an_abort_gives_up_what_is_on_the_wire_at_once(seed: int) -> None:
    async def main() -> None:
        run = Harness(rows(300), ScriptedBackend([Reply(output=1)], latency_s=1000.0))
        task = asyncio.create_task(run.run())
        await asyncio.sleep(1)
        begun_s = asyncio.get_running_loop().time()
        run.runner.abort()
        await task
        run.check_law()
        assert asyncio.get_running_loop().time() - begun_s < 1
        assert run.tally.saved == 0
        assert run.unfinished == run.runner.offered > 0

    virtual_run(main())


@pytest.mark.parametrize("error", [Refused("401", status=401), NoEndpoint("down")])
def test_an_error_for_every_row_stops_the_run_and_leaves_its_rows_unfinished(error: Any) -> None:
    def step(send: Send) -> Step:
        return error if send.number > 50 else Reply(output=1)

    async def main() -> None:
        run = Harness(rows(10_000), ScriptedBackend(step, latency_s=1.0))
        await run.run()
        run.check_law()
        assert type(run.runner.stopped) is type(error)
        assert run.tally.succeeded == 50
        assert run.tally.failed == 0
        assert run.runner.offered < 200
        assert not run.feed.is_input_done

    virtual_run(main())


def test_results_that_cannot_be_saved_are_told_whatever_stopped_the_run_before() -> None:
    async def main() -> None:
        runner = Harness([], ScriptedBackend(lambda send: Reply(output=1))).runner
        first, full, later = NoEndpoint("down"), JournalError("full"), JournalError("fuller")
        for error in (first, full, later, NoEndpoint("down again")):
            runner.stop(error)
        assert runner.stopped is full

    virtual_run(main())


def test_an_input_that_breaks_leaves_no_row_that_was_read_without_its_outcome() -> None:
    def broken() -> Iterator[dict[str, int]]:
        yield from rows(20)
        raise OSError("the queue is gone")

    def step(send: Send) -> Step:
        # Those that are tried again are not on the wire when the input breaks.
        return ServerFailed("503", status=503) if send.number <= 4 else Reply(output="yes")

    async def main() -> None:
        run = Harness(broken(), ScriptedBackend(step, latency_s=0.01))
        await run.run()
        run.check_law()
        assert sorted(result.row.number for result in run.results) == [*range(1, 21)]
        assert run.unfinished == 0
        assert isinstance(run.runner.stopped, ConfigError)
        assert run.runner.stopped.what == "reading rows raised OSError: the queue is gone"
        assert run.runner.stopped.where == "after 20 rows"

    virtual_run(main())


def test_a_stop_waits_for_the_wire_but_not_longer_than_its_grace() -> None:
    def step(send: Send) -> Step:
        return Refused("401", status=401) if send.number == 5 else Reply(output=1)

    async def main() -> None:
        slow = ScriptedBackend(step, latency_s=lambda send: 1.0 if send.number == 5 else 600.0)
        run = Harness(rows(100), slow)
        await run.run()
        run.check_law()
        assert GRACE_S < asyncio.get_running_loop().time() < GRACE_S + 2
        assert run.unfinished > 0

    virtual_run(main())


def test_a_drain_gives_calls_on_the_wire_all_the_time_they_need() -> None:
    async def main() -> None:
        run = Harness(rows(100), ScriptedBackend([Reply(output=1)], latency_s=20 * GRACE_S))
        task = asyncio.create_task(run.run())
        await asyncio.sleep(1)
        run.runner.drain()
        await task
        run.check_law()
        assert run.tally.succeeded == run.runner.offered > 0

    virtual_run(main())


def test_the_runs_deadline_ends_it_and_leaves_the_rest_for_the_next_run() -> None:
    async def main() -> None:
        run = Harness(rows(1000), ScriptedBackend([Reply(output=1)], latency_s=3.0), deadline_s=10)
        await run.run()
        run.check_law()
        assert isinstance(run.runner.stopped, TimedOut)
        assert run.runner.stopped.phase == "run"
        assert run.runner.stopped.hint == "with -o, the same command continues the run"
        assert asyncio.get_running_loop().time() < 11
        assert run.unfinished > 0

    virtual_run(main())


def test_a_rows_deadline_ends_its_retries_and_nothing_else() -> None:
    def step(send: Send) -> Step:
        is_bad = send.request.body["n"] == 2
        return ServerFailed("503", status=503) if is_bad else Reply(output=1)

    async def main() -> None:
        run = Harness(
            rows(10),
            ScriptedBackend(step, latency_s=1.0),
            row_deadline_s=20.0,
            retry=RetryPolicy(max_retries=100),
        )
        await run.run()
        run.check_law()
        assert run.tally.succeeded == 9
        failed = next(result for result in run.results if not result.outcome.is_success)
        assert failed.outcome.status == "exhausted"
        assert isinstance(failed.outcome.error, TimedOut)
        assert failed.outcome.error.phase == "row"
        assert asyncio.get_running_loop().time() <= 21

    virtual_run(main())


def test_a_run_whose_first_rows_are_all_rejected_stops_early_and_says_why() -> None:
    async def main() -> None:
        backend = ScriptedBackend([Rejected("no such model", status=404)], latency_s=0.1)
        run = Harness(rows(10_000), backend)
        await run.run()
        run.check_law()
        assert run.runner.stopped is not None
        assert f"the first {HOPELESS_ROWS} rows all failed" in run.runner.stopped.what
        assert "no such model" in run.runner.stopped.what
        assert run.tally.failed < HOPELESS_ROWS + 50

    virtual_run(main())


def test_one_success_among_many_rejections_lets_the_run_go_on() -> None:
    def step(send: Send) -> Step:
        return Reply(output=1) if send.number == 50 else Rejected("400", status=400)

    async def main() -> None:
        run = Harness(rows(1000), ScriptedBackend(step, latency_s=0.1))
        await run.run()
        run.check_law()
        assert run.runner.stopped is None
        assert (run.tally.succeeded, run.tally.failed) == (1, 999)

    virtual_run(main())


def test_strict_ends_the_run_at_its_first_failure() -> None:
    def step(send: Send) -> Step:
        return Rejected("400", status=400) if send.number == 20 else Reply(output=1)

    async def main() -> None:
        run = Harness(rows(1000), ScriptedBackend(step, latency_s=0.1), strict=True)
        await run.run()
        run.check_law()
        assert run.tally.failed == 1
        assert run.runner.stopped is not None
        assert run.runner.offered < 100

    virtual_run(main())


def test_rows_that_wait_to_be_tried_again_leave_the_slots_to_others() -> None:
    # The first 8 rows, as many as there are slots, fail and are asked to wait for an hour.
    def step(send: Send) -> Step:
        if send.request.body["n"] <= 8 and send.attempt == 1:
            return ServerFailed("503", status=503, retry_after_s=3600.0)
        return Reply(output=1)

    async def main() -> None:
        run = Harness(rows(100), ScriptedBackend(step, latency_s=1.0))
        task = asyncio.create_task(run.run())
        await asyncio.sleep(60)
        assert run.tally.succeeded == 92
        await task
        run.check_law()
        assert run.tally.succeeded == 100

    virtual_run(main())


def test_no_more_rows_wait_to_be_tried_again_than_there_are_spare_workers() -> None:
    """A row for each of the 8 slots, and 16 more."""

    async def main() -> None:
        asked_to_wait = ServerFailed("503", status=503, retry_after_s=3600.0)
        run = Harness(rows(100), ScriptedBackend([asked_to_wait], latency_s=1.0))
        task = asyncio.create_task(run.run())
        await asyncio.sleep(60)
        assert (run.runner.offered, run.tally.retrying) == (24, 24)
        run.runner.drain()
        await task
        assert run.unfinished == 24

    virtual_run(main())


def test_bad_rows_and_duplicates_fail_alone_and_are_named() -> None:
    table = [{"custom_id": "a"}, ["not", "a", "row"], {"custom_id": "b"}, {"custom_id": "a"}]

    async def main() -> None:
        run = Harness(table, ScriptedBackend([Reply(output=1)]))
        await run.run()
        run.check_law()
        errors = {
            result.row.number: result.outcome.error.what
            for result in run.results
            if result.outcome.error is not None
        }
        assert errors == {
            2: "the row cannot be read: not an object but a list",
            4: "an earlier row has the same custom_id: a",
        }
        hints = [result.outcome.error.hint for result in run.results if result.outcome.error]
        assert hints == ["", "a custom_id identifies a row, so each may occur only once"]
        assert len(run.backend.sends) == 2
        assert len({result.key for result in run.results}) == 4

    virtual_run(main())


def test_a_row_that_was_read_and_is_bad_all_the_same_fails_for_its_problem() -> None:
    """As a message of a stream does that was delivered too often."""

    async def main() -> None:
        run = Harness(rows(1), ScriptedBackend([Reply(output=1)]))
        picked = await run.runner.next_row()
        assert picked is not None
        picked.row.problem = "it was delivered 5 times"
        outcome = await run.runner.request_of(picked)
        assert isinstance(outcome, Outcome)
        assert (outcome.status, str(outcome.error)) == ("rejected", "it was delivered 5 times")
        await run.feed.aclose()

    virtual_run(main())


def test_reasons_to_fail_make_a_marked_answer_a_failure_that_keeps_it() -> None:
    cut = Reply(output="The answer is", finish_reason="length")

    async def main() -> None:
        run = Harness(rows(3), ScriptedBackend([cut]), fail_on=("length",))
        await run.run()
        run.check_law()
        assert run.tally.failed == 3
        outcome = run.results[0].outcome
        assert outcome.status == "rejected"
        assert outcome.output == "The answer is"

    virtual_run(main())


@pytest.mark.parametrize(
    ("reasons", "flaws"),
    [
        ("length", "the answer was cut at the token limit (length)"),
        (["length"], "the answer was cut at the token limit (length)"),
        (["stop", "empty", None], "choice 1: the answer is empty (empty)"),
        (
            ["length", "refusal", "empty"],
            "choice 0: the answer was cut at the token limit (length); "
            "choice 2: the answer is empty (empty)",
        ),
    ],
)
def test_a_marked_answer_fails_for_what_each_of_its_choices_ended_with(
    reasons: str | list[str | None], flaws: str
) -> None:
    async def main() -> None:
        marked = Reply(output="The answer is", finish_reason=reasons)
        run = Harness(rows(1), ScriptedBackend([marked]), fail_on=("length", "empty"))
        await run.run()
        error = run.results[0].outcome.error
        assert error is not None
        assert error.what == flaws

    virtual_run(main())


def test_the_runner_names_the_row_the_endpoint_and_the_attempt() -> None:
    async def main() -> None:
        run = Harness(
            rows(1),
            ScriptedBackend([ServerFailed("HTTP 500", status=500)]),
            retry=RetryPolicy(max_retries=2),
            prompting=Prompting(),
        )
        await run.run()
        error = run.results[0].outcome.error
        assert error is not None
        assert error.where == "rows:1, endpoint scripted, attempt 3 of 3"

    virtual_run(main())


def test_attempts_that_were_not_the_rows_fault_are_not_counted_against_its_retries() -> None:
    limited = RateLimited("429", status=429)

    async def main() -> None:
        run = Harness(
            rows(1),
            ScriptedBackend([limited, limited, limited, Rejected("400", status=400)]),
            retry=RetryPolicy(max_retries=2),
        )
        await run.run()
        error = run.results[0].outcome.error
        assert error is not None
        assert error.where == "rows:1, endpoint scripted, attempt 4"

    virtual_run(main())


class Later(Executor):
    """Calls each function after a time that depends on its value, in virtual time."""

    def __init__(self, after_s: Callable[..., float] = lambda *values: 0.0) -> None:
        self._after_s = after_s
        self.calls = 0

    def submit(self, function: Any, /, *values: Any, **named: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()

        def call() -> None:
            if not future.done() and future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*values))
                except Exception as error:
                    future.set_exception(error)

        asyncio.get_running_loop().call_later(self._after_s(*values), call)
        return future


def by_row(run: Harness) -> dict[int, Result]:
    return {result.row.number: result for result in run.results}


def reasons(run: Harness) -> list[str]:
    """Why rows were left behind. Tests of whole runs see how these are named."""
    return [line.partition(": ")[2] for line in run.runner.abandoned]


@pytest.mark.parametrize(
    ("what", "taken"), [("calls", 8), ("permit", 24), ("before", 24), ("after", 24)]
)
def test_more_rows_are_taken_than_there_are_slots_if_they_may_wait_without_one(
    what: str, taken: int
) -> None:
    async def permit(key: int, outcome: Outcome) -> bool:
        return True

    async def main() -> None:
        named: dict[str, Any] = {what: lambda value: value}
        hooks = Hooks(**named) if what in ("before", "after") else Hooks()
        wired = {"permit": permit} if what == "permit" else {}
        backend = ScriptedBackend([Reply(output=1)], latency_s=5.0)
        run = Harness(rows(100), backend, hooks=hooks, wired=wired)
        task = asyncio.create_task(run.run())
        await asyncio.sleep(4.0)
        assert run.runner.offered == taken
        run.runner.abort()
        await task
        run.runner.close()

    virtual_run(main())


def test_functions_before_and_after_run_in_their_executor_and_fail_their_rows_alone() -> None:
    def before(row: dict[str, Any]) -> Any:
        number = row["n"]
        row["n"] += 100
        return {3: row, 4: [row]}.get(number, {"asked": number})

    def after(output: Any) -> Any:
        if output == 2:
            raise ValueError("not 2")
        return {"kept": output}

    def answer(send: Send) -> Step:
        return Reply(output=send.request.body.get("asked", send.request.body))

    async def main() -> None:
        executor = Later()
        hooks = Hooks(before=before, after=after, executor=executor)
        run = Harness(rows(5), ScriptedBackend(answer), hooks=hooks)
        await run.run()
        run.check_law()
        found = by_row(run)
        assert executor.calls == 5 + 4
        assert found[1].outcome.output == {"kept": 1}
        assert found[3].outcome.output == {"kept": {"n": 103}}
        assert found[3].row.data == {"n": 3}
        errors = {n: one.outcome.error.what for n, one in found.items() if one.outcome.error}
        assert errors == {
            2: "the `after` function raised ValueError: not 2",
            4: "the `before` function returned a value of type list, not a dict",
        }
        # What the answer was stays with its row.
        assert (found[2].outcome.status, found[2].outcome.output) == ("rejected", 2)

    virtual_run(main())


@pytest.mark.parametrize("executor", [None, Later()])
@pytest.mark.parametrize("name", ["before", "after"])
def test_a_function_that_raises_what_no_future_takes_fails_its_row_alone(
    executor: Executor | None, name: str
) -> None:
    def first_of(value: Any) -> Any:
        return next(iter([value] if value not in (2, {"n": 2}) else []))

    async def main() -> None:
        backend = ScriptedBackend(lambda send: Reply(output=send.request.body["n"]))
        hooks = Hooks(executor=executor, **{name: first_of})
        run = Harness(rows(3), backend, hooks=hooks)
        async with asyncio.timeout(60):
            await run.run()
        run.check_law()
        found = {n: one.outcome.error for n, one in by_row(run).items()}
        assert [found[1], found[3]] == [None, None]
        assert found[2] is not None
        assert found[2].what == f"the `{name}` function raised StopIteration: "

    virtual_run(main())


class BreaksAt(Later):
    """Its process is killed by the call of this number, as a pool's by the system."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def submit(self, function: Any, /, *values: Any, **named: Any) -> Future[Any]:
        future = super().submit(function, *values, **named)
        if self.calls > self.number:
            raise BrokenProcessPool("not usable any more")
        if self.calls == self.number:
            future.set_exception(BrokenProcessPool("a process ended abruptly"))
        return future


@pytest.mark.parametrize("number", [0, 3])
def test_an_executor_that_breaks_ends_the_run_and_fails_no_row(number: int) -> None:
    async def main() -> None:
        backend = ScriptedBackend(lambda send: Reply(output=send.request.body["n"]))
        hooks = Hooks(after=lambda output: -output, executor=BreaksAt(number))
        run = Harness(rows(40), backend, hooks=hooks)
        await run.run()
        run.check_law()
        assert all(one.outcome.is_success for one in run.results)
        assert run.unfinished
        assert len(backend.sends) < 40
        assert "the executor cannot run the `after` function: Broken" in str(run.runner.stopped)
        assert run.runner.abandoned == []

    virtual_run(main())


def test_an_executor_that_was_shut_down_ends_the_run_and_fails_no_row() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()

    async def main() -> None:
        hooks = Hooks(after=lambda output: -output, executor=executor)
        run = Harness(rows(40), ScriptedBackend([Reply(output=1)]), hooks=hooks)
        await run.run()
        run.check_law()
        assert run.results == []
        assert isinstance(run.runner.stopped, ConfigError)
        assert run.runner.stopped.what == (
            "the executor cannot run the `after` function: "
            "RuntimeError: cannot schedule new futures after shutdown"
        )
        hint = "pass a new executor and make the same call again; it processes the remaining rows"
        assert run.runner.stopped.hint == hint

    virtual_run(main())


def test_ctrl_c_in_a_process_of_the_executor_leaves_its_row_to_the_next_run() -> None:
    class Interrupted(Later):
        """Ctrl-C in a terminal reaches the third call's process, and the run."""

        def submit(self, function: Any, /, *values: Any, **named: Any) -> Future[Any]:
            future = super().submit(function, *values, **named)
            if self.calls == 3:
                run.runner.drain()
                future.set_exception(KeyboardInterrupt())
            return future

    async def main() -> None:
        nonlocal run
        backend = ScriptedBackend([Reply(output=1)], latency_s=lambda send: send.number)
        hooks = Hooks(after=lambda output: output, executor=Interrupted())
        run = Harness(rows(40), backend, hooks=hooks)
        with suppress(KeyboardInterrupt):
            await run.run()
        run.check_law()
        assert all(one.outcome.is_success for one in run.results)
        assert len(run.results) == len(backend.sends) - 1
        assert run.runner.stopped is None

    run: Any = None
    virtual_run(main())


class Dies(Executor):
    """Its processes, as many as `most`, all end as soon as each of them runs a function."""

    def __init__(self, most: int, has_begun: threading.Semaphore) -> None:
        self.threads: list[threading.Thread] = []
        self._most = most
        self._has_begun = has_begun
        self._futures: list[Future[Any]] = []

    def submit(self, function: Any, /, *values: Any, **named: Any) -> Future[Any]:
        if len(self._futures) == self._most:
            raise BrokenProcessPool("not usable any more")
        future: Future[Any] = Future()
        self._futures.append(future)
        self.threads.append(threading.Thread(target=function, args=values))
        self.threads[-1].start()
        assert self._has_begun.acquire(timeout=60)
        if len(self._futures) == self._most:
            for each in self._futures:
                each.set_exception(BrokenProcessPool("a process ended abruptly"))
        return future


@pytest.mark.parametrize("name", ["before", "after"])
def test_the_rows_whose_functions_ran_in_an_executor_that_broke_have_failed(name: str) -> None:
    has_begun, may_return = threading.Semaphore(0), threading.Event()

    def function(value: Any) -> Any:
        has_begun.release()
        may_return.wait(60)
        return value

    executor = Dies(2, has_begun)

    async def main() -> None:
        hooks = Hooks(**{name: function}, executor=executor)
        run = Harness(rows(8), ScriptedBackend([Reply(output=1)]), hooks=hooks)
        await run.run()
        run.check_law()
        errors = {n: one.outcome.error for n, one in by_row(run).items()}
        assert {n: error and error.what for n, error in errors.items()} == dict.fromkeys(
            (1, 2), f"the executor broke while it ran the `{name}` function"
        )
        assert {error and error.hint for error in errors.values()} == {
            "another row may have broken it: use an executor with one process to find out which"
        }
        assert run.runner.abandoned == []

    try:
        virtual_run(main())
    finally:
        may_return.set()
        for thread in executor.threads:
            thread.join()


@pytest.mark.parametrize("is_cleaned_up", [False, True])
def test_functions_in_an_executor_leave_nothing_in_the_folder_of_temporary_files(
    is_cleaned_up: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def main() -> None:
        hooks = Hooks(before=lambda row: row, executor=Later())
        run = Harness(rows(3), ScriptedBackend([Reply(output=1)]), hooks=hooks)
        await run.run()
        assert run.tally.succeeded == 3
        # A system may do so at any time.
        for folder in tmp_path.iterdir() if is_cleaned_up else ():
            folder.rmdir()

    virtual_run(main())
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_functions_run_in_an_executor_without_a_folder_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    async def main() -> None:
        hooks = Hooks(before=lambda row: row, executor=Later())
        run = Harness(rows(3), ScriptedBackend([Reply(output=1)]), hooks=hooks)
        await run.run()
        assert run.tally.succeeded == 3

    virtual_run(main())


def test_the_threads_of_functions_are_named_as_redlines() -> None:
    names = set[str]()

    def before(row: Any) -> Any:
        names.add(threading.current_thread().name.rpartition("_")[0])
        return row

    async def main() -> None:
        run = Harness(rows(3), ScriptedBackend([Reply(output=1)]), hooks=Hooks(before=before))
        await run.run()
        run.runner.close()
        assert names == {"redline-function"}

    virtual_run(main())


class Panic(BaseException):
    """What code in Rust raises when it panics, for one."""


@pytest.mark.parametrize(
    "error", [Panic("boom"), asyncio.CancelledError("boom"), BrokenProcessPool("boom")]
)
@pytest.mark.parametrize("name", ["before", "after"])
def test_a_function_may_raise_anything_and_fails_its_row_alone(
    name: str, error: BaseException
) -> None:
    def raises(value: Any) -> Any:
        if value in (2, {"n": 2}):
            raise error
        return value

    named: dict[str, Any] = {name: raises}

    async def main() -> None:
        backend = ScriptedBackend(lambda send: Reply(output=send.request.body["n"]))
        run = Harness(rows(40), backend, hooks=Hooks(**named))
        await run.run()
        run.check_law()
        assert run.unfinished == 0
        failed = {n: one.outcome.error for n, one in by_row(run).items() if one.outcome.error}
        assert list(failed) == [2]
        what = f"the `{name}` function raised {type(error).__name__}: boom"
        assert failed[2] is not None
        assert failed[2].what == what

    virtual_run(main())


@pytest.mark.parametrize("error", [Panic("boom"), asyncio.CancelledError("boom")])
def test_a_backend_may_raise_anything_and_fails_its_row_alone(error: BaseException) -> None:
    class Panics(ScriptedBackend):
        async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
            if request.body == {"n": 2} and call.attempts == 2:
                raise error
            return await super().send(request, call, sink)

    def step(send: Send) -> Step:
        is_bad = send.request.body == {"n": 2}
        return ServerFailed("503", status=503) if is_bad else Reply(output=1)

    async def main() -> None:
        run = Harness(rows(40), Panics(step))
        await run.run()
        run.check_law()
        assert run.unfinished == 0
        failed = {n: one.outcome.error for n, one in by_row(run).items() if one.outcome.error}
        assert list(failed) == [2]
        assert failed[2] is not None
        assert failed[2].what == f"processing the row raised {type(error).__name__}: boom"
        assert failed[2].where == "rows:2, attempt 2 of 9"
        assert by_row(run)[2].outcome.status == "rejected"

    virtual_run(main())


def test_a_call_that_blocked_the_event_loop_until_a_signal_drains_the_run() -> None:
    class Blocked(ScriptedBackend):
        async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
            if request.body == {"n": 2}:
                await asyncio.sleep(0.5)
                raise Unblocked
            return await super().send(request, call, sink)

    async def main() -> None:
        run = Harness(rows(100), Blocked([Reply(output=1)], latency_s=1.0))
        await run.run()
        run.check_law()
        assert reasons(run) == ["it blocked the event loop"]
        assert run.runner.stopped is None
        assert run.tally.succeeded == run.backend.most_in_flight == len(run.backend.sends)
        assert run.unfinished == 1

    virtual_run(main())


def test_a_drain_names_no_row_whose_function_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redline.job.work.runner._FUNCTIONS", 1)
    may_return = threading.Event()

    def before(row: Any) -> Any:
        may_return.wait(60)
        return row

    async def main() -> None:
        run = Harness(rows(20), ScriptedBackend([Reply(output=1)]), hooks=Hooks(before=before))
        task = asyncio.create_task(run.run())
        await asyncio.sleep(1.0)
        run.runner.drain()
        await task
        run.runner.close()
        assert reasons(run) == ["the `before` function has not returned"]

    try:
        virtual_run(main())
    finally:
        may_return.set()


def test_a_drain_names_no_row_whose_function_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redline.job.work.runner._FUNCTIONS", 1)
    may_return, has_begun = threading.Semaphore(0), threading.Event()

    def before(row: Any) -> Any:
        if row["n"] == 2:
            has_begun.set()
        may_return.acquire(timeout=60)
        return row

    async def main() -> None:
        run = Harness(rows(2), ScriptedBackend([Reply(output=1)]), hooks=Hooks(before=before))
        task = asyncio.create_task(run.run())
        await asyncio.sleep(0.1)
        # The first one's has returned once the second one's begins, and the loop has not seen it.
        may_return.release()
        assert has_begun.wait(60)
        run.runner.drain()
        await task
        run.runner.close()
        assert reasons(run) == ["the `before` function has not returned"]

    try:
        virtual_run(main())
    finally:
        may_return.release()


def test_an_abort_waits_a_moment_for_functions_and_reports_those_that_go_on() -> None:
    async def main() -> None:
        executor = Later(lambda output: 1.1 if output <= 2 else 60.0)
        answer = ScriptedBackend(lambda send: Reply(output=send.request.body["n"]))
        hooks = Hooks(after=lambda output: -output, executor=executor)
        run = Harness(rows(4), answer, hooks=hooks)
        task = asyncio.create_task(run.run())
        await asyncio.sleep(1.0)
        assert not run.results
        run.runner.abort()
        await task
        assert {n: one.outcome.output for n, one in by_row(run).items()} == {1: -1, 2: -2}
        assert reasons(run) == 2 * ["the `after` function has not returned"]
        assert asyncio.get_running_loop().time() < 2.0

    virtual_run(main())


def test_an_abort_saves_what_a_function_returns_in_the_last_moment_that_it_has() -> None:
    """At 0.3 s, but for less than the loop tells apart, and so in the same turn."""

    async def main() -> None:
        hooks = Hooks(after=lambda output: -output, executor=Later(lambda output: 0.3 - 5e-10))
        run = Harness(rows(1), ScriptedBackend([Reply(output=1)]), hooks=hooks)
        task = asyncio.create_task(run.run())
        await asyncio.sleep(0.1)
        run.runner.abort()
        await task
        run.check_law()
        assert [one.outcome.output for one in run.results] == [-1]
        assert run.runner.abandoned == []

    virtual_run(main())


def test_an_abort_ends_the_wait_for_permission_to_write_what_a_function_returned() -> None:
    async def permit(key: int, outcome: Outcome) -> bool:
        await asyncio.sleep(1000.0)
        return True

    async def main() -> None:
        hooks = Hooks(after=lambda output: -output, executor=Later())
        backend = ScriptedBackend([Reply(output=1)])
        run = Harness(rows(1), backend, hooks=hooks, wired={"permit": permit})
        task = asyncio.create_task(run.run())
        await asyncio.sleep(1.0)
        run.runner.abort()
        await task
        run.check_law()
        assert (run.unfinished, run.runner.abandoned) == (1, [])
        assert asyncio.get_running_loop().time() < 2.0

    virtual_run(main())


class Stubborn(ScriptedBackend):
    """Its calls end after 5 s, whatever is cancelled."""

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + 5.0
        while (left_s := ends_s - loop.time()) > 0:
            try:
                await asyncio.sleep(left_s)
            except asyncio.CancelledError:
                continue
        return await super().send(request, call, sink)


def test_a_call_that_goes_on_though_it_is_cancelled_is_left_behind() -> None:
    async def main() -> None:
        run = Harness(rows(2), Stubborn([Reply(output=1)]))
        task = asyncio.create_task(run.run())
        await asyncio.sleep(1.0)
        run.runner.abort()
        await task
        assert asyncio.get_running_loop().time() < 2.0
        assert reasons(run) == 2 * ["its call continues although it was cancelled"]
        await asyncio.sleep(10.0)
        # The journal is closed by then.
        assert run.results == []

    virtual_run(main())


def test_a_run_that_is_cancelled_gives_up_its_calls_and_ends_at_once() -> None:
    async def main() -> None:
        run = Harness(rows(20), ScriptedBackend([Reply(output=1)], latency_s=1000.0))
        task = asyncio.create_task(run.run())
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        run.check_law()
        assert asyncio.get_running_loop().time() == 1.0
        assert run.backend.cancelled == 8

    virtual_run(main())


def test_a_drain_is_reported_to_what_watches_the_run_and_to_nothing_after_that() -> None:
    async def main() -> None:
        runner = Harness([], ScriptedBackend([Reply(output=1)])).runner
        drains = list[str]()
        async with runner.watched(lambda: drains.append("drained")):
            assert drains == []
            runner.drain()
            assert drains == ["drained"]
        runner.drain()
        assert drains == ["drained"]

    virtual_run(main())


@pytest.mark.parametrize("most", [None, 0.3])
def test_rows_that_fail_at_once_do_not_stop_a_run_whose_calls_are_not_answered_yet(
    most: float | None,
) -> None:
    async def main() -> None:
        given = [{"n": at} if at % 4 else None for at in range(800)]
        backend = ScriptedBackend([Reply(output=1)], latency_s=10.0)
        run = Harness(given, backend, wired={"slots": 900}, stop_at_error_rate=most)
        await run.run()
        assert run.runner.stopped is None
        assert (run.tally.succeeded, run.tally.failed) == (600, 200)

    virtual_run(main())


class AskingTwice:
    """A task that needs two answers for each row."""

    def settings(self) -> dict[str, Any]:
        return {}

    async def do(self, row: dict[str, Any], request: Request, ask: Ask) -> Outcome:
        first = await ask(request)
        return first if first.error is not None else await ask(request)


def test_calls_that_a_drain_gives_up_between_two_requests_are_unsaved() -> None:
    async def main() -> None:
        backend = ScriptedBackend([Reply(output=1)], latency_s=1.0)
        run = Harness(rows(20), backend, task=AskingTwice())
        task = asyncio.create_task(run.run())
        await asyncio.sleep(2.5)
        run.runner.drain()
        await task
        assert (run.tally.saved, run.runner.ended, run.runner.unsaved) == (8, 16, 8)

    virtual_run(main())


def test_calls_that_stop_the_run_are_unsaved() -> None:
    async def main() -> None:
        run = Harness(rows(8), ScriptedBackend([Refused("401")]))
        await run.run()
        assert (run.tally.saved, run.runner.ended, run.runner.unsaved) == (0, 8, 8)

    virtual_run(main())


def test_a_run_that_is_cancelled_twice_saves_nothing_of_calls_that_go_on() -> None:
    async def main() -> None:
        run = Harness(rows(2), Stubborn([Reply(output=1)]))
        task = asyncio.create_task(run.run())
        for _ in range(2):
            await asyncio.sleep(0.1)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Before the calls would have been left behind.
        assert asyncio.get_running_loop().time() < 0.3
        run.runner.close()
        await asyncio.sleep(10.0)
        assert run.results == []

    virtual_run(main())


def test_an_abort_ends_the_wait_for_who_takes_a_result() -> None:
    async def taker(result: Result) -> None:
        await asyncio.sleep(1000.0)

    async def main() -> None:
        run = Harness(rows(20), ScriptedBackend([Reply(output=1)]), wired={"on_result": taker})
        task = asyncio.create_task(run.run())
        await asyncio.sleep(1.0)
        assert run.runner.handing == 8
        run.runner.drain()
        await asyncio.sleep(100.0)
        assert run.runner.handing == 8
        run.runner.abort()
        await task
        assert run.runner.handing == 0
        assert asyncio.get_running_loop().time() == pytest.approx(101.0, abs=0.1)

    virtual_run(main())


def test_rows_that_are_another_runs_to_save_are_not_offered_here() -> None:
    async def main() -> None:
        asked = dict[int, int]()

        async def permit(key: int, outcome: Outcome) -> bool:
            asked[key] = number = outcome.output
            return bool(number % 2 == 0)

        answer = ScriptedBackend(lambda send: Reply(output=send.request.body["n"]), latency_s=1.0)
        run = Harness(rows(30), answer, wired={"permit": permit})
        await run.run()
        run.check_law()
        assert sorted(by_row(run)) == list(range(2, 31, 2))
        assert (run.runner.offered, run.unfinished) == (15, 0)
        assert sorted(asked.values()) == list(range(1, 31))
        assert {one.key: one.outcome.output for one in run.results}.items() <= asked.items()

    virtual_run(main())


def test_a_permit_that_cannot_be_asked_for_stops_the_run_and_saves_nothing() -> None:
    async def main() -> None:
        lost = NoEndpoint("the stream is down")

        async def permit(key: int, outcome: Outcome) -> bool:
            raise lost

        run = Harness(rows(100), ScriptedBackend([Reply(output=1)]), wired={"permit": permit})
        await run.run()
        assert run.runner.stopped is lost
        assert run.results == []
        assert run.unfinished == run.runner.offered > 0

    virtual_run(main())


class Billed:
    """A bill that can tell what `most` replies cost."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.added: list[tuple[object, str, bool]] = []

    def add(
        self,
        reply: Reply,
        endpoint: str = "",
        model: str | None = None,
        *,
        is_batched: bool = False,
    ) -> bool:
        self.added.append((reply.output, endpoint, is_batched))
        return len(self.added) < self.most


@pytest.mark.parametrize(("most", "billed"), [(100, 20), (3, 3)])
def test_each_answer_is_billed_until_the_cost_is_unknown(most: int, billed: int) -> None:
    def step(send: Send) -> Step:
        number = send.request.body["n"]
        return Rejected("400", status=400) if number > 20 else Reply(output=number)

    async def main() -> None:
        bill = Billed(most)
        run = Harness(rows(25), ScriptedBackend(step), wired={"bill": bill})
        await run.run()
        assert (run.tally.succeeded, run.tally.failed) == (20, 5)
        assert bill.added == [(n, "scripted", False) for n in range(1, billed + 1)]

    virtual_run(main())


def test_a_row_is_asked_elsewhere_and_its_answer_taken_as_if_it_were_from_here() -> None:
    async def main() -> None:
        bill, answers = Billed(100), ScriptedBackend([Reply(output=1)])
        table = [{"n": 1}, ["no row"], {"n": 3}, {"n": 4}]
        retry = RetryPolicy(max_retries=4)
        run = Harness(table, answers, wired={"bill": bill}, fail_on=("length",), retry=retry)
        runner = run.runner
        found: dict[int, Request | Outcome] = {}
        while (picked := await runner.next_row()) is not None:
            runner.offer(1)
            found[picked.row.number] = request = await runner.request_of(picked)
            if isinstance(request, Outcome):
                await runner.take(picked, request)
            elif picked.row.number == 4:
                cut = Reply(output="cut", finish_reason="length")
                await runner.take(picked, Outcome(status="succeeded", reply=cut, is_batched=True))
            else:
                down = ServerFailed("500", status=500)
                failed = Outcome(status="exhausted", error=down, attempts=2, endpoint="far")
                await runner.take(picked, failed)
        assert answers.sends == []
        assert isinstance(found[1], Request)
        assert found[1].body == {"n": 1}
        assert isinstance(found[2], Outcome)
        results = by_row(run)
        errors = {n: one.outcome.error for n, one in results.items()}
        assert str(errors[2]).startswith("the row cannot be read: not an object but a list")
        places = [error.where for n in (1, 3) if (error := errors[n]) is not None]
        assert places == [f"rows:{n}, endpoint far, attempt 2 of 5" for n in (1, 3)]
        assert results[4].outcome.status == "rejected"
        assert bill.added == [("cut", "", True)]
        assert (runner.offered, run.tally.failed) == (4, 4)
        # Nothing of it is left that an abort would have to end.
        assert runner.sent_s() == []
        await run.feed.aclose()

    virtual_run(main())


def test_how_long_calls_on_the_wire_may_take() -> None:
    async def main() -> None:
        slow = ScriptedBackend([Reply(output=1)], latency_s=50.0)
        run = Harness(rows(20), slow, timeout_s=100.0)
        runner = run.runner
        assert runner.finishing()[0] == 0
        task = asyncio.create_task(run.run())
        await asyncio.sleep(10.0)
        calls, most_s = runner.finishing()
        assert calls == 8
        assert most_s == pytest.approx(90.0, abs=0.1)
        runner.stop(NoEndpoint("down"))
        assert runner.finishing() == (8, GRACE_S)
        await asyncio.sleep(1.0)
        runner.abort()
        await task
        assert runner.finishing()[0] == 0

    virtual_run(main())


def test_calls_on_the_wire_end_at_the_latest_with_the_run() -> None:
    async def main() -> None:
        slow = ScriptedBackend([Reply(output=1)], latency_s=50.0)
        run = Harness(rows(20), slow, timeout_s=100.0, deadline_s=30.0)
        task = asyncio.create_task(run.run())
        await asyncio.sleep(10.0)
        assert run.runner.finishing() == (8, 20.0)
        await task

    virtual_run(main())


def test_calls_that_go_on_after_their_time_are_due_at_once() -> None:
    async def main() -> None:
        slow = ScriptedBackend([Reply(output=1)], latency_s=50.0)
        run = Harness(rows(8), slow, timeout_s=5.0)
        task = asyncio.create_task(run.run())
        await asyncio.sleep(10.0)
        assert run.runner.finishing() == (8, 0.0)
        await task

    virtual_run(main())


class Recorded(Gatherer):
    """Notes which calls a run records, and with what times."""

    def __init__(self, due: int) -> None:
        super().__init__()
        self.due = due
        self.calls: list[tuple[int, float, float]] = []
        self.untried: list[tuple[int, float]] = []

    def took(self, number: int, ended: Any) -> None:
        begun_s, ended_s, tried = ended
        assert len(tried) == 1
        self.calls.append((number, begun_s, ended_s))

    def took_untried(self, number: int, call_s: float) -> None:
        self.untried.append((number, call_s))


def test_calls_are_recorded_from_the_one_that_is_due_and_those_without_an_attempt_always() -> None:
    class Raises(ScriptedBackend):
        async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
            if request.body == {"n": 2}:
                await asyncio.sleep(2.0)
                raise ValueError("before the attempt")
            return await super().send(request, call, sink)

    async def main() -> None:
        record = Recorded(due=3)
        backend = Raises([Reply(output=1)], latency_s=1.0)
        run = Harness(rows(4), backend, wired={"record": record, "slots": 1})
        await run.run()
        assert record.calls == [(3, 3.0, 4.0), (4, 4.0, 5.0)]
        assert record.untried == [(2, 2.0)]
        assert run.runner.ended == 4

    virtual_run(main())


class Weighed(Backpressure):
    """Notes the bytes that are added, and as negative ones those that are removed."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def add(self, row_bytes: int) -> None:
        self.bytes.append(row_bytes)
        super().add(row_bytes)

    def remove(self, row_bytes: int) -> None:
        self.bytes.append(-row_bytes)
        super().remove(row_bytes)


@pytest.mark.parametrize("is_aborted", [False, True])
def test_the_bytes_of_a_large_row_count_until_it_has_ended(is_aborted: bool) -> None:
    async def main() -> None:
        load = Weighed()
        table = [{"n": 1}, {"n": 2, "text": LARGE_ROW_BYTES * "x"}, {"n": 3}]
        backend = ScriptedBackend([Reply(output=1)], latency_s=2.0)
        run = Harness(table, backend, wired={"load": load, "slots": 1})
        task = asyncio.create_task(run.run())
        await asyncio.sleep(1.0)
        assert load.bytes == []
        await asyncio.sleep(2.0)
        (row_bytes,) = load.bytes
        assert row_bytes > LARGE_ROW_BYTES
        if is_aborted:
            run.runner.abort()
        else:
            await asyncio.sleep(2.0)
        await task
        assert load.bytes == [row_bytes, -row_bytes]

    virtual_run(main())


def test_the_room_of_an_answer_is_held_until_its_result_was_taken() -> None:
    class Room:
        def release(self) -> None:
            events.append("released")

    class Holds(ScriptedBackend):
        async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
            call.held = Room()
            return await super().send(request, call, sink)

    async def taker(result: Result) -> None:
        await asyncio.sleep(1.0)
        events.append(f"taken {result.row.number}")

    async def main() -> None:
        wired = {"on_result": taker, "slots": 1}
        run = Harness(rows(2), Holds([Reply(output=1)]), wired=wired)
        await run.run()
        assert events == ["taken 1", "released", "taken 2", "released"]

    events: list[str] = []
    virtual_run(main())


class Losing(Harness):
    async def _keep(self, result: Result) -> None:
        if result.row.number % 50:
            await super()._keep(result)


class Repeating(Harness):
    async def _keep(self, result: Result) -> None:
        await super()._keep(result)
        if result.row.number % 50 == 0:
            await super()._keep(result)


@pytest.mark.parametrize("wrong", [Losing, Repeating])
def test_the_law_is_broken_by_a_result_that_is_lost_or_comes_twice(wrong: type[Harness]) -> None:
    def check(kind: type[Harness]) -> None:
        async def main() -> None:
            run = kind(rows(300), faulty(7, 0.3))
            await run.run()
            run.check_law()
            assert {result.row.number for result in run.results} == set(range(1, 301))

        virtual_run(main())

    assert_caught(check, Harness, wrong)
