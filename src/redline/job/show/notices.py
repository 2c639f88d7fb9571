"""Describes the problems of a job, each in one sentence, for its progress and its summary."""

from __future__ import annotations

import errno
import os

from redline.job.show.view import View
from redline.job.work import Outages
from redline.journal import all_flawed
from redline.process import counted, duration

# Shorter outages are not shown: a single failed connection among many is not an outage.
_LEAST_OUTAGE_S = 1.0
# Shorter waits are not worth a line.
_LEAST_WAIT_S = 1.0
# Answers may be slow, so a silence is shown only after this time, and after this many times the
# duration of the slowest attempt so far.
_LEAST_SILENCE_S, _SILENCE_FACTOR = 10.0, 2
# The kinds of notices that mean that the run is at a standstill.
STANDSTILL = frozenset({"ending", "outage", "failing", "silence", "waiting"})
# Prefixes of the kinds of notices that are shown once: an endpoint was removed; the receiver of
# telemetry is unreachable, or reachable again.
OUT, TELEMETRY = "out ", "telemetry "
ONCE = (OUT, TELEMETRY)
_REFUSED = os.strerror(errno.ECONNREFUSED)


def notices(view: View, now_s: float) -> dict[str, str]:
    """Returns a sentence for each current problem, by its kind, the most urgent first."""
    tally, runner = view.tally, view.runner
    if runner.is_draining:
        calls, most_s = runner.finishing()
        is_interrupted = runner.stopped is None
        return {"ending": finishing(calls, most_s, is_interrupted=is_interrupted)}
    silent_s = 0.0
    if tally.in_flight and (sent_s := runner.sent_s()):
        silent_s = now_s - max(tally.ended_s, min(sent_s))
    outage = outage_now(tally.outages(now_s), tries_again=view.job.retry.max_retries > 0)
    count = len(view.job.endpoints)
    if outage is not None and count > 1:
        down = len(tally.down)
        outage += f"; {down:,} of {count:,} endpoints {'is' if down == 1 else 'are'} down"
    # If one of several endpoints is down, the others still make progress.
    is_standstill = count < 2 or tally.is_all_down
    failing_in_a_row = failing(tally.failures_in_a_row, now_s - tally.failing_since_s)
    found = {
        "outage" if is_standstill else "degraded": outage,
        "answers": all_flawed(tally.succeeded, tally.flawed),
        "failing": failing_in_a_row,
    }
    if count > 1:
        found["waiting"] = waiting(tally.parked_until_s - now_s)
        if failing_in_a_row is None:
            found["failing endpoint"] = failing_endpoint(
                tally.failing(now_s), len(tally.degraded), count
            )
    if silent_s > tally.longest_s * _SILENCE_FACTOR:
        found["silence"] = silence(silent_s, tally.in_flight, view.job.attempt_s)
    for name, event in tally.out.items():
        found[OUT + name] = taken_out(name, event.reason, event.left, event.of)
    for alert in view.alerts.firing:
        found[f"alert {alert.rule}"] = f"alert: {alert.text}"
    found |= view.telemetry_notices
    if found.get("outage") is not None:
        # The outage explains these two.
        found |= {"failing": None, "silence": None}
    return {kind: notice for kind, notice in found.items() if notice is not None}


def outage_now(outages: Outages | None, *, tries_again: bool = True) -> str | None:
    """Returns a notice that an endpoint currently accepts no connections, or None.

    tries_again: whether failed calls are retried.
    """
    if outages is None or outages.down_s < _LEAST_OUTAGE_S:
        return None
    trouble = _trouble(outages, "has refused", "has been")
    what = f"endpoint {trouble} for {duration(outages.down_s)}"
    return f"{what}; retrying, nothing is lost" if tries_again else what


def outages_ended(outages: Outages | None) -> str | None:
    """Returns a notice on how long an endpoint accepted no connections in an ended run, or None."""
    if outages is None or outages.lasted_s < _LEAST_OUTAGE_S:
        return None
    if outages.down_s:
        for_s = f"for the last {duration(outages.down_s)}"
        if outages.lasted_s - outages.down_s >= _LEAST_OUTAGE_S:
            for_s += f", for {duration(outages.lasted_s)} in all"
        return f"endpoint {_trouble(outages, 'has refused', 'has been')} {for_s}"
    return f"endpoint {_trouble(outages, 'refused', 'was')} for {duration(outages.lasted_s)}"


def waiting(for_s: float) -> str | None:
    """Returns a notice that every endpoint in use asked redline to wait, or None.

    for_s: seconds until the first of these waits ends.
    """
    if for_s < _LEAST_WAIT_S:
        return None
    until = f"no call is sent for another {duration(for_s)}"
    return f"every endpoint in use asked redline to wait; {until}"


def failing_endpoint(failing: Outages | None, failing_now: int, count: int) -> str | None:
    """Returns a notice about the one of several endpoints that has failed longest, or None.

    failing_now: how many of the `count` endpoints are failing.
    """
    if failing is None or failing.down_s < _LEAST_OUTAGE_S:
        return None
    what = f"endpoint {failing.endpoint} has failed for {duration(failing.down_s)}: "
    what += f"{failing.reason.rstrip('.')}; it gets few calls until it recovers"
    return (
        what if failing_now < 2 else f"{what}; {failing_now:,} of {count:,} endpoints are failing"
    )


def failing_ended(failing: Outages | None) -> str | None:
    """Returns a notice on how long an endpoint failed in an ended run, or None."""
    if failing is None or failing.lasted_s < _LEAST_OUTAGE_S:
        return None
    for_s = f"for {duration(failing.lasted_s)}"
    if failing.down_s:
        for_s += ", until the end"
    return f"endpoint {failing.endpoint} failed and got few calls {for_s}: {failing.reason}"


def taken_out(endpoint: str, reason: str, left: int, of: int) -> str:
    """Returns a notice that one of several endpoints gets no more calls.

    left: how many of the `of` endpoints still get calls.
    """
    are = "is" if left == 1 else "are"
    return f"endpoint {endpoint} was removed from the run: {reason}; {left:,} of {of:,} {are} left"


def failing(failures: int, failing_s: float) -> str | None:
    """Returns a notice that every recent request has failed, or None.

    failures: the number of failures in a row. failing_s: seconds since the first of them.
    """
    if failures < 2 or failing_s < _LEAST_OUTAGE_S:
        return None
    return f"every request has failed for {duration(failing_s)}, {failures:,} in a row"


def silence(silent_s: float, calls: int, attempt_s: float) -> str | None:
    """Returns a notice that no call has ended for a long time, or None.

    silent_s: that time in seconds. calls: the number of calls in flight. attempt_s: the timeout of
    an attempt in seconds.
    """
    if silent_s < _LEAST_SILENCE_S:
        return None
    what = f"no answer for {duration(silent_s)}, {counted(calls, 'call')} in flight"
    return f"{what}; a call times out after {duration(attempt_s)} (--timeout)"


def finishing(calls: int, most_s: float, *, is_interrupted: bool) -> str:
    """Returns a notice that an ending run is finishing its calls in flight.

    calls: their number. most_s: the maximum time in seconds that they may still take.
    """
    what = "interrupted" if is_interrupted else "stopping"
    if not calls:
        return f"{what}: saving finished rows"
    again = "; press Ctrl-C again to drop the calls" if is_interrupted else ""
    return f"{what}: finishing {counted(calls, 'call')}, for at most {duration(most_s)}{again}"


def _trouble(outages: Outages, refuses: str, is_: str) -> str:
    if outages.reason.endswith(_REFUSED) and "the proxy" not in outages.reason:
        return f"{outages.endpoint} {refuses} connections"
    return f"{outages.endpoint} {is_} unreachable ({outages.reason})"
