"""Locks a file that several processes read, change and replace, one at a time."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

from redline.errors import ConfigError
from redline.process import LockedFile

_MODE = 0o600
# A change takes milliseconds.
_PATIENCE_S = 10.0
_EVERY_S = 0.01


def locked(path: Path) -> closing[LockedFile]:
    """Locks the file for a `with` block that reads and replaces it; creates it empty if missing.

    Raises ConfigError if the file cannot be written or locked, or if another process still holds
    the lock after 10 s.
    """
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            file = LockedFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE))
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror}",
                hint="choose a file in a folder that exists and is writable",
            ) from error
        try:
            # If the file was replaced meanwhile, the lock on the old file protects nothing.
            if file.try_lock() and file.is_at(path):
                return closing(file)
        except OSError as error:
            file.close()
            raise ConfigError(
                f"cannot lock {path}: {error.strerror}", hint="keep it on a local disk"
            ) from error
        file.close()
        if time.monotonic() > until_s:
            raise ConfigError(
                f"{path} is being changed by another redline process",
                hint="wait for it, or stop it",
            )
        time.sleep(_EVERY_S)
