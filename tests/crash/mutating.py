"""Journals with one line broken, each of which a sweep of deaths must notice."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from mutants import mutant, with_names
from redline.run import entries, execute, journal, manifest, results_file, resume, rewrite
from redline.run import repair as repairs


class _UnsyncedFiles:
    """`os`, but a file's fsync does nothing; a folder's does."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.fsync(fd)


def _results_file(line: str, broken: str) -> None:
    journal.ResultsFile = mutant(results_file, line, broken).ResultsFile


def _replacing(copy: Any) -> None:
    rewrite.replace_file = manifest.replace_file = copy.replace_file


def _told_too_early() -> None:
    line = "await loop.run_in_executor(self._disk, self._sync)"
    early = f"self._acknowledge(group.results); {line}; group.results = []"
    resume.Journal = mutant(journal, line, early).Journal


def _done_is_asked_again() -> None:
    copy = mutant(execute, "run.feed.identifier = run.identifier(journal)", "pass")
    execute._opened = copy._opened


def _checksum_ignored() -> None:
    # What does not hold for the lines of a block is asked of each of them.
    unchecked = mutant(
        entries, 'if tail != b"%s%08x%s" % (_TAIL, crc32(body), _TAIL_END):', "if False:"
    )
    read = unchecked.read_stretches
    journal.ResultsFile = with_names(results_file, read_stretches=read).ResultsFile


def _aside_not_synced() -> None:
    resume._put_aside = mutant(resume, "sync_name(path)", "pass")._put_aside


def _old_file_removed_first() -> None:
    line = "os.replace(beside, _real(path))"
    _replacing(mutant(results_file, line, f"path.unlink(missing_ok=True); {line}"))


_ASIDE = "replace_file(aside, _copier(fd, bounds))"
_KEPT = "replace_file(path, _copier(fd, kept))"
_UNSYNCED_ASIDE = (
    'aside.write_bytes(b"".join(os.pread(fd, e - b, b) for b, e in zip(bounds[::2], bounds[1::2])))'
)


def _taking_out(line: str, broken: str) -> None:
    repairs.take_out = mutant(results_file, line, broken).take_out


def _repaired_name_not_synced() -> None:
    repairs.repair = mutant(repairs, "sync_name(path)", "pass").repair


MUTANTS: dict[str, Callable[[], None]] = {
    "not-synced": lambda: _results_file("os.fsync(self._fd)", "pass"),
    "found-lines-not-synced": lambda: _results_file("self.sync()", "pass"),
    "names-not-synced": lambda: _results_file("sync_name(self.path)", "pass"),
    "torn-tail-kept": lambda: _results_file("elif has_torn_tail:", "elif False:"),
    "checksum-ignored": _checksum_ignored,
    "lost-lines-refused": lambda: _results_file("return _ZERO in line", "return False"),
    "lost-lines-kept": lambda: _results_file("take_out(self.path, self._fd, lost)", "pass"),
    "told-too-early": _told_too_early,
    "done-is-asked-again": _done_is_asked_again,
    "old-file-removed-first": _old_file_removed_first,
    "new-file-not-synced": lambda: _replacing(with_names(results_file, os=_UnsyncedFiles())),
    "old-files-aside-not-synced": _aside_not_synced,
    "repaired-name-not-synced": _repaired_name_not_synced,
    "aside-comes-last": lambda: _taking_out(_ASIDE, f"{_KEPT}; {_ASIDE}"),
    "aside-not-synced": lambda: _taking_out(_ASIDE, _UNSYNCED_ASIDE),
    "repaired-file-removed-first": lambda: _taking_out(_KEPT, f"path.unlink(); {_KEPT}"),
}


def mutate(name: str) -> None:
    """Breaks one line, so that the sweep must fail."""
    MUTANTS[name]()
