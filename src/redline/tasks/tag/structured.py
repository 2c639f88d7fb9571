"""Asks for JSON by a schema: in words always, and by `response_format` as far as it is taken.

The format is OpenAI's strict one if the schema can be put in that form, then the schema as it is,
then none: an endpoint that refuses one is asked with the next, and from then on only with that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from redline.calls import Outcome, Request
from redline.errors import BadReply, Rejected, ServerFailed
from redline.job.settings import Ask
from redline.tasks.tag.schema import Schema

FORMATS = ("auto", "always", "never")
# What servers say to a parameter that they do not know, or not in this form. OpenRouter says 404
# if no provider of a model takes it.
_REFUSALS = frozenset({400, 404, 415, 422})
# With these words, any status is such a refusal: gateways say 500, 501 or even 200.
_FORMAT_WORDS = re.compile(
    r"response_?format|json_schema|structured output|guided|\bstrict\b", re.IGNORECASE
)


class Structured:
    """Requests for answers by `schema`. mode: one of FORMATS; `auto` sends a format until it is
    refused, `always` sends the first one and nothing else.

    instructions: what the prompt says of the answer.
    """

    def __init__(self, schema: Schema, mode: str = "auto") -> None:
        shown = msgspec.json.encode(schema.json_schema).decode()
        self.instructions = (
            "Answer with JSON and nothing else: no explanation, no code fence. The answer must be "
            f"valid by this JSON Schema:\n{shown}"
        )
        self._formats = [] if mode == "never" else _formats(schema)
        self._falls_back = mode == "auto"
        self._at = 0
        self._is_taken = False

    @property
    def is_format_refused(self) -> bool:
        """The endpoint took no format, so none is sent any more."""
        return 0 < len(self._formats) == self._at

    def instructed(self, request: Request) -> Request:
        """The request with the instructions in its system message; once, if they are there.

        Raises Rejected for a request without messages.
        """
        body = request.body
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list) or not messages:
            raise Rejected(
                "only chat completions can answer by a schema: the request to "
                f"{request.url} has no messages"
            )
        first, *others = messages
        is_system = isinstance(first, dict) and first.get("role") in ("system", "developer")
        content = first.get("content") if is_system else None
        if isinstance(content, str):
            if content.endswith(self.instructions):
                return request
            first = {**first, "content": f"{content}\n\n{self.instructions}"}
        elif isinstance(content, list):
            part = {"type": "text", "text": self.instructions}
            first = {**first, "content": [*content, part]}
        else:
            first, others = {"role": "system", "content": self.instructions}, messages
        return msgspec.structs.replace(request, body={**body, "messages": [first, *others]})

    async def asked(self, request: Request, ask: Ask) -> Outcome:
        """The outcome of one request, with the best format that the endpoint takes.

        A request's own response_format stays as it is.
        """
        if "response_format" in request.body:
            return await ask(request)
        at = self._at
        while at < len(self._formats):
            body = {**request.body, "response_format": self._formats[at]}
            outcome = await ask(msgspec.structs.replace(request, body=body))
            if outcome.error is None:
                self._settle(at, is_taken=True)
                return outcome
            if not self._is_refused(outcome.error):
                return outcome
            at += 1
        outcome = await ask(request)
        # Proven by an answer: otherwise the row itself may be what is wrong.
        if outcome.error is None:
            self._settle(at, is_taken=False)
        return outcome

    def _settle(self, at: int, *, is_taken: bool) -> None:
        """Begins with this format from now on, unless another one has been taken."""
        if not self._is_taken:
            self._at, self._is_taken = max(self._at, at), is_taken

    def _is_refused(self, error: Exception) -> bool:
        """Whether the error may be about the format, and another one is to be tried."""
        if not self._falls_back or not isinstance(error, Rejected | ServerFailed | BadReply):
            return False
        if _FORMAT_WORDS.search(error.what):
            return True
        return error.status in _REFUSALS and not self._is_taken


def _formats(schema: Schema) -> list[dict[str, Any]]:
    """The response formats to try, the strictest first."""
    plain: dict[str, Any] = {"name": schema.name, "schema": schema.json_schema}
    strict = strict_form(schema.json_schema)
    bodies = [plain]
    if strict is not None:
        closed = {"name": schema.name, "schema": strict, "strict": True}
        bodies = [closed] if strict == schema.json_schema else [closed, plain]
    return [{"type": "json_schema", "json_schema": body} for body in bodies]


# Of a strict schema (OpenAI, Structured Outputs, supported schemas), what holds schemas by name, in
# a list, or alone. `default` is refused; it says nothing about which answers are valid.
_BY_NAME = ("properties", "$defs", "definitions")
_LISTED = ("anyOf",)
_ALONE = ("items",)
_PLAIN = {
    *("type", "enum", "const", "$ref", "title", "description", "format", "pattern", "required"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minItems", "maxItems", "additionalProperties", "$schema", "$id"),
}
_DROPPED = {"default", "examples", "$schema", "$id"}


def strict_form(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema in the form of OpenAI's strict mode; None if it cannot be put in that form.

    There an object names all that it holds, and all of that is required. What is valid by the
    result is valid by `schema`: objects that may hold more are closed, and what may be left out is
    required if it may be null.
    """
    if schema.get("type") != "object" or "anyOf" in schema:
        return None
    try:
        return _strict(schema, schema)
    except _NotStrict:
        return None


class _NotStrict(Exception):
    """A part of a schema has no strict form."""


def _strict(part: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise _NotStrict
    made: dict[str, Any] = {}
    for word, value in part.items():
        if word in _DROPPED:
            continue
        if word in _BY_NAME and isinstance(value, dict):
            made[word] = {name: _strict(inner, root) for name, inner in value.items()}
        elif word in _LISTED and isinstance(value, list):
            made[word] = [_strict(inner, root) for inner in value]
        elif word in _ALONE:
            made[word] = _strict(value, root)
        elif word in _PLAIN:
            made[word] = value
        else:
            raise _NotStrict
    kinds = part.get("type")
    if "properties" in part or kinds == "object" or (isinstance(kinds, list) and "object" in kinds):
        _close(made, part, root)
    return made


def _close(made: dict[str, Any], part: Mapping[str, Any], root: Mapping[str, Any]) -> None:
    """Makes an object's schema require every named property, and allow no others."""
    names, required = part.get("properties"), part.get("required", [])
    is_closed = part.get("additionalProperties") is False
    if not is_closed and "additionalProperties" in part:
        raise _NotStrict
    # An open object without names holds anything; closed it would hold nothing.
    if not isinstance(names, dict) or not isinstance(required, list) or not (names or is_closed):
        raise _NotStrict
    if not all(name in required or _takes_null(inner, root) for name, inner in names.items()):
        raise _NotStrict
    if {*required} - {*names}:
        raise _NotStrict
    made["required"], made["additionalProperties"] = list(names), False


def _takes_null(part: Any, root: Mapping[str, Any]) -> bool:
    if not isinstance(part, dict):
        return False
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        defined = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        return isinstance(defined, dict) and "$ref" not in defined and _takes_null(defined, root)
    kinds = part.get("type")
    if "enum" in part:
        return None in part["enum"]
    if "const" in part:
        return part["const"] is None
    if isinstance(kinds, list):
        return "null" in kinds
    choices = part.get("anyOf", [])
    return kinds == "null" or any(_takes_null(choice, root) for choice in choices)
