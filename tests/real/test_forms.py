"""Uploads to redline's HTTP server, with aiohttp as a foreign client that writes forms."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
import uvloop

from redline.httpserver import Exchange, HttpBounds, read_form
from support.http_peer import Served, peer

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

Run = Callable[[Coroutine[Any, Any, None]], None]
HEAD = b'Content-Disposition: form-data; name="a"\r\n\r\n'


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run(main: Coroutine[Any, Any, None]) -> None:
        is_uvloop = request.param == "uvloop"
        factory = uvloop.new_event_loop if is_uvloop else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main)

    return run


class Forms:
    """A handler that keeps the forms it reads."""

    def __init__(self) -> None:
        self.read: list[dict[str, tuple[str, bytes]]] = []

    async def __call__(self, exchange: Exchange) -> None:
        parts = await read_form(exchange)
        self.read.append({name: (part.filename, bytes(part.data)) for name, part in parts.items()})
        exchange.respond(200, b"{}")


@pytest.mark.parametrize("is_chunked", [False, True])
def test_the_form_of_a_foreign_client_is_read(run: Run, is_chunked: bool) -> None:
    data = bytes(range(256)) * 20_000 + b"\r\n--"

    async def main() -> None:
        forms = Forms()
        async with Served(forms) as server, aiohttp.ClientSession() as session:
            form = aiohttp.FormData()
            form.add_field(
                "file", io.BytesIO(data), filename='na"me \u00fc.jsonl', content_type="text/plain"
            )
            form.add_field("purpose", "batch")
            form.add_field("empty", "")
            url = f"http://127.0.0.1:{server.port}/"
            async with session.post(url, data=form, chunked=is_chunked or None) as reply:
                assert reply.status == 200
        (read,) = forms.read
        assert read["file"][1] == data
        assert read["file"][0].endswith(".jsonl")
        assert read["purpose"] == ("", b"batch")
        assert read["empty"] == ("", b"")

    run(main())


def form(*parts: bytes, end: bytes = b"--x--\r\n") -> bytes:
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + end


# The body, its type, and the status that refuses it.
BAD = {
    "no form": (b"{}", "application/json", 415),
    "no boundary": (form(HEAD), "multipart/form-data", 415),
    "another boundary": (form(HEAD + b"1"), "multipart/form-data; boundary=y", 400),
    "no end": (form(HEAD + b"1", end=b""), "multipart/form-data; boundary=x", 400),
    "nothing": (b"", "multipart/form-data; boundary=x", 400),
    "no name": (
        form(b"Content-Disposition: form-data\r\n\r\n1"),
        *("multipart/form-data; boundary=x", 400),
    ),
    "no headers": (form(b"\r\n1"), "multipart/form-data; boundary=x", 400),
    "a bad header": (form(b"\0: 1\r\n\r\n1"), "multipart/form-data; boundary=x", 400),
    "many parts": (form(*[HEAD + b"1"] * 101), "multipart/form-data; boundary=x", 413),
    "many headers": (
        form(b"".join(b"A%d: b\r\n" % n for n in range(500)) + HEAD),
        *("multipart/form-data; boundary=x", 400),
    ),
    "a long header": (
        form(b"A: " + b"b" * 50_000 + b"\r\n" + HEAD),
        *("multipart/form-data; boundary=x", 400),
    ),
    "too long": (form(HEAD + b"1" * 200_000), "multipart/form-data; boundary=x", 413),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_form_is_refused(run: Run, name: str) -> None:
    body, kind, status = BAD[name]

    async def main() -> None:
        forms = Forms()
        bounds = HttpBounds(most_body_bytes=100_000)
        async with Served(forms, bounds=bounds) as server, peer(server) as client:
            head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n"
            asked = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
            sending = asyncio.create_task(client.send(asked, step=3_000))
            assert (await client.answer()).status == status
            await sending
        assert forms.read == []

    run(main())
