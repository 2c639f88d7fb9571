"""Checks that an output was written by redline."""

from __future__ import annotations

from redline.errors import ConfigError
from redline.journal import Output, has_sound_line
from redline.journal import manifest as manifests

# The first bytes of gzip, zstd and zip files.
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")


def check_written(output: Output) -> None:
    """Raises ConfigError if the output is not a results file; its hint explains why.

    Raises JournalError if the file cannot be read.
    """
    path = output.path
    if manifests.path_of(output).exists() or has_sound_line(path):
        return
    hint = (
        f"redline wrote none of its lines, and there is no {manifests.path_of(output)}: pass the "
        "file that the run was given with -o"
    )
    with path.open("rb") as file:
        if file.read(4).startswith(_PACKED):
            hint = "it is compressed: unpack it first"
    raise ConfigError(f"{path} is not a results file of redline", hint=hint)
