"""Receives an upload: a form whose file is written to disk as it arrives."""

from __future__ import annotations

import os
from functools import partial
from io import FileIO
from pathlib import Path

import msgspec

from redline.apis import ExpiresAfter
from redline.httpserver import BodyError, Exchange, FormPart, read_form
from redline.process import write_all
from redline.serve.batches.disk import Disk
from redline.serve.batches.records import UPLOADED
from redline.serve.http import Refusal

# The bytes that are collected before each write.
_PIECE_BYTES = 256 * 1024
_MOST_NAME = 255
_LEAST_KEPT_S = 3600
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


class Upload(msgspec.Struct, eq=False):
    """The file of one upload, written under a temporary path until it is complete.

    path: the temporary path. most_bytes: the largest size. size_bytes: received so far.
    """

    _path: Path
    _most_bytes: int
    _disk: Disk
    _file: FileIO | None = None
    _part: FormPart | None = None
    _waiting: bytearray = bytearray()
    size_bytes: int = 0

    async def receive(self, exchange: Exchange, usual_s: float) -> tuple[str, int]:
        """Receives the form. Returns the file's name, and for how many seconds to keep the file.

        usual_s: this number of seconds, if the form has none. Afterwards, the file is written but
        not yet durable. Raises Refusal if the form is not valid or the file is too large.
        """
        try:
            parts = await read_form(exchange, self._take)
        except BodyError as error:
            status = 400 if error.status == 415 else error.status
            raise Refusal(f"The upload could not be read: {error.reason}.", status=status) from None
        purpose = _text(parts, "purpose")
        if not purpose:
            raise Refusal("Missing required parameter: 'purpose'.", param="purpose")
        if purpose != UPLOADED:
            raise Refusal(
                f"The purpose of a file must be '{UPLOADED}' here, not '{purpose[:40]}'.",
                param="purpose",
            )
        if self._part is None:
            raise Refusal("Missing required parameter: 'file'.", param="file")
        kept_s = kept_for(_stated_expiry(parts), usual_s, "expires_after")
        await self._write()
        if not self.size_bytes:
            raise Refusal("The file is empty.", param="file")
        # The name is only displayed, and never used as a path.
        return self._part.filename[:_MOST_NAME], kept_s

    def keep(self, place: Path) -> None:
        """Syncs the file and moves it to its final path, `place`. Blocks. Raises OSError."""
        assert self._file is not None
        with self._file:
            os.fsync(self._file.fileno())
        os.replace(self._path, place)

    def discard(self) -> None:
        """Removes the file, unless `keep` has moved it. Blocks."""
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    async def _take(self, part: FormPart, data: bytes) -> None:
        """Takes the next piece of the form's file.

        Raises Refusal if the file is too large, or if the form has another file.
        """
        self._part = self._part or part
        if part.name != "file" or part is not self._part:
            raise Refusal("The form must have one file, named 'file'.", param="file")
        self.size_bytes += len(data)
        if self.size_bytes > self._most_bytes:
            raise Refusal(
                f"The file is larger than {self._most_bytes:,} bytes, the most that can be stored.",
                status=413,
                code="file_too_large",
                param="file",
            )
        self._waiting += data
        if len(self._waiting) >= _PIECE_BYTES:
            await self._write()

    async def _write(self) -> None:
        data, self._waiting = bytes(self._waiting), bytearray()
        await self._disk.do(self._append, data)

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._file = FileIO(self._path, "x", opener=partial(os.open, mode=0o600))
        write_all(self._file.fileno(), [data])


def kept_for(given: ExpiresAfter | None, usual_s: float, param: str) -> int:
    """Returns the seconds after which a file expires: as requested, or `usual_s`.

    given: the client's `expires_after`, if any. param: its name, for errors. Raises Refusal for
    less than an hour, for more than `usual_s` (or an hour, if that is more), and for an anchor
    other than `created_at`.
    """
    if given is None:
        return int(usual_s)
    if given.anchor != "created_at":
        raise Refusal(f"'{param}.anchor' must be 'created_at'.", param=f"{param}.anchor")
    most_s = max(usual_s, _LEAST_KEPT_S)
    if not _LEAST_KEPT_S <= given.seconds <= most_s:
        raise Refusal(
            f"'{param}.seconds' must be {_LEAST_KEPT_S:,} to {most_s:,.0f}, not {given.seconds:,}.",
            param=f"{param}.seconds",
        )
    return given.seconds


def _stated_expiry(parts: dict[str, FormPart]) -> ExpiresAfter | None:
    anchor, seconds = _text(parts, _ANCHOR), _text(parts, _SECONDS)
    if not anchor and not seconds:
        return None
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 12):
        raise Refusal(
            "'expires_after.seconds' must be a whole number.", param="expires_after.seconds"
        )
    return ExpiresAfter(anchor, int(seconds))


def _text(parts: dict[str, FormPart], name: str) -> str:
    part = parts.get(name)
    return "" if part is None else part.data.decode("utf-8", "replace").strip()
