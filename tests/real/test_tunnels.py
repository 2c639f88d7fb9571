"""CONNECT against proxies that do it right and proxies that do not, on both event loops."""

from __future__ import annotations

import asyncio
import ssl
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redline import Call, Endpoint, Limits, Request
from redline.calls import HttpBackend, Timeouts
from redline.errors import BadRow, ConfigError, Disconnected, Refused, TimedOut
from redline.testing import VirtualClock, virtual_run
from redline.waist import Outcome
from support.raw_server import RawServer, Seen, answer, chat

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

Run = Callable[[Coroutine[Any, Any, None]], None]
ASK = Request(body={"model": "m", "messages": [{"role": "user", "content": "hello"}]})
OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"
PASSWORD = "p@ss:word-4711"


class Tunnels:
    """A proxy that makes tunnels. opened: what it answers, `late_s` after the request.

    heads: of the requests that it has read.
    """

    def __init__(
        self, tls: ssl.SSLContext | None = None, opened: bytes = OPENED, late_s: float = 0.0
    ) -> None:
        self._tls = tls
        self._opened = opened
        self._late_s = late_s
        self.heads: list[bytes] = []
        self._served = set[asyncio.Future[None]]()

    async def __aenter__(self) -> Tunnels:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        scheme = "http" if self._tls is None else "https"
        self.place = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.url = f"{scheme}://{self.place}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*self._served)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._served.add(done := asyncio.get_running_loop().create_future())
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            host, _, port = head.split(b" ")[1].decode().rpartition(":")
            inside, outside = await asyncio.open_connection(host, int(port))
            await asyncio.sleep(self._late_s)
            writer.write(self._opened)
            await asyncio.gather(_pump(reader, outside), _pump(inside, writer))
        await closed(writer)
        done.set_result(None)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def answering(
    *replies: bytes, hangs: bool = False, until: bytes = b"\r\n\r\n"
) -> AsyncIterator[str]:
    """A proxy that sends `replies`, with a pause between them, and closes; its URL."""

    served = set[asyncio.Future[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(done := asyncio.get_running_loop().create_future())
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(until)
            for reply in replies:
                writer.write(reply)
                await asyncio.sleep(0.01)
            if hangs:
                await reader.read()
        await closed(writer)
        done.set_result(None)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*served)


async def sent(base_url: str, proxy: str, **settings: Any) -> Outcome:
    """The outcome of one attempt at an endpoint behind `proxy`."""
    backend = HttpBackend(Endpoint(base_url=base_url, proxy=proxy, **settings))
    try:
        return await backend.send(ASK, Call())
    finally:
        await backend.aclose()


def context_of(authority: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / f"{name}.pem", authority / f"{name}.key")
    return context


@pytest.fixture
def trusted(authority: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    return authority


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(chat("a")))


# What goes right.


@pytest.mark.parametrize("is_tls", [False, True], ids=["http proxy", "https proxy"])
@pytest.mark.parametrize(
    "opened",
    [
        OPENED,
        b"HTTP/1.0 200 OK\r\nProxy-Agent: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 299 Fine\r\n\r\n",
    ],
)
def test_an_https_endpoint_is_reached_by_a_tunnel(
    run: Run, trusted: Path, is_tls: bool, opened: bytes
) -> None:
    async def main() -> None:
        tls = context_of(trusted, "right")
        async with (
            RawServer(echo, tls) as server,
            Tunnels(tls if is_tls else None, opened) as proxy,
        ):
            endpoint = Endpoint(
                base_url=server.base_url,
                api_key="sk-0123456789",
                headers={"X-Team": "a", "Proxy-Token": "b"},
                proxy=proxy.url,
            )
            backend = HttpBackend(endpoint)
            for _ in range(3):
                assert (await backend.send(ASK, Call())).output == "a"
            await backend.aclose()
            assert server.connections == len(proxy.heads) == 1
            seen = server.seen[0]
            assert seen.target == "/v1/chat/completions"
            assert seen.headers["host"] == f"127.0.0.1:{server.port}"
            assert "proxy-token" not in seen.headers
            head = proxy.heads[0].decode()
            assert head.startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
            assert f"\r\nHost: 127.0.0.1:{server.port}\r\n" in head
            assert "\r\nProxy-Token: b\r\n" in head
            assert "sk-" not in head
            assert "X-Team" not in head

    run(main())


@pytest.mark.parametrize(("requests", "token_limit"), [("1/1s", ()), ((), "6000/60s")])
def test_a_limit_is_used_however_long_a_connection_takes(
    trusted: Path, requests: str | tuple[()], token_limit: str | tuple[()]
) -> None:
    async def close_after(seen: Seen, writer: asyncio.StreamWriter) -> None:
        usage = {"prompt_tokens": 60, "completion_tokens": 40}
        writer.write(answer(chat("a", usage=usage), Connection="close"))
        writer.close()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        tls = context_of(trusted, "right")
        limits = Limits(requests=requests, tokens=token_limit, guard_s=0.0)
        async with RawServer(close_after, tls) as server, Tunnels(late_s=2.5) as proxy:
            endpoint = Endpoint(base_url=server.base_url, proxy=proxy.url, limits=limits)
            backend = HttpBackend(endpoint, clock=VirtualClock(loop))
            calls, ask = 20, ASK.with_fields(max_tokens=95)
            outcomes = await asyncio.gather(*(backend.send(ask, Call()) for _ in range(calls)))
            await backend.aclose()
            sent_s = sorted(outcome.tried[-1].sent_s or 0.0 for outcome in outcomes)
            # The first ones show how long a connection takes.
            assert sent_s[-1] - sent_s[0] < calls + 3

    virtual_run(main(), limit_s=600.0)


def test_large_bodies_pass_both_ways(run: Run, trusted: Path) -> None:
    size = 3_000_000

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        assert len(seen.body) > size
        writer.write(answer(chat("b" * size)))

    async def main() -> None:
        tls = context_of(trusted, "right")
        async with RawServer(handle, tls) as server, Tunnels(tls) as proxy:
            backend = HttpBackend(Endpoint(base_url=server.base_url, proxy=proxy.url))
            body = {"messages": [{"role": "user", "content": "a" * size}]}
            for _ in range(2):
                assert (await backend.send(Request(body=body), Call())).output == "b" * size
            await backend.aclose()
            assert len(proxy.heads) == 1

    run(main())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_user_and_password_are_sent_decoded(run: Run, trusted: Path, scheme: str) -> None:
    basic = b64encode(b"me@work:" + PASSWORD.encode()).decode()
    user = "me%40work:p%40ss%3Aword-4711"

    async def main() -> None:
        tls = context_of(trusted, "right")
        async with RawServer(echo, tls) as server, Tunnels() as proxy, RawServer(echo) as forward:
            if scheme == "https":
                url = f"http://{user}@{proxy.place}"
                assert (await sent(server.base_url, url)).is_success
                head = proxy.heads[0].decode()
                assert "proxy-authorization" not in server.seen[0].headers
            else:
                url = f"http://{user}@127.0.0.1:{forward.port}"
                assert (await sent("http://llm.invalid/v1", url)).is_success
                seen = forward.seen[0]
                assert seen.target == "http://llm.invalid/v1/chat/completions"
                assert seen.headers["host"] == "llm.invalid"
                head = "\r\n".join(f"{n.title()}: {v}" for n, v in seen.headers.items()) + "\r\n"
            assert f"\r\nProxy-Authorization: Basic {basic}\r\n" in head

    run(main())


def test_a_plain_endpoint_is_reached_over_tls_to_the_proxy(run: Run, trusted: Path) -> None:
    async def main() -> None:
        async with RawServer(echo, context_of(trusted, "right")) as proxy:
            outcome = await sent("http://llm.invalid/v1", proxy.base_url)
            assert outcome.output == "a"
            assert proxy.seen[0].target == "http://llm.invalid/v1/chat/completions"

    run(main())


def test_a_host_header_is_for_endpoints_without_a_forwarding_proxy(run: Run, trusted: Path) -> None:
    host = {"Host": "other.invalid"}

    async def main() -> None:
        async with RawServer(echo, context_of(trusted, "right")) as server, Tunnels() as proxy:
            assert (await sent(server.base_url, proxy.url, headers=host)).is_success
            assert server.seen[0].headers["host"] == "other.invalid"
        async with RawServer(echo) as forward:
            url = f"http://127.0.0.1:{forward.port}"
            with pytest.raises(ConfigError, match="Host header"):
                await sent("http://llm.invalid/v1", url, headers=host)
            backend = HttpBackend(Endpoint(base_url="http://llm.invalid/v1", proxy=url))
            outcome = await backend.send(msgspec.structs.replace(ASK, headers=host), Call())
            assert isinstance(outcome.error, BadRow)
            assert not forward.seen
            await backend.aclose()

    run(main())


def test_a_name_beyond_ascii_is_asked_for_as_dns_has_it(run: Run) -> None:
    async def main() -> None:
        async with answering(status("502 Bad Gateway")) as proxy:
            outcome = await sent("https://bücher.invalid/v1", proxy)
            assert "could not connect to xn--bcher-kva.invalid:443" in str(outcome.error)
        async with RawServer(echo) as forward:
            url = f"http://127.0.0.1:{forward.port}"
            assert (await sent("http://bücher.invalid:81/v1", url)).is_success
            place = "xn--bcher-kva.invalid:81"
            assert forward.seen[0].target == f"http://{place}/v1/chat/completions"
            assert forward.seen[0].headers["host"] == place

    run(main())


# What goes wrong before the tunnel is there: nothing was sent, and no row pays for it.


def status(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {line}", *headers, "Content-Length: 4", "", "Sure"]).encode()


WRONG = {
    "403": ([status("403 Forbidden")], "does not allow 127.0.0.1:9: HTTP 403 Forbidden"),
    "404": ([status("404 Not Found")], "opens no tunnel to 127.0.0.1:9: HTTP 404 Not Found"),
    "405": ([status("405 No")], "opens no tunnel to 127.0.0.1:9: HTTP 405 No"),
    "502": ([status("502 Bad Gateway")], "could not connect to 127.0.0.1:9: HTTP 502"),
    "503, in pieces": (
        [b"HTTP/1.1 5", b"03 Service Un", b"available\r", b"\n\r\n"],
        "could not connect to 127.0.0.1:9: HTTP 503 Service Unavailable",
    ),
    "a redirect": ([status("302 Found", "Location: http://127.0.0.1:9/")], "HTTP 302 Found"),
    "another protocol": (
        [b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"],
        "opens no tunnel to 127.0.0.1:9: HTTP 101",
    ),
    "a close": ([], "without an answer to CONNECT"),
    "a close in its answer": ([b"HTTP/1.1 200 OK\r\nX-"], "without an answer to CONNECT"),
    "garbage": ([b"SSH-2.0-OpenSSH_9.2\r\n"], "its answer is not HTTP"),
    "NULs": ([b"\0" * 100], "its answer is not HTTP"),
    "no end of headers": ([b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 20_000], "longer than 65,536"),
    "no end of 1xx": ([b"HTTP/1.1 103 Hints\r\n\r\n" * 4_000], "longer than 65,536"),
    "a body": ([status("200 OK")], "sent data after its answer"),
    "more bytes": ([OPENED + b"x"], "sent data after its answer"),
    "two answers": ([status("200 OK")[:-4] + OPENED], "sent data after its answer"),
    "text behind": ([OPENED, b"Sure"], ""),
    "a close behind": ([OPENED], ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_proxy_that_opens_no_tunnel_is_named(run: Run, trusted: Path, name: str) -> None:
    replies, text = WRONG[name]

    async def main() -> None:
        async with answering(*replies) as proxy:
            outcome = await sent("https://127.0.0.1:9/v1", proxy)
            error = outcome.error
            assert isinstance(error, Disconnected)
            assert not error.was_sent
            assert text in error.what
            if text:
                assert error.what.startswith(f"no connection: the proxy {proxy[7:]}")
                assert error.hint
            else:
                assert error.what.startswith("no connection: 127.0.0.1:9: ")

    run(main())


@pytest.mark.parametrize("replies", [[], [b"HTTP/1.1 200"], [OPENED]])
def test_a_proxy_that_hangs_is_ended_by_the_connect_clock(
    run: Run, trusted: Path, replies: list[bytes]
) -> None:
    async def main() -> None:
        async with answering(*replies, hangs=True) as proxy:
            wait = Timeouts(connect_s=0.2)
            outcome = await sent("https://127.0.0.1:9/v1", proxy, timeouts=wait)
            assert isinstance(outcome.error, TimedOut)
            assert outcome.error.phase == "connect"
            assert outcome.error.hint.startswith(f"through the proxy {proxy[7:]}: check ")

    run(main())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there_is_named(run: Run, scheme: str) -> None:
    async def main() -> None:
        outcome = await sent(f"{scheme}://llm.invalid/v1", "http://127.0.0.1:9")
        assert isinstance(outcome.error, Disconnected)
        assert not outcome.error.was_sent
        assert outcome.error.what == "no connection: the proxy 127.0.0.1:9: Connection refused"
        assert "--proxy" in outcome.error.hint

    run(main())


CHALLENGES = {
    "no password": ("", "Basic realm=x", "asks for a user name and password", "USER:PASSWORD"),
    "a wrong one": ("me:secret-4711@", "Basic realm=x", "refuses the user name or pass", "%40"),
    "NTLM": ("me:secret-4711@", "NTLM", "asks for NTLM: ", "Basic"),
    "Digest": (
        "",
        'Digest realm="a, basic, b", qop=auth, Negotiate',
        "Digest or Negotiate",
        "Basic",
    ),
    "both": ("", "Negotiate, Basic realm=x", "asks for a user name and password", "USER:PASSWORD"),
}


@pytest.mark.parametrize(("scheme", "code"), [("http", 407), ("https", 407), ("https", 401)])
@pytest.mark.parametrize("name", CHALLENGES)
def test_407_says_what_the_proxy_wants(run: Run, scheme: str, code: int, name: str) -> None:
    user, offer, what, hint = CHALLENGES[name]
    secret = b64encode(user[:-1].encode()).decode()
    reply = status(f"{code} {user}{secret}", f"Proxy-Authenticate: {offer}", "Connection: close")

    async def main() -> None:
        async with answering(reply) as proxy:
            url = proxy.replace("//", f"//{user}")
            outcome = await sent(f"{scheme}://llm.invalid/v1", url)
            error = outcome.error
            assert isinstance(error, Refused)
            assert (error.status, error.stops_run) == (code, True)
            assert what in error.what
            assert hint in error.hint
            assert "secret-4711" not in str(error)

    run(main())


@pytest.mark.parametrize("form", ["plain", "encoded", "base64"])
def test_a_quoted_password_is_masked(run: Run, form: str) -> None:
    user = "me:p%40ss%3Aword-4711"
    said = {
        "plain": f"me:{PASSWORD}",
        "encoded": user,
        "base64": b64encode(f"me:{PASSWORD}".encode()).decode(),
    }[form]

    async def main() -> None:
        async with answering(status(f"403 {said}")) as proxy:
            outcome = await sent("https://llm.invalid/v1", proxy.replace("//", f"//{user}@"))
            assert outcome.error is not None
            assert "HTTP 403 <key>" in outcome.error.what.replace("me:", "")
            # Not of digits alone, which a port may have.
            assert "word-4711" not in outcome.error.what
            assert said.removeprefix("me:") not in outcome.error.what

    run(main())


@pytest.mark.parametrize("wrong", ["proxy", "endpoint"])
def test_the_names_of_proxy_and_endpoint_are_both_checked(
    run: Run, trusted: Path, wrong: str, request: pytest.FixtureRequest
) -> None:
    is_asyncio = request.node.callspec.params["run"] == "asyncio"
    if wrong == "endpoint" and is_asyncio and sys.version_info < (3, 11, 8):
        pytest.skip("asyncio fails to report it for TLS within TLS (CPython's gh-113214)")

    async def main() -> None:
        good, bad = context_of(trusted, "right"), context_of(trusted, "wrong")
        is_proxy = wrong == "proxy"
        async with (
            RawServer(echo, good if is_proxy else bad) as server,
            Tunnels(bad if is_proxy else good) as proxy,
        ):
            outcome = await sent(server.base_url, proxy.url)
            assert isinstance(outcome.error, Disconnected)
            assert not outcome.error.was_sent
            assert "certificate" in outcome.error.hint
            assert ("proxy's" if is_proxy else "server's") in outcome.error.hint
            assert ("the proxy" in outcome.error.what) == is_proxy
            assert not server.seen

    run(main())


def test_an_https_url_for_a_proxy_without_tls_is_explained(run: Run) -> None:
    async def main() -> None:
        async with answering(status("400 Bad Request"), until=b"\x16") as proxy:
            outcome = await sent("https://llm.invalid/v1", proxy.replace("http", "https"))
            assert isinstance(outcome.error, Disconnected)
            assert not outcome.error.was_sent
            assert outcome.error.hint.startswith("write its URL with http://")

    run(main())
