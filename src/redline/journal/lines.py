"""The lines of a results file, written with a checksum by which `sound_lines` finds damaged ones.

A line is one JSON object whose last field is `crc`: the CRC-32 (ISO 3309, as in zlib) of the
line up to its comma, in eight hex digits. So a torn, cut or edited line is known from itself. The
field before it is `row_hash`, the mark of a named row's content, see `identity`.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from redline.apis import loose_json
from redline.calls import Outcome, Reply
from redline.errors import CallError, RedlineError
from redline.journal.output import Output
from redline.process import printable
from redline.sources import Row

VERSION = 1
_NO_REPLY = Reply(output=None)
_encode = msgspec.json.Encoder().encode


class Result(msgspec.Struct, kw_only=True):
    """One finished row, ready to be written. key, mark: which row it is, see `identity`."""

    row: Row
    key: int
    mark: int = 0
    custom_id: str | None
    outcome: Outcome


def result_line(result: Result, output: Output) -> bytes:
    """The line of a success, newline included."""
    if output.format == "batch":
        return _sealed(_batch_fields(result, output), result.mark)
    outcome = result.outcome
    reply = outcome.reply or _NO_REPLY
    fields: dict[str, Any] = {
        "v": VERSION,
        "hash": f"{result.key:016x}",
        "custom_id": result.custom_id,
        "row": result.row.number,
        "output": reply.output,
        "tool_calls": reply.tool_calls,
        "finish_reason": reply.finish_reason,
        "usage": reply.usage,
        "model": reply.model,
        "endpoint": outcome.endpoint,
        "attempts": outcome.attempts,
        "latency_s": round(outcome.latency_s, 4),
    }
    if outcome.fields:
        fields |= outcome.fields
    if outcome.is_cached:
        fields["cached"] = True
    if outcome.is_batched:
        fields["batched"] = True
    if output.keep_input:
        fields["input"] = result.row.data
    if output.raw:
        fields["response"] = _whole_reply(outcome)
    return _sealed(fields, result.mark)


def failure_line(result: Result) -> bytes:
    """The line of a failure, newline included: the input and the typed error."""
    outcome, row = result.outcome, result.row
    return _sealed(
        {
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
            **(outcome.fields or {}),
            "input": row.data if row.data is not None else _beginning(row.content),
        },
        result.mark,
    )


def _batch_fields(result: Result, output: Output) -> dict[str, Any]:
    """An output line of the OpenAI Batch API, with redline's own fields in one object."""
    outcome = result.outcome
    reply = outcome.reply
    fields: dict[str, Any] = {
        "id": f"redline_{result.key:016x}",
        "custom_id": result.custom_id or f"row-{result.row.number}",
        "response": {
            "status_code": reply.status if reply else 200,
            "request_id": reply.request_id if reply else None,
            "body": _whole_reply(outcome),
        },
        "error": None,
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
    if output.keep_input:
        fields["input"] = result.row.data
    return fields


def _whole_reply(outcome: Outcome) -> Any:
    """The reply's JSON as it came; the output alone where no HTTP reply stands behind it."""
    if outcome.reply is None or not outcome.reply.body:
        return outcome.output
    body = outcome.reply.body.strip()
    try:
        body.decode()
    except UnicodeDecodeError:
        # The parser skips what nobody reads; a results file must be readable as a whole.
        body = body.decode("utf-8", "replace").encode()
    return msgspec.Raw(body)


def error_fields(error: RedlineError | None) -> dict[str, Any] | None:
    """An error for programs and for files, None for none."""
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
    """The text without lone surrogates, which file names may hold, and safe to print."""
    return printable(text).encode("utf-8", "replace").decode()


def _beginning(content: bytes) -> str:
    """Enough of a bad row to find it by."""
    return content[:1000].decode("utf-8", "replace")


def _sealed(fields: dict[str, Any], mark: int) -> bytes:
    body = _encode(fields)[:-1]
    # A reply passed through untouched may hold line breaks between its JSON tokens.
    if b"\n" in body or b"\r" in body:
        try:
            body = _encode(msgspec.json.decode(body + b"}"))[:-1]
        except msgspec.DecodeError:
            # A number that is out of range where nobody has read it.
            body = loose_json.mended(body + b"}")[:-1]
    if mark:
        body = b'%s,"row_hash":"%08x"' % (body, mark)
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))
