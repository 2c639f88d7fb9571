"""Describes an evaluation, and grades each answer.

A result line has the fields `correct`, `strict` and `extracted`, and a verdict on the answer, the
first of these that applies:

  correct     the answer is right, even if it was cut
  truncated   the answer was cut at the token limit and is not right
  filtered    a content filter cut the answer, or the model refused
  invalid     the answer contains nothing that could be graded
  wrong       an answer was found, but not the right one

A question whose call failed is in the failures file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec

from redline.calls import Outcome, Request
from redline.errors import ConfigError, Rejected
from redline.job.settings import Ask
from redline.process import listed
from redline.tasks.answers import spoken
from redline.tasks.evaluate.judge import MOST_REASKS, Judge, JudgeSettings
from redline.tasks.evaluate.metrics import Grade, Metric, metric_of
from redline.tasks.evaluate.text import in_thread_if_long
from redline.tasks.evaluate.usage_sum import UsageSum

VERDICTS = ("correct", "wrong", "invalid", "truncated", "filtered")
_FILTERED = ("content_filter", "refusal")
_GSM8K_PROMPT = (
    "{{ question }}\n\n"
    "Work it out step by step. Then give the final number alone on the last line, after four hash "
    "signs, as in: #### 42"
)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A test set and how it is graded.

    prompt, system: Jinja templates that use a question's columns. gold: the column of the right
    answer. metric: one of METRICS in metrics.py; pattern, fields, letters and judge each belong to
    one metric. shots: the number of examples before each question, 0 to 1,000: the first rows of
    `shots_file`, with their gold answers. params: parameters of each request.
    """

    name: str
    prompt: str
    gold: str = "answer"
    metric: str = "exact"
    system: str | None = None
    pattern: str | None = None
    fields: tuple[str, ...] = ()
    letters: str = "ABCD"
    judge: JudgeSettings | None = None
    shots: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    shots_file: str | None = None
    params: dict[str, Any] = msgspec.field(default_factory=dict)


GSM8K = Evaluation(name="gsm8k", prompt=_GSM8K_PROMPT, metric="number")
BUILT_IN = {GSM8K.name: GSM8K}


class Grading:
    """A job's Task that asks each question and grades the answer.

    Raises ConfigError if the metric or the judge is not valid.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self._gold = evaluation.gold
        judge = evaluation.judge
        if (evaluation.metric == "judge") != (judge is not None):
            raise ConfigError(
                f"the metric `{evaluation.metric}` takes no judge"
                if judge
                else "the metric `judge` needs a table [judge]",
                hint='metric = "judge", and below it [judge] with model = "..."',
            )
        self._judge = None if judge is None else Judge(judge)
        # A judge grades in place of the metric, which then only reads the gold answer as text.
        self._metric = Metric()
        if judge is None:
            self._metric = metric_of(
                evaluation.metric,
                pattern=evaluation.pattern,
                fields=evaluation.fields,
                letters=evaluation.letters,
            )
        # A judge needs a second call, which a batch cannot make.
        self.asks_once = judge is None
        self.most_reasks = 0 if judge is None else MOST_REASKS
        self._settings = {
            "metric": evaluation.metric,
            "gold": evaluation.gold,
            "pattern": evaluation.pattern,
            "fields": list(evaluation.fields),
            "letters": evaluation.letters,
        }
        if judge is not None:
            self._settings["judge"] = msgspec.to_builtins(judge)

    def settings(self) -> Mapping[str, Any]:
        return self._settings

    async def do(self, row: dict[str, Any], request: Request, ask: Ask) -> Outcome:
        # Check the gold answer before the call costs anything.
        gold = self._gold_of(row)
        right = self._metric.read(gold)
        used, judging = UsageSum(), UsageSum()

        async def asked_judge(request: Request) -> Outcome:
            outcome = await ask(request)
            used.add(outcome)
            judging.add(outcome)
            return outcome

        outcome = await ask(request)
        used.add(outcome)
        if outcome.reply is None:
            return outcome
        answer = outcome.reply.output
        # As in every task, the first of several choices in a reply is the answer.
        answer = answer[0] if isinstance(answer, list) and answer else answer
        text = answer if isinstance(answer, str) else ""
        reason = outcome.reply.finish_reasons[0]
        fields: dict[str, Any] = {}
        if self._judge is None:
            measure = partial(self._metric.grade, right=right, is_cut=reason == "length")
            grade = await in_thread_if_long(text, measure)
        elif not (text := await in_thread_if_long(text, spoken)).strip():
            grade = Grade()
        else:
            seen = self._seen(row, request, text)
            judgement = await self._judge.judge(seen, request, asked_judge)
            if isinstance(judgement, Outcome):
                used.put_into(judgement)
                return judgement
            used.put_into(outcome)
            grade, fields["judgement"] = judgement
        if self._judge is not None and (judge_usage := judging.paid()) is not None:
            fields["judge_usage"] = judge_usage
        outcome.fields = {
            "correct": grade.correct,
            "strict": grade.strict,
            "extracted": grade.extracted,
            "verdict": verdict(grade, reason),
            **fields,
        }
        return outcome

    def following(self, row: dict[str, Any], request: Request) -> Request | None:
        if self._judge is None:
            return None
        return self._judge.request(self._seen(row, request, ""), request)

    def _seen(self, row: dict[str, Any], request: Request, reply: str) -> dict[str, Any]:
        """Returns the columns of the judge's prompt."""
        return {**row, "asked": _asked(request), "gold": self._gold_of(row), "reply": reply}

    def example(self, row: dict[str, Any]) -> str:
        """Returns a right answer for this row. Raises Rejected if there is none."""
        gold = self._gold_of(row)
        self._metric.read(gold)
        return self._metric.example(gold)

    def _gold_of(self, row: dict[str, Any]) -> Any:
        if self._gold not in row:
            raise Rejected(
                f"the question has no column {self._gold} with its right answer; "
                f"the row's columns are: {listed(row)}",
                hint='rename the column, or name it in a task file: gold = "COLUMN"',
            )
        return row[self._gold]


def _asked(request: Request) -> Any:
    """Returns the content of the last message, or the prompt of an API without messages."""
    body = request.body if isinstance(request.body, dict) else {}
    messages = body.get("messages")
    return messages[-1].get("content", "") if messages else body.get("prompt", "")


def verdict(grade: Grade, finish_reason: str | None) -> str:
    """Returns the verdict on an answer; the table above defines each."""
    if grade.correct:
        return "correct"
    if finish_reason == "length":
        return "truncated"
    if finish_reason in _FILTERED:
        return "filtered"
    return "invalid" if grade.extracted is None else "wrong"
