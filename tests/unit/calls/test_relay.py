"""A sink that relays gets the bytes of a stream as they were sent, wherever they were cut."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.apis import event_bytes
from redline.calls import Call, Chunk, Reply, Sink
from redline.calls.http import StreamReader
from redline.errors import BadReply, CallError, Disconnected, ServerFailed

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
DONE = b"data: [DONE]\n\n"


class Relay(Sink):
    """A sink that wants bytes alone. room: how many events it takes without waiting."""

    relays = True

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self.at_once = 0
        self.heads: list[tuple[int, Mapping[str, str]]] = []
        self.raws: list[bytes] = []

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        assert not self.raws
        self.heads.append((status, headers))

    async def put(self, chunk: Chunk) -> None:
        assert self.heads
        assert (chunk.text, chunk.data) == ("", None)
        self.raws.append(chunk.raw)

    def put_now(self, raw: bytes) -> bool:
        assert self.raws
        if self.at_once == self.room:
            return False
        self.at_once += 1
        self.raws.append(raw)
        return True


class Reads(Sink):
    """A sink that wants text."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    async def put(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


def chat(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": list(choices), "usage": None, **more}


def said(text: str, reason: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "delta": {"content": text}, "finish_reason": reason}


CHAT = [
    b": waiting\n\n",
    event_bytes(chat({"index": 0, "delta": {"role": "assistant"}, "finish_reason": None})),
    b"event: x\nid: 1\n" + event_bytes(chat(said("Gr"))),
    b": ping\n\n",
    event_bytes(chat(said("üße, no error"))),
    b"data: " + json.dumps(chat(said("!")), indent=1).replace("\n", "\ndata: ").encode() + b"\n\n",
    event_bytes(chat(said("", "stop"))),
    event_bytes(chat(usage=USAGE)),
    DONE,
    b": bye\n\n",
]
COMPLETIONS = [
    event_bytes(chat({"index": 0, "text": "a", "finish_reason": None})),
    event_bytes(chat({"index": 0, "text": "b", "finish_reason": "length"}, usage=USAGE)),
    DONE,
]
SPOKEN = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
RESPONSE = {
    "id": "r",
    "model": "m",
    "status": "completed",
    "output": [SPOKEN],
    "usage": {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9},
}
RESPONSES = [
    event_bytes({"type": "response.created", "response": {"error": None}}, "response.created"),
    event_bytes(
        {"type": "response.output_text.delta", "delta": "hi"}, "response.output_text.delta"
    ),
    event_bytes({"type": "response.completed", "response": RESPONSE}, "response.completed"),
]
STREAMS = {
    "chat": (b"".join(CHAT), "stop"),
    "completions": (b"".join(COMPLETIONS), "length"),
    "responses": (b"".join(RESPONSES), "stop"),
    "bom": (b"\xef\xbb\xbf" + b"".join(CHAT), "stop"),
    "cut": (b"".join(CHAT) + b": never ended", "stop"),
}
ENDS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}


def read(sink: Sink, *parts: bytes) -> tuple[Reply, Call]:
    call = Call()
    reader = StreamReader(sink, call)

    async def main() -> Reply:
        reader.head(200, {"x": "y"})
        for part in parts:
            if not (reader.relays and reader.take_now(part)):
                await reader.take(part)
        reply = reader.finish()
        await reader.end()
        return reply

    return asyncio.run(main()), call


def cut(data: bytes, *cuts: int) -> list[bytes]:
    edges = [0, *sorted(cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def check(data: bytes, reason: str, parts: list[bytes], room: int = 0) -> None:
    relay = Relay(room)
    reply, call = read(relay, *parts)
    assert b"".join(relay.raws) == data
    assert relay.heads == [(200, {"x": "y"})]
    assert call.committed
    assert (reply.input_tokens, reply.output_tokens) == (7, 2)
    assert (reply.finish_reason, reply.model) == (reason, "m")


LONG = [
    event_bytes(chat(said("", index=0))),
    *(event_bytes(chat(said(f"{number}"))) for number in range(10)),
    event_bytes(chat(said("", "stop"))),
    event_bytes(chat(usage=USAGE)),
    DONE,
]


@pytest.mark.parametrize("room", [0, 1, 5, 100])
def test_events_of_text_alone_need_not_be_waited_for(room: int) -> None:
    relay = Relay(room)
    reply, _ = read(relay, *LONG)
    assert relay.raws == LONG
    # The first one begins the answer; the last three say what it has used and that it is over.
    assert relay.at_once == min(room, 10)
    assert (reply.input_tokens, reply.output_tokens) == (7, 2)
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", STREAMS)
def test_what_need_not_be_waited_for_is_in_its_place(name: str, end: str) -> None:
    data, reason = STREAMS[name]
    blocks = [block + b"\n\n" for block in data.split(b"\n\n")]
    blocks = [block.replace(b"\n", ENDS[end]) for block in (*blocks[:-1], blocks[-1][:-2])]
    for room in (1, 2, 100):
        check(b"".join(blocks), reason, blocks, room)
        halves = [half for block in blocks for half in (block[:9], block[9:])]
        check(b"".join(blocks), reason, halves, room)
        twos = [b"".join(blocks[at : at + 2]) for at in range(0, len(blocks), 2)]
        check(b"".join(blocks), reason, twos, room)


def test_an_error_in_the_stream_is_not_passed_on_at_once() -> None:
    relay = Relay(100)
    wrong = event_bytes({"error": {"message": "broken", "code": 500}})
    with pytest.raises(CallError, match="broken"):
        read(relay, *LONG[:3], wrong, *LONG[3:])
    assert relay.raws == LONG[:3]


@pytest.mark.parametrize(
    "change",
    [
        (b'"finish_reason":null', b'"finish_reason":"stop"'),
        (b'"usage":null', b'"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}'),
        (b'"5"', b'"5","finish_reason":"stop","a":"'),
        (b'"5"', b'"5"},"error":{"message":"5"'),
        (b'"5"', b'"\n"'),
        (b"\n\n", b"\n"),
        (b"data", b"event"),
    ],
)
def test_events_that_are_nearly_like_those_before_are_read(change: tuple[bytes, bytes]) -> None:
    at = 6
    other = LONG[at].replace(*change)
    assert other != LONG[at]

    async def main() -> None:
        relay = Relay(100)
        reader = StreamReader(relay, Call())
        reader.head(200, {})
        await reader.take(LONG[0])
        assert all(reader.take_now(event) for event in LONG[1:at])
        assert not reader.take_now(other)
        assert reader.take_now(LONG[at])
        assert relay.raws == LONG[: at + 1]

    asyncio.run(main())


@pytest.mark.parametrize("text", ["", "é", 'a "quote"', "line\nline", "\\", "\u2028", "{}[]:,"])
def test_events_with_any_text_are_like_those_before(text: str) -> None:
    more = [event_bytes(chat(said(text))), json.dumps(chat(said(text))).encode()]
    more[1] = b"data: %b\n\n" % more[1]
    relay = Relay(100)
    read(relay, *LONG[:3], *more, *more, *LONG[3:])
    assert relay.at_once == 14
    assert relay.raws == [*LONG[:3], *more, *more, *LONG[3:]]


def test_nothing_overtakes_what_is_waited_for() -> None:
    class Slow(Relay):
        async def begin(self, status: int, headers: Mapping[str, str]) -> None:
            await asyncio.sleep(0)
            await super().begin(status, headers)

        async def put(self, chunk: Chunk) -> None:
            await asyncio.sleep(0)
            await super().put(chunk)

    async def main() -> None:
        relay = Slow(100)
        reader = StreamReader(relay, Call())
        reader.head(200, {})
        for first in (LONG[0], LONG[1] + LONG[2]):
            taking = asyncio.ensure_future(reader.take(first))
            await asyncio.sleep(0)
            assert not reader.take_now(LONG[3])
            await taking
            assert reader.take_now(LONG[3])

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", STREAMS)
def test_bytes_are_relayed_as_they_were_sent_wherever_they_are_cut(name: str, end: str) -> None:
    data, reason = STREAMS[name]
    data = data.replace(b"\n", ENDS[end])
    check(data, reason, [data])
    check(data, reason, [data[at : at + 1] for at in range(len(data))])
    for at in range(0, len(data), 1 if end == "crlf" else 7):
        check(data, reason, cut(data, at))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(STREAMS)),
    st.sampled_from(sorted(ENDS)),
    st.lists(st.integers(0, 1500), max_size=20),
)
def test_any_cuts(name: str, end: str, cuts: list[int]) -> None:
    data, reason = STREAMS[name]
    data = data.replace(b"\n", ENDS[end])
    check(data, reason, cut(data, *[min(at, len(data)) for at in cuts]))


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", ["chat", "completions", "responses"])
def test_a_chunk_of_text_has_the_bytes_of_its_event(name: str, end: str) -> None:
    data, reason = STREAMS[name]
    data = data.replace(b"\n", ENDS[end])
    for at in range(0, len(data), 3):
        reads = Reads()
        reply, _ = read(reads, *cut(data, at))
        assert reply.finish_reason == reason
        assert (
            reply.output
            == {"chat": "Grüße, no error!", "completions": "ab", "responses": "hi"}[name]
        )
        blank = ENDS[end] * 2
        sent = [block + blank for block in data.split(blank) if b"data:" in block]
        assert [chunk.raw.lstrip(b"\n") for chunk in reads.chunks] == [
            block for block in sent if b"[DONE]" not in block
        ]


def test_several_choices_each_have_their_finish_reason() -> None:
    data = b"".join(
        event_bytes(chat(said(text, reason, index)))
        for text, reason, index in [
            ("a", None, 1),
            ("b", None, 0),
            ("", "length", 1),
            ("", "stop", 0),
        ]
    )
    reply, _ = read(Relay(), data)
    assert reply.finish_reason == ["stop", "length"]
    with pytest.raises(Disconnected):
        read(Relay(), data[: data.rindex(b"data:")])


BROKEN = [
    (event_bytes({"error": {"message": "no", "code": 503}}), ServerFailed),
    (b'event: error\ndata: {"message": "no", "code": 503}\n\n', ServerFailed),
    (event_bytes({"type": "error", "code": 503, "message": "no"}), ServerFailed),
    (event_bytes({"object": "error", "code": 503, "message": "no"}), ServerFailed),
    (event_bytes(chat(said("", "abort"))), ServerFailed),
    (event_bytes(chat({**said("x"), "error": {"message": "no", "code": 503}})), ServerFailed),
    (b"data: {no}\n\n", BadReply),
    (b"data: [1]\n\n", BadReply),
]


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(("event", "kind"), BROKEN)
def test_an_error_ends_the_relay_behind_what_came_before_it(
    event: bytes, kind: type[CallError], is_cut: bool
) -> None:
    relay, before = Relay(), b"".join(CHAT[:4])
    data = before + event + b"".join(CHAT[4:])
    with pytest.raises(kind):
        read(relay, *(cut(data, len(before) + 2) if is_cut else [data]))
    assert b"".join(relay.raws) == before


@pytest.mark.parametrize(("event", "kind"), BROKEN)
def test_nothing_is_relayed_before_the_first_event(event: bytes, kind: type[CallError]) -> None:
    relay, call = Relay(), Call()
    reader = StreamReader(relay, call)

    async def main() -> None:
        await reader.take(b": waiting\n\n")
        await reader.take(event)

    with pytest.raises(kind):
        asyncio.run(main())
    assert (relay.heads, relay.raws, call.committed) == ([], [], False)
