"""Writes files that survive a crash: replaced atomically, made durable, locked by one process.

A lock must end with the process that took it. But an flock belongs to an open file, which forked
processes share: the workers of a pool may outlive a killed run and would keep its locks. So locked
files are closed in every forked process, and only the process that took a lock unlocks it.
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

_AGAIN = "then run the same command again to continue"
GONE = (
    "its folder does not exist: if it was moved, pass the new path with -o to continue; "
    "otherwise choose another -o"
)
_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f"make room on that disk, {_AGAIN}"),
    errno.EFBIG: "raise `ulimit -f`, or move the output to a disk that allows larger files, "
    f"{_AGAIN}",
    **dict.fromkeys((errno.ENOENT, errno.ESTALE), GONE),
    **dict.fromkeys((errno.EACCES, errno.EPERM), f"make it writable, {_AGAIN}"),
    errno.ENAMETOOLONG: "choose a shorter name",
}


class LockedFile:
    """An open file, which can be locked with flock. fd: -1 once closed, and in a forked process."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _OPEN.add(self)

    def try_lock(self) -> bool:
        """Takes the lock; returns False if it is already taken.

        Raises OSError if the file system does not support locks.
        """
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_at(self, path: Path) -> bool:
        """Whether this is still the file at `path`. Raises OSError if `path` cannot be examined."""
        try:
            return os.path.samestat(os.fstat(self.fd), path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        """Unlocks and closes the file. May be called again; does nothing in a forked process."""
        fd, self.fd = self.fd, -1
        _OPEN.discard(self)
        if fd < 0:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            # The file system does not support locks, so there is none to release.
            pass
        os.close(fd)


_OPEN: set[LockedFile] = set()


def _close_in_child() -> None:
    """Closes the copies without unlocking them, because the locks are the parent's."""
    for file in _OPEN:
        fd, file.fd = file.fd, -1
        if fd >= 0:
            os.close(fd)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def open_alone(path: Path, flags: int) -> LockedFile:
    """Opens and locks the file at `path`, so that no other redline process writes to it.

    On a file system without locks, only opens it.
    The output's own lock does not detect two names of one file, such as a link and its target, or
    a folder that was moved and replaced by a new one. flags: as for `os.open`. Raises JournalError
    if the file cannot be opened or another process holds it.
    """
    try:
        file = LockedFile(os.open(path, flags | os.O_CLOEXEC, 0o666))
    except OSError as error:
        raise JournalError(
            f"cannot open {path}: {error.strerror}",
            hint=_HINTS.get(error.errno or 0, "choose an -o that is writable"),
        ) from error
    try:
        _hold(file, path)
    except BaseException:
        file.close()
        raise
    return file


def _hold(file: LockedFile, path: Path) -> None:
    try:
        # Another process may have replaced the file since it was opened.
        is_alone = file.try_lock() and file.is_at(path)
    except OSError:
        # The file system does not support locks; the lock in the output's folder must suffice.
        return
    if not is_alone:
        raise JournalError(
            f"{path} is being written by another redline process, under another name or in another "
            "folder",
            hint="wait for it, stop it, or choose another -o",
        )


def sync_name(path: Path) -> None:
    """Makes the creation or removal of the name `path` durable; an fsync of the file would not."""
    fd = os.open(_real(path).parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, write: Callable[[int], None]) -> None:
    """Replaces the file at `path` atomically: a reader sees either the old file or the new one.

    If `path` is a link, its target is replaced. Its permissions are kept if the system permits
    that. write: called with the descriptor of a new file in the same folder. Raises JournalError if
    the file cannot be written.
    """
    with telling(path):
        beside = _beside(path)
        try:
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                if path.exists():
                    copy_mode(path, fd)
                write(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(beside, _real(path))
        except OSError:
            # Removed, because the disk may be full and the unfinished file takes up space.
            beside.unlink(missing_ok=True)
            raise
        sync_name(path)


def write_file(path: Path, data: bytes) -> None:
    """Replaces the content of the file at `path` with these bytes, as `replace_file` does."""
    replace_file(path, lambda fd: write_all(fd, [data]))


def drop_unfinished(path: Path) -> None:
    """Removes the file, if any, that a crash in `replace_file` left beside `path`.

    Raises JournalError if the file cannot be removed.
    """
    with telling(path):
        _beside(path).unlink(missing_ok=True)


def free_name(path: Path, word: str) -> Path:
    """Returns the first free name beside `path`, such as labels.damaged-1.jsonl."""
    names = (path.with_name(f"{path.stem}.{word}-{n}{path.suffix}") for n in count(1))
    return next(name for name in names if not os.path.lexists(name))


def make_like(path: Path, model: Path) -> None:
    """Creates an empty file with the permissions of `model`, unless there is a file at `path`.

    Raises JournalError if the file cannot be created.
    """
    with telling(path):
        if not path.exists():
            path.touch(0o600)
            copy_mode(model, path)


def copy_mode(source: int | Path, target: int | Path) -> None:
    """Copies the permissions of a file; does nothing if the system does not permit that.

    Raises OSError for any other failure.
    source, target: paths or descriptors.
    """
    try:
        os.chmod(target, stat.S_IMODE(os.stat(source).st_mode))
    except PermissionError:
        return


def write_all(fd: int, pieces: Iterable[bytes]) -> None:
    """Writes all pieces, in several writes if the disk takes only a part. Raises OSError."""
    data = memoryview(b"".join(pieces))
    while data:
        data = data[os.write(fd, data) :]


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Converts an OSError in the block to a JournalError: `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> JournalError:
    """Returns the error for a `path` that cannot be written, with a hint about what to do."""
    return JournalError(
        f"cannot write {path}: {error.strerror}",
        hint=_HINTS.get(error.errno or 0, f"check that disk, {_AGAIN}"),
    )


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _beside(path: Path) -> Path:
    target = _real(path)
    return target.with_name(f".{target.name}.unfinished")
