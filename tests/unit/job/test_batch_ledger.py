"""The notes on batches: what they say is what is replayed, and a torn tail takes nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redline.calls.cost import NOTHING, Amount
from redline.errors import JournalError
from redline.job.batch import Ledger, Note
from redline.journal import Output

NOTES = [
    Note(at="part", part=1, rows=10, url="/v1/x", model="m", worst=Amount(100, 10)),
    Note(at="file", part=1, file="file-1"),
    Note(at="making", part=1, wall_s=5.0),
    Note(at="batch", part=1, batch="batch-1"),
    Note(at="part", part=2, rows=3, url="/v1/x", model="m", worst=Amount(30, 3)),
    Note(at="refused", part=1),
    Note(at="making", part=1, wall_s=6.0),
    Note(at="batch", part=1, batch="batch-2"),
    Note(at="pace", row_s=0.5, row_tokens=20.0),
    Note(at="done", part=2, spent=Amount(7, 2)),
]


@pytest.fixture
def output(tmp_path: Path) -> Output:
    made = Output(path=tmp_path / "labels.jsonl")
    made.state_path.mkdir()
    return made


def written(output: Output, notes: list[Note] = NOTES) -> Ledger:
    ledger = Ledger(output)
    ledger.begin("http://here/v1")
    for note in notes:
        if note.at == "part":
            ledger.part_path(note.part).write_text("{}\n")
        ledger.write(note)
    ledger.close()
    return ledger


def state(ledger: Ledger) -> tuple[Any, ...]:
    parts = {number: (p.state, p.file, p.batches) for number, p in ledger.parts.items()}
    return parts, ledger.spent, ledger.reserved, ledger.run, ledger.place, ledger.pace


def test_what_was_noted_is_replayed(output: Output) -> None:
    live = written(output)
    again = Ledger(output)
    assert state(again) == state(live)
    assert state(again)[:3] == (
        {1: ("running", "file-1", ["batch-1", "batch-2"])},
        Amount(7, 2),
        Amount(100, 10),
    )
    assert again.place == "http://here/v1"
    assert again.next_number() == 3
    # Opening it for writing changes nothing, and removes files that no part has.
    stray = again.folder / "part-9.jsonl"
    stray.write_text("x")
    again.begin("elsewhere")
    again.close()
    assert not stray.exists()
    assert again.part_path(1).exists()
    assert state(Ledger(output)) == state(live)


def test_a_tail_cut_at_any_byte_costs_that_note_only(output: Output) -> None:
    written(output)
    path = output.state_path / "batches.jsonl"
    data = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        ledger = Ledger(output)
        ledger.begin("http://here/v1")
        ledger.close()
        kept = path.read_bytes()
        # A file without any note begins anew.
        assert kept == data[: ends[whole - 1]] if whole else kept.startswith(b'{"at":"run"')


def test_a_last_note_whose_beginning_a_power_failure_lost_costs_that_note_only(
    output: Output,
) -> None:
    written(output)
    path = output.state_path / "batches.jsonl"
    data = path.read_bytes()
    begin = data[:-1].rfind(b"\n") + 1
    path.write_bytes(data[:begin] + bytes(10) + data[begin + 10 :])
    ledger = Ledger(output)
    ledger.begin("http://here/v1")
    ledger.close()
    assert path.read_bytes() == data[:begin]


def test_a_damaged_note_in_the_middle_is_refused_and_so_is_an_ended_last_one(
    output: Output,
) -> None:
    written(output)
    path = output.state_path / "batches.jsonl"
    data = path.read_bytes()
    for at in (20, len(data) - 5):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(JournalError, match="is damaged"):
            Ledger(output)


def test_nothing_is_made_by_looking_and_what_is_forgotten_is_gone(output: Output) -> None:
    ledger = Ledger(output)
    assert (ledger.parts, ledger.spent, ledger.reserved) == ({}, NOTHING, NOTHING)
    assert list(output.state_path.iterdir()) == []
    made = written(output)
    made.forget()
    assert Ledger(output).run == ""
