"""Lines of any length are read back once, and a block of them says what each would by itself."""

from __future__ import annotations

import json
import os
import random
import zlib
from pathlib import Path

import pytest

from redline.errors import JournalError
from redline.journal import Journal, Output, read_results, read_stretches


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that gives 16 bytes at a time."""
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(16, size), at))


def read(path: Path) -> list[tuple[int, bytes, int | None]]:
    """Where each line begins, the line, and its key; None for one that is not sound."""
    found: list[tuple[int, bytes, int | None]] = []
    end = 0
    fd = os.open(path, os.O_RDONLY)
    try:
        for stretch in read_stretches(fd):
            *begins, end_told = stretch.offsets()
            assert (stretch.begin, stretch.end) == (begins[0], end_told)
            assert stretch.begin == end
            assert 0 < stretch.share <= 1
            end = stretch.end
            keys = list(stretch.keys) or [None]
            found += zip(begins, stretch.lines, keys, strict=True)
    finally:
        os.close(fd)
    assert end == path.stat().st_size
    return found


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\n", b"\n\n", b"a", b"a\n", b"x" * 16, b"x" * 16 + b"\n", b"x" * 15 + b"\n" + b"y",
        b"x" * 100, b"x" * 100 + b"\n\n" + b"y" * 31 + b"\nz", b"\n" * 40, b"ab\n" * 20 + b"c" * 50,
        b"a\rb\n\r\nc\x0bd\x0c\n\x85e\n",
    ],
)  # fmt: skip
def test_lines_are_split_at_newlines_alone_whatever_the_blocks(
    tmp_path: Path, small_blocks: None, data: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    found = read(path)
    assert b"".join(line for _, line, _ in found) == data
    assert [line for _, line, _ in found] == [
        line + b"\n" * (number < data.count(b"\n"))
        for number, line in enumerate(data.split(b"\n"))
        if line or number < data.count(b"\n")
    ]


@pytest.mark.timeout(30)
def test_a_huge_line_is_read_in_time_that_grows_with_its_length_alone(
    tmp_path: Path, small_blocks: None
) -> None:
    """250,000 blocks: joining each to what came before it would copy 500 GB, for minutes."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4_000_000 + b"\nrest")
    assert [(at, len(line)) for at, line, _ in read(path)] == [(0, 4_000_001), (4_000_001, 4)]


def sealed(body: bytes) -> bytes:
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def line(number: int, **more: object) -> bytes:
    """A line in redline's own form."""
    fields = {"v": 1, "hash": f"{number:016x}", "custom_id": None, "row": number, **more}
    return sealed(json.dumps(fields, separators=(",", ":"))[:-1].encode())


def batch_line(number: int) -> bytes:
    key = f"{number:016x}"
    fields = {"id": f"redline_{key}", "custom_id": "a", "hash": key, "row": number}
    return sealed(json.dumps(fields, separators=(",", ":"))[:-1].encode())


GOOD = line(0x0123456789ABCDEF, output="an answer")
# Sound, and not of the common form.
STRANGE = {
    "a field between": (sealed(b'{"v":1,"at":2,"hash":"00000000000000ff"'), 255),
    "another version": (sealed(b'{"v":2,"hash":"00000000000000ff"'), 255),
    "spaces": (sealed(b'{"v": 1, "hash": "00000000000000ff"'), 255),
    "large digits": (sealed(b'{"v":1,"hash":"00000000000000FF"'), 255),
    "few digits": (sealed(b'{"v":1,"hash":"ff","output":"123456789","row":1'), 255),
    "digits in groups": (sealed(b'{"v":1,"hash":"0000_0000_0000_f"'), 15),
    "crc in the middle": (line(9, input={"crc": "00000000"}), 9),
    "not UTF-8": (sealed(b'{"v":1,"hash":"00000000000000ff","output":"\xff"'), 255),
    "CRLF": (GOOD[:-1] + b"\r\n", 0x0123456789ABCDEF),
}  # fmt: skip
UNSOUND = {
    "an edited line": GOOD.replace(b"answer", b"Answer"),
    "an edited key": GOOD.replace(b"0123", b"0124"),
    "an edited checksum": GOOD[:-4] + b'0"}\n',
    "a checksum in capitals": sealed(b'{"v":1,"hash":"000000000000000a"').replace(
        b"f17cdaca", b"F17CDACA"
    ),
    "another end": GOOD[:-3] + b"'}\n",
    "a space at the end": GOOD[:-1] + b" \n",
    "no checksum": b'{"v":1,"hash":"0123456789abcdef","custom_id":null,"row":1}\n',
    "a checksum under another name": GOOD.replace(b'"crc"', b'"sum"'),
    "its beginning": GOOD[:40] + b"\n",
    "its end": GOOD[40:],
    "its tail": GOOD[-19:],
    "nothing": b"\n",
    "a hole": GOOD[:50] + bytes(9) + GOOD[59:],
    "zeros": bytes(200) + b"\n",
    "other JSON": b'{"a": 1}\n',
    "words": b"seen by Ines\n",
    "no key": sealed(b'{"v":1,"row":1'),
    "no digits": sealed(b'{"v":1,"hash":"0123456789abcdeg"'),
    "a blank among the digits": sealed(b'{"v":1,"hash":"0123456789 abcde"'),
    "a negative key": sealed(b'{"v":1,"hash":"-12","custom_id":"1234567"'),
    "a key above 64 bits": sealed(b'{"v":1,"hash":"10000000000000000"'),
    "a key that is no text": sealed(b'{"v":1,"hash":7,"row":1,"output":"0123456789"'),
}  # fmt: skip


def test_a_line_is_known_whatever_stands_beside_it(tmp_path: Path) -> None:
    """Each among others that are sound, where it comes first, in the middle and last."""
    path = tmp_path / "file"
    for wrong, key in [*STRANGE.values(), *((wrong, None) for wrong in UNSOUND.values())]:
        for make in (line, batch_line):
            good = [make(number) for number in (1, 2**64 - 1, 0x1234)]
            for at in range(4):
                path.write_bytes(b"".join([*good[:at], wrong, *good[at:]]))
                expected = [1, 2**64 - 1, 0x1234]
                found = [key for _, _, key in read(path)]
                assert found == [*expected[:at], key, *expected[at:]], wrong


def test_the_last_line_is_not_sound_without_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(line(1) + line(2)[:-1])
    assert [key for _, _, key in read(path)] == [1, None]


def test_blocks_of_lines_that_are_mixed_by_chance_say_what_each_line_says(tmp_path: Path) -> None:
    chance = random.Random(8)
    odd = [*((wrong, None) for wrong in UNSOUND.values()), *STRANGE.values()]
    path = tmp_path / "file"
    for _ in range(60):
        share = chance.choice((0.0, 0.003, 0.05, 0.5))
        expected: list[tuple[bytes, int | None]] = []
        for _ in range(chance.choice((1, 3, 300, 3000))):
            key = chance.getrandbits(64)
            make = batch_line if chance.random() < share else line
            is_odd = chance.random() < share
            expected.append(chance.choice(odd) if is_odd else (make(key), key))
        path.write_bytes(b"".join(text for text, _ in expected))
        assert [(text, key) for _, text, key in read(path)] == expected


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with path.open("r+b", buffering=0) as file:
        stretches = read_stretches(file.fileno())
        file.write(line(1))
        first = next(stretches)
        file.write(line(2))
        assert [first.share, *(stretch.share for stretch in stretches)] == [1.0, 1.0]


DEEP = "[" * 3000 + "]" * 3000
KEYED = '{"v":1,"hash":"0000000000000007","custom_id":"a","row":1'


def nested(text: str) -> bytes:
    """A sound line of this JSON, in which `...` stands for a value that is nested too deeply."""
    body = text.replace("...", DEEP)[:-1].encode()
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


@pytest.mark.parametrize(
    ("text", "is_sound"),
    [
        (KEYED + ',"output":...,"finish_reason":"length"}', True),
        (KEYED + ',"output":"x","input":{"custom_id":"a","text":...}}', True),
        ('{"v":1,"output":...,"hash":"0000000000000007"}', False),
    ],
)
def test_lines_that_are_nested_too_deeply_end_no_reader(
    tmp_path: Path, text: str, is_sound: bool
) -> None:
    output = Output(path=tmp_path / "out.jsonl")
    output.path.write_bytes(nested(text))
    assert read(output.path) == [(0, nested(text), 7 if is_sound else None)]
    if is_sound:
        journal = Journal(output, lambda rows: None)
        journal.let_go()
        assert journal.has_succeeded(7)
        assert journal.answers.flaws.total() == 0
    else:
        with pytest.raises(JournalError, match=r"line 1 of .* is damaged"):
            Journal(output, lambda rows: None)
    with pytest.raises(JournalError, match=r"a line of .* is (damaged|nested too deeply)"):
        list(read_results(output.path, dict))
