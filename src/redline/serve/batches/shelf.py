"""Keeps records on disk, each a JSON file in one folder, with an index by tenant in memory.

After their prefix, ids begin with their creation time, so sorting by id sorts by creation, unless
the clock was set back before a restart; this also holds for ids whose record no longer exists. Only
this module creates ids: an id from a client is only looked up.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from redline.errors import JournalError
from redline.process import sync_name, telling, write_file
from redline.serve.batches.disk import Disk
from redline.serve.batches.records import BatchRecord, StoredFile

_SUFFIX = ".json"


R = TypeVar("R", bound=StoredFile | BatchRecord)


class _Ids:
    """Makes ids that sort in the order of their creation, even if the clock goes back meanwhile."""

    def __init__(self) -> None:
        self._last_ns = 0

    def new(self, prefix: str) -> str:
        """Makes an id that sorts after this process's earlier ones and cannot be guessed."""
        self._last_ns = max(self._last_ns + 1, time.time_ns())
        return f"{prefix}{self._last_ns:016x}{secrets.token_hex(8)}"


new_id = _Ids().new


class Shelf(Generic[R]):
    """The records of one kind. disk: the thread that writes them."""

    def __init__(self, folder: Path, kind: type[R], disk: Disk) -> None:
        self._folder = folder
        self._decoder = msgspec.json.Decoder(kind)
        self._disk = disk
        self._records: dict[str, dict[str, R]] = defaultdict(dict)

    def load(self) -> list[str]:
        """Reads the existing records; returns the names of other files and folders. Blocks.

        Raises JournalError for a record that cannot be read.
        """
        with telling(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            names = sorted(os.listdir(self._folder))
        others = []
        for name in names:
            if not name.endswith(_SUFFIX) or name.startswith("."):
                others.append(name)
                continue
            path = self._folder / name
            try:
                record = self._decoder.decode(path.read_bytes())
            except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
                raise JournalError(
                    f"{path} cannot be read: {error}",
                    hint="restore it; if it is removed, redline deletes the data that it describes",
                ) from error
            self._records[record.tenant][record.id] = record
        return others

    def of(self, tenant: str) -> Mapping[str, R]:
        """Returns the records of a tenant, by id."""
        return self._records.get(tenant, {})

    def all(self) -> list[R]:
        return [record for records in self._records.values() for record in records.values()]

    async def save(self, record: R) -> None:
        """Saves the record durably. Raises JournalError if the disk fails."""
        await self._disk.do(write_file, self._path(record.id), msgspec.json.encode(record))
        self._records[record.tenant][record.id] = record

    async def drop(self, record: R) -> None:
        """Removes the record durably. Raises JournalError if the disk fails."""
        records = self._records.get(record.tenant, {})
        records.pop(record.id, None)
        if not records:
            self._records.pop(record.tenant, None)
        await self._disk.do(_remove, self._path(record.id))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"


def _remove(path: Path) -> None:
    with telling(path):
        path.unlink(missing_ok=True)
        sync_name(path)
