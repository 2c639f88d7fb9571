"""squid and tinyproxy between redline and its endpoint: tunnels, forwarding, passwords, a death."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import redline
from redline import Call, Endpoint, Request
from redline.calls import HttpBackend
from redline.errors import Disconnected, Refused
from support.proxies import USER, proxy_server, why_not
from support.raw_server import RawServer, Seen, answer, chat

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

Run = Callable[[Coroutine[Any, Any, None]], None]
ROWS = 300
IN_FLIGHT = 16
ASK = Request(body={"model": "m", "messages": [{"role": "user", "content": "hello"}]})
PROGRAMS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(why_not(name)), reason=why_not(name)))
    for name in ("squid", "tinyproxy")
]
through_each = pytest.mark.parametrize("program", PROGRAMS)


async def repeat(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Answers with the prompt."""
    body = json.loads(seen.body)
    writer.write(answer(chat(body["messages"][0]["content"])))


@pytest.fixture
def tls(authority: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The endpoint's certificate, which redline trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "right.pem", authority / "right.key")
    return context


async def outputs(base_url: str, proxy: str, **settings: Any) -> list[Any]:
    """What becomes of ROWS rows, each with its own number as the prompt."""
    rows = [{"prompt": f"number {number}"} for number in range(ROWS)]
    report = await redline.arun(
        rows,
        model="m",
        endpoint=base_url,
        proxy=proxy,
        concurrency=IN_FLIGHT,
        **settings,
    )
    return [outcome.output for outcome in report.outcomes]


RIGHT = [f"number {number}" for number in range(ROWS)]
HALF = b'number %d"}]}' % (ROWS // 2)


@through_each
def test_many_rows_pass_through_few_tunnels(run: Run, tls: ssl.SSLContext, program: str) -> None:
    async def main() -> None:
        async with RawServer(repeat, tls) as server:
            assert await outputs(server.base_url, proxy.url) == RIGHT
            assert server.connections <= IN_FLIGHT

    with proxy_server(program) as proxy:
        run(main())


@through_each
def test_many_rows_are_forwarded(run: Run, program: str) -> None:
    async def main() -> None:
        async with RawServer(repeat) as server:
            assert await outputs(server.base_url, proxy.url) == RIGHT
            assert server.seen[0].headers["host"] == f"127.0.0.1:{server.port}"
            assert server.seen[0].target == "/v1/chat/completions"
            # tinyproxy closes each connection.
            assert program == "tinyproxy" or 1 <= proxy.connections() <= IN_FLIGHT

    with proxy_server(program) as proxy:
        run(main())


@pytest.mark.skipif(bool(why_not("squid")), reason=why_not("squid"))
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_squid_is_reached_over_tls(
    run: Run, tls: ssl.SSLContext, authority: Path, scheme: str
) -> None:
    async def main() -> None:
        async with RawServer(repeat, tls if scheme == "https" else None) as server:
            assert await outputs(server.base_url, proxy.url) == RIGHT
            if scheme == "https":
                assert server.connections <= IN_FLIGHT
            else:
                assert 1 <= proxy.connections() <= IN_FLIGHT

    with proxy_server("squid", certificate=authority) as proxy:
        run(main())


@through_each
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_password_is_asked_for_taken_and_refused(
    run: Run, tls: ssl.SSLContext, program: str, scheme: str
) -> None:
    async def main() -> None:
        async with RawServer(repeat, tls if scheme == "https" else None) as server:
            for user, what in (
                (f"{USER}:{quote(proxy.password, safe='')}@", ""),
                ("", "asks for a user name and password: HTTP 407"),
                (f"{USER}:wrong-word-4711@", "refuses the user name or password: HTTP 40"),
            ):
                if what and (program, scheme) == ("tinyproxy", "http"):
                    # It closes with the request's body unread, and the reset may undo its answer.
                    continue
                url = proxy.url.replace("//", f"//{user}")
                backend = HttpBackend(Endpoint(base_url=server.base_url, proxy=url))
                outcome = await backend.send(ASK, Call())
                await backend.aclose()
                if not what:
                    assert outcome.output == "hello"
                    assert "proxy-authorization" not in server.seen[0].headers
                else:
                    assert isinstance(outcome.error, Refused)
                    assert outcome.error.what.startswith(f"the proxy {proxy.place} {what}")
                    assert proxy.password not in str(outcome.error)
            assert len(server.seen) == 1

    with proxy_server(program, asks=True) as proxy:
        run(main())


@through_each
def test_an_endpoint_that_the_proxy_cannot_reach_is_named(run: Run, program: str) -> None:
    async def main() -> None:
        backend = HttpBackend(Endpoint(base_url="https://127.0.0.1:9/v1", proxy=proxy.url))
        outcome = await backend.send(ASK, Call())
        await backend.aclose()
        assert isinstance(outcome.error, Disconnected)
        assert not outcome.error.was_sent
        place = f"the proxy {proxy.place} could not connect to 127.0.0.1:9: HTTP 50"
        assert outcome.error.what.startswith(f"no connection: {place}")

    with proxy_server(program) as proxy:
        run(main())


@pytest.mark.slow
@through_each
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_killed_in_the_middle_costs_no_row(
    run: Run, tls: ssl.SSLContext, program: str, scheme: str
) -> None:
    is_half_done = asyncio.Event()

    async def noting(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.body.endswith(HALF):
            is_half_done.set()
        await repeat(seen, writer)

    async def restart() -> None:
        await is_half_done.wait()
        await asyncio.to_thread(proxy.kill)
        await asyncio.to_thread(proxy.start)

    async def main() -> None:
        async with (
            RawServer(noting, tls if scheme == "https" else None) as server,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(restart())
            assert await outputs(server.base_url, proxy.url) == RIGHT
            assert is_half_done.is_set()

    with proxy_server(program) as proxy:
        run(main())
