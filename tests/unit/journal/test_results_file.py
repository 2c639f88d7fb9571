"""A file that is replaced stays where and what it was, and what a file is said to be is so."""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redline.errors import JournalError
from redline.journal import results_file, rewrite
from redline.process import drop_unfinished, files, replace_file, unwritable


def replaced(path: Path) -> None:
    replace_file(path, lambda fd: os.write(fd, b"new") and None)


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    target.write_bytes(b"old")
    link.symlink_to(target)
    names: list[str] = []

    def write(fd: int) -> None:
        os.write(fd, b"new")
        # One file system cannot be renamed into another one.
        names.extend(path.name for path in target.parent.iterdir())

    replace_file(link, write)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(names) == [".target.unfinished", "target"]


def test_links_to_links_and_linked_folders_are_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "folder").symlink_to(real)
    (real / "target").write_bytes(b"old")
    (tmp_path / "one").symlink_to(tmp_path / "folder" / "target")
    (tmp_path / "two").symlink_to("one")
    replaced(tmp_path / "two")
    assert (real / "target").read_bytes() == b"new"
    assert (tmp_path / "two").is_symlink()
    assert (tmp_path / "one").is_symlink()


def test_a_link_that_leads_nowhere_yet_gets_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    replaced(tmp_path / "link")
    assert (tmp_path / "target").read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink()


def test_what_a_death_left_beside_a_links_target_is_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder / "target")
    (folder / ".target.unfinished").touch()
    drop_unfinished(tmp_path / "link")
    assert not list(folder.iterdir())


def test_a_failed_replacing_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(fd: int) -> None:
        os.write(fd, b"ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(JournalError, match=r"cannot write .*: No space left") as caught:
        replace_file(path, write)
    assert caught.value.hint.startswith("make room")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("number", "said"),
    [(28, "make room"), (122, "make room"), (27, "raise `ulimit"), (2, "its folder does not exist"),
     (5, "check that disk"), (30, "check that disk"), (13, "make it writable")],
)  # fmt: skip
def test_the_hint_says_what_to_do_about_this_error(number: int, said: str) -> None:
    error = unwritable(Path("labels.jsonl"), OSError(number, os.strerror(number)))
    assert error.hint.startswith(said)
    assert "continue" in error.hint


def sealed(number: int, size: int = 0) -> bytes:
    """The line of row `number`. size: of its output, in bytes."""
    fields = {"v": 1, "hash": f"{number:016x}", "row": number, "output": "x" * size}
    body = json.dumps(fields, separators=(",", ":"))[:-1].encode()
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def rewritings(path: Path) -> Iterator[Any]:
    """All ways in which a finished file is written anew."""
    path.write_bytes(sealed(2) + sealed(1))
    yield lambda: rewrite.put_in_order(path, array("Q", [1, 2]))
    path.write_bytes(sealed(2) + sealed(1) + sealed(1))
    yield lambda: rewrite.drop_mended(path, lambda key: False)
    yield lambda: files.write_file(path, sealed(2) + sealed(1))


def test_a_file_that_is_written_anew_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    for again in rewritings(path):
        path.chmod(0o600)
        inode = path.stat().st_ino
        again()
        assert path.stat().st_ino != inode
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(path.read_bytes().splitlines()) == 2


def test_lines_that_are_moved_out_stay_although_the_last_sync_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, aside = tmp_path / "labels.jsonl", tmp_path / "aside.jsonl"
    path.write_bytes(sealed(2) + sealed(1))
    sync_name = files.sync_name

    def fail(name: Path) -> None:
        sync_name(name)
        if name == path:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "sync_name", fail)
    bounds = array("Q", [0, len(sealed(2))])
    with path.open("rb") as file, pytest.raises(JournalError, match="Input/output error"):
        results_file.take_out(path, file.fileno(), bounds, aside)
    assert path.read_bytes() == sealed(1)
    assert aside.read_bytes() == sealed(2)


def test_a_file_larger_than_a_buffer_is_sorted_whole(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_bytes(b"".join(sealed(number, 100_000) for number in range(50, 0, -1)))
    rewrite.put_in_order(path, array("Q", range(1, 51)))
    assert path.read_bytes() == b"".join(sealed(number, 100_000) for number in range(1, 51))


def test_a_disk_that_takes_a_part_at_a_time_gets_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    path = tmp_path / "labels.jsonl"
    path.write_bytes(sealed(2) + sealed(1))
    rewrite.put_in_order(path, array("Q", [1, 2]))
    assert path.read_bytes() == sealed(1) + sealed(2)


def test_a_file_is_free_once_it_is_closed_though_a_forked_process_has_it_open(
    tmp_path: Path,
) -> None:
    """As the workers of a pool have that were started in the middle of a run."""
    path = tmp_path / "labels.jsonl"
    file = results_file.ResultsFile(path, lambda found: None)
    with pytest.raises(JournalError, match="is being written by another redline"):
        results_file.ResultsFile(path, lambda found: None)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        file.close()
        results_file.ResultsFile(path, lambda found: None).close()
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)


def test_a_file_whose_owner_never_closed_it_is_free_when_it_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    file = results_file.ResultsFile(path, lambda found: None)
    del file
    results_file.ResultsFile(path, lambda found: None).close()
