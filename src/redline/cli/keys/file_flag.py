"""Defines the flag that sets the key file."""

from __future__ import annotations

from pathlib import Path

from click import Context

from redline.cli.flags import flag, stated

# The default in `redline.serve.keys`, which takes too long to import just for this name.
_FILE = "keys.jsonl"
FILE = flag("file", "FILE", f"Key file. Default: {_FILE}.")


def path_of(ctx: Context) -> Path:
    """Returns the path of the key file."""
    return Path(stated(ctx).get("file", _FILE)).expanduser()
