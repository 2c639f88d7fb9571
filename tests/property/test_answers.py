"""Any answer in any cut is read rightly, and a part of one is never taken for the whole."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.calls.wire import connection
from support.answers import MOST_BYTES, chunked, head
from support.wires import Case, Result, exchange


def run(case: Case) -> Result:
    async def main() -> Result:
        return exchange(connection, case)

    return asyncio.run(main())


def packed(body: bytes, coding: str) -> bytes:
    if coding == "gzip":
        return gzip.compress(body)
    if coding == "deflate":
        return zlib.compress(body)
    if coding == "raw":
        packer = zlib.compressobj(wbits=-15)
        return packer.compress(body) + packer.flush()
    return body


@st.composite
def sent(draw: st.DrawFn) -> tuple[bytes, str, bytes, int]:
    """An answer's bytes, how it ends, its body in the clear, and its status."""
    body = draw(st.binary(max_size=400))
    coding = draw(st.sampled_from(["", "gzip", "deflate", "raw"]))
    lines = [f"Content-Encoding: {coding.replace('raw', 'deflate')}"] if coding else []
    data = packed(body, coding)
    framing = draw(st.sampled_from(["length", "chunks", "close"]))
    if framing == "length":
        lines.append(f"Content-Length: {len(data)}")
    elif framing == "chunks":
        lines.append("Transfer-Encoding: chunked")
        steps = draw(st.lists(st.integers(1, 60), min_size=1, max_size=8))
        parts, at = [], 0
        while at < len(data):
            parts.append(data[at : at + steps[len(parts) % len(steps)]])
            at += len(parts[-1])
        data = chunked(*parts)
    status = draw(st.sampled_from([200, 201, 400, 429, 500, 999]))
    before = head(status="HTTP/1.1 100 Continue") * draw(st.integers(0, 3))
    lines = draw(st.permutations([*lines, "X-A: b", "Server: x"]))
    answer_head = head(*lines, status=f"HTTP/1.1 {status} Status")
    return before + answer_head + data, "eof" if framing == "close" else "ring", body, status


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    answered=sent(),
    at=st.lists(st.integers(0, 1_000), max_size=6),
    reads=st.sampled_from(["whole", "stream", "rest"]),
    is_lazy=st.booleans(),
)
def test_any_answer_is_read_rightly_in_any_cut(
    answered: tuple[bytes, str, bytes, int], at: list[int], reads: str, is_lazy: bool
) -> None:
    data, ending, body, status = answered
    edges = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges) if a < b]
    result = run(Case(pieces, ending, reads, MOST_BYTES, is_lazy))
    assert result.error is None
    assert (result.status, result.body) == (status, body)
    assert result.is_reusable == (ending == "ring")
    # A part of it is never taken for the whole, except where only the end of the connection tells.
    short = [*pieces[:-1], pieces[-1][:-1]]
    result = run(Case(short, ending, reads, MOST_BYTES, is_lazy))
    assert result.error is not None or (ending == "eof" and body.startswith(result.body))
