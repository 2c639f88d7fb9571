"""Turns samples and ended calls into windows. Synchronous; the caller passes the time.

Above about 500 calls per second, only one in several calls is recorded and counts as several:
processing a call takes some microseconds, and keeping all calls until the next sample would fill
the CPU's cache. The recorded calls are drawn at random, because calls may end in a regular order,
for example in a rotation over endpoints. Calls without an attempt are always counted.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice
from operator import attrgetter, itemgetter, sub

import msgspec

from redline.timeline.phases import Ended, phases_of
from redline.timeline.sketch import Sketch, merged_sketches
from redline.timeline.window import (
    MOST_ENDPOINTS,
    NO_USE,
    EndpointState,
    Holder,
    LimitUse,
    Phases,
    ServerUse,
    Totals,
    Window,
    merged_phases,
    most_held,
    rounded,
)
from redline.waist import Attempt

# On average, at most this many calls per sample are recorded: enough for a second's quantiles. Once
# this many are recorded, they are processed at the next sample: enough to keep the cost per call
# low, and few enough that their attempts, with errors and quoted texts, need little memory.
RECORDED_CALLS = 50
# The share of the calls to record depends on their mean number in this many samples. Calls that
# began together often end together, so the number in one sample says little about the next.
_RECENT_SAMPLES = 10
_LONGEST_ERROR = 300
_SENT_AND_COMPLETE = attrgetter("sent_s"), attrgetter("complete_s")
_FIRST_TOKEN = attrgetter("first_token_s")

# Durations in seconds, keyed by how many calls each of them counts for. They become one sketch at
# the end of the window: a sketch per sample would cost as much as processing the calls.
_Durations = dict[int, list[float]]


class Counters(msgspec.Struct, kw_only=True):
    """The counters of a run; a window holds the difference between two of them.

    sent: requests written. retries, failovers: as in Window. errors: failed attempts, by kind.
    calls: calls that have their outcome. done, failed: rows that became durable. thread_s: CPU
    seconds of the event loop's thread, plus the seconds in which it was ready to run but had no
    CPU. cpu_s: CPU seconds of the whole process. write_s, sync_s: seconds of writes and fsyncs of
    results. server: the use of a model in this process.
    """

    sent: int = 0
    retries: int = 0
    failovers: int = 0
    errors: dict[str, int] = {}
    calls: int = 0
    done: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    thread_s: float = 0.0
    cpu_s: float = 0.0
    write_s: float = 0.0
    sync_s: float = 0.0
    server: ServerUse = NO_USE


class Sample(msgspec.Struct, kw_only=True):
    """The state of a run at one moment.

    held: what holds the next call back; None if unknown. limits: the names of the rate limits that
    hold it back. in_flight: requests on the wire. in_hand: rows that have begun and have no outcome
    yet. slots: maximum calls in flight. waiting: calls that wait for a grant. retrying: rows that
    wait for a retry. is_feed_empty: workers wait for a row. is_journal_full: too much is not
    durable yet. lag_s: how late the sample was taken, in seconds. blocked_s: the seconds since the
    last sample if something blocked the event loop, otherwise 0.
    """

    held: Holder | None
    limits: Collection[str] = ()
    in_flight: int = 0
    in_hand: int = 0
    slots: int = 0
    waiting: int = 0
    retrying: int = 0
    is_feed_empty: bool = False
    is_journal_full: bool = False
    lag_s: float = 0.0
    blocked_s: float = 0.0


class Gatherer:
    """Makes windows from samples and ended calls.

    due: the next call to end with this number or a higher one is recorded; 0 while all calls are.
    """

    def __init__(self) -> None:
        self._begun_s = self._since_s = 0.0
        self._counters = Counters()
        self._ended: list[Ended] = []
        self._sampled = 0  # how many of them had ended at the last sample
        self.due = 0
        self._every = 1  # one call in this many is recorded, on average
        self._recent = deque[int](maxlen=_RECENT_SAMPLES)  # the calls in each sample, estimated
        self._draw = random.Random(0).random
        self._first_answer_s: float | None = None
        self._clear()

    def _clear(self) -> None:
        self._samples: list[Sample] = []
        self._answered = 0
        self._untried_s = self._durable_s = 0.0
        self._phases: list[Phases] = []
        self._latency: _Durations = defaultdict(list)
        self._first: _Durations = defaultdict(list)
        self._first_token: _Durations = defaultdict(list)
        self._error = ""

    def begin(self, now_s: float, counters: Counters) -> None:
        """Starts the first window."""
        self._begun_s = self._since_s = now_s
        self._counters = counters

    def took(self, number: int, ended: Ended) -> None:
        """Records an ended call that was due to be recorded. number: the call's number."""
        self._ended.append(ended)
        if self._every > 1:
            self._pass(number)

    def took_untried(self, number: int, call_s: float) -> None:
        """Counts a call that got its outcome without an attempt, `call_s` after it began."""
        self._untried_s += call_s
        if self._every > 1 and number >= self.due:
            self._pass(number)

    def _pass(self, number: int) -> None:
        """Draws the next call to be recorded after the one with this number."""
        # Like randrange(1, 2 * every), in half the time.
        self.due = number + 1 + int(self._draw() * (2 * self._every - 1))

    def sample(self, sample: Sample) -> None:
        """Adds a sample of the run's state."""
        self._samples.append(sample)
        self._recent.append((len(self._ended) - self._sampled) * self._every)
        self._sampled = len(self._ended)
        if self._sampled >= RECORDED_CALLS or self._every > 1:
            self._work_through()
            mean = sum(self._recent) / len(self._recent)
            self._every = max(1, math.ceil(mean / RECORDED_CALLS))
            if self._every == 1:
                self.due = 0

    def became_durable(self, now_s: float, complete_s: Sequence[float | None]) -> None:
        """Counts rows whose lines have been on disk since `now_s`.

        complete_s: when the last attempt of each row ended; None for a row without an attempt,
        which is assumed to have waited as long as the others.
        """
        known = list(filter(None, complete_s))
        if known:
            waited_s = len(known) * now_s - sum(known)
            self._durable_s += waited_s * len(complete_s) / len(known)

    def note_error(self, what: str) -> None:
        """Records the text of a failed attempt's error as the latest one."""
        # The text may contain half of a surrogate pair, which a JSON file cannot hold.
        self._error = what[:_LONGEST_ERROR].encode("utf-8", "replace").decode()

    def window(
        self,
        now_s: float,
        counters: Counters,
        totals: Totals,
        *,
        limits: Iterable[LimitUse] = (),
        endpoints: Iterable[EndpointState] = (),
        parked_s: float = 0.0,
        stopped_s: float = 0.0,
    ) -> Window:
        """Returns the window since the last one, or since the run began.

        limits: their current use; this method sets the `held` of each.
        """
        self._work_through()
        held = Counter(chain.from_iterable(sample.limits for sample in self._samples))
        used = [msgspec.structs.replace(one, held=held[one.name]) for one in limits]
        window = msgspec.structs.replace(
            self._made(now_s, counters),
            limits=most_held(used),
            endpoints=tuple(islice(endpoints, MOST_ENDPOINTS)),
            parked_s=rounded(parked_s),
            stopped_s=rounded(stopped_s),
            totals=totals,
        )
        self._counters, self._since_s = counters, now_s
        self._clear()
        return window

    def _made(self, end_s: float, new: Counters) -> Window:
        """Returns the window without the fields that `window` adds."""
        old, samples = self._counters, self._samples
        span_s = max(end_s - self._since_s, 1e-9)
        count = max(1, len(samples))

        def mean(name: str) -> float:
            total: float = sum(map(attrgetter(name), samples))
            return rounded(total / count)

        # A difference of Counters contains only the positive counts.
        errors = dict(Counter(new.errors) - Counter(old.errors))
        return Window(
            begin_s=rounded(self._since_s - self._begun_s),
            end_s=rounded(end_s - self._begun_s),
            samples=len(samples),
            sent=new.sent - old.sent,
            retries=new.retries - old.retries,
            failovers=new.failovers - old.failovers,
            answered=self._answered,
            errors=errors,
            error=self._error if errors else "",
            done=new.done - old.done,
            failed=new.failed - old.failed,
            input_tokens=new.input_tokens - old.input_tokens,
            output_tokens=new.output_tokens - old.output_tokens,
            in_flight=mean("in_flight"),
            in_hand=mean("in_hand"),
            slots=mean("slots"),
            waiting=mean("waiting"),
            retrying=mean("retrying"),
            held=dict(Counter(sample.held for sample in samples if sample.held is not None)),
            feed_empty=mean("is_feed_empty"),
            journal_full=mean("is_journal_full"),
            lag_s=rounded(max((sample.lag_s for sample in samples), default=0.0)),
            late_s=rounded(sum(sample.blocked_s for sample in samples)),
            busy=rounded((new.thread_s - old.thread_s) / span_s),
            cpu=rounded((new.cpu_s - old.cpu_s) / span_s),
            write_s=rounded(new.write_s - old.write_s),
            sync_s=rounded(new.sync_s - old.sync_s),
            calls=new.calls - old.calls,
            server=new.server.since(old.server),
            latency=_sketch(self._latency),
            first=_sketch(self._first),
            first_token=_sketch(self._first_token),
            phases=merged_phases(
                [*self._phases, Phases(client_s=self._untried_s, durable_s=self._durable_s)]
            ),
        )

    def _work_through(self) -> None:
        """Adds the ended calls to the sums of the window."""
        if not self._ended:
            return
        ended, self._ended, self._sampled = self._ended, [], 0
        attempts = list(chain.from_iterable(map(itemgetter(2), ended)))
        answered = [attempt for attempt in attempts if attempt.error is None]
        if len(answered) < len(attempts):
            # Errors of earlier attempts, which were retried, were recorded when they occurred.
            last = (tried[-1].error for _, _, tried in reversed(ended))
            if (error := next(filter(None, last), None)) is not None:
                self.note_error(error.what)
        self._answered += len(answered) * self._every
        if answered:
            self._note_latencies(answered)
        self._phases.append(phases_of(ended).times(self._every))

    def _note_latencies(self, answered: Sequence[Attempt]) -> None:
        if self._first_answer_s is None:
            self._first_answer_s = min(attempt.complete_s for attempt in answered)
        # Only functions written in C, because this runs for every recorded call.
        sent_s, complete_s = (list(map(mark, answered)) for mark in _SENT_AND_COMPLETE)
        latency_s = list(map(sub, complete_s, sent_s))
        self._latency[self._every] += latency_s
        if min(sent_s) < self._first_answer_s:
            pairs = zip(latency_s, sent_s, strict=True)
            first_s = [long_s for long_s, at_s in pairs if at_s < self._first_answer_s]
            self._first[self._every] += first_s
        token_s = list(map(_FIRST_TOKEN, answered))
        if token_s.count(None) < len(token_s):
            pairs = zip(token_s, sent_s, strict=True)
            waited_s = [mark_s - at_s for mark_s, at_s in pairs if mark_s is not None]
            self._first_token[self._every] += waited_s


def _sketch(durations: _Durations) -> Sketch:
    return merged_sketches(Sketch.of(each_s, times) for times, each_s in durations.items())
