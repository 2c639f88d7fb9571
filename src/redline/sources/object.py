"""Reads the bytes of an object in a store, in ranges, so that it is never in memory as a whole.

Each range is a separate request, so a run that reads for days does not keep a connection open. If a
range breaks off, it is requested again, provided that the object is unchanged.
"""

from __future__ import annotations

import io
import threading
from pathlib import PurePath
from typing import Any

from redline.errors import ConfigError
from redline.sources.blocks import Blocks, CorruptInput, share_of
from redline.store import (
    Asking,
    Found,
    ObjectStore,
    ObjectUrl,
    StoreError,
    changed_error,
    store_of,
)

# The first range is small, because the beginning shows whether the input is suitable; later ranges
# are large enough that a request's round trip costs little.
_FIRST_BYTES = 256 * 1024
_MOST_BYTES = 8 * 1024 * 1024
# The pause before each retry of a range; 15.5 s in total, besides the store library's own retries.
WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)


class ObjectReader:
    """Reads ranges of one object. Call `open` first; any thread may call `close`.

    store: the object's store, if the caller has one already. size_bytes: the object's size, set by
    `open`; None if the server does not report it.
    """

    def __init__(self, url: ObjectUrl, store: ObjectStore | None = None) -> None:
        self.url = url
        self.size_bytes: int | None = None
        self._store = store
        self._found: Found | None = None
        self._file: Any = None
        self._closed = threading.Event()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def open(self) -> None:
        """Finds and opens the object. Raises ConfigError if it is missing or the store refuses."""
        url = self.url
        try:
            store = self._store = self._store or store_of(url, "reading")
            self._found = found = store.find(url)
            if found is None:
                hint = store.similar(url) or StoreError(url, "missing", "").hint
                raise ConfigError(f"{url.name} does not exist", hint=hint)
            if found.is_folder:
                raise ConfigError(
                    f"{url.name} is a folder", hint="pass the URL of one object in it"
                )
            self.size_bytes = found.size_bytes
            self._file = store.open(url)
        except StoreError as error:
            raise ConfigError(f"cannot read {url.name}: {error.reason}", hint=error.hint) from error

    def read(self, offset: int, most_bytes: int) -> bytes:
        """Returns 1 to `most_bytes` bytes at `offset`; b"" at the end, or once closed. Blocks.

        Raises CorruptInput if the store refuses to serve them, or still fails after all retries.
        """
        waits_s = iter(WAITS_S)
        while not self.is_closed:
            try:
                return self._range(offset, most_bytes)
            except StoreError as error:
                self._file = None
                wait_s = next(waits_s, None) if error.may_pass else None
                if wait_s is None:
                    raise self._broken(error) from error
                self._closed.wait(wait_s)
        return b""

    def check_unchanged(self) -> None:
        """Raises CorruptInput if the object has changed since it was opened, or cannot be read."""
        try:
            self._reopen()
        except StoreError as error:
            raise self._broken(error) from error

    def close(self) -> None:
        """Makes `read` return early if it waits for a retry; a request in progress is finished."""
        self._closed.set()

    def _range(self, offset: int, most_bytes: int) -> bytes:
        url = self.url
        if self._file is None:
            self._reopen()
        with Asking(url):
            if self._file.tell() != offset:
                self._seek(offset)
            data: bytes = self._file.read(most_bytes)
        if not data and self.size_bytes is not None and offset < self.size_bytes:
            raise StoreError(url, "other", f"it breaks off at byte {offset:,}")
        return data

    def _reopen(self) -> None:
        assert self._store is not None
        found = self._store.find(self.url)
        if found is None:
            raise StoreError(self.url, "missing", "it does not exist any more")
        if found != self._found:
            raise changed_error(self.url)
        self._file = self._store.open(self.url)

    def _seek(self, offset: int) -> None:
        if self.size_bytes is not None:
            self._file.seek(offset)
            return
        # A web server that does not report the size can only serve the object from its beginning.
        left = offset - self._file.tell()
        while left > 0 and (skipped := self._file.read(min(left, _FIRST_BYTES))):
            left -= len(skipped)

    def _broken(self, error: StoreError) -> CorruptInput:
        name, hint = self.url.name, error.hint
        what = f"cannot continue reading {name}: {error.reason}"
        if error.store_kind == "missing":
            what = f"{name} vanished while it was read"
            hint = "restore it; with -o, run the same command again to continue"
        elif error.store_kind == "changed":
            what = f"{name} was changed while it was read"
        return CorruptInput(what, where="after 0 rows", hint=hint)


class ObjectBlocks(Blocks):
    """The bytes of an object, in order."""

    def __init__(self, url: ObjectUrl) -> None:
        self.path: PurePath | None = url.file
        self.name = url.name
        self._reader = ObjectReader(url)
        self._ahead = memoryview(b"")
        self._range_bytes = _FIRST_BYTES
        self._fetched = 0
        self._given = 0

    def open(self) -> None:
        """Finds and opens the object. Raises ConfigError if it is missing or the store refuses."""
        self._reader.open()

    def read(self, most_bytes: int) -> bytes:
        """Returns the next bytes; b"" at the end, or once closed. Blocks; raises CorruptInput."""
        if not self._ahead and not self._reader.is_closed:
            self._ahead = memoryview(self._reader.read(self._fetched, self._range_bytes))
            self._fetched += len(self._ahead)
            self._range_bytes = min(2 * self._range_bytes, _MOST_BYTES)
        block, self._ahead = bytes(self._ahead[:most_bytes]), self._ahead[most_bytes:]
        self._given += len(block)
        return b"" if self._reader.is_closed else block

    def read_fraction(self) -> float | None:
        """Returns the bytes read divided by the object's size, 0 to 1; None if it is unknown."""
        return share_of(self._given, self._reader.size_bytes)

    def close(self) -> None:
        """Ends `read` early."""
        self._reader.close()


class ObjectFile(io.RawIOBase):
    """An object as a seekable file, for the Parquet reader. Raises ConfigError as `open` does."""

    def __init__(self, url: ObjectUrl) -> None:
        super().__init__()
        self._reader = ObjectReader(url)
        self._reader.open()
        if self._reader.size_bytes is None:
            raise ConfigError(
                f"cannot read {url.name}: the server does not report its size",
                hint="download it first",
            )
        self._size = self._reader.size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position; returns the new position, in bytes from the beginning."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads into the buffer until it is full or the object ends; returns the bytes read."""
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), max(0, self._size - self._at))
        done = 0
        while done < wanted and (data := self._reader.read(self._at, wanted - done)):
            view[done : done + len(data)] = data
            done += len(data)
            self._at += len(data)
        return done

    def close(self) -> None:
        """Ends `read` early."""
        self._reader.close()
        super().close()
