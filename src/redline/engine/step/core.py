"""Runs the engine's steps in the caller's thread: draft, plan, compute, judge and report."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from redline.clock import SYSTEM
from redline.engine.draft import Chance, Drafter, DraftLength, Drafts, Judged, judge
from redline.engine.model import Piece, Work
from redline.engine.sample import Guide, SamplingParams, row_seed
from redline.engine.schedule import Figures, Plan, Row, Scheduler, Sequence
from redline.errors import RedlineError, Rejected

_STATUS_FAILED = 500
_NO_NUMBERS = (
    "the model's logits for this request are not numbers: its weights may be broken, or its values "
    "too large for its dtype; try float32"
)


class Computer(Protocol):
    """Computes steps with a model in this process, or in several ranks."""

    @property
    def steps_at_once(self) -> int:
        """The number of steps to keep under way together, so that every stage is busy."""

    @property
    def parameter_bytes(self) -> list[int]:
        """The bytes of the parameters in each computing process."""

    def submit(self, work: Work) -> None:
        """Begins to compute a step. Raises EngineFailed if that is impossible."""

    def result(self) -> Tensor:
        """Returns (heard, vocabulary) float32 logits of the oldest step not yet returned.

        Raises EngineFailed if the step could not be computed.
        """

    def watch(self, told: Callable[[RedlineError], None]) -> None:
        """Registers `told`, which is called, perhaps in another thread, if another process ends.

        A failure in this process surfaces only in a step.
        """

    def close(self) -> None:
        """Stops computing and ends the computer's other processes, if any."""


class Asker(Protocol):
    """Receives a sequence's tokens."""

    def heard(self, tokens: list[int], chances: list[Chance]) -> str | None:
        """Takes new tokens. Returns the reason if they end the sequence, otherwise None.

        chances: one for each token if the request asks for log probabilities, otherwise empty.
        """

    def ended(self, reason: str | RedlineError) -> None:
        """Receives the reason why the sequence ended: `stop`, `length`, or an error."""


class Ask(NamedTuple):
    """A request for one sequence.

    most_tokens: the maximum of prompt and answer together. priority: lower comes first. choice: the
    answer's index among the request's `n` answers. guide: the answer's own state in the grammar
    that it must follow; None for free text.
    """

    prompt: list[int]
    params: SamplingParams
    most_tokens: int
    asker: Asker
    priority: int = 0
    choice: int = 0
    guide: Guide | None = None


class Speculation(NamedTuple):
    """The drafter, and the choice of how many tokens it drafts."""

    drafter: Drafter
    lengths: DraftLength


class _Begun(NamedTuple):
    """A step that is being computed.

    is_usual: the step reads no prompt, and the draft model did not have to catch up.
    """

    plan: Plan
    laws: dict[int, Tensor]
    is_usual: bool
    since_s: float


class Core:
    """Computes the tokens of sequences, step by step. ends: the tokens that end an answer."""

    def __init__(
        self,
        scheduler: Scheduler,
        computer: Computer,
        *,
        ends: frozenset[int],
        speculation: Speculation | None = None,
        now_s: Callable[[], float] = SYSTEM.now_s,
    ) -> None:
        self.scheduler = scheduler
        self.figures = Figures()
        self.computer = computer
        self._ends = ends
        self._speculation = speculation
        self._now_s = now_s
        self._under_way: deque[_Begun] = deque()
        self._number = 0

    def add(self, ask: Ask, now_s: float) -> Sequence:
        """Adds a sequence to the queue, and returns it. Raises QueueFull if there is no room."""
        sequence = Sequence(
            tokens=list(ask.prompt),
            params=ask.params,
            seed=row_seed(ask.params.seed, ask.choice),
            is_seeded=ask.params.seed is not None,
            number=self._number,
            most_tokens=ask.most_tokens,
            priority=ask.priority,
            guide=ask.guide,
            asker=ask.asker,
        )
        self.scheduler.add(sequence, now_s)
        self.figures.prompt_tokens += len(ask.prompt)
        self._number += 1
        return sequence

    def step(self) -> list[Sequence]:
        """Begins steps until `steps_at_once` are under way, then completes the oldest.

        Returns the sequences that the completed step ended.
        """
        while len(self._under_way) < self.computer.steps_at_once and self._begin():
            pass
        return self._finish(self._under_way.popleft()) if self._under_way else []

    def _begin(self) -> bool:
        """Begins the next step. Returns False if there is nothing to compute."""
        since_s = self._now_s()
        drafts = self._draft()
        plan = self.scheduler.plan()
        if not plan.rows:
            return False
        is_usual = drafts.is_usual and all(row.sequence.is_caught_up for row in plan.rows)
        self._under_way.append(_Begun(plan, drafts.laws, is_usual, since_s))
        self.computer.submit(_work(plan))
        return True

    def _finish(self, begun: _Begun) -> list[Sequence]:
        logits = self.computer.result()
        whole = [row for row in begun.plan.rows if row.is_whole]
        judged = judge([row.sequence for row in whole], logits, begun.laws)
        for row in begun.plan.rows:
            if not row.is_whole:
                self.scheduler.computed(row, [], 0)
        self._measure(begun, whole, judged)
        return [
            row.sequence
            for row, found in zip(whole, judged, strict=True)
            if self._advance(row, found)
        ]

    def _draft(self) -> Drafts:
        """Drafts tokens for the sequences whose next step yields a token."""
        if self._speculation is None:
            return Drafts({})
        ready = [one for one in self.scheduler.ready() if one.is_caught_up]
        length = self._speculation.lengths.choose(len(ready)) if ready else 0
        # The token after the drafts must fit, too.
        allowed = [(one, min(length, one.most_tokens - len(one.tokens) - 1)) for one in ready]
        asked = [each for each in allowed if each[1] > 0]
        if not asked:
            return Drafts({})
        drafts = self._speculation.drafter.draft(*map(list, zip(*asked, strict=True)))
        for one, _ in asked:
            if one.guide is not None:
                del one.drafted[one.guide.fitting(one.drafted) :]
        return drafts

    def _measure(self, begun: _Begun, whole: list[Row], judged: list[Judged]) -> None:
        """Counts the step in the figures; draft lengths learn from its drafts and duration."""
        drafted = [len(row.sequence.drafted) for row in whole]
        kept = [found.kept for found in judged]
        self.figures.add(begun.plan, drafted, kept)
        if self._speculation is None or not whole:
            return
        is_lookup = not begun.laws
        # If all drafts were dropped for lack of room, the step still spent time on drafting.
        is_clean = begun.is_usual and (any(drafted) or is_lookup)
        step_s = self._now_s() - begun.since_s if is_clean else None
        if is_lookup and any(drafted):
            # A lookup that finds nothing counts as a rejected draft.
            drafted = [max(made, 1) for made in drafted]
        self._speculation.lengths.measured(drafted, kept, step_s)

    def _advance(self, row: Row, found: Judged) -> bool:
        """Adds new tokens to a sequence, up to its end. Returns whether this step ended it."""
        sequence, params, tokens = row.sequence, row.sequence.params, found.tokens
        reason: str | RedlineError | None = None
        for place, token in enumerate(tokens):
            is_end = token in self._ends and not params.ignore_eos
            if is_end or token in params.stop_token_ids:
                tokens, reason = tokens[: place + 1], "stop"
                break
        if not tokens:
            # Rejected, because a retry would fail in the same way.
            reason = Rejected(_NO_NUMBERS, status=_STATUS_FAILED)
        elif sequence.guide is not None:
            tokens = sequence.guide.take(tokens)
            reason = sequence.guide.ended or reason
        self.scheduler.computed(row, tokens, min(found.kept, len(tokens)))
        if sequence.ended is not None:
            return False
        self.figures.new_tokens += len(tokens)
        if tokens:
            told = sequence.asker.heard(tokens, found.chances[: len(tokens)])
            reason = reason or told
        if reason is None and len(sequence.tokens) >= sequence.most_tokens:
            reason = "length"
        if reason is not None:
            self.scheduler.end(sequence, reason)
        return reason is not None


def _work(plan: Plan) -> Work:
    """Converts a plan to the work of a step."""
    pieces: list[Piece] = []
    tokens: list[int] = []
    heard: list[int] = []
    for sequence, count, is_whole in plan.rows:
        assert sequence.slot is not None
        pieces.append(Piece(sequence.slot, sequence.computed, count))
        begin = sequence.computed
        known = sequence.tokens[begin : begin + count]
        tokens += known + sequence.drafted[: count - len(known)]
        if is_whole:
            heard += range(len(tokens) - len(sequence.drafted) - 1, len(tokens))
    return Work(plan.copies, pieces, tokens, heard)
