"""The HTTP backend against real sockets: every way an exchange can go wrong, and who pays."""

from __future__ import annotations

import asyncio
import gzip
import math
import re
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from redline.calls import (
    Call,
    Chunk,
    Endpoint,
    Health,
    HttpBackend,
    Outcome,
    Request,
    Retry,
    RetryPolicy,
    Shared,
    Sink,
    Timeouts,
)
from redline.calls.cost import Allowance, Metered, Prices, Spending
from redline.calls.http import outage
from redline.calls.wire import Exchange, ReplyMemory, chunks_in
from redline.clock import SYSTEM
from redline.errors import (
    BadReply,
    BadRow,
    BudgetSpent,
    Disconnected,
    NoEndpoint,
    OverLimit,
    RateLimited,
    Refused,
    Rejected,
    TimedOut,
)
from redline.events import EndpointBack, EndpointLost, EndpointParked, Event
from redline.limits import Limits
from redline.waist import Attempts, Outlet
from support.raw_server import RawServer, Seen, answer, chat
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

SECRET = "sk-planted-4711"
ASK = Request(body={"model": "m", "messages": [{"role": "user", "content": "hello"}]})
GET = Request(method="GET", url="/chat")
Run = Callable[[Coroutine[Any, Any, None]], None]


class Heard(Attempts):
    """Counts attempts, and keeps how each ended and what events there were."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.ends: list[str | None] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def ended(self, now_s: float, latency_s: float, error: str | None, *used: int) -> None:
        super().ended(now_s, latency_s, error, *used)
        self.ends.append(error)

    @property
    def starts(self) -> int:
        return self.attempts


class Keeps(Sink):
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.heads: list[tuple[int, str | None]] = []

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        assert not self.texts
        self.heads.append((status, headers.get("content-type")))

    async def put(self, chunk: Chunk) -> None:
        assert self.heads
        self.texts.append(chunk.text)


class Relays(Keeps):
    relays = True

    def __init__(self) -> None:
        super().__init__()
        self.raw = b""
        self.at_once = 0

    async def put(self, chunk: Chunk) -> None:
        await super().put(chunk)
        self.raw += chunk.raw

    def put_now(self, raw: bytes) -> bool:
        # Sometimes it would have to wait.
        is_taken = len(self.raw) % 3 > 0
        if is_taken:
            self.at_once += 1
            self.raw += raw
        return is_taken


class Writes(Relays):
    """The client that chunks are written to as they came; sometimes it has no room."""

    @property
    def write(self) -> Callable[[bytes], None] | None:
        return None if len(self.raw) % 5 == 0 else self._take

    def _take(self, data: bytes) -> None:
        chunks = chunks_in(data)
        assert chunks
        for start, stop in chunks:
            self.at_once += 1
            self.raw += data[start:stop]

    def outlet(self) -> Outlet:
        return self


def replying(*answers: bytes | None) -> Any:
    """Writes the answers in turn, the last one again and again; None hangs up instead."""
    left = list(answers)

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        reply = left.pop(0) if len(left) > 1 else left[0]
        if reply is None:
            writer.close()
            return
        writer.write(reply)
        await writer.drain()

    return handle


async def silent(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def backend_of(server: RawServer | None, *, listener: Any = None, **settings: Any) -> HttpBackend:
    if server is not None:
        settings.setdefault("base_url", server.base_url)
    heard = listener or Heard()
    return HttpBackend(Endpoint(**settings), attempts=heard, listener=heard)


async def send_once(
    server: RawServer, request: Request = ASK, call: Call | None = None, **settings: Any
) -> Outcome:
    """The outcome of one call, after which nothing may be left held."""
    heard = Heard()
    backend = backend_of(server, listener=heard, **settings)
    try:
        outcome = await backend.send(request, call or Call())
        assert_nothing_held(backend)
        assert heard.starts == len(heard.ends)
        return outcome
    finally:
        await backend.aclose()


def assert_nothing_held(backend: HttpBackend) -> None:
    assert backend.slots.in_use == 0
    assert backend.limiter.waiting == 0
    for line in backend.limiter.rules.lines:
        # What was booked and never sent or given back would stay for ever.
        assert line.window.wait_s(line.window.rate.count, SYSTEM.now_s()) < math.inf


def used(backend: HttpBackend) -> int:
    """Of its one limit."""
    (line,) = backend.limiter.rules.lines
    return line.window.used(SYSTEM.now_s())


def what(outcome: Outcome) -> str:
    assert outcome.error is not None
    return outcome.error.what


def test_a_call_and_its_reply(run: Run) -> None:
    async def main() -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 2}
        reply = answer(chat("hi", usage=usage), X_Request_Id="r-1")
        async with RawServer(replying(reply)) as server:
            outcome = await send_once(server, api_key=SECRET, headers={"X-Team": "a"}, name="e")
        assert (outcome.status, outcome.output, outcome.endpoint) == ("succeeded", "hi", "e")
        assert outcome.reply is not None
        assert (outcome.reply.request_id, outcome.reply.output_tokens) == ("r-1", 2)
        assert outcome.reply.headers["x-request-id"] == "r-1"
        assert outcome.reply.headers["content-length"] == str(len(outcome.reply.body))
        assert outcome.latency_s > 0
        (seen,) = server.seen
        assert (seen.method, seen.target) == ("POST", "/v1/chat/completions")
        assert seen.json() == ASK.body
        assert seen.headers["authorization"] == f"Bearer {SECRET}"
        assert seen.headers["x-team"] == "a"
        assert seen.headers["content-type"] == "application/json"
        assert seen.headers["user-agent"].startswith("redline/")

    run(main())


@pytest.mark.parametrize("status", [200, 503])
def test_an_attempt_says_when_it_came_how_far(run: Run, status: int) -> None:
    async def main() -> None:
        async with RawServer(replying(answer(chat("hi"), status=status))) as server:
            backend = backend_of(server, limits=Limits(requests="1/1s", concurrency=1), name="e")
            await backend.send(ASK, Call())
            began_s = SYSTEM.now_s()
            waits, call = backend.send(ASK, Call()), backend.send(ASK, Call())
            outcomes = await asyncio.gather(waits, call)
            await backend.aclose()
        for outcome, waited in zip(outcomes, (False, True), strict=True):
            (one,) = outcome.tried
            assert (one.endpoint, one.error, one.was_sent) == ("e", outcome.error, True)
            assert (one.slot_s is not None) == waited
            marks = [one.eligible_s, one.slot_s, one.connected_s, one.granted_s, one.sent_s]
            marks += [one.first_byte_s, one.complete_s]
            found = [mark for mark in marks if mark is not None]
            assert len(found) == 6 + waited
            assert began_s <= found[0]
            assert found == sorted(found)
            assert one.first_token_s is None
        assert (outcomes[0].error is None) == (status == 200)

    run(main())


def test_an_attempt_that_waited_for_nothing_has_the_marks_of_its_exchange(run: Run) -> None:
    async def main() -> None:
        refusal = answer({"error": "no"}, status=400)
        async with RawServer(replying(*[answer(chat("hi"))] * 2, refusal)) as server:
            backend = backend_of(server)
            (first,) = (await backend.send(ASK, Call())).tried
            (second,) = (await backend.send(ASK, Call())).tried
            refused = await backend.send(ASK, Call())
            await backend.aclose()
        assert first.error is second.error is None
        assert refused.error is not None
        assert refused.tried[0].error is refused.error
        assert first.connected_s is not None  # it was connected first
        assert second.eligible_s is second.slot_s is second.connected_s is second.granted_s is None
        assert second.sent_s is not None
        assert second.first_byte_s is not None
        assert first.complete_s < second.sent_s < second.first_byte_s < second.complete_s

    run(main())


def test_an_attempt_without_a_connection_was_not_sent(run: Run) -> None:
    async def main() -> None:
        backend = backend_of(None, base_url="http://127.0.0.1:9/v1", name="e")
        outcome = await backend.send(ASK, Call())
        await backend.aclose()
        (one,) = outcome.tried
        assert (one.endpoint, one.error, one.was_sent) == ("e", outcome.error, False)
        assert one.eligible_s is not None
        assert one.eligible_s < one.complete_s

    run(main())


def test_a_get_that_answers_a_json_string(run: Run) -> None:
    async def main() -> None:
        async with RawServer(replying(answer("hello"))) as server:
            request = Request(method="GET", url="/chat?q=a%2Fb+c&name=%C3%BC", body=None)
            outcome = await send_once(server, request)
        assert outcome.output == "hello"
        assert server.seen[0].target == "/chat?q=a%2Fb+c&name=%C3%BC"
        assert server.seen[0].body == b""

    run(main())


@pytest.mark.parametrize(
    ("method", "status", "url", "body", "kind"),
    [
        ("HEAD", 200, "/label", None, None),
        ("HEAD", 200, "/label", {}, None),
        ("DELETE", 204, "/label", None, None),
        ("POST", 204, "/label", None, BadReply),
        ("GET", 204, "/v1/chat/completions", None, BadReply),
        ("DELETE", 200, "/label", None, BadReply),
    ],
)
def test_a_response_that_has_no_content_by_definition_is_an_empty_output(
    run: Run, method: str, status: int, url: str, body: Any, kind: type | None
) -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        size = 20 if method == "HEAD" else 0
        writer.write(f"HTTP/1.1 {status} Status\r\nContent-Length: {size}\r\n\r\n".encode())

    async def main() -> None:
        async with RawServer(handle) as server:
            outcome = await send_once(server, Request(method=method, url=url, body=body))
        assert (type(outcome.error) if outcome.error else None) == kind
        if kind is None:
            assert outcome.reply is not None
            assert (outcome.reply.output, outcome.reply.status) == (None, status)

    run(main())


def test_connections_are_kept_and_reused(run: Run) -> None:
    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as server:
            backend = backend_of(server)
            for _ in range(5):
                assert (await backend.send(ASK, Call())).is_success
            outcomes = await asyncio.gather(*(backend.send(ASK, Call()) for _ in range(20)))
            assert all(outcome.is_success for outcome in outcomes)
            assert len(server.seen) == 25
            assert server.connections <= 20
            assert server.seen[4].connection == 1
            await backend.aclose()
            await server.closed()

    run(main())


# Clocks.


@pytest.mark.parametrize(
    ("timeouts", "phase", "after_s"),
    [
        (Timeouts(first_byte_s=0.05), "first_byte", 0.05),
        (Timeouts(attempt_s=0.05), "attempt", 0.05),
        (Timeouts(first_byte_s=0.05, attempt_s=0.05), "attempt", 0.05),
    ],
)
def test_a_silent_server_runs_into_the_clock_that_is_named(
    run: Run, timeouts: Timeouts, phase: str, after_s: float
) -> None:
    async def main() -> None:
        async with RawServer(silent) as server:
            outcome = await send_once(server, timeouts=timeouts)
            assert isinstance(outcome.error, TimedOut)
            assert (outcome.error.phase, outcome.error.after_s) == (phase, after_s)
            assert outcome.error.where.startswith("endpoint 127.0.0.1:")
            # Its connection is not reused, for an answer may still come on it.
            await server.closed()

    run(main())


def test_the_attempts_clock_covers_the_body(run: Run) -> None:
    async def stalls(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await silent(seen, writer)

    async def main() -> None:
        async with RawServer(stalls) as server:
            timeouts = Timeouts(first_byte_s=0.08, attempt_s=0.1)
            outcome = await send_once(server, timeouts=timeouts)
            assert isinstance(outcome.error, TimedOut)
            assert outcome.error.phase == "attempt"
            await server.closed()

    run(main())


@pytest.mark.parametrize("place", ["slot", "gate", "answer"])
def test_the_rows_clock_is_named_wherever_it_runs_out(run: Run, place: str) -> None:
    async def main() -> None:
        async with RawServer(silent) as server:
            backend = backend_of(server, limits=Limits(concurrency=1))
            other = None
            if place == "slot":
                other = asyncio.create_task(backend.send(ASK, Call()))
                await until(lambda: len(server.seen) == 1)
            if place == "gate":
                backend.limiter.park(SYSTEM.now_s() + 60)
            before = len(server.seen)
            outcome = await backend.send(ASK, Call(deadline_s=SYSTEM.now_s() + 0.1))
            assert isinstance(outcome.error, TimedOut)
            assert (outcome.error.phase, outcome.error.after_s) == ("row", None)
            if place == "answer":
                await until(lambda: len(server.seen) == 1)
            else:
                assert len(server.seen) == before
            if other is not None:
                other.cancel()
                await asyncio.wait([other])
            assert_nothing_held(backend)
            await backend.aclose()

    run(main())


def test_a_row_whose_time_is_up_sends_nothing(run: Run) -> None:
    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as server:
            outcome = await send_once(server, call=Call(deadline_s=SYSTEM.now_s() - 1))
            assert isinstance(outcome.error, TimedOut)
            assert outcome.error.phase == "row"
            assert server.seen == []

    run(main())


def test_the_connects_clock_is_named_and_blames_no_row(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            fillers = []
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
                fillers.append(filler)
            backend = backend_of(
                None,
                base_url=f"http://127.0.0.1:{full.getsockname()[1]}/v1",
                timeouts=Timeouts(connect_s=0.05, first_byte_s=0.2),
            )
            outcome = await backend.send(ASK, Call())
            await backend.aclose()
            for filler in fillers:
                filler.close()
        assert isinstance(outcome.error, TimedOut)
        if outcome.error.phase == "first_byte":
            pytest.skip("this kernel accepts connections past a full backlog")
        assert outcome.error.phase == "connect"
        assert outage.is_unreachable(outcome.error)
        assert_nothing_held(backend)

    run(main())


# Broken answers.


def raw(data: bytes, *, is_aborted: bool = False) -> Any:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if is_aborted:
            writer.transport.abort()
        else:
            writer.close()

    return handle


HALF = b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"choices'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("handle", "kind", "words"),
    [
        (raw(HALF), Disconnected, "the connection broke"),
        (raw(HALF, is_aborted=True), Disconnected, "the connection broke"),
        (raw(CHUNKED + b"9\r\n{"), Disconnected, "the connection broke"),
        (raw(b""), Disconnected, "the connection broke"),
        (raw(b"", is_aborted=True), Disconnected, "the connection broke"),
        (raw(b"HELLO\r\n\r\n"), BadReply, "the response is not valid HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), BadReply, "not valid HTTP"),
        (raw(answer(b"{}")), BadReply, "does not match the format of /v1/chat/completions"),
        (raw(answer(b"<html>hi</html>")), BadReply, "it begins `<html>hi</html>`"),
        (raw(answer(b"[" * 50_000)), BadReply, "does not match"),
        (raw(answer(b"", status=204)), BadReply, "`` (an empty text)"),
        (raw(answer(b"cut", Content_Encoding="gzip")), (Disconnected, BadReply), ""),
    ],
)
def test_a_broken_answer_is_one_error_that_says_so(
    run: Run, handle: Any, kind: type, words: str
) -> None:
    async def main() -> None:
        async with RawServer(handle) as server:
            outcome = await send_once(server)
            assert isinstance(outcome.error, kind)
            assert words in what(outcome)
            assert not outage.is_unreachable(outcome.error)
            assert outcome.status == "exhausted"

    run(main())


@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_answer_that_is_too_long_is_cut_off(run: Run, is_chunked: bool) -> None:
    async def endless(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            CHUNKED if is_chunked else b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n"
        )
        while True:
            writer.write(b"64\r\n" + b"x" * 100 + b"\r\n" if is_chunked else b"x" * 100)
            await writer.drain()
            await asyncio.sleep(0)

    async def main() -> None:
        async with RawServer(endless) as server:
            outcome = await send_once(server, max_reply_bytes=10_000)
            assert isinstance(outcome.error, BadReply)
            assert what(outcome) == "the response is longer than 10,000 bytes"
            await server.closed()

    run(main())


def test_a_gzipped_answer_is_read_and_its_whole_size_counts(run: Run) -> None:
    async def main() -> None:
        packed = gzip.compress(b'"' + b"a" * 50_000 + b'"')
        reply = answer(packed, Content_Encoding="gzip")
        async with RawServer(replying(reply)) as server:
            outcome = await send_once(server, GET)
            assert outcome.output == "a" * 50_000
            outcome = await send_once(server, GET, max_reply_bytes=10_000)
            assert isinstance(outcome.error, BadReply)

    run(main())


def test_endpoints_share_one_bound_of_long_answers_and_keep_their_own_of_each(run: Run) -> None:
    async def main() -> None:
        async with RawServer(replying(answer(chat("x" * 5_000)))) as server:
            intake = ReplyMemory(64 * 1024 * 1024)
            backends = [
                HttpBackend(
                    Endpoint(base_url=server.base_url, max_reply_bytes=most),
                    shared=Shared(intake=intake),
                )
                for most in (4_000, 64 * 1024 * 1024)
            ]
            small, large = [await backend.send(ASK, Call()) for backend in backends]
            assert isinstance(small.error, BadReply)
            assert large.is_success
            held = intake.hold(1 << 30)
            tasks = [asyncio.create_task(backend.send(ASK, Call())) for backend in backends]
            await asyncio.sleep(0.05)
            assert len(server.seen) == 2
            held.release()
            small, large = await asyncio.gather(*tasks)
            assert large.is_success
            for backend in backends:
                await backend.aclose()

    run(main())


def test_a_redirect_is_refused_and_the_key_stays_here(run: Run) -> None:
    async def main() -> None:
        async with RawServer(replying(answer(chat("stolen")))) as other:
            reply = answer(b"", status=307, Location=f"{other.base_url}/chat/completions")
            async with RawServer(replying(reply)) as server:
                outcome = await send_once(server, api_key=SECRET)
            assert isinstance(outcome.error, Rejected)
            assert outcome.error.status == 307
            assert other.connections == 0

    run(main())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1/chat/completions", "//evil/x", "chat"])
def test_a_rows_url_cannot_lead_elsewhere(run: Run, url: str) -> None:
    async def main() -> None:
        async with RawServer(replying(answer("x"))) as server:
            outcome = await send_once(server, Request(url=url, body={}), api_key=SECRET)
            assert isinstance(outcome.error, Rejected)
            assert "not a path" in what(outcome)
            assert server.connections == 0

    run(main())


def nested() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "request_",
    [
        Request(body={"a": object()}),
        Request(body={"a": "\ud800"}),
        Request(body=nested()),
        Request(method="GE T"),
        Request(method="CONNECT"),
        Request(headers={"Content-Length": "5"}),
        Request(headers={"transfer-encoding": "chunked"}),
        Request(headers={"Connection": "close"}),
        Request(headers={"Expect": "100-continue"}),
        Request(headers={"TE": "trailers"}),
        Request(headers={"Trailer": "X"}),
        Request(headers={"Upgrade": "h2c"}),
    ],
)
def test_a_request_that_cannot_be_sent_is_rejected(run: Run, request_: Request) -> None:
    async def main() -> None:
        async with RawServer(replying(answer("x"))) as server:
            outcome = await send_once(server, request_)
            assert isinstance(outcome.error, BadRow)
            assert outcome.error.what.startswith("the request ")
            assert server.seen == []

    run(main())


def test_a_header_takes_the_place_of_one_of_another_case(run: Run) -> None:
    async def main() -> None:
        own = {"authorization": "Bearer mine", "CONTENT-TYPE": "a/b", "user-agent": "me"}
        request = Request(body=ASK.body, headers={"content-type": "c/d"})
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", headers=own)
            backend = HttpBackend(endpoint)
            assert (await backend.send(request, Call())).output == "a"
            await backend.aclose()
            await closed.wait()
        names = [line.partition(b":")[0].lower() for line in heads[0].split(b"\r\n")[1:]]
        assert len(names) == len(set(names))
        for line in (b"authorization: Bearer mine", b"content-type: c/d", b"user-agent: me"):
            assert line in heads[0].split(b"\r\n")

    heads: list[bytes] = []
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n"))[:-4])
        writer.write(answer(chat("a")))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    run(main())


def test_the_key_is_cut_out_of_what_a_server_says(run: Run) -> None:
    async def main() -> None:
        reply = answer({"error": {"message": f"Incorrect key: {SECRET}."}}, status=401)
        async with RawServer(replying(reply)) as server:
            outcome = await send_once(server, api_key=SECRET)
        assert isinstance(outcome.error, Refused)
        assert what(outcome) == ("the endpoint refused the key: HTTP 401: Incorrect key: <key>.")

    run(main())


@pytest.mark.parametrize("sink", [None, "a sink"])
@pytest.mark.parametrize("padding", [0, 5_000, 100_000])
def test_the_body_of_an_error_is_kept_without_the_key(run: Run, padding: int, sink: object) -> None:
    async def main() -> None:
        pad = "x" * padding
        body = {"pad": pad, "error": {"message": f"no such model, {SECRET}"}, "a": [1, "\u00e9"]}
        reply = answer(body, status=404)
        async with RawServer(replying(reply)) as server:
            backend = backend_of(server, api_key=SECRET)
            outcome = await backend.send(ASK, Call(), Keeps() if sink else None)
            await backend.aclose()
        assert isinstance(outcome.error, Rejected)
        sent = reply.partition(b"\r\n\r\n")[2]
        masked = sent.replace(SECRET.encode(), b"<key>")
        assert outcome.error.body == masked[: 64 * 1024]
        assert (SECRET.encode() in sent, SECRET.encode() in outcome.error.body) == (True, False)

    run(main())


def test_an_error_without_an_answer_has_no_body(run: Run) -> None:
    async def main() -> None:
        async with RawServer(replying(None)) as server:
            outcome = await send_once(server)
        assert isinstance(outcome.error, Disconnected)
        assert outcome.error.body == b""

    run(main())


def test_what_comes_before_a_write_is_done_before_its_stamp(run: Run) -> None:
    async def main() -> None:
        done_s: list[float] = []

        def before_write() -> None:
            time.sleep(0.02)
            done_s.append(SYSTEM.now_s())

        async with RawServer(replying(answer(chat("a")))) as server:
            call, seen, sent_s = Call(), list[int](), list[float]()
            call.on_write = lambda: seen.append(len(server.seen))
            endpoint = Endpoint(base_url=server.base_url)
            backend = HttpBackend(endpoint, before_write=before_write)
            for number in range(3):
                outcome = await backend.send(ASK, call)
                assert outcome.is_success
                assert len(done_s) == number + 1
                assert outcome.tried[0].sent_s is not None
                sent_s.append(outcome.tried[0].sent_s)
            await backend.aclose()
        assert seen == [0, 1, 2]
        # The server's clock begins with the write: what takes long before it is not the server's.
        assert all(done <= sent for done, sent in zip(done_s, sent_s, strict=True))

    run(main())


@pytest.mark.parametrize("refusal", [BudgetSpent("spent"), ValueError("a defect")])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_refusal_to_write_ends_its_own_call_alone(
    run: Run, refusal: Exception, is_streamed: bool
) -> None:
    def refuse() -> None:
        raise refusal

    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as server:
            backend = backend_of(server)
            # Two connections that have carried an answer.
            await asyncio.gather(*[backend.send(ASK, Call()) for _ in range(2)])
            sink = Keeps() if is_streamed else None
            refused = asyncio.create_task(backend.send(ASK, Call(on_write=refuse), sink))
            other = asyncio.create_task(backend.send(ASK, Call()))
            assert (await other).output == "a"
            if isinstance(refusal, BudgetSpent):
                assert (await refused).error is refusal
            else:
                with pytest.raises(ValueError, match="a defect"):
                    await refused
            assert sink is None or not sink.texts
            assert len(server.seen) == 3
            assert_nothing_held(backend)
            assert (await backend.send(ASK, Call())).output == "a"
            await backend.aclose()

    run(main())


def test_a_refused_write_is_no_attempt_and_takes_nothing_from_the_limits(run: Run) -> None:
    refusal = BudgetSpent("spent")

    def refuse() -> None:
        raise refusal

    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as server:
            ends, call = Heard(), Call(on_write=refuse)
            limits = Limits(requests="1/60s", tokens="1m/60s")
            backend = backend_of(server, listener=ends, limits=limits)
            outcome = await backend.send(ASK, call)
            assert outcome.error is refusal
            assert [attempt.was_sent for attempt in outcome.tried] == [False]
            assert (ends.starts, ends.ends, call.requests, call.sent_s) == (0, [], 0, None)
            load = backend.load(SYSTEM.now_s())
            assert (load.room_s, load.tokens_out, load.in_flight) == (0, 0, 0)
            # The one request that the limit allows.
            assert (await backend.send(ASK, Call())).output == "a"
            assert backend.load(SYSTEM.now_s()).room_s > 0
            await backend.aclose()

    run(main())


def test_a_repeated_request_whose_second_write_is_refused_counts_once(run: Run) -> None:
    writes = list[int]()

    def refuse_the_third() -> None:
        writes.append(1)
        if len(writes) == 3:
            raise BudgetSpent("spent")

    async def main() -> None:
        # The second request on the connection is read, and the connection is closed.
        async with RawServer(replying(answer(chat("a")), None)) as server:
            ends, call = Heard(), Call(on_write=refuse_the_third)
            backend = backend_of(server, listener=ends)
            assert (await backend.send(ASK, call)).output == "a"
            outcome = await backend.send(ASK, call)
            assert isinstance(outcome.error, Disconnected)
            assert [attempt.was_sent for attempt in outcome.tried] == [True]
            assert (len(writes), ends.starts, ends.ends) == (3, 2, [None, "disconnected"])
            assert (ends.in_flight, call.requests) == (0, 2)
            await backend.aclose()

    run(main())


def test_a_failure_before_the_writes_ends_the_calls_that_are_due(run: Run) -> None:
    fails = [True]

    def before_write() -> None:
        if fails:
            raise ValueError("a defect")

    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as server:
            backend = HttpBackend(Endpoint(base_url=server.base_url), before_write=before_write)
            async with asyncio.timeout(5):
                calls = [backend.send(ASK, Call()) for _ in range(3)]
                found = await asyncio.gather(*calls, return_exceptions=True)
            assert [str(error) for error in found] == ["a defect"] * 3
            assert not server.seen
            fails.clear()
            assert (await backend.send(ASK, Call())).output == "a"
            await backend.aclose()

    run(main())


# The gate: what a connection that breaks while the limits are waited for costs.


def test_a_connection_closed_at_the_gate_costs_no_attempt_and_no_second_grant(run: Run) -> None:
    async def main() -> None:
        heard = Heard()
        async with RawServer(replying(answer(chat("a")))) as server:
            backend = backend_of(
                server, limits=Limits(requests="10/60s", profile="fixed"), listener=heard
            )
            assert (await backend.send(ASK, Call())).is_success
            backend.limiter.park(SYSTEM.now_s() + 0.15)
            waiting = asyncio.create_task(backend.send(ASK, Call()))
            await until(lambda: backend.limiter.waiting == 1)
            server.hang_up()
            await server.closed()
            outcome = await waiting
            assert outcome.is_success
            assert (server.connections, len(server.seen)) == (2, 2)
            assert heard.ends == [None, None]
            assert used(backend) == 2
            assert_nothing_held(backend)
            await backend.aclose()

    run(main())


def test_a_server_gone_while_at_the_gate_gives_the_grant_back(run: Run) -> None:
    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as server:
            limits = Limits(requests="10/60s", profile="fixed")
            backend = backend_of(server, limits=limits)
            assert (await backend.send(ASK, Call())).is_success
            backend.limiter.park(SYSTEM.now_s() + 0.1)
            waiting = asyncio.create_task(backend.send(ASK, Call()))
            await until(lambda: backend.limiter.waiting == 1)
        outcome = await waiting
        assert outage.is_unreachable(outcome.error)
        assert used(backend) == 1
        assert_nothing_held(backend)
        await backend.aclose()

    run(main())


def test_a_stale_connections_successor_has_the_connects_clock(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def noted(name: str) -> Any:
        step = getattr(Exchange, name)

        def noting(self: Exchange, *given: Any, **named: Any) -> Any:
            steps.append(name)
            return step(self, *given, **named)

        return noting

    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as server:
            backend = backend_of(server)
            assert (await backend.send(ASK, Call())).is_success
            backend.limiter.park(SYSTEM.now_s() + 0.1)
            for name in ("waiting", "connecting", "leave"):
                monkeypatch.setattr(Exchange, name, noted(name))
            waiting = asyncio.create_task(backend.send(ASK, Call()))
            await until(lambda: backend.limiter.waiting == 1)
            server.hang_up()
            assert (await waiting).is_success
            await backend.aclose()
        # The first connection was at hand.
        assert steps[steps.index("waiting") :] == ["waiting", "connecting", "leave"]

    run(main())


def test_a_post_whose_kept_connection_fails_is_repeated_once_on_a_new_one(run: Run) -> None:
    async def main() -> None:
        heard = Heard()
        replies = (answer(chat("a")), None, answer(chat("b")), None, None)
        async with RawServer(replying(*replies)) as server:
            backend = backend_of(
                server, limits=Limits(requests="10/60s", profile="fixed"), listener=heard
            )
            assert (await backend.send(ASK, Call())).output == "a"
            assert (await backend.send(ASK, Call())).output == "b"
            assert [seen.connection for seen in server.seen] == [1, 1, 2]
            outcome = await backend.send(ASK, Call())
            assert isinstance(outcome.error, Disconnected)
            assert outcome.error.was_sent
            assert [seen.connection for seen in server.seen] == [1, 1, 2, 2, 3]
            # Each write is one against the limits.
            assert used(backend) == 5
            assert heard.ends == [None, "disconnected", None, "disconnected", "disconnected"]
            assert_nothing_held(backend)
            await backend.aclose()

    run(main())


def test_a_server_that_dies_with_a_request_on_a_kept_connection_is_lost_and_not_back(
    run: Run,
) -> None:
    async def main() -> None:
        stopping: list[asyncio.Task[None]] = []

        async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
            if len(server.seen) == 2:
                stopping.append(asyncio.create_task(server.stop()))
                return
            writer.write(answer(chat("a")))
            await writer.drain()

        heard = Heard()
        async with RawServer(handle) as server:
            backend = backend_of(server, listener=heard)
            assert (await backend.send(ASK, Call())).is_success
            outcome = await backend.send(ASK, Call())
            assert isinstance(outcome.error, Disconnected)
            assert [type(event) for event in heard.events[-1:]] == [EndpointLost]
            now_s = SYSTEM.now_s()
            load = backend.load(now_s)
            assert load.state is Health.DEGRADED
            # The next connection is tried after a pause.
            assert load.room_s > 0
            await asyncio.gather(*stopping)
            await server.start()
            assert (await backend.send(ASK, Call())).is_success
            assert type(heard.events[-1]) is EndpointBack
            assert backend.load(SYSTEM.now_s()).state is Health.READY
            await backend.aclose()

    run(main())


def test_a_lost_server_is_back_even_if_its_answer_is_that_the_model_is_lost(run: Run) -> None:
    async def main() -> None:
        heard = Heard()
        lost = answer({"error": {"message": "a rank", "code": "engine_failed"}}, status=500)
        async with RawServer(replying(lost)) as server:
            backend = backend_of(server, listener=heard)
            await server.stop()
            assert isinstance((await backend.send(ASK, Call())).error, Disconnected)
            await server.start()
            assert isinstance((await backend.send(ASK, Call())).error, NoEndpoint)
            assert [type(event) for event in heard.events] == [EndpointLost, EndpointBack]
            assert not backend.load(SYSTEM.now_s()).room_s
            await backend.aclose()

    run(main())


def test_a_call_that_may_start_no_attempt_any_more_is_not_repeated(run: Run) -> None:
    """A run that is drained sets the deadline of its calls on the wire to -inf."""

    async def main() -> None:
        call = Call()

        async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
            if len(server.seen) == 2:
                call.deadline_s = -math.inf
                writer.close()
                return
            writer.write(answer(chat("a")))
            await writer.drain()

        heard = Heard()
        async with RawServer(handle) as server:
            backend = backend_of(server, listener=heard)
            assert (await backend.send(ASK, Call())).is_success
            outcome = await backend.send(ASK, call)
            assert isinstance(outcome.error, TimedOut)
            assert outcome.error.phase == "row"
            assert len(server.seen) == heard.starts == len(heard.ends) == 2
            assert_nothing_held(backend)
            await backend.aclose()

    run(main())


def test_a_call_whose_connection_is_lost_after_its_grant_takes_no_second_place(run: Run) -> None:
    class Counting(HttpBackend):
        places = 0

        async def go_ahead(self, attempt: Any) -> None:
            await super().go_ahead(attempt)
            self.places += 1

    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as server:
            limits = Limits(requests="2/1s", profile="fixed")
            backend = Counting(Endpoint(base_url=server.base_url, limits=limits))
            calls = [asyncio.create_task(backend.send(ASK, Call())) for _ in range(3)]
            await until(lambda: sum(call.done() for call in calls) == 2)
            await until(lambda: backend.limiter.waiting == 1)
            server.hang_up()
            assert all([(await call).is_success for call in calls])
            # Its grant is the same, and no other call waits behind it.
            assert backend.places == 3
            assert server.connections == 4
            await backend.aclose()

    run(main())


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_post_is_not_repeated_on_a_new_connection_or_when_it_must_go_out_once(
    run: Run, is_kept: bool
) -> None:
    async def main() -> None:
        replies = (answer(chat("a")), None) if is_kept else (None,)
        async with RawServer(replying(*replies, answer(chat("b")))) as server:
            backend = backend_of(server)
            if is_kept:
                assert (await backend.send(ASK, Call())).is_success
            outcome = await backend.send(ASK, Call(once=is_kept))
            assert isinstance(outcome.error, Disconnected)
            assert outcome.error.was_sent
            assert len(server.seen) == len(replies)
            await backend.aclose()

    run(main())


@pytest.mark.parametrize("place", ["slot", "gate", "answer", "body"])
def test_a_cancelled_call_gives_everything_back(run: Run, place: str) -> None:
    async def slow(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if place == "body":
            writer.write(HALF)
        await silent(seen, writer)

    async def main() -> None:
        heard = Heard()
        async with RawServer(slow) as server:
            limits = Limits(requests="10/60s", profile="fixed", concurrency=1)
            backend = backend_of(server, limits=limits, listener=heard)
            if place == "gate":
                backend.limiter.park(SYSTEM.now_s() + 60)
            calls = [asyncio.create_task(backend.send(ASK, Call()))]
            if place == "gate":
                await until(lambda: backend.limiter.waiting == 1)
            else:
                await until(lambda: len(server.seen) == 1)
            if place == "slot":
                calls.append(asyncio.create_task(backend.send(ASK, Call())))
                await asyncio.sleep(0)
                load = backend.load(SYSTEM.now_s())
                assert (load.in_flight, load.waiting, load.binds) == (1, 1, "1 call in flight")
                assert load.room_s > 0
            for call in reversed(calls):
                call.cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            assert_nothing_held(backend)
            assert heard.ends == ([] if place == "gate" else ["cancelled"])
            if place != "gate":
                # A connection with an answer on its way must not serve another call.
                await server.closed()
            await backend.aclose()
            await server.closed()

    run(main())


# What an answer teaches the limits.


def test_tokens_are_settled_to_what_was_used(run: Run) -> None:
    async def main() -> None:
        usage = {"prompt_tokens": 20, "completion_tokens": 10}
        async with RawServer(replying(answer(chat("a", usage=usage)))) as server:
            backend = backend_of(server, limits=Limits(tokens="1000/60s", profile="fixed"))
            assert (await backend.send(ASK, Call())).is_success
            assert used(backend) == 30
            await backend.aclose()

    run(main())


def test_a_call_over_the_budget_is_refused_before_a_connection(run: Run) -> None:
    async def main() -> None:
        async with RawServer(silent) as server:
            outcome = await send_once(server, limits=Limits(tokens="1/60s"))
            assert isinstance(outcome.error, OverLimit)
            assert outcome.status == "rejected"
            assert server.connections == 0

    run(main())


def test_a_429_for_more_than_a_limit_that_headers_have_lowered_is_final(run: Run) -> None:
    async def main() -> None:
        refusal = answer(b"{}", status=429, RateLimit_Policy='"a";q=30;w=1;qu="tokens"')
        async with RawServer(replying(refusal)) as server:
            backend = backend_of(server, limits=Limits(tokens="1000/1s", profile="fixed"))
            small = await backend.send(Request(body={"prompt": "a", "max_tokens": 1}), Call())
            assert isinstance(small.error, RateLimited)
            large = Request(body={"prompt": "word " * 100, "max_tokens": 1})
            outcome = await backend.send(large, Call())
            assert isinstance(outcome.error, OverLimit)
            assert outcome.error.status == 429
            assert outcome.error.hint.startswith("shorten the prompt")
            await backend.aclose()

    run(main())


def test_a_guess_of_the_output_is_cut_to_what_the_limit_can_grant(run: Run) -> None:
    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as server:
            # 256 output tokens are guessed before the first reply; only the prompt must fit.
            outcome = await send_once(server, limits=Limits(tokens="100/60s"))
            assert outcome.is_success

    run(main())


@pytest.mark.parametrize(
    ("status", "is_parked"), [(429, True), (503, True), (529, True), (500, False)]
)
def test_retry_after_parks_the_endpoint(run: Run, status: int, is_parked: bool) -> None:
    async def main() -> None:
        heard = Heard()
        reply = answer({"error": "full"}, status=status, Retry_After="30")
        async with RawServer(replying(reply)) as server:
            backend = backend_of(server, listener=heard)
            outcome = await backend.send(ASK, Call())
            assert outcome.error is not None
            assert outcome.error.status == status
            parked = [event for event in heard.events if isinstance(event, EndpointParked)]
            assert len(parked) == is_parked
            load = backend.load(SYSTEM.now_s())
            assert (load.room_s > 1) == is_parked
            assert (load.parked_until_s > SYSTEM.now_s() + 1) == is_parked
            assert load.binds == ("the endpoint asked redline to wait" if is_parked else "")
            assert load.state is Health.READY
            if status == 429:
                assert isinstance(outcome.error, RateLimited)
            await backend.aclose()

    run(main())


# An endpoint that is not there.


def test_an_unreachable_endpoint_costs_no_attempts_and_then_ends_the_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "_NEVER_ANSWERED_S", 0.3)
    monkeypatch.setattr(outage, "_FIRST_PAUSE_S", 0.01)

    async def main() -> None:
        with socket.socket() as held:
            # Bound and not listening: nobody else can take the port.
            held.bind(("127.0.0.1", 0))
            backend = backend_of(None, base_url=f"http://127.0.0.1:{held.getsockname()[1]}/v1")
            retry = Retry(backend, RetryPolicy(max_retries=1, base_s=0.01), seed=1)
            outcome = await retry.send(ASK, Call())
            await retry.aclose()
        assert isinstance(outcome.error, NoEndpoint)
        assert outcome.error.stops_run
        assert outcome.attempts > 2
        assert re.search(r"has not been reachable for \d s", what(outcome))
        assert outcome.error.hint.startswith("nothing listens there")
        assert outcome.status == "rejected"

    run(main())


def test_an_endpoint_that_comes_back_ends_the_outage(run: Run) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(chat("a"), Connection="close"))
        writer.close()

    async def main() -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            backend = backend_of(None, base_url=f"http://127.0.0.1:{held.getsockname()[1]}/v1")
            assert outage.is_unreachable((await backend.send(ASK, Call())).error)
            load = backend.load(SYSTEM.now_s())
            assert (load.state, load.binds) == (Health.DEGRADED, "the endpoint is out of reach")
            assert load.room_s > 0
            assert load.parked_until_s > SYSTEM.now_s()
            async with await asyncio.start_server(handle, sock=held):
                assert (await backend.send(ASK, Call())).is_success
                assert backend.load(SYSTEM.now_s()).room_s == 0
                assert backend.load(SYSTEM.now_s()).state is Health.READY
            await backend.aclose()

    run(main())


# Proxies.


def test_the_environments_proxy_is_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as proxy:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
            backend = backend_of(None, base_url="http://llm.invalid/v1")
            assert (await backend.send(ASK, Call())).is_success
            assert proxy.seen[0].target == "http://llm.invalid/v1/chat/completions"
            await backend.aclose()

    run(main())


def test_no_proxy_may_name_a_port(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with RawServer(replying(answer(chat("a")))) as server:
            monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
            monkeypatch.setenv("no_proxy", f"127.0.0.1:{server.port}")
            assert (await send_once(server)).is_success

    run(main())


# Streams.


def stream(*events: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return head + b"".join(b"data: " + event + b"\n\n" for event in events)


A = b'{"choices":[{"index":0,"delta":{"content":"a"}}]}'
END = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'


@pytest.mark.parametrize(
    ("data", "texts", "kind"),
    [
        (stream(A, A, END, b"[DONE]"), ["a", "a", ""], None),
        (stream(A), ["a"], Disconnected),
        (stream(A, b'{"error": "overloaded"}'), ["a"], BadReply),
        (answer({"error": "no"}, status=400), [], Rejected),
    ],
)
def test_a_stream(run: Run, data: bytes, texts: list[str], kind: type | None) -> None:
    async def main() -> None:
        async with RawServer(raw(data)) as server:
            backend, sink, call = backend_of(server), Keeps(), Call()
            outcome = await backend.send(ASK, call, sink)
            assert sink.texts == texts
            assert sink.heads == ([(200, "text/event-stream")] if texts else [])
            assert call.committed == bool(texts)
            assert type(outcome.error) is (kind or type(None))
            if kind is None:
                assert outcome.output == "aa"
            (one,) = outcome.tried
            assert (one.first_token_s is not None) == bool(texts)
            body = server.seen[0].json()
            assert isinstance(body, dict)
            assert body["stream"] is True
            assert_nothing_held(backend)
            await backend.aclose()

    run(main())


def test_a_stream_whose_response_ends_a_moment_after_its_answer_keeps_its_connection(
    run: Run,
) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = b"".join(b"data: " + event + b"\n\n" for event in (A, END, b"[DONE]"))

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(head + b"%x\r\n%b\r\n" % (len(body), body))
        await asyncio.sleep(0.1)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def main() -> None:
        async with RawServer(handle) as server:
            backend = backend_of(server)
            for _ in range(2):
                assert (await backend.send(ASK, Call(), Keeps())).output == "a"
            assert server.connections == 1
            await backend.aclose()

    run(main())


def test_a_model_that_is_lost_within_a_stream_says_so_without_the_key(run: Run) -> None:
    async def main() -> None:
        lost = b'{"error": {"message": "rank %s", "code": "engine_failed"}}' % SECRET.encode()
        async with RawServer(raw(stream(A, lost))) as server:
            backend = backend_of(server, api_key=SECRET)
            outcome = await backend.send(ASK, Call(), Keeps())
            assert type(outcome.error) is NoEndpoint
            assert what(outcome) == "the model is no longer available: rank <key>"
            await backend.aclose()

    run(main())


def test_a_stream_is_relayed_byte_for_byte(run: Run) -> None:
    async def main() -> None:
        usage = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
        data = stream(A, A, END, usage, b"[DONE]")
        async with RawServer(raw(data)) as server:
            backend, sink = backend_of(server), Relays()
            outcome = await backend.send(ASK, Call(), sink)
            await backend.aclose()
        assert sink.raw == data.partition(b"\r\n\r\n")[2]
        assert sink.heads == [(200, "text/event-stream")]
        assert outcome.reply is not None
        assert (outcome.output, outcome.reply.finish_reason) == (None, "stop")
        assert (outcome.reply.input_tokens, outcome.reply.output_tokens) == (3, 2)
        assert outcome.reply.headers["content-type"] == "text/event-stream"

    run(main())


@pytest.mark.parametrize("kind", [Keeps, Relays])
@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        # Mistral.
        (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"]}]}),
        # Databricks.
        (400, {"message": 'json: unknown field "stream_options"'}),
    ],
)
def test_an_endpoint_that_refuses_stream_options_is_asked_without_them(
    run: Run, kind: type[Keeps], status: int, refusal: dict[str, Any]
) -> None:
    # Such servers send it without being asked.
    usage = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'

    async def write(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if b"stream_options" in seen.body:
            writer.write(answer(refusal, status=status))
        else:
            writer.write(stream(A, END, usage, b"[DONE]"))
            writer.close()

    async def main() -> None:
        spending = Spending(Allowance(tokens=10**9))
        async with RawServer(write) as server:
            backend = backend_of(server)
            metered = Metered(backend, spending, Prices())
            for _ in range(2):
                sink = kind()
                outcome = await metered.send(ASK, Call(), sink)
                assert outcome.is_success
                assert sink.heads == [(200, "text/event-stream")]
            # As messages that `redline serve` has translated.
            stated = ASK.with_fields(stream=True, stream_options={"include_usage": True})
            assert (await metered.send(stated, Call(), kind())).is_success
            sent = [b"stream_options" in seen.body for seen in server.seen]
            assert sent == [True, False, False, False]
            assert_nothing_held(backend)
            await metered.aclose()
        # The refusal costs nothing.
        assert spending.spent.tokens == 15

    run(main())


def test_an_error_that_quotes_stream_options_changes_no_other_call(run: Run) -> None:
    async def write(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if b"about stream_options" in seen.body:
            writer.write(answer({"error": "wrong: about stream_options"}, status=400))
        else:
            writer.write(stream(A, END, b"[DONE]"))
            writer.close()

    async def main() -> None:
        wrong = ASK.with_fields(messages=[{"role": "user", "content": "about stream_options"}])
        async with RawServer(write) as server:
            backend = backend_of(server)
            outcome = await backend.send(wrong, Call(), Keeps())
            assert what(outcome).endswith("HTTP 400: wrong: about stream_options")
            assert (await backend.send(ASK, Call(), Keeps())).is_success
            assert len(server.seen) == 3
            assert b'"stream_options"' in server.seen[-1].body
            await backend.aclose()

    run(main())


# Where chunks are cut: within their size, behind it, within the event, in front of the last byte.
CUTS = {1: 1, 3: 4, 5: 20, 7: -1}
BETWEEN = 20


@pytest.mark.parametrize("kind", [Relays, Writes])
def test_a_stream_that_comes_event_by_event_is_relayed_byte_for_byte(
    run: Run, kind: type[Relays]
) -> None:
    named = A.replace(b"{", b'{"id":"c","model":"m",', 1)
    texts = [named.replace(b'"a"', b'"%b"' % (b"a" * size)) for size in range(40)]
    usage = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
    data = [b"data: %b\n\n" % event for event in (named, *texts, END, usage, b"[DONE]")]
    data[BETWEEN] = b"%x\r\n%b" % (len(data[BETWEEN]), data[BETWEEN])

    async def write(seen: Seen, writer: asyncio.StreamWriter) -> None:
        head = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + head)
        for number, event in enumerate(data):
            chunk = b"%x\r\n%b\r\n" % (len(event), event)
            # Some come in two reads.
            cut = CUTS.get(number % 8, 0)
            if number == BETWEEN:
                # In the second of them what would be a chunk, if it did not stand within one.
                cut = chunk.find(b"data") - 4
            for part in (chunk[:cut], chunk[cut:]):
                writer.write(part)
                await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")

    async def main() -> None:
        async with RawServer(write) as server:
            backend, sink = backend_of(server), kind()
            outcome = await backend.send(ASK, Call(), sink)
            await backend.aclose()
        assert sink.raw == b"".join(data)
        assert outcome.reply is not None
        assert (outcome.reply.input_tokens, outcome.reply.output_tokens) == (3, 2)
        assert sink.at_once > 10

    run(main())


@pytest.mark.parametrize("kind", [Keeps, Relays])
def test_a_server_that_ignores_the_wish_for_a_stream_is_read_whole(
    run: Run, kind: type[Keeps]
) -> None:
    async def main() -> None:
        reply = answer(chat("whole"), Content_Type="application/json")
        async with RawServer(replying(reply)) as server:
            backend, sink = backend_of(server), kind()
            outcome = await backend.send(ASK, Call(), sink)
            assert outcome.output == "whole"
            assert sink.heads == [(200, "application/json")]
            if isinstance(sink, Relays):
                assert sink.raw == reply.partition(b"\r\n\r\n")[2]
            await backend.aclose()

    run(main())
