"""Finds breached alert rules from the successive windows of a run.

rule is  when its figure                                what happens
quiet    is within the threshold, or unknown            nothing
pending  has been beyond it for less than `for_s`       nothing
firing   has been beyond it for `for_s`                 one alert, `firing`
ending   has been within it, or unknown, for less than  nothing; if the figure goes
         `for_s` since the alert                        beyond it again: firing
quiet    has been within it, or unknown, for `for_s`    the same alert, `ended`

The end of a run ends all of its alerts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import msgspec
from msgspec.structs import replace

from redline.observe.alert_figures import BEST_S, Seen, tokens_per_s
from redline.observe.alert_rules import KNOWN_RULES, Rule
from redline.timeline import Window


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert.

    rule, threshold, for_s: as in its rule. number: counts the alerts of the run, from 1. value: the
    latest value of the figure. since_s: when the figure first was beyond the threshold. at_s: when
    the alert began or ended; both in seconds since the run began. what: one sentence. advice: a
    change with its predicted gain, or a rule of thumb.
    """

    rule: str
    number: int
    state: Literal["firing", "ended"]
    threshold: float
    for_s: float
    value: float
    since_s: float
    at_s: float
    what: str
    advice: str

    @property
    def text(self) -> str:
        """The problem and what may help, in one line."""
        return f"{self.what}; {self.advice}"


class _State(msgspec.Struct):
    """The state of one rule.

    beyond_s, within_s: when its figure went beyond the threshold, or came back within it, in
    seconds since the run began; None if the figure is not on that side. alert: the firing one.
    """

    beyond_s: float | None = None
    within_s: float | None = None
    alert: Alert | None = None


class Alerts:
    """Tracks the alerts of one run. budget_usd, budget_tokens: None without such a budget."""

    def __init__(
        self,
        rules: Sequence[Rule],
        *,
        budget_usd: float | None = None,
        budget_tokens: int | None = None,
    ) -> None:
        self._rules = [(rule, _State()) for rule in rules]
        self._seen = partial(Seen, budget_usd=budget_usd, budget_tokens=budget_tokens)
        self._best = 0.0
        self._count = 0

    @property
    def firing(self) -> list[Alert]:
        """The alerts that have begun and not ended."""
        return [state.alert for _, state in self._rules if state.alert is not None]

    def note(self, windows: Sequence[Window]) -> list[Alert]:
        """Returns the alerts that begin or end with the last of these windows of the run."""
        seen = self._seen(windows=windows, best_tokens_per_s=self._best)
        self._best = max(self._best, tokens_per_s(seen, BEST_S) or 0.0)
        found = (self._step(rule, state, seen) for rule, state in self._rules)
        return [alert for alert in found if alert is not None]

    def end(self, now_s: float) -> list[Alert]:
        """Ends the firing alerts at the end of the run. now_s: seconds since the run began."""
        ended = [_ended(alert, alert.value, now_s, "the run has ended") for alert in self.firing]
        for _, state in self._rules:
            state.alert = None
        return ended

    def _step(self, rule: Rule, state: _State, seen: Seen) -> Alert | None:
        known, window = KNOWN_RULES[rule.name], seen.windows[-1]
        now_s, alert = window.end_s, state.alert
        value = known.figure(seen, rule.span_s)
        if value is not None and known.is_beyond(value, rule.threshold):
            state.within_s = None
            if state.beyond_s is None:
                state.beyond_s = window.begin_s if alert is None else alert.since_s
            lasts_s, beyond = now_s - state.beyond_s, known.beyond(rule.threshold)
            what = f"{known.what} {beyond} for {lasts_s:.0f} s: {known.shown(value)}"
            if alert is not None:
                state.alert = replace(alert, value=value, what=what)
                return None
            if lasts_s < rule.for_s:
                return None
            self._count += 1
            state.alert = Alert(
                rule=rule.name,
                number=self._count,
                state="firing",
                threshold=rule.threshold,
                for_s=rule.for_s,
                value=value,
                since_s=state.beyond_s,
                at_s=now_s,
                what=what,
                advice=known.advice(seen, rule.span_s),
            )
            return state.alert
        state.beyond_s = None
        if state.within_s is None:
            state.within_s = window.begin_s
        if alert is None or now_s - state.within_s < rule.for_s:
            return None
        state.alert = state.within_s = None
        shown = "unknown" if value is None else known.shown(value)
        return _ended(alert, alert.value if value is None else value, now_s, f"{shown} now")


def _ended(alert: Alert, value: float, now_s: float, how: str) -> Alert:
    known = KNOWN_RULES[alert.rule]
    what = f"{known.what} no longer {known.beyond(alert.threshold)}: {how}"
    return replace(alert, state="ended", value=value, at_s=now_s, what=what)
