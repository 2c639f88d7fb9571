"""The names beside a results file: its failures and its folder of state, shared with no other.

  results        failures                state
  labels.jsonl   labels.failed.jsonl     labels.redline/
  labels         labels-failed.jsonl     labels-redline/
  labels         labels.failed.jsonl     labels.redline/    written by redline 0.1

So `labels` and `labels.jsonl` have nothing in common.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_JSONL = ".jsonl"
_MANIFEST = "manifest.json"


class Names(NamedTuple):
    """Of the failures and of the folder of state."""

    failed: str
    state: str


def names_of(results: str, *, are_old: bool = False) -> Names:
    """The names beside the results file of this name. are_old: those that redline 0.1 gave."""
    stem = results.removesuffix(_JSONL) or results
    if are_old or stem != results:
        return Names(f"{stem}.failed.jsonl", f"{stem}.redline")
    return Names(f"{results}-failed.jsonl", f"{results}-redline")


def is_state(folder: Path) -> bool:
    """The folder holds the state of an output."""
    return (folder / _MANIFEST).exists()


def has_old_names(path: Path) -> bool:
    """An earlier redline has written this output, under names that only `path`.jsonl has now."""
    old, new = names_of(path.name, are_old=True), names_of(path.name)
    if old == new or path.with_name(new.state).exists():
        return False
    return is_state(path.with_name(old.state)) and not path.with_name(path.name + _JSONL).exists()
