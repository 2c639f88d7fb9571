"""Parses URLs of objects in a store, such as `s3://bucket/dir/rows.jsonl`."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from redline.errors import ConfigError

# A scheme has at least two characters: a single letter is a Windows drive.
_URL = re.compile(r"(?s)([A-Za-z][A-Za-z0-9+.-]+)://(.*)")
_LOCAL = ("file", "local")
_WEB = ("http", "https")
_VERSION = "?versionId="


class ObjectUrl(msgspec.Struct, frozen=True):
    """The URL of one object.

    scheme: in lower case. path: the part after `://`, which begins with the bucket or host.
    """

    scheme: str
    path: str

    @property
    def text(self) -> str:
        """The URL as given, its scheme in lower case; may contain a password or a signature."""
        return f"{self.scheme}://{self.path}"

    @property
    def name(self) -> str:
        """The URL for display, with `...` in place of user, password and a web URL's query.

        The version of an object in a store is left out.
        """
        host, slash, rest = self._bare.partition("/")
        user, at, address = host.rpartition("@")
        shown = f"{self.scheme}://{'...' if user else ''}{at}{address}{slash}{rest}"
        return f"{shown}?..." if self.is_web and "?" in self.path else shown

    @property
    def is_web(self) -> bool:
        """Whether the object is on a web server, to which nothing can be written."""
        return self.scheme in _WEB

    @property
    def bucket(self) -> str:
        """The bucket, container or host."""
        return self._bare.partition("/")[0].rpartition("@")[2]

    @property
    def file(self) -> PurePosixPath:
        """The object's name as a path, from which its suffixes can be read."""
        return PurePosixPath("/" + self._bare.partition("/")[2])

    @property
    def _bare(self) -> str:
        """`path` without a web URL's query, or without an object's version."""
        if self.is_web:
            return re.split(r"[?#]", self.path, maxsplit=1)[0]
        return self.path.partition(_VERSION)[0]

    def beside(self, name: str) -> ObjectUrl:
        """Returns the URL of the object `name` beside this one; `name` may contain slashes."""
        return ObjectUrl(self.scheme, f"{self.path.rpartition('/')[0]}/{name}")

    def copy_path(self) -> Path:
        """Returns the path of the object's local copy: `s3.redline/bucket/dir/rows.jsonl`.

        The path is relative to the working folder. Raises ConfigError if the URL does not name an
        object to which results could be written.
        """
        if self.is_web:
            raise ConfigError(
                f"results cannot be written to a web server: {self.name}",
                hint="write to a file, or to a store such as s3://bucket/labels.jsonl",
            )
        segments = self.path.split("/")
        if len(segments) < 2 or not segments[-1] or _VERSION in self.path:
            raise ConfigError(
                f"the output {self.name} does not name an object",
                hint=f"for example {self.scheme}://{self.bucket or 'bucket'}/labels.jsonl",
            )
        if {"", ".", ".."} & set(segments[1:]):
            raise ConfigError(
                f"the path of the output {self.name} has a segment that is empty, `.` or `..`",
                hint="for example s3://bucket/folder/labels.jsonl",
            )
        return Path(f"{self.scheme}.redline", self.bucket or "_", *segments[1:])


class OpenedObject(msgspec.Struct, frozen=True):
    """An input that was opened in advance, because opening it would block an event loop.

    source: the Source, as `open_source` returns it.
    """

    url: ObjectUrl
    source: Any


def url_of(place: object) -> ObjectUrl | None:
    """Returns the object's URL in `place`, a string or an OpenedObject; None for any other place.

    A local path and a `file://` URL do not name an object.
    """
    if isinstance(place, OpenedObject):
        return place.url
    if not isinstance(place, str):
        return None
    match = _URL.fullmatch(place)
    if match is None or match[1].lower() in _LOCAL:
        return None
    return ObjectUrl(match[1].lower(), match[2])


def local_path(place: str | os.PathLike[str]) -> Path:
    """Returns the local path that `place` names: a path or a `file://` URL, not an object's URL."""
    text = os.fsdecode(place)
    match = _URL.fullmatch(text)
    return Path(match[2] if match is not None and match[1].lower() in _LOCAL else text)
