"""The other side: it answers each attempt as the script says, over HTTP or as a function."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections import Counter
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

from faults.network import FaultLoop, Wire
from faults.script import FINAL, GOOD, LONGEST_REPLY_BYTES, Attempt, Run, Script
from faults.trace import Asked, Trace
from redline.errors import BadReply, RateLimited, Refused, Rejected, ServerFailed
from redline.testing import WALL_START_S
from support.answers import chunked, head

_HANGS_S = 10_000.0
_EDGES_S = (-1e-6, 0.0, 0.0, 1e-6)

# (seconds since the step before, what is done with the connection, bytes)
Step = tuple[float, str, bytes]


class Server:
    """A World, for one run of a script. asked: how often each row was, over all runs."""

    def __init__(self, script: Script, run: Run, trace: Trace, counts: Counter[str]) -> None:
        self._script = script
        self._run = run
        self._trace = trace
        self._counts = counts
        self._begun_s = asyncio.get_running_loop().time()

    # Connections.

    def refuses(self, number: int) -> str:
        fate = self._fate(number)
        self._note("connection", number, "connects", fate)
        return fate

    def _fate(self, number: int) -> str:
        since_s = _now_s() - self._begun_s
        if self._run.outage is not None and self._run.outage[0] <= since_s < self._run.outage[1]:
            return "refused"
        rng = self._script.draws("connection", number, self._run.gap_s)
        # Of two in a row one is made in the last run, which must come to its end.
        is_spared = self._run.is_last and number % 2 == 0
        if is_spared or rng.random() >= self._run.refused:
            return "made"
        return rng.choice(("refused", "refused", "hangs"))

    def left(self, wire: Wire) -> None:
        """The client has closed its end."""
        asked = wire.asking
        if asked is not None and not asked.is_over:
            asked.is_over = True
            self._note(asked.name, asked.number, "left")

    # Requests.

    def asked(self, wire: Wire, body: bytes) -> None:
        if wire.asking is not None and not wire.asking.is_over:
            self._trace.facts.broken.append(f"two requests at once on one connection: {body!r}")
        asked = wire.asking = self._ask(json.loads(body)["user"])
        loop: Any = asyncio.get_running_loop()
        play = _Play(wire, asked, iter(self._steps(asked)), self)
        play.go_on(loop)

    async def call(self, row: Any) -> str:
        """As a user's own function."""
        asked = self._ask(row["user"])
        attempt = asked.attempt
        try:
            if attempt.kind in GOOD and attempt.kind != "edge":
                await asyncio.sleep(attempt.latency_s)
            elif attempt.kind == "edge":
                edge_s = self._script.draws(asked.name, asked.number, "edge").choice(_EDGES_S)
                await asyncio.sleep(self._script.settings.timeout_s + edge_s)
            elif attempt.kind == "hang":
                await asyncio.sleep(_HANGS_S)
            else:
                await asyncio.sleep(attempt.latency_s)
                raise _own_error(attempt)
        except BaseException as error:
            self._end(asked, "answered", type(error).__name__)
            raise
        self.give(asked)
        return asked.text or ""

    def give(self, asked: Asked) -> None:
        """The client has a whole answer."""
        asked.is_whole = True
        self._end(asked, "answered")

    def end(self, asked: Asked, how: str) -> None:
        """The server has done what it was to do, and it was no whole answer."""
        if not asked.is_over:
            self._end(asked, how)

    def _ask(self, name: str) -> Asked:
        self._counts[name] += 1
        number = self._counts[name]
        attempt = self._script.attempt(name, number, self._run)
        text = f"{name} {number}" if attempt.kind in GOOD else None
        asked = Asked(name, number, _now_s(), attempt, text)
        if not self._trace.is_closed:
            self._trace.facts.asks.append(asked)
            self._trace.counts[attempt.kind] += 1
        self._note(name, number, "asked", attempt.kind)
        return asked

    def _end(self, asked: Asked, how: str, result: str = "") -> None:
        asked.is_over = True
        self._note(asked.name, asked.number, how, result)

    def _note(self, what: str, number: int, stage: str, result: str = "") -> None:
        self._trace.note(_now_s(), what, number, stage, result)

    # Answers.

    def _steps(self, asked: Asked) -> list[Step]:
        attempt = asked.attempt
        kind, late_s = attempt.kind, attempt.latency_s
        rng = self._script.draws(asked.name, asked.number, "bytes")
        if kind == "edge":
            # When the clock of an exchange that is written now rings.
            late_s = max(0.0, self._script.settings.timeout_s + rng.choice(_EDGES_S))
        if kind in GOOD:
            data = _good(asked)
            # Parts that come in time, all of them, unless the whole is on its edge.
            parts = _cut(data, attempt.pieces if kind != "dribble" else 7)
            gap_s = 0.0 if kind == "edge" else 0.1 * self._script.settings.timeout_s / len(parts)
            steps = [(late_s, "send", parts[0])] + [(gap_s, "send", part) for part in parts[1:]]
            return [*steps, (0.0, "give", b""), *_afterwards(attempt)]
        whole = _bad(attempt)
        if kind == "hang":
            return []
        if kind.startswith("hang"):
            at = 20 if kind == "hang in head" else len(whole) - 5
            return [(late_s, "send", whole[:at])]
        if kind.startswith(("cut", "reset")):
            at = {"before": 0, "in head": 20, "in body": len(whole) - 5}[kind.partition(" ")[2]]
            last = "end" if kind.startswith("cut") else "reset"
            return [(late_s, "send", whole[:at]), (rng.choice((0.0, 0.01)), last, b"")]
        return [(late_s, "send", whole), (0.0, "told", b""), *_afterwards(attempt)]


class _Play:
    """The steps of one answer, taken as long as the client is there."""

    def __init__(self, wire: Wire, asked: Asked, steps: Iterator[Step], server: Server) -> None:
        self._wire = wire
        self._asked = asked
        self._steps = steps
        self._server = server

    def go_on(self, loop: FaultLoop) -> None:
        step = next(self._steps, None)
        if step is None:
            return
        if step[0]:
            loop.call_later(step[0], self._take, loop, step)
        else:
            self._take(loop, step)

    def _take(self, loop: FaultLoop, step: Step) -> None:
        wire, (_, what, data) = self._wire, step
        if wire.is_closed or wire.is_ended or wire.asking is not self._asked:
            return
        if what == "send":
            wire.send(data)
        elif what == "give":
            self._server.give(self._asked)
        elif what == "told":
            self._server.end(self._asked, "answered")
        else:
            self._server.end(self._asked, "cut" if what == "end" else "reset")
            wire.end() if what == "end" else wire.reset()
        self.go_on(loop)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _good(asked: Asked) -> bytes:
    attempt = asked.attempt
    choice = {"message": {"content": asked.text}, "finish_reason": attempt.finish}
    usage = {"prompt_tokens": 5 + asked.number, "completion_tokens": 3 * asked.number}
    body = json.dumps({"choices": [choice], "usage": usage, "model": "m"}).encode()
    lines = ["Connection: close"] if attempt.after == "says close" else []
    before = b""
    if attempt.form == "hints first":
        before = head("Link: <a>", status="HTTP/1.1 103 Early Hints")
    if attempt.form == "chunks":
        return head(*lines, "Transfer-Encoding: chunked") + chunked(body[:7], body[7:])
    if attempt.form == "gzip":
        body = gzip.compress(body, mtime=0)
        lines.append("Content-Encoding: gzip")
    if attempt.form == "until closed":
        return head("Connection: close") + body
    return before + head(*lines, f"Content-Length: {len(body)}") + body


def _bad(attempt: Attempt) -> bytes:
    """An answer that is no good one, or one that is going to be cut short."""
    kind, lines = attempt.kind, [f"Content-Length: {_SIZES.get(attempt.kind, 15)}"]
    status = {"402": "402", "no quota": "429"}.get(kind, kind[:3] if kind[:3].isdigit() else "200")
    body = _BODIES.get(kind, b'{"error": "no"}')
    if kind.endswith("wait"):
        lines.append(f"Retry-After-Ms: {1000 * attempt.wait_s:g}")
    elif kind == "429 zero":
        lines.append("Retry-After: 0")
    elif kind == "429 date":
        date_s = WALL_START_S + _now_s() + attempt.wait_s
        lines.append(f"Retry-After: {formatdate(date_s, usegmt=True)}")
    if kind == "not http":
        return b"SSH-2.0-OpenSSH_9.6\r\n"
    return head(*lines, status=f"HTTP/1.1 {status} Status") + body


_BODIES = {
    "not json": b"<html>busy</html>",
    "half json": b'{"choices": [{"message": {"con',
    "wrong shape": b'{"choices": []}',
    "too long": b"x" * (LONGEST_REPLY_BYTES + 1),
    "no quota": b'{"error": {"code": "insufficient_quota"}}',
}
_SIZES = {kind: len(body) for kind, body in _BODIES.items()}


def _afterwards(attempt: Attempt) -> list[Step]:
    if attempt.form == "until closed" or attempt.after == "says close":
        return [(0.0, "end", b"")]
    late_s = {"closes at once": 0.0, "closes": 0.001, "closes late": 0.3}.get(attempt.after)
    if late_s is not None:
        return [(late_s, "end", b"")]
    return [(0.0, "send", b"junk")] if attempt.after == "junk" else []


def _cut(data: bytes, pieces: int) -> list[bytes]:
    size = math.ceil(len(data) / pieces)
    return [data[at : at + size] for at in range(0, len(data), size)]


def _own_error(attempt: Attempt) -> BaseException:
    """What a user's function raises."""
    kind = attempt.kind
    if kind.startswith("429"):
        wait_s = attempt.wait_s if kind.endswith("wait") else None
        return RateLimited("429", status=429, retry_after_s=wait_s)
    if kind.startswith("50"):
        wait_s = attempt.wait_s if kind.endswith("wait") else None
        return ServerFailed(kind, status=int(kind[:3]), retry_after_s=wait_s)
    if kind in FINAL:
        return Rejected(kind, status=int(kind))
    errors = {
        "401": Refused("401", status=401),
        "not json": BadReply("no JSON"),
        "cut before": ConnectionResetError("cut"),
        "cancels itself": asyncio.CancelledError("something inside was cancelled"),
    }
    return errors.get(kind, ZeroDivisionError("a defect"))
