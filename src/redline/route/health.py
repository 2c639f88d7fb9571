"""Decides whether an endpoint of a pool gets calls, from the results of its calls.

state     gets                                   becomes
starting  no calls                               ready, when its first health page is healthy, or
                                                 warming, when a later one is; degraded, if calls
                                                 that were sent regardless fail
ready     all calls                              degraded, when it fails more than the others do,
                                                 or its health page has failed BAD_PAGES times
                                                 in a row
degraded  one call at the end of each pause, at  warming, after a success
          most MOST_TRIES at once; pauses double
warming   twice as many calls at once after      ready, after WARM_CALLS successes; degraded, on
          each success                           less evidence than a ready endpoint

Only an endpoint whose health page is read begins as starting. Once such an endpoint is degraded, it
gets a call only after the page has been healthy again. A healthy page alone does not bring an
endpoint back: a call must succeed. If every endpoint is degraded, calls are sent regardless; once
one succeeds, a page that stays unhealthy does not degrade the endpoint again.

A failure is a response of HTTP 500 or above, a timeout, a lost connection or an unreadable answer;
a 4xx is never a failure. If no connection can be made, the endpoint is degraded at once. A call
that ends at its own deadline is a failure if it was written and has waited, without a byte, for as
long as an answer takes on average; otherwise it does not count. A call that ends unwritten does not
count either, nor does a call that its caller cancels, unless that call waited several times as long
and the endpoint answered no other call meanwhile. The expected failure rate is that of the other
endpoints, but at least 2 %, or 20 % while each of them is degraded or parked: an endpoint is
degraded when it fails significantly more often, by a CUSUM test (Page, Continuous Inspection
Schemes, Biometrika 41, 1954) of Bernoulli trials. So a rare failure does not degrade an endpoint,
and neither do frequent ones once the other endpoints have failed as often for some time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from redline.waist import Health

# The evidence that degrades a ready endpoint: a likelihood ratio of 1,000,000 to 1. It is that high
# because each call is a test, and a run has many thousands of calls. If nothing else fails, seven
# failures in a row reach it.
EVIDENCE = math.log(1_000_000)
# The evidence that degrades a warming endpoint: three failures in a row reach it.
EVIDENCE_WARMING = math.log(100)
# A working endpoint is expected to fail at the usual share, which is at least USUAL_SHARE, or
# LAST_SHARE while it is the only one that takes calls: then it is degraded if it fails more than
# half of them. With a higher share, rows would use up their retries there while they could wait for
# the others. A broken one is expected to fail at BAD_FACTOR times the usual share plus BAD_LEAST.
# None of these is above MOST_SHARE.
USUAL_SHARE = 0.02
LAST_SHARE = 0.2
BAD_FACTOR = 4.0
BAD_LEAST = 0.1
MOST_SHARE = 0.97
# With these values, if calls are short, an endpoint is ready within 30 s of its recovery: after one
# pause, one call and the calls of the warm-up. A pause begins when a test call is sent, which may
# take minutes to fail.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 15.0
WARM_CALLS = 20
# The most calls at once that test whether a degraded endpoint answers again. Even if it holds each
# of them for a timeout of a minute, one can still be sent at the end of each pause.
MOST_TRIES = 8
# A health page that fails this many times in a row, a second apart, degrades the endpoint. A busy
# server may be late once or twice. Kubernetes has the same default (failureThreshold).
BAD_PAGES = 3
# The share of failures covers the latest results: at least this many, and less than twice as many.
MEMORY = 64


class Breaker:
    """The state of one endpoint, according to the module's table. All times are monotonic.

    usual: returns, for this breaker, the recent share of calls that fail at other endpoints.
    is_probed: whether the endpoint has a health page that is read. calls, failures: the number of
    recent ones. epoch: changes when the endpoint is degraded, and when its warm-up begins; results
    of calls that began in an earlier epoch are ignored. again_s: while it is degraded, no call
    begins before this time. failing_s: how long it had been degraded when it last failed.
    is_ignored: calls begin in any state, because every endpoint of the pool is degraded.
    """

    def __init__(self, usual: Callable[[Breaker], float], *, is_probed: bool = False) -> None:
        self._usual = usual
        self._is_probed = is_probed
        self._is_held = is_probed  # no calls until its health page is healthy
        self._bad_pages = 0  # in a row
        self.state = Health.STARTING if is_probed else Health.READY
        self.is_ignored = False
        self.calls = 0.0
        self.failures = 0.0
        self.epoch = 0
        self.again_s = -math.inf
        self.failing_s = 0.0
        self.evidence = 0.0
        self._degraded_s = -math.inf
        self._pause_s = FIRST_PAUSE_S
        self._in_flight = 0  # calls begun in this epoch; not counted while ready
        self._is_made_again = False  # whether the latest try replaces a cancelled one
        self._warm = 0  # successes of the warm-up

    @property
    def is_working(self) -> bool:
        """Whether the endpoint takes calls, or its health page has not been read yet."""
        if self.state is Health.STARTING:
            return not self._bad_pages
        return self.state is not Health.DEGRADED

    @property
    def is_settled(self) -> bool:
        """Whether the endpoint is ready, without recent evidence against it."""
        return self.state is Health.READY and not self.evidence

    def ignore(self, is_ignored: bool) -> None:
        """Sets whether calls may begin regardless of the state."""
        self.is_ignored = is_ignored

    def allows(self, now_s: float, coming: int = 0) -> bool:
        """Returns whether another call may begin, besides `coming` calls that are about to."""
        if self.state is Health.READY or self.is_ignored:
            return True
        if self._is_held:
            return False
        if self.state is Health.DEGRADED:
            return not coming and self._in_flight < MOST_TRIES and now_s >= self.again_s
        return self._in_flight + coming < 2.0**self._warm

    def is_due(self, now_s: float) -> bool:
        """Returns whether a call may now find out if the endpoint works again."""
        return not self._is_held and now_s >= self.again_s

    def began(self, now_s: float) -> int:
        """Counts a call that is sent; returns the epoch for its result."""
        if self.state is not Health.READY:
            self._in_flight += 1
            # One that is starting gets calls only while breakers are ignored, and pauses likewise.
            if self.state is not Health.WARMING and now_s >= self.again_s:
                self._is_made_again = self.again_s == -math.inf
                self._pause(now_s)
        return self.epoch

    def cancelled(self, epoch: int) -> None:
        """Counts a call that ended without a result.

        If the call was to test a degraded endpoint, another call may test it at once. If that call
        is cancelled too, the next one waits for the end of a pause.
        """
        is_try = self._ended(epoch) and self.state is Health.DEGRADED
        if is_try and not self._is_made_again:
            self.again_s = -math.inf

    def answered(self, calls: int) -> None:
        """Counts calls that were answered while the endpoint was settled."""
        self.calls += calls
        self._forget()

    def succeeded(self, epoch: int) -> bool:
        """Counts an answered call; returns whether it changes the state."""
        self.calls = calls = self.calls + 1
        if calls >= 2 * MEMORY:
            self._forget()
        is_ready = self.state is Health.READY
        if is_ready and not self.evidence:
            return False
        if not is_ready and not self._ended(epoch):
            return False
        if self.evidence:
            usual = self._usual(self)
            step = math.log((1 - _bad_share(usual)) / (1 - usual))
            self.evidence = max(0.0, self.evidence + step)
        return not is_ready and self._recovers()

    def failed(self, epoch: int, now_s: float, *, is_down: bool = False) -> bool:
        """Counts a failed call; returns whether it degrades the endpoint.

        is_down: no connection could be made; this alone degrades the endpoint.
        """
        if self.state is Health.DEGRADED:
            # Not counted: failed tries of a degraded endpoint would excuse failures of the others.
            if self._ended(epoch):
                self.failing_s = now_s - self._degraded_s
            return False
        self.calls += 1
        self.failures += 1
        self._forget()
        if self.state is not Health.READY and not self._ended(epoch):
            return False
        if not is_down:
            usual = self._usual(self)
            self.evidence += math.log(_bad_share(usual) / usual)
            if self.evidence < (EVIDENCE if self.state is Health.READY else EVIDENCE_WARMING):
                return False
        self._turns(Health.DEGRADED)
        self.evidence, self._degraded_s = 0.0, now_s
        self._pause(now_s)
        return True

    def probed(self, now_s: float, *, is_well: bool) -> bool:
        """Records a result of the health page.

        Returns whether the result may change which endpoints get calls.
        """
        if not is_well:
            self._bad_pages += 1
            if self.state is Health.STARTING:
                return self._bad_pages == 1
            if self.state is Health.DEGRADED:
                self._is_held, self.failing_s = True, now_s - self._degraded_s
                return False
            if self._bad_pages != BAD_PAGES:
                return False
            self._turns(Health.DEGRADED)
            self.evidence, self.again_s = 0.0, now_s
            self._degraded_s = now_s
            return True
        was_held, bad_pages = self._is_held, self._bad_pages
        self._is_held, self._bad_pages = False, 0
        if self.state is Health.STARTING:
            self._turns(Health.WARMING if bad_pages else Health.READY)
        elif was_held and bad_pages >= BAD_PAGES:
            # The server has changed since its calls failed: the next call is not delayed.
            self.again_s = now_s
        return was_held

    def _recovers(self) -> bool:
        """Counts a success while the endpoint is not ready; returns whether the state changes."""
        was_out = self.state in (Health.DEGRADED, Health.STARTING)
        if was_out:
            self._turns(Health.WARMING)
        self._warm += 1
        if self._warm < WARM_CALLS:
            return was_out
        self.state, self._pause_s = Health.READY, FIRST_PAUSE_S
        return True

    def _turns(self, state: Health) -> None:
        """Enters a state other than ready; results of calls that began before will be ignored."""
        self.state = state
        self.epoch += 1
        self._in_flight = self._warm = 0
        self.failing_s = 0.0
        self._is_held = self._is_probed and state is Health.DEGRADED

    def _pause(self, now_s: float) -> None:
        self.again_s = now_s + self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)

    def _forget(self) -> None:
        """Halves the weight of old results once there are many."""
        while self.calls >= 2 * MEMORY:
            self.calls -= MEMORY
            self.failures /= 2

    def _ended(self, epoch: int) -> bool:
        """Counts the end of a call; returns whether the call began in this epoch."""
        if epoch != self.epoch:
            return False
        # Calls that began while the endpoint was ready were not counted.
        self._in_flight = max(0, self._in_flight - 1)
        return True


def usual_share(others: Iterable[Breaker], least: float = USUAL_SHARE) -> float:
    """Returns the recent share of failed calls at these endpoints, `least` to MOST_SHARE.

    Degraded endpoints count: otherwise, each endpoint that fails as they did would stand out, and a
    fleet of which half fails now and then would lose that half, one endpoint after another. An
    endpoint with hardly any answers is down, which says nothing about the others: at most
    BAD_FACTOR of its failures count for each answer.
    """
    calls = failures = 0.0
    for breaker in others:
        answers = breaker.calls - breaker.failures
        counted = min(breaker.failures, BAD_FACTOR * answers)
        calls += answers + counted
        failures += counted
    # Two calls with the usual share are added, since one failure does not prove a general outage.
    return min(MOST_SHARE, max(least, (failures + 2 * USUAL_SHARE) / (calls + 2)))


def _bad_share(usual: float) -> float:
    """Returns the failure share to expect of a broken endpoint. usual: that of the others."""
    return min(MOST_SHARE, BAD_FACTOR * usual + BAD_LEAST)
