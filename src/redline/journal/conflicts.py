"""Refuses an output whose files have the names of another output's files."""

from __future__ import annotations

from pathlib import Path

from redline.errors import ConfigError
from redline.journal.output import Output, has_old_files, is_state, stem_of
from redline.journal.sound_lines import has_sound_line

_HINT = "choose another -o"
# The folders in an output's state folder. A folder with another name is taken for a bucket's copy.
_OWN_FOLDERS = ("limits", "batches")


def check_place(output: Output) -> None:
    """Raises ConfigError if the output would share a file with another output."""
    path, failed = output.path, output.failed_path
    owner = owner_of_failures(path)
    if owner is not None and is_state(owner.state_path):
        raise ConfigError(f"failures of {owner.path} go to {path}", hint=_HINT)
    if is_state(Output.at(failed).state_path):
        raise ConfigError(
            f"failures of {path} would go to {failed}, which is another output", hint=_HINT
        )
    if path.parent.name.endswith((".redline", "-redline")) and is_state(path.parent):
        raise ConfigError(f"{path.parent} holds the state of another output", hint=_HINT)
    if output.url is not None and is_state(copies := Path(output.url.copy_path().parts[0])):
        raise ConfigError(
            f"{copies} is the folder for files of {output.url.scheme}://, but it holds the state "
            "of another output",
            hint="run redline in another folder",
        )
    if output.url is None and _holds_copies(output.state_path):
        raise ConfigError(f"{output.state_path} holds copies of a store's objects", hint=_HINT)
    older = path.with_name(stem_of(path.name))
    if older != path and not path.exists() and has_old_files(older) and _is_output(older):
        raise ConfigError(
            f"{output.state_path} belongs to {older}, which an older version of redline began",
            hint=_HINT,
        )


def owner_of_failures(path: Path) -> Output | None:
    """Returns the output whose failures are in `path`; None if there is none."""
    for ending in (".failed.jsonl", "-failed.jsonl"):
        stem = path.name.removesuffix(ending)
        if stem in ("", path.name):
            continue
        for name in (f"{stem}.jsonl", stem):
            owner = Output.at(path.with_name(name))
            is_there = owner.path.exists() or is_state(owner.state_path)
            if is_there and owner.failed_path == path:
                return owner
    return None


def _is_output(path: Path) -> bool:
    return path.is_file() and (not path.stat().st_size or has_sound_line(path))


def _holds_copies(state: Path) -> bool:
    """Whether the folder holds copies of buckets, like `s3.redline/`, and no output's state."""
    found = (each for each in state.glob("*") if each.is_dir() and each.name not in _OWN_FOLDERS)
    return not is_state(state) and any(found)
