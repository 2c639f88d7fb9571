"""Commands over unruly connections, hosts, certificates and event streams.

`redline run` gets each row its own answer, or one failure that says why; `redline bench` counts
half a stream as a failure, and a whole one as an answer.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from real.test_event_streams import BROKEN, ENDS, HALF, WHOLES
from real.test_hostile_connections import JUNK
from real.test_hostile_hosts import presenting
from real.test_hostile_rows import read
from support.forked import Command
from support.raw_server import RawServer, Seen, answer, reset

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.usefixtures("no_proxy"),
    pytest.mark.timeout(120),
]


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Answers with the row."""
    writer.write(answer(seen.body))


async def run_rows(
    folder: Path, url: str, rows: list[Any], *flags: str, **environ: str
) -> tuple[int | None, str, dict[int, Any], dict[int, Any]]:
    """Runs `redline run` over rows that a server echoes.

    Returns: its status, what it says, and the results and failures by their rows.
    """
    (folder / "in.jsonl").write_text("\n".join(json.dumps({"row": row}) for row in rows), "utf-8")
    words = ["run", "in.jsonl", "--base-url", url, "--url", "/ask", "--body", "{{ row | json }}"]
    words += ["-q", "-o", "out.jsonl", "--max-retries", "0", *flags]
    command = Command(words, cwd=folder, environ={**os.environ, **environ})
    out, err = await asyncio.to_thread(command.communicate, 90)
    assert out == ""
    assert "Traceback" not in err
    return command.returncode, err, read(folder / "out.jsonl"), read(folder / "out.failed.jsonl")


async def test_what_comes_unasked_reaches_no_row(tmp_path: Path) -> None:
    """Junk behind an answer, junk while a connection idles, and connections that end meanwhile."""
    ways = [*(("behind", junk) for junk in JUNK), *(("idle", junk) for junk in JUNK)]
    ways += [("idle", b"close"), ("idle", b"reset")]
    rows = [f"{kind} {n}" for n in range(len(ways)) for kind in ("first", "second")]

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        kind, number = str(seen.json()).split()
        if kind == "second":
            await echo(seen, writer)
            return
        place, junk = ways[int(number)]
        if place == "behind":
            writer.write(answer(seen.body) + junk)
            return
        await echo(seen, writer)
        await asyncio.sleep(0.02)
        if junk == b"close":
            writer.close()
        elif junk == b"reset":
            reset(writer)
        else:
            writer.write(junk)

    async with RawServer(handle) as server:
        # One after the other, far enough apart for what comes meanwhile.
        flags = ("-c", "1", "--requests", "1/0.25s")
        status, err, done, failed = await run_rows(tmp_path, server.base_url, rows, *flags)
    assert (status, failed) == (0, {}), err
    assert [done[number]["output"] for number in range(1, len(rows) + 1)] == rows
    # A row whose answer has more behind it is asked again if its connection had answered others.
    asked = [str(seen.json()) for seen in server.seen]
    assert set(asked) == set(rows)
    assert len(asked) <= len(rows) + len(JUNK)
    by_row = {str(seen.json()): seen.connection for seen in server.seen}
    # Each second row got a connection that had brought nothing unasked.
    assert all(by_row[f"first {n}"] != by_row[f"second {n}"] for n in range(len(ways)))


async def test_rows_that_time_out_leave_the_others_their_own_answers(tmp_path: Path) -> None:
    """Answers to given-up calls come late, in halves, on connections that others would use."""
    rows = [f"{'late' if n % 4 == 0 else 'own'} {n}" for n in range(200)]

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        row, whole = str(seen.json()), answer(seen.body)
        if row.startswith("late"):
            half = len(whole) * (int(row.split()[1]) % 3) // 2
            writer.write(whole[:half])
            await asyncio.sleep(3)
            whole = whole[half:]
        writer.write(whole)

    async with RawServer(handle) as server:
        flags = ("-c", "16", "--timeout", "2")
        status, err, done, failed = await run_rows(tmp_path, server.base_url, rows, *flags)
    outputs = {n: done[n]["output"] for n in done}
    assert outputs == {n: rows[n - 1] for n in outputs}
    late = {n for n, row in enumerate(rows, 1) if row.startswith("late")}
    # A whole answer that is written at once is in time.
    late -= {n for n in late if int(rows[n - 1].split()[1]) % 3 == 2}
    assert set(failed) == late, err
    assert {line["error"]["kind"] for line in failed.values()} == {"timed_out"}
    assert status == 1
    assert len(server.seen) == len(rows)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_a_server_that_reads_long_rows_slowly_gets_all_of_each(
    tmp_path: Path, authority: Path, is_tls: bool
) -> None:
    rows = [f"{n} " + "x" * 3_000_000 for n in range(4)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length:")[2].split()[0])
                body = bytearray()
                while len(body) < size:
                    await asyncio.sleep(0.002)
                    body += await reader.readexactly(min(200_000, size - len(body)))
                writer.write(answer(bytes(body)))
        writer.close()

    tls = presenting(authority, "right") if is_tls else None
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        url, roots = f"{'https' if is_tls else 'http'}://{place}/v1", str(authority / "ca.pem")
        status, err, done, _ = await run_rows(tmp_path, url, rows, "-c", "2", SSL_CERT_FILE=roots)
    assert status == 0, err
    assert [done[number]["output"] for number in range(1, 5)] == rows


async def test_an_answer_before_a_long_row_was_read_is_its_own(tmp_path: Path) -> None:
    rows = ["0 " + "x" * 8_000_000, "1", "2"]

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if int(seen.headers["content-length"]) > 1_000_000:
            writer.write(answer(b'{"error": "too large"}', status=413))
            await writer.drain()
            await asyncio.sleep(0.1)
        else:
            writer.write(answer(b'"small"'))

    async with RawServer(handle, reads_bodies=False) as server:
        status, err, done, failed = await run_rows(tmp_path, server.base_url, rows, "-c", "1")
    assert status == 1
    assert {n: line["output"] for n, line in done.items()} == {2: "small", 3: "small"}, err
    assert failed[1]["error"]["status"] == 413


@pytest.mark.parametrize(
    ("name", "is_trusted"), [("right", True), ("right", False), ("wrong", True)]
)
async def test_rows_go_only_to_a_server_whose_certificate_is_right(
    tmp_path: Path, authority: Path, name: str, is_trusted: bool
) -> None:
    rows = [f"row {n}" for n in range(20)]
    roots = authority / ("ca.pem" if is_trusted else "wrong.pem")
    async with RawServer(echo, tls=presenting(authority, name)) as server:
        status, err, done, failed = await run_rows(
            tmp_path, server.base_url, rows, SSL_CERT_FILE=str(roots)
        )
        sent = len(server.seen)
    if name == "right" and is_trusted:
        assert (status, failed) == (0, {}), err
        assert [done[number]["output"] for number in range(1, 21)] == rows
        return
    assert (sent, done) == (0, {})
    assert status == 1
    assert "the server's certificate is not trusted" in err


async def test_half_a_stream_is_a_failure_and_a_whole_one_an_answer(tmp_path: Path) -> None:
    broken = [HALF + data + end for data, _ in BROKEN for end in ENDS]
    streams = [*WHOLES.values(), *broken, HALF]
    rows = [{"prompt": str(number)} for number in range(len(streams))]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        body: Any = seen.json()
        data = streams[int(body["messages"][0]["content"])]
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for start in range(0, len(data), 7):
            piece = data[start : start + 7]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    words = ["bench", "", "--model", "m", "--rows", "in.jsonl", "--limit", str(len(streams))]
    async with RawServer(handle) as server:
        words[1] = server.base_url
        command = Command([*words, "-c", "4", "--json"], cwd=tmp_path)
        out, err = await asyncio.to_thread(command.communicate, 60)
    assert "Traceback" not in err
    figures = json.loads(out)["figures"]
    assert (figures["succeeded"], figures["failed"]) == (len(WHOLES), len(broken) + 1), out
    assert sorted(str(seen.json()["messages"][0]["content"]) for seen in server.seen) == sorted(
        str(number) for number in range(len(streams))
    )
