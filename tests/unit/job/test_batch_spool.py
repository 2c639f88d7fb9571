"""The rows of a part on disk: written once, read by key, uploaded as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from redline.calls import Request
from redline.calls.cost import Amount
from redline.errors import JournalError
from redline.job.batch import Kept, PartReader, PartWriter, chunks_of, marked_keys_of, upload_of
from redline.job.work import Picked
from redline.sources import Row


def picked(number: int) -> Picked:
    data = {"custom_id": f"dup{number % 2}", "text": f"é {number}"}
    key = (1 << 63) + number if number else 0
    return Picked(Row(number, number + 1, data, b"..."), key, False)


def written(path: Path, count: int) -> PartWriter:
    writer = PartWriter(path)
    for number in range(count):
        request = Request(url="/v1/x", body={"n": number})
        writer.add(Kept.of(picked(number), request, Amount(10 * number, number)))
    writer.finish()
    return writer


def test_rows_come_back_by_the_name_that_the_provider_knows(tmp_path: Path) -> None:
    path = tmp_path / "part-1.jsonl"
    writer = written(path, 5)
    assert (writer.rows, writer.worst) == (5, Amount(100, 10))
    upload = upload_of(path)
    assert len(upload) == writer.upload_bytes
    lines = [json.loads(line) for line in upload.splitlines()]
    names = [line["custom_id"] for line in lines]
    assert len(set(names)) == 5
    assert all(len(name) == 16 for name in names)
    assert [line["body"] for line in lines] == [{"n": number} for number in range(5)]
    assert {(line["method"], line["url"]) for line in lines} == {("POST", "/v1/x")}
    assert [f"{key:016x}" for key, _ in marked_keys_of(path)] == names
    reader = PartReader(path)
    assert len(reader) == 5
    offset = reader.pop(names[3])
    assert offset is not None
    kept = reader.read(offset)
    back = kept.picked
    assert (back.key, back.row.number, back.row.line, back.row.data) == (
        *(picked(3).key, 3, 4),
        picked(3).row.data,
    )
    assert kept.asked(("a",)) == Request(url="/v1/x", body={"n": 3}, output_path=("a",))
    # Each once, and nothing for names that are not ours.
    assert reader.pop(names[3]) is None
    assert reader.pop("not hex") is None
    assert reader.pop("ffffffffffffffff") is None
    assert reader.pop_line(1) == 0
    assert [reader.pop_line(number) for number in (99, 6, 0, -1)] == [None] * 4
    assert [reader.read(offset).row for offset in reader.rest()] == [1, 2, 4]
    assert len(reader) == 0
    reader.close()


def test_results_are_read_some_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(600)))
    sizes = [len(chunk) for chunk in chunks_of(path)]
    assert sum(sizes) == 600
    assert len(sizes) > 1


def test_a_part_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path / "part-1.jsonl")
    writer.drop()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(JournalError):
        PartReader(tmp_path / "part-1.jsonl")


def test_a_part_that_a_full_disk_has_not_taken_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "part-1.jsonl"
    path.symlink_to("/dev/full")
    writer = PartWriter(path)
    row = Kept.of(picked(0), Request(url="/v1/x", body={"text": "x" * 40_000}))
    for _ in range(3):
        writer.add(row)
    with pytest.raises(JournalError, match="No space left"):
        writer.add(row)
    writer.drop()
    assert not path.is_symlink()
