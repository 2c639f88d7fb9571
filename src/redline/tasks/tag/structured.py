"""Asks for JSON that follows a schema: in the prompt, and with `response_format` if accepted.

In the mode `auto`, up to three formats are tried in order: OpenAI's strict format, if the schema
can be converted to it; the schema as it is; and no format. If an endpoint refuses a format, the
next one is tried. Once an answer has shown which format is accepted, the refused formats are not
sent again.
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
# The statuses with which servers refuse an unknown parameter, or its form. OpenRouter answers 404
# if no provider of the model accepts the parameter.
_REFUSALS = frozenset({400, 404, 415, 422})
# An error with one of these words is also a refusal, whatever its status: some gateways answer 500,
# 501 or even 200.
_FORMAT_WORDS = re.compile(r"(?i)response_?format|json_schema|structured output|guided|\bstrict\b")


class Structured:
    """Asks for answers that follow `schema`.

    mode: one of FORMATS; `auto` sends a format until it is refused, `always` sends only the first
    one, `never` sends none. instructions: the text for the system message, with the schema.
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
        """Whether the endpoint refused every format, so no format is sent any more."""
        return 0 < len(self._formats) == self._at

    def instructed(self, request: Request) -> Request:
        """Returns the request with the instructions in its system message, if not already there.

        Raises Rejected for a request without messages.
        """
        body = request.body
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list) or not messages:
            raise Rejected(
                "only chat completions can follow a schema: the request to "
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
        """Asks with the strictest format that the endpoint accepts, and returns the outcome.

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
        # Only an answer without a format proves the refusal: otherwise the row may be at fault.
        if outcome.error is None:
            self._settle(at, is_taken=False)
        return outcome

    def _settle(self, at: int, *, is_taken: bool) -> None:
        """Uses this format first from now on, unless another format was accepted before."""
        if not self._is_taken:
            self._at, self._is_taken = max(self._at, at), is_taken

    def _is_refused(self, error: Exception) -> bool:
        """Returns whether the error may be about the format, so another format is worth a try."""
        if not self._falls_back or not isinstance(error, Rejected | ServerFailed | BadReply):
            return False
        if _FORMAT_WORDS.search(error.what):
            return True
        return error.status in _REFUSALS and not self._is_taken


def _formats(schema: Schema) -> list[dict[str, Any]]:
    """Returns the response formats to try, the strictest first."""
    strict = strict_form(schema.json_schema)
    bodies: list[dict[str, Any]] = []
    if strict is not None:
        bodies.append({"name": schema.name, "schema": strict, "strict": True})
    if strict != schema.json_schema:
        bodies.append({"name": schema.name, "schema": schema.json_schema})
    return [{"type": "json_schema", "json_schema": body} for body in bodies]


# The keywords of a strict schema (OpenAI, Structured Outputs, supported schemas) that hold no
# schemas. `default` is refused; it does not affect which answers are valid.
_PLAIN = {
    *("type", "enum", "const", "$ref", "title", "description", "format", "pattern", "required"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minItems", "maxItems", "additionalProperties"),
}
_DROPPED = ("default", "examples", "$schema", "$id")


def strict_form(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Converts the schema to the form of OpenAI's strict mode; None if that is not possible.

    In that form an object lists all of its properties, and all are required. So open objects are
    closed, and optional properties that may be null become required. Every value that is valid
    under the result is valid under `schema`.
    """
    if schema.get("type") != "object" or "anyOf" in schema:
        return None
    try:
        return _strict(schema, schema)
    except _NotStrict:
        return None


class _NotStrict(Exception):
    """Raised if a part of a schema has no strict form."""


def _strict(part: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise _NotStrict
    made: dict[str, Any] = {}
    for word, value in part.items():
        match word, value:
            case "properties" | "$defs" | "definitions", dict():
                made[word] = {name: _strict(inner, root) for name, inner in value.items()}
            case "anyOf", list():
                made[word] = [_strict(inner, root) for inner in value]
            case "items", _:
                made[word] = _strict(value, root)
            case _ if word in _PLAIN:
                made[word] = value
            case _ if word not in _DROPPED:
                raise _NotStrict
    kinds = part.get("type")
    if "properties" in part or kinds == "object" or (isinstance(kinds, list) and "object" in kinds):
        _close(made, part, root)
    return made


def _close(made: dict[str, Any], part: Mapping[str, Any], root: Mapping[str, Any]) -> None:
    """Makes an object's schema require every named property and allow no others."""
    names, required = part.get("properties"), part.get("required", [])
    is_closed = part.get("additionalProperties") is False
    if not is_closed and "additionalProperties" in part:
        raise _NotStrict
    # An open object without properties accepts any property; if closed, it would accept none.
    if not isinstance(names, dict) or not isinstance(required, list) or not (names or is_closed):
        raise _NotStrict
    optional = (inner for name, inner in names.items() if name not in required)
    if {*required} - {*names} or not all(_takes_null(inner, root) for inner in optional):
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
