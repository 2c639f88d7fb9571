"""Parts of the journal that break a promise, each of which a sweep of deaths must notice."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from redline.errors import JournalError
from redline.job.outputs import repairing as repair
from redline.journal import Identifier, Journal, ResultsFile, Stretch, read_stretches, take_out
from redline.process import replace_file, sync_name
from support.broken_parts import acknowledges_early, keeps_torn_lines, knows_nothing
from support.swapping import Swap

Write = Callable[[int], None]


def _nothing(*_: Any) -> None:
    return None


class _NeverSynced(ResultsFile):
    def sync(self) -> None:
        return


class _OpenedUnsynced(ResultsFile):
    is_open = False

    def __init__(self, path: Path, on_found: Callable[[Stretch], None]) -> None:
        super().__init__(path, on_found)
        self.is_open = True

    def sync(self) -> None:
        if self.is_open:
            super().sync()


def _opened_with(function: Any, fake: Any) -> type[ResultsFile]:
    """A file of results that sees `fake` in place of the function while it is opened."""

    class Opened(ResultsFile):
        def __init__(self, path: Path, on_found: Callable[[Stretch], None]) -> None:
            with Swap((function, fake)):
                super().__init__(path, on_found)

    return Opened


def _refuse(*_: Any) -> None:
    raise JournalError("a line is damaged")


def _sound_only(fd: int, start: int = 0) -> Iterator[Stretch]:
    return (found for found in read_stretches(fd, start) if found.keys)


def _replace_removed(path: Path, write: Write) -> None:
    path.unlink(missing_ok=True)
    replace_file(path, write)


def _replace_unsynced(path: Path, write: Write) -> None:
    fsync = os.fsync
    os.fsync = lambda fd: fsync(fd) if os.path.isdir(f"/proc/self/fd/{fd}") else None
    try:
        replace_file(path, write)
    finally:
        os.fsync = fsync


def _take_out_last_first(
    path: Path, fd: int, bounds: array[int], aside: Path | None = None
) -> Path:
    replaced: list[tuple[Path, Write]] = []
    with Swap((replace_file, lambda *given: replaced.append(given))):
        aside = take_out(path, fd, bounds, aside)
    for given in reversed(replaced):
        replace_file(*given)
    return aside


def _take_out_unsynced(path: Path, fd: int, bounds: array[int], aside: Path | None = None) -> Path:
    def replace(at: Path, write: Write) -> None:
        if at == path:
            replace_file(at, write)
            return
        new_fd = os.open(at, os.O_RDWR | os.O_CREAT)
        write(new_fd)
        os.close(new_fd)

    with Swap((replace_file, replace)):
        return take_out(path, fd, bounds, aside)


# What is replaced by what.
MUTANTS: dict[str, tuple[Any, Any]] = {
    "not-synced": (ResultsFile, _NeverSynced),
    "found-lines-not-synced": (ResultsFile, _OpenedUnsynced),
    "names-not-synced": (ResultsFile, _opened_with(sync_name, _nothing)),
    "torn-tail-kept": (ResultsFile, keeps_torn_lines(ResultsFile)),
    "damage-not-seen": (read_stretches, _sound_only),
    "lost-lines-refused": (ResultsFile, _opened_with(take_out, _refuse)),
    "lost-lines-kept": (ResultsFile, _opened_with(take_out, _nothing)),
    "told-too-early": (Journal, acknowledges_early(Journal)),
    "done-is-asked-again": (Identifier, knows_nothing(Identifier)),
    "old-file-removed-first": (replace_file, _replace_removed),
    "new-file-not-synced": (replace_file, _replace_unsynced),
    "aside-comes-last": (take_out, _take_out_last_first),
    "aside-not-synced": (take_out, _take_out_unsynced),
    "old-files-aside-not-synced": (sync_name, _nothing),
}
# The modules that then do not sync the names of their files.
UNSYNCED = {"repaired-name-not-synced": repair}


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Meanwhile this part is broken, so that the sweep must fail; None: no part."""
    if name is None:
        yield
    elif name in UNSYNCED:
        with patch.object(UNSYNCED[name], "sync_name", _nothing):
            yield
    else:
        with Swap(MUTANTS[name]):
            yield
