"""Adds up the calls of a load, and computes its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import sub

import msgspec

from redline.calls.cost import DOLLAR
from redline.measure.callers import Answer
from redline.measure.figures import Failures, Figures, Goodput
from redline.measure.flow import Flow, rate
from redline.measure.slo import Objective, keeps
from redline.timeline import Spread

# At most this many kinds of errors are counted separately; all others are counted together.
_MOST_KINDS = 50
OTHERS = "other errors"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a load, with times in seconds since its start.

    full_s: from when the load was no longer at its full level. answered_s: when the last answer
    arrived, or full_s if that was later. unsent: requests that were due but never made. cut:
    requests that were cancelled. Neither counts requests of the warm-up. why: as in
    `Figures.ended`.
    """

    full_s: float
    answered_s: float
    unsent: int = 0
    cut: int = 0
    why: str = ""
    is_interrupted: bool = False


class Tally:
    """Adds up calls as they end; leaves calls of the first `warm_up_s` seconds out of most figures.

    begun_s: when the load began, monotonic. cost_of: returns the cost of an answer in picodollars;
    None if unknown. These include the warm-up: ended, failed and succeeded, which count requests;
    the used places in lists; and the costs.
    """

    def __init__(
        self,
        begun_s: float,
        warm_up_s: float,
        objectives: tuple[Objective, ...] = (),
        cost_of: Callable[[Answer], int | None] | None = None,
    ) -> None:
        self._begun_s, self._warm_up_s = begun_s, warm_up_s
        self._objectives, self._cost_of = objectives, cost_of
        self._requests, self._good, self._busy = Flow(), Flow(), Flow()
        self._input, self._output = Flow(), Flow()
        self._latency, self._from_send, self._waited = Spread(), Spread(), Spread()
        self._ttft, self._inter_token, self._tpot = Spread(), Spread(), Spread()
        self._failures = Counter[str]()
        self._examples = dict[str, str]()
        self._good_count = 0
        self._picodollars: int | None = 0
        self._has_tokens = self._is_estimated = False
        # Including the warm-up, for the progress display.
        self.ended = self.failed = self.succeeded = 0
        self._measured = self._measured_failed = 0
        # The number of requests that calls took, and the number that they could have taken.
        self._places_taken = self._places = 0

    def add(self, scheduled_s: float, begun_s: float, done_s: float, answer: Answer) -> None:
        """Adds an ended call, which was due at scheduled_s. All times are monotonic."""
        weight = answer.weight
        self.ended += weight
        # The user's own backend may have a coarser clock.
        sent_s = begun_s if answer.sent_s is None else min(max(begun_s, answer.sent_s), done_s)
        is_measured = scheduled_s - self._begun_s >= self._warm_up_s
        at_s, done_at_s = sent_s - self._begun_s, done_s - self._begun_s
        self._busy.add(at_s, done_at_s, (done_s - sent_s) * weight)
        if is_measured:
            self._measured += weight
            self._waited.add(max(0.0, answer.held_s))
        if answer.kind:
            self.failed += weight
            if is_measured:
                self._fail(answer)
            return
        self.succeeded += weight
        self._requests.add(at_s, done_at_s, weight)
        tokens = self._count_tokens(answer, at_s, done_at_s)
        texts_s = answer.texts_s
        first_s = texts_s[0] if texts_s else answer.first_s
        latency_s = done_s - scheduled_s
        ttft_s = None if first_s is None else first_s - scheduled_s
        tpot_s = None
        if len(texts_s) > 1 and tokens > 1:
            tpot_s = (texts_s[-1] - texts_s[0]) / (tokens - 1)
        is_good = keeps(self._objectives, latency_s, ttft_s, tpot_s)
        if is_good:
            self._good.add(at_s, done_at_s, weight)
        if not is_measured:
            return
        self._good_count += weight * is_good
        self._latency.extend([latency_s] * weight)
        self._from_send.extend([done_s - sent_s] * weight)
        if ttft_s is not None:
            self._ttft.add(ttft_s)
        self._inter_token.extend(map(sub, texts_s[1:], texts_s))
        if tpot_s is not None:
            self._tpot.add(tpot_s)

    def give_up(self, begun_s: float, now_s: float, weight: int) -> None:
        """Adds the in-flight time of a call that an interrupt ended at now_s."""
        spent_s = (now_s - begun_s) * weight
        self._busy.add(begun_s - self._begun_s, now_s - self._begun_s, spent_s)

    def _fail(self, answer: Answer) -> None:
        self._measured_failed += answer.weight
        kind = answer.kind
        if kind not in self._failures and len(self._failures) >= _MOST_KINDS:
            kind = OTHERS
        self._failures[kind] += answer.weight
        self._examples.setdefault(kind, answer.example)

    def _count_tokens(self, answer: Answer, begin_s: float, end_s: float) -> int:
        """Adds an answer's tokens and cost, and returns its output tokens.

        The output tokens come from its usage; without usage, they are the number of its chunks with
        text.
        """
        if self._picodollars is not None and self._cost_of is not None:
            cost = self._cost_of(answer)
            self._picodollars = None if cost is None else self._picodollars + cost
        output = answer.output_tokens
        if output is None and answer.texts_s:
            output = len(answer.texts_s)
            self._is_estimated = True
        if output is None and answer.input_tokens is None:
            return 0
        self._has_tokens = True
        self._output.add(begin_s, end_s, output or 0)
        self._input.add(begin_s, end_s, answer.input_tokens or 0)
        return output or 0

    def offered(self, taken: int, places: int) -> None:
        """Records a call with `taken` requests that had room for `places` requests."""
        self._places_taken += taken
        self._places += places

    def batch_fill(self) -> float | None:
        """Returns the used share of the places in calls, 0 to 1; None before the first call."""
        return self._places_taken / self._places if self._places else None

    def window_s(self, ended: Ended) -> tuple[float, float]:
        """Returns the beginning and the end of the measured window, in seconds since the start.

        The window ends when the load is no longer at its full level. If it would then be shorter
        than a typical call, as with a limit of a few requests, it ends with the last answer.
        """
        end_s, calls = ended.full_s, self._from_send.quantiles()
        if calls is None or end_s - self._warm_up_s < calls.p50_s:
            end_s = ended.answered_s
        return self._warm_up_s, max(end_s, self._warm_up_s + 1e-3)

    def figures(self, target: str, load: str, concurrency: int, ended: Ended) -> Figures:
        """Returns the figures of all calls so far."""
        begin_s, end_s = self.window_s(ended)
        latency, from_send = self._latency.quantiles(), self._from_send.quantiles()
        call_s = 0.0 if from_send is None else from_send.mean_s
        requests = rate(self._requests, begin_s, end_s, call_s)
        input_per_s = output_per_s = None
        if self._has_tokens:
            if not self._is_estimated:
                input_per_s = rate(self._input, begin_s, end_s).per_s
            output_per_s = rate(self._output, begin_s, end_s).per_s
        has_cost = self._cost_of is not None and self._picodollars is not None
        return Figures(
            target=target,
            load=load,
            concurrency=concurrency,
            seconds=end_s - begin_s,
            scheduled=self._measured + ended.unsent + ended.cut,
            succeeded=self._measured - self._measured_failed,
            failed=self._measured_failed,
            unsent=ended.unsent,
            cut=ended.cut,
            warm_up=self.ended - self._measured,
            requests=requests,
            input_tokens_per_s=input_per_s,
            output_tokens_per_s=output_per_s,
            tokens_per_s=None if output_per_s is None else output_per_s + (input_per_s or 0.0),
            is_token_count_estimated=self._is_estimated,
            in_flight=rate(self._busy, begin_s, end_s).per_s,
            latency=latency,
            from_send=from_send,
            ttft=self._ttft.quantiles(),
            inter_token=self._inter_token.quantiles(),
            tpot=self._tpot.quantiles(),
            waited=self._waited.quantiles(),
            goodput=self._goodput(begin_s, end_s, call_s, ended.unsent + ended.cut),
            concurrent_users=None if latency is None else requests.per_s * latency.mean_s,
            spent_usd=float(self._picodollars or 0) / DOLLAR if has_cost else None,
            failures=tuple(
                Failures(kind=kind, count=count, example=self._examples[kind])
                for kind, count in self._failures.most_common()
            ),
            ended=ended.why,
            is_interrupted=ended.is_interrupted,
        )

    def _goodput(self, begin_s: float, end_s: float, call_s: float, missing: int) -> Goodput | None:
        if not self._objectives:
            return None
        return Goodput(
            objectives=",".join(map(str, self._objectives)),
            rate=rate(self._good, begin_s, end_s, call_s),
            share=self._good_count / max(1, self._measured + missing),
        )
