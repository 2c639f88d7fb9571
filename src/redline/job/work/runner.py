"""Drives one run: source -> workers -> backend -> journal.

A worker takes a row, sends it to the backend and hands the outcome to the journal. There are as
many workers as slots, plus a bounded number of spare ones, because some rows wait without holding a
slot: for a retry, a user's function, the cache, or permission to be written. So slots rarely stay
idle while rows are left.

How a run ends:
  the input ends        every row has its outcome
  the input fails       every row before the failure has its outcome; then the error is reported
  drain (first Ctrl-C)  no row and no attempt begins; calls on the wire finish and are saved
  stop  (an error that ends the run)            as drain; after GRACE_S, as abort
  abort (second Ctrl-C, or the run's deadline)  calls on the wire are cancelled
  leave (shortly after an abort)                tasks still running are abandoned and reported
Rows without an outcome stay unfinished; the next run sends them.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import os
import shutil
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from concurrent.futures import BrokenExecutor, Executor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from redline.calls import Backend, Call, Outcome, Reply, Request
from redline.clock import SYSTEM, Clock
from redline.errors import (
    BadRow,
    ConfigError,
    JournalError,
    RedlineError,
    Rejected,
    TimedOut,
)
from redline.job.settings import NO_MORE_S, Answered, Ask, Job, unsent
from redline.job.work.backpressure import LARGE_ROW_BYTES, Backpressure
from redline.job.work.bill import Bill
from redline.job.work.feed import Picked, Supply
from redline.job.work.stopping import Failures, longest_wait
from redline.job.work.template import Renderer
from redline.journal import FAIL_ON, Result
from redline.process import (
    Changes,
    DaemonThreads,
    Unblocked,
    counted,
    ends_task,
    first_of,
)
from redline.sources import custom_id
from redline.timeline import Gatherer

GRACE_S = 30.0
# After an abort: the seconds for the user's functions, which are usually quick, and for a stream's
# permission to write an answer; then the seconds for cancelled tasks to end.
_HOOKS_END_S = 0.2
_LAST_END_S = 0.05
# The most threads for the user's functions: as many as in asyncio's default executor.
_FUNCTIONS = min(32, (os.cpu_count() or 1) + 4)
# The seconds between two checks of `longest_wait_s`.
_LOOK_S = 1.0
_MOST_SPARE_WORKERS = 1000
_LEAST_SPARE_WORKERS = 16

OnResult = Callable[[Result], Awaitable[None] | None]
OnFailure = Callable[[Result], None]
# Called with a row's key and outcome; returns whether the row's line may still be written.
Permit = Callable[[int, Outcome], Awaitable[bool]]


class Results(Protocol):
    """Receives the outcome of each row. changes: notified when `failure` changes."""

    changes: Changes

    @property
    def failure(self) -> JournalError | None:
        """The error after which no result is acknowledged any more; None if none has occurred."""
        ...

    def append(self, result: Result) -> None:
        """Takes one row's outcome. A RedlineError that it raises ends the run."""
        ...


@dataclass(kw_only=True, eq=False, repr=False)
class Runner:
    """Runs the rows of one job on one backend; `drain` and `abort` may be called at any time.

    slots: the most concurrent calls. supply: hands out the rows. source_name: the input's name in
    messages. renderer: makes a request from a row. bill: adds up the cost of replies; None if the
    cost is not computed from replies. permit: awaited before a result is saved; None if results
    need no permission. on_result: called with the result of each row that has ended; if it returns
    an awaitable, the row's worker awaits it. on_failure: called with the result of each row that
    has failed. record: records calls that have ended.
    """

    job: Job
    backend: Backend
    slots: int
    supply: Supply
    source_name: str
    renderer: Renderer
    results: Results
    load: Backpressure
    bill: Bill | None = None
    permit: Permit | None = None
    on_result: OnResult | None = None
    on_failure: OnFailure | None = None
    record: Gatherer = field(default_factory=Gatherer)
    clock: Clock = SYSTEM

    def __post_init__(self) -> None:
        job = self.job
        self._spare = max(_LEAST_SPARE_WORKERS, min(self.slots, _MOST_SPARE_WORKERS))
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[asyncio.Task[Any], Call | None] = {}
        self._handing: set[asyncio.Task[Any]] = set()
        # The pending results of `after` functions, keyed by the worker that waits for each.
        self._after: dict[asyncio.Task[Any], asyncio.Future[Any]] = {}
        self._before, self._is_http = job.hooks.before, job.call is None
        self._has_wishes = bool(job.fail_on) or job.hooks.after is not None
        # Whether each row is exactly one request, whose outcome is saved unchanged.
        self._is_plain = (
            self._before is None and self._is_http and job.task is None and not self._has_wishes
        )
        self._failures = Failures(job)
        self._succeeded = 0
        self._on_drain: Callable[[], object] | None = None
        # The monotonic time at which the run must end; inf without a deadline; None before the run.
        self.ends_s: float | None = None
        self.offered = 0
        self.ended = 0  # calls that have their outcome, on disk or not
        self.unsaved = 0  # of these, outcomes that are not saved because the run is ending
        self.is_draining = False
        self.stopped: RedlineError | None = None
        self._input_error: RedlineError | None = None
        self._is_stopped = asyncio.Event()
        # Abandoned work: one message per row.
        self.abandoned: list[str] = []
        self._threads: DaemonThreads | None = None
        self._broken: Executor | None = None  # the user's executor, if it is broken
        # The folder of the files from `_mark_of`; None until it has been created.
        self._marks: str | None = None
        self._left = asyncio.Event()
        self._is_left = False  # `_left` as a plain bool, which is faster to check for each row
        # Raised by a user's function or by the input; `run` re-raises it.
        self._exit: SystemExit | KeyboardInterrupt | None = None
        self._leaving: asyncio.Handle | None = None

    async def run(self, supply: Supply | None = None) -> None:
        """Processes rows until the input ends or the run is ended; the caller closes the journal.

        supply: hands out rows to this call of `run`; by default, the runner's own supply. Raises
        SystemExit or KeyboardInterrupt if a user's function or the input has raised it.
        """
        own = self.supply
        self.supply = own if supply is None else supply
        try:
            await self._run()
        finally:
            self.supply = own
        if self._exit is not None:
            raise self._exit

    def offer(self, rows: int) -> None:
        """Counts rows that the run begins; a negative number counts rows that it gives back."""
        self.offered += rows

    async def _run(self) -> None:
        async with self.watched():
            work = asyncio.create_task(self._work_together())
            left = asyncio.create_task(self._left.wait())
            try:
                await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    work.result()
            except asyncio.CancelledError:
                self.abort()
                await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
                raise
            finally:
                left.cancel()
                if not (work.done() or self._is_left):
                    # Cancelled a second time: the journal is closed before the workers have ended.
                    self._is_left = True
                    work.cancel()
                self._group = None
                self._tasks.clear()

    def close(self) -> None:
        """Lets the threads for the user's functions end once the functions return; never waits."""
        if self._leaving is not None:
            self._leaving.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def _work_together(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            hooks, workers = self.job.hooks, self.slots
            has_functions = hooks.before is not None or hooks.after is not None
            if has_functions or self.job.cache or self.permit:
                workers += self._spare
                self._spare = 0
            for _ in range(workers):
                self._add_worker(self._group)
        self.stop_if_input_failed()

    def stop_if_input_failed(self) -> None:
        """Stops the run if its input could not be read to the end."""
        if self._input_error is not None:
            self.stop(self._input_error)

    @asynccontextmanager
    async def watched(self, on_drain: Callable[[], object] | None = None) -> AsyncIterator[None]:
        """Within the context, ends the run at its deadline, measured from the first entry.

        Also ends the run once results are no longer acknowledged, or once it would have to wait for
        longer than `longest_wait_s`; aborts it GRACE_S after a stop. on_drain: called if the run is
        drained meanwhile.
        """
        if self.ends_s is None:
            deadline_s = self.job.deadline_s
            self.ends_s = math.inf if deadline_s is None else self.clock.now_s() + deadline_s
        self._on_drain = on_drain
        watches = [
            asyncio.create_task(self._watch(self.ends_s)),
            asyncio.create_task(self._watch_results()),
        ]
        if (most_s := self.job.longest_wait_s) is not None:
            watches.append(asyncio.create_task(self._watch_wait(most_s)))
        try:
            yield
        finally:
            self._on_drain = None
            for watch in watches:
                watch.cancel()

    def _row_waits(self) -> None:
        """Adds a spare worker, which uses the slot of a row that waits for its retry."""
        if self._spare and self._group is not None and not self.is_draining:
            self._spare -= 1
            self._add_worker(self._group)

    def drain(self) -> None:
        """Stops taking rows and starting attempts; calls on the wire finish."""
        self.is_draining = True
        self.supply.close()
        for task, call in self._tasks.items():
            if call is None:
                continue
            if call.sent_s is None:
                task.cancel()
            else:
                # The attempt on the wire keeps its own timeouts. If it fails, no retry follows.
                call.deadline_s = NO_MORE_S
        if self._on_drain is not None:
            self._on_drain()

    def abort(self) -> None:
        """Drains the run, and also cancels calls on the wire."""
        self.drain()
        for task, call in self._tasks.items():
            if call is not None or task in self._handing:
                task.cancel()
        if self._leaving is None:
            loop = asyncio.get_running_loop()
            self._leaving = loop.call_later(_HOOKS_END_S, self._end_functions)

    def _end_functions(self) -> None:
        """Stops waiting for the user's functions, except those that have just returned."""
        # A function's result may arrive in this turn of the event loop, after this timer.
        self._leaving = asyncio.get_running_loop().call_soon(self._leave_functions)

    def _leave_functions(self) -> None:
        """Cancels all tasks, except those whose `after` has returned; all get a moment to end."""
        for task in self._tasks:
            if task not in self._after or not self._after[task].done():
                task.cancel()
        self._leaving = asyncio.get_running_loop().call_later(_LAST_END_S, self._leave)

    def _leave(self) -> None:
        """Abandons the tasks that are still running although they were cancelled."""
        for task in self._tasks:
            self._abandon(task, "its call continues although it was cancelled")
            # The task may wait for permission to write its line, which would come too late.
            task.cancel()
        self.supply.leave()
        self._is_left = True
        self._left.set()

    def _abandon(self, task: asyncio.Task[Any], why: str) -> None:
        coroutine = task.get_coro()
        assert inspect.iscoroutine(coroutine)
        picked = inspect.getcoroutinelocals(coroutine).get("picked")
        name = f"row {picked.row.number}" if isinstance(picked, Picked) else "a row"
        self.abandoned.append(f"{name}: {why}")

    def stop(self, error: RedlineError) -> None:
        """Drains the run. `stopped` keeps the first error, but a JournalError replaces others."""
        is_worse = isinstance(error, JournalError) and not isinstance(self.stopped, JournalError)
        if self.stopped is None or is_worse:
            self.stopped = error
            self._is_stopped.set()
        self.drain()

    @property
    def handing(self) -> int:
        """The number of workers that wait until `on_result` has taken their result."""
        return len(self._handing)

    def sent_s(self) -> list[float]:
        """Returns the monotonic times when the requests on the wire were written."""
        calls = [call for call in self._tasks.values() if call is not None]
        return [call.sent_s for call in calls if call.sent_s is not None]

    def _is_asking(self) -> bool:
        """Whether a request of any row is on the wire, or waits to be sent."""
        return any(call is not None and call.attempts for call in self._tasks.values())

    def finishing(self) -> tuple[int, float]:
        """Returns the number of calls on the wire, and how many seconds they may still take."""
        sent_s = self.sent_s()
        ends_s = min(max(sent_s, default=0.0) + self.job.attempt_s, self.ends_s or math.inf)
        most_s = max(0.0, ends_s - self.clock.now_s())
        return len(sent_s), most_s if self.stopped is None else min(most_s, GRACE_S)

    async def request_of(self, picked: Picked) -> Request | Outcome:
        """Returns the row's request without sending it; if making it fails, the row's outcome."""
        # Only the request that this stub backend records is used.
        noted = unsent()
        outcome = await self._elsewhere(picked, Call(), noted)
        return outcome if noted.request is None else noted.request

    async def take(self, picked: Picked, outcome: Outcome) -> None:
        """Saves an outcome from elsewhere, such as a batch, as if the row had been sent here."""
        call = Call(attempts=outcome.attempts)
        outcome = await self._elsewhere(picked, call, Answered(outcome))
        await self._conclude(picked, outcome)

    async def _elsewhere(self, picked: Picked, call: Call, backend: Backend) -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        try:
            outcome = await self._ask(picked, call, backend)
        except BaseException as error:
            outcome = self._unanswered(error, call)
        if self._is_plain:
            self._pay(outcome)
        self._tasks.pop(task, None)
        return outcome

    def _add_worker(self, group: asyncio.TaskGroup) -> None:
        task = group.create_task(self._work())
        self._tasks[task] = None

    async def _watch(self, ends_s: float) -> None:
        """Aborts the run at its deadline, or GRACE_S after it was stopped."""
        left_s = None if ends_s == math.inf else ends_s - self.clock.now_s()
        try:
            async with asyncio.timeout(left_s):
                await self._is_stopped.wait()
                await asyncio.sleep(GRACE_S)
        except TimeoutError:
            hint = "with -o, the same command continues the run"
            self.stop(TimedOut("run", self.job.deadline_s, hint=hint))
        self.abort()

    async def _watch_results(self) -> None:
        """Stops the run once its results are no longer acknowledged."""
        results = self.results
        await results.changes.wait_for(lambda: results.failure is not None)
        assert results.failure is not None
        self.stop(results.failure)

    async def _watch_wait(self, most_s: float) -> None:
        """Stops the run once it would have to wait for longer than `most_s` seconds."""
        before = -1
        while True:
            await asyncio.sleep(_LOOK_S)
            in_hand = [call for call in self._tasks.values() if call is not None]
            # A row that ended without a request, such as one from the cache, is progress as well.
            has_moved, before = self.offered - len(in_hand) != before, self.offered - len(in_hand)
            if has_moved or self.is_draining or not in_hand:
                continue
            if any(call.sent_s is not None for call in in_hand):
                continue
            now_s = self.clock.now_s()
            if error := longest_wait(self.backend.load(now_s), in_hand, most_s, now_s):
                return self.stop(error)

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        large_bytes = 0
        try:
            ready, tasks, backend = self.supply.ready, self._tasks, self.backend
            job, load, record, now_s = self.job, self.load, self.record, self.clock.now_s
            row_s = job.row_deadline_s
            # Copying a Call costs half as much as making one. Any: Struct declares no `__copy__`.
            alike: Any = Call(priority=job.priority, tenant=job.tenant, on_wait=self._row_waits)
            has_permit = self.permit is not None
            is_paid_here = self._is_plain
            due_s = math.inf
            while (picked := ready.popleft() if ready else await self.next_row()) is not None:
                self.offered += 1
                begun_s = now_s()
                if len(picked.row.content) >= LARGE_ROW_BYTES:
                    large_bytes = len(picked.row.content)
                    load.add(large_bytes)
                call: Call = alike.__copy__()
                tasks[task] = call
                if row_s is not None:
                    due_s = call.deadline_s = begun_s + row_s
                try:
                    outcome = await self._ask(picked, call, backend)
                except BaseException as error:
                    outcome = self._unanswered(error, call)
                if is_paid_here and self.bill is not None:
                    self._pay(outcome)
                self.ended = ended = self.ended + 1
                if not (tried := outcome.tried):
                    record.took_untried(ended, now_s() - begun_s)
                elif ended >= record.due:
                    record.took(ended, (begun_s, now_s(), tried))
                if self._is_left:
                    # This worker was abandoned, and its journal is closed.
                    return
                tasks[task] = None
                if outcome.error is None and not has_permit:
                    if (handing := self._save(picked, outcome)) is not None:
                        await handing
                elif call.deadline_s == due_s or not self._drops(outcome, due_s):
                    await self._conclude(picked, outcome)
                # The request and the answer must not stay in memory while this worker waits.
                del picked, outcome, tried
                if call.held is not None:
                    call.let_go()
                if large_bytes:
                    load.remove(large_bytes)
                    large_bytes = 0
        except asyncio.CancelledError:
            # Only a draining run cancels its workers one by one; their rows stay unfinished.
            if not self.is_draining:
                raise
        except (Unblocked, SystemExit, KeyboardInterrupt) as error:
            self._end_for(error, task)
        finally:
            self._tasks.pop(task, None)
            if large_bytes:
                self.load.remove(large_bytes)

    def _end_for(
        self, error: Unblocked | SystemExit | KeyboardInterrupt, task: asyncio.Task[Any]
    ) -> None:
        if isinstance(error, Unblocked):
            self._abandon(task, "it blocked the event loop")
            self.drain()
        else:
            # An exit that escaped its task would end the event loop before the output is closed.
            self._exit = self._exit or error
            self.abort()

    async def next_row(self) -> Picked | None:
        """Returns the next row; None at the end, or if reading failed.

        If reading fails, the rows read before still finish, because the input may be unable to
        deliver them again. Only then does the error end the run.
        """
        try:
            return None if self.is_draining else await self.supply.next()
        except RedlineError as error:
            failure = error
        except BaseException as error:
            if ends_task(error):
                raise
            # Raised by the user's own iterable.
            first = first_of(error)
            what = f"reading {self.source_name} raised {type(first).__name__}: {first}"
            failure = ConfigError(what, where=f"after {counted(self.supply.rows_read, 'row')}")
            failure.__cause__ = error
        self._input_error = self._input_error or failure
        return None

    def _drops(self, outcome: Outcome, due_s: float) -> bool:
        """Whether to drop a call that ended before its deadline `due_s`, because the run is ending.

        Counts such a call in `unsaved`.
        """
        error = outcome.error
        is_late = isinstance(error, TimedOut) and error.phase == "row"
        is_cut_short = is_late and self.clock.now_s() < due_s
        self.unsaved += is_cut_short
        return is_cut_short

    def _ask(self, picked: Picked, call: Call, backend: Backend) -> Awaitable[Outcome]:
        """Returns a row's outcome as an awaitable. Raises Rejected if no request can be made."""
        found = picked.row
        row = found.data
        if row is None or found.problem is not None or picked.is_duplicate:
            raise _unusable(picked)
        if self._is_plain:
            return backend.send(self.renderer.request(row), call)
        return self._ask_between(row, call, backend)

    async def _ask_between(self, row: dict[str, Any], call: Call, backend: Backend) -> Outcome:
        """Returns the outcome of a row in a job with a task, `before`, `after` or `fail_on`."""
        if self._before is not None:
            # A copy, so that the user's function cannot change the row that is recorded.
            row = await self._in_executor(self._before, copy.deepcopy(row), "before")
            if not isinstance(row, dict):
                kind = type(row).__name__
                raise Rejected(f"the `before` function returned a value of type {kind}, not a dict")
        request = self.renderer.request(row) if self._is_http else Request(body=row)
        task_of_job = self.job.task
        if task_of_job is None:
            outcome = await backend.send(request, call)
            self._pay(outcome, request)
        else:
            ask = Ask(backend, call, self._pay)
            outcome = await task_of_job.do(row, request, ask)
            outcome.tried = ask.tried
        if self._has_wishes and outcome.is_success and outcome.reply is not None:
            # The row is answered: a drain no longer cancels it, and an abort only after a moment.
            task = asyncio.current_task()
            assert task is not None
            self._tasks[task] = None
            await self._finish(outcome, outcome.reply)
        return outcome

    def _unanswered(self, error: BaseException, call: Call) -> Outcome:
        """Returns the outcome of a row whose processing raised `error`.

        Re-raises `error` if it ends the task, or cancels the row's call during a drain.
        """
        # In a drain, a row whose call was cancelled for any reason is left for the next run.
        is_cut = self.is_draining and isinstance(error, asyncio.CancelledError)
        if is_cut or ends_task(error):
            raise error
        if isinstance(error, Rejected):
            # The frames of its traceback would keep the row and the worker in memory.
            rejected = error.with_traceback(None)
        else:
            # The row boundary: a defect in a template, or in the reading of a reply, fails only its
            # row.
            rejected = Rejected(f"processing the row raised {type(error).__name__}: {error}")
        return Outcome(status="rejected", error=rejected, attempts=call.attempts)

    def _pay(self, outcome: Outcome, request: Request | None = None) -> None:
        """Adds the cost of an answer to the bill, even if its row is sent again.

        request: the request that was answered, such as a judge's; None if its model is the job's.
        """
        if self.bill is not None and outcome.reply is not None and not outcome.is_cached:
            model = None if request is None else request.model
            reply, is_batched = outcome.reply, outcome.is_batched
            is_known = self.bill.add(reply, outcome.endpoint, model, is_batched=is_batched)
            self.bill = self.bill if is_known else None

    async def _finish(self, outcome: Outcome, reply: Reply) -> None:
        """Applies the job's `fail_on` and the user's `after` function to a success."""
        if reasons := _unwanted(reply.finish_reasons, self.job.fail_on):
            outcome.status = "rejected"
            outcome.error = Rejected(reasons)
        elif self.job.hooks.after is not None:
            try:
                reply.output = await self._in_executor(self.job.hooks.after, reply.output, "after")
            except Rejected as error:
                # The answer has been paid for: it stays in the outcome and in the failure's line.
                outcome.status, outcome.error = "rejected", error

    async def _in_executor(self, function: Callable[[Any], Any], value: Any, name: str) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        executor = self.job.hooks.executor
        if executor is None:
            executor = self._threads = self._threads or DaemonThreads(
                _FUNCTIONS, "redline-function"
            )
        work = _Work(function, self._mark_of(task, executor))
        returned: asyncio.Future[Any] | None = None
        try:
            returned = loop.run_in_executor(executor, work, value)
            if name == "after":
                self._after[task] = returned
            return await returned
        except _Raised as error:
            # The row boundary: a defect in the user's function fails its row, not the run.
            raise Rejected(f"the `{name}` function raised {error}") from error.__cause__
        except BaseException as error:
            what = f"{type(error).__name__}: {error}"
            is_broken = isinstance(error, BrokenExecutor)
            if returned is None or is_broken or (executor is self._broken and ends_task(error)):
                self._stop_broken(executor, f"`{name}` function: {what}")
                if not work.is_marked:
                    # The function was not running: this row and all that follow stay unfinished.
                    raise asyncio.CancelledError from error
                # The function was running, and may have ended its process. So the row fails:
                # otherwise it might break every later run.
                raise Rejected(
                    f"the executor broke while it ran the `{name}` function",
                    hint="another row may have broken it: use an executor with one process to find "
                    "out which",
                ) from error
            is_own = executor is self._threads
            if isinstance(error, KeyboardInterrupt) and self.is_draining and not is_own:
                # The Ctrl-C that drains the run has also reached the process of the function.
                raise asyncio.CancelledError from error
            if ends_task(error):
                # Whether the function is running in a process of the user's pool is unknown here.
                may_run = work.is_running or not is_own
                if may_run and isinstance(error, asyncio.CancelledError):
                    self._abandon(task, f"the `{name}` function has not returned")
                raise
            # The result of the function, for example, cannot be pickled.
            raise Rejected(f"the `{name}` function raised {what}") from error
        finally:
            self._after.pop(task, None)

    def _stop_broken(self, executor: Executor, what: str) -> None:
        self._broken = executor
        self.stop(
            ConfigError(
                f"the executor cannot run the {what}",
                hint="pass a new executor and make the same call again; it processes the "
                "remaining rows",
            )
        )

    def _mark_of(self, task: asyncio.Task[Any], executor: Executor) -> Path | None:
        """Returns the path of a file that exists while the task's function runs in the executor.

        Returns None for redline's own threads, or if no temporary folder can be created.
        """
        if executor is self._threads:
            return None
        if self._marks is None:
            with suppress(OSError):
                from tempfile import mkdtemp

                self._marks = mkdtemp(prefix="redline-")
                weakref.finalize(self, shutil.rmtree, self._marks, ignore_errors=True)
        return None if self._marks is None else Path(self._marks, f"{id(task)}")

    async def _conclude(self, picked: Picked, outcome: Outcome) -> None:
        """Saves the outcome, unless its error stops the run or another run has claimed the row."""
        error = outcome.error
        if error is not None:
            error.where = self._where(picked, outcome)
            if error.stops_run:
                self.unsaved += 1
                self.stop(error)
                return
        if self.permit is not None and not await self._is_permitted(picked, outcome):
            return
        if error is not None:
            is_early = not outcome.attempts and not self._succeeded and self._is_asking()
            failed = self._failures.failed
            if reason := failed(error, self._succeeded, begun=self.offered, is_early=is_early):
                self.stop(reason)
        if (handing := self._save(picked, outcome)) is not None:
            await handing

    def _save(self, picked: Picked, outcome: Outcome) -> Awaitable[None] | None:
        """Hands the outcome to the journal; returns an awaitable if `on_result` returned one."""
        result = Result(picked.row, picked.key, picked.custom_id, outcome, picked.mark)
        try:
            self.results.append(result)
        except RedlineError as journal_error:
            self.stop(journal_error)
            return None
        # `append` has turned a success that cannot be written into a failure.
        if outcome.error is None:
            self._succeeded += 1
        elif self.on_failure is not None:
            self.on_failure(result)
        if self.on_result is None:
            return None
        result.name_outcome()
        handing = self.on_result(result)
        # The result is saved; only an abort interrupts the wait until it is taken.
        return None if handing is None else self._until_aborted(handing)

    async def _is_permitted(self, picked: Picked, outcome: Outcome) -> bool:
        assert self.permit is not None
        try:
            is_permitted = await self.permit(picked.key, outcome)
        except RedlineError as error:
            self.stop(error)
            return False
        # Without permission, the row belongs to another run, which counts it.
        self.offered -= not is_permitted
        return is_permitted

    async def _until_aborted(self, work: Awaitable[None]) -> None:
        """Awaits `work`; an abort interrupts this, a drain does not."""
        task = asyncio.current_task()
        assert task is not None
        self._handing.add(task)
        try:
            await work
        finally:
            self._handing.discard(task)

    def _where(self, picked: Picked, outcome: Outcome) -> str:
        parts = [f"{self.source_name}:{picked.row.line}"]
        if outcome.endpoint:
            parts.append(f"endpoint {outcome.endpoint}")
        if outcome.attempts:
            most = self.job.retry.max_retries + 1
            # Attempts whose failure was not the row's fault do not count against its retries.
            of = f" of {most}" if outcome.attempts <= most else ""
            parts.append(f"attempt {outcome.attempts}{of}")
        return ", ".join(parts)


class _Raised(Exception):
    """Raised in place of a user's exception, which it describes.

    A future cannot hold a StopIteration, and an exception that cannot be unpickled would break a
    pool of processes.
    """


class _Work:
    """Calls a user's function, and records whether it is running.

    Raises _Raised if the function raises; exceptions that end the process pass unchanged.
    mark: a file that exists while the function runs, even in another process of this machine; None
    for no file.
    """

    def __init__(self, function: Callable[[Any], Any], mark: Path | None) -> None:
        self._function = function
        self._mark = mark
        self.is_running = False

    @property
    def is_marked(self) -> bool:
        return self._mark is not None and self._mark.exists()

    def __call__(self, value: Any) -> Any:
        self.is_running = True
        with suppress(OSError):
            if self._mark is not None:
                self._mark.touch()
        try:
            return self._function(value)
        except (SystemExit, KeyboardInterrupt, Unblocked):
            raise
        except BaseException as error:
            raise _Raised(f"{type(error).__name__}: {error}") from error
        finally:
            self.is_running = False
            with suppress(OSError):
                if self._mark is not None:
                    self._mark.unlink()


def _unusable(picked: Picked) -> BadRow:
    """Returns the error of a row that cannot be read or repeats an earlier row's custom_id."""
    row = picked.row
    if row.problem is not None:
        return BadRow(
            row.problem if row.data is not None else f"the row cannot be read: {row.problem}"
        )
    return BadRow(
        f"an earlier row has the same custom_id: {custom_id(row)}",
        hint="a custom_id identifies a row, so each may occur only once",
    )


def _unwanted(reasons: list[str | None], fail_on: Container[str]) -> str:
    """Describes the choices whose finish reason is in `fail_on`; empty if there are none."""
    flaws = []
    for number, reason in enumerate(reasons):
        if reason and reason in fail_on:
            flaw = f"{FAIL_ON[reason]} ({reason})"
            flaws.append(flaw if len(reasons) == 1 else f"choice {number}: {flaw}")
    return "; ".join(flaws)
