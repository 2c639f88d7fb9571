"""Locks an output, so that only one redline process at a time writes to it."""

from __future__ import annotations

import fcntl
import os
import time
from datetime import datetime

from redline.errors import ConfigError
from redline.journal.output import Output
from redline.process import LockedFile

# How long to wait before a second try: a process that checks the lock holds it for a moment.
_MOMENT_S = 0.05


def is_held(output: Output) -> bool | None:
    """Whether a process holds the output's lock; None on a file system that has no locks.

    The holder may be in a container, or on another machine that shares the file system. Raises
    OSError if the lock file cannot be opened, such as FileNotFoundError if there is none.
    """
    fd = os.open(output.state_path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A shared lock, so that several processes may check at once; the owner's is exclusive.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False


class OutputLock:
    """The lock of an output, held from construction until `release` or the end of the process.

    The lock is an flock on `labels.redline/lock`: the system releases it when the process ends,
    however that happens, even if forked children live on. Raises ConfigError if another process
    holds the lock, if the folder is not writable, or if the file system does not support locks.
    """

    def __init__(self, output: Output) -> None:
        try:
            output.state_path.mkdir(exist_ok=True)
            path, flags = output.state_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = LockedFile(os.open(path, flags, 0o666))
        except OSError as error:
            raise ConfigError(
                f"cannot write beside {output.path}: {error.strerror}",
                hint="make sure that its folder exists and is writable, or choose another with -o",
            ) from error
        try:
            is_locked = self._file.try_lock()
            if not is_locked:
                time.sleep(_MOMENT_S)
                is_locked = self._file.try_lock()
        except OSError as error:
            self._file.close()
            raise ConfigError(
                f"cannot lock {path}: {error.strerror}",
                hint="with -o, choose a folder on a file system that supports locks",
            ) from error
        if not is_locked:
            holder = os.pread(self._file.fd, 100, 0).decode("ascii", "replace").strip()
            self._file.close()
            raise ConfigError(
                f"{output.path} is being written by another redline {holder or 'process'}",
                hint="wait for it, stop it, or choose another -o",
            )
        name = f"process {os.getpid()} since {datetime.now():%H:%M:%S}"
        try:
            os.ftruncate(self._file.fd, 0)
            os.pwrite(self._file.fd, name.encode(), 0)
        except OSError:
            # The name is only for another process's error message; a full disk is reported later.
            return

    def release(self) -> None:
        self._file.close()

    def __enter__(self) -> OutputLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
