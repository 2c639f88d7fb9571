"""The most that a request can cost: never less than it does."""

from __future__ import annotations

from typing import Any

import pytest

from redline.calls import Request
from redline.calls.tokens import worst_of

CHAT = "/v1/chat/completions"


def request(url: str = CHAT, **body: Any) -> Request:
    return Request(url=url, body=body)


def said(text: str, **more: Any) -> Request:
    return request(messages=[{"role": "user", "content": text}], **more)


@pytest.mark.parametrize("text", ["", "a" * 1000, "\x01" * 50, "é" * 100, "🚗" * 100, '"\\' * 30])
def test_there_is_a_token_for_each_byte_of_the_text(text: str) -> None:
    assert worst_of(said(text)).input_tokens >= len(text.encode()) + 40


def test_every_message_has_room_for_its_frame() -> None:
    empty = [{"role": "user", "content": ""}]
    one = worst_of(request(messages=empty)).input_tokens
    assert worst_of(request(messages=empty * 11)).input_tokens >= one + 10 * 20


def test_token_ids_count_one_at_least() -> None:
    found = worst_of(request("/v1/completions", prompt=[1] * 500))
    assert found.input_tokens >= 500


def test_tools_bring_a_prompt_of_their_own() -> None:
    assert worst_of(said("x", tools=[{"type": "function"}])).input_tokens > 1000


def test_an_image_counts_as_an_image_and_not_as_its_bytes() -> None:
    url = {"url": "data:image/png;base64," + "A" * 1_000_000}
    parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": url}]
    found = worst_of(request(messages=[{"role": "user", "content": parts}]))
    assert 50_000 <= found.input_tokens < 51_000


URL = "https://x.test/long"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "document", "source": {"type": "url", "url": URL}},
        {"type": "document", "source": {"type": "base64", "data": "QUJD"}},
        {"type": "document_url", "document_url": URL},
        {"type": "video", "video": URL},
        {"type": "audio_url", "audio_url": {"url": URL}},
    ],
)
def test_documents_videos_and_sounds_count_as_images_do(part: dict[str, Any]) -> None:
    found = worst_of(request(messages=[{"role": "user", "content": [part]}]))
    assert 50_000 <= found.input_tokens < 51_000


@pytest.mark.parametrize(
    "part",
    [
        {"type": "document", "source": {"type": "text", "data": "a" * 900}},
        {"type": "document", "source": {"type": "content", "content": "a" * 900}},
        {"type": "document", "document": {"text": "a" * 900}},
    ],
)
def test_a_document_of_text_is_a_text(part: dict[str, Any]) -> None:
    found = worst_of(request(messages=[{"role": "user", "content": [part]}]))
    assert 900 <= found.input_tokens < 1100


def test_a_text_that_speaks_of_images_is_a_text() -> None:
    assert worst_of(said("an image, a file, a document")).input_tokens < 200


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 10}, 10),
        ({"max_output_tokens": 10}, 10),
        ({"max_tokens": 10, "max_completion_tokens": 20}, 20),
        ({"max_tokens": 10, "n": 3}, 30),
        ({"max_tokens": 10, "n": 3, "best_of": 5}, 50),
        ({"max_tokens": 10, "best_of": 2}, 20),
        ({"max_tokens": 10, "prompt": ["a", "b"], "n": 2}, 40),
        ({"max_tokens": 0}, 1),
        ({"max_tokens": -1}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 10, "n": "3"}, 30),
        ({"max_tokens": 10, "n": 3.0, "best_of": "5"}, 50),
        ({"max_tokens": "10"}, 10),
        ({"max_tokens": 9.5}, 10),
        ({"max_tokens": 10, "max_completion_tokens": "many"}, None),
        ({"max_tokens": True}, None),
        ({}, None),
    ],
)
def test_the_output_is_bounded_by_what_the_request_states(
    body: dict[str, Any], most: int | None
) -> None:
    assert worst_of(request("/v1/completions", **body)).output_tokens == most


def test_embeddings_have_no_output() -> None:
    assert worst_of(request("/v1/embeddings", input="x")).output_tokens == 0


def test_what_is_to_be_cached_may_cost_more() -> None:
    parts = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
    assert worst_of(request(messages=[{"role": "user", "content": parts}])).may_write
    assert not worst_of(said("x")).may_write
    source = {"type": "base64", "media_type": "application/pdf", "data": "QUJD"}
    pdf = [{"type": "document", "source": source, "cache_control": {"type": "ephemeral"}}]
    assert worst_of(request(messages=[{"role": "user", "content": pdf}])).may_write


def test_a_body_of_no_object_has_its_bytes() -> None:
    assert worst_of(Request(body=None)).output_tokens is None
    assert worst_of(Request(body="x" * 100)).input_tokens >= 100
