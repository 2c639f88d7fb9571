"""A file that is still written to: whole lines only, each once, whatever befalls its name."""

from __future__ import annotations

import gzip
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.sources import CorruptInput, Row, open_source
from redline.sources import follow as module

HANGS_S = 20.0


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


class Reader:
    """Reads a source in a thread, as a run does."""

    def __init__(self, source: Any) -> None:
        self._rows: queue.Queue[Row | BaseException | None] = queue.Queue()
        self._source = source
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for batch in self._source.batches():
                for row in batch:
                    self._rows.put(row)
            self._rows.put(None)
        except ConfigError as error:
            self._rows.put(error)

    def next(self) -> Row | BaseException | None:
        return self._rows.get(timeout=HANGS_S)

    def is_waiting(self, for_s: float) -> bool:
        """No row comes meanwhile."""
        try:
            self._rows.put(self._rows.get(timeout=for_s))
        except queue.Empty:
            return True
        return False

    def close(self) -> None:
        self._source.close()
        self._thread.join(HANGS_S)
        assert not self._thread.is_alive()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "rows.jsonl"
    found.touch()
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "SETTLED_S", 0.1)


def test_the_working_folder_may_change_while_it_is_followed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = path.parent / "other"
    other.mkdir()
    (other / path.name).write_text('{"n": "wrong"}\n')
    monkeypatch.chdir(path.parent)
    reader = Reader(open_source(path.name, is_followed=True))
    monkeypatch.chdir(other)
    time.sleep(2 * module.SETTLED_S)
    append(path, '{"n": 1}\n')
    path.rename(path.with_name("old"))
    path.write_text('{"n": 2}\n')
    found = [reader.next(), reader.next()]
    reader.close()
    assert [row.data for row in found if isinstance(row, Row)] == [{"n": 1}, {"n": 2}]


def test_a_torn_line_is_no_row_until_it_is_whole(path: Path) -> None:
    path.write_text('{"n": 1}\n{"n": 2}')
    reader = Reader(open_source(path, is_followed=True))
    found = [reader.next()]
    append(path, " ")
    append(path, "\n{")
    found.append(reader.next())
    reader.close()
    assert [row.data for row in found if isinstance(row, Row)] == [{"n": 1}, {"n": 2}]
    assert reader.next() is None


def test_a_line_longer_than_a_block_comes_in_pieces(path: Path) -> None:
    path.write_text("0123456789" * 2 + "\nrest")
    file = module.FollowedFile(path)
    file.open()
    assert [file.read(8) for _ in range(3)] == [b"01234567", b"89012345", b"6789\n"]
    file.close()


def test_a_file_that_is_cut_ends_the_run_and_says_so(path: Path) -> None:
    path.write_text('{"n": 1}\n{"n": 2}\n')
    reader = Reader(open_source(path, is_followed=True))
    assert [isinstance(reader.next(), Row) for _ in range(2)] == [True] * 2
    os.truncate(path, 9)
    error = reader.next()
    reader.close()
    assert isinstance(error, CorruptInput)
    assert error.what == f"{path} was truncated to 9 bytes while it was being followed"


def test_a_file_that_is_cut_and_grows_again_while_nobody_reads_ends_the_run(path: Path) -> None:
    path.write_text("1\n2\n3\n4\n")
    file = module.FollowedFile(path)
    file.open()
    assert file.read(2) == b"1\n"
    os.truncate(path, 0)
    seen_since(path)
    # Beyond what was read, and shorter than before.
    append(path.with_suffix(".1"), "5\n6\n7\n")
    with pytest.raises(CorruptInput, match="was truncated to 0 bytes while it was being followed"):
        file.read(2)
    file.close()


def test_a_file_that_is_cut_before_its_turn_ends_the_run_at_its_turn(path: Path) -> None:
    path.write_text("1\n")
    file = module.FollowedFile(path)
    file.open()
    path.rename(path.with_suffix(".2"))
    path.write_text("2\n3\n")
    wait_until(lambda: is_open(path))
    os.truncate(path, 2)
    seen_since(path)
    assert [file.read(100), file.read(100)] == [b"1\n", b""]
    file.open()
    with pytest.raises(CorruptInput, match="was truncated to 2 bytes while it was being followed"):
        file.read(100)
    file.close()


def seen_since(path: Path) -> None:
    """Gives the name to another file, and waits until it is open: the old one was looked at."""
    path.rename(path.with_suffix(".1"))
    path.write_text("")
    wait_until(lambda: is_open(path))


def test_what_is_still_written_to_a_renamed_file_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED_S", 3600.0)
    old = path.with_suffix(".1")
    path.write_text("1\n")
    reader = Reader(open_source(path, is_followed=True))
    reader.next()
    path.rename(old)
    path.write_text('{"n": 3}\n')
    wait_until(lambda: is_open(path))
    assert reader.is_waiting(for_s=0.1)
    append(old, '{"n": 2}\n')
    row = reader.next()
    reader.close()
    assert isinstance(row, Row)
    assert row.data == {"n": 2}


def test_rows_come_as_they_are_written_and_go_on_in_the_next_file(path: Path) -> None:
    reader = Reader(open_source(path, is_followed=True))
    for number in range(1, 4):
        append(path, f'{{"n": {number}}}\n')
        row = reader.next()
        assert isinstance(row, Row)
        assert (row.number, row.line, row.data) == (number, number, {"n": number})
    append(path, '{"n": 4}')
    path.rename(path.with_suffix(".1"))
    path.write_text('\n{"n": 5}\n')
    found = [reader.next(), reader.next()]
    assert [(row.number, row.line, row.data) for row in found if isinstance(row, Row)] == [
        (4, 4, {"n": 4}),
        (5, 2, {"n": 5}),
    ]
    reader.close()
    assert reader.next() is None


def test_an_empty_file_is_waited_for_and_closing_ends_the_wait(path: Path) -> None:
    source = open_source(path, is_followed=True)
    assert (source.total_rows, source.read_fraction()) == (None, None)
    reader = Reader(source)
    reader.close()
    assert reader.next() is None


def test_a_bad_line_is_a_bad_row(path: Path) -> None:
    path.write_text('nonsense\n{"n": 1}\n')
    reader = Reader(open_source(path, is_followed=True))
    row = reader.next()
    assert isinstance(row, Row)
    assert row.data is None
    assert reader.next() is not None
    reader.close()


def unfollowed(folder: Path) -> dict[str, tuple[object, str]]:
    (folder / "rows.csv").write_text("a\n1\n")
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n'))
    (folder / "packed.jsonl").write_bytes(gzip.compress(b'{"n": 1}\n'))
    (folder / "array.jsonl").write_text('[{"n": 1}]')
    os.mkfifo(folder / "pipe")
    only_lines = "cannot be followed: only files of JSON lines can"
    return {
        "stdin": ("-", "stdin is read until it ends"),
        "object": ("s3://bucket/rows.jsonl", "cannot be followed: an object does not grow"),
        "stream": ("redis://h/s?group=g", "need not be followed: a stream has no end"),
        "iterable": ([{"n": 1}], "only a file can be followed"),
        "folder": (folder, only_lines),
        "csv": (folder / "rows.csv", only_lines),
        "gz": (folder / "rows.jsonl.gz", only_lines),
        "packed": (folder / "packed.jsonl", "is compressed, so it cannot be followed"),
        "array": (folder / "array.jsonl", "is one JSON array"),
        "pipe": (folder / "pipe", "is a pipe, which is read until it ends"),
        "missing": (folder / "none.jsonl", "does not exist"),
    }


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    for rows, message in unfollowed(tmp_path).values():
        with pytest.raises(ConfigError, match=message):
            open_source(rows, is_followed=True)


def test_files_that_have_the_name_in_turn_are_all_read_though_nobody_reads_meanwhile(
    path: Path,
) -> None:
    source = open_source(path, is_followed=True)
    append(path, '{"n": 1}\n')
    batches = source.batches()
    assert [row.data for row in next(batches)] == [{"n": 1}]
    for number in range(2, 5):
        path.rename(path.with_suffix(f".{number}"))
        path.write_text(f'{{"n": {number}}}\n')
        # Nothing is read; each file has the name until it was seen.
        wait_until(lambda: is_open(path))
    path.with_suffix(".3").unlink()
    assert [next(batches)[0].data for _ in range(3)] == [{"n": number} for number in range(2, 5)]
    source.close()


def test_a_file_that_is_renamed_before_the_first_read_is_read(path: Path) -> None:
    append(path, '{"n": 1}\n')
    source = open_source(path, is_followed=True)
    path.rename(path.with_suffix(".1"))
    append(path, '{"n": 2}\n')
    wait_until(lambda: is_open(path))
    batches = source.batches()
    assert [next(batches)[0].data for _ in range(2)] == [{"n": 1}, {"n": 2}]
    source.close()
    assert not is_open(path)


def is_open(path: Path) -> bool:
    """This process has the file open that has the name now."""
    wanted = os.stat(path)
    for fd in range(3, 512):
        try:
            if os.path.samestat(wanted, os.fstat(fd)):
                return True
        except OSError:
            continue
    return False


def wait_until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + HANGS_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.01)
