"""Runs whose backend, source, results, tally and listeners come from the caller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from redline.calls import (
    Cache,
    Call,
    Endpoint,
    FunctionBackend,
    Outcome,
    Reply,
    Request,
    Sink,
)
from redline.calls.cost import Allowance
from redline.errors import BudgetSpent, ConfigError, JournalError, Rejected, ServerFailed
from redline.events import Event, RetryScheduled, RetryStarted
from redline.job import Parts, execute
from redline.job.settings import Job, Prompting, make_job
from redline.job.work import Tally
from redline.journal import Output, Result
from redline.limits import Limits
from redline.process import Changes
from redline.sources import AsyncRows, Row, open_source
from redline.testing import ScriptedBackend, Send, Step, virtual_run

PROMPTING = Prompting(model="m", prompt="{{ n }}")
ONE_BY_ONE = Limits(concurrency=1)


class Taken:
    """Takes results; refuses the one of row `full_at`. A Results."""

    def __init__(self, full_at: int = 0) -> None:
        self.changes = Changes()
        self.failure: JournalError | None = None
        self.outcomes: list[Outcome] = []
        self._full_at = full_at

    def append(self, result: Result) -> None:
        if result.row.number == self._full_at:
            raise JournalError("the disk is full")
        self.outcomes.append(result.outcome)

    def fail(self) -> None:
        self.failure = JournalError("the head node is gone")
        self.changes.notify()


class Heard:
    """A Listener that keeps what it heard."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


class Watched:
    """The rows of a list, and whether they were closed. A Source."""

    def __init__(self, count: int) -> None:
        self._rows = open_source(rows(count))
        assert not isinstance(self._rows, AsyncRows)
        self.name = "the caller's rows"
        self.total_rows = count
        self.batches = self._rows.batches
        self.read_fraction = self._rows.read_fraction
        self.check = self._rows.check
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        self._rows.close()


def rows(count: int) -> list[dict[str, int]]:
    return [{"n": number} for number in range(1, count + 1)]


def job(**settings: Any) -> Job:
    return Job(**{"prompting": PROMPTING, **settings})


def test_everything_is_supplied_and_stays_the_callers() -> None:
    def step(send: Send) -> Step:
        if send.number == 3:
            return ServerFailed("503", status=503)
        return Reply(output="yes", input_tokens=5, output_tokens=1)

    async def main() -> None:
        backend, source = ScriptedBackend(step, latency_s=1.0), Watched(20)
        taken, tally, heard = Taken(), Tally(), Heard()
        parts = Parts(
            backend=backend, source=source, results=taken, tally=tally, listeners=(heard,)
        )
        report = await execute(job(limits=Limits(concurrency=4)), parts)
        assert sorted(outcome.row or 0 for outcome in taken.outcomes) == [*range(1, 21)]
        assert {outcome.output for outcome in taken.outcomes} == {"yes"}
        assert (report.offered, report.succeeded, report.unfinished) == (20, 20, 0)
        assert report.is_complete
        assert (tally.succeeded, tally.attempts, tally.retries) == (20, 21, 1)
        assert (tally.input_tokens, tally.output_tokens, tally.in_flight) == (100, 20, 0)
        assert (report.attempts, report.errors_by_kind) == (21, {"server_failed": 1})
        assert report.most_in_flight == backend.most_in_flight == 4
        assert [type(event) for event in heard.events] == [RetryScheduled, RetryStarted]
        assert tally.retrying == 0
        assert source.is_closed
        assert not backend.is_closed
        bodies = [send.request.body for send in backend.sends]
        assert bodies[0] == {"model": "m", "messages": [{"role": "user", "content": "1"}]}

    virtual_run(main())


def test_only_the_backend_is_supplied() -> None:
    async def main() -> None:
        ended: list[Result] = []
        backend = ScriptedBackend([Rejected("no", status=400), Reply(output="yes")])
        parts = Parts(backend=backend, on_result=ended.append)
        report = await execute(job(rows=rows(5), limits=ONE_BY_ONE), parts)
        assert (report.succeeded, report.failed, report.attempts) == (4, 1, 5)
        assert len(ended) == 5
        assert not backend.is_closed

    virtual_run(main())


def test_only_the_source_is_supplied_and_it_may_be_async() -> None:
    async def answer(row: dict[str, Any]) -> int:
        return -int(row["n"])

    async def items() -> AsyncIterator[dict[str, int]]:
        for row in rows(5):
            await asyncio.sleep(1)
            yield row

    async def main() -> None:
        ended: list[Any] = []
        parts = Parts(
            source=AsyncRows("the caller's rows", items()),
            on_result=lambda result: ended.append(result.outcome.output),
        )
        report = await execute(job(call=answer), parts)
        assert report.is_complete
        assert sorted(ended) == [-5, -4, -3, -2, -1]

    virtual_run(main())


def test_a_job_with_an_embedded_server_needs_nothing_else() -> None:
    made = make_job(rows(3), {"endpoint": "sim", "prompt": "say {{ n }}"}, {})
    ended: list[Result] = []
    report = asyncio.run(execute(made, Parts(on_result=ended.append)))
    assert report.is_complete
    assert all("say" in result.outcome.output for result in ended)
    assert len(ended) == 3


def test_a_backend_that_is_closed_by_one_job_would_fail_the_next() -> None:
    async def main() -> None:
        backend = ScriptedBackend([Reply(output=1)])
        for _ in range(2):
            report = await execute(job(rows=rows(3)), Parts(backend=backend))
            assert report.attempts == 3
        assert len(backend.sends) == 6

    virtual_run(main())


def test_a_source_that_breaks_ends_the_run_and_is_closed() -> None:
    class Broken(Watched):
        def __init__(self) -> None:
            super().__init__(10)
            self.batches = self.break_after_three

        def break_after_three(self) -> Iterator[list[Row]]:
            yield [Row(n, n, {"n": n}, b"%d" % n) for n in (1, 2, 3)]
            raise OSError("the queue is gone")

    async def main() -> None:
        source = Broken()
        parts = Parts(backend=ScriptedBackend([Reply(output=1)]), source=source)
        report = await execute(job(), parts)
        assert report.succeeded == 3
        assert "reading the caller's rows raised OSError: the queue is gone" in str(report.stopped)
        assert source.is_closed

    virtual_run(main())


def test_results_that_cannot_be_taken_end_the_run_and_their_rows_stay_unfinished() -> None:
    async def main() -> None:
        taken = Taken(full_at=3)
        parts = Parts(backend=ScriptedBackend([Reply(output=1)]), results=taken)
        report = await execute(job(rows=rows(50), limits=ONE_BY_ONE), parts)
        assert str(report.stopped) == "the disk is full"
        assert report.succeeded == len(taken.outcomes) < 50
        assert report.unfinished >= 1

    virtual_run(main())


def test_a_failure_of_the_results_ends_the_run_while_it_waits_for_answers() -> None:
    async def main() -> None:
        taken = Taken()
        backend = ScriptedBackend([Reply(output=1)], latency_s=10.0)
        run = asyncio.create_task(execute(job(rows=rows(5)), Parts(backend=backend, results=taken)))
        asyncio.get_running_loop().call_later(5.0, taken.fail)
        report = await run
        assert str(report.stopped) == "the head node is gone"
        assert report.succeeded == 5

    virtual_run(main())


@pytest.mark.parametrize(
    ("settings", "parts", "what"),
    [
        (
            {"endpoints": (Endpoint(base_url="http://a.example/v1"),)},
            {"backend": ScriptedBackend([Reply()])},
            "a supplied backend and an endpoint cannot be combined",
        ),
        (
            {"cache": Cache("answers")},
            {"backend": ScriptedBackend([Reply()])},
            "a supplied backend and a cache of answers cannot be combined",
        ),
        (
            {"via": "batch", "output": Output.at("out.jsonl")},
            {"backend": ScriptedBackend([Reply()])},
            "a supplied backend and batches cannot be combined",
        ),
        (
            {"output": Output.at("out.jsonl")},
            {"backend": ScriptedBackend([Reply()]), "results": Taken()},
            "results can go to the job's output or to the caller, but not to both",
        ),
        (
            {"limits": Limits(requests="5/1s")},
            {"backend": ScriptedBackend([Reply()])},
            "a supplied backend and limits other than a fixed concurrency cannot be combined",
        ),
        (
            {"limits": Limits(concurrency="auto")},
            {"backend": ScriptedBackend([Reply()])},
            "a supplied backend and limits other than a fixed concurrency cannot be combined",
        ),
        ({}, {}, "a run needs an endpoint, a function to call, or a backend"),
    ],
)
def test_a_part_and_a_setting_that_exclude_each_other(
    settings: dict[str, Any], parts: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        asyncio.run(execute(job(rows=rows(1), **settings), Parts(**parts)))
    assert not Path("out.jsonl").exists()


def test_answers_are_in_the_file_before_the_next_request_goes_to_a_supplied_backend(
    tmp_path: Path,
) -> None:
    output = Output.at(tmp_path / "out.jsonl")
    seen: list[int] = []

    async def answer(body: Any) -> str:
        text = output.path.read_text() if output.path.exists() else ""
        seen.append(len([line for line in text.splitlines() if json.loads(line)]))
        await asyncio.sleep(0.001)
        return "yes"

    async def main() -> None:
        settings = job(rows=rows(10), limits=ONE_BY_ONE, output=output)
        backend = FunctionBackend(answer)
        report = await execute(settings, Parts(backend=backend))
        await backend.aclose()
        assert report.is_complete

    asyncio.run(main())
    assert seen == [*range(10)]


def test_a_jobs_budget_holds_around_a_supplied_backend(tmp_path: Path) -> None:
    output = Output.at(tmp_path / "out.jsonl")
    reserved: list[int] = []

    def step(send: Send) -> Step:
        line, _ = (output.state_path / "spent").read_text().rstrip().rsplit(" ", 1)
        reserved.append(json.loads(line)["tokens"])
        usage = {"prompt_tokens": 10, "completion_tokens": 40, "total_tokens": 50}
        return Reply(output="yes", usage=usage, input_tokens=10, output_tokens=40)

    async def main() -> None:
        prompting = Prompting(model="m", prompt="{{ n }}", params={"max_tokens": 40})
        settings = job(
            rows=rows(20),
            prompting=prompting,
            limits=ONE_BY_ONE,
            output=output,
            allowance=Allowance(tokens=400),
        )
        report = await execute(settings, Parts(backend=ScriptedBackend(step)))
        assert isinstance(report.stopped, BudgetSpent)
        assert 0 < report.succeeded < 8
        assert report.spent_tokens == 50 * report.succeeded

    asyncio.run(main())
    # What is spent, with the worst case of the call that is on its way.
    assert all(tokens >= 50 * (sends + 1) for sends, tokens in enumerate(reserved))


class Noting(ScriptedBackend):
    """Notes in whose name each call came, and with which priority."""

    def __init__(self) -> None:
        super().__init__([Reply(output=1)])
        self.calls: list[tuple[str, int]] = []

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        self.calls.append((call.tenant, call.priority))
        return await super().send(request, call, sink)


def test_each_call_carries_the_jobs_tenant_and_priority() -> None:
    async def main() -> None:
        backend = Noting()
        named = {"tenant": "search-team", "priority": -3}
        for settings in ({}, named):
            await execute(job(rows=rows(2), **settings), Parts(backend=backend))
        assert backend.calls == [("", 0), ("", 0), ("search-team", -3), ("search-team", -3)]

    virtual_run(main())


@pytest.mark.parametrize(("first", "second"), [(0, 5), (5, 0)])
def test_of_two_jobs_on_one_slot_the_lower_number_goes_first(first: int, second: int) -> None:
    async def main() -> None:
        order: list[int] = []

        async def answer(body: Any) -> None:
            order.append(int(body["messages"][0]["content"]))
            await asyncio.sleep(1)

        shared = FunctionBackend(answer, limits=ONE_BY_ONE)
        jobs = [
            job(rows=[{"n": priority}] * 20, priority=priority, limits=Limits(concurrency=8))
            for priority in (first, second)
        ]
        parts = Parts(backend=shared)
        reports = await asyncio.gather(*[execute(one, parts) for one in jobs])
        await shared.aclose()
        assert [report.succeeded for report in reports] == [20, 20]
        # The first row of a job that goes later may start before the other has asked at all.
        assert order[2:20] == [0] * 18

    virtual_run(main())
