"""Decides how many replicas a fleet should have, from samples of the fleet alone.

load          calls that would be in flight if none had to wait for a replica
demand        the replicas that the load needs: load / capacity / target utilization
capacity      calls in flight that one replica can carry; measured, see Capacity
in a panic    the p95 of the queue wait is above its SLO

the fleet                when, or to how many replicas
grows, in a panic        to the replicas that carry the latest load at full utilization, plus those
                         that drain, within half a panic window, the calls that will be waiting when
                         a replica started now is ready; the latest load is that of a tenth of a
                         panic window, or of a longer part if the tenth has few calls
grows, otherwise         when the demand over half a scale-down window exceeds the fleet by more
                         than the tolerance, and by more than the demand varies by chance
shrinks                  to the highest demand of a scale-down window, if that is below the fleet by
                         more than the tolerance; never in a panic, or in a panic window after it
stops                    after `idle_s` without calls, if its minimum is 0; a call starts it again

After it has shrunk, a fleet waits a scale-down window before it shrinks again; if it had to grow
soon, the next wait is four times as long. During a wait, it shrinks only if half of its replicas
would suffice, and to the size that was too small, or below it, only if half of that size would
suffice.

The stable and the panic window are those of the Knative Pod Autoscaler; the tolerance and the
downscale stabilization are those of the Kubernetes Horizontal Pod Autoscaler.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from redline.process import counted
from redline.route.scale.settings import ScaleSettings

# In a panic, the arrival rate is measured over the shortest of these shares of the panic window
# that has ENOUGH arrivals. A tenth is Knative's share.
PANIC_SHARES = (0.1, 0.25, 0.5, 1.0)
ENOUGH = 20
# Outside a panic, the load is averaged over this share of the scale-down window.
STABLE_SHARE = 0.5
# A demand counts as higher than the fleet if it is higher by this many standard errors.
SURE = 2.0
# A queue should drain within this share of the panic window.
DRAIN_SHARE = 0.5
# A fleet that should not have shrunk waits this many times as long before it shrinks again, but at
# most MOST_HOLDS scale-down windows.
HOLDS = 4
MOST_HOLDS = 16
# A fleet that grows within this multiple of its wait after it shrank should not have shrunk.
REGRET = 4
# Weights of the newest measurement: of a replica's capacity and of its warm-up.
CAPACITY_STEP = 0.1
WARM_UP_STEP = 0.5
# While the SLO holds, a lower capacity returns to the configured one, with this time constant.
RECOVERY_S = 1800.0
# A sample that follows the last one sooner than this is skipped; counters in the next one include
# its calls.
LEAST_STEP_S = 0.1
HISTORY = 1_000


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a fleet at one moment.

    at_s: monotonic. in_flight: calls that replicas are working on. leaving: calls at replicas that
    are being stopped. waiting: calls that wait for a replica, in the pool or in a replica's own
    queue. tokens: expected usage of the calls in flight; 0 if unknown.
    ended: calls that have ended since the fleet began. answered: ended calls that succeeded.
    served_s: the seconds that the answered calls took at their replicas. queue_wait_p95_s: 95th
    percentile of the seconds that recent calls, including waiting ones, have waited. ready:
    replicas that take calls. warming: replicas that are starting. slots: calls that one replica
    takes at once; 0 if unknown.
    """

    at_s: float
    in_flight: int = 0
    leaving: int = 0
    waiting: int = 0
    tokens: float = 0.0
    ended: int = 0
    answered: int = 0
    served_s: float = 0.0
    queue_wait_p95_s: float = 0.0
    ready: int = 0
    warming: int = 0
    slots: float = 0.0

    @property
    def arrived(self) -> int:
        """The number of calls that have arrived since the fleet began."""
        return self.ended + self.in_flight + self.waiting


class Decision(msgspec.Struct, frozen=True):
    """How many replicas there should be. reason: why the number changes; "" if it does not."""

    replicas: int
    reason: str = ""


class Change(msgspec.Struct, frozen=True):
    """An entry of the history: a decision that changed the number of replicas. at_s: monotonic."""

    at_s: float
    before: int
    after: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.before} -> {self.after}"


class Autoscaler:
    """Decides on the number of replicas from samples, and from nothing else.

    The same samples lead to the same decisions (see `replay`). history: the latest changes, the
    oldest first.
    """

    def __init__(self, settings: ScaleSettings) -> None:
        self.history: deque[Change] = deque(maxlen=HISTORY)
        self.capacity = Capacity(settings)
        self._settings = settings
        self._stable_s = STABLE_SHARE * settings.scale_down_window_s
        self._panic_s = [share * settings.panic_window_s for share in PANIC_SHARES]
        self._samples: deque[_Summed] = deque()  # those in the longest span above
        self._call_s = 0.0  # mean time of a call
        self._highest = _Highest(settings.scale_down_window_s)
        self._warm_up = _WarmUp(settings.warm_up_s)
        self._replicas = -1  # before the first sample
        self._last_s = -math.inf
        self._busy_s = -math.inf
        self._panicked_s = -math.inf
        self._shrank_s = -math.inf
        self._is_shrunk = False
        self._too_small = 0  # the size from which the fleet last had to grow soon after it shrank
        self._holds = 1

    def decide(self, sample: Sample) -> Decision:
        """Returns the decision after this sample. sample.at_s: later than in the last sample."""
        if self._replicas < 0:
            self._replicas = sample.ready + sample.warming
            self._busy_s = sample.at_s
            self._warm_up.started(sample.warming, sample.at_s)
        if sample.at_s - self._last_s < LEAST_STEP_S:
            return Decision(self._replicas)
        wanted, reason = self._wanted(sample, self._observe(sample))
        least, most = self._settings.min_replicas, self._settings.max_replicas
        if wanted < least:
            wanted, reason = least, f"the minimum is {least}"
        elif wanted > most:
            wanted, reason = most, f"{reason}, and the maximum is {most}"
        if wanted == self._replicas:
            return Decision(wanted)
        self._change(wanted, reason, sample)
        return Decision(wanted, reason)

    def _observe(self, sample: Sample) -> float:
        """Records the sample; returns the steady demand in replicas."""
        samples, longest_s = self._samples, max(*self._panic_s, self._stable_s)
        samples.append(samples[-1].then(sample) if samples else _Summed(sample, 0.0))
        while len(samples) > 2 and samples[1].sample.at_s <= sample.at_s - longest_s:
            samples.popleft()
        stable = self._since(self._stable_s)
        self._call_s = stable.call_s or self._call_s
        self._last_s = sample.at_s
        if sample.in_flight or sample.waiting or self._since(self._panic_s[0]).arrivals:
            self._busy_s = sample.at_s
        if sample.ready and sample.queue_wait_p95_s > self._settings.queue_wait_slo_s:
            self._panicked_s = sample.at_s
        self._warm_up.observe(sample.ready, self._replicas, sample.at_s)
        self.capacity.observe(sample)
        demand = self._replicas_for(stable.load, sample)
        self._highest.add(sample.at_s, demand)
        return demand

    def _wanted(self, sample: Sample, demand: float) -> tuple[int, str]:
        """Returns the number of replicas, regardless of the bounds, and the reason for a change."""
        settings, now = self._settings, self._replicas
        if settings.policy == "rps":
            # Between the last two samples.
            load = self._since(0.0).arrivals_per_s
            return int(load / (100 * 0.7)) + 1, f"{counted(round(load), 'call')} arrived per second"
        if not now:
            if sample.waiting:
                return 1, counted(sample.waiting, "call waits", "calls wait")
            return 0, ""
        idle_s = sample.at_s - self._busy_s
        if settings.min_replicas == 0 and idle_s >= settings.idle_s:
            return 0, f"no call for {idle_s:,.0f} s"
        if self._panicked_s == sample.at_s:
            return self._in_panic(sample, demand)
        tolerance = settings.tolerance
        if demand > now * (1 + max(tolerance, self._noise())):
            reason = f"demand {demand:.1f} exceeds {now} by more than {tolerance:.0%}"
            return math.ceil(demand), reason
        return self._shrunk(sample)

    def _in_panic(self, sample: Sample, steady: float) -> tuple[int, str]:
        settings, now = self._settings, self._replicas
        recent = [self._since(span_s) for span_s in self._panic_s]
        surge = next((one for one in recent if one.arrivals >= ENOUGH), recent[-1])
        needed = self._replicas_for(self._surging(surge, sample), sample)
        needed *= settings.target_utilization
        demand = max(steady, needed + self._draining(surge, sample))
        wanted = math.ceil(demand)
        self._highest.add(sample.at_s, wanted)
        if wanted <= now:
            return now, ""
        wait = f"queue wait p95 {sample.queue_wait_p95_s:.1f} s is above "
        wait += f"{settings.queue_wait_slo_s:g} s, "
        return wanted, wait + f"{counted(sample.waiting, 'call waits', 'calls wait')}, " + (
            f"demand {demand:.1f}"
        )

    def _since(self, span_s: float) -> _Span:
        """Returns the span of the last `span_s` seconds, but of at least the last two samples."""
        samples = self._samples
        begin_s = samples[-1].sample.at_s - span_s
        first = bisect_right(samples, begin_s, key=lambda one: one.sample.at_s) - 1
        return _Span(samples[max(0, min(first, len(samples) - 2))], samples[-1])

    def _draining(self, surge: _Span, sample: Sample) -> float:
        """Returns the number of replicas that would drain the queue in time.

        The time begins when a replica that is started now would be ready. Before that, more calls
        arrive, and the existing and coming replicas answer some.
        """
        call_s = self._call_s
        if not call_s:
            return 0.0
        each_per_s = self.capacity.calls / call_s
        ahead_s = self._warm_up.usual_s
        coming_s = self._warm_up.capacity_s(ahead_s, sample.at_s)
        done = each_per_s * (sample.ready * ahead_s + coming_s)
        left = sample.waiting + surge.arrivals_per_s * ahead_s - done
        drain_s = max(DRAIN_SHARE * self._settings.panic_window_s, call_s)
        return max(0.0, left / (each_per_s * drain_s))

    def _shrunk(self, sample: Sample) -> tuple[int, str]:
        settings, now, at_s = self._settings, self._replicas, sample.at_s
        window_s = settings.scale_down_window_s
        highest = self._highest.value
        fewer = max(1, math.ceil(highest))
        is_held = at_s - self._shrank_s < self._holds * window_s
        if is_held and fewer > self._too_small / 2:
            fewer = max(fewer, self._too_small + 1)
        is_sure = (
            self._highest.is_whole(at_s)
            and at_s - self._panicked_s >= settings.panic_window_s
            and (not is_held or fewer <= now / 2)
        )
        if fewer > now * (1 - settings.tolerance) or not is_sure:
            return now, ""
        return fewer, f"demand was at most {highest:.1f} for {window_s:g} s"

    def _surging(self, surge: _Span, sample: Sample) -> float:
        """Returns the load that corresponds to a span's rate of arrivals."""
        # Before the first answer, or without arrivals, only the calls in flight are known.
        return surge.arrivals_per_s * self._call_s or float(sample.in_flight)

    def _replicas_for(self, load: float, sample: Sample) -> float:
        """Returns the number of replicas that a load needs at the target utilization."""
        return self.capacity.replicas(load, sample) / self._settings.target_utilization

    def _noise(self) -> float:
        """Returns the share by which a demand may seem higher than it is, by chance.

        With Poisson arrivals, the mean number of calls in flight over a span much longer than a
        call has the relative variance (1 + v^2) / arrivals, where v is the coefficient of variation
        of the durations. Here, v is 1, as if the durations were exponential.
        """
        arrivals = self._since(self._stable_s).arrivals
        return SURE * math.sqrt(2 / arrivals) if arrivals else math.inf

    def _change(self, wanted: int, reason: str, sample: Sample) -> None:
        before, at_s = self._replicas, sample.at_s
        window_s = self._settings.scale_down_window_s
        if wanted > before:
            self._warm_up.started(wanted - before, at_s)
            if self._is_shrunk and at_s - self._shrank_s < REGRET * self._holds * window_s:
                self._holds = min(MOST_HOLDS, HOLDS * self._holds)
                self._too_small = before
            self._is_shrunk = False
        else:
            if at_s - self._shrank_s >= REGRET * self._holds * window_s:
                self._holds = max(1, self._holds // 2)
            self._shrank_s, self._is_shrunk = at_s, True
        self._replicas = wanted
        self.history.append(Change(at_s, before, wanted, reason))


def replay(samples: Iterable[Sample], settings: ScaleSettings) -> Sequence[Decision]:
    """Returns the decisions of an autoscaler with these settings on recorded samples."""
    autoscaler = Autoscaler(settings)
    return [autoscaler.decide(sample) for sample in samples]


class Capacity:
    """Measures how much one replica carries at once while the SLO of the queue wait holds.

    calls: at first the configured number or, without one, a replica's slots, but at least 1; then
    the most calls in flight per replica that were seen while the SLO held. While the SLO is broken
    and calls wait, it moves towards the calls in flight per replica: more do not fit. While the SLO
    holds, a lower number slowly returns to the first one. It never exceeds a replica's slots.
    tokens: likewise for tokens, but it begins at 0 and does not return.
    """

    def __init__(self, settings: ScaleSettings) -> None:
        self.calls = max(1.0, settings.capacity)
        self._stated = settings.capacity
        self.tokens = 0.0
        self._slo_s = settings.queue_wait_slo_s
        self._ready = 0
        self._last_s = math.inf

    def observe(self, sample: Sample) -> None:
        if sample.slots and not self._stated:
            self.calls = self._stated = sample.slots
        ready, self._ready = self._ready, sample.ready
        step_s = max(0.0, sample.at_s - self._last_s)
        self._last_s = sample.at_s
        if not sample.ready or sample.ready > ready:
            # A new replica has no calls yet, which would lower the mean.
            return
        calls = max(0, sample.in_flight - sample.leaving) / sample.ready
        tokens = calls * sample.tokens / sample.in_flight if sample.in_flight else 0.0
        if sample.queue_wait_p95_s <= self._slo_s:
            back = (self._stated - self.calls) * min(1.0, step_s / RECOVERY_S)
            self.calls = max(self.calls + max(0.0, back), calls)
            self.tokens = max(self.tokens, tokens)
        elif sample.waiting:
            self.calls = max(1.0, self.calls + CAPACITY_STEP * (calls - self.calls))
            self.tokens += CAPACITY_STEP * (tokens - self.tokens)
        self.calls = max(1.0, min(self.calls, sample.slots or self.calls))

    def replicas(self, calls: float, sample: Sample) -> float:
        """Returns the number of replicas that this many calls keep busy.

        Each call is assumed to have as many tokens as the mean call of the sample.
        """
        by_calls = calls / self.calls
        if not self.tokens or not sample.in_flight:
            return by_calls
        return max(by_calls, calls * sample.tokens / sample.in_flight / self.tokens)


class _Summed(NamedTuple):
    """A sample. work_s: the seconds that all calls together had been in flight by then."""

    sample: Sample
    work_s: float

    def then(self, sample: Sample) -> _Summed:
        calls = (self.sample.in_flight + sample.in_flight) / 2
        return _Summed(sample, self.work_s + calls * (sample.at_s - self.sample.at_s))


class _Span(NamedTuple):
    """The time between two samples, with the calls and the load in it."""

    first: _Summed
    last: _Summed

    @property
    def took_s(self) -> float:
        return self.last.sample.at_s - self.first.sample.at_s

    @property
    def arrivals(self) -> int:
        return max(0, self.last.sample.arrived - self.first.sample.arrived)

    @property
    def arrivals_per_s(self) -> float:
        return self.arrivals / self.took_s if self.took_s else 0.0

    @property
    def load(self) -> float:
        """The number of calls that would have been in flight if none had had to wait.

        This is the mean number in flight, times the calls that arrived divided by those that began.
        The arrival rate times the mean duration would be less exact: a call that took longer than
        the span counts with all of its duration at its end, as if several had been in flight; and
        if calls queue within a replica, their durations include the wait.
        """
        if not self.took_s:
            return float(self.last.sample.in_flight)
        calls = (self.last.work_s - self.first.work_s) / self.took_s
        more = self.last.sample.waiting - self.first.sample.waiting
        begun = max(1, self.arrivals - more)
        return calls * max(0, begun + more) / begun

    @property
    def call_s(self) -> float:
        """The mean seconds of an answered call; 0 without answers."""
        first, last = self.first.sample, self.last.sample
        answered = last.answered - first.answered
        return (last.served_s - first.served_s) / answered if answered > 0 else 0.0


class _Highest:
    """Tracks the highest value of the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._begun_s = math.inf
        self._falling: deque[tuple[float, float]] = deque()

    @property
    def value(self) -> float:
        return self._falling[0][1]

    def add(self, at_s: float, value: float) -> None:
        self._begun_s = min(self._begun_s, at_s)
        falling = self._falling
        while falling and falling[-1][1] <= value:
            falling.pop()
        falling.append((at_s, value))
        while falling[0][0] <= at_s - self._span_s:
            falling.popleft()

    def is_whole(self, at_s: float) -> bool:
        """Returns whether values have been added for the whole span."""
        return at_s - self._begun_s >= self._span_s


class _WarmUp:
    """Tracks the replicas that are starting, and how long a start takes.

    usual_s: how many seconds a start takes; at first the configured value, then measured.
    """

    def __init__(self, usual_s: float) -> None:
        self.usual_s = usual_s
        self._ready = 0
        self._started: deque[float] = deque()

    def started(self, count: int, at_s: float) -> None:
        self._started.extend([at_s] * count)

    def observe(self, ready: int, wanted: int, at_s: float) -> None:
        for _ in range(min(ready - self._ready, len(self._started))):
            took_s = at_s - self._started.popleft()
            self.usual_s += WARM_UP_STEP * (took_s - self.usual_s)
        self._ready = ready
        missing = max(0, wanted - ready)
        while len(self._started) > missing:
            self._started.pop()
        # If more are missing, ready replicas have been lost; their replacements start now.
        self.started(missing - len(self._started), at_s)

    def capacity_s(self, ahead_s: float, at_s: float) -> float:
        """Returns the sum of the seconds that starting replicas will work in the next `ahead_s`."""
        return sum(
            ahead_s - max(0.0, begun_s + self.usual_s - at_s)
            for begun_s in self._started
            if begun_s + self.usual_s - at_s < ahead_s
        )
