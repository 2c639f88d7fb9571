"""Serves files and batches of all tenants on the paths of the OpenAI API.

The state folder contains `files/`, with all files and a record of each, and `batches/`, with a
record of each batch and a folder for each unfinished batch. Only one process at a time may use it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import msgspec

from redline.apis import BATCHES, FILES, BatchObject, page_object
from redline.calls import Backend
from redline.clock import SYSTEM, Clock
from redline.errors import ConfigError, JournalError
from redline.httpserver import JSON, Exchange
from redline.process import LockedFile, counted, end_tasks, sync_name, telling
from redline.serve.batches.asked import read_batch
from redline.serve.batches.disk import Disk
from redline.serve.batches.files import Files
from redline.serve.batches.life import Life, World
from redline.serve.batches.pages import page_of, query_of
from redline.serve.batches.records import UPLOADED, BatchRecord
from redline.serve.batches.settings import BatchSettings
from redline.serve.batches.shelf import Shelf
from redline.serve.batches.turns import Shared, Turns
from redline.serve.http import Answer, Refusal, Route, read_of

_MOST_LISTED, _USUALLY_LISTED = 100, 20
_LOOK_S = 1.0
_SWEEP_LOOKS = 30
# The most bytes in an upload's form besides the file.
_FORM_BYTES = 2**20
# The most bytes in the body of POST /v1/batches, even if all its metadata is escaped.
_ASKED_BYTES = 256 * 2**10


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as the dashboard shows it.

    state: its status, or the reason why it makes no progress. done, failed, total: the numbers of
    lines with an answer, of lines with an error, and of all lines.
    """

    id: str
    tenant: str
    state: str
    done: int = 0
    failed: int = 0
    total: int = 0


class Batches:
    """Runs batches in an `async with` block, or from `start` to `aclose`; starts only once.

    state: the state folder. backend: answers the lines, and orders them among other calls by
    `Call.priority`; closed by its owner. It need not retry, since a batch's job retries failed
    lines. routes: for the server that publishes files and batches.
    """

    def __init__(
        self,
        state: Path,
        backend: Backend,
        settings: BatchSettings | None = None,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        settings = settings or BatchSettings()
        self._state = state
        self._settings = settings
        self._clock = clock
        self._disk = Disk("redline-files")
        self._files = Files(state / "files", settings, clock, self._disk)
        self._folder = state / "batches"
        self._shelf = Shelf(self._folder, BatchRecord, self._disk)
        self._world = World(
            settings=settings,
            backend=Shared(backend, settings.in_flight, clock),
            files=self._files,
            shelf=self._shelf,
            folder=self._folder,
            clock=clock,
            disk=self._disk,
            checks=asyncio.Semaphore(1),
            starts=Turns(lambda: settings.running, settings.tenant_running),
        )
        self._lives: dict[str, Life] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._lock: LockedFile | None = None
        self._is_closing = False
        self.routes = self._table()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Loads the state folder and continues unfinished batches.

        Raises ConfigError or JournalError if the state folder cannot be used.
        """
        await self._disk.do(self._load)
        for record in self._shelf.all():
            if not record.is_over:
                life = self._lives[record.id] = Life(record, self._world)
                self._go(life)
        self._keeping = asyncio.create_task(self._keep_house(), name="redline batches")

    async def drain(self) -> None:
        """Stops all batches; calls in flight get `grace_s` seconds to end.

        Unfinished batches continue at the next start. Files and batches are still served until
        `aclose`. May be called again.
        """
        self._is_closing = True
        await end_tasks(self._keeping)
        for life in self._lives.values():
            life.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        """Drains, and releases the state folder. May be called again."""
        await self.drain()
        await self._files.aclose()
        await self._disk.aclose()
        if self._lock is not None:
            self._lock.close()

    def unfinished(self) -> list[BatchView]:
        """Returns the unfinished batches, in the order of their creation."""
        return [_view(life) for life in self._lives.values()]

    # Requests of clients.

    def _table(self) -> list[Route]:
        """Returns the routes of files and batches."""
        files, most_bytes = self._files, self._settings.most_file_bytes + _FORM_BYTES
        file, batch = f"{FILES}/{{file_id}}", f"{BATCHES}/{{batch_id}}"
        table = (
            ("POST", FILES, files.upload, most_bytes),
            ("GET", FILES, files.listed, 0),
            ("GET", file, files.show, 0),
            ("DELETE", file, files.delete, 0),
            ("GET", f"{file}/content", files.send, 0),
            ("POST", BATCHES, self._create, _ASKED_BYTES),
            ("GET", BATCHES, self._list, 0),
            ("GET", batch, self._show, 0),
            ("POST", f"{batch}/cancel", self._cancel, 0),
        )
        return [Route(method, at, _answering(handle), most) for method, at, handle, most in table]

    async def _create(self, exchange: Exchange, tenant: str) -> BatchObject:
        raw = await read_of(exchange.body())
        return await self._disk.whole(
            self._made(read_batch(raw, tenant, self._settings, self._clock))
        )

    async def _list(self, exchange: Exchange, tenant: str) -> object:
        records = self._shelf.of(tenant)
        page = page_of(records, query_of(exchange), most=_MOST_LISTED, usual=_USUALLY_LISTED)
        return page_object(
            [self._shown(records[batch_id]) for batch_id in page.ids],
            page.ids,
            has_more=page.has_more,
        )

    async def _show(self, _: Exchange, tenant: str, batch_id: str) -> BatchObject:
        return self._shown(self._get(tenant, batch_id))

    async def _cancel(self, _: Exchange, tenant: str, batch_id: str) -> BatchObject:
        record = self._get(tenant, batch_id)
        life = self._lives.get(record.id)
        if life is None or record.is_over or record.status == "finalizing":
            raise Refusal(f"Cannot cancel a batch with status '{record.status}'.", status=409)
        if record.status != "cancelling":
            await self._disk.whole(life.cancel())
        return self._shown(record)

    def _get(self, tenant: str, batch_id: str) -> BatchRecord:
        """Returns the batch. Raises Refusal if this tenant has no such batch."""
        record = self._shelf.of(tenant).get(batch_id)
        if record is None:
            raise Refusal(
                f"No such batch: {batch_id[:80]}", status=404, code="batch_not_found", param="id"
            )
        return record

    def _shown(self, record: BatchRecord) -> BatchObject:
        life = self._lives.get(record.id)
        if life is not None:
            life.look()
        return record.shown

    # The lives of batches.

    async def _made(self, record: BatchRecord) -> BatchObject:
        """Creates a batch, and returns it once it is durable.

        Raises Refusal if its file cannot be used, or if the tenant has too many unfinished batches.
        """
        tenant = record.tenant
        file = self._files.get(tenant, record.shown.input_file_id)
        if file.purpose != UPLOADED:
            what = f"The file has the purpose '{file.purpose}', not '{UPLOADED}'."
            raise Refusal(what, param="input_file_id")
        waiting = sum(life.record.tenant == tenant for life in self._lives.values())
        if waiting >= self._settings.tenant_batches:
            what = f"{counted(waiting, 'batch is', 'batches are')} unfinished, the most allowed."
            raise Refusal(what, status=429, code="too_many_batches", headers={"retry-after": "60"})
        # The batch counts from here on, so that the bound also holds for concurrent requests.
        life = self._lives[record.id] = Life(record, self._world)
        try:
            await self._disk.do(_link, self._files.path_of(file.id), life.folder.input)
            await self._shelf.save(record)
        except BaseException:
            del self._lives[record.id]
            # Otherwise, the link would keep the input on a full disk even after its deletion.
            self._disk.later(shutil.rmtree, life.folder.path, ignore_errors=True)
            raise
        if not self._is_closing:
            self._go(life)
        return record.shown

    def _go(self, life: Life) -> None:
        task = asyncio.create_task(life.live(), name=f"redline {life.record.id}")
        self._tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if life.record.is_over:
                self._lives.pop(life.record.id, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"{life.record.id} cannot continue", "exception": error}
                )

        task.add_done_callback(over)

    async def _keep_house(self) -> None:
        """Removes expired files and batches, and sends lines for which there is now room."""
        while True:
            try:
                await self._files.sweep()
                await self._forget()
            except (JournalError, OSError) as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "expired files cannot be removed", "exception": error}
                )
            for _ in range(_SWEEP_LOOKS):
                await asyncio.sleep(_LOOK_S)
                self._world.backend.look()

    async def _forget(self) -> None:
        """Drops the records of ended batches whose window ended more than `kept_s` seconds ago."""
        before_s = self._clock.wall_s() - self._settings.kept_s
        for record in [record for record in self._shelf.all() if record.is_over]:
            if record.shown.expires_at < before_s:
                await self._shelf.drop(record)

    def _load(self) -> None:
        """Locks the state folder, reads its records, and removes data without a record. Blocks."""
        try:
            # The folder contains prompts and answers, so only its owner may read it.
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            lock = LockedFile(os.open(self._state / "lock", flags, 0o600))
        except OSError as error:
            raise ConfigError(
                f"the state cannot be saved in {self._state}: {error.strerror}",
                hint="choose a writable folder: --state",
            ) from error
        if not lock.try_lock():
            lock.close()
            raise ConfigError(
                f"{self._state} is in use by another redline serve process",
                hint="stop that process, or choose another folder for the state: --state",
            )
        self._lock = lock
        try:
            self._files.load()
            folders = self._shelf.load()
        except BaseException:
            lock.close()
            raise
        unfinished = {record.id for record in self._shelf.all() if not record.is_over}
        for name in folders:
            if name not in unfinished:
                shutil.rmtree(self._folder / name, ignore_errors=True)


def _view(life: Life) -> BatchView:
    life.look()
    record, counts = life.record, life.record.shown.request_counts
    return BatchView(
        id=record.id,
        tenant=record.tenant,
        state=life.trouble or record.status,
        done=counts["completed"],
        failed=counts["failed"],
        total=counts["total"],
    )


def _answering(handle: Callable[..., Awaitable[object]]) -> Answer:
    """Makes the answer of a route from `handle`, whose result is sent as JSON unless it is None.

    The answer raises Refusal with 507 if the disk fails.
    """

    async def answer(exchange: Exchange, tenant: str, *ids: str) -> None:
        try:
            shown = await handle(exchange, tenant, *ids)
        except ConnectionError:
            raise
        except (JournalError, OSError) as error:
            raise Refusal(
                "The server cannot read or write its files at the moment.",
                status=507,
                code="storage_failed",
            ) from error
        if shown is not None:
            exchange.respond(200, msgspec.json.encode(shown), JSON)

    return answer


def _link(source: Path, place: Path) -> None:
    """Links the input into the batch's folder, since its client may delete the file. Blocks."""
    with telling(place):
        place.parent.mkdir()
        try:
            os.link(source, place)
        except OSError:
            # The file system does not support links.
            shutil.copyfile(source, place)
            with place.open("rb") as file:
                os.fsync(file.fileno())
        sync_name(place)
