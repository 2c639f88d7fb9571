"""The file of what is spent: it outlives the process, and no damage passes for a sum."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from redline.calls.cost import NOTHING, Amount
from redline.errors import JournalError
from redline.job.outputs import AccountFile, path_of
from redline.journal import Output

SUM = Amount(5 * 10**12 + 1, 123_456)


@pytest.fixture
def output(tmp_path: Path) -> Output:
    made = Output(path=tmp_path / "labels.jsonl")
    made.state_path.mkdir()
    return made


def test_a_new_file_says_nothing_is_spent(output: Output) -> None:
    account = AccountFile(output, is_new=False)
    assert account.spent == NOTHING
    account.close()
    assert path_of(output) == output.path.parent / "labels.redline" / "spent"


def test_a_sum_outlives_the_process(output: Output) -> None:
    """What was written last is what the next process reads, without any closing."""
    dying = AccountFile(output, is_new=True)
    for amount in (SUM, NOTHING, Amount(10**30, 10**15), SUM):
        dying.keep(amount)
        reader = AccountFile(output, is_new=False)
        assert reader.spent == amount
        reader.close()
    dying.close()


def test_a_new_output_begins_at_nothing(output: Output) -> None:
    account = AccountFile(output, is_new=True)
    account.keep(SUM)
    account.close()
    again = AccountFile(output, is_new=True)
    assert again.spent == NOTHING
    again.close()


def written(output: Output) -> bytes:
    account = AccountFile(output, is_new=True)
    account.keep(SUM)
    account.close()
    return path_of(output).read_bytes()


def test_every_damaged_byte_is_an_error_and_never_a_sum(output: Output) -> None:
    good = written(output)
    for at in range(len(good.rstrip())):
        damaged = bytearray(good)
        damaged[at] ^= 1
        path_of(output).write_bytes(damaged)
        with pytest.raises(JournalError, match="is damaged") as caught:
            AccountFile(output, is_new=False)
        assert "--restart" in caught.value.hint


@pytest.mark.parametrize("cut", [0, 1, 40, 159])
def test_a_cut_file_is_an_error(output: Output, cut: int) -> None:
    path_of(output).write_bytes(written(output)[:cut])
    with pytest.raises(JournalError, match="is damaged"):
        AccountFile(output, is_new=False)


@pytest.mark.parametrize("more", [b"x", b"\0" * 160])
def test_a_longer_file_is_an_error(output: Output, more: bytes) -> None:
    path_of(output).write_bytes(written(output) + more)
    with pytest.raises(JournalError, match="is damaged"):
        AccountFile(output, is_new=False)


def test_zeros_are_no_sum(output: Output) -> None:
    path_of(output).write_bytes(bytes(160))
    with pytest.raises(JournalError, match="is damaged"):
        AccountFile(output, is_new=False)


def test_a_file_that_cannot_be_opened_is_told(output: Output) -> None:
    path_of(output).mkdir()
    with pytest.raises(JournalError, match="cannot open"):
        AccountFile(output, is_new=False)


def test_nothing_is_left_open_by_a_damaged_file(output: Output) -> None:
    path_of(output).write_bytes(b"")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(JournalError):
        AccountFile(output, is_new=False)
    assert len(os.listdir("/proc/self/fd")) <= before
