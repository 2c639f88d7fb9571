"""Files whose lock lasts as long as the process that took it, whatever that process forks.

An flock belongs to an open file, which a forked process has open as well: a pool's workers outlive
a killed run, and its locks with them. So they are closed in every forked process, and unlocked by
whoever closes them.
"""

from __future__ import annotations

import fcntl
import os


class LockedFile:
    """An open file and the flock on it. fd: -1 once it is closed, and in a forked process."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _OPEN.add(self)

    def try_lock(self) -> bool:
        """Takes the lock; False if another one has it. Raises OSError for a lack of locks."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Unlocks and closes the file. May be repeated; does nothing in a forked process."""
        fd, self.fd = self.fd, -1
        _OPEN.discard(self)
        if fd < 0:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            # A file system without locks: there was none.
            pass
        os.close(fd)


_OPEN: set[LockedFile] = set()


def _close_in_child() -> None:
    """Closes the copies without unlocking: the lock is the parent's."""
    for file in _OPEN:
        fd, file.fd = file.fd, -1
        if fd >= 0:
            os.close(fd)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
