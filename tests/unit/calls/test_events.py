"""A streamed answer is the same wherever its bytes are cut."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.apis import ErrorData, EventParser, StreamedAnswer, event_stream
from redline.calls import Call, Chunk, Reply, Request, Sink
from redline.calls.http import StreamReader, streaming
from redline.errors import BadReply, Disconnected, NoEndpoint
from support.events import completed


class Heard(Sink):
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    async def put(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    @property
    def texts(self) -> list[str]:
        return [chunk.text for chunk in self.chunks]


def choice(delta: dict[str, Any] | None = None, *, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta or {}, **more}], "model": "m", "id": "c"}


def events(*values: Any, end: bytes = b"\n") -> bytes:
    return b"".join(
        b"data: " + (value if isinstance(value, bytes) else msgspec.json.encode(value)) + end * 2
        for value in values
    )


def listen(*parts: bytes) -> tuple[Reply, Heard, Call]:
    heard, call = Heard(), Call()
    reader = StreamReader(heard, call)

    async def main() -> Reply:
        for part in parts:
            await reader.take(part)
        return reader.finish()

    return asyncio.run(main()), heard, call


USAGE = {"prompt_tokens": 7, "completion_tokens": 2}
SPOKEN = [
    choice({"role": "assistant", "content": ""}),
    choice({"content": "Gr"}),
    choice({"content": "üße 世"}),
    choice(finish_reason="stop"),
    {"choices": [], "usage": USAGE},
]
WHOLE = b": hello\n\nevent: x\nid: 1\n" + events(*SPOKEN, b"[DONE]")


def test_a_stream_becomes_chunks_and_one_reply() -> None:
    reply, heard, call = listen(WHOLE)
    assert heard.texts == ["", "Gr", "üße 世", "", ""]
    assert heard.chunks[1].data == SPOKEN[1]
    assert call.committed
    assert (reply.output, reply.finish_reason, reply.model) == ("Grüße 世", "stop", "m")
    assert (reply.input_tokens, reply.output_tokens, reply.request_id) == (7, 2, "c")
    assert msgspec.json.decode(reply.body)["choices"][0]["message"]["content"] == "Grüße 世"


@pytest.mark.parametrize("data", [WHOLE, WHOLE.replace(b"\n", b"\r\n")])
def test_every_cut_gives_the_same(data: bytes) -> None:
    whole = completed(EventParser(), data)
    assert len(whole) == 6
    for cut in range(len(data) + 1):
        parser = EventParser()
        assert completed(parser, data[:cut]) + completed(parser, data[cut:]) == whole, cut


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, len(WHOLE))), st.booleans())
def test_any_cuts_give_the_same(cuts: list[int], is_crlf: bool) -> None:
    data = WHOLE.replace(b"\n", b"\r\n") if is_crlf else WHOLE
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = [data[start:end] for start, end in itertools.pairwise(edges)]
    reply, heard, _ = listen(*parts)
    assert reply.output == "Grüße 世"
    assert "".join(heard.texts) == "Grüße 世"


def test_one_event_may_have_several_data_lines() -> None:
    assert completed(EventParser(), b'data: {"a":\ndata:1}\n\n') == [b'{"a":\n1}']


@pytest.mark.timeout(30)
def test_a_long_event_a_byte_at_a_time_takes_time_by_its_length() -> None:
    parser, event = EventParser(), b"y" * 600_000
    fed = [completed(parser, bytes([byte])) for byte in b"data: " + event + b"\n\n"]
    assert [found for each in fed for found in each] == [event]


@pytest.mark.slow
@pytest.mark.timeout(30)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_of_many_lines_takes_time_by_its_length(end: bytes) -> None:
    parser, lines = EventParser(), 150_000
    assert [found for _ in range(lines) for found in completed(parser, b"data: y" + end)] == []
    assert completed(parser, end + b"data: z\n\n") == [b"\n".join([b"y"] * lines), b"z"]


@pytest.mark.timeout(30)
def test_arguments_of_many_pieces_take_time_by_their_length() -> None:
    answer, pieces = StreamedAnswer(), 200_000
    piece = {"index": 0, "function": {"name": "f", "arguments": "12345678"}}
    event = {"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]}
    for _ in range(pieces):
        answer.add(event)
    _, whole = answer.whole(is_done=True)
    (choice,) = msgspec.json.decode(whole)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "12345678" * pieces}


def test_an_endless_event_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_LONGEST_EVENT_BYTES", 100)
    parser = EventParser()
    completed(parser, b"data: " + b"x" * 94)
    with pytest.raises(BadReply, match="longer than 100 bytes"):
        completed(parser, b"x")


HALVES = '"\\ud83d"', '"\\ude80"'


def test_a_tool_calls_surrogate_pair_may_come_in_halves() -> None:
    parts = [
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":%b}}]}}]}'
        % half.encode()
        for half in HALVES
    ]
    reply, _, _ = listen(events(*parts, choice(finish_reason="tool_calls")))
    assert reply.tool_calls == [{"function": {"arguments": "🚀"}}]


@pytest.mark.parametrize("field", ["id", "model"])
def test_half_a_surrogate_pair_anywhere_is_replaced(field: str) -> None:
    odd = f'{{"{field}":{HALVES[0]}}}'.encode()
    reply, _, _ = listen(events(odd, *SPOKEN[:2], choice(finish_reason="stop"), b"[DONE]"))
    assert reply.output == "Gr"
    whole = b'{"type":"response.completed","response":{"output":[],"id":%b}}' % HALVES[1].encode()
    reply, _, _ = listen(events(whole))
    assert reply.request_id == "\ufffd"


def test_several_choices_are_kept_apart() -> None:
    data = events(
        choice({"content": "b"}, index=1),
        choice({"content": "a"}),
        choice({"content": "B"}, index=1, finish_reason="stop"),
        choice({"content": "A"}, finish_reason="stop"),
    )
    reply, heard, _ = listen(data)
    assert reply.output == ["aA", "bB"]
    assert heard.texts == ["", "a", "", "A"]


def test_tool_calls_come_in_pieces() -> None:
    def part(index: int, arguments: str, **more: str) -> dict[str, Any]:
        function = {
            "arguments": arguments,
            **({"name": more.pop("name")} if "name" in more else {}),
        }
        return choice({"tool_calls": [{"index": index, "function": function, **more}]})

    data = events(
        part(0, "", name="f", id="t0", type="function"),
        part(0, '{"a"'),
        part(1, "{}", name="g", id="t1", type="function"),
        part(0, ":1}"),
        choice(finish_reason="tool_calls"),
    )
    reply, _, _ = listen(data)
    assert (reply.output, reply.finish_reason) == (None, "tool_calls")
    assert reply.tool_calls == [
        {"id": "t0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "t1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


@pytest.mark.parametrize(
    ("delta", "finish", "output", "reason"),
    [
        ({"refusal": "I cannot"}, "stop", "I cannot", "refusal"),
        ({}, "stop", "", "empty"),
        ({"content": "a"}, "length", "a", "length"),
        ({"content": "a"}, "content_filter", "a", "content_filter"),
        ({"content": [{"type": "text", "text": "a"}]}, "stop", "a", "stop"),
    ],
)
def test_endings_are_typed_as_without_a_stream(
    delta: dict[str, Any], finish: str, output: str, reason: str
) -> None:
    reply, _, _ = listen(events(choice(delta), choice(finish_reason=finish), b"[DONE]"))
    assert (reply.output, reply.finish_reason) == (output, reason)


def test_a_legacy_completion_streams_text() -> None:
    data = events({"choices": [{"text": "a", "finish_reason": "stop"}]}, b"[DONE]")
    reply, heard, _ = listen(data)
    assert (reply.output, heard.texts) == ("a", ["a"])


def test_responses_stream_their_own_events() -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "ab"}]}
    whole = {"status": "completed", "output": [item], "usage": {"input_tokens": 1}}
    data = events(
        {"type": "response.created", "response": {}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.output_text.delta", "delta": "b"},
        {"type": "response.completed", "response": whole},
    )
    reply, heard, _ = listen(data)
    assert heard.texts == ["", "a", "b", ""]
    assert (reply.output, reply.input_tokens) == ("ab", 1)


def test_a_missing_done_is_forgiven_after_a_finish_reason() -> None:
    reply, _, _ = listen(events(choice({"content": "a"}, finish_reason="stop")))
    assert reply.output == "a"


@pytest.mark.parametrize(
    "data",
    [
        events(choice({"content": "a"})),
        events(choice({"content": "a"}, finish_reason="stop"), choice({"content": "b"}, index=1)),
        events({"type": "response.output_text.delta", "delta": "a"}),
        b"",
    ],
)
def test_a_stream_without_its_end_is_a_disconnection(data: bytes) -> None:
    with pytest.raises(Disconnected, match="before its answer was complete"):
        listen(data)


def test_a_stream_of_nothing_is_a_bad_reply() -> None:
    with pytest.raises(BadReply):
        listen(events(b"[DONE]"))


def test_a_failed_response_is_a_bad_reply() -> None:
    failed = {"type": "response.failed", "response": {"status": "failed", "output": []}}
    with pytest.raises(BadReply, match="the response failed"):
        listen(events(failed))


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "is not an object"),
        (b'"a"', "is not an object"),
        (b'{"error": {"message": "overloaded"}}', "broke off with an error"),
        (b'{"choices": 3}', "malformed"),
        (b'{"choices": ["a"]}', "malformed"),
        (b'{"choices": [{"delta": "a"}]}', "malformed"),
        (b'{"choices": [{"delta": {"content": 3}}]}', "malformed"),
        (b'{"choices": [{"delta": {"refusal": 3}}]}', "malformed"),
        (b'{"choices": [{"index": "0", "delta": {}}]}', "malformed"),
        (b'{"choices": [{"index": [], "delta": {}}]}', "malformed"),
        (b'{"choices": [{"finish_reason": [3]}]}', "malformed"),
        (b'{"choices": [{"delta": {"tool_calls": ["a"]}}]}', "malformed"),
        (b'{"choices": [{"delta": {"tool_calls": [{"index": "a"}]}}]}', "malformed"),
    ],
)
def test_a_bad_event_ends_the_stream(event: bytes, what: str) -> None:
    with pytest.raises(BadReply, match=what):
        listen(events(event))


def test_a_local_engine_that_fails_within_a_stream_ends_the_run() -> None:
    failed = {"message": "the engine has failed: a rank", "code": "engine_failed"}
    with pytest.raises(NoEndpoint, match="no longer available: the engine has failed: a rank"):
        listen(events(choice({"content": "a"}), {"error": failed}))


FIELDS = [
    "choices",
    "delta",
    "content",
    "text",
    "refusal",
    "tool_calls",
    "index",
    "function",
    "arguments",
    "name",
    "finish_reason",
    "usage",
    "type",
    "delta",
    "response",
    "id",
    "model",
    "error",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.lists(st.one_of(JSON, JSON.map(lambda value: {"choices": [value]})), max_size=4))
def test_any_events_are_a_reply_or_an_error(values: list[Any]) -> None:
    try:
        listen(events(*values, b"[DONE]"))
    except (BadReply, Disconnected):
        pass


def test_a_streaming_request_asks_for_a_stream_and_its_usage() -> None:
    asked = streaming(Request(body={"model": "m"}))
    assert asked.body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    own = streaming(Request(body={"stream_options": {"include_usage": False}}))
    assert own.body["stream_options"] == {"include_usage": False}
    assert streaming(Request(body={"stream_options": None})).body == {"stream": True}
    assert streaming(Request(url="/v1/responses", body={})).body == {"stream": True}
    for url in ("/v1/chat/completions?version=1", "/v1/completions/"):
        assert "stream_options" in streaming(Request(url=url, body={})).body
    plain = Request(url="/chat", body="text")
    assert streaming(plain) is plain


def test_a_slow_reader_holds_the_stream_back() -> None:
    async def main() -> None:
        gate, taken = asyncio.Event(), []

        class Slow(Sink):
            async def put(self, chunk: Chunk) -> None:
                taken.append(chunk.text)
                await gate.wait()

        reader = StreamReader(Slow(), Call())
        task = asyncio.create_task(reader.take(WHOLE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (taken, task.done()) == ([""], False)
        gate.set()
        await task

    asyncio.run(main())


def by_the_standard(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The name and the data of each event, as WHATWG HTML, 9.2.6 has it: a line at a time.

    The data is stripped line by line, and an event without any is left out, as it is for JSON.
    """
    lines, line, is_after_cr = list[bytes](), b"", False
    for byte in stream.removeprefix(b"\xef\xbb\xbf"):
        if byte == 0x0A and is_after_cr:
            is_after_cr = False
            continue
        is_after_cr = byte == 0x0D
        if byte in (0x0A, 0x0D):
            lines.append(line)
            line = b""
        else:
            line += bytes([byte])
    found, name, parts = list[tuple[bytes, bytes]](), b"", list[bytes]()
    for line in lines:
        field, _, value = line.partition(b":")
        if not line:
            if data := b"\n".join(parts):
                found.append((name, data))
            name, parts = b"", []
        elif field == b"event":
            name = value.strip()
        elif field == b"data":
            parts.append(value.strip())
    return found


LINES = [b"data: x", b"data:y", b'data: {"a": 1}', b": note", b"id: 1", b"event: error", b"event:m"]


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from([b"", *LINES]), st.sampled_from([b"\n", b"\r", b"\r\n"])),
        max_size=12,
    ),
    st.booleans(),
    st.data(),
)
def test_line_ends_may_be_mixed_within_an_event(
    lines: list[tuple[bytes, bytes]], has_bom: bool, data: st.DataObject
) -> None:
    stream = (b"\xef\xbb\xbf" if has_bom else b"") + b"".join(
        line + end for line, end in [*lines, (b": the end", b"\n"), (b"", b"\n")]
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    parser, found = EventParser(), list[bytes]()
    for start, end in itertools.pairwise([0, *cuts, len(stream)]):
        if start < end:
            found += completed(parser, stream[start:end])
    expected = by_the_standard(stream)
    assert [bytes(each) for each in found if each] == [data for _, data in expected]
    assert [type(each) is ErrorData for each in found if each] == [
        n == b"error" for n, _ in expected
    ]


def test_a_lone_cr_ends_a_line_of_an_event_that_ends_with_lf() -> None:
    assert completed(EventParser(), b"data: x\rdata: y\n\n") == [b"x\ny"]
    later = EventParser()
    completed(later, b"data: 1\n\n")
    assert completed(later, b"data: x\rdata: y\n\n") == [b"x\ny"]
