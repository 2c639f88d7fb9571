"""Describes an output: where the results are, what a line contains, and the files beside it.

  results        failures                state
  labels.jsonl   labels.failed.jsonl     labels.redline/
  labels         labels-failed.jsonl     labels-redline/
  labels         labels.failed.jsonl     labels.redline/    written by redline 0.1

So, without outputs of redline 0.1, `labels` and `labels.jsonl` have no file in common.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from redline.errors import ConfigError, check_known
from redline.store import ObjectUrl, local_path, url_of

Format = Literal["redline", "batch"]
FORMATS: tuple[str, ...] = get_args(Format)
_JSONL = ".jsonl"
_MANIFEST = "manifest.json"


class Names(NamedTuple):
    """The names of the failures file and of the state folder."""

    failed: str
    state: str


def stem_of(results: str) -> str:
    """Returns the name without its suffix .jsonl; a file called `.jsonl` keeps its whole name."""
    return results.removesuffix(_JSONL) or results


def names_of(results: str, *, are_old: bool = False) -> Names:
    """Returns the names beside a results file. are_old: the names that redline 0.1 used."""
    stem = stem_of(results)
    if are_old or stem != results:
        return Names(f"{stem}.failed.jsonl", f"{stem}.redline")
    return Names(f"{results}-failed.jsonl", f"{results}-redline")


def is_state(folder: Path) -> bool:
    """Whether the folder holds the state of an output."""
    return (folder / _MANIFEST).exists()


def has_old_names(results: str, exists: Callable[[str], bool]) -> bool:
    """Whether redline 0.1 wrote this output, under names that now belong to `results`.jsonl.

    exists: returns whether a file or folder of this name exists beside the results.
    """
    old, new = names_of(results, are_old=True), names_of(results)
    if old == new or exists(new.state):
        return False
    return exists(f"{old.state}/{_MANIFEST}") and not exists(results + _JSONL)


def has_old_files(path: Path) -> bool:
    """Whether redline 0.1 wrote the output at this path; see `has_old_names`."""
    return has_old_names(path.name, lambda name: (path.parent / name).exists())


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The place of results, and the contents of a line.

    path: the results file; failures and the run's state go beside it. shown: the path as people
    should see it; "" if that is `path`. url: the object that the results file becomes when the run
    ends; `path` is then its local copy. has_old_names: whether the files beside it have the names
    of redline 0.1, see above. format: one of FORMATS. ordered: the finished file is in input order.
    keep_input: each line repeats its row. raw: each line contains the whole reply.
    """

    path: Path
    shown: str = ""
    url: ObjectUrl | None = None
    has_old_names: bool = False
    format: str = "redline"
    ordered: bool = False
    keep_input: bool = False
    raw: bool = False

    def __post_init__(self) -> None:
        check_known("format", self.format, FORMATS)

    @classmethod
    def at(cls, place: str | os.PathLike[str], **fields: Any) -> Output:
        """Makes the output at a path, or at a URL such as s3://bucket/labels.jsonl.

        Raises ConfigError for a URL that cannot be written to.
        """
        url = url_of(place)
        path = local_path(place) if url is None else url.copy_path()
        return cls(path=path, url=url, has_old_names=has_old_files(path), **fields)

    def anchored(self) -> Output:
        """Returns the same output with an absolute path, for when the working folder may change.

        Raises ConfigError if there is no working folder.
        """
        try:
            path = Path(os.path.abspath(self.path))
        except OSError as error:
            raise ConfigError(
                f"the current folder cannot be used: {error.strerror}",
                hint="change to a folder that exists, or use an absolute path",
            ) from error
        return msgspec.structs.replace(self, path=path, shown=self.shown or str(self.path))

    @property
    def name(self) -> str:
        """The output's name for people: the URL without secrets, or the path."""
        return self.shown or str(self.path) if self.url is None else self.url.name

    @property
    def failed_name(self) -> str:
        """The name of the failures file for people: a URL without secrets, or a path."""
        name = self._names.failed
        if self.url is not None:
            return self.url.beside(name).name
        return str(Path(self.name).with_name(name))

    @property
    def failed_path(self) -> Path:
        return self.path.with_name(self._names.failed)

    @property
    def state_path(self) -> Path:
        return self.path.with_name(self._names.state)

    @property
    def _names(self) -> Names:
        return names_of(self.path.name, are_old=self.has_old_names)
