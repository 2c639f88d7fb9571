"""Snapshots of a run, their one line, and how often it is shown."""

from __future__ import annotations

import asyncio
import io
import json
import math
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from redline.calls import Endpoint
from redline.calls.cost import DOLLAR, Allowance
from redline.clock import SYSTEM
from redline.events import (
    EndpointBack,
    EndpointDegraded,
    EndpointLost,
    EndpointOut,
    EndpointParked,
    EndpointRecovered,
)
from redline.job.settings import Job
from redline.job.show import (
    InputCounts,
    JsonProgress,
    Meter,
    PlainProgress,
    Snapshot,
    TerminalProgress,
    failing,
    finishing,
    line_of,
    outage_now,
    outages_ended,
)
from redline.job.work import Outages, Spent, Tally
from redline.journal import Brief, all_flawed
from redline.process import duration, end_tasks
from redline.testing import ManualClock, virtual_run
from redline.timeline import Totals, Window
from redline.waist import CacheUse


class Books:
    """What a meter reads of a bill."""

    def __init__(self) -> None:
        self.spent = Spent(allowance=Allowance())

    def read(self) -> Spent:
        return self.spent


def view(rows: int | None = None) -> Any:
    """What a display sees of a run over so many rows; None where nobody knows how many."""
    runner = SimpleNamespace(
        is_draining=False, stopped=None, ended=0, unsaved=0, finishing=lambda: (3, 90.0)
    )
    parts = {"tally": Tally(), "rows_skipped": 0, "runner": runner, "bill": Books()}
    parts["sampler"] = SimpleNamespace(windows=[], slots=0)
    parts["found_limits"] = list
    parts["alerts"] = SimpleNamespace(firing=[])
    parts["telemetry_notices"] = {}
    seen = SimpleNamespace(**parts, job=Job(rows=[], call=print), source_name="in.jsonl", rows=rows)

    def counts() -> InputCounts:
        tally = seen.tally
        return InputCounts(
            rows=tally.saved if seen.rows is None else seen.rows,
            done=tally.succeeded,
            failed=tally.failed,
            is_exact=seen.rows is not None,
        )

    seen.counts = counts
    seen.flawed = lambda: dict(seen.tally.flawed)
    return seen


def went_on(seen: Any, for_s: float) -> None:
    """The sampler has a window of that long, in which the rows ended that have."""
    done = seen.tally.saved
    totals = Totals(rows=seen.rows, done=done)
    window = Window(
        begin_s=0.0, end_s=for_s, samples=10, done=done, held={"slots": 10}, totals=totals
    )
    seen.sampler.windows.append(window)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "under 0.1 s"),
        (0.099, "under 0.1 s"),
        (0.1, "0.1 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 m 00 s"),
        (3599, "59 m 59 s"),
        (3600, "1 h 00 m"),
        (7 * 3600 + 125, "7 h 02 m"),
        (86_400, "1 d 00 h"),
        (3 * 86_400 + 5 * 3600, "3 d 05 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_snapshot_at_the_beginning() -> None:
    found = Meter(view(), ManualClock()).read()
    assert (found.done, found.failed, found.left, found.eta_s) == (0, 0, None, None)
    assert (found.rows_per_s, found.fraction, found.elapsed_s) == (0.0, None, 0.0)


def test_rates_and_the_time_left() -> None:
    clock, seen = ManualClock(), view(100)
    meter = Meter(seen, clock)
    clock.advance(2.0)
    seen.tally.succeeded, seen.tally.failed = 18, 2
    seen.tally.input_tokens, seen.tally.output_tokens = 300, 100
    went_on(seen, 2.0)
    found = meter.read()
    assert (found.rows_per_s, found.tokens_per_s) == (10.0, 200.0)
    assert (found.left, found.eta_s, found.fraction) == (80, 8.0, 0.2)
    clock.advance(0.5)
    assert meter.read().eta_s == 7.5
    # The run stands still: the time that is left does not grow less.
    seen.tally.on_event(EndpointLost(clock.now_s() - 5.0, "lab", "no name"))
    clock.advance(3.0)
    found = meter.read()
    assert (found.eta_s, found.is_on_hold) == (8.0, True)


def test_readings_at_one_moment_count_as_the_last_of_them() -> None:
    clock, seen = ManualClock(), view()
    meter = Meter(seen, clock)
    meter.read()
    clock.advance(1.0)
    seen.tally.succeeded = 10
    assert meter.read().rows_per_s == meter.read().rows_per_s == 10.0


def test_a_steady_rate_is_read_as_it_is_and_a_new_one_is_followed() -> None:
    clock, seen = ManualClock(), view()
    meter = Meter(seen, clock)
    for _ in range(100):
        clock.advance(0.5)
        seen.tally.succeeded += 10
        steady = meter.read().rows_per_s
    assert steady == pytest.approx(20.0)
    for _ in range(100):
        clock.advance(0.5)
        slower = meter.read().rows_per_s
    assert 0 <= slower < 0.5


@pytest.mark.parametrize("every_s", [0.5, 1.0, 3.0, 7.0])
def test_a_rate_is_of_the_last_ten_seconds_however_often_it_is_read(every_s: float) -> None:
    clock, seen = ManualClock(), view()
    meter = Meter(seen, clock)
    for _ in range(math.ceil(30 / every_s)):
        clock.advance(every_s)
        seen.tally.succeeded += round(10 * every_s)
        found = meter.read().rows_per_s
        assert found == pytest.approx(10.0)
    passed_s = 0.0
    while passed_s < 9.0:
        clock.advance(every_s)
        passed_s += every_s
        assert meter.read().rows_per_s == pytest.approx(10.0 - passed_s, abs=1e-6)
        if passed_s + every_s > 10.0:
            break


def test_answers_that_are_not_on_disk_yet_cost_no_row_more_but_rows_given_up_do() -> None:
    seen = view(100)
    tally = seen.tally
    tally.succeeded, seen.runner.ended, seen.runner.unsaved = 10, 30, 10
    tally.input_tokens, tally.output_tokens = 1_500, 500
    seen.bill.spent = Spent(allowance=Allowance(), picodollars=20 * DOLLAR, here=20 * DOLLAR)
    found = Meter(seen, ManualClock()).read()
    assert (found.tokens_per_row, found.expected_usd) == (100.0, 100.0)


def test_the_bar_never_goes_backwards() -> None:
    seen = view(10)
    meter = Meter(seen, ManualClock())
    seen.tally.succeeded = 8
    assert meter.read().fraction == 0.8
    seen.rows = 100  # written to the file while it is read
    assert (meter.read().fraction, meter.read().left) == (0.8, 92)
    seen.tally.succeeded = 90
    assert meter.read().fraction == 0.9


def snapshot(**changes: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "elapsed_s": 1.0,
        "done": 1200,
        "failed": 3,
        "skipped": 0,
        "in_flight": 64,
        "retrying": 2,
        "left": 98_797,
        "input": InputCounts(rows=100_000, done=1200, failed=3),
        "rows_per_s": 20.04,
        "tokens_per_s": 5123.4,
        "rate_limited": 1,
        "parked_s": 0.0,
        "eta_s": 4940.0,
        "fraction": 0.01,
        "is_draining": False,
    }
    return Snapshot(**{**fields, **changes})


def test_a_line_says_it_all() -> None:
    assert line_of(snapshot()) == (
        "100,000 rows: 1,200 done, 3 failed, 98,797 left, 2 retrying, 64 in flight, 20.0 rows/s, "
        "5,123 tokens/s, 1 x 429, ETA 1 h 22 m"
    )
    least = InputCounts(rows=1300, done=1205, failed=3, is_exact=False)
    assert line_of(snapshot(skipped=5, input=least, left=None, eta_s=None)).startswith(
        "at least 1,300 rows: 1,205 done (5 before), 3 failed, at least 92 left, 2 retrying, "
    )
    use = CacheUse(hits=1000, shared=204, misses=1000, passed=1050)
    assert ", 1 x 429, 1,204 cached (37 %), ETA " in line_of(snapshot(cache=use))
    assert line_of(snapshot(parked_s=12.0)).endswith(
        ", endpoint asked redline to wait another 12 s, ETA 1 h 22 m"
    )


def shown(display: Any, seen: Any, for_s: float, drains_at_s: float | None = None) -> None:
    """Lets a display show for a while of virtual time."""

    async def watch() -> None:
        task = asyncio.create_task(display.show(seen))
        if drains_at_s is not None:
            await asyncio.sleep(drains_at_s)
            seen.runner.is_draining = True
            await asyncio.sleep(for_s - drains_at_s)
        else:
            await asyncio.sleep(for_s)
        task.cancel()
        await asyncio.wait([task])

    virtual_run(watch())


def test_what_the_cache_had_is_counted_and_shown() -> None:
    seen = view()
    use = seen.tally.cache_use
    assert seen.tally.cache is None
    for found in ("hit", "miss", "shared", "shared", "passed", "hit"):
        use.count(found)
    assert seen.tally.cache == CacheUse(hits=2, shared=2, misses=1, passed=1)
    assert Meter(seen, ManualClock()).read().cache is seen.tally.cache
    stream = io.StringIO()
    shown(JsonProgress(stream), seen, 11.0)
    told = json.loads(stream.getvalue())["cache"]
    assert told == {"hits": 2, "shared": 2, "misses": 1, "passed": 1}


def test_plain_lines_come_every_10_s() -> None:
    stream = io.StringIO()
    shown(PlainProgress(stream), view(), 31.0)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("0 done, 0 failed, 0 retrying, 0 in flight, ") for line in lines)


def test_a_line_comes_at_once_when_the_run_begins_to_drain() -> None:
    stream = io.StringIO()
    shown(PlainProgress(stream), view(), 4.0, drains_at_s=1.2)
    counts, notice = stream.getvalue().splitlines()
    assert counts.startswith("0 done, 0 failed, ")
    assert notice == (
        "interrupted: finishing 3 calls, for at most 1 m 30 s; press Ctrl-C again to drop the calls"
    )


def test_an_outage_is_told_at_once_and_then_with_each_line() -> None:
    stream, seen = io.StringIO(), view()
    what = "no connection: 127.0.0.1:8000: Connection refused"
    seen.tally.on_event(EndpointLost(SYSTEM.now_s() - 60.0, "lab", what))
    shown(PlainProgress(stream), seen, 12.0)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("endpoint lab has refused connections for 1 m 0")
    assert lines[1].endswith(" s; retrying, nothing is lost")
    seen.tally.on_event(EndpointBack(SYSTEM.now_s(), "lab"))
    assert Meter(seen).read().notices == {}
    outages = seen.tally.outages(SYSTEM.now_s() + 100.0)
    assert (outages.down_s, round(outages.lasted_s)) == (0.0, 60)


def test_a_proxy_that_refuses_connections_is_not_taken_for_the_endpoint() -> None:
    reason = "no connection: the proxy 127.0.0.1:3128: Connection refused"
    assert outage_now(Outages("lab", reason, 9.0, 9.0)) == (
        f"endpoint lab has been unreachable ({reason}) for 9.0 s; retrying, nothing is lost"
    )


def test_one_failure_or_a_moment_is_no_trouble() -> None:
    assert outage_now(Outages("lab", "refused", 0.5, 0.5)) is None
    assert outages_ended(Outages("lab", "refused", 0.5, 0.0)) is None
    assert failing(1, 60.0) is None
    assert failing(9, 0.5) is None
    assert outage_now(Outages("lab", "no name", 70.0, 3.0), tries_again=False) == (
        "endpoint lab has been unreachable (no name) for 3.0 s"
    )
    assert outage_now(Outages("lab", "no name", 70.0, 3.0)) == (
        "endpoint lab has been unreachable (no name) for 3.0 s; retrying, nothing is lost"
    )
    assert outages_ended(Outages("lab", "no name", 70.0, 3.0)) == (
        "endpoint lab has been unreachable (no name) for the last 3.0 s, for 1 m 10 s in all"
    )
    assert outages_ended(Outages("lab", "no name", 70.0, 0.0)) == (
        "endpoint lab was unreachable (no name) for 1 m 10 s"
    )


def test_what_is_finished_while_a_run_ends() -> None:
    assert (
        finishing(1, 5.0, is_interrupted=False) == "stopping: finishing 1 call, for at most 5.0 s"
    )
    assert finishing(0, 0.0, is_interrupted=True) == "interrupted: saving finished rows"


def test_flawed_answers_are_counted_beside_those_done() -> None:
    seen = view(100)
    seen.tally.rows_saved(9, 1, {"length": 8})
    found = Meter(seen, ManualClock()).read()
    assert line_of(found).startswith(
        "100 rows: 9 done, 1 failed, 90 left, of the rows done, 8 cut by max_tokens, 0 retrying, "
    )
    assert found.notices == {}
    seen.tally.rows_saved(1, 0, {})
    assert Meter(seen, ManualClock()).read().notices == {}


def test_a_run_of_flawed_answers_alone_is_warned_of() -> None:
    assert all_flawed(9, {"length": 9}) is None
    assert all_flawed(10, {"length": 9}) is None
    assert all_flawed(1234, {"empty": 1000, "length": 234}) == (
        "warning: all 1,234 answers so far are empty or cut by max_tokens: raise --max-tokens"
    )


def test_a_server_that_has_become_silent_is_told() -> None:
    clock, seen = ManualClock(), view(100)
    meter = Meter(seen, clock)
    begun_s = clock.now_s()
    seen.runner.sent_s = lambda: [begun_s + 1.0, begun_s + 3.0]
    seen.tally.in_flight = 2
    clock.advance(10.5)
    assert meter.read().notices == {}
    clock.advance(1.0)
    told = {
        "silence": "no answer for 10 s, 2 calls in flight; a call times out after 10 m 00 s "
        "(--timeout)"
    }
    assert meter.read().notices == told
    assert meter.read().eta_s is None
    # The slowest answer took 8 s: twice that is no silence yet.
    seen.tally.ended(clock.now_s(), 8.0, None)
    seen.tally.in_flight = 2
    clock.advance(15.0)
    assert meter.read().notices == {}
    clock.advance(2.0)
    assert list(meter.read().notices) == ["silence"]
    seen.tally.on_event(EndpointLost(clock.now_s() - 2.0, "lab", "no name"))
    assert list(meter.read().notices) == ["outage"]
    # What was sent a moment ago is not waited for.
    seen.tally.on_event(EndpointBack(clock.now_s(), "lab"))
    seen.runner.sent_s = lambda: [clock.now_s() - 1.0]
    assert meter.read().notices == {}


def test_failures_in_a_row_end_with_any_answer() -> None:
    tally = Tally()
    for error in ("server_failed", "disconnected", "cancelled"):
        tally.ended(5.0, 1.0, error)
    assert (tally.failures_in_a_row, tally.failing_since_s) == (2, 5.0)
    tally.ended(6.0, 1.0, "rate_limited")
    assert tally.failures_in_a_row == 0
    tally.ended(7.0, 1.0, "timed_out")
    tally.ended(8.0, 1.0, None)
    assert (tally.failures_in_a_row, tally.failing_since_s) == (0, math.inf)


def test_the_last_error_is_shown_whether_its_row_is_tried_again_or_not() -> None:
    clock, seen = ManualClock(), view(100)
    meter = Meter(seen, clock)
    windows = [
        Window(begin_s=0.0, end_s=1.0, errors={"rejected": 1}, error="HTTP 400"),
        Window(begin_s=1.0, end_s=2.0),
    ]
    seen.sampler.windows += windows
    seen.tally.started()
    seen.tally.ended(0.5, 0.1, "rejected")
    found = meter.read()
    assert (found.errors, found.last_error) == ({"rejected": 1}, "HTTP 400")


def test_json_lines_hold_the_snapshot() -> None:
    stream = io.StringIO()
    shown(JsonProgress(stream), view(), 21.0)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["progress", "progress"]
    assert set(lines[0]) == {"event", *Snapshot.__struct_fields__}


def test_the_terminal_shows_the_file_and_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    stream, seen = io.StringIO(), view(4)
    seen.tally.succeeded = 1
    shown(TerminalProgress(stream), seen, 2.0)
    text = stream.getvalue()
    assert "in.jsonl" in text
    assert "25.0 %" in text
    assert "1 of 4 done      0 failed" in text


def test_a_terminal_that_takes_nothing_does_not_hold_up_the_run() -> None:
    is_asked, is_read = threading.Event(), threading.Event()

    class Stalled(io.StringIO):
        def write(self, text: str) -> int:
            is_asked.set()
            is_read.wait(5.0)
            return super().write(text)

    stream = Stalled()

    async def main() -> float:
        begun_s = time.monotonic()
        showing = asyncio.create_task(TerminalProgress(stream).show(view(4)))
        await asyncio.to_thread(is_asked.wait, 5.0)
        took_s = time.monotonic() - begun_s
        is_read.set()
        await end_tasks(showing)
        return took_s

    assert asyncio.run(main()) < 4.0
    assert stream.getvalue().endswith("\x1b[J")


def test_a_logger_may_keep_a_lock_for_each_stream_while_the_view_is_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)

    async def main() -> None:
        showing = asyncio.create_task(TerminalProgress(io.StringIO()).show(view(4)))
        await asyncio.sleep(1.0)
        assert sys.stdout is not terminal
        locks = {sys.stdout: "lock", terminal: "another"}
        assert locks[sys.stdout] == "lock"
        await end_tasks(showing)

    virtual_run(main())
    assert sys.stdout is terminal


def test_what_is_spent_and_what_all_will_cost() -> None:
    clock, seen = ManualClock(), view(100)
    seen.tally.succeeded = 20
    allowance = Allowance(picodollars=5 * DOLLAR)
    seen.bill.spent = Spent(allowance=allowance, picodollars=DOLLAR, here=DOLLAR // 2)
    found = Meter(seen, clock).read()
    assert (found.spent_usd, found.expected_usd, found.spent_tokens) == (1.0, 3.0, None)
    assert "spent $1.00 of $5.00, about $3.00 in all" in line_of(found)


def test_what_this_run_alone_has_spent_is_named_so() -> None:
    seen = view()
    seen.rows, seen.tally.succeeded, seen.rows_skipped = 100, 20, 5
    seen.bill.spent = Spent(allowance=Allowance(), picodollars=DOLLAR, here=DOLLAR)
    line = line_of(Meter(seen, ManualClock()).read())
    assert "spent $1.00 by this run, about $5.00 with the rows left" in line


def test_tokens_that_are_spent() -> None:
    seen = view()
    seen.bill.spent = Spent(allowance=Allowance(tokens=2000), tokens=1234)
    line = line_of(Meter(seen, ManualClock()).read())
    assert "spent 1,234 of 2,000 tokens" in line
    assert "in all" not in line


def test_nothing_is_said_of_a_cost_that_nobody_knows() -> None:
    assert "spent" not in line_of(Meter(view(), ManualClock()).read())


def fleet() -> Any:
    """What a display sees of a run with the endpoints a and b."""
    seen = view(100)
    endpoints = [Endpoint(base_url=f"http://{name}.example/v1", name=name) for name in "ab"]
    seen.job = Job(rows=[], endpoints=tuple(endpoints))
    seen.tally.expect("ab")
    return seen


def test_one_of_several_endpoints_that_is_down_is_no_standstill() -> None:
    seen, clock = fleet(), ManualClock()
    meter = Meter(seen, clock)
    what = "no connection: 127.0.0.1:8000: Connection refused"
    seen.tally.on_event(EndpointLost(clock.now_s(), "a", what))
    clock.advance(5.0)
    seen.tally.rows_saved(10, 0, {})
    went_on(seen, 5.0)
    found = meter.read()
    assert not found.is_on_hold
    assert found.notices == {
        "degraded": "endpoint a has refused connections for 5.0 s; retrying, nothing is lost; "
        "1 of 2 endpoints is down"
    }
    assert found.eta_s is not None
    seen.tally.on_event(EndpointLost(clock.now_s(), "b", what))
    clock.advance(5.0)
    found = meter.read()
    assert list(found.notices) == ["outage"]
    assert found.is_on_hold
    # The one that is back does not end the outage of the other.
    seen.tally.on_event(EndpointBack(clock.now_s(), "a"))
    assert "endpoint b has refused connections for 5.0 s" in meter.read().notices["degraded"]
    a, b = seen.tally.endpoints(clock.now_s())
    assert (a.outages.lasted_s, a.outages.down_s) == (10.0, 0.0)
    assert (b.outages.lasted_s, b.outages.down_s) == (5.0, 5.0)


def test_an_endpoint_has_answered_the_rows_that_succeeded_there_in_this_run() -> None:
    seen = fleet()
    rows = [
        Brief(1, None, "succeeded", False, "a", "stop", 1.0),
        Brief(2, None, "succeeded", False, "b", "stop", 1.0),
        Brief(3, None, "succeeded", False, "a", "stop", 1.0),
        Brief(4, None, "succeeded", True, "a", "stop", None),
        Brief(5, None, "rejected", False, "b", None, 1.0),
        Brief(6, None, "exhausted", False, "", None, None),
    ]
    seen.tally.rows_answered(rows)
    seen.tally.rows_answered(rows[:1])
    assert [one.answered for one in seen.tally.endpoints(0.0)] == [3, 1]


def test_a_run_is_told_to_wait_when_every_endpoint_that_is_left_is() -> None:
    seen, clock = fleet(), ManualClock()
    seen.tally.on_event(EndpointParked(clock.now_s(), "a", 30.0))
    assert Meter(seen, clock).read().parked_s == 0.0
    seen.tally.on_event(EndpointParked(clock.now_s(), "b", 10.0))
    found = Meter(seen, clock).read()
    assert found.parked_s == 10.0
    assert found.notices == {
        "waiting": "every endpoint in use asked redline to wait; no call is sent for another 10 s"
    }
    seen.tally.on_event(EndpointOut(clock.now_s(), "b", "refused", 1, 2))
    found = Meter(seen, clock).read()
    assert found.parked_s == 30.0
    assert found.notices["waiting"] == (
        "every endpoint in use asked redline to wait; no call is sent for another 30 s"
    )


def test_an_endpoint_that_fails_is_named_until_it_works() -> None:
    seen, clock = fleet(), ManualClock()
    meter = Meter(seen, clock)
    seen.tally.on_event(EndpointDegraded(clock.now_s(), "b", "HTTP 500: boom"))
    clock.advance(3.0)
    # Its warm-up fails: it has failed all the time.
    seen.tally.on_event(EndpointDegraded(clock.now_s(), "b", "HTTP 503: busy"))
    clock.advance(4.0)
    seen.tally.rows_saved(10, 0, {})
    went_on(seen, 7.0)
    found = meter.read()
    assert not found.is_on_hold
    assert found.notices == {
        "failing endpoint": "endpoint b has failed for 7.0 s: HTTP 503: busy; it gets few calls "
        "until it recovers"
    }
    assert found.eta_s is not None
    seen.tally.on_event(EndpointDegraded(clock.now_s(), "a", "HTTP 500: boom"))
    assert meter.read().notices["failing endpoint"].endswith("; 2 of 2 endpoints are failing")
    for name in "ab":
        seen.tally.on_event(EndpointRecovered(clock.now_s(), name))
    assert meter.read().notices == {}
    a, b = seen.tally.endpoints(clock.now_s())
    assert (a.failing.lasted_s, b.failing.lasted_s) == (0.0, 7.0)
    # One that is taken out fails no more.
    seen.tally.on_event(EndpointDegraded(clock.now_s(), "b", "HTTP 500: boom"))
    seen.tally.on_event(EndpointOut(clock.now_s(), "b", "refused", 1, 2))
    clock.advance(4.0)
    assert "failing endpoint" not in meter.read().notices


def test_that_telemetry_is_out_of_reach_is_told_once() -> None:
    stream, seen = io.StringIO(), view(rows=9)
    seen.telemetry_notices = {"telemetry 1": "OpenTelemetry at h is out of reach: HTTP 503"}
    shown(PlainProgress(stream), seen, 31.0)
    assert stream.getvalue().count("is out of reach") == 1


def test_an_endpoint_that_is_taken_out_is_told_once() -> None:
    stream, seen = io.StringIO(), fleet()
    seen.tally.on_event(EndpointOut(0.0, "b", "the endpoint refused the key: HTTP 401", 1, 2))
    shown(PlainProgress(stream), seen, 31.0)
    notice = (
        "endpoint b was removed from the run: the endpoint refused the key: HTTP 401; "
        "1 of 2 is left\n"
    )
    assert stream.getvalue().count(notice) == 1
    assert stream.getvalue().splitlines()[1] == notice.strip()
    # On a terminal, whose lines are drawn again, it stays.
    assert Meter(seen).read().notices == {"out b": notice.strip()}
