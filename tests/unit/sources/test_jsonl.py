"""JSON Lines: the rows, their line numbers, and what is said of those that are bad."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import threading
import tracemalloc
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from redline.errors import ConfigError
from redline.sources import (
    MAX_ROW_BYTES,
    ByteStream,
    CorruptInput,
    FileBlocks,
    LongLine,
    Row,
    Rows,
    open_source,
    row_counts,
    split_lines,
)
from redline.sources import jsonl as lines_module
from redline.sources import text as source_bytes

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k" / "test.jsonl"


def rows_of(path: Path, max_row_bytes: int = MAX_ROW_BYTES) -> list[Row]:
    with (
        patch.object(Rows, "_max_row_bytes", max_row_bytes),
        closing(open_source(path)) as source,
    ):
        return [row for batch in source.batches() for row in batch]


def rows_in(tmp_path: Path, content: bytes, **options: int) -> list[Row]:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    return rows_of(path, **options)


def error_of(tmp_path: Path, content: bytes, name: str = "in.jsonl") -> ConfigError:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        rows_of(path)
    return caught.value


def drain(path: Path, rows: list[Row]) -> None:
    for batch in open_source(path).batches():
        rows += batch


class TestRows:
    def test_blank_lines_count_as_lines_but_not_as_rows(self, tmp_path: Path) -> None:
        rows = rows_in(tmp_path, b'\n{"a": 1}\n   \n\n {"a": 2} \n')
        assert [(r.number, r.line, r.data, r.content) for r in rows] == [
            (1, 2, {"a": 1}, b'{"a": 1}'),
            (2, 5, {"a": 2}, b'{"a": 2}'),
        ]

    def test_a_blank_line_above_the_size_limit_is_a_bad_row_and_counted(
        self, tmp_path: Path
    ) -> None:
        long = b" " * (MAX_ROW_BYTES + 1)
        rows = rows_in(tmp_path, long + b"\n" + long[1:] + b'\n\n{"a": 1}\n' + long)
        assert [r.data for r in rows] == [None, {"a": 1}, None]
        counts = row_counts(tmp_path / "in.jsonl")
        assert counts is not None
        assert sum(counts) == 3

    def test_the_last_line_needs_no_newline(self, tmp_path: Path) -> None:
        assert [r.data for r in rows_in(tmp_path, b'{"a":1}\n{"a":2}')] == [{"a": 1}, {"a": 2}]

    def test_crlf_and_a_bom_change_nothing(self, tmp_path: Path) -> None:
        plain = rows_in(tmp_path, b'{"a":1}\n{"a":2}\n')
        assert rows_in(tmp_path, b'\xef\xbb\xbf{"a":1}\r\n{"a":2}\r\n') == plain

    def test_of_duplicate_keys_the_last_holds(self, tmp_path: Path) -> None:
        assert rows_in(tmp_path, b'{"a":1,"a":2}\n')[0].data == {"a": 2}

    def test_lines_across_chunks_stay_whole(self, tmp_path: Path) -> None:
        lines = [json.dumps({"i": i, "t": "é" * (i * 37 % 5000)}) for i in range(2000)]
        rows = rows_in(tmp_path, "\n".join(lines).encode())
        assert [r.content.decode() for r in rows] == lines
        assert [r.line for r in rows] == list(range(1, 2001))

    def test_batches_are_bounded(self, tmp_path: Path) -> None:
        path = tmp_path / "in.jsonl"
        path.write_bytes(b'{"a":1}\n' * 1000 + (b'{"a":"' + b"x" * 900_000 + b'"}\n') * 20)
        batches = list(open_source(path).batches())
        assert sum(map(len, batches)) == 1020
        assert max(map(len, batches)) == 256
        assert max(sum(len(r.content) for r in b) for b in batches) < 4 * 2**20

    def test_a_real_file_comes_through_unchanged(self) -> None:
        if not GSM8K.exists():
            pytest.skip("the shared GSM8K file is not there")
        expected = [json.loads(line) for line in GSM8K.read_text().splitlines()]
        assert [row.data for row in rows_of(GSM8K)] == expected
        assert len(expected) == 1319


class TestBadRows:
    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (b'{"a": tru}', "not JSON: invalid character at byte 10"),
            (b"hello", "not JSON: invalid character at byte 0"),
            (b'{"a": 1', "not JSON: it ends too early at byte 7"),
            (rb'{"a": "\ud83d"}', "not JSON: half of a UTF-16 surrogate pair"),
            (b'{"a":1}}', "not JSON: trailing characters at byte 8"),
            (b"[" * 100_000, "JSON that is nested too deeply to be read"),
            (b"[1, 2]", "not an object but a list"),
            (b'"text"', "not an object but a string"),
            (b"3", "not an object but a number"),
            (b"true", "not an object but a boolean"),
            (b"null", "not an object but null"),
            (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
        ],
    )
    def test_the_problem_is_named_and_the_neighbours_pass(
        self, tmp_path: Path, line: bytes, problem: str
    ) -> None:
        before, bad, after = rows_in(tmp_path, b'{"a":0}\n' + line + b'\n{"a":2}\n')
        assert bad == Row(2, 2, None, line, problem)
        assert (before.data, after.data, after.number) == ({"a": 0}, {"a": 2}, 3)

    def test_a_long_line_is_known_by_its_digest_only(self, tmp_path: Path) -> None:
        line = b'{"a":"' + b"x" * 200 + b'"}'
        rows = rows_in(tmp_path, b'{"a":1}\n' + line + b'\n{"a":2}', max_row_bytes=100)
        assert rows[1].data is None
        assert rows[1].problem == "208 bytes long, above the limit of 100 bytes"
        assert rows[1].content == hashlib.blake2b(line).hexdigest().encode()
        assert [(r.number, r.line) for r in rows] == [(1, 1), (2, 2), (3, 3)]

    def test_the_limit_itself_is_allowed(self, tmp_path: Path) -> None:
        line = b'{"a":"' + b"x" * 92 + b'"}'
        assert len(line) == 100
        assert rows_in(tmp_path, line, max_row_bytes=100)[0].problem is None
        assert rows_in(tmp_path, line, max_row_bytes=99)[0].problem is not None

    def test_a_50_mb_line_is_skipped_in_bounded_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "in.jsonl"
        hasher = hashlib.blake2b()
        with path.open("wb") as file:
            file.write(b'{"a":1}\n')
            for _ in range(50):
                file.write(b"x" * 2**20)
                hasher.update(b"x" * 2**20)
            file.write(b'\n{"a":2}\n')
        tracemalloc.start()
        try:
            rows = rows_of(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert rows[1].problem == "50.0 MB long, above the limit of 16 MB"
        assert rows[1].content == hasher.hexdigest().encode()
        assert rows[2].data == {"a": 2}
        assert peak < 45 * 2**20


ODD = [
    b"",
    b" ",
    b'{"a":tru}',
    b"[]",
    b"7",
    b"x" * 101,
    b' {"a":1}\r',
    b'{"a":"\xff"}',
    b'{"a":1e999}',
]


@pytest.mark.parametrize("odd", [[], *([line] for line in ODD), ODD])
def test_rows_do_not_depend_on_how_many_lines_are_looked_at_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: list[bytes]
) -> None:
    chance = random.Random(3)
    lines = [b'{"custom_id": "%d"}' % number for number in range(1000)] + odd * 3
    chance.shuffle(lines)
    rows = rows_in(tmp_path, b"\n".join(lines), max_row_bytes=100)
    monkeypatch.setattr(lines_module, "BATCH_ROWS", 1)
    assert rows == rows_in(tmp_path, b"\n".join(lines), max_row_bytes=100)
    assert len(rows) == sum(1 for line in lines if line.strip())


class TestWrongFiles:
    def test_an_empty_file_has_no_rows(self, tmp_path: Path) -> None:
        for content in (b"", b"\n \n\n", b"\xef\xbb\xbf"):
            error = error_of(tmp_path, content)
            assert error.what == f"no rows in {tmp_path / 'in.jsonl'}"

    def test_a_json_array_is_refused_with_the_command(self, tmp_path: Path) -> None:
        error = error_of(tmp_path, b'\n [{"a":1},\n{"a":2}]', "in.json")
        assert error.what == f"{tmp_path / 'in.json'} is one JSON array, not one row per line"
        source, target = tmp_path / "in.json", tmp_path / "in.jsonl"
        assert error.hint == f"convert it: jq -c '.[]' {source} > {target}"

    def test_the_command_never_writes_over_its_input(self, tmp_path: Path) -> None:
        error = error_of(tmp_path, b'[{"a":1}]\n')
        assert error.hint.endswith(f"{tmp_path / 'in.jsonl'} > {tmp_path / 'in.new.jsonl'}")

    def test_a_list_in_the_first_of_many_rows_is_only_a_bad_row(self, tmp_path: Path) -> None:
        rows = rows_in(tmp_path, b'[1, 2]\n{"a":1}\n')
        assert [r.problem for r in rows] == ["not an object but a list", None]

    def test_one_object_over_many_lines_is_refused(self, tmp_path: Path) -> None:
        error = error_of(tmp_path, b'{\n  "a": 1\n}\n', "in.json")
        assert "JSON over many lines" in error.what
        assert "jq -c ." in error.hint

    @pytest.mark.parametrize(
        ("encoding", "name"), [("utf-16", "UTF-16"), ("utf-16-be", "UTF-16"), ("utf-32", "UTF-32")]
    )
    def test_utf_16_is_refused_with_the_command(
        self, tmp_path: Path, encoding: str, name: str
    ) -> None:
        text = '{"a":1}\n' if encoding in ("utf-16", "utf-32") else '\ufeff{"a":1}\n'
        error = error_of(tmp_path, text.encode(encoding))
        assert error.what.endswith(f"is in {name}, not in UTF-8")
        assert f"iconv -f {name} -t UTF-8 {tmp_path / 'in.jsonl'}" in error.hint

    def test_a_binary_file_is_refused(self, tmp_path: Path) -> None:
        assert "is a binary file" in error_of(tmp_path, b'{"a":1}\n\x00\x01').what
        assert ".parquet" in error_of(tmp_path, b"PAR1\x15 and so on").hint

    def test_a_zero_byte_later_on_is_only_a_bad_row(self, tmp_path: Path) -> None:
        rows = rows_in(tmp_path, b'{"a":1}\n' * 2000 + b"\x00\n")
        assert rows[2000].problem == "not JSON: invalid character at byte 0"

    def test_a_wrong_file_is_refused_before_any_row_is_asked_for(self, tmp_path: Path) -> None:
        path = tmp_path / "in.jsonl"
        path.write_bytes(b'[{"a":1}]')
        with pytest.raises(ConfigError):
            open_source(path)


class TestCompression:
    content = b'{"a":1}\n' * 50_000

    def packed(self, kind: str) -> bytes:
        if kind == "gz":
            return gzip.compress(self.content)
        zstandard = pytest.importorskip("zstandard", reason="the zst extra is not installed")
        return bytes(zstandard.ZstdCompressor().compress(self.content))

    @pytest.mark.parametrize("kind", ["gz", "zst"])
    @pytest.mark.parametrize("name", ["in.jsonl.{}", "in.ndjson", "in.{}", "IN.JSONL.{}"])
    def test_the_content_decides_not_the_name(self, tmp_path: Path, kind: str, name: str) -> None:
        path = tmp_path / name.format(kind)
        path.write_bytes(self.packed(kind))
        assert len(rows_of(path)) == 50_000

    @pytest.mark.parametrize("kind", ["gz", "zst"])
    def test_frames_may_follow_one_another(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / f"in.jsonl.{kind}"
        path.write_bytes(self.packed(kind) * 2)
        assert len(rows_of(path)) == 100_000

    def test_padding_and_skippable_frames_are_passed_over(self, tmp_path: Path) -> None:
        path = tmp_path / "in.jsonl.gz"
        path.write_bytes(self.packed("gz") + b"\0" * 512)
        assert len(rows_of(path)) == 50_000
        path = tmp_path / "in.jsonl.zst"
        path.write_bytes(b"\x53\x2a\x4d\x18\x04\x00\x00\x00abcd" + self.packed("zst"))
        assert len(rows_of(path)) == 50_000

    @pytest.mark.parametrize("kind", ["gz", "zst"])
    def test_a_torn_file_gives_its_rows_and_then_an_error(self, tmp_path: Path, kind: str) -> None:
        # Lines that do not compress well, so that a tear leaves whole blocks before it.
        lines = b"".join(b'{"a":"%s"}\n' % os.urandom(40).hex().encode() for _ in range(20_000))
        self.content = lines
        path = tmp_path / f"in.jsonl.{kind}"
        path.write_bytes(self.packed(kind)[:-1000])
        rows: list[Row] = []
        with pytest.raises(CorruptInput) as caught:
            drain(path, rows)
        assert 1000 < len(rows) < 20_000
        assert all(row.problem is None for row in rows)
        assert caught.value.where == f"after {len(rows):,} rows"
        assert caught.value.what.startswith(f"{path} is cut short")

    @pytest.mark.parametrize("kind", ["gz", "zst"])
    def test_a_damaged_file_is_named(self, tmp_path: Path, kind: str) -> None:
        packed = bytearray(self.packed(kind))
        packed[12:40] = b"\xff" * 28
        error = error_of(tmp_path, bytes(packed), f"in.jsonl.{kind}")
        assert error.what.startswith(f"{tmp_path / 'in.jsonl'}.{kind} is damaged")
        assert isinstance(error, CorruptInput)

    def test_plain_text_under_a_packed_name_is_refused(self, tmp_path: Path) -> None:
        assert "is not gzip data" in error_of(tmp_path, b'{"a":1}\n', "in.jsonl.gz").what

    def test_an_empty_packed_file_has_no_rows(self, tmp_path: Path) -> None:
        assert "no rows in" in error_of(tmp_path, b"", "in.jsonl.gz").what
        assert "no rows in" in error_of(tmp_path, gzip.compress(b""), "in.jsonl.gz").what

    def test_the_text_inside_is_checked_as_well(self, tmp_path: Path) -> None:
        assert "JSON array" in error_of(tmp_path, gzip.compress(b"[1]"), "in.json.gz").what
        assert "binary" in error_of(tmp_path, gzip.compress(b"a\0b"), "in.json.gz").what

    def test_a_bomb_is_unpacked_in_bounded_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "in.jsonl.gz"
        with gzip.open(path, "wb") as file:
            for _ in range(100):
                file.write(b" " * 2**20)
            file.write(b'\n{"a":1}\n')
        tracemalloc.start()
        try:
            rows = rows_of(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [row.problem is None for row in rows] == [False, True]
        assert peak < 80 * 2**20


class TestPipes:
    def test_a_row_is_handed_on_while_the_pipe_stays_open(self) -> None:
        read_end, write_end = os.pipe()
        source = open_source(f"/dev/fd/{read_end}")
        batches = source.batches()
        try:
            # One row is in the pipe and its writer is silent: waiting for more would never end.
            os.write(write_end, b'{"a":1}\n{"a":')
            assert [row.data for row in next(batches)] == [{"a": 1}]
            os.write(write_end, b"2}\n")
            assert [row.data for row in next(batches)] == [{"a": 2}]
            assert source.read_fraction() is None
            os.close(write_end)
            assert list(batches) == []
        finally:
            source.close()
            os.close(read_end)

    def test_close_ends_a_reader_that_waits_for_an_idle_pipe(self) -> None:
        read_end, write_end = os.pipe()
        source = open_source(f"/dev/fd/{read_end}")
        ended: list[list[list[Row]]] = []
        reader = threading.Thread(target=lambda: ended.append(list(source.batches())))
        reader.start()
        try:
            source.close()
            reader.join(10)
            assert ended == [[]]
        finally:
            os.close(write_end)
            reader.join(10)
            os.close(read_end)

    def test_stdin_is_read_and_left_open(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "piped"
        path.write_bytes(b'{"a":1}\n{"a":2}\n')
        with path.open() as file:
            monkeypatch.setattr("sys.stdin", file)
            source = open_source("-")
            assert source.name == "stdin"
            assert [r.data for b in source.batches() for r in b] == [{"a": 1}, {"a": 2}]
            source.close()
            os.fstat(file.fileno())

    def test_stdin_that_is_missing_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", None)
        with pytest.raises(ConfigError, match="cannot read stdin: it is closed"):
            next(open_source("-").batches())


class TestProgress:
    def test_the_fraction_grows_from_0_to_1(self, tmp_path: Path) -> None:
        path = tmp_path / "in.jsonl"
        path.write_bytes((b'{"a":"' + b"x" * 1000 + b'"}\n') * 5000)
        source = open_source(path)
        seen = [source.read_fraction() for _ in source.batches()]
        assert seen == sorted(seen)
        assert seen[0] < 0.5
        assert source.read_fraction() == 1.0
        assert source.total_rows is None

    def test_closing_early_is_quiet(self, tmp_path: Path) -> None:
        path = tmp_path / "in.jsonl"
        path.write_bytes((b'{"a":"' + b"x" * 1000 + b'"}\n') * 5000)
        source = open_source(path)
        batches = source.batches()
        next(batches)
        source.close()
        assert sum(map(len, batches)) < 2000


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 64, 100_000])
def test_lines_do_not_depend_on_how_the_bytes_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(source_bytes, "CHUNK_BYTES", chunk_bytes)
    content = b"\xef\xbb\xbfone\n\ntwo\r\n" + b"x" * 21 + b"\n" + b"y" * 20 + b"\nlast"
    path = tmp_path / "in.txt"
    path.write_bytes(content)
    stream = ByteStream(FileBlocks(path))
    lines = [line for lines in split_lines(stream, 20) for line in lines]
    stream.close()
    long = LongLine(hashlib.blake2b(b"x" * 21).hexdigest().encode(), 21)
    assert lines == [b"one", b"", b"two\r", long, b"y" * 20, b"last"]
