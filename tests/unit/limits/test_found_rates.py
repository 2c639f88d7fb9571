"""What was found is there next time, and no file there can hurt a run."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from redline.errors import ConfigError
from redline.limits import Rate
from redline.limits.discover import FoundRates

URL = "https://api.example.com/v1"
KEY = "5f2e"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "rates.json"


def test_a_rate_is_recalled_by_endpoint_and_model(path: Path) -> None:
    FoundRates(path).remember(URL, KEY, "small", Rate(20, 1.0))
    memory = FoundRates(path)
    memory.remember(URL, KEY, "large", Rate(600, 60.0))
    assert memory.recall(URL, KEY, "small") == Rate(20, 1.0)
    assert memory.recall(f"{URL}/", KEY, "large") == Rate(600, 60.0)
    assert memory.recall(URL, KEY, "other") is None
    assert memory.recall("http://api.example.com/v1", KEY, "small") is None


def test_the_newest_rate_counts(path: Path) -> None:
    memory = FoundRates(path)
    for count in (10, 30, 20):
        memory.remember(URL, KEY, "m", Rate(count, 1.5))
    assert memory.recall(URL, KEY, "m") == Rate(20, 1.5)
    assert len(json.loads(path.read_text())["rates"]) == 1


def test_the_oldest_entries_are_dropped(path: Path) -> None:
    memory = FoundRates(path)
    memory.remember(URL, KEY, "first", Rate(1, 1.0))
    for number in range(256):
        memory.remember(URL, KEY, f"model-{number}", Rate(number + 1, 1.0))
    assert memory.recall(URL, KEY, "first") is None
    assert memory.recall(URL, KEY, "model-0") == Rate(1, 1.0)
    assert memory.recall(URL, KEY, "model-255") == Rate(256, 1.0)


def test_no_key_is_kept(path: Path) -> None:
    url = "https://user:sk-secret@api.example.com/v1?key=sk-secret#sk-secret"
    memory = FoundRates(path)
    memory.remember(url, KEY, "m", Rate(2, 1.0))
    assert memory.recall(url, KEY, "m") == memory.recall(URL, KEY, "m") == Rate(2, 1.0)
    assert "secret" not in path.read_text()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"v": 1, "rates": [{"endpoint": "\xff"}]}',
        b"[1, 2]",
        b'{"v": 2, "rates": []}',
        b'{"v": 1, "rates": [{"endpoint": "a"}]}',
        b'{"v": 1, "rates": [{"endpoint": "https://api.example.com/v1", "model": "m",'
        b' "count": 0, "window_s": -1}]}',
        b'{"v": 1, "rates": []}' + b" " * (1 << 20),
    ],
)
def test_a_damaged_or_foreign_file_counts_as_empty(path: Path, data: bytes) -> None:
    memory = FoundRates(path)
    path.write_bytes(data)
    assert memory.recall(URL, KEY, "m") is None
    memory.remember(URL, KEY, "m", Rate(5, 10.0))
    assert memory.recall(URL, KEY, "m") == Rate(5, 10.0)


def test_nothing_is_left_beside_the_file(path: Path) -> None:
    memory = FoundRates(path)
    memory.remember(URL, KEY, "m", Rate(5, 10.0))
    assert list(path.parent.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "rates.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot be saved"):
            FoundRates(path)


def test_a_disk_that_fails_later_does_not_end_the_run(path: Path) -> None:
    memory = FoundRates(path)
    memory.remember(URL, KEY, "m", Rate(5, 10.0))
    path.unlink()
    path.parent.rmdir()
    memory.remember(URL, KEY, "m", Rate(6, 10.0))
    assert memory.recall(URL, KEY, "m") is None
    path.parent.write_text("a file takes the folder's place")
    memory.remember(URL, KEY, "m", Rate(6, 10.0))


def _write_many(path: Path, name: str) -> None:
    memory = FoundRates(path)
    for count in range(1, 41):
        memory.remember(URL, KEY, name, Rate(count, 1.0))


def test_the_file_is_whole_whoever_writes(path: Path) -> None:
    path.parent.mkdir()
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    try:
        while any(writer.is_alive() for writer in writers):
            writers[0].join(0.005)
            if path.exists():
                assert json.loads(path.read_text())["v"] == 1
    finally:
        for writer in writers:
            writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert Rate(40, 1.0) in (FoundRates(path).recall(URL, KEY, name) for name in ("a", "b"))
