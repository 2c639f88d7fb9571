"""Answers with seeded faults, in random pieces, each held against the slow reader (reference.py).

The law of each execution: it ends in one answer or one CallError; the answer to what is beyond
doubt well formed is the right one; no answer is made of what has not come; another cut of the same
bytes gives the same, also on a connection that has carried an answer of this form; and where the
connection is kept, the next exchange gets its own answer.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from redline.errors import BadReply
from support import reference
from support.answers import RIGHT, WRONG, chunked, head
from support.mutating import cut, mutated
from support.wires import Case, Result, exchange

_SEEDS = [data for data, *_ in [*RIGHT.values(), *WRONG.values()] if 0 < len(data) < 2_000]
_TOKENS = [
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b" ", b":", b";", b",", b"0", b"1", b"f", b"-", b"+",
    b"HTTP/1.1 ", b"HTTP/1.0 ", b"HTTP/1.1 100 Continue\r\n\r\n", b"101", b"204", b"304", b"099",
    b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n",
    b"Content-Encoding: deflate\r\n", b"Connection: close\r\n", b"Connection: keep-alive\r\n",
    b"Upgrade: h2c\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b"-6\r\n", b"\x1f\x8b", b"\xff" * 8,
    b"9" * 25, b"X: " + b"a" * 300 + b"\r\n",
]  # fmt: skip
_ENDINGS = ("ring", "eof", "reset")
_BOUNDS = (1, 10, 100, 1_000, 100_000, 100_000)
# Written whole, in one part behind the head, and in several.
_ASKED = (*[b"body"] * 8, b"b" * 50_000, b"b" * 600_000)


@dataclass
class Figures:
    """What was executed, and what it came to."""

    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    answers_checked: int = 0
    answers_unchecked: int = 0

    def as_record(self) -> dict[str, Any]:
        return {
            "executions": self.executions,
            "outcomes": dict(sorted(self.outcomes.items())),
            "answers_checked": self.answers_checked,
            "answers_unchecked": self.answers_unchecked,
        }


def fuzz(
    module: ModuleType, seed: int, *, executions: int | None = None, lasts_s: float | None = None
) -> Figures:
    """Figures of that many executions, or of as many as fit into lasts_s seconds of CPU time.

    Raises AssertionError, with the case that breaks the law.
    """
    rng = random.Random(seed)
    figures = Figures()
    ends_s = None if lasts_s is None else time.process_time() + lasts_s

    async def main() -> None:
        while figures.executions != executions and (ends_s is None or time.process_time() < ends_s):
            _one(module, rng, figures)

    asyncio.run(main())
    return figures


def faulty(rng: random.Random, body: bytes | None = None) -> tuple[bytes, bytes]:
    """An answer, generated or of a table, and the same with up to five faults.

    body: what a generated one holds; None for any.
    """
    data = before = _generated(rng, body) if rng.random() < 0.5 else rng.choice(_SEEDS)
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 5))):
        data = mutated(rng, data, _TOKENS, _SEEDS)
    return before, data


def _one(module: ModuleType, rng: random.Random, figures: Figures) -> None:
    right, data = faulty(rng)
    ending, most_bytes = rng.choice(_ENDINGS), rng.choice(_BOUNDS)
    both = []
    for _ in range(2):
        pieces = cut(rng, data) if rng.random() < 0.8 else _behind_events(data)
        reads = rng.choice(("whole", "whole", "stream", "stream", "rest"))
        # What is passed on as chunks may exceed the bound by what one read brings.
        relays = most_bytes == max(_BOUNDS) and rng.random() < 0.5
        is_lazy, is_held = rng.random() < 0.5, rng.random() < 0.2
        # Half of the connections know the form of the answer.
        before = rng.choice((b"", right))
        asked = rng.choice(_ASKED)
        takes_all = asked == b"body" or rng.random() < 0.8
        case = Case(
            *(pieces, ending, reads, most_bytes, is_lazy, is_held, before, asked, takes_all, relays)
        )
        try:
            both.append(exchange(module, case))
            _judge(case, data, both, figures)
        except AssertionError as error:
            shown = replace(case, asked=case.asked[:5])
            raise AssertionError(f"{error}: {len(case.asked)} bytes asked, {shown}") from error
        figures.executions += 1


def _judge(case: Case, data: bytes, results: list[Result], figures: Figures) -> None:
    result = results[-1]
    kind = "answer" if result.error is None else type(result.error).__name__
    figures.outcomes[kind] += 1
    right = reference.read(data, is_ended=case.ending == "eof")
    if right is not None and len(right.body) <= case.most_bytes:
        # Lengths of compressed data are bounded by what they stand for.
        assert result.error is None, f"refused: {result.error}"
        assert (result.status, result.body) == (right.status, right.body), "a wrong answer"
        assert not (right.has_rest and result.is_reusable), "a connection with junk is kept"
        figures.answers_checked += 1
    elif right is not None:
        assert isinstance(result.error, BadReply), "too long an answer"
    elif result.error is None:
        # The parser is more lenient here than the slow one, as with a missing space.
        figures.answers_unchecked += 1
    # Of two faults in one answer, the cut may say which is met first.
    same = [(r.status, r.body, r.headers, type(r.error)) for r in (results[0], result)]
    assert same[0] == same[1], f"another cut gives {results[0]}"


# Making them.


def _behind_events(data: bytes) -> list[bytes]:
    """In pieces that end with a chunk whose body ends an event."""
    return [piece for piece in re.split(rb"(?<=\n\n\r\n)", data) if piece]


def _generated(rng: random.Random, given: bytes | None) -> bytes:
    """An answer as a server may send it, with all that one may choose. given: its body, if any."""
    if given is None and rng.random() < 0.002:
        # A long body whose parts are gathered, because there are many.
        return head("Transfer-Encoding: chunked") + chunked(*[b"of eight" * 4] * 2_500)
    events = [b"data: %d\n\n" % number for number in range(rng.randrange(1, 9))]
    body = rng.choice(
        (b"", b"{}", b"hello", rng.randbytes(rng.randrange(300)), b"ab" * 500, b"".join(events))
    )
    body = body if given is None else given
    lines = [f"X-{number}: {number}" for number in range(rng.randrange(3))]
    coding = rng.choice(("", "", "gzip", "deflate", "raw", "identity"))
    if coding:
        lines.append(f"Content-Encoding: {coding.replace('raw', 'deflate')}")
    if coding == "gzip":
        parts = rng.choice(([body], [body[:5], body[5:]]))
        body = b"".join(gzip.compress(part, mtime=0) for part in parts)
    elif coding == "deflate":
        body = zlib.compress(body)
    elif coding == "raw":
        packer = zlib.compressobj(wbits=-15)
        body = packer.compress(body) + packer.flush()
    framing = rng.choice(("length", "length", "chunks", "close"))
    if framing == "length":
        lines.append(f"Content-Length: {len(body)}")
    elif framing == "chunks":
        lines.append("Transfer-Encoding: chunked")
        trailers = rng.choice((b"", b"", b"X-Sum: 1\r\n"))
        parts = events if body == b"".join(events) and rng.random() < 0.8 else cut(rng, body)
        body = chunked(*parts, trailers=trailers)
    if rng.random() < 0.2:
        lines.append(f"Connection: {rng.choice(('close', 'keep-alive', 'Upgrade'))}")
    rng.shuffle(lines)
    status = rng.choice((200, 200, 200, 204, 304, 400, 429, 500, 103))
    version = rng.choice(("1.1", "1.1", "1.1", "1.0"))
    before = head(status="HTTP/1.1 100 Continue") * rng.choice((0, 0, 0, 1, 2, 33))
    reason = rng.choice(("OK", "OK", "Status"))
    return before + head(*lines, status=f"HTTP/{version} {status} {reason}") + body
