"""Stores the rates that searches have found, for the next run.

They are in a JSON file with the newest entries last. The file is replaced as a whole, so a reader
sees the old or the new content; if two processes write at once, one of them wins. The file contains
no API key: of a key, it has only a digest, and of an endpoint's URL, only the scheme, host, port
and path.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from redline.errors import ConfigError
from redline.limits.rule import Rate

_VERSION = 1
# More endpoints and models than one user has; the oldest entries are dropped.
_MOST_ENTRIES = 256
# Several times the size of that many entries: a larger file was not written by redline.
_MOST_BYTES = 1 << 20


class _Entry(msgspec.Struct):
    """A found rate. count, window_s: not yet a Rate, because another program may have written them.

    key: the digest of the API key; "" in entries of versions that did not distinguish keys.
    """

    endpoint: str
    model: str
    count: int
    window_s: float
    key: str = ""


class _File(msgspec.Struct):
    v: int
    rates: list[_Entry]


class FoundRates:
    """Reads and writes the file at `path`; its folder is created if it does not exist.

    Raises ConfigError if the file cannot be written. Later on, a damaged or foreign file counts as
    empty, and a failed write leaves the file as it was: a search finds the rate again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # A name for each process id: a file that a killed process left behind is overwritten.
        self._beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(0, "it is a folder")
            self._beside.touch()
            self._beside.unlink()
        except OSError as error:
            raise ConfigError(
                f"the rates that were found cannot be saved in {path}: {error.strerror}",
                hint="choose a file in a writable folder",
            ) from error

    def recall(self, endpoint_url: str, key: str, model: str) -> Rate | None:
        """Returns the latest rate stored for this endpoint, key and model; None if there is none.

        key: a digest of the API key. An entry without a key applies to every key that has no entry
        of its own.
        """
        endpoint = _without_secrets(endpoint_url)
        kept = {(entry.endpoint, entry.key, entry.model): entry for entry in self._entries()}
        entry = kept.get((endpoint, key, model)) or kept.get((endpoint, "", model))
        try:
            return None if entry is None else Rate(entry.count, entry.window_s)
        except ConfigError:
            return None

    def remember(self, endpoint_url: str, key: str, model: str, rate: Rate) -> None:
        """Stores `rate` in place of the rate stored for this endpoint, key and model before."""
        entry = _Entry(_without_secrets(endpoint_url), model, rate.count, rate.window_s, key)
        name = (entry.endpoint, key, model)
        entries = [old for old in self._entries() if (old.endpoint, old.key, old.model) != name]
        entries = [*entries, entry][-_MOST_ENTRIES:]
        data = msgspec.json.format(msgspec.json.encode(_File(_VERSION, entries)), indent=1)
        try:
            self._beside.write_bytes(data + b"\n")
            os.replace(self._beside, self._path)
        except OSError:
            # The file only saves the next run a search: a failure must not end this run.
            with suppress(OSError):
                self._beside.unlink()

    def _entries(self) -> list[_Entry]:
        try:
            with self._path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
            found = msgspec.json.decode(data, type=_File)
        except (OSError, ValueError, RecursionError):
            return []
        return found.rates if found.v == _VERSION and len(data) <= _MOST_BYTES else []


def _without_secrets(url: str) -> str:
    """Returns the URL without user, password, query and fragment, which may contain a key."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
