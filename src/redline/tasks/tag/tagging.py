"""Tags rows by a schema: finds the JSON in an answer, validates it, and asks again if necessary.

  answer                                consequence
  contains a valid tag                  the row gets the tag
  contains none                         the model is asked again, with the answer and its problem,
                                        at most `reasks` times
  contains none, and is a refusal or    the row fails: the same question would end the same way
  was cut by a filter
  contains none, and is the last one    the row fails with the problem
  that is allowed

The prompt contains the schema, and so does `response_format` if the endpoint accepts it
(structured.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from redline.calls import Outcome, Request
from redline.errors import Rejected
from redline.job.settings import Ask
from redline.process import counted
from redline.tasks.answers import find_json
from redline.tasks.evaluate import UsageSum, in_thread_if_long
from redline.tasks.tag.schema import Schema
from redline.tasks.tag.structured import Structured

_ENDINGS: dict[str | None, str] = {
    "length": "the answer was cut at the token limit before its JSON was whole",
    "refusal": "the model refused to answer",
    "content_filter": "the answer was cut by a content filter",
}
# Asking again would end the same way.
_FINAL_ENDINGS = ("refusal", "content_filter")
_LONGEST_QUOTE = 4_000


class Tagging:
    """A job's Task that tags rows.

    reasks: how many times a row may be asked again, 0 or more. response_format: one of FORMATS,
    which decides when a response format is sent.
    """

    def __init__(self, schema: Schema, *, reasks: int, response_format: str = "auto") -> None:
        self._schema = schema
        self._structured = Structured(schema, response_format)
        self.most_reasks = reasks

    @property
    def is_format_refused(self) -> bool:
        """Whether the endpoint refuses response formats, so only the prompt has the schema."""
        return self._structured.is_format_refused

    def settings(self) -> Mapping[str, Any]:
        # The number of re-asks decides which rows fail, not what a tag is.
        return {"schema": self._schema.json_schema}

    async def do(self, row: dict[str, Any], request: Request, ask: Ask) -> Outcome:
        plain = request = self._structured.instructed(request)
        used = UsageSum()
        reasks = 0
        while True:
            outcome = await self._structured.asked(request, ask)
            used.add(outcome)
            reply = outcome.reply
            if reply is None:
                break
            answer, reason = _first(reply.output), reply.finish_reasons[0]
            value, problem = await self._read(answer, reason)
            if not problem:
                reply.output = value
                break
            if reasks == self.most_reasks or reason in _FINAL_ENDINGS:
                outcome.status = "rejected"
                outcome.error = _no_answer(problem, reasks + 1, reason)
                break
            reasks += 1
            request = _again(plain, answer, problem)
        used.put_into(outcome)
        outcome.fields = {"reasks": reasks}
        return outcome

    async def _read(self, answer: Any, finish_reason: str | None) -> tuple[Any, str]:
        """Returns the tag in an answer and its problem, which is empty if the tag is valid."""
        if not isinstance(answer, str) or not answer.strip():
            value, problem = None, "the answer is empty"
        else:
            value, problem = await in_thread_if_long(answer, self._judged)
        return value, _ENDINGS.get(finish_reason, problem) if problem else ""

    def _judged(self, answer: str) -> tuple[Any, str]:
        found: Any = find_json(answer, self._schema.kind)
        if found is None:
            found = self._schema.bare(answer)
        if found is None:
            return None, _json_problem(answer)
        value, problems = self._schema.checked(found)
        return value, "; ".join(problems)


def _first(output: Any) -> Any:
    """Returns the first of several choices, as in every task."""
    return output[0] if isinstance(output, list) and output else output


def _json_problem(answer: str) -> str:
    """Describes why no tag was found in an answer."""
    start = answer.find("{")
    if start < 0:
        return "the answer holds no JSON"
    try:
        json.loads(answer[start : answer.rfind("}") + 1] or answer[start:])
    except (ValueError, RecursionError) as error:
        return f"its JSON is broken: {error}"
    return "the answer holds no JSON of the form that was asked for"


def _again(request: Request, answer: Any, problem: str) -> Request:
    """Returns the request with the answer and its problem as further messages."""
    said = answer if isinstance(answer, str) and answer.strip() else "(an empty answer)"
    messages = [
        *request.body["messages"],
        {"role": "assistant", "content": said[:_LONGEST_QUOTE]},
        {
            "role": "user",
            "content": f"That is not valid: {problem[:_LONGEST_QUOTE]}. Answer again, with the "
            "corrected JSON and nothing else.",
        },
    ]
    return msgspec.structs.replace(request, body={**request.body, "messages": messages})


def _no_answer(problem: str, tries: int, finish_reason: str | None) -> Rejected:
    if finish_reason in _FINAL_ENDINGS:
        return Rejected(problem, hint="check the row; with -o, the failures file has the answer")
    return Rejected(
        f"no valid answer in {counted(tries, 'try', 'tries')}; the last: {problem}",
        hint="raise --max-tokens"
        if finish_reason == "length"
        else "with -o, the failures file has the last answer",
    )
