"""What a run refuses is taken out of a results file and kept; nothing else is touched."""

from __future__ import annotations

import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError, JournalError
from redline.job.outputs import Repair, repair
from redline.journal import Output, OutputLock, ResultsFile


def line(number: int, output: str = "yes") -> bytes:
    """The line of row `number`, sealed."""
    fields = {"v": 1, "hash": f"{number:016x}", "row": number, "output": output}
    body = json.dumps(fields, separators=(",", ":"))[:-1]
    return b'%s,"crc":"%08x"}\n' % (body.encode(), zlib.crc32(body.encode()))


GOOD = [line(number) for number in range(1, 6)]
WRONG = {
    "an edited line": GOOD[1].replace(b"yes", b"yea"),
    "a cut line": GOOD[1][:-9] + b"\n",
    "a line of something else": b"seen by Ines\n",
    "another program's JSON": b'{"a": 1}\n',
    "an empty line": b"\n",
    "not UTF-8": b"\xff\xfe{\n",
    "a row twice": GOOD[0],
    "a row twice, answered otherwise": line(1, "no"),
    "many lines": b"one\ntwo\nthree\n",
    "a line above 1 MB": b"x" * 1_500_000 + b"\n",
}
# What a run itself moves aside.
LOST = {"zeros": bytes(5000) + b"\n", "zeros in a line": GOOD[1][:30] + bytes(9) + GOOD[1][39:]}
TAILS = {"a torn tail": GOOD[1][:30], "a line without its end": line(9)[:-1], "zeros": bytes(64)}


@pytest.fixture
def output(tmp_path: Path) -> Output:
    """An output of redline with nothing in it yet."""
    output = Output(path=tmp_path / "labels.jsonl")
    output.state_path.mkdir()
    (output.state_path / "manifest.json").write_text('{"settings": {}}')
    return output


def opened(path: Path) -> list[str]:
    """The keys of the lines that a run finds. Raises JournalError where it refuses the file."""
    found: list[str] = []

    def hear(stretch: Any) -> None:
        for key in stretch.keys:
            if format(key, "016x") in found:
                raise JournalError("twice")
            found.append(format(key, "016x"))

    ResultsFile(path, hear).close()
    return found


def aside(done: Repair) -> bytes:
    assert done.aside is not None
    return done.aside.read_bytes()


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_what_a_run_refuses_goes_out_and_every_other_line_stays_byte_for_byte(
    output: Output, wrong: bytes
) -> None:
    first, rest = b"".join(GOOD[:3]), b"".join(GOOD[3:])
    output.path.write_bytes(first + wrong + rest)
    with pytest.raises(JournalError):
        opened(output.path)
    (done,) = repair(output)
    assert output.path.read_bytes() == first + rest
    assert aside(done) == wrong
    assert done.kept == len(GOOD)
    assert done.damaged + done.repeated == wrong.count(b"\n")
    assert opened(output.path) == [f"{number:016x}" for number in range(1, 6)]


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
def test_what_a_power_loss_left_goes_out_as_in_a_run(output: Output, lost: bytes) -> None:
    files = []
    for take_out in (lambda: repair(output), lambda: opened(output.path)):
        output.path.write_bytes(b"".join(GOOD[:3]) + lost + b"".join(GOOD[3:]))
        take_out()
        assert output.path.read_bytes() == b"".join(GOOD)
        files.append(output.path.parent / f"labels.damaged-{len(files) + 1}.jsonl")
    assert [file.read_bytes() for file in files] == [lost, lost]


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_a_tail_without_its_end_goes_out(output: Output, tail: bytes) -> None:
    output.path.write_bytes(b"".join(GOOD) + tail)
    (done,) = repair(output)
    assert output.path.read_bytes() == b"".join(GOOD)
    assert (aside(done), done.kept, done.damaged, done.repeated) == (tail, 5, 1, 0)


def test_what_is_scattered_is_kept_aside_in_its_order(output: Output) -> None:
    wrong = list(WRONG.values())
    pairs = [*zip(wrong, GOOD, strict=False)]
    output.path.write_bytes(b"".join(bad + good for bad, good in pairs) + b"torn")
    (done,) = repair(output)
    assert output.path.read_bytes() == b"".join(GOOD)
    assert aside(done) == b"".join(wrong[: len(pairs)]) + b"torn"


def test_of_a_row_that_stands_twice_the_first_sound_line_stays(output: Output) -> None:
    """A damaged line before it does not count as the row's first."""
    damaged = line(1, "first").replace(b"first", b"worst")
    output.path.write_bytes(damaged + line(1, "second") + GOOD[1] + line(1, "third"))
    (done,) = repair(output)
    assert output.path.read_bytes() == line(1, "second") + GOOD[1]
    assert aside(done) == damaged + line(1, "third")
    assert (done.damaged, done.repeated) == (1, 1)


@pytest.mark.parametrize("wrong", [b"", b"seen by Ines\n"])
def test_a_file_with_nothing_to_repair_is_not_touched(output: Output, wrong: bytes) -> None:
    output.path.write_bytes(b"".join(GOOD))
    output.failed_path.write_bytes(wrong + GOOD[0] + GOOD[0])
    before = os.stat(output.path)
    done, failures = repair(output)
    assert (done.kept, done.damaged, done.repeated, done.aside) == (5, 0, 0, None)
    after = os.stat(output.path)
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (failures.aside is None) == (not wrong)


def test_repairing_twice_changes_nothing_more(output: Output) -> None:
    output.path.write_bytes(GOOD[0] + b"notes\n" + GOOD[1])
    repair(output)
    files = sorted(path.name for path in output.path.parent.iterdir())
    inode = output.path.stat().st_ino
    assert [done.aside for done in repair(output)] == [None]
    assert output.path.stat().st_ino == inode
    assert sorted(path.name for path in output.path.parent.iterdir()) == files


def test_what_an_earlier_repair_took_out_stays(output: Output) -> None:
    for text in (b"one\n", b"two\n"):
        output.path.write_bytes(GOOD[0] + text)
        repair(output)
    folder = output.path.parent
    assert (folder / "labels.damaged-1.jsonl").read_bytes() == b"one\n"
    assert (folder / "labels.damaged-2.jsonl").read_bytes() == b"two\n"


def test_the_failures_are_repaired_too_and_a_failure_that_was_tried_again_is_no_damage(
    output: Output,
) -> None:
    output.path.write_bytes(GOOD[0])
    output.failed_path.write_bytes(GOOD[1] + b"notes\n" + GOOD[2] + GOOD[1] + GOOD[0])
    _, failures = repair(output)
    assert output.failed_path.read_bytes() == GOOD[1] + GOOD[2] + GOOD[1] + GOOD[0]
    assert failures.aside == output.path.parent / "labels.failed.damaged-1.jsonl"
    assert aside(failures) == b"notes\n"


def test_a_linked_output_is_repaired_where_the_link_leads(output: Output, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "run.jsonl"
    target.parent.mkdir()
    target.write_bytes(GOOD[0] + b"notes\n")
    output.path.symlink_to(target)
    (done,) = repair(output)
    assert output.path.is_symlink()
    assert target.read_bytes() == GOOD[0]
    assert aside(done) == b"notes\n"


def test_a_file_that_its_owner_alone_may_read_stays_so(output: Output) -> None:
    output.path.write_bytes(GOOD[0] + b"notes\n")
    output.path.chmod(0o600)
    (done,) = repair(output)
    assert done.aside is not None
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (output.path, done.aside)]
    assert modes == [0o600, 0o600]


def test_nothing_is_repaired_while_a_run_writes(output: Output) -> None:
    data = GOOD[0] + b"notes\n" + GOOD[1]
    output.path.write_bytes(data)
    with OutputLock(output), pytest.raises(ConfigError, match="being written by another redline"):
        repair(output)
    assert output.path.read_bytes() == data
    assert repair(output)[0].damaged == 1


@pytest.mark.parametrize("foreign", [b"my notes\n", b"", b'{"a": 1}\n', b"\0" * 100])
def test_a_file_that_is_none_of_redlines_is_left_alone(tmp_path: Path, foreign: bytes) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_bytes(foreign)
    with pytest.raises(ConfigError, match="is not a results file of redline"):
        repair(Output(path=path))
    assert path.read_bytes() == foreign
    assert [found.name for found in tmp_path.iterdir()] == ["labels.jsonl"]


def test_a_results_file_that_was_moved_away_from_its_manifest_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_bytes(b"notes\n" + GOOD[0])
    repair(Output(path=path))
    assert path.read_bytes() == GOOD[0]


def test_a_damaged_manifest_does_not_hinder(output: Output) -> None:
    (output.state_path / "manifest.json").write_bytes(b"\0" * 9)
    output.path.write_bytes(GOOD[0] + b"notes\n")
    assert repair(output)[0].kept == 1


def test_every_sound_line_is_kept_and_nothing_else(output: Output) -> None:
    output.path.write_bytes(
        GOOD[0] + b"notes\n" + GOOD[1] + GOOD[0] + b"more\n" + GOOD[2] + b"torn"
    )
    (done,) = repair(output)
    assert output.path.read_bytes() == GOOD[0] + GOOD[1] + GOOD[2]
    assert aside(done) == b"notes\n" + GOOD[0] + b"more\ntorn"
    output.path.write_bytes(GOOD[0] + GOOD[1] + GOOD[0] + GOOD[1] + GOOD[2] + GOOD[0])
    (done,) = repair(output)
    assert output.path.read_bytes() == GOOD[0] + GOOD[1] + GOOD[2]
    assert aside(done) == GOOD[0] + GOOD[1] + GOOD[0]
