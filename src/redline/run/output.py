"""Where results go, and what a line of them holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from redline.errors import ConfigError, nearest
from redline.run.object_url import ObjectUrl, local_path, url_of
from redline.run.output_names import Names, has_old_names, names_of

Format = Literal["redline", "batch"]
FORMATS: tuple[str, ...] = get_args(Format)


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Where results go and what a line holds.

    path: the results file; failures and the run's state go beside it. url: the object that the
    results file becomes when the run ends; `path` is then its copy on this machine. has_old_names:
    what is beside it is named as an earlier redline did, see `output_names`. ordered: the
    finished file is in input order. keep_input: each line repeats its row. raw: each line holds the
    whole reply.
    """

    path: Path
    url: ObjectUrl | None = None
    has_old_names: bool = False
    format: str = "redline"
    ordered: bool = False
    keep_input: bool = False
    raw: bool = False

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(
                f"unknown format: {self.format}",
                hint=nearest(self.format, FORMATS) or f"one of {', '.join(FORMATS)}",
            )

    @classmethod
    def at(cls, place: str | os.PathLike[str], **fields: Any) -> Output:
        """The output at a path, or at a URL such as s3://bucket/labels.jsonl.

        Raises ConfigError for a URL that nothing can be written to.
        """
        url = url_of(place)
        path = local_path(place) if url is None else url.copy_path()
        return cls(path=path, url=url, has_old_names=has_old_names(path), **fields)

    @property
    def name(self) -> str:
        """What a person calls it: the URL as it may be shown, or the path."""
        return str(self.path) if self.url is None else self.url.name

    @property
    def failed_name(self) -> str:
        """What a person calls the failures beside it."""
        path = self.failed_path
        return str(path) if self.url is None else self.url.beside(path.name).name

    @property
    def failed_path(self) -> Path:
        return self.path.with_name(self._names.failed)

    @property
    def state_path(self) -> Path:
        return self.path.with_name(self._names.state)

    @property
    def _names(self) -> Names:
        return names_of(self.path.name, are_old=self.has_old_names)
