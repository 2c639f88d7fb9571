"""Names, addresses and certificates, over either transport: the right server or one clear error."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import redline
from redline.calls import Timeouts
from redline.errors import CallError, Disconnected, TimedOut
from support.asking import Asker, wire
from support.raw_server import RawServer, Seen, answer, reset
from support.sim_process import SimProcess

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

CHAT = [{"role": "user", "content": "hello"}]

Run = Callable[[Coroutine[Any, Any, None]], None]


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Answers with the request's own target."""
    writer.write(answer(seen.target.encode()))


# Addresses.


def test_each_of_a_hosts_addresses_is_tried(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with RawServer(echo) as server:
            asked = 0
            look_up = socket.getaddrinfo

            def both(host: Any, port: Any, *given: Any, **options: Any) -> list[Any]:
                nonlocal asked
                if host != "two.invalid":
                    return look_up(host, port, *given, **options)
                asked += 1
                kind = (socket.SOCK_STREAM, 6, "")
                return [
                    (socket.AF_INET6, *kind, ("::1", port, 0, 0)),
                    (socket.AF_INET, *kind, ("127.0.0.1", port)),
                ]

            monkeypatch.setattr(socket, "getaddrinfo", both)
            async with Asker(f"http://two.invalid:{server.port}/v1") as asker:
                asking = [asker.ask(wire(f"/{number}")) for number in range(20)]
                bodies = [found.body for found in await asyncio.gather(*asking)]
                assert bodies == [b"/%d" % number for number in range(20)]
            assert asked == 1

    run(main())


def test_an_address_that_answered_instead_of_another_is_tried_first_after_the_next_lookup(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def last(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(seen.target.encode(), Connection="close"))
        writer.close()

    async def main() -> None:
        lookups = 0

        def both(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
            nonlocal lookups
            lookups += 1
            hosts = ("127.0.0.2", "127.0.0.1")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in hosts]

        async with RawServer(last) as server:
            monkeypatch.setattr(socket, "getaddrinfo", both)
            monkeypatch.setattr("redline.calls.wire.dialer._RESOLVED_FOR_S", -1.0)
            async with Asker(f"http://two.invalid:{server.port}/v1") as asker:
                await asker.ask(wire("/0"))
                # The address that refused the first connection works by now.
                other = await asyncio.start_server(
                    lambda _, writer: writer.close(), "127.0.0.2", server.port
                )
                async with other:
                    for number in range(1, 4):
                        assert (await asker.ask(wire(f"/{number}"))).body == b"/%d" % number
            assert lookups == 4

    run(main())


def test_calls_that_begin_together_share_one_lookup(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives a call that is given up, and a lookup that failed is not remembered."""
    lookups = 0
    is_known = True

    async def main() -> None:
        look_up = socket.getaddrinfo

        def slowly(host: Any, *given: Any, **options: Any) -> list[Any]:
            nonlocal lookups
            if host != "slow.invalid":
                return look_up(host, *given, **options)
            lookups += 1
            time.sleep(0.3)
            if not is_known:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return look_up("127.0.0.1", *given, **options)

        monkeypatch.setattr(socket, "getaddrinfo", slowly)
        async with RawServer(echo) as server:
            url = f"http://slow.invalid:{server.port}/v1"
            async with Asker(url) as asker:
                asking = [asyncio.create_task(asker.ask(wire(f"/{one}"))) for one in range(50)]
                await asyncio.sleep(0.1)
                asking.pop(0).cancel()
                bodies = [found.body for found in await asyncio.gather(*asking)]
                assert bodies == [b"/%d" % one for one in range(1, 50)]
                assert lookups == 1

            nonlocal is_known
            is_known = False
            async with Asker(url) as asker:
                failed = [asker.ask(wire(f"/{one}")) for one in range(50)]
                errors = await asyncio.gather(*failed, return_exceptions=True)
                assert all(isinstance(error, Disconnected) for error in errors)
                assert lookups == 2
                is_known = True
                assert (await asker.ask(wire("/found"))).body == b"/found"
                assert lookups == 3

    run(main())


def test_a_host_without_an_address_is_one_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        def none(*_: Any, **__: Any) -> list[Any]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", none)
        async with Asker("http://none.invalid:9/v1") as asker:
            with pytest.raises(Disconnected, match="Name or service not known") as caught:
                await asker.ask()
            assert not caught.value.was_sent
            assert caught.value.hint == "check the host in the base URL, and the network"

    run(main())


def test_a_lookup_that_an_ended_event_loop_began_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_up, is_over = socket.getaddrinfo, threading.Event()

    def hangs(host: Any, *given: Any, **options: Any) -> list[Any]:
        if host != "hangs.invalid":
            return look_up(host, *given, **options)
        is_over.wait(10)
        return look_up("127.0.0.1", *given, **options)

    async def call(client: redline.Client, for_s: float) -> redline.Outcome:
        async with asyncio.timeout(for_s):
            return await client.call({"model": "m", "messages": CHAT})

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    with SimProcess() as sim:
        client = redline.Client(f"http://hangs.invalid:{urlsplit(sim.base_url).port}/v1")
        with pytest.raises(TimeoutError):
            asyncio.run(call(client, 0.2))
        is_over.set()
        with asyncio.Runner() as runner:
            assert runner.run(call(client, 10)).is_success
            runner.run(client.aclose())


# TLS.


def presenting(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


def test_tls_with_a_trusted_certificate(
    run: Run, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    large = b"x" * 1_000_000

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.target == "/large":
            writer.write(answer(seen.body))
        elif seen.target == "/close":
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + large)
            writer.close()
        elif seen.target == "/half":
            writer.write(answer(large)[:-1])
            writer.close()
        elif seen.target == "/reset":
            writer.write(answer(large)[:-1])
            reset(writer)
        else:
            await echo(seen, writer)

    async def main() -> None:
        server = RawServer(handle, tls=presenting(authority, "right"))
        async with server, Asker(server.base_url) as asker:
            for number in range(5):
                assert (await asker.ask(wire(f"/{number}"))).body == b"/%d" % number
            assert (await asker.ask(wire("/large", large))).body == large
            assert server.connections == 1
            assert (await asker.ask(wire("/close"))).body == large
            for broken in ("/half", "/reset"):
                with pytest.raises(CallError):
                    await asker.ask(wire(broken))
                assert (await asker.ask(wire("/after"))).body == b"/after"

    run(main())


@pytest.mark.parametrize(("name", "is_trusted"), [("right", False), ("wrong", True)])
def test_a_certificate_that_proves_nothing_is_refused(
    run: Run, authority: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_trusted: bool
) -> None:
    roots = authority / "ca.pem" if is_trusted else authority / "wrong.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))

    async def main() -> None:
        server = RawServer(echo, tls=presenting(authority, name))
        async with server, Asker(server.base_url) as asker:
            with pytest.raises(Disconnected) as caught:
                await asker.ask()
            assert caught.value.hint.startswith("the server's certificate is not trusted")
            assert not caught.value.was_sent
            assert "127.0.0.1" in caught.value.what
            assert server.seen == []

    run(main())


def test_http_where_https_is_meant_is_one_error(run: Run) -> None:
    async def main() -> None:
        async with RawServer(echo) as server:
            timeouts = Timeouts(connect_s=0.5)
            url = server.base_url.replace("http:", "https:")
            async with Asker(url, timeouts=timeouts) as asker:
                with pytest.raises((Disconnected, TimedOut)):
                    await asker.ask()

    run(main())


def test_what_answers_tls_with_http_is_named(run: Run) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with Asker(f"https://127.0.0.1:{port}/v1") as asker:
                with pytest.raises(Disconnected) as caught:
                    await asker.ask()
            assert "write http:// in the base URL" in caught.value.hint

    run(main())
