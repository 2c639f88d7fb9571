"""Reads JSON Lines files to which runs append records of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from redline.errors import ConfigError

RecordT = TypeVar("RecordT")


class _Head(msgspec.Struct):
    kind: str
    v: Any = 0


_HEAD = msgspec.json.Decoder(_Head).decode


class Records(Generic[RecordT]):
    """Iterates over the records in the lines of a file; skips records of unknown kinds.

    decode: decodes a line of a known kind. said: the beginning of the message about a newer
    version, such as `calls.trace is a trace of`. damaged: the number of lines so far that are not
    valid records or come before the first run. is_cut: whether the last line is incomplete.

    Iteration raises ConfigError for a run with a version above `newest`.
    """

    def __init__(
        self,
        lines: Iterable[bytes],
        decode: Callable[[bytes], RecordT],
        *,
        known: Container[str],
        newest: int,
        said: str,
    ) -> None:
        self._lines = lines
        self._decode = decode
        self._known = known
        self._newest = newest
        self._said = said
        self.damaged = 0
        self.is_cut = False

    def __iter__(self) -> Iterator[RecordT]:
        has_begun = False
        for line in self._lines:
            if not line.endswith(b"\n"):
                self.is_cut = True
                return
            try:
                head = _HEAD(line)
                if head.kind not in self._known:
                    continue
                if head.kind == "run":
                    self._check(head.v)
                record = self._decode(line)
            except (ValueError, RecursionError):
                self.damaged += 1
                continue
            has_begun = has_begun or head.kind == "run"
            if has_begun:
                yield record
            else:
                self.damaged += 1

    def _check(self, version: object) -> None:
        if isinstance(version, int) and version > self._newest:
            raise ConfigError(
                f"{self._said} version {version}, but this version of redline reads only versions "
                f"up to {self._newest}",
                hint="read it with the version of redline that wrote it, or a newer one",
            )
