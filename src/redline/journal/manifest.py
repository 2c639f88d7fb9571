"""Stores the settings behind the results, so that a resume with other settings needs --force."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from redline._version import __version__
from redline.errors import ConfigError, JournalError
from redline.journal.output import Output
from redline.process import write_file
from redline.store import local_path, url_of

_LONGEST_SHOWN = 60
# Paths that mean a different file in each process.
_OF_A_PROCESS = ("/dev/fd/", "/dev/stdin", "/proc/")


class Manifest(msgspec.Struct, kw_only=True):
    """The contents of manifest.json.

    settings: the settings of the requests, of the result lines and of the task, but neither the
    endpoint nor an API key. rows: the number of rows in the input; None until a run has read all of
    them. input: the input's path or URL, for `verify`; empty if it cannot be read again, or if the
    URL contains a secret. others: paths and URLs of other inputs of earlier runs. begun:
    the UTC time when the output was begun, in ISO 8601.
    """

    v: int = 1
    redline: str = __version__
    begun: str = msgspec.field(default_factory=lambda: datetime.now(UTC).isoformat("T", "seconds"))
    input: str = ""
    others: list[str] = []
    rows: int | None = None
    settings: dict[str, Any]


def path_of(output: Output) -> Path:
    return output.state_path / "manifest.json"


def make(rows: object, settings: dict[str, Any]) -> Manifest:
    """Makes the manifest of a new run over `rows`; settings with an empty value are left out.

    Raises ConfigError for a setting that is not UTF-8.
    """
    path = ""
    url = url_of(rows)
    if url is not None:
        # A URL with a signature or a password is not stored: `verify` must then be given the input.
        path = url.text if url.text == url.name else ""
    elif isinstance(rows, (str, os.PathLike)) and _is_lasting(rows):
        # If a file's name is not UTF-8, it can be shown, but `verify` must be given the input.
        path = os.fsencode(os.path.abspath(local_path(rows))).decode("utf-8", "replace")
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        try:
            data = msgspec.json.encode(value)
        except UnicodeEncodeError as error:
            raise ConfigError(f"{name} is not UTF-8", hint="write it in UTF-8") from error
        if value:
            # Stored as it will be loaded: JSON has no tuples, and its keys are strings.
            kept[name] = msgspec.json.decode(data)
    return Manifest(input=path, settings=kept)


def _is_lasting(rows: str | os.PathLike[str]) -> bool:
    """Whether the path is a file or a folder, and the same one in other processes.

    A pipe such as /dev/fd/63, from a shell's `<(...)`, has different content each time.
    """
    if os.fspath(rows) == "-":
        return False
    path = os.path.abspath(local_path(rows))
    is_here = os.path.isfile(path) or os.path.isdir(path)
    return is_here and not path.startswith(_OF_A_PROCESS)


def load(output: Output) -> Manifest | None:
    """Reads the manifest; returns None if there is none.

    Raises JournalError if it cannot be read or is damaged.
    """
    try:
        data = path_of(output).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"cannot read {path_of(output)}: {error.strerror}") from error
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (ValueError, RecursionError) as error:
        raise JournalError(
            f"{path_of(output)} is damaged: {error}",
            hint="repeat the run's command with --force to continue with its settings, or with "
            "--restart to start over",
        ) from error


def save(output: Output, manifest: Manifest) -> None:
    """Writes the manifest atomically: a crash leaves the old one or the new one."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    write_file(path_of(output), data)


def other_inputs(old: Manifest, now: str) -> list[str]:
    """Returns the inputs of earlier runs except `now`; an input without a path is "".

    A file that no longer exists is left out, since it may have been renamed or moved, unless `now`
    is "".
    """
    earlier = dict.fromkeys((*old.others, old.input))
    return [place for place in earlier if place != now and _is_there(place, now)]


def _is_there(place: str, now: str) -> bool:
    if not place or "://" in place:
        return True
    try:
        return not (now and os.path.samefile(place, now))
    except OSError:
        return os.path.exists(place)


def check(old: Manifest, new: Manifest, output: Output) -> None:
    """Raises a ConfigError that lists the settings changed since the output was begun, if any."""
    changed = sorted(
        name
        for name in old.settings.keys() | new.settings.keys()
        if old.settings.get(name) != new.settings.get(name)
    )
    if not changed:
        return
    lines = []
    for name in changed:
        was, now = both_shown(old.settings.get(name), new.settings.get(name))
        lines.append(f"{name} was {was or 'not set'} and is now {now or 'not set'}")
    raise ConfigError(
        f"{output.path} was begun with different settings: {'; '.join(lines)}",
        hint="choose another -o, start over with --restart (the old files are kept aside), or mix "
        "both in one file with --force",
    )


def both_shown(one: Any, other: Any) -> tuple[str, str]:
    """Returns two values of a setting as JSON; "" for one that is not set.

    If either has more than 60 characters, both are cut to at most 60 characters that begin shortly
    before the first difference; `...` marks each cut.
    """
    first, second = (
        "" if value is None else msgspec.json.encode(value).decode() for value in (one, other)
    )
    begin = 0
    if max(len(first), len(second)) > _LONGEST_SHOWN:
        pairs = enumerate(zip(first, second, strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))
        begin = max(0, same - _LONGEST_SHOWN // 3)
    return _cut(first, begin), _cut(second, begin)


def _cut(text: str, begin: int) -> str:
    left = text[begin:]
    shown = left if len(left) <= _LONGEST_SHOWN else f"{left[:_LONGEST_SHOWN]}..."
    return f"...{shown}" if begin and shown else shown
