"""Answers are what OpenAI's SDK and redline itself read."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from redline.apis import ChoicesWriter, chat, completion_usage, completions
from redline.apis import replies as apis
from redline.calls import Call, Chunk, Reply, Sink
from redline.calls.http import StreamReader
from redline.engine.api import Answer, Drawn, Pieces, Said, TextStream
from support import vocabularies

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOKENIZER = vocabularies.byte_level()
PIECES = Pieces(TOKENIZER)
SPOKEN = "the fox 世 🚀"
COUNTED = completion_usage(7, 5)


def answer(url: str, *, includes_usage: bool = False) -> Answer:
    form = chat.FORM if url == CHAT else completions.FORM
    writer = ChoicesWriter(form, "x1", 1_700_000_000, "tiny", includes_usage)
    return Answer(writer, PIECES)


def drawn(text: str) -> list[Drawn]:
    """The tokens of a text, each with its neighbours as the likeliest ones."""
    stream, found = TextStream(PIECES), []
    for token in TOKENIZER.encode(text, add_special_tokens=False):
        found.append(Drawn(token, -0.5, [(token, -0.5), (token + 1, -math.inf)], stream.length))
        stream.push(token)
    return found


def as_sent(body: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body))


class Heard(Sink):
    async def put(self, chunk: Chunk) -> None: ...


def streamed(events: list[dict[str, Any]]) -> Reply:
    """What redline's own client makes of the events."""
    data = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)
    reader = StreamReader(Heard(), Call())

    async def main() -> Reply:
        await reader.take(data + b"data: [DONE]\n\n")
        return reader.finish()

    return asyncio.run(main())


def test_a_whole_answer_is_read_by_the_sdk_and_by_redline() -> None:
    for url in (CHAT, TEXT):
        said = [
            Said(1, "b", "length", drawn("b")),
            Said(0, SPOKEN, "stop", drawn(SPOKEN)),
            Said(2, "", "stop"),
        ]
        body = msgspec.json.encode(answer(url).whole(said, COUNTED))
        reply = apis.read(url, body)
        assert reply.output == [SPOKEN, "b", ""]
        assert (reply.finish_reason, reply.model) == (["stop", "length", "empty"], "tiny")
        assert (reply.input_tokens, reply.output_tokens) == (7, 5)
        assert reply.request_id == ("chatcmpl-x1" if url == CHAT else "cmpl-x1")
        read: Any = ChatCompletion if url == CHAT else Completion
        parsed = read.model_validate(msgspec.json.decode(body), strict=True)
        assert [choice.index for choice in parsed.choices] == [0, 1, 2]
        assert [choice.finish_reason for choice in parsed.choices] == ["stop", "length", "stop"]
        assert parsed.choices[2].logprobs is None
        assert parsed.usage.total_tokens == 12


def test_one_empty_answer_is_empty_and_not_broken() -> None:
    for url in (CHAT, TEXT):
        body = msgspec.json.encode(answer(url).whole([Said(0, "", "stop")], COUNTED))
        assert apis.read(url, body).finish_reason == "empty"


def events_of(made: Answer, text: str, choices: int = 2) -> list[dict[str, Any]]:
    """A stream whose choices take turns, two tokens at a time."""
    events = made.first(choices)
    tokens = drawn(text)
    streams = [TextStream(PIECES) for _ in range(choices)]
    for at in range(0, len(tokens), 2):
        for index, stream in enumerate(streams):
            some = tokens[at : at + 2]
            new = "".join(stream.push(one.token) for one in some)
            events += made.next(Said(index, new, None, some))
    for index, stream in enumerate(streams):
        events += made.next(Said(index, stream.finish(), "length" if index else "stop"))
    return events + made.writer.last(COUNTED)


def test_a_stream_is_read_by_the_sdk_and_by_redline() -> None:
    for url in (CHAT, TEXT):
        for includes_usage in (False, True):
            made = answer(url, includes_usage=includes_usage)
            events = events_of(made, SPOKEN)
            reply = streamed(events)
            assert reply.output == [SPOKEN, SPOKEN]
            assert (reply.finish_reason, reply.model) == (["stop", "length"], "tiny")
            assert reply.usage == (COUNTED if includes_usage else None)
            read: Any = ChatCompletionChunk if url == CHAT else Completion
            for event in events:
                plain = as_sent(event)
                for choice in plain["choices"]:
                    # The SDK's own type of a streamed completion has no null in this place,
                    # although the API sends it until the end.
                    if url == TEXT:
                        choice["finish_reason"] = choice["finish_reason"] or "stop"
                read.model_validate(plain, strict=True)
            assert len({event["id"] for event in events}) == 1
            finished = [choice["finish_reason"] for event in events for choice in event["choices"]]
            assert [reason for reason in finished if reason] == ["stop", "length"]
            assert all(("usage" in event) == includes_usage for event in events)


def test_a_chat_begins_with_who_speaks() -> None:
    first = answer(CHAT).first(2)
    assert [event["choices"][0]["index"] for event in first] == [0, 1]
    assert first[0]["choices"][0]["delta"]["role"] == "assistant"
    assert answer(TEXT).first(2) == []


def test_nothing_new_is_no_event_and_an_end_without_text_is_one() -> None:
    for url in (CHAT, TEXT):
        assert answer(url).next(Said(0, "")) == []
        [event] = answer(url).next(Said(0, "", "stop"))
        assert event["choices"][0]["finish_reason"] == "stop"
    [event] = answer(CHAT).next(Said(0, "", "stop"))
    assert event["choices"][0]["delta"] == {}


def test_logprobs_of_both_apis() -> None:
    """The bytes of all tokens are the text; each place has its token and the likely ones."""
    said = [Said(0, SPOKEN, "stop", drawn(SPOKEN))]
    body = as_sent(answer(CHAT).whole(said, COUNTED))
    told = body["choices"][0]["logprobs"]["content"]
    assert all(likely["logprob"] is not None for one in told for likely in one["top_logprobs"])
    parsed: Any = ChatCompletion.model_validate(body)
    content = parsed.choices[0].logprobs.content
    assert content is not None
    assert bytes(byte for one in content for byte in one.bytes or []).decode() == SPOKEN
    assert all(one.top_logprobs[0].token == one.token for one in content)
    assert {one.logprob for one in content} == {-0.5}
    assert {one.top_logprobs[1].logprob for one in content} == {-9999.0}

    body = as_sent(answer(TEXT).whole(said, COUNTED))
    found = Completion.model_validate(body).choices[0].logprobs
    assert found is not None
    assert found.tokens
    assert found.top_logprobs
    assert found.text_offset
    assert len(found.tokens) == len(found.token_logprobs or []) == len(found.top_logprobs)
    for token, offset, top in zip(found.tokens, found.text_offset, found.top_logprobs, strict=True):
        assert top[token] == -0.5
        assert token.startswith("bytes:") or SPOKEN.startswith(token, offset)


def test_a_token_that_is_no_text_alone_is_shown_by_its_bytes() -> None:
    token = next(token for token in range(300) if PIECES.of(token).data == b"\xf0")
    said = [Said(0, "", "length", [Drawn(token, -1.0)])]
    one = answer(CHAT).whole(said, COUNTED)["choices"][0]["logprobs"]["content"][0]
    assert one == {"token": "\\xf0", "logprob": -1.0, "bytes": [240], "top_logprobs": []}
    four = answer(TEXT).whole(said, COUNTED)["choices"][0]["logprobs"]
    assert four == {
        "tokens": ["bytes:\\xf0"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{"bytes:\\xf0": -1.0}],
        "text_offset": [0],
    }
