"""Chunks pass as they came only if each is whole and holds an event like those before it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redline.apis import event_bytes, event_form_of
from redline.calls.http import ChunkRelay
from redline.calls.wire import chunks_in, size_line


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def event(text: str, **more: object) -> bytes:
    return event_bytes({"id": "c", "choices": [{"delta": {"content": text}, "index": 0}], **more})


class Client:
    """Where chunks are written to. write: None while it has no room."""

    def __init__(self) -> None:
        self.written = b""
        self.write: Callable[[bytes], None] | None = self._take

    def _take(self, data: bytes) -> None:
        self.written += data


def relay_to(client: Client) -> ChunkRelay:
    form = event_form_of(event("a"))
    assert form is not None
    return ChunkRelay(form, client)


def test_what_a_chunk_begins_with_is_known_by_its_length() -> None:
    lengths = set()
    for size in (*range(1, 4200), 65_535, 65_536, 0xFFFFF):
        whole = chunk(bytes(size))
        lengths.add(len(whole))
        assert whole.startswith(size_line(len(whole)) or b"none")
    # Such as 21: the size has one digit up to a length of 20, and two from 22 on.
    for length in set(range(4200)) - lengths:
        assert size_line(length) is None


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=4))
def test_chunks_are_found(bodies: list[bytes]) -> None:
    data = b"".join(map(chunk, bodies))
    found = chunks_in(data)
    assert found is not None
    assert [data[start:stop] for start, stop in found] == bodies


@pytest.mark.parametrize(
    "data",
    [
        *(b"a", b"\r\n", b"3\r\nab\r\n", b"3\r\nabc", b"3\r\nabc\r", b"3\r\nabcd\r\n"),
        *(
            b"03\r\nabc\r\n",
            b"0x3\r\nabc\r\n",
            b"+3\r\nabc\r\n",
            b" 3\r\nabc\r\n",
            b"-3\r\nabc\r\n",
        ),
        *(
            b"3;a=b\r\nabc\r\n",
            b"3\nabc\r\n",
            b"3\r\nabc\n\n",
            b"0\r\n\r\n",
            b"1\r\na\r\n0\r\n\r\n",
        ),
        # Of a negative size, at which a reader would come back to where it was.
        b"3\r\nabc\r\n-6\r\n3\r\nabc\r\n",
        *(b"1_0\r\n%b\r\n" % bytes(16), b"100000\r\n", b"abc\r\n", b"3\r\nabc\r\n4"),
    ],
)
def test_what_is_not_whole_chunks_is_for_the_parser(data: bytes) -> None:
    assert chunks_in(data) is None


# A size that leads back to the chunk's own beginning.
@example([chunk(b"abc"), -6])
@given(st.lists(st.binary(max_size=20).map(chunk) | st.integers(-40, 40), max_size=6))
def test_what_is_found_is_all_of_the_data(parts: list[bytes | int]) -> None:
    data = b"".join(part if isinstance(part, bytes) else b"%x\r\n" % part for part in parts)
    found = chunks_in(data)
    if found is not None:
        assert b"".join(chunk(data[start:stop]) for start, stop in found) == data


def test_the_size_may_be_in_upper_case() -> None:
    assert chunks_in(b"A\r\n%b\r\n" % bytes(10)) == [(3, 13)]


@given(st.lists(st.text(max_size=200), min_size=1, max_size=4))
def test_events_that_differ_in_their_text_pass_as_they_came(texts: list[str]) -> None:
    client = Client()
    relay, events = relay_to(client), [event(text) for text in texts]
    data = b"".join(map(chunk, events))
    assert relay.take(data) == sum(map(len, events))
    assert client.written == data


def test_many_lengths_are_told_apart() -> None:
    client = Client()
    relay = relay_to(client)
    for size in (*range(300), *range(300)):
        text = event("x" * size)
        assert relay.take(chunk(text)) == len(text)


ODD = [
    event("a", usage={"prompt_tokens": 1}),
    event('a"}}],"error":{"message":"b"},"x":[{"y":{"z":"').replace(rb"\"", b'"'),
    event("a").replace(b"data", b"event"),
    event("a").replace(b"\n\n", b"\n"),
    event("a") + b"\n",
    b"\n" + event("a"),
    event("a").replace(b'"a"', b'"\n"'),
    event("a").replace(b'"a"', b'"'),
    event("a")[:-2] + event("a"),
    b"data: [DONE]\n\n",
]


@pytest.mark.parametrize("odd", ODD)
def test_an_event_that_is_other_does_not_pass_and_neither_does_what_comes_with_it(
    odd: bytes,
) -> None:
    usual = chunk(event("a"))
    for parts in itertools.product((usual, chunk(odd)), repeat=3):
        client = Client()
        data = b"".join(parts)
        is_usual = parts == (usual,) * 3
        assert (relay_to(client).take(data) > 0) == is_usual
        assert client.written == (data if is_usual else b"")


@pytest.mark.parametrize("at", range(len(chunk(event("abcdef")))))
def test_what_is_cut_or_damaged_does_not_pass(at: int) -> None:
    client, whole = Client(), chunk(event("abcdef"))
    relay = relay_to(client)
    assert relay.take(whole)
    for damaged in (whole[:at], whole[at + 1 :], whole[:at] + b"\n" + whole[at + 1 :]):
        assert not relay.take(damaged) or damaged == whole
    assert client.written == whole * (1 + (whole[at : at + 1] == b"\n"))


def test_nothing_passes_while_the_client_has_no_room() -> None:
    client = Client()
    relay, write = relay_to(client), client.write
    client.write = None
    assert not relay.take(chunk(event("a")))
    client.write = write
    assert relay.take(chunk(event("a")))
