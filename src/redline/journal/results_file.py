"""Reads, repairs after a crash, writes and syncs one append-only file of lines with checksums."""

from __future__ import annotations

import os
import shlex
import weakref
from array import array
from collections.abc import Callable, Container
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from redline.errors import JournalError
from redline.journal.sound_lines import Stretch, is_torn, read_stretches
from redline.process import (
    GONE,
    LockedFile,
    copy_mode,
    counted,
    free_name,
    open_alone,
    replace_file,
    sync_name,
    telling,
    unwritable,
    write_all,
)

_BLOCK_BYTES = 1 << 20
_ZERO = b"\0"
# How many bytes of a line's end are compared: they contain the line's checksum.
_TAIL_BYTES = 32


class ResultsLost(JournalError):
    """A results file was removed, moved, replaced or changed while lines were written to it.

    saved: says where its lines are now; "" until `ResultsFile.rescue` has found them.
    """

    saved = ""


class _Group(NamedTuple):
    """Lines that are read back together.

    begin, end: their byte offsets. seam: the last bytes before them. tail: their own last bytes.
    """

    begin: int
    end: int
    seam: bytes
    tail: bytes


class ResultsFile:
    """A file of results or failures, with one writer; `sync` and `check` may run while it writes.

    The constructor reads every line once: `on_found` gets all sound lines, in order. The file is
    then synced, because a process that died may have written lines without a sync.
    The damage that a crash leaves is repaired: a torn last line is cut off, and lines whose bytes
    a power loss has turned into zeros are moved to a file beside this one, such as
    labels.damaged-1.jsonl. Any other damaged line raises JournalError, because another program has
    probably written to the file; so does a file that another redline process is writing to.

    size_bytes: the size of the lines in the file. write_s: the total time of the writes in seconds,
    for which the callers of `flush` have waited.
    """

    def __init__(self, path: Path, on_found: Callable[[Stretch], None]) -> None:
        self.path = path
        self._pending: list[bytes] = []
        # Takes one whole line, which `flush` writes. Not a method, because it is called per row.
        self.add = self._pending.append
        self.size_bytes = 0
        self.write_s = 0.0
        self._synced_bytes: int | None = None
        self._tail = b""
        self._group = _Group(0, 0, b"", b"")
        self._own(open_alone(path, os.O_RDWR | os.O_CREAT))
        try:
            lost = self._load(on_found)
            with telling(path):
                # Absolute, because the working folder may change later.
                self._place = os.path.abspath(path)
                self._mend(lost)
                self._go_to_end()
        except BaseException:
            self.close()
            raise

    def flush(self) -> None:
        """Writes the lines taken. They then survive a crash of the process, but not of the machine.

        If the disk is full or broken, cuts the file back to its last whole line and raises
        JournalError.
        """
        pending = self._pending
        if not pending:
            return
        lines = b"".join(pending)
        pending.clear()
        written, begun_s = 0, monotonic()
        try:
            written = os.write(self._fd, lines)
            while written < len(lines):
                written += os.write(self._fd, lines[written:])
            self.write_s += monotonic() - begun_s
        except OSError as error:
            self.size_bytes += lines.rfind(b"\n", 0, written) + 1
            self._cut_back()
            raise unwritable(self.path, error) from error
        self.size_bytes += written
        self._tail = lines[-_TAIL_BYTES:]

    def end_group(self) -> None:
        """Ends the group of lines that `check` reads back: all flushed since the last group."""
        last = self._group
        if self.size_bytes > last.end:
            self._group = _Group(last.end, self.size_bytes, last.tail, self._tail)

    def check(self) -> None:
        """Reads the last group back from the file with this name. May be called in any thread.

        If the file was truncated, later lines are still written at their own offsets, so missing
        parts read as zeros, which JSON never contains. Raises ResultsLost if the name leads to
        another file, or if a part of the group is missing.
        """
        group = self._group
        with telling(self.path):
            if not self._is_in_place():
                raise ResultsLost(self._what_happened())
            at, last = group.begin - len(group.seam), b""
            size = len(group.seam) or _BLOCK_BYTES
            while at < group.end and (block := os.pread(self._fd, min(size, group.end - at), at)):
                if _ZERO in block or (at < group.begin and block != group.seam):
                    break
                at, size = at + len(block), _BLOCK_BYTES
                last = (last + block)[-_TAIL_BYTES:]
        if at < group.end or not last.endswith(group.tail):
            raise ResultsLost(
                f"{self.path} was truncated or overwritten while results were written"
            )

    def check_end(self) -> None:
        """Checks as `check` does, and also that the group is sound and that the file ends with it.

        Call it once nothing writes to the file any more. Raises ResultsLost.
        """
        self.check()
        group = self._group
        with telling(self.path):
            is_last = os.fstat(self._fd).st_size == group.end
            found = read_stretches(self._fd, group.begin)
            if not is_last or not all(stretch.keys for stretch in found):
                raise ResultsLost(f"{self.path} was changed by another program")

    def rescue(self, error: ResultsLost) -> None:
        """Saves the lines under a name if they have none; adds to `error` where they are. Blocks.

        Call it once nothing writes to the file any more. Another file that now has the name is not
        touched. Raises JournalError.
        """
        place, moved = Path(self._place), self._moved_to()
        again = "run the same command again to continue"
        count = counted(sum(len(found.keys) for found in read_stretches(self._fd)), "line")
        has_folder = os.path.isdir(os.path.dirname(os.path.realpath(place)))
        if self._is_in_place():
            where = self.path
            error.hint = (
                f"{again} with the rows that are missing; if it refuses a damaged line, "
                f"`redline repair {shlex.quote(str(self.path))}` moves it out"
            )
        elif moved is not None:
            where = moved
            back = f"move it back: {shlex.join(['mv', str(moved), str(place)])}; then {again}"
            error.hint = back if has_folder else GONE
        elif has_folder and os.path.exists(place):
            where = free_name(place, "rescued")
            self._copy_to(where)
            back = shlex.join(["mv", str(where), str(place)])
            error.hint = f"to continue with these lines: {back}; then run the same command again"
        else:
            with telling(place):
                place.parent.mkdir(parents=True, exist_ok=True)
            self._copy_to(place)
            where = self.path
            error.hint = f"the lines were put back: {again}"
        found = f"{count} in {where}"
        error.saved = f"{error.saved}; {found}" if error.saved else found

    def _copy_to(self, path: Path) -> None:
        replace_file(path, copier(self._fd, array("Q", [0, self.size_bytes])))

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._place), os.fstat(self._fd))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _moved_to(self) -> Path | None:
        """Returns the current path of the open file; None if it has none or the path is unknown."""
        try:
            name = os.readlink(f"/proc/self/fd/{self._fd}")
            is_it = os.path.samestat(os.stat(name), os.fstat(self._fd))
        except OSError:
            return None
        return Path(name) if is_it else None

    def _what_happened(self) -> str:
        moved = self._moved_to()
        was = "removed" if moved is None else f"moved to {moved}"
        if os.path.exists(self._place):
            was = "replaced by another file" if moved is None else f"{was} and replaced"
        return f"{self.path} was {was} while results were written to it"

    def sync(self) -> None:
        """Makes all lines written so far durable. Blocks; may run in a thread during `flush`."""
        # Read before the call: a line written during the fsync may not be covered by it.
        size_bytes = self.size_bytes
        if size_bytes == self._synced_bytes:
            return
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self._synced_bytes = size_bytes

    def drop(
        self, keys: Container[int], keeps_last: Callable[[int], bool], aside: Path
    ) -> Path | None:
        """Moves the lines of these rows out, except the last line of a row if `keeps_last(key)`.

        The lines go to labels.outdated-1.jsonl beside `aside`, or the first such name that is free.
        Returns the path of that file; None if there are no such lines. Blocks. Raises JournalError.
        """
        self.flush()
        lines: dict[int, list[tuple[int, int]]] = {}
        for stretch in read_stretches(self._fd):
            for key, bounds in stretch.bounds():
                if key in keys:
                    lines.setdefault(key, []).append(bounds)
        for key, found in lines.items():
            if keeps_last(key):
                found.pop()
        out = array("Q", chain.from_iterable(sorted(chain.from_iterable(lines.values()))))
        if not out:
            return None
        moved = take_out(self.path, self._fd, out, free_name(aside, "outdated"))
        with telling(self.path):
            self._reopen()
            self._go_to_end()
        return moved

    def close(self) -> None:
        """Closes the file. Later writes fail, and do not reach a file with the same descriptor."""
        self._fd = -1
        self._close()

    def _reopen(self) -> None:
        """Continues with the file that has replaced this one."""
        self._close()
        self._own(open_alone(self.path, os.O_RDWR))
        self.size_bytes = os.fstat(self._fd).st_size

    def _go_to_end(self) -> None:
        """Moves to the end, where lines are written and the first group begins."""
        os.lseek(self._fd, self.size_bytes, os.SEEK_SET)
        seam = os.pread(self._fd, _TAIL_BYTES, max(0, self.size_bytes - _TAIL_BYTES))
        # An empty group: the next one begins here, after these last bytes.
        self._group = _Group(self.size_bytes, self.size_bytes, seam, seam)

    def _own(self, file: LockedFile) -> None:
        self._fd = file.fd
        # If an error keeps this object from being closed, its lock must still end with it.
        self._close = weakref.finalize(self, file.close)

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._fd, self.size_bytes)
            os.lseek(self._fd, self.size_bytes, os.SEEK_SET)
        except OSError:
            # The tail stays torn; the next run cuts it off.
            return

    def _load(self, on_found: Callable[[Stretch], None]) -> array[int]:
        """Reads all lines; returns the bounds (begin, end, ...) of lines a power loss has damaged.

        Sets `size_bytes` to the end of the last sound line. Raises JournalError for a line with any
        other damage.
        """
        lost = array("Q")
        number = 0
        for stretch in read_stretches(self._fd):
            number += len(stretch.lines)
            if stretch.keys:
                on_found(stretch)
                self.size_bytes = stretch.end
                continue
            line, begin = stretch.lines[0], stretch.begin
            if not line.endswith(b"\n") and is_torn(line):
                if lost:
                    lost.extend((begin, stretch.end))
            # JSON never contains a zero byte, but a block that was never written reads as zeros.
            elif _ZERO in line and (begin or is_torn(line) or line.startswith(_ZERO)):
                lost.extend((begin, stretch.end))
            else:
                raise JournalError(
                    f"line {number} of {self.path} is damaged",
                    where=f"byte {begin:,}",
                    hint="something else wrote to this file: `redline repair` on the results "
                    "file moves such lines out, then the same command processes their rows again; "
                    "or start over with --restart",
                )
        return lost

    def _mend(self, lost: array[int]) -> None:
        """Removes damaged lines, so that the file is `size_bytes` of whole lines, all durable."""
        has_torn_tail = self.size_bytes < os.fstat(self._fd).st_size
        if lost:
            take_out(self.path, self._fd, lost)
            self._reopen()
        elif has_torn_tail:
            os.ftruncate(self._fd, self.size_bytes)
        # A process may have died when lines that it wrote, or files that it created, renamed or
        # removed, were not durable yet. The tail that was cut must not reappear after new lines.
        self.sync()
        sync_name(self.path)


def take_out(path: Path, fd: int, bounds: array[int], aside: Path | None = None) -> Path:
    """Moves bytes of `path` to a new file, and returns the path of the new file.

    A crash leaves the old file or the shortened one, and loses no byte. fd: a descriptor of `path`;
    it still reads the old file afterwards. bounds: offsets begin, end, begin, end, ... aside: the
    path of the new file; None for the first free name like labels.damaged-1.jsonl. Raises
    JournalError; nothing has then changed, unless only the last sync failed.
    """
    aside = aside or free_name(path, "damaged")
    kept = array("Q", [0, *bounds, os.fstat(fd).st_size])
    replace_file(aside, copier(fd, bounds))
    try:
        replace_file(path, copier(fd, kept))
    except JournalError:
        # On a full disk, the next attempt needs the room that this copy takes. But if `path` is
        # already the new file, the lines are nowhere else.
        if _is_at(path, fd):
            aside.unlink(missing_ok=True)
        raise
    return aside


def _is_at(path: Path, fd: int) -> bool:
    """Whether the open file is certainly the one at `path`."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


def copier(fd: int, bounds: array[int]) -> Callable[[int], None]:
    """Returns a function that copies bytes of `fd`, and its mode, to a new descriptor.

    bounds: the offsets of these bytes: begin, end, begin, end, ...
    """

    def write(new_fd: int) -> None:
        copy_mode(fd, new_fd)
        blocks: list[bytes] = []
        size_bytes = 0
        for begin, end in zip(bounds[::2], bounds[1::2], strict=True):
            at = begin
            while at < end and (block := os.pread(fd, min(_BLOCK_BYTES, end - at), at)):
                at += len(block)
                blocks.append(block)
                size_bytes += len(block)
                if size_bytes >= _BLOCK_BYTES:
                    write_all(new_fd, blocks)
                    blocks, size_bytes = [], 0
        write_all(new_fd, blocks)

    return write
