"""The settings behind the results, so that a resumed run cannot silently mix results of others."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from redline._version import __version__
from redline.errors import ConfigError, JournalError
from redline.journal.output import Output
from redline.process import clipped, write_file
from redline.store import local_path, url_of

_LONGEST_SHOWN = 60
# Names that lead to another file in each process.
_OF_A_PROCESS = ("/dev/fd/", "/dev/stdin", "/proc/")


class Manifest(msgspec.Struct, kw_only=True):
    """The contents of manifest.json. `settings`: all that decide an answer; never a key.

    rows: the number of rows of the input, once a run has read it to its end. input: its path or
    URL, for `verify`; empty if it has none under which it can be read again. others: paths and URLs
    of other inputs of earlier runs.
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
    """Makes the manifest of a new run over `rows`. settings: empty ones are left out.

    Raises ConfigError for a setting that is not UTF-8.
    """
    path = ""
    url = url_of(rows)
    if url is not None:
        # A signature or a password is not stored; `verify` then needs the input stated again.
        path = url.text if url.text == url.name else ""
    elif isinstance(rows, (str, os.PathLike)) and _is_lasting(rows):
        # A file's name may not be UTF-8; it can be shown, but `verify` needs it stated again.
        path = os.fsencode(os.path.abspath(local_path(rows))).decode("utf-8", "replace")
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        try:
            data = msgspec.json.encode(value)
        except UnicodeEncodeError as error:
            raise ConfigError(f"{name} is not UTF-8", hint="write it in UTF-8") from error
        if value:
            # In the form in which it is loaded again: JSON has no tuples, and only text as keys.
            kept[name] = msgspec.json.decode(data)
    return Manifest(input=path, settings=kept)


def _is_lasting(rows: str | os.PathLike[str]) -> bool:
    """Whether the name leads to a file or a folder, and to the same one in other processes.

    A pipe has other content each time, as /dev/fd/63 of a shell's `<(...)`.
    """
    if os.fspath(rows) == "-":
        return False
    path = os.path.abspath(local_path(rows))
    is_here = os.path.isfile(path) or os.path.isdir(path)
    return is_here and not path.startswith(_OF_A_PROCESS)


def load(output: Output) -> Manifest | None:
    """Reads the manifest; None if there is none. Raises JournalError for a damaged one."""
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
            hint="continue with these settings with --force, or start over with --restart",
        ) from error


def save(output: Output, manifest: Manifest) -> None:
    """Writes the manifest atomically: a crash leaves the old one or the new one."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    write_file(path_of(output), data)


def other_inputs(old: Manifest, now: str) -> list[str]:
    """Returns the inputs of earlier runs other than `now`; "" for one without a path.

    A file that no longer exists is left out: it was renamed, or its folder was moved.
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
    """Raises ConfigError that lists the settings changed since the output was begun, if any."""
    changed = sorted(
        name
        for name in old.settings.keys() | new.settings.keys()
        if old.settings.get(name) != new.settings.get(name)
    )
    if not changed:
        return
    lines = [
        f"{name} was {_shown(old.settings.get(name))} and is now {_shown(new.settings.get(name))}"
        for name in changed
    ]
    raise ConfigError(
        f"{output.path} was begun with different settings: {'; '.join(lines)}",
        hint="choose another -o, start over with --restart (the old files are kept aside), or mix "
        "both in one file with --force",
    )


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    text = msgspec.json.encode(value).decode()
    return clipped(text, _LONGEST_SHOWN)
