"""`Client.stream` against event streams that end oddly: half an answer never passes for a whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import redline
from support.raw_server import RawServer, Seen

pytestmark = [pytest.mark.real]

DONE = b"[DONE]"
BOM = b"\xef\xbb\xbf"


def part(text: str | None = None, finish: Any = None, **fields: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **fields}
    return json.dumps({"model": "m", "choices": [choice]}).encode()


def events(*data: bytes) -> bytes:
    return b"".join(b"data: " + each + b"\n\n" for each in data)


END = part(finish="stop")
WHOLE = events(part("Hel"), part("lo"), END, DONE)
HALF = events(part("Hel"))


async def chunks_of(
    data: bytes,
    size: int,
    kind: bytes = b"text/event-stream",
    *,
    end: bytes = b"0\r\n\r\n",
    hangs: bool = False,
    **body: Any,
) -> tuple[list[redline.Chunk], Exception | None]:
    """The chunks that `data` gives when it comes in pieces of this size, and how it failed.

    end: what the server sends after the data. hangs: it then sends nothing, where it otherwise ends
    the connection.
    """

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head % kind)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(end)
        if hangs:
            await asyncio.Event().wait()
        writer.close()

    chunks: list[redline.Chunk] = []
    async with RawServer(handle) as server:
        endpoint = redline.Endpoint(base_url=server.base_url, api_key="k")
        client = redline.Client(endpoint, retry=redline.RetryPolicy(max_retries=0))
        async with client:
            try:
                stream = client.stream({"model": "m", "messages": [], **body})
                async for chunk in stream:
                    chunks += [chunk]
            except redline.RedlineError as error:
                return chunks, error
    return chunks, None


async def streamed(
    data: bytes, size: int, kind: bytes = b"text/event-stream", **body: Any
) -> tuple[str, Exception | None]:
    """The text that `data` gives when it comes in pieces of this size, and how it failed."""
    chunks, error = await chunks_of(data, size, kind, **body)
    return "".join(chunk.text for chunk in chunks), error


# Streams of "Hello" that are whole.
WHOLES = {
    "bom": BOM + WHOLE,
    "cr": WHOLE.replace(b"\n", b"\r"),
    "crlf": WHOLE.replace(b"\n", b"\r\n"),
    "more after the end": WHOLE + events(part("EXTRA")),
    "an error after it": WHOLE + events(b'{"error": {"message": "too late"}}'),
    "integer": WHOLE.replace(b'"stop"', b"1"),
    "nan": WHOLE.replace(b'{"model"', b'{"x": NaN, "model"'),
    "heartbeats": WHOLE.replace(b"\n\n", b"\n\ndata: \n\n: still here\n\n"),
    "spaces around the end": WHOLE.replace(b"[DONE]", b" [DONE] "),
}


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("data", WHOLES.values(), ids=WHOLES)
async def test_a_whole_stream_is_read(data: bytes, size: int) -> None:
    assert await streamed(data, size) == ("Hello", None)


RESPONSE = {"output": [{"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}]}
COMPLETED = events(
    json.dumps({"type": "response.output_text.delta", "delta": "Hello"}).encode(),
    json.dumps({"type": "response.completed", "response": RESPONSE}).encode(),
)


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("data", [WHOLE, COMPLETED], ids=["chat", "response"])
async def test_a_response_without_an_end_loses_no_answer(data: bytes, *, hangs: bool) -> None:
    chunks, error = await chunks_of(data, 10_000, end=b"", hangs=hangs)
    assert ("".join(chunk.text for chunk in chunks), error) == ("Hello", None)
    _, error = await chunks_of(HALF, 10_000, end=b"")
    assert isinstance(error, redline.errors.Disconnected)


async def test_a_content_type_may_have_capitals() -> None:
    assert await streamed(WHOLE, 7, kind=b"Text/Event-Stream;charset=UTF-8") == ("Hello", None)


@pytest.mark.parametrize(
    "extra",
    [b'"x": NaN', rb'"x": "\ud800"', b'"x": 1e999', b'"x": 1', b'"x": "\xff"'],
    ids=["nan", "half a pair", "infinite", "proper", "no utf-8"],
)
async def test_an_answer_that_is_not_streamed_is_one_chunk_or_an_error(extra: bytes) -> None:
    message = b'{"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}], %b}'
    text, error = await streamed(message % extra, 10_000, kind=b"application/json")
    if b"\xff" in extra:
        assert isinstance(error, redline.errors.BadReply)
    else:
        assert (text, error) == ("Hello", None)


TOOL_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "finish", "text"),
    [
        ([{"content": None, "tool_calls": [TOOL_CALL]}], "tool_calls", ""),
        ([{"content": "One"}, {"content": "Two"}], "stop", "One"),
        ([{"content": None, "tool_calls": [TOOL_CALL]}, {"content": "Two"}], "stop", ""),
    ],
    ids=["tool calls", "two texts", "both"],
)
async def test_an_answer_that_is_not_streamed_is_one_chunk_whatever_it_has(
    messages: list[dict[str, Any]], finish: str, text: str
) -> None:
    choices = [
        {"index": index, "message": {"role": "assistant", **message}, "finish_reason": finish}
        for index, message in enumerate(messages)
    ]
    answer = {"model": "m", "choices": choices}
    data = json.dumps(answer).encode()
    chunks, error = await chunks_of(data, 10_000, kind=b"application/json", n=len(choices))
    assert error is None
    assert chunks == [redline.Chunk(text, answer, data)]


@pytest.mark.parametrize("depth", [300, 900, 5_000])
@pytest.mark.parametrize("value", [b"NaN", b"1"])
async def test_an_event_that_is_nested_deeply_is_read_or_an_error(depth: int, value: bytes) -> None:
    deep = b'{"a":' * depth + value + b"}" * depth
    text, error = await streamed(HALF + events(b'{"x": %b}' % deep, END, DONE), 10_000)
    assert text == "Hel"
    assert error is None or isinstance(error, redline.errors.BadReply)


# What comes behind HALF, and what its error says.
BROKEN = [
    (b'event: error\ndata: {"message": "died"}\n\n', "died"),
    (b"event: error\ndata: died\n\n", "died"),
    (b"event:error\ndata:\n\n", "broke off with an error"),
    (events(b'{"type": "error", "message": "died", "code": null}'), "died"),
    (events(b'{"error": {"message": "died", "code": 502}}'), "HTTP 502: died"),
    (events(b'{"base_resp": {"status_code": 1000, "status_msg": "died"}}'), "HTTP 500: died"),
    (events(part("", "error")), "choice 0 broke off with finish_reason `error`"),
    (events(part("lo", "network_error")), "network_error"),
    (events(part("lo", "insufficient_system_resource")), "insufficient_system_resource"),
    (events(part("", error={"code": 502, "message": "died"})), "HTTP 502: died"),
    (events(part("", error={"code": 502, "message": "died \ud800"})), "HTTP 502: died"),
    (events(b'{"error": {"message": "died", "code": 502, "x": NaN}}'), "HTTP 502: died"),
]
# What may come behind that.
ENDS = (events(DONE), events(END, DONE), b"")


@pytest.mark.parametrize(("data", "what"), BROKEN)
@pytest.mark.parametrize("end", ENDS)
async def test_half_a_stream_is_an_error(data: bytes, what: str, end: bytes) -> None:
    text, error = await streamed(HALF + data + end, 11)
    assert text == "Hel"
    assert isinstance(error, redline.errors.CallError)
    assert what in error.what


async def test_an_error_before_the_first_text_keeps_its_status() -> None:
    _, error = await streamed(events(b'{"error": {"message": "busy", "code": 503}}', DONE), 9)
    assert (type(error), getattr(error, "status", None)) == (redline.errors.ServerFailed, 503)


async def test_choices_that_did_not_all_come_or_end_are_an_error() -> None:
    _, error = await streamed(WHOLE, 10_000, n=2)
    assert isinstance(error, redline.errors.BadReply)
    assert "asked for 2 choices, got 1" in error.what
    _, error = await streamed(events(part("B", index=1)) + WHOLE, 10_000, n=2)
    assert isinstance(error, redline.errors.Disconnected)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ((rb"a\ud83d", rb"\ude00b"), "a😀b"),
        ((rb"a\ud83d", b"b"), "a�b"),
        ((rb"\ude00a", rb"b"), "�ab"),
    ],
)
async def test_a_character_may_come_in_halves(pieces: tuple[bytes, bytes], text: str) -> None:
    first, second = (part("x").replace(b'"x"', b'"' + piece + b'"') for piece in pieces)
    assert await streamed(events(first, second, END, DONE), 10_000) == (text, None)
