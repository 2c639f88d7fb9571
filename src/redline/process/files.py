"""Files that survive sudden death: replaced in one step, made durable, held by one process.

A lock lasts as long as the process that took it, whatever that process forks. An flock belongs to
an open file, which a forked process has open as well: a pool's workers outlive a killed run, and
its locks with them. So they are closed in every forked process, and unlocked by the one that closes
them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from redline.errors import JournalError

_AGAIN = "then run the same command again: it continues"
_FULL = f"make room on that disk, {_AGAIN}"
GONE = (
    "its folder does not exist: if it was moved, the same command continues there; otherwise "
    "choose -o"
)
_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    **dict.fromkeys((errno.ENOENT, errno.ESTALE), GONE),
}


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


def open_alone(path: Path, flags: int) -> LockedFile:
    """The file at `path`, which no other redline has open so, whatever name it knows it by.

    The output's lock does not see that two names, such as a link and its target, are one file, nor
    that a folder was moved and another one made in its place. Raises JournalError.
    """
    try:
        file = LockedFile(os.open(path, flags | os.O_CLOEXEC, 0o666))
    except OSError as error:
        raise JournalError(
            f"cannot open {path}: {error.strerror}",
            hint=_HINTS.get(error.errno or 0, "choose a place that can be written with -o"),
        ) from error
    try:
        _hold(file, path)
    except BaseException:
        file.close()
        raise
    return file


def _hold(file: LockedFile, path: Path) -> None:
    try:
        is_alone = file.try_lock()
        # Another one may have put its own file in place since this one was opened.
        is_alone = is_alone and os.path.exists(path)
        is_alone = is_alone and os.path.samestat(os.stat(path), os.fstat(file.fd))
    except OSError:
        # A file system without locks; the lock in the output's folder has been had.
        return
    if not is_alone:
        raise JournalError(
            f"{path} is being written by another redline, under another name or in another folder",
            hint="wait for it, stop it, or choose another -o",
        )


def sync_name(path: Path) -> None:
    """Makes the name of `path`, or that it has none any more, durable; its fsync does not."""
    fd = os.open(_real(path).parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, write: Callable[[int], None]) -> None:
    """Puts a new file in place of `path` at once: a reader sees the old one or the new one.

    A link stays, and what it leads to is replaced. write: gets the descriptor of a file beside it.
    Raises JournalError.
    """
    with telling(path):
        beside = _beside(path)
        try:
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                write(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(beside, _real(path))
        except OSError:
            # On a full disk, the unfinished file is what takes the room.
            beside.unlink(missing_ok=True)
            raise
        sync_name(path)


def drop_unfinished(path: Path) -> None:
    """Removes what a death in `replace_file` left beside `path`. Raises JournalError."""
    with telling(path):
        _beside(path).unlink(missing_ok=True)


def free_name(path: Path, word: str) -> Path:
    """The first free name beside `path`, such as labels.damaged-1.jsonl."""
    names = (path.with_name(f"{path.stem}.{word}-{n}{path.suffix}") for n in count(1))
    return next(name for name in names if not os.path.lexists(name))


def copy_mode(fd: int, new_fd: int) -> None:
    """What only its owner may read stays so. Does nothing if a file system knows no modes."""
    try:
        os.fchmod(new_fd, stat.S_IMODE(os.fstat(fd).st_mode))
    except PermissionError:
        return


def write_all(fd: int, pieces: Iterable[bytes]) -> None:
    """Writes the pieces as one; a disk may take a part of them at a time. Raises OSError."""
    data = memoryview(b"".join(pieces))
    while data:
        data = data[os.write(fd, data) :]


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into the JournalError that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> JournalError:
    """The error that `path` cannot be written, and what to do about it."""
    hint = _HINTS.get(error.errno or 0, f"check that disk, {_AGAIN}")
    return JournalError(f"cannot write {path}: {error.strerror}", hint=hint)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _beside(path: Path) -> Path:
    target = _real(path)
    return target.with_name(f".{target.name}.unfinished")
