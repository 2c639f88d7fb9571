"""`redline run` over a hostile server: each row has its own answer, or one failure that says why.

One command meets every case of answers.py, test_hostile.py and test_smuggled_answers.py, each in a
row of its own among rows that are answered as they should be.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from real.test_hostile import ENDLESS, START
from real.test_smuggled_answers import NEXT, REFUSED, TAKEN, UNENDED
from redline.calls.wire import MOST_HEADER_BYTES
from support.answers import CHUNKED, CLOSE, RIGHT, WRONG, chunked, head, raw_deflate
from support.forked import Command
from support.raw_server import RawServer, Seen, answer, reset

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy"), pytest.mark.timeout(120)]

KINDS = {"BadReply": "bad_reply", "Disconnected": "disconnected"}
# Rows after each one with a case: they are sent beside it and behind it.
OTHERS = 3
TIMEOUT_S = 2.0
# More than `redline run` reads of one answer.
BOMB = gzip.compress(bytes(80 * 2**20), 1, mtime=0)


class Case(NamedTuple):
    """What a server sends for one row, and what the row comes to.

    data, ending: as in RIGHT. block: what is sent again and again behind the data, each time after
    pause_s. body: of the answer, None if the row fails. kinds: those that its failure may have.
    step: bytes sent at once; all if 0.
    """

    data: bytes
    ending: str
    body: bytes | None = None
    kinds: tuple[str, ...] = ()
    block: bytes = b""
    pause_s: float = 0.0
    step: int = 0


def framed(body: bytes) -> dict[str, tuple[bytes, str]]:
    """The answers of RIGHT that have a body, with this one, and how the server goes on."""
    packed, size = gzip.compress(body), len(body)
    parts = (body[:3], body[3:7], body[7:])
    return {
        "length": (answer(body), "keep"),
        "odd case": (head(f"cOnTeNt-lEnGtH:   {size}  ") + body, "keep"),
        "no reason": (head(f"Content-Length: {size}", status="HTTP/1.1 200 ") + body, "keep"),
        "chunks": (CHUNKED + chunked(*parts), "keep"),
        "chunk extension": (CHUNKED + b'%x;a="b"\r\n%b\r\n0\r\n\r\n' % (size, body), "keep"),
        "trailers": (CHUNKED + chunked(body, trailers=b"X-Sum: 1\r\n"), "keep"),
        "no length": (CLOSE + body, "close"),
        "1.0": (head(status="HTTP/1.0 200 OK") + body, "close"),
        "1.0 with length": (
            head(f"Content-Length: {size}", status="HTTP/1.0 200 OK") + body,
            "hold",
        ),
        "gzip": (answer(packed, Content_Encoding="gzip"), "keep"),
        "GZIP": (answer(packed, Content_Encoding="GZIP"), "keep"),
        "gzip behind gzip": (
            answer(b"".join(map(gzip.compress, parts)), Content_Encoding="gzip"),
            "keep",
        ),
        "zlib": (answer(zlib.compress(body), Content_Encoding="deflate"), "keep"),
        "raw deflate": (answer(raw_deflate(body), Content_Encoding="deflate"), "keep"),
        "identity": (answer(body, Content_Encoding="identity"), "keep"),
        "gzip in chunks": (
            head("Transfer-Encoding: chunked", "Content-Encoding: gzip")
            + chunked(packed[:1], packed[1:9], packed[9:]),
            "keep",
        ),
        "gzip without length": (
            head("Connection: close", "Content-Encoding: gzip") + packed,
            "close",
        ),
        "1xx first": (
            head(status="HTTP/1.1 100 Continue")
            + head("Link: <a>", status="HTTP/1.1 103 Early Hints")
            + answer(body),
            "keep",
        ),
        "offers h2c": (answer(body, Connection="Upgrade", Upgrade="h2c"), "keep"),
    }


def right() -> dict[str, Case]:
    """The answers of RIGHT; those with a body say which row it is for."""
    found: dict[str, Case] = {}
    for name, (data, ending, body) in RIGHT.items():
        row = f"right: {name}"
        own = json.dumps(row).encode()
        if body:
            data, ending = framed(own)[name]
            found[row] = Case(data, ending, own)
            for step in (1, 7):
                row = f"right: {name}, in pieces of {step}"
                own = json.dumps(row).encode()
                data, ending = framed(own)[name]
                found[row] = Case(data, ending, own, step=step)
        else:
            # Nothing is not JSON, and 304 is not an answer.
            kind = "rejected" if name == "304" else "bad_reply"
            found[row] = Case(data, ending, kinds=(kind,))
    return found


def wrong() -> dict[str, Case]:
    """The answers of WRONG, and one that is too long for the command."""
    found: dict[str, Case] = {}
    for name, (data, ending, errors) in WRONG.items():
        errors = errors if isinstance(errors, tuple) else (errors,)
        kinds = tuple(KINDS[error.__name__] for error in errors)
        found[f"wrong: {name}"] = Case(data, ending, kinds=kinds)
    data = answer(BOMB, Content_Encoding="gzip")
    return found | {"wrong: a long bomb": Case(data, "keep", kinds=("bad_reply",))}


def smuggled() -> dict[str, Case]:
    """The answers of test_smuggled_answers.py, each with another one behind it."""
    found = {
        f"refused: {name}": Case(data + NEXT, "keep", kinds=("bad_reply",))
        for name, data in REFUSED.items()
    }
    kinds = {204: "bad_reply", 304: "rejected", 999: "server_failed"}
    for name, (data, status, body) in TAKEN.items():
        row = f"taken: {name}"
        if status == 200:
            found[row] = Case(data + NEXT, "keep", body)
        else:
            found[row] = Case(data + NEXT, "keep", kinds=(kinds[status],))
    return found


def endless() -> dict[str, Case]:
    """The answers of ENDLESS, and some that never come to their end byte by byte."""
    ends = ("bad_reply", "timed_out")
    found = {
        f"endless: {name}": Case(start, "", kinds=ends, block=block)
        for name, (start, block) in ENDLESS.items()
    }
    slow = (START, START + b"X: ", head("Content-Length: 99999"), CLOSE, CHUNKED + b"fff\r\n")
    for number, start in enumerate(slow):
        found[f"slow: {number}"] = Case(start, "", kinds=("timed_out",), block=b"H", pause_s=0.01)
    for name, data in UNENDED.items():
        found[f"unended: {name}"] = Case(data + NEXT, "hold", kinds=("timed_out",))
        found[f"unended and closed: {name}"] = Case(data + NEXT, "close", kinds=("disconnected",))
    return found | {"silent": Case(b"", "hold", kinds=("timed_out",))}


def long_headers() -> dict[str, Case]:
    """Answers whose headers are nearly as long as they may be, and a little longer."""
    row = "headers at their bound"
    own = json.dumps(row).encode()
    nearly, longer = (
        head(f"X: {'a' * (MOST_HEADER_BYTES + more)}", f"Content-Length: {len(own)}") + own
        for more in (-200, 200)
    )
    return {
        row: Case(nearly, "keep", own),
        "headers beyond their bound": Case(longer, "keep", kinds=("bad_reply",)),
    }


CASES = right() | wrong() | smuggled() | endless() | long_headers()


async def serve(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Answers a row that has a case with the case, and any other one with itself."""
    row: Any = seen.json()
    case = CASES.get(row)
    if case is None:
        writer.write(answer(row))
        return
    for start in range(0, len(case.data), case.step or len(case.data) or 1):
        writer.write(case.data[start : start + (case.step or len(case.data))])
        await writer.drain()
        await asyncio.sleep(0)
    while case.block:
        writer.write(case.block)
        await writer.drain()
        await asyncio.sleep(case.pause_s)
    if case.ending == "close":
        writer.close()
    elif case.ending == "reset":
        # What was sent must have been read, for an RST overtakes it.
        await asyncio.sleep(0.02)
        reset(writer)
    elif case.ending == "hold":
        await asyncio.Event().wait()


@pytest.mark.slow
async def test_each_row_gets_its_own_answer_or_one_failure(tmp_path: Path) -> None:
    rows: list[str] = []
    for case in CASES:
        rows += [case, *(f"other {len(rows) + number}" for number in range(OTHERS))]
    lines = [json.dumps({"row": row}) for row in rows]
    (tmp_path / "in.jsonl").write_text("\n".join(lines), "utf-8")
    words = ["run", "in.jsonl", "--url", "/ask", "--body", "{{ row | json }}", "-o", "out.jsonl"]
    words += ["-q", "-c", "8", "--max-retries", "0", "--timeout", str(TIMEOUT_S)]
    async with RawServer(serve) as server:
        command = Command([*words, "--base-url", server.base_url], cwd=tmp_path)
        out, err = await asyncio.to_thread(command.communicate, 60)
        await server.closed()
    assert (command.returncode, out) == (1, ""), err
    done = read(tmp_path / "out.jsonl")
    failed = read(tmp_path / "out.failed.jsonl")
    assert sorted([*done, *failed]) == [*range(1, len(rows) + 1)]
    for number, row in enumerate(rows, 1):
        case = CASES.get(row)
        if case is None:
            assert done[number]["output"] == row
            continue
        if case.body is not None:
            assert number in done, (row, failed[number]["error"])
            assert done[number]["output"] == json.loads(case.body), row
            continue
        error = failed[number]["error"]
        assert error["kind"] in case.kinds, (row, error)
        assert 0 < len(error["message"]) < 300, (row, error)
        assert error["message"].isprintable(), (row, error)
    total = f"{len(rows):,} rows = {len(done)} succeeded + {len(failed)} failed + 0 unfinished"
    assert total in err
    assert "Traceback" not in err


def read(path: Path) -> dict[int, Any]:
    """The lines of an output by their rows, of which each may have one; none without a file."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len({line["row"] for line in lines}) == len(lines)
    return {line["row"]: line for line in lines}


def test_every_right_answer_with_a_body_is_among_the_cases() -> None:
    assert framed(b"{}").keys() == {name for name, (_, _, body) in RIGHT.items() if body}
