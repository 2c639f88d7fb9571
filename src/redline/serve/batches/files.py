"""Stores the files of all tenants in one folder: each under a generated name, next to its record.

A file is stored before its record, and removed after its record. Therefore every record has its
file, and a file without a record is removed at the next start.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from redline.apis import FileObject, deleted_object, page_object
from redline.clock import Clock
from redline.errors import JournalError
from redline.httpserver import ClientGoneError, Exchange, header_lines
from redline.process import counted, sync_name, telling
from redline.serve.batches.disk import Disk
from redline.serve.batches.pages import page_of, query_of
from redline.serve.batches.records import UPLOADED, WRITTEN, StoredFile
from redline.serve.batches.settings import BatchSettings
from redline.serve.batches.shelf import Shelf, new_id
from redline.serve.batches.upload import Upload
from redline.serve.http import Refusal

_MOST_LISTED = 10_000
_PIECE_BYTES = 256 * 1024
_BINARY = header_lines(
    {"content-type": "application/octet-stream", "x-content-type-options": "nosniff"}
)


class Files:
    """The files of all tenants.

    disk: the thread that writes them; another thread reads them for downloads.
    """

    def __init__(self, folder: Path, settings: BatchSettings, clock: Clock, disk: Disk) -> None:
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._disk = disk
        self._reader = Disk("redline-downloads")
        self._shelf = Shelf(folder, StoredFile, disk)
        # The sizes in bytes of uploads in progress, by tenant.
        self._coming: dict[str, list[int]] = defaultdict(list)

    def load(self) -> None:
        """Reads the records, and removes files without a record. Blocks.

        Raises JournalError for a record that cannot be read or a file that cannot be removed.
        """
        names = self._shelf.load()
        known = {file.id for file in self._shelf.all()}
        for name in names:
            if name not in known:
                with telling(self._folder):
                    (self._folder / name).unlink(missing_ok=True)

    async def aclose(self) -> None:
        await self._reader.aclose()

    def path_of(self, file_id: str) -> Path:
        """Returns the path of the file with this id; the file need not exist yet."""
        return self._folder / file_id

    def get(self, tenant: str, file_id: str) -> StoredFile:
        """Returns the record of a file. Raises Refusal if this tenant has no such file."""
        file = self._shelf.of(tenant).get(file_id)
        if file is None or file.expires_s <= self._clock.wall_s():
            raise Refusal(
                f"No such File object: {file_id[:80]}",
                status=404,
                code="file_not_found",
                param="id",
            )
        return file

    async def show(self, _: Exchange, tenant: str, file_id: str) -> FileObject:
        """Returns the file's description. Raises Refusal if this tenant has no such file."""
        return self.get(tenant, file_id).shown()

    async def upload(self, exchange: Exchange, tenant: str) -> FileObject:
        """Stores an upload, and returns the file's description once it is durable.

        Raises Refusal for an invalid upload, or one beyond the tenant's quota or number of
        concurrent uploads; JournalError or OSError if the disk fails.
        """
        settings, coming = self._settings, self._coming[tenant]
        if len(coming) >= settings.tenant_uploads:
            raise Refusal(
                f"{counted(len(coming), 'upload is', 'uploads are')} under way already.",
                status=429,
                headers={"retry-after": "1"},
            )
        if len(self._shelf.of(tenant)) + len(coming) >= settings.tenant_files:
            raise _full(counted(settings.tenant_files, "file"))
        stored = sum(file.size_bytes for file in self._shelf.of(tenant).values()) + sum(coming)
        # An upload of unknown length, such as a compressed one, may grow to the maximum size.
        headers = exchange.headers
        stated = 0 if "content-encoding" in headers else int(headers.get("content-length", 0))
        if stored + max(1, stated) > settings.tenant_bytes:
            raise _full(f"{settings.tenant_bytes:,} bytes")
        file_id = new_id("file-")
        most = min(settings.most_file_bytes, settings.tenant_bytes - stored)
        upload = Upload(self.path_of(f"{file_id}.part"), most, self._disk)
        size_bytes = min(stated or most, most)
        coming.append(size_bytes)
        try:
            name, kept_s = await upload.receive(exchange, settings.kept_s)
            # The folder is synced with the record.
            storing = self._store(
                upload.keep,
                file_id=file_id,
                tenant=tenant,
                name=name,
                purpose=UPLOADED,
                size_bytes=upload.size_bytes,
                kept_s=kept_s,
            )
            return (await self._disk.whole(storing)).shown()
        finally:
            coming.remove(size_bytes)
            self._disk.later(upload.discard)

    async def adopt(
        self, source: Path, file_id: str, tenant: str, name: str, size_bytes: int, kept_s: int
    ) -> None:
        """Stores a file that this server wrote, and that is already durable at `source`."""
        await self._store(
            partial(_move, source),
            file_id=file_id,
            tenant=tenant,
            name=name,
            purpose=WRITTEN,
            size_bytes=size_bytes,
            kept_s=kept_s,
        )

    async def delete(self, _: Exchange, tenant: str, file_id: str) -> object:
        """Deletes a file, and returns the response. Raises Refusal if there is no such file."""
        await self._disk.whole(self._remove(self.get(tenant, file_id)))
        return deleted_object(file_id)

    async def listed(self, exchange: Exchange, tenant: str) -> object:
        """Returns one page of the tenant's files, by default the newest first.

        Raises Refusal if the query is not valid.
        """
        query, now_s = query_of(exchange), self._clock.wall_s()
        purpose = query.get("purpose")
        files = self._shelf.of(tenant)
        ids = (
            file.id
            for file in files.values()
            if file.expires_s > now_s and purpose in (None, file.purpose)
        )
        page = page_of(ids, query, most=_MOST_LISTED, usual=_MOST_LISTED)
        return page_object(
            [files[file_id].shown() for file_id in page.ids], page.ids, has_more=page.has_more
        )

    async def send(self, exchange: Exchange, tenant: str, file_id: str) -> None:
        """Sends the content of a file, as fast as the client reads.

        Raises Refusal if this tenant has no such file.
        """
        reading = _Reading(self.path_of(self.get(tenant, file_id).id))
        try:
            data = await self._reader.do(reading.next)
            await exchange.begin(200, _BINARY)
            while data:
                await exchange.write(data)
                data = await self._reader.do(reading.next)
            await exchange.end()
        except ClientGoneError:
            exchange.break_off()
        finally:
            # Close the file in the reader's thread, since a read may be in progress.
            self._reader.later(reading.close)

    async def sweep(self) -> None:
        """Removes expired files. Raises JournalError or OSError if the disk fails."""
        now_s = self._clock.wall_s()
        for file in [file for file in self._shelf.all() if file.expires_s <= now_s]:
            await self._remove(file)

    async def _store(
        self,
        put: Callable[[Path], None],
        *,
        file_id: str,
        tenant: str,
        name: str,
        purpose: str,
        size_bytes: int,
        kept_s: int,
    ) -> StoredFile:
        """Stores a file and its record, and returns the record once both are durable.

        put: called with a path, to put the file there. kept_s: seconds until the file expires.
        """
        now_s = int(self._clock.wall_s())
        file = StoredFile(
            id=file_id,
            tenant=tenant,
            filename=name,
            purpose=purpose,
            size_bytes=size_bytes,
            created_s=now_s,
            expires_s=now_s + kept_s,
        )
        try:
            await self._disk.do(put, self.path_of(file_id))
            await self._shelf.save(file)
        except (JournalError, OSError):
            # No part of an upload may stay on a full disk. The server retries storing its own
            # files.
            if purpose == UPLOADED:
                with suppress(JournalError, OSError):
                    await self._remove(file)
            raise
        return file

    async def _remove(self, file: StoredFile) -> None:
        await self._shelf.drop(file)
        await self._disk.do(self.path_of(file.id).unlink, missing_ok=True)


class _Reading:
    """Reads a file in pieces; all its methods are called in one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def next(self) -> bytes:
        """Returns the next piece; b"" at the end of the file. Blocks."""
        if self._file is None:
            self._file = self._path.open("rb", buffering=0)
        return self._file.read(_PIECE_BYTES)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _move(source: Path, place: Path) -> None:
    """Moves a file durably. The source may be missing if an earlier attempt has moved it."""
    with telling(place):
        if source.exists() or not place.exists():
            os.replace(source, place)
        sync_name(place)


def _full(bound: str) -> Refusal:
    return Refusal(
        f"No more can be stored: the quota is {bound}. Delete files that are not needed.",
        status=413,
        code="quota_exceeded",
        param="file",
    )
