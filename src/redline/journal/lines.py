"""Makes the lines of a results file, with a checksum by which `sound_lines` finds damaged lines.

A line is one JSON object whose last field is `crc`: the CRC-32 (ISO 3309, as in zlib) of the line
up to the comma before that field, in eight hex digits. So each line shows by itself whether it was
torn, truncated or edited. In the line of a named row, the field before `crc` is `row_hash`: the
mark of the row's content, see `identity`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from zlib import crc32

import msgspec
from msgspec.structs import replace

from redline.apis import answer_object, loose_json, result_object
from redline.calls import Outcome, Reply
from redline.errors import CallError, RedlineError
from redline.journal.output import Output
from redline.process import printable
from redline.sources import Row, plain_form
from redline.waist import Status

VERSION = 1
# The errors raised by encoding a value without a JSON form, such as an arbitrary object.
UNWRITABLE = (TypeError, ValueError, ArithmeticError, RecursionError, msgspec.MsgspecError)
# The fields that the line of a success has only if they are set.
_NOT_ALWAYS = ("cached", "batched", "input", "response")
_NO_REPLY = Reply(output=None)
_encode = msgspec.json.Encoder(enc_hook=plain_form).encode
_SEALED = b'%b,"crc":"%08x"}\n'


class Result(msgspec.Struct):
    """One finished row, ready to be written. key, mark: see `identity`; mark is 0 if unknown."""

    row: Row
    key: int
    custom_id: str | None
    outcome: Outcome
    mark: int = 0

    def name_outcome(self) -> None:
        """Puts the row's name, number and content into its outcome."""
        outcome = self.outcome
        outcome.custom_id = self.custom_id
        outcome.row = self.row.number
        outcome.input = self.row.data

    def in_brief(self) -> Brief:
        """Returns the facts to keep until the row is durable, without request and answer."""
        outcome = self.outcome
        reply, tried = outcome.reply, outcome.tried
        return Brief(
            self.key,
            self.custom_id,
            outcome.status,
            outcome.is_cached,
            outcome.endpoint,
            None if reply is None else reply.finish_reason,
            tried[-1].complete_s if tried else None,
        )


class Brief(msgspec.Struct, frozen=True, gc=False):
    """The facts about a row that are kept from when its line is taken until the line is durable.

    key, custom_id: identify the row; custom_id is for observers of a run. finish_reason: see Reply;
    None without a reply. complete_s: when the row's last attempt ended, in seconds of the monotonic
    clock; None if no attempt was made.
    """

    key: int
    custom_id: str | None
    status: Status
    is_cached: bool
    endpoint: str
    finish_reason: str | list[str | None] | None
    complete_s: float | None


class _Line(msgspec.Struct, gc=False):
    """The fields of a success's line; a field that is UNSET is not written."""

    v: int
    hash: str
    custom_id: str | None
    row: int
    output: Any
    tool_calls: Any
    finish_reason: str | list[str | None] | None
    usage: dict[str, Any] | None
    model: str | None
    endpoint: str
    attempts: int
    latency_s: float
    cached: bool | msgspec.UnsetType = msgspec.UNSET
    batched: bool | msgspec.UnsetType = msgspec.UNSET
    input: Any = msgspec.UNSET
    response: Any = msgspec.UNSET
    row_hash: str | msgspec.UnsetType = msgspec.UNSET


def line_writer(output: Output) -> Callable[[Result], bytes]:
    """Returns a function that makes a success's line, with its newline, in the output's format."""
    if output.format == "batch":
        return partial(_batch_line, output.keep_input)
    return partial(_line, output.keep_input, output.raw)


def _line(keeps_input: bool, is_raw: bool, result: Result) -> bytes:
    outcome = result.outcome
    reply = outcome.reply or _NO_REPLY
    answer = reply.output
    line = _Line(
        VERSION,
        result.key.to_bytes(8).hex(),
        result.custom_id,
        result.row.number,
        answer,
        reply.tool_calls,
        reply.finish_reason,
        reply.usage,
        reply.model,
        outcome.endpoint,
        outcome.attempts,
        # Like round(latency_s, 4), in half the time.
        int(outcome.latency_s * 10_000 + 0.5) / 10_000,
    )
    if outcome.is_cached:
        line.cached = True
    if outcome.is_batched:
        line.batched = True
    if keeps_input:
        line.input = result.row.data
    if type(answer) is not str or is_raw or outcome.fields:
        if is_raw:
            line.response = _whole_reply(outcome)
        fields = _with_fields(line, outcome.fields) if outcome.fields else line
        return _sealed(fields, result.mark)
    # Only a reply's raw JSON can contain line breaks, and this line contains no raw JSON.
    if result.mark:
        line.row_hash = result.mark.to_bytes(4).hex()
    body = _encode(line)[:-1]
    return _SEALED % (body, crc32(body))


def _with_fields(line: _Line, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the line's fields, with `fields` of a task inserted before the optional ones."""
    written = {
        name: value
        for name, value in msgspec.structs.asdict(line).items()
        if value is not msgspec.UNSET
    }
    last = {name: written.pop(name) for name in _NOT_ALWAYS if name in written}
    return {**written, **fields, **last}


def failure_writer(output: Output) -> Callable[[Result], bytes]:
    """Returns a function that makes a failure's line, with its newline, its input and its error.

    For the batch format, the line also contains the endpoint's HTTP response, if any. Values
    without a JSON form, such as objects that the user's own function returned, are written as null.
    """
    return partial(_failure_line, output.format == "batch")


def _failure_line(has_response: bool, result: Result) -> bytes:
    outcome, row = result.outcome, result.row
    response = _refusal(outcome.error) if has_response else None
    fields = {
        "v": VERSION,
        "hash": f"{result.key:016x}",
        "custom_id": result.custom_id,
        "row": row.number,
        "line": row.line,
        "status": outcome.status,
        "error": error_fields(outcome.error),
        "output": outcome.output,
        "endpoint": outcome.endpoint,
        "attempts": outcome.attempts,
        "latency_s": round(outcome.latency_s, 4),
        **({} if response is None else {"response": response}),
        **(outcome.fields or {}),
        "input": row.data if row.data is not None else _beginning(row.content),
    }
    try:
        return _sealed(fields, result.mark)
    except UNWRITABLE:
        return _sealed({name: json_of(value) for name, value in fields.items()}, result.mark)


def without_halves(result: Result) -> Result:
    """Returns a copy whose output is JSON with U+FFFD for each half of a surrogate pair.

    Raises an error in UNWRITABLE if the output has no such form.
    """
    outcome = result.outcome
    reply = replace(outcome.reply or _NO_REPLY, output=_paired(outcome.output))
    return replace(result, outcome=replace(outcome, reply=reply))


def json_of(value: Any) -> msgspec.Raw | None:
    """Returns the value as JSON, like `without_halves`; None if it has no such form."""
    try:
        return msgspec.Raw(_encode(value))
    except UNWRITABLE:
        with suppress(*UNWRITABLE):
            return _paired(value)
    return None


def _paired(value: Any) -> msgspec.Raw:
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=plain_form)
    return msgspec.Raw(loose_json.encoded(plain))


def _batch_line(keeps_input: bool, result: Result) -> bytes:
    """Makes an output line of the OpenAI Batch API, with redline's own fields added."""
    outcome = result.outcome
    reply = outcome.reply or _NO_REPLY
    answer = answer_object(reply.status, reply.request_id, _whole_reply(outcome))
    fields: dict[str, Any] = {
        **result_object(
            f"redline_{result.key:016x}", result.custom_id or f"row-{result.row.number}", answer
        ),
        "hash": f"{result.key:016x}",
        "row": result.row.number,
        "attempts": outcome.attempts,
        "latency_s": round(outcome.latency_s, 4),
        **(outcome.fields or {}),
    }
    if outcome.is_cached:
        fields["cached"] = True
    if outcome.is_batched:
        fields["batched"] = True
    if keeps_input:
        fields["input"] = result.row.data
    return _sealed(fields, result.mark)


def _whole_reply(outcome: Outcome) -> Any:
    """Returns the reply's JSON as received; the output alone if there was no HTTP response."""
    if outcome.reply is None or not outcome.reply.body:
        return outcome.output
    body = outcome.reply.body.strip()
    try:
        body.decode()
    except UnicodeDecodeError:
        # The parser skips fields that are not used, but a results file must be valid UTF-8.
        body = body.decode("utf-8", "replace").encode()
    return msgspec.Raw(body)


def _refusal(error: RedlineError | None) -> dict[str, Any] | None:
    """Returns the HTTP response that caused an error; None if there was none, or it had no body."""
    if not isinstance(error, CallError) or error.status is None or not error.body:
        return None
    text = error.body.decode("utf-8", "replace")
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        body = _writable(text)
    return answer_object(error.status, None, body)


def error_fields(error: RedlineError | None) -> dict[str, Any] | None:
    """Returns an error as a dictionary that can be written as JSON; None for no error."""
    if error is None:
        return None
    return {
        "kind": error.kind,
        "message": _writable(error.what),
        "status": error.status if isinstance(error, CallError) else None,
        "where": _writable(error.where),
        "hint": _writable(error.hint),
    }


def _writable(text: str) -> str:
    """Returns the text made safe to print, without lone surrogates, which file names may have."""
    return printable(text).encode("utf-8", "replace").decode()


def _beginning(content: bytes) -> str:
    """Returns the first 1,000 bytes of a bad row as text, to find the row in the input."""
    return content[:1000].decode("utf-8", "replace")


def _sealed(fields: _Line | dict[str, Any], mark: int) -> bytes:
    """Returns the fields as a line of JSON that ends with the mark, if any, and a checksum."""
    body = _encode(fields)
    # `in` is slow in Python 3.11: it first tries the bytes as a number, which raises an error.
    if body.find(b"\n") >= 0 or body.find(b"\r") >= 0:
        body = _on_one_line(body)
    body = body[:-1]
    if mark:
        body = b'%b,"row_hash":"%08x"' % (body, mark)
    return _SEALED % (body, crc32(body))


def _on_one_line(body: bytes) -> bytes:
    """Removes line breaks between the tokens of the JSON, which a raw reply may contain."""
    try:
        return _encode(msgspec.json.decode(body))
    except msgspec.DecodeError:
        # The JSON contains a number out of range, in a field that nothing has read.
        return loose_json.mended(body)
