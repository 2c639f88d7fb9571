"""Uploads that are wrong, too large, cut short or too many, and files that expire."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from redline.calls import Reply
from redline.errors import ConfigError, JournalError
from redline.serve.http import Relay
from redline.testing import ManualClock, ScriptedBackend
from support.batch_files import QUICK, begun, client_of, lines, named, over, publishing
from support.fronting import port_of
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120), pytest.mark.usefixtures("no_proxy")]

KEY = {"authorization": "Bearer a"}
SMALL = msgspec.structs.replace(QUICK, most_file_bytes=300_000)
FORM = "multipart/form-data; boundary=x"
PURPOSE = b'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch'
FILE = b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}'


def form(*parts: bytes, end: bytes = b"--x--\r\n") -> bytes:
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + end


def field(name: str, value: str) -> bytes:
    return f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()


def kept(anchor: str, seconds: str) -> bytes:
    return form(
        PURPOSE,
        FILE,
        field("expires_after[anchor]", anchor),
        field("expires_after[seconds]", seconds),
    )


# Body, content type, status and a word of the message.
BAD: dict[str, tuple[bytes, str, int, str]] = {
    "JSON": (b"{}", "application/json", 400, "multipart"),
    "no boundary": (form(PURPOSE, FILE), "multipart/form-data", 400, "boundary"),
    "wrong boundary": (form(PURPOSE, FILE), "multipart/form-data; boundary=y", 400, "form"),
    "no end": (form(PURPOSE, FILE, end=b""), FORM, 400, "cut short"),
    "nothing": (b"", FORM, 400, "cut short"),
    "no parts": (b"--x--\r\n", FORM, 400, ""),
    "no purpose": (form(FILE), FORM, 400, "purpose"),
    "another purpose": (form(FILE, field("purpose", "fine-tune")), FORM, 400, "purpose"),
    "no file": (form(PURPOSE), FORM, 400, "file"),
    "an empty file": (form(PURPOSE, FILE[:-2]), FORM, 400, "empty"),
    "a file as a field": (form(PURPOSE, field("file", "{}")), FORM, 400, "file"),
    "two files": (form(PURPOSE, FILE, FILE), FORM, 400, "one file"),
    "a file of another name": (form(PURPOSE, FILE.replace(b"file", b"f", 1)), FORM, 400, "one"),
    "a part without a name": (form(b"Content-Type: x\r\n\r\n1"), FORM, 400, "no name"),
    "large fields": (form(field("purpose", "b" * 70_000), FILE), FORM, 413, "fields"),
    "many parts": (form(*[field(str(n), "") for n in range(200)]), FORM, 413, "parts"),
    "a large file": (form(PURPOSE, FILE + b"x" * 400_000), FORM, 413, "larger"),
    "another anchor": (kept("now", "3600"), FORM, 400, "anchor"),
    "a short time": (kept("created_at", "60"), FORM, 400, "seconds"),
    "no time": (kept("created_at", "soon"), FORM, 400, "seconds"),
}  # fmt: skip


@asynccontextmanager
async def world(state: Path, settings: Any = SMALL, **parts: Any) -> AsyncIterator[Relay]:
    backend = ScriptedBackend([Reply(output="yes", body=b'{"usage": null}')])
    async with publishing(state, backend, settings, **parts) as (relay, _):
        yield relay


def stored(state: Path) -> list[str]:
    return [path.name for path in (state / "files").iterdir()]


async def post(relay: Relay, data: Any, kind: str = FORM) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{relay.base_url}/files", data=data, headers={**KEY, "content-type": kind}
        ) as reply,
    ):
        found = await reply.json(content_type=None)
        return reply.status, found["error"]["message"] if reply.status != 200 else ""


@pytest.mark.parametrize("case", BAD)
async def test_a_wrong_upload_is_refused_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    data, kind, status, words = BAD[case]
    async with world(tmp_path) as relay:
        found, message = await post(relay, data, kind)
        assert (found, words in message) == (status, True), message
        assert (await post(relay, form(PURPOSE, FILE)))[0] == 200
        await until(lambda: len(stored(tmp_path)) == 2)


async def test_a_large_upload_is_refused_wherever_its_size_shows(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"--x\r\n" + FILE
        for _ in range(1000):
            yield b"x" * 10_000

    async with world(tmp_path) as relay:
        status, message = await post(relay, pieces())
        assert (status, "larger" in message) == (413, True)
        # Stated in the head, so that nothing of it need be read.
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(relay))
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 900000000\r\n\r\n"
        )
        assert b"413" in await reader.readline()
        writer.close()
        await until(lambda: stored(tmp_path) == [])
        # Only files may be that large.
        async with aiohttp.ClientSession() as session:
            url, large = f"{relay.base_url}/batches", io.BytesIO(b" " * (33 * 2**20))
            async with session.post(url, data=large, headers=KEY) as reply:
                assert reply.status == 413


async def test_an_upload_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as relay:
        for cut in (b"", b"--x\r\n" + FILE, b"--x\r\n" + FILE + b"x" * 280_000):
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(relay))
            head = (
                b"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n"
                b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 290000\r\n\r\n"
            )
            writer.write(head + cut)
            await writer.drain()
            await until(lambda: relay.in_flight == 1)
            writer.close()
            await until(lambda: relay.in_flight == 0)
        await until(lambda: stored(tmp_path) == [])
        assert (await post(relay, form(PURPOSE, FILE)))[0] == 200


async def test_names_of_clients_never_become_paths(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with world(state) as relay, client_of(relay) as client:
        for name in ("../../escaped", "/etc/escaped", "lock", "a" * 1000, "\x00\n", ".json"):
            file = await client.files.create(file=(name, b"{}\n"), purpose="batch")
            assert len(file.filename) <= 255
        for path in ("files/../batches", "files/%2e%2e%2flock", "files/..%2f..%2flock/content"):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{relay.base_url}/{path}", headers=KEY) as reply,
            ):
                assert reply.status in (200, 404)
                assert b"redline" not in await reply.read() or reply.status == 404
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert sorted(path.name for path in state.iterdir()) == ["batches", "files", "lock"]
    assert len(stored(state)) == 12


async def test_a_field_named_file_does_not_change_the_name_of_the_file(tmp_path: Path) -> None:
    async with world(tmp_path) as relay, client_of(relay) as client:
        assert (await post(relay, form(PURPOSE, FILE, field("file", "x"))))[0] == 200
        assert (await post(relay, form(field("file", "x"), PURPOSE, FILE)))[0] == 200
        assert [file.filename async for file in client.files.list()] == ["a.jsonl", "a.jsonl"]


async def test_each_tenant_has_a_quota_of_its_own(tmp_path: Path) -> None:
    few = msgspec.structs.replace(SMALL, tenant_files=3)
    async with world(tmp_path / "few", few) as relay, client_of(relay) as client:
        files = [await client.files.create(file=named(b"{}"), purpose="batch") for _ in range(3)]
        with pytest.raises(openai.APIStatusError, match="quota is 3 files"):
            await client.files.create(file=named(b"{}"), purpose="batch")
        async with client_of(relay, "b") as other:
            await other.files.create(file=named(b"{}"), purpose="batch")
        await client.files.delete(files[0].id)
        await client.files.create(file=named(b"{}"), purpose="batch")
    small = msgspec.structs.replace(SMALL, tenant_bytes=100_000)
    async with world(tmp_path / "small", small) as relay, client_of(relay) as client:
        await client.files.create(file=named(b"x" * 60_000), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="quota is 100,000 bytes"):
            await client.files.create(file=named(b"x" * 60_000), purpose="batch")

        async def pieces() -> AsyncIterator[bytes]:
            yield form(PURPOSE, FILE + b"x" * 60_000)

        # Its size is not stated.
        assert (await post(relay, pieces()))[0] == 413
        await client.files.create(file=named(b"x" * 30_000), purpose="batch")


async def test_compressed_uploads_side_by_side_keep_to_the_quota(tmp_path: Path) -> None:
    small = msgspec.structs.replace(SMALL, tenant_bytes=100_000)
    packed = gzip.compress(form(PURPOSE, FILE + b"x" * 60_000))
    assert len(packed) < 1_000
    head = (
        b"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n"
        b"Content-Type: multipart/form-data; boundary=x\r\nConnection: close\r\n"
        b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    )
    async with world(tmp_path, small) as relay, client_of(relay) as client:
        lines = [await asyncio.open_connection("127.0.0.1", port_of(relay)) for _ in range(3)]
        statuses = []
        (slow, slow_writer), *others = lines
        slow_writer.write(head + packed[:100])
        await until(lambda: relay.in_flight == 1)
        others[0][1].write(head + packed)
        statuses.append((await others[0][0].readline()).split()[1])
        slow_writer.write(packed[100:])
        statuses.append((await slow.readline()).split()[1])
        assert statuses == [b"413", b"200"]
        (file,) = [one async for one in client.files.list()]
        assert file.bytes == 60_002
        # With the quota free again, one alone is taken.
        await client.files.delete(file.id)
        others[1][1].write(head + packed)
        assert (await others[1][0].readline()).split()[1] == b"200"
        for _, writer in lines:
            writer.close()


async def test_batches_that_are_not_over_are_bounded(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SMALL, tenant_batches=1)
    backend = ScriptedBackend([Reply(output="yes")], latency_s=60.0)
    settings = msgspec.structs.replace(settings, grace_s=0.1)
    async with (
        publishing(tmp_path, backend, settings) as (relay, _),
        client_of(relay) as client,
        client_of(relay, "b") as other,
    ):
        await begun(client, lines(1))
        with pytest.raises(openai.RateLimitError, match="1 batch is unfinished"):
            await begun(client, lines(1))
        await begun(other, lines(1))


async def test_files_expire_and_are_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    kept_s = 3600 * 24
    settings = msgspec.structs.replace(SMALL, kept_s=kept_s)
    async with world(tmp_path, settings, clock=clock) as relay, client_of(relay) as client:
        brief = await client.files.create(
            file=named(b"{}"),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        usual = await client.files.create(file=named(b"{}"), purpose="batch")
        assert usual.expires_at == usual.created_at + kept_s
        made = await begun(
            client,
            lines(2),
            output_expires_after={"anchor": "created_at", "seconds": 7200},
            completion_window="2h",
        )
        done = await over(client, made.id)
        output = await client.files.retrieve(done.output_file_id)
        assert output.expires_at == output.created_at + 7200
        clock.advance(3600)
        for asking in (
            client.files.retrieve(brief.id),
            client.files.content(brief.id),
            client.files.delete(brief.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await asking
        assert brief.id not in [file.id async for file in client.files.list()]
        assert (await client.files.content(usual.id)).content == b"{}"
    assert brief.id in stored(tmp_path)
    clock.advance(3600)
    async with world(tmp_path, settings, clock=clock) as relay, client_of(relay) as client:
        await until(lambda: len(stored(tmp_path)) == 4)
        assert {usual.id, made.input_file_id} < set(stored(tmp_path))
        assert (await client.batches.retrieve(made.id)).status == "completed"
        clock.advance(3 * kept_s)
    async with world(tmp_path, settings, clock=clock) as relay, client_of(relay) as client:
        await until(lambda: stored(tmp_path) == [])
        await until(lambda: list((tmp_path / "batches").iterdir()) == [])
        with pytest.raises(openai.NotFoundError):
            await client.batches.retrieve(made.id)


async def test_paths_have_their_methods(tmp_path: Path) -> None:
    asked: dict[tuple[str, str], tuple[int, str | None]] = {
        ("PUT", "/files"): (405, "POST, GET"),
        ("POST", "/files/x"): (405, "GET, DELETE"),
        ("DELETE", "/files/x/content"): (405, "GET"),
        ("GET", "/batches/x/cancel"): (405, "POST"),
        ("GET", "/files/"): (404, None),
        ("GET", "/files/x/y"): (404, None),
        ("GET", "/files/x/content/y"): (404, None),
        ("POST", "/batches//cancel"): (404, None),
        ("GET", "/filez"): (404, None),
    }
    async with world(tmp_path) as relay, aiohttp.ClientSession() as session:
        for (method, path), expected in asked.items():
            async with session.request(method, relay.base_url + path, headers=KEY) as reply:
                assert (reply.status, reply.headers.get("allow")) == expected, path
                assert "error" in await reply.json()
        async with session.get(f"{relay.base_url}/files") as reply:
            assert reply.status == 401


async def test_one_process_has_the_state(tmp_path: Path) -> None:
    async with world(tmp_path):
        with pytest.raises(ConfigError, match="another redline serve"):
            async with world(tmp_path):
                raise AssertionError
    async with world(tmp_path):
        pass


@pytest.mark.parametrize("data", [b"{", b'{"id": "\xff"}', b"{}"])
async def test_a_damaged_record_is_named(tmp_path: Path, data: bytes) -> None:
    record = tmp_path / "files" / "file-1.json"
    record.parent.mkdir()
    record.write_bytes(data)
    with pytest.raises(JournalError, match=r"file-1\.json cannot be read") as caught:
        async with world(tmp_path):
            raise AssertionError
    assert "restore it" in caught.value.hint
    record.unlink()
    async with world(tmp_path):
        pass


async def test_a_large_file_is_never_whole_in_memory(tmp_path: Path) -> None:
    piece = json.dumps({"x": "y" * 65_000}).encode() + b"\n"

    async def pieces() -> AsyncIterator[bytes]:
        yield b"--x\r\n" + PURPOSE + b"\r\n--x\r\n" + FILE
        for _ in range(1000):
            yield piece
        yield b"\r\n--x--\r\n"

    async with world(tmp_path, QUICK) as relay, client_of(relay) as client:
        tracemalloc.start()
        try:
            assert (await post(relay, pieces()))[0] == 200
            (file,) = [one async for one in client.files.list()]
            async with client.files.with_streaming_response.content(file.id) as answer:
                size = 0
                async for part in answer.iter_bytes():
                    size += len(part)
            _, most_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert size == file.bytes > 60e6
        assert most_bytes < 16e6
