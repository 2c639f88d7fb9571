"""Requests of a known form: taken as llhttp reads them, or left to it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from redline.httpserver import HttpBounds, connection
from redline.httpserver.request_form import RequestForm
from support.catching import assert_caught
from support.server_fuzzing import Result, play
from support.smuggling import NEXT, REFUSED, TAKEN

BOUNDS = HttpBounds(most_body_bytes=100)
USUAL = b"POST /first HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nX-Id: 7\r\n\r\nhello"
PAGE = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Id: 7\r\n\r\n"


def check(before: bytes, data: bytes) -> None:
    """The same comes of it behind `before`, whether that came in a read of its own or not."""

    def played(*pieces: bytes) -> Result:
        return play(connection, list(pieces), "at once", BOUNDS)

    assert played(before, data, NEXT) == played(before + data + NEXT), data


def changed(text: bytes, of: bytes = b"X-Id: 7") -> bytes:
    return USUAL.replace(of, text)


ODD = {
    "the same": USUAL,
    "a longer body": changed(b"Content-Length: 12", b"Content-Length: 5") + b", world",
    "no body": changed(b"Content-Length: 0", b"Content-Length: 5")[:-5],
    "a body too long": changed(b"Content-Length: 101", b"Content-Length: 5") + b"x" * 96,
    "a body cut short": USUAL[:-1],
    "a request behind it": USUAL + USUAL,
    "an empty line before": b"\r\n" + USUAL,
    "an empty line behind": USUAL + b"\r\n",
    "another path": changed(b"POST /second", b"POST /first"),
    "another method": changed(b"PUT", b"POST"),
    "another value": changed(b"X-Id: 8"),
    "another name": changed(b"x-id: 7"),
    "one header more": changed(b"X-Id: 7\r\nA: b"),
    "chunks": changed(b"Transfer-Encoding: chunked"),
    "a coding": changed(b"Content-Encoding: gzip"),
    "its end": changed(b"Connection: close"),
    "a length with a zero": changed(b"Content-Length: 05", b"Content-Length: 5"),
    "a length with a sign": changed(b"Content-Length: +5", b"Content-Length: 5"),
    "a length without digits": changed(b"Content-Length: ", b"Content-Length: 5"),
    "a length in full-width digits": changed(
        "Content-Length: \uff15".encode(), b"Content-Length: 5"
    ),
    "two lengths": changed(b"Content-Length: 5"),
    "a page": PAGE,
    "a page with a body": PAGE.replace(b"X-Id: 7", b"Content-Length: 5") + b"hello",
    "a page with a body behind it": PAGE + b"hello",
    "a page cut short": PAGE[:-1],
    "a page and a call": PAGE + USUAL,
    "another page": PAGE.replace(b"healthz", b"metrics"),
    "a page of chunks": PAGE.replace(b"X-Id: 7", b"Transfer-Encoding: chunked"),
    "an upgrade": PAGE.replace(b"X-Id: 7", b"Connection: upgrade\r\nUpgrade: h2c"),
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
@pytest.mark.parametrize("before", [USUAL, PAGE, None], ids=["a call", "a page", "itself"])
def test_a_request_is_taken_alike_whether_its_form_is_known_or_not(
    data: bytes, before: bytes | None
) -> None:
    check(data if before is None else before, data)


@pytest.mark.slow
@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
def test_a_request_is_taken_alike_wherever_it_is_cut(data: bytes) -> None:
    expected = play(connection, [USUAL + data + NEXT], "at once", BOUNDS)
    for at in range(len(data) + 1):
        for pieces in ([data[:at], data[at:]], [data[:at], data[at : at + 2], data[at + 2 :]]):
            *begin, last = [piece for piece in pieces if piece] or [b""]
            # Each cut is met with the next request in the same read, or in one of its own.
            behind = [last, NEXT] if (at + len(pieces)) % 2 else [last + NEXT]
            found = play(connection, [USUAL, *begin, *behind], "at once", BOUNDS)
            assert found == expected, (at, behind)


@pytest.mark.slow
@pytest.mark.parametrize("data", [*REFUSED.values(), *(data for data, *_ in TAKEN.values())])
def test_an_odd_request_is_taken_alike_behind_itself(data: bytes) -> None:
    check(data, data)


@pytest.mark.parametrize("data", [USUAL, PAGE], ids=["a call", "a page"])
@pytest.mark.parametrize("begun", [b"G", b"GET /other", b"GET /other HTTP/1.1\r\nX-Other: "])
def test_a_request_within_a_head_that_began_behind_another_is_no_request(
    data: bytes, begun: bytes
) -> None:
    pieces = [data, data + begun, data, data, NEXT]
    expected = play(connection, [b"".join(pieces)], "at once", BOUNDS)
    assert play(connection, pieces, "at once", BOUNDS) == expected
    # Neither is it learned as a form.
    later = [data + begun, data, data, NEXT]
    expected = play(connection, [b"".join(later)], "at once", BOUNDS)
    assert play(connection, later, "at once", BOUNDS) == expected


def mutated(rng: random.Random) -> Iterable[tuple[bytes, bytes]]:
    """Usual requests, and others of the same form with bytes replaced, removed and inserted."""
    for _ in range(300):
        lines = [b"Host: x", b"X-Id: 7", b"Content-Length: %d"]
        rng.shuffle(lines)
        head = b"POST /first HTTP/1.1\r\n%b\r\n\r\n" % b"\r\n".join(lines)
        right, data = (
            head % len(body) + body for body in (rng.randbytes(rng.randrange(12)) for _ in range(2))
        )
        if rng.random() < 0.3:
            right = data = PAGE
        for _ in range(rng.choice((0, 1, 1, 2))):
            at = rng.randrange(len(data))
            size, byte = rng.randrange(3), rng.choice((rng.randrange(256), *b" \t\r\n19"))
            data = data[:at] + bytes((byte,)) * (2 - size) + data[at + size :]
        yield right, data


def check_mutated() -> None:
    for right, data in mutated(random.Random(7)):
        check(right, data)


def with_read(read: Callable[..., Any]) -> Callable[[], None]:
    """The same check with forms that read so."""

    def check_it() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RequestForm, "body", read)
            check_mutated()

    return check_it


@pytest.mark.slow
def test_mutated_requests_are_taken_alike_whether_their_form_is_known_or_not() -> None:
    def judge(checked: Any) -> None:
        checked()

    def all_else(form: RequestForm, data: bytes, most_bytes: int) -> Any:
        _, _, body = data.partition(b"\r\n\r\n")
        return body if data.startswith(form.begin) else None

    def no_beginning(form: RequestForm, data: bytes, most_bytes: int) -> Any:
        return strict(form, form.begin + data[len(form.begin) :], most_bytes)

    strict, right = RequestForm.body, functools.cache(check_mutated)
    assert_caught(judge, right, with_read(all_else))
    assert_caught(judge, right, with_read(no_beginning))


def test_a_known_form_saves_the_parser_its_work() -> None:
    """Otherwise none of the above would show anything."""
    calls = 0

    class Counting(connection.Connection):
        def on_headers_complete(self) -> None:
            nonlocal calls
            calls += 1
            super().on_headers_complete()

    module = SimpleNamespace(Connection=Counting, Service=connection.Service)
    pieces = [PAGE, PAGE, USUAL, USUAL, ODD["a longer body"], PAGE, USUAL]
    result = play(module, pieces, "at once", BOUNDS)  # type: ignore[arg-type]
    bodies = [seen.body for seen in result.seen]
    assert bodies == [b"", b"", b"hello", b"hello", b"hello, world", b"", b"hello"]
    # The page, the call, and the page between calls, which does not take the place of their form.
    assert calls == 3
