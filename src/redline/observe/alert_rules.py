"""Defines the rules that raise alerts, and the advice that each rule gives.

rule              figure                                    breached  usual  for
error_rate        share of the attempts that failed         above     20 %   30 s
tokens_falling    tokens/s relative to the best minute      below     50 %   60 s
queue_growth      waiting calls relative to 30 s earlier    above     1.2    60 s
budget_burn       expected cost relative to the budget      above     100 %  30 s
batch_efficiency  used slots in a model's batches           below     70 %   60 s
gpu_utilization   time in which a model's GPU computes      below     50 %   60 s
rows_per_s        rows/s                                    below     -      60 s
tokens_per_s      tokens/s                                  below     -      60 s

An alert is raised once the figure has been beyond its threshold for the time in the column `for`. A
job may set another threshold and another time.
The figure covers that many of the last seconds, but at least 3 and at most 30;
`queue_growth` and `budget_burn` have spans of their own. A rule whose usual threshold is `-` is a
target: it applies only to a job that sets a threshold. Only a model in the run's own process has
figures for `batch_efficiency` and `gpu_utilization`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

import msgspec

from redline.errors import ConfigError
from redline.observe import alert_figures as figures
from redline.observe.alert_figures import Seen
from redline.observe.binding import current
from redline.observe.causes import Cause
from redline.observe.prediction import best_of, gain_text, predictions
from redline.timeline import TIMELINE_VERSION, RunFacts, RunHistory

_LEAST_S, _MOST_S = 3.0, 30.0
Word = Literal["above", "below"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that raises an alert once its figure has been beyond the threshold for `for_s`.

    name: one of KNOWN_RULES. is_stated: whether the user has set the rule.
    """

    name: str
    threshold: float
    for_s: float
    is_stated: bool = False

    @property
    def span_s(self) -> float:
        """The number of seconds that the rule's figure covers."""
        return min(max(self.for_s, _LEAST_S), _MOST_S)


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The alert rules of a job.

    webhook: the URL to which alerts are posted; "" for none.
    """

    rules: tuple[Rule, ...]
    webhook: str = ""

    def __repr__(self) -> str:
        """Leaves out the webhook's URL, because its path is often a secret."""
        return f"AlertSettings({len(self.rules)} rules{', a webhook' if self.webhook else ''})"

    def refuse_without_figures(self, names: Collection[str]) -> None:
        """Raises ConfigError if the user has set a rule with one of these names.

        names: rules for which the job has no figure. A built-in rule without a figure stays silent.
        """
        for rule in self.rules:
            if rule.is_stated and rule.name in names:
                why, source = OF_A_MODEL[rule.name]
                raise ConfigError(
                    f"the job has no figure for the alert {rule.name}: {why}",
                    where="alerts",
                    hint=f"leave it out; {source}",
                )


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of one rule.

    word: the side of the threshold that is a breach. usual: the default threshold; None for a
    target. for_s: the default duration. what: the figure in words. figure, advice: called with a
    Seen and the rule's `span_s`. is_share: the figure and the threshold are shown in per cent.
    is_part: the figure is a part of a whole, so a threshold must be below 100 %.
    """

    word: Word
    usual: float | None
    for_s: float
    what: str
    figure: Callable[[Seen, float], float | None]
    advice: Callable[[Seen, float], str]
    is_share: bool = False
    is_part: bool = False

    def is_beyond(self, value: float, threshold: float) -> bool:
        return value > threshold if self.word == "above" else value < threshold

    def beyond(self, threshold: float) -> str:
        """Returns words such as `above 20 %`."""
        return f"{self.word} {self.shown(threshold)}"

    def shown(self, value: float) -> str:
        if self.is_share:
            return f"{100 * value:.0f} %"
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_BY_CAUSE = {
    Cause.INPUT: "a faster source of rows",
    Cause.CLIENT: "a CPU that is less busy, or several processes that share the limits (--share)",
    Cause.LIMIT: "a higher limit or budget, or another key or endpoint",
    Cause.CONCURRENCY: "more calls in flight (-c)",
    Cause.ENDPOINT: "another endpoint or replica; more calls in flight would only wait there",
    Cause.DOWN: "waiting for the endpoint, or an additional endpoint",
    Cause.WRITER: "a faster disk, or a faster reader of the results",
}
_BY_ERROR = {
    "rate_limited": "a lower --rpm or --tpm, or --rate auto, which finds the limits",
    "timed_out": "a longer --timeout, or fewer calls in flight (-c)",
    "server_failed": "fewer calls in flight (-c), or another endpoint",
    "disconnected": "fewer calls in flight (-c), or another endpoint",
    "rejected": "check the failed rows: the endpoint rejects their requests",
    "bad_reply": "check the failed rows: their answers cannot be read",
}


def _thumb(advice: str) -> str:
    return f"rule of thumb: {advice}"


def _by_what_binds(seen: Seen, span_s: float) -> str:
    binding = current(seen.windows)
    if binding is None or binding.cause not in _BY_CAUSE:
        return _thumb("check what binds: redline status")
    return f"{_by_fit(seen) or _thumb(_BY_CAUSE[binding.cause])} (bound by {binding.what})"


def _by_fit(seen: Seen) -> str:
    """Returns advice for the change with the largest predicted gain; "" without a clear gain."""
    endpoints = tuple(one.name for one in seen.windows[-1].endpoints)
    facts = RunFacts(v=TIMELINE_VERSION, at=0.0, endpoints=endpoints)
    found = predictions([RunHistory(facts=facts, windows=list(seen.windows))])
    best = None if isinstance(found, str) else best_of(found)
    return "" if best is None else f"{best.change} would bring {gain_text(best)}"


def _by_error(seen: Seen, span_s: float) -> str:
    kind = next(iter(figures.errors_lately(seen, span_s)), "")
    advice = _BY_ERROR.get(kind, "check the errors: redline status")
    return _thumb(f"{advice} (most are {kind})" if kind else advice)


def _always(advice: str) -> Callable[[Seen, float], str]:
    return lambda seen, span_s: _thumb(advice)


KNOWN_RULES = {
    "error_rate": Known(
        word="above",
        usual=0.2,
        for_s=30.0,
        what="failed attempts",
        figure=figures.error_rate,
        advice=_by_error,
        is_share=True,
        is_part=True,
    ),
    "tokens_falling": Known(
        word="below",
        usual=0.5,
        for_s=60.0,
        what="tokens/s relative to the best minute",
        figure=figures.tokens_of_best,
        advice=_by_what_binds,
        is_share=True,
        is_part=True,
    ),
    "queue_growth": Known(
        word="above",
        usual=1.2,
        for_s=60.0,
        what="waiting calls relative to 30 s earlier",
        figure=figures.queue_growth,
        advice=_always(
            "fewer calls in flight (-c), or a higher limit: calls queue faster than they finish"
        ),
    ),
    "budget_burn": Known(
        word="above",
        usual=1.0,
        for_s=30.0,
        what="expected cost relative to the budget",
        figure=figures.budget_burn,
        advice=_always(
            "a larger --budget, fewer rows (--limit), shorter answers (--max-tokens), "
            "or --via batch"
        ),
        is_share=True,
    ),
    "batch_efficiency": Known(
        word="below",
        usual=0.7,
        for_s=60.0,
        what="used slots in the model's batches",
        figure=figures.batch_efficiency,
        advice=_always("more calls in flight (-c), or a smaller max_batch_size"),
        is_share=True,
        is_part=True,
    ),
    "gpu_utilization": Known(
        word="below",
        usual=0.5,
        for_s=60.0,
        what="time in which the GPU computes",
        figure=figures.gpu_utilization,
        advice=_always("more calls in flight (-c), and a larger max_batch_size"),
        is_share=True,
        is_part=True,
    ),
    "rows_per_s": Known(
        word="below",
        usual=None,
        for_s=60.0,
        what="rows/s",
        figure=figures.rows_per_s,
        advice=_by_what_binds,
    ),
    "tokens_per_s": Known(
        word="below",
        usual=None,
        for_s=60.0,
        what="tokens/s",
        figure=figures.tokens_per_s,
        advice=_by_what_binds,
    ),
}
# The rules for which not every job has a figure: why it is missing, and what provides it.
OF_A_MODEL = {
    "batch_efficiency": (
        "an endpoint does not report how full its batches are",
        "a model in the run's own process reports it: --endpoint engine:MODEL",
    ),
    "gpu_utilization": (
        "no GPU of the run's own process can be read",
        "the figure needs --endpoint engine:MODEL, a GPU and `pip install nvidia-ml-py`",
    ),
}
BUILT_IN = tuple(
    Rule(name=name, threshold=known.usual, for_s=known.for_s)
    for name, known in KNOWN_RULES.items()
    if known.usual is not None
)
