"""The law of single attempts: how many there may be, when, and at what rate."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from faults.broken import holds
from faults.network import HANDSHAKE_S
from faults.ran import Ran
from faults.script import Script
from faults.trace import Tried, Try
from redline.calls.http import is_unreachable
from redline.errors import BadReply, RateLimited, Retryable
from redline.limits.rule import usable

# The clock of a wait and that of the exchange after it ring up to 1 ms late each.
_CLOCKS_S = 0.002
# A run that is ended looks around this often.
_LOOKS_S = 0.05
_EPSILON_S = 1e-6
# How long a run takes to its end once everything is given up: a group of lines and its fsync.
_ENDS_WITHIN_S = 1.0
_PARKING = (429, 503, 529)


def check(script: Script, ended: list[Ran]) -> None:
    """Raises Broken where the last run, or all of them together, break the law."""
    ran = ended[-1]
    for way in ran.facts.tried:
        _is_allowed(script, way)
        _keeps_its_times(script, way)
        for one in way.tries:
            _is_settled(script, one)
    _nobody_is_asked_unseen(script, ran)
    _silence_is_kept(script, ran)
    _ends_in_time(script, ran)
    _rates_are_kept(script, ended)


def _is_allowed(script: Script, way: Tried) -> None:
    """No more attempts than the settings allow, and none after one that was final."""
    errors = [one.error for one in way.tries]
    most = script.settings.retry.max_retries
    for error in errors[:-1]:
        holds(isinstance(error, Retryable), f"{way.name} was tried again after {error!r}")
    lost = [error for error in errors if isinstance(error, Retryable)]
    limited = sum(isinstance(error, RateLimited) for error in lost)
    away = sum(is_unreachable(error) for error in lost)
    bad = sum(isinstance(error, BadReply) for error in lost)
    blamed = len(lost) - limited - away
    holds(blamed <= most + 1, f"{way.name} failed {blamed} times with {most} retries")
    holds(limited <= 10 * most + 1, f"{way.name} was limited {limited} times with {most} retries")
    holds(bad <= 3, f"{way.name} had {bad} answers that cannot be read")
    holds(not away or most > 0 or len(errors) == 1, f"{way.name} was tried again without retries")
    if way.outcome is not None:
        counted = way.outcome.attempts
        holds(counted == len(way.tries), f"{way.name}: {counted} attempts, {len(way.tries)} made")


def _keeps_its_times(script: Script, way: Tried) -> None:
    """One attempt after the other, not before it was asked for, and none after the deadline."""
    for one, other in pairwise(way.tries):
        assert one.ended_s is not None
        wait_s = 0.0
        if isinstance(one.error, RateLimited):
            wait_s = one.error.retry_after_s or 0.0
        is_patient = other.began_s >= one.ended_s + wait_s - _EPSILON_S
        holds(is_patient, f"{way.name} was tried again {wait_s} s too early")
    for one in way.tries:
        holds(one.began_s <= way.deadline_s + _EPSILON_S, f"{way.name}: tried after its deadline")
    if way.ended_s is not None:
        late_s = way.ended_s - way.deadline_s
        holds(late_s <= _CLOCKS_S + _EPSILON_S, f"{way.name} ended {late_s} s after its deadline")


def _is_settled(script: Script, one: Try) -> None:
    """What an answer used stands in place of what was reserved for it."""
    if one.used is None:
        return
    amounts = dict(zip(("input_tokens", "output_tokens"), one.used, strict=True))
    amounts["tokens"] = sum(one.used)
    may_be_more = script.settings.limits.charge == "reserved"
    for booking in one.bookings:
        kind = booking.window.kind
        if kind != "requests":
            used, booked = amounts[kind], booking.amount
            is_right = booked >= used if may_be_more else booked == used
            holds(is_right, f"{booked} {kind} are booked for an answer of {used}")


def _nobody_is_asked_unseen(script: Script, ran: Ran) -> None:
    """The server was asked by attempts that are known here."""
    is_http = script.settings.door == "http"
    tries: Counter[str] = Counter()
    for way in ran.facts.tried:
        tries[way.name] += sum(one.writes if is_http else 1 for one in way.tries)
        twice = [one for one in way.tries if one.writes > 1]
        holds(all(one.writes == 2 for one in twice), f"{way.name} is written again and again")
    asks = Counter(asked.name for asked in ran.facts.asks)
    holds(asks <= tries, f"asked more often than tried: {asks - tries}")


def _silence_is_kept(script: Script, ran: Ran) -> None:
    """A Retry-After is for the whole endpoint: nobody asks before it is over."""
    if script.settings.door == "function":
        return
    times_s = [asked.at_s for asked in ran.facts.asks]
    for way in ran.facts.tried:
        for one in way.tries:
            wait_s = getattr(one.error, "retry_after_s", None)
            if not wait_s or one.ended_s is None or one.error.status not in _PARKING:
                continue
            until_s = one.ended_s + wait_s - _EPSILON_S
            # A call that has its leave keeps it while its connection has to be made anew.
            known_s = one.ended_s + HANDSHAKE_S + _EPSILON_S
            early = [at_s for at_s in times_s if known_s < at_s < until_s]
            holds(not early, f"asked at {early} although told at {one.ended_s} to wait {wait_s} s")


def _ends_in_time(script: Script, ran: Ran) -> None:
    """A drain waits for what is on the wire and starts nothing; an abort waits for nothing."""
    facts, settings = ran.facts, script.settings
    if facts.aborted_s is not None and ran.ended_s is not None:
        took_s = ran.ended_s - facts.aborted_s
        holds(took_s <= _ENDS_WITHIN_S, f"it went on for {took_s} s after the abort")
    if facts.drained_s is None:
        return
    late = [asked.name for asked in facts.asks if asked.at_s > facts.drained_s + _LOOKS_S + 0.01]
    holds(not late, f"asked although the run was to end: {late}")
    if facts.aborted_s is None and ran.ended_s is not None:
        took_s = ran.ended_s - facts.drained_s
        most_s = settings.timeouts.attempt_s + _ENDS_WITHIN_S + 0.2 * len(facts.taken)
        holds(took_s <= most_s, f"it went on for {took_s} s after the drain")
    has_grace = ran.report is not None and ran.report.stopped is None
    if facts.aborted_s is None and has_grace:
        cut = [w.name for w in facts.tried for t in w.tries if t.is_written and t.is_cancelled]
        failed = [w.name for w in facts.tried for t in w.tries if t.awaits_repeat]
        holds(set(cut) <= set(failed), f"cut short on the wire by a drain: {cut}")


def _rates_are_kept(script: Script, ended: list[Ran]) -> None:
    """No window of any run, or of two in a row, sees more requests than the limits allow."""
    limits = script.settings.limits
    times_s = [asked.at_s for ran in ended for asked in ran.facts.asks]
    for stated in limits.rates("requests"):
        rate = usable(stated, 1.0)
        if limits.profile == "bucket":
            _fits_a_bucket(times_s, rate.count, rate.window_s)
            continue
        for first_s, last_s in zip(times_s, times_s[rate.count :], strict=False):
            is_kept = last_s - first_s >= rate.window_s - _EPSILON_S
            holds(is_kept, f"{rate.count + 1} requests in {last_s - first_s} s, against {rate}")


def _fits_a_bucket(times_s: list[float], count: int, window_s: float) -> None:
    level, before_s = float(count), -1e9
    # A call is paid for when it gets its leave, and may have to make its connection anew after it.
    owed = HANDSHAKE_S * count / window_s + _EPSILON_S
    for at_s in times_s:
        level = min(count, level + (at_s - before_s) * count / window_s) - 1
        holds(level >= -owed, f"a bucket of {count}/{window_s} s is overdrawn at {at_s}")
        before_s = at_s
