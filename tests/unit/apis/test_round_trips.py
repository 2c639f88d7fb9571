"""What apis writes, whole or as a stream, it reads as what was written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.apis import (
    DONE,
    DONE_EVENT,
    Api,
    ChoicesWriter,
    EventParser,
    Form,
    RequestLine,
    StreamedAnswer,
    answer_object,
    chat,
    completion_usage,
    completions,
    embeddings,
    error_body,
    event_bytes,
    judge,
    read_line,
    response_usage,
    responses,
    result_object,
)
from redline.apis import replies as apis
from support.events import completed

FORMS = [(chat.API, chat.FORM), (completions.API, completions.FORM)]
TEXTS = st.lists(st.text(min_size=1), min_size=1, max_size=4)
COUNTS = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))
PIECES = st.lists(st.tuples(st.integers(0, 2), st.text(max_size=4)), max_size=12)


def encoded(value: object) -> bytes:
    return msgspec.json.encode(value)


@pytest.mark.parametrize(("api", "form"), FORMS)
@given(TEXTS, COUNTS, st.sampled_from(["stop", "length"]))
def test_choices(
    api: Api, form: Form, texts: list[str], counts: tuple[int, int], reason: str
) -> None:
    writer = ChoicesWriter(form, "x1", 5, "m")
    made = [form.choice(place, text, reason) for place, text in enumerate(texts)]
    body = encoded(writer.whole(made, completion_usage(*counts)))
    reply = apis.read(api.path, body, asked={"n": len(texts)})
    is_one = len(texts) == 1
    assert reply.output == (texts[0] if is_one else texts)
    assert reply.finish_reasons == [reason] * len(texts)
    assert (reply.input_tokens, reply.output_tokens, reply.model) == (*counts, "m")
    assert reply.request_id == f"{form.id_prefix}-x1"


@pytest.mark.parametrize("includes_usage", [False, True])
@pytest.mark.parametrize(("api", "form"), FORMS)
@settings(deadline=None)
@given(PIECES, COUNTS, st.data())
def test_streamed_choices(
    api: Api,
    form: Form,
    includes_usage: bool,
    pieces: list[tuple[int, str]],
    counts: tuple[int, int],
    data: st.DataObject,
) -> None:
    writer = ChoicesWriter(form, "x1", 5, "m", includes_usage)
    made = [form.opening(index) for index in range(3)] if form.opening else []
    made += [form.piece(index, text) for index, text in pieces]
    made += [form.piece(index, "", "stop") for index in range(3)]
    events = [writer.event(piece) for piece in made] + writer.last(completion_usage(*counts))
    sent = b"".join(map(event_bytes, events)) + DONE_EVENT
    cut = data.draw(st.integers(0, len(sent)))
    parser, answer = EventParser(), StreamedAnswer()
    found = completed(parser, sent[:cut]) + completed(parser, sent[cut:])
    assert found[-1] == DONE
    said = [answer.add(msgspec.json.decode(event)) for event in found[:-1]]
    whole = ["".join(text for index, text in pieces if index == place) for place in range(3)]
    assert "".join(said) == whole[0]
    reply = apis.read(*answer.whole(is_done=True), asked={"n": 3})
    assert (reply.output, reply.model) == (whole, "m")
    assert (reply.input_tokens, reply.output_tokens) == (counts if includes_usage else (None, None))


@pytest.mark.parametrize("form", [form for _, form in FORMS])
@given(st.text() | st.just('"choices":[]}]'), st.text(), st.booleans())
def test_an_event_is_the_same_when_its_shell_is_encoded_once(
    form: Form, model: str, text: str, includes_usage: bool
) -> None:
    writer = ChoicesWriter(form, "x1", 5, model, includes_usage)
    encode = writer.encoder()
    for piece in (form.piece(0, text), form.piece(1, "", "stop")):
        assert encode(piece) == event_bytes(writer.event(piece))


@given(st.text(min_size=1), COUNTS, st.booleans())
def test_a_response(text: str, counts: tuple[int, int], is_cut: bool) -> None:
    usage = response_usage(*counts)
    shown = responses.whole("x1", 5, text, is_cut=is_cut, model="m", usage=usage)
    reply = apis.read(responses.API.path, encoded(shown))
    assert (reply.output, reply.finish_reason) == (text, "length" if is_cut else "stop")
    assert (reply.input_tokens, reply.output_tokens, reply.model) == (*counts, "m")


@given(st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=3), min_size=1, max_size=3))
def test_vectors(vectors: list[list[float]]) -> None:
    body = encoded(embeddings.whole(vectors, "m", 7))
    reply = apis.read(embeddings.API.path, body, asked={"input": ["a"] * len(vectors)})
    assert reply.output == (vectors[0] if len(vectors) == 1 else vectors)
    assert (reply.input_tokens, reply.output_tokens) == (7, None)


def test_a_line_of_results() -> None:
    body = {"choices": [{"text": "a"}]}
    line = read_line(encoded(result_object("l1", "row-1", answer_object(200, "r", body))))
    assert (line.custom_id, line.error, line.problem) == ("row-1", None, "")
    assert line.response is not None
    assert (line.response.status_code, line.response.request_id) == (200, "r")
    assert msgspec.json.decode(line.response.body) == body
    reason = {"code": "batch_expired", "message": "late"}
    line = read_line(encoded(result_object("l1", "row-1", None, reason)))
    assert line.response is None
    assert line.error is not None
    assert (line.error.code, line.error.message) == ("batch_expired", "late")


def test_a_line_of_requests() -> None:
    line = RequestLine("row-1", "POST", chat.API.path, msgspec.Raw(b'{"a":1}'))
    raw = encoded(line)
    assert raw == (
        b'{"custom_id":"row-1","method":"POST","url":"/v1/chat/completions","body":{"a":1}}'
    )
    assert msgspec.json.decode(raw, type=RequestLine).url == chat.API.path


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, None, "rate_limited"),
        (429, "insufficient_quota", "unpaid"),
        (503, None, "server_failed"),
    ],
)
def test_an_error(status: int, code: str | None, kind: str) -> None:
    found: Any = judge(status, {}, encoded(error_body("no more", "requests", code=code)), 0.0)
    assert (found.kind, found.status) == (kind, status)
    assert "no more" in found.what
