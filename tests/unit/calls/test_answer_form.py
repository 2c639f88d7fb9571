"""Answers of a known form: read as llhttp reads them, or left to it."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from redline.calls.wire import Connection, answer_form
from support.answers import head
from support.catching import assert_caught
from support.wires import Case, Result, exchange

NAMES = ("Server", "Date", "X-Request-Id", "Content-Length", "Connection")
LENGTH, KEPT = "Content-Length: 5", "Connection: keep-alive"
USUAL = head("Server: it", "Date: now", "x-limit: 5", LENGTH, KEPT) + b"hello"
ENDINGS = ("ring", "eof")


def outcomes(data: bytes, before: bytes, most_bytes: int = 100_000) -> list[Result]:
    """What it comes to on a new connection, and on one that has carried `before`."""

    async def main() -> list[Result]:
        return [
            exchange(SimpleNamespace(Connection=Connection), case)  # type: ignore[arg-type]
            for ending in ENDINGS
            for case in (
                Case([data], ending, most_bytes=most_bytes),
                Case([data], ending, most_bytes=most_bytes, before=before),
            )
        ]

    return asyncio.run(main())


def check(data: bytes, before: bytes = USUAL, most_bytes: int = 100_000) -> None:
    results = outcomes(data, before, most_bytes)
    for new, kept in zip(results[::2], results[1::2], strict=True):
        # A connection that is lost on its first answer is lost once more with the second.
        assert (new.key, new.is_reusable) == (kept.key, kept.is_reusable), data


def line(text: str, of: str = "x-limit: 5") -> bytes:
    return USUAL.replace(of.encode(), text.encode("latin-1"))


ODD = {
    "the same": USUAL,
    "another value": line("x-limit: 4 of 5; \t ü"),
    "no value": line("x-limit: "),
    "no space": line("x-limit:5"),
    "two spaces": line("x-limit:  5"),
    "a blank behind": line("x-limit: 5 "),
    "a tab behind": line("x-limit: 5\t"),
    "another name": line("x-limiT: 5"),
    "a control character": line("x-limit: 5\x01"),
    "a NUL": line("x-limit: \0"),
    "a DEL": line("x-limit: a\x7f"),
    "a lone CR": line("x-limit: 5\r6"),
    "a lone LF": line("x-limit: 5\nx: 6"),
    "a folded line": line("x-limit: 5\r\n 6"),
    "one more header": line("x-limit: 5\r\nx: 6"),
    "one header less": USUAL.replace(b"x-limit: 5\r\n", b""),
    "it closes": line("Connection: close", KEPT),
    "it keeps, in capitals": line("Connection: Keep-Alive", KEPT),
    "it upgrades": line("Connection: keep-alive, upgrade", KEPT),
    "a chunked body": line("Transfer-Encoding: chunked"),
    "an unknown coding": line("Content-Encoding: br"),
    "a length too long": line("Content-Length: 6", LENGTH),
    "a length too short": line("Content-Length: 4", LENGTH),
    "no length": line("Content-Length: ", LENGTH),
    "a length with a sign": line("Content-Length: +5", LENGTH),
    "a length with zeros": line("Content-Length: 005", LENGTH),
    "a length of other digits": line("Content-Length: \xb2", LENGTH),
    "a huge length": line(f"Content-Length: {'9' * 30}", LENGTH),
    "two lengths": line("Content-Length: 5"),
    "a second answer": USUAL * 2,
    "half of a second answer": USUAL + USUAL[:9],
    "an empty line before": b"\r\n" + USUAL,
    "an empty line behind": USUAL + b"\r\n",
    "another status": USUAL.replace(b"200 OK", b"429 Too Many Requests"),
    "another success": USUAL.replace(b"200 OK", b"201 Created"),
    "no content": USUAL.replace(b"200 OK", b"204 No Content"),
    "another version": USUAL.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "an interim answer before": b"HTTP/1.1 100 Continue\r\n\r\n" + USUAL,
    "nothing but a head": USUAL[:-5],
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
@pytest.mark.parametrize("before", [USUAL, None], ids=["another", "itself"])
def test_an_answer_is_read_alike_whether_its_form_is_known_or_not(
    data: bytes, before: bytes | None
) -> None:
    check(data, data if before is None else before)


def test_a_long_answer_is_refused_whether_its_form_is_known_or_not() -> None:
    for size in (2_999, 3_000, 3_001):
        data = line(f"Content-Length: {size}", LENGTH)[:-5] + b"x" * size
        check(data, most_bytes=3_000)


def mutated(rng: random.Random) -> Iterable[tuple[bytes, bytes]]:
    """Usual answers, and the same with bytes replaced, removed and inserted."""
    for _ in range(1_500):
        names = rng.sample(NAMES[:3], rng.randrange(4))
        lines = [f"{name}: {rng.randrange(10**6)}" for name in names]
        body = rng.randbytes(rng.randrange(30))
        lines.append(f"Content-Length: {len(body)}")
        lines += [KEPT] * rng.randrange(2)
        rng.shuffle(lines)
        right = data = head(*lines) + body
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(data))
            size, byte = rng.randrange(3), rng.choice((rng.randrange(256), *b" \t\r\n"))
            data = data[:at] + bytes((byte,)) * (2 - size) + data[at + size :]
        yield right, data


def check_mutated() -> None:
    for right, data in mutated(random.Random(7)):
        check(data, right)


def lenient(pattern: str) -> Callable[[], None]:
    """The same check with forms that take such values."""

    def check_it() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(answer_form, "_VALUE", pattern)
            # What was learned before is strict.
            patch.setattr(answer_form, "_form", answer_form.AnswerForm)
            check_mutated()

    return check_it


@pytest.mark.slow
def test_mutated_answers_are_read_alike_whether_their_form_is_known_or_not() -> None:
    def judge(checked: Any) -> None:
        checked()

    right = functools.cache(check_mutated)
    assert_caught(judge, right, lenient("(.*)"))
    assert_caught(judge, right, lenient("([\t -~\x80-\xff]*)"))


def test_known_forms_save_most_of_the_parsers_work() -> None:
    """Otherwise none of the above would show anything."""
    calls = 0

    class Counting(Connection):
        def on_headers_complete(self) -> None:
            nonlocal calls
            calls += 1
            super().on_headers_complete()

    async def main() -> None:
        module: Any = SimpleNamespace(Connection=Counting)
        assert exchange(module, Case([USUAL], before=USUAL)).body == b"hello"

    asyncio.run(main())
    # The first answer, and the one after, which is of another form.
    assert calls == 2
