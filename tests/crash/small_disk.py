"""A file system that is small enough to fill."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest

BLOCK_BYTES = 4096


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """An empty file system of 64 kB and 32 files at `folder`; a skip where none may be mounted."""
    folder.mkdir()
    options = "size=64k,nr_inodes=32"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        made = subprocess.run(mount, capture_output=True, text=True, timeout=10, check=False)
    except OSError as error:
        pytest.skip(f"a tmpfs cannot be mounted: {error}")
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], timeout=10, check=True)


def fill(folder: Path, left_blocks: int = 0) -> Path:
    """A new file that takes all room but for so many blocks."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        _write_until_full(file)
        file.truncate(file.tell() - left_blocks * BLOCK_BYTES)
    return ballast


def _write_until_full(file: FileIO) -> None:
    try:
        while True:
            file.write(bytes(BLOCK_BYTES))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
