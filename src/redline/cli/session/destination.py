"""Checks the paths of files that a command writes besides results, such as pages."""

from __future__ import annotations

from pathlib import Path

from redline.errors import ConfigError
from redline.store import local_path


def new_file(
    text: str, kind: str, beginning: str, hint: str, *, may_be_empty: bool = False
) -> Path:
    """Returns the path of a page, report or other file to be written.

    kind: what the file is, for errors. beginning: how such a file begins. hint: for the first three
    errors below. may_be_empty: whether an existing empty file may be replaced. Raises ConfigError
    if the path is a folder, if its folder does not exist, or if an existing file cannot be read or
    begins differently.
    """
    path = local_path(text)
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise ConfigError(f"the {kind} {text} {what}", hint=hint)
    own = {beginning.encode(), b""} if may_be_empty else {beginning.encode()}
    if path.exists() and _beginning_of(path, len(beginning.encode()), hint) not in own:
        raise ConfigError(
            f"{text} exists and is not a {kind} that redline wrote",
            hint=f"choose another -o, or move the file away first; a {kind} of an older version or "
            "in another format is not replaced either",
        )
    return path


def _beginning_of(path: Path, size_bytes: int, hint: str) -> bytes | None:
    """Returns the first bytes of a file; None if it is not a file. Raises ConfigError."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return file.read(size_bytes)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=hint) from error
