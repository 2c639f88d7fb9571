"""How many replicas a fleet should have, from samples of it alone.

demand        what the fleet would have to have: (calls that arrive per second x seconds that a call
              takes) / capacity / target utilization, in replicas
capacity      calls in flight that one replica carries: measured, see Capacity
in a panic    the p95 of the queue wait is, or was in the last panic window, above its SLO

the fleet                when
grows, in a panic        to the demand of the last tenth of a panic window, or what drains the queue
                         within half a panic window, if that is more. What the replicas that are
                         still warming up will do by then is counted
grows, otherwise         when the demand of half a scale-down window exceeds it by more than the
                         tolerance, and by more than it varies by chance
shrinks                  to the highest demand of a scale-down window, if that is less by more than
                         the tolerance; never in a panic
stops                    after `idle_s` without calls, if its minimum is 0; a call starts it again

A fleet that had to grow soon after it shrank waits four times as long before it shrinks again,
unless half of its replicas would suffice.

After the stable and the panic window of the Knative Pod Autoscaler, and the tolerance and the
downscale stabilization of the Kubernetes Horizontal Pod Autoscaler.
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

# In a panic, the rate of arrivals is that of the shortest of these shares of the panic window that
# has enough arrivals. A tenth is Knative's.
PANIC_SHARES = (0.1, 0.25, 0.5, 1.0)
ENOUGH = 20
# Otherwise it is that of this share of the scale-down window.
STABLE_SHARE = 0.5
# A demand counts as higher if it is higher by this many standard errors.
SURE = 2.0
# A queue is to be drained within this share of the panic window.
DRAIN_SHARE = 0.5
# A fleet that should not have shrunk waits this many times as long before it shrinks again, and at
# most MOST_HOLDS scale-down windows.
HOLDS = 4
MOST_HOLDS = 16
# A fleet that grows within this many times its wait after it shrank should not have shrunk.
REGRET = 4
# Weights of the newest measurement: of a replica's capacity and of its warm-up.
CAPACITY_STEP = 0.1
WARM_UP_STEP = 0.5
# While the SLO holds, the capacity returns to the stated one, with this time constant.
RECOVERY_S = 1800.0
# Samples that follow each other faster are skipped; the next one includes what they counted.
LEAST_STEP_S = 0.1
HISTORY = 1_000


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet at one moment.

    at_s: monotonic. in_flight: calls that replicas are working on; leaving: those of them whose
    replica is to be stopped. waiting: calls that wait for a replica, in the pool or in a replica's
    own queue. tokens: of the calls in flight; 0 if unknown.
    ended: calls that have ended since the fleet began. answered: those of them that succeeded, and
    served_s: the seconds that these took at their replicas. queue_wait_p95_s: of recent calls,
    including those that still wait. ready: replicas that take calls. warming: replicas that are
    starting. slots: calls that one replica takes at once; 0 if unknown.
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
        """Calls that have arrived since the fleet began."""
        return self.ended + self.in_flight + self.waiting


class Decision(msgspec.Struct, frozen=True):
    """How many replicas there should be. reason: why that is another number; otherwise empty."""

    replicas: int
    reason: str = ""


class Change(msgspec.Struct, frozen=True):
    """A decision that changed the number of replicas, for the history."""

    at_s: float
    before: int
    after: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.before} -> {self.after}"


class Autoscaler:
    """Decides from the samples that it has been given, and from nothing else.

    history: the last changes, the oldest first. Pure in its samples: the same samples lead to the
    same decisions (see `replay`).
    """

    def __init__(self, settings: ScaleSettings) -> None:
        self.history: deque[Change] = deque(maxlen=HISTORY)
        self.capacity = Capacity(settings)
        self._settings = settings
        self._stable_s = STABLE_SHARE * settings.scale_down_window_s
        self._panic_s = [share * settings.panic_window_s for share in PANIC_SHARES]
        self._samples: deque[Sample] = deque()  # of the longest of these times
        self._call_s = 0.0  # how long a call takes
        self._highest = _Highest(settings.scale_down_window_s)
        self._warm_up = _WarmUp(settings.warm_up_s)
        self._replicas = -1  # before the first sample
        self._last_s = -math.inf
        self._busy_s = -math.inf
        self._panicked_s = -math.inf
        self._shrank_s = -math.inf
        self._is_shrunk = False
        self._holds = 1

    def decide(self, sample: Sample) -> Decision:
        """What the sample, after those before it, asks for. at_s: later than the sample before."""
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
        """The steady demand, after this sample."""
        samples, longest_s = self._samples, max(*self._panic_s, self._stable_s)
        samples.append(sample)
        while len(samples) > 2 and samples[1].at_s <= sample.at_s - longest_s:
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
        demand = self._demand(stable, sample)
        self._highest.add(sample.at_s, demand)
        return demand

    def _wanted(self, sample: Sample, demand: float) -> tuple[int, str]:
        """The number of replicas without regard to its bounds, and why."""
        settings, now = self._settings, self._replicas
        if settings.policy == "rps":
            # Between the last two samples.
            load = self._since(0.0).arrivals_per_s
            return int(load / (100 * 0.7)) + 1, f"{load:,.0f} calls arrived per second"
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
        needed = self._demand(surge, sample) * settings.target_utilization
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
        """The samples of the last `span_s` seconds, from two on if there are."""
        samples = self._samples
        first = bisect_right(samples, samples[-1].at_s - span_s, key=lambda one: one.at_s) - 1
        return _Span(samples[max(0, min(first, len(samples) - 2))], samples[-1])

    def _draining(self, surge: _Span, sample: Sample) -> float:
        """Replicas that would drain the queue in time, from when one that starts now is ready.

        Until then calls arrive, and the replicas that there are and will be answer some.
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
        is_sure = (
            self._highest.is_whole(at_s)
            and at_s - self._panicked_s >= settings.panic_window_s
            and (at_s - self._shrank_s >= self._holds * window_s or fewer <= now / 2)
        )
        if fewer > now * (1 - settings.tolerance) or not is_sure:
            return now, ""
        return fewer, f"demand was at most {highest:.1f} for {window_s:g} s"

    def _demand(self, span: _Span, sample: Sample) -> float:
        """Replicas that the arrivals of the span would use to the target."""
        calls = span.arrivals_per_s * self._call_s
        # Calls that none of the same kind has followed yet are not known otherwise.
        calls = calls or float(sample.in_flight)
        return self.capacity.replicas(calls, sample) / self._settings.target_utilization

    def _noise(self) -> float:
        """The share by which a demand may seem higher than it is.

        Both the number of arrivals and the mean time of a call vary by 1 / sqrt(n) or so.
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
            self._is_shrunk = False
        else:
            if at_s - self._shrank_s >= REGRET * self._holds * window_s:
                self._holds = max(1, self._holds // 2)
            self._shrank_s, self._is_shrunk = at_s, True
        self._replicas = wanted
        self.history.append(Change(at_s, before, wanted, reason))


def replay(samples: Iterable[Sample], settings: ScaleSettings) -> Sequence[Decision]:
    """The decisions that an autoscaler with these settings makes on recorded samples."""
    autoscaler = Autoscaler(settings)
    return [autoscaler.decide(sample) for sample in samples]


class Capacity:
    """What one replica carries at once while the SLO of the queue wait holds.

    calls: stated at first; then the most calls in flight per replica that were seen while the SLO
    held; while it does not hold and calls wait, the number in flight, which is all that replicas
    take. It slowly returns to what was stated, and is never more than a replica's slots. tokens:
    the same of tokens.
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
            # A replica that has just come has no calls yet.
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
        """Replicas that these calls, of as many tokens as those in flight, keep busy."""
        by_calls = calls / self.calls
        if not self.tokens or not sample.in_flight:
            return by_calls
        return max(by_calls, calls * sample.tokens / sample.in_flight / self.tokens)


class _Span(NamedTuple):
    """Arrivals and answers between two samples."""

    first: Sample
    last: Sample

    @property
    def arrivals(self) -> int:
        return max(0, self.last.arrived - self.first.arrived)

    @property
    def arrivals_per_s(self) -> float:
        took_s = self.last.at_s - self.first.at_s
        return self.arrivals / took_s if took_s else 0.0

    @property
    def call_s(self) -> float:
        """How long a call takes; 0 without answers."""
        answered = self.last.answered - self.first.answered
        return (self.last.served_s - self.first.served_s) / answered if answered > 0 else 0.0


class _Highest:
    """The highest value of the last `span_s` seconds."""

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
        """Whether it has been observed for the whole time."""
        return at_s - self._begun_s >= self._span_s


class _WarmUp:
    """The replicas that are to come, and how long one takes.

    usual_s: stated at first, then measured.
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
        # A replica that was ready has been lost, and is started again.
        self.started(missing - len(self._started), at_s)

    def capacity_s(self, ahead_s: float, at_s: float) -> float:
        """Replicas times seconds that those to come will have worked in `ahead_s`."""
        return sum(
            ahead_s - max(0.0, begun_s + self.usual_s - at_s)
            for begun_s in self._started
            if begun_s + self.usual_s - at_s < ahead_s
        )
