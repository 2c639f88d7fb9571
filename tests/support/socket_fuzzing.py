"""The two fuzzers over sockets, against `redline run` and `redline sim` in processes of their own.

The law of `redline run`: it ends in time, each row with one outcome; a row whose answer is beyond
doubt well formed has that answer, and a row beside it its own; no connection is left over. The law
of `sim`: each connection is answered and closed in time; every response is whole, nothing follows
one that ends the connection, requests without faults are all answered, in order, and a good request
in front of faults too; its counters add up in the end, and it exits cleanly.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from support import fuzzing, reference, server_fuzzing
from support.forked import Command
from support.mutating import cut
from support.raw_server import RawServer, Seen, answer, reset

# A process that takes longer than this hangs.
PATIENCE_S = 120.0
# Of a connection to `sim`.
ANSWERS_IN_S = 30.0
# Rows beside each one with a faulty answer.
OTHERS = 3
CHAT = "/v1/chat/completions"
_ENDINGS = ("keep", "keep", "close", "reset")
_NEXT = answer("of another request")


@dataclass
class Figures:
    """What was executed, and what it came to."""

    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    checked: int = 0

    def as_record(self) -> dict[str, Any]:
        return {
            "executions": self.executions,
            "outcomes": dict(sorted(self.outcomes.items())),
            "checked": self.checked,
        }


# Answers with faults.


class _Faulty(NamedTuple):
    """What one row is answered. read: by the slow reader, if it is well formed."""

    pieces: list[bytes]
    ending: str
    read: reference.Read | None


def fuzz_run(folder: Path, seed: int, rows: int, figures: Figures) -> None:
    """One `redline run` in the folder, with as many rows that get faulty answers.

    Raises AssertionError, with the row that breaks the law.
    """
    rng = random.Random(seed)
    drawn = [_drawn(rng, f"row {number}") for number in range(rows)]
    asyncio.run(_run(folder, drawn, figures))


def _drawn(rng: random.Random, row: str) -> _Faulty:
    right, data = fuzzing.faulty(rng, json.dumps(row).encode())
    if rng.random() < 0.3:
        data += _NEXT
    ending = rng.choice(_ENDINGS)
    read = reference.read(data, is_ended=ending == "close")
    # Bytes that come later than the end of an answer may cross the next request, so that an answer
    # is cut only if nothing follows it.
    is_alone = data == right and read is not None and not read.has_rest
    return _Faulty(cut(rng, data) if is_alone else [data], ending, read)


async def _run(folder: Path, faulty: list[_Faulty], figures: Figures) -> None:
    async def serve(seen: Seen, writer: asyncio.StreamWriter) -> None:
        row: Any = seen.json()
        if isinstance(row, str):
            writer.write(answer(row))
            return
        for piece in faulty[row].pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        await writer.drain()
        if faulty[row].ending == "close":
            writer.close()
        elif faulty[row].ending == "reset":
            # What was sent must have been read, for an RST overtakes it.
            await asyncio.sleep(0.02)
            reset(writer)

    rows: list[int | str] = []
    for number in range(len(faulty)):
        rows += [number, *(f"other {number} {other}" for other in range(OTHERS))]
    lines = [json.dumps({"row": row}) for row in rows]
    folder.mkdir(exist_ok=True)
    (folder / "in.jsonl").write_text("\n".join(lines), "utf-8")
    words = ["run", "in.jsonl", "--url", "/ask", "--body", "{{ row | json }}", "-o", "out.jsonl"]
    words += ["-q", "-c", "8", "--max-retries", "0", "--timeout", "2"]
    async with RawServer(serve) as server:
        with _watched(Command([*words, "--base-url", server.base_url], cwd=folder)) as command:
            _, err = await asyncio.to_thread(command.communicate, PATIENCE_S)
        async with asyncio.timeout(10):
            await server.closed()
    assert command.returncode in (0, 1), err
    assert "Traceback" not in err, err
    done, failed = (_lines(folder / name) for name in ("out.jsonl", "out.failed.jsonl"))
    assert sorted([*done, *failed]) == [*range(1, len(rows) + 1)], "a row has no outcome, or two"
    for place, row in enumerate(rows, 1):
        line = done.get(place) or failed[place]
        if isinstance(row, str):
            assert line["output"] == row, f"a wrong answer: {row}, {line}"
            continue
        _judge_row(faulty[row], line, figures)


def _judge_row(given: _Faulty, line: dict[str, Any], figures: Figures) -> None:
    error = line.get("error")
    kind = "succeeded" if error is None else str(error["kind"])
    figures.executions += 1
    figures.outcomes[kind] += 1
    if error is not None:
        assert 0 < len(error["message"]) < 400, f"{given}: {line}"
    if given.read is None or (given.ending == "reset" and kind == "disconnected"):
        # No answer beyond doubt, or a busy machine has read it too late.
        return
    figures.checked += 1
    value = _json(given.read)
    if value is None:
        assert error is not None, f"{given}: {line}"
        assert kind != "disconnected", f"{given}: {line}"
    else:
        assert error is None, f"{given}: {line}"
        assert line["output"] == value[0], f"a wrong answer: {given}, {line}"


def _json(read: reference.Read) -> list[Any] | None:
    """What a row has from this answer; None if it is no success with JSON."""
    if not 200 <= read.status < 300:
        return None
    try:
        return [json.loads(read.body)]
    except ValueError:
        return None


def _lines(path: Path) -> dict[int, dict[str, Any]]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    found = {line["row"]: line for line in lines}
    assert len(found) == len(lines), "a row has two lines"
    return found


# Requests with faults.


@contextmanager
def fuzzed_sim() -> Iterator[int]:
    """The port of a `redline sim`, which has answered everything and ends cleanly."""
    with _watched(Command(["sim", "--latency", "0"])) as command:
        port = int(command.stdout.readline().strip().removesuffix("/v1").rpartition(":")[2])
        yield port
        asyncio.run(_settled(port))
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(PATIENCE_S)
    assert command.returncode == 0, err
    assert "Traceback" not in err, err


def fuzz_sim(port: int, seed: int, connections: int, figures: Figures) -> None:
    """As many connections with faulty requests, some at a time.

    Raises AssertionError, with the requests that break the law.
    """
    rng = random.Random(seed)
    drawn = [
        (*server_fuzzing.faulty(rng), rng.randrange(2), rng.random()) for _ in range(connections)
    ]

    async def main() -> None:
        left = iter(drawn)

        async def client() -> None:
            for data, truth, before, cut_by in left:
                pieces = cut(random.Random(cut_by), _GOOD * before + data)
                try:
                    written = await _sent(port, pieces)
                    _judge_responses(written, truth, before, figures)
                except (AssertionError, TimeoutError) as error:
                    raise AssertionError(f"{error!r}: {pieces}") from error

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(client())

    asyncio.run(main())


_BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
_GOOD = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
    *(CHAT.encode(), len(_BODY), _BODY),
)


async def _sent(port: int, pieces: list[bytes]) -> bytes:
    """What the server sends until it closes the connection. Raises TimeoutError if it does not."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        async with asyncio.timeout(ANSWERS_IN_S):
            await loop.sock_connect(client, ("127.0.0.1", port))
            sending = asyncio.create_task(_send(client, pieces))
            found = bytearray()
            with suppress(ConnectionError):
                while data := await loop.sock_recv(client, 65_536):
                    found += data
            await sending
    return bytes(found)


async def _send(client: socket.socket, pieces: list[bytes]) -> None:
    # The server may close before it has read everything.
    with suppress(OSError):
        for piece in pieces:
            await asyncio.get_running_loop().sock_sendall(client, piece)
            await asyncio.sleep(0)
        client.shutdown(socket.SHUT_WR)


def _judge_responses(
    written: bytes, truth: list[Any] | None, before: int, figures: Figures
) -> None:
    methods = None if truth is None else ["POST"] * before + [seen.method for seen, _ in truth]
    statuses = _responses(written, methods)
    assert statuses[:before] == [200] * before, "a good request is not answered"
    figures.executions += 1
    figures.outcomes[str(statuses[-1]) if statuses else "nothing"] += 1
    if methods is not None:
        # A path that does not exist, or one that has no such method.
        assert len(statuses) == len(methods), f"{len(methods)} requests, answered {statuses}"
        assert {*statuses[before:]} <= {404, 405}, f"a request without faults has {statuses}"
        figures.checked += len(methods)


def _responses(written: bytes, methods: list[str] | None) -> list[int]:
    """The statuses. Raises AssertionError for what is no whole response. methods: if known."""
    statuses: list[int] = []
    while written:
        if written.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
            written = written[25:]
            continue
        head, end, rest = written.partition(b"\r\n\r\n")
        assert end, "half a head"
        first, *lines = head.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1.1 "), f"no response: {first}"
        fields = dict(line.lower().split(": ", 1) for line in lines)
        size = int(fields["content-length"])
        # Of methods that are not known, HEAD shows in that another response follows at once.
        is_bare = not rest or rest.startswith(b"HTTP/1.1 ")
        if is_bare if methods is None else methods[len(statuses)] == "HEAD":
            size = 0
        assert len(rest) >= size, "half a body"
        statuses.append(int(first.split()[1]))
        written = rest[size:]
        if fields.get("connection") == "close":
            assert not written, "something follows the last response"
    return statuses


async def _settled(port: int) -> None:
    """Returns once nothing is in flight, with counters that add up. Raises AssertionError."""
    ask = b"GET /sim/stats HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    classes = ("answered", "rejected", "faults", "refused", "overloaded", "abandoned")
    until_s = time.monotonic() + ANSWERS_IN_S
    while True:
        written = await _sent(port, [ask])
        shown = json.loads(written.partition(b"\r\n\r\n")[2])
        if not shown["in_flight"]:
            break
        assert time.monotonic() < until_s, f"requests stay in flight: {shown}"
        await asyncio.sleep(0.05)
    assert shown["received"] == sum(shown[name] for name in classes), shown


@contextmanager
def _watched(command: Command) -> Iterator[Command]:
    """The command, which is killed if it hangs."""
    try:
        yield command
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"it hangs: {error}") from error
    finally:
        command.kill()
        command.wait(PATIENCE_S)
