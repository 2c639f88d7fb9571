"""`redline fleet status` of a fleet behind TLS."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from pathlib import Path

import pytest

from support.raw_server import RawServer, Seen, answer

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]


async def test_an_https_url_is_fetched_over_tls(authority: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "right.pem", authority / "right.key")
    page = {"model": "m", "url": "u", "replicas": []}

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(page))

    async with RawServer(handle, tls=context) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "redline", "fleet", "status", server.base_url, "--json"),
            env={**os.environ, "SSL_CERT_FILE": str(authority / "ca.pem")},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert json.loads(out) == page
    assert [seen.target for seen in server.seen] == ["/fleet"]
