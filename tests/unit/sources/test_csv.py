"""CSV, Parquet and dataset folders: every row comes once, and bad ones are named."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import os
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from redline.errors import ConfigError
from redline.sources import MAX_ROW_BYTES, CorruptInput, Row, Rows, open_source, row_counts
from redline.sources import text as source_bytes

BANKING77 = Path(__file__).parents[4] / "shared" / "data" / "banking77" / "test.csv"


def rows_of(path: Path, max_row_bytes: int = MAX_ROW_BYTES) -> list[Row]:
    with (
        patch.object(Rows, "_max_row_bytes", max_row_bytes),
        closing(open_source(path)) as source,
    ):
        return [row for batch in source.batches() for row in batch]


def rows_in(tmp_path: Path, content: bytes, name: str = "in.csv", **options: int) -> list[Row]:
    path = tmp_path / name
    path.write_bytes(content)
    return rows_of(path, **options)


def error_of(tmp_path: Path, content: bytes, name: str = "in.csv") -> ConfigError:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        rows_of(path)
    return caught.value


def drain(path: Path, rows: list[Row]) -> None:
    for batch in open_source(path).batches():
        rows += batch


@pytest.fixture
def field_limit() -> Iterator[int]:
    """csv's own limit, put back afterwards: it is one for the process."""
    before = csv.field_size_limit(131_072)
    yield 131_072
    csv.field_size_limit(before)


@pytest.fixture
def lines_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A one for each line that a csv.reader takes."""
    read: list[int] = []
    reader = csv.reader

    def noted(line: str) -> str:
        read.append(1)
        return line

    def counting(lines: Iterable[str], **options: Any) -> Iterator[list[str]]:
        return reader(map(noted, lines), **options)

    monkeypatch.setattr(csv, "reader", counting)
    return read


class TestCsv:
    def test_a_row_is_the_header_with_its_fields(self, tmp_path: Path) -> None:
        rows = rows_in(tmp_path, b'a,b\n1,"x, ""y"""\n2,\n')
        assert [r.data for r in rows] == [{"a": "1", "b": 'x, "y"'}, {"a": "2", "b": ""}]
        assert [r.content for r in rows] == [msgspec.json.encode(r.data) for r in rows]

    def test_lines_are_those_of_the_file(self, tmp_path: Path) -> None:
        rows = rows_in(tmp_path, b'a,b\n\n1,"two\nlines"\n\n2,y\n')
        assert [(r.number, r.line) for r in rows] == [(1, 3), (2, 6)]
        assert rows[0].data == {"a": "1", "b": "two\nlines"}

    def test_a_line_of_carriage_returns_is_blank(self, tmp_path: Path) -> None:
        rows = rows_in(tmp_path, b"a,b\r\n1,x\r\n\r\r\n2,y\r\n")
        assert [r.data for r in rows] == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]
        counts = row_counts(tmp_path / "in.csv")
        assert counts is not None
        assert sum(counts) == 2

    def test_crlf_and_a_bom_change_nothing(self, tmp_path: Path) -> None:
        rows = rows_in(tmp_path, b'\xef\xbb\xbfa,b\r\n1,"x"\r\n2,y\r\n')
        assert [r.data for r in rows] == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]

    def test_tsv_and_gz(self, tmp_path: Path) -> None:
        packed = gzip.compress(b"a\tb\n1\tx,y\n")
        assert rows_in(tmp_path, packed, "in.tsv.gz")[0].data == {"a": "1", "b": "x,y"}

    def test_a_quoted_first_field_of_tsv_may_have_several_lines(self, tmp_path: Path) -> None:
        content = b'a\tb\n"two\nlines"\tx\n"c\nd"\t"e\nf"\n"7" cut\n3\ty\n"5\n4\t"z"\n'
        rows = rows_in(tmp_path, content, "in.tsv")
        # A line that is a row and has no quote is part of no other row.
        assert [(r.line, r.data) for r in rows] == [
            (2, {"a": "two\nlines", "b": "x"}),
            (4, {"a": "c\nd", "b": "e\nf"}),
            (7, None),
            (8, {"a": "3", "b": "y"}),
            (9, None),
            (10, {"a": "4", "b": "z"}),
        ]
        counts = row_counts(tmp_path / "in.tsv")
        assert counts is not None
        assert sum(counts) == 6

    def test_the_quoted_fields_of_a_single_column_of_tsv_may_have_several_lines(
        self, tmp_path: Path
    ) -> None:
        content = b'text\n"one\ntwo"\nplain\n"6 inch\n"7\n\n""8"""\n9"\n"cut\n'
        rows = rows_in(tmp_path, content, "in.tsv")
        texts = ["one\ntwo", "plain", '"6 inch', '7\n\n"8"', '9"', '"cut']
        assert [r.data for r in rows] == [{"text": text} for text in texts]
        counts = row_counts(tmp_path / "in.tsv")
        assert counts is not None
        assert sum(counts) == 6

    def test_a_quoted_field_of_tsv_may_contain_a_cr(self, tmp_path: Path) -> None:
        content = b'"a\rb"\tc\n1\t"x\ry"\n2\t"x\ry\nz"\n3\tx\ry\n4\tz\n'
        rows = rows_in(tmp_path, content, "in.tsv")
        assert [r.data and list(r.data.values()) for r in rows] == [
            ["1", "x\ry"],
            ["2", "x\ry\nz"],
            None,
            ["4", "z"],
        ]
        assert list(rows[0].data or ()) == ["a\rb", "c"]

    @pytest.mark.parametrize("chunk_bytes", [1, 3, 50, 1000])
    def test_rows_do_not_depend_on_how_the_bytes_arrive(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
    ) -> None:
        content = 'a,b\n1,"é\n\n""q"""\n2\n3,"ü",\n4,ok'.encode()
        whole = rows_in(tmp_path, content)
        monkeypatch.setattr(source_bytes, "CHUNK_BYTES", chunk_bytes)
        assert rows_in(tmp_path, content) == whole
        assert [r.line for r in whole] == [2, 5, 6, 7]

    def test_batches_are_bounded(self, tmp_path: Path) -> None:
        path = tmp_path / "in.csv"
        path.write_bytes(b"a\n" + b"x\n" * 1000 + (b"y" * 900_000 + b"\n") * 20)
        batches = list(open_source(path).batches())
        assert sum(map(len, batches)) == 1020
        assert max(map(len, batches)) == 256
        assert max(sum(len(r.content) for r in b) for b in batches) < 5 * 2**20

    def test_a_row_is_handed_on_while_the_pipe_stays_open(self, tmp_path: Path) -> None:
        pipe = tmp_path / "in.csv"
        os.mkfifo(pipe)
        # Opened for both ways, the pipe blocks neither its writer nor its reader.
        write_end = os.open(pipe, os.O_RDWR)
        source = open_source(pipe)
        batches = source.batches()
        try:
            os.write(write_end, b"a,b\n1,x\n2,")
            assert [r.data for r in next(batches)] == [{"a": "1", "b": "x"}]
            os.write(write_end, b"y\n")
            assert [r.data for r in next(batches)] == [{"a": "2", "b": "y"}]
        finally:
            source.close()
            os.close(write_end)
        assert list(batches) == []

    def test_a_real_file_comes_through_unchanged(self) -> None:
        if not BANKING77.exists():
            pytest.skip("the shared banking77 file is not there")
        with BANKING77.open(newline="") as file:
            expected = list(csv.DictReader(file))
        assert [row.data for row in rows_of(BANKING77)] == expected
        assert len(expected) == 3080


class TestBadCsvRows:
    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (b"1,2,3,4", "4 fields, but the header names 3"),
            (b"1", "1 field, but the header names 3"),
            (b"1,2,\xff", "not UTF-8"),
            (b"1,2\r2,3", "not CSV: new-line character seen in unquoted field"),
        ],
    )
    def test_the_problem_is_named_and_the_neighbours_pass(
        self, tmp_path: Path, line: bytes, problem: str
    ) -> None:
        before, bad, after = rows_in(tmp_path, b"a,b,c\n1,2,3\n" + line + b"\n4,5,6\n")
        assert bad == Row(2, 3, None, line, problem)
        assert before.data == {"a": "1", "b": "2", "c": "3"}
        assert (after.number, after.line, after.data) == (3, 4, {"a": "4", "b": "5", "c": "6"})

    @pytest.mark.parametrize("end", [b"", b"\n"])
    def test_a_quote_that_is_never_closed_fails_its_own_line_alone(
        self, tmp_path: Path, end: bytes
    ) -> None:
        problem = "not CSV: a quote is opened and never closed"
        rows = rows_in(tmp_path, b'a,b\n1,x\n2,"y\n\n3,z\n4,z' + end)
        assert [r.data for r in rows] == [
            {"a": "1", "b": "x"},
            None,
            {"a": "3", "b": "z"},
            {"a": "4", "b": "z"},
        ]
        assert rows[1] == Row(2, 3, None, b'2,"y', problem)
        assert [r.line for r in rows] == [2, 3, 5, 6]
        counts = row_counts(tmp_path / "in.csv")
        assert counts is not None
        assert sum(counts) == 4
        assert rows_in(tmp_path, b'a,b\n1,"x' + end) == [Row(1, 2, None, b'1,"x', problem)]

    def test_a_long_row_is_skipped(self, tmp_path: Path) -> None:
        long_line = b"1," + b"x" * 200
        rows = rows_in(tmp_path, b"a,b\n" + long_line + b"\n2,y\n", max_row_bytes=100)
        assert rows[0].problem == "202 bytes long, above the limit of 100 bytes"
        assert rows[1].data == {"a": "2", "b": "y"}

    @pytest.mark.parametrize("second_bytes", [60, 200])
    def test_a_quote_that_is_open_for_too_long_fails_its_own_line_alone(
        self, tmp_path: Path, second_bytes: int
    ) -> None:
        content = b'a,b\n1,"' + b"x" * 60 + b"\n2," + b"y" * second_bytes + b"\n3,z\n"
        rows = rows_in(tmp_path, content, max_row_bytes=100)
        assert rows[0].problem == "not CSV: a quote is opened and not closed within 100 bytes"
        assert (rows[1].line, rows[1].data is None) == (3, second_bytes > 100)
        assert (rows[2].line, rows[2].data) == (4, {"a": "3", "b": "z"})

    @pytest.mark.parametrize("name", ["in.csv", "in.tsv"])
    @pytest.mark.parametrize("line", [b'"7","cut', b'7","cut', b'7","cut,x'])
    @pytest.mark.parametrize("last", [b"", b'7"', b'"7"cut'])
    def test_lines_with_open_quotes_are_read_a_few_times_and_not_to_the_end_each(
        self, tmp_path: Path, lines_read: list[int], name: str, line: bytes, last: bytes
    ) -> None:
        content = b"a,b\n" + (line + b"\n") * 200 + last
        rows = rows_in(tmp_path, content.replace(b",", b"\t" if "tsv" in name else b","), name)
        assert rows
        assert sum(lines_read) < 1000

    def test_a_quote_closed_within_a_later_field_fails_its_own_line_alone(
        self, tmp_path: Path
    ) -> None:
        problem = "not CSV: a quote is opened and not closed where its field ends"
        rows = rows_in(tmp_path, b'a,b\n1,"x\n2,y\n3,"z\rw\n4,"q\n"\n')
        assert rows[0] == Row(1, 2, None, b'1,"x', problem)
        assert [r.data for r in rows[1:]] == [{"a": "2", "b": "y"}, None, {"a": "4", "b": "q\n"}]
        counts = row_counts(tmp_path / "in.csv")
        assert counts is not None
        assert sum(counts) == 4

    def test_lines_within_a_record_that_fails_may_have_open_quotes_of_their_own(
        self, tmp_path: Path
    ) -> None:
        rows = rows_in(tmp_path, b'a,b\n1,"x\n2","y\n3,z\n4,"q\n5,"q\n"\n')
        assert [(r.line, r.data) for r in rows] == [
            (2, None),
            (3, None),
            (4, {"a": "3", "b": "z"}),
            (5, None),
            (6, {"a": "5", "b": "q\n"}),
        ]
        assert len({r.problem for r in rows}) == 2
        counts = row_counts(tmp_path / "in.csv")
        assert counts is not None
        assert sum(counts) == 5

    def test_a_field_above_the_default_limit_of_csv_is_read(
        self, tmp_path: Path, field_limit: int
    ) -> None:
        rows = rows_in(tmp_path, b"a\n" + b"x" * (field_limit + 1) + b"\n")
        assert rows[0].problem is None
        csv.field_size_limit(2**31 - 1)
        rows_in(tmp_path, b"a\n1\n")
        assert csv.field_size_limit() == 2**31 - 1

    def test_an_open_quote_does_not_fill_the_memory(self, tmp_path: Path) -> None:
        content = b'a,b\n1,"' + b"x" * 99 + b"\n" + (b"2," + b"y" * 97 + b"\n") * 30_000
        tracemalloc.start()
        try:
            rows = rows_in(tmp_path, content, max_row_bytes=2**20)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert rows[0].problem is not None
        assert len(rows) == 30_001
        # The input itself is 3 MB and stands in memory once, as do the rows after the bad one.
        assert peak < 10 * len(content)


class TestCsvHeader:
    def test_no_rows(self, tmp_path: Path) -> None:
        for content in (b"", b"\n\n", b"a,b\n", b"a,b"):
            assert "no rows in" in error_of(tmp_path, content).what

    def test_every_column_needs_a_name_of_its_own(self, tmp_path: Path) -> None:
        path = tmp_path / "in.csv"
        assert error_of(tmp_path, b"a,b,a\n1,2,3\n").what == f"2 columns of {path} are named a"
        assert error_of(tmp_path, b"a,,c\n1,2,3\n").what == f"column 2 of {path} has no name"

    def test_a_header_in_another_encoding(self, tmp_path: Path) -> None:
        error = error_of(tmp_path, b"Stra\xdfe,b\n1,2\n")
        assert error.what.endswith("is not in UTF-8")
        assert "iconv -f WINDOWS-1252" in error.hint

    def test_a_header_that_cannot_be_parsed(self, tmp_path: Path) -> None:
        error = error_of(tmp_path, b"a,b\r1,2\r")
        assert "has a CR without LF" in error.what
        assert r"tr '\r' '\n' < " in error.hint

        error = error_of(tmp_path, b'"a,b\n1,2\n')
        assert "is not a CSV header: a quote is opened and never closed" in error.what

    @pytest.mark.parametrize("name", ["SQLite", "PAR1", "ARROW1"])
    def test_a_text_that_begins_like_a_binary_format_is_read(
        self, tmp_path: Path, name: str
    ) -> None:
        (row,) = rows_in(tmp_path, f"{name} version,b\n3,x\n".encode())
        assert row.data == {f"{name} version": "3", "b": "x"}

    def test_a_binary_file_is_refused(self, tmp_path: Path) -> None:
        error = error_of(tmp_path, b"PK\x03\x04\x00\x00")
        assert error.what.endswith("is a binary file")
        assert "Excel" in error.hint

    def test_a_torn_file_gives_its_rows_and_then_an_error(self, tmp_path: Path) -> None:
        lines = [f"{i},{os.urandom(20).hex()}\n" for i in range(20_000)]
        path = tmp_path / "in.csv.gz"
        path.write_bytes(gzip.compress(("a,b\n" + "".join(lines)).encode())[:-2000])
        rows: list[Row] = []
        with pytest.raises(CorruptInput) as caught:
            drain(path, rows)
        assert 1000 < len(rows) < 20_000
        assert caught.value.where == f"after {len(rows):,} rows"


@pytest.fixture
def pa() -> Any:
    return pytest.importorskip("pyarrow", reason="the parquet extra is not installed")


def parquet(pa: Any, path: Path, columns: dict[str, Any], **options: Any) -> Path:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table(columns), path, **options)
    return path


class TestParquet:
    def test_rows_are_counted_before_they_are_read(self, pa: Any, tmp_path: Path) -> None:
        path = parquet(pa, tmp_path / "in.parquet", {"a": list(range(1000))})
        source = open_source(path)
        assert source.total_rows == 1000
        assert source.read_fraction() == 0.0
        batches = list(source.batches())
        assert max(map(len, batches)) == 256
        rows = [row for batch in batches for row in batch]
        assert [r.data for r in rows] == [{"a": i} for i in range(1000)]
        assert [(r.number, r.line) for r in rows] == [(i, i) for i in range(1, 1001)]
        assert rows[7].content == b'{"a":7}'
        assert source.read_fraction() == 1.0

    def test_values_that_json_lacks(self, pa: Any, tmp_path: Path) -> None:
        moment = dt.datetime(2024, 5, 6, 7, 8, 9)
        columns = {
            "date": pa.array([dt.date(2024, 5, 6)]),
            "nano": pa.array([1_714_979_289_000_000_001], pa.timestamp("ns")),
            "zoned": pa.array([moment], pa.timestamp("ms", tz="UTC")),
            "nested": pa.array([[{"t": moment}]], pa.list_(pa.struct([("t", pa.timestamp("ns"))]))),
            "decimal": pa.array([Decimal("1.50")]),
            "text": pa.array(["é".encode()]),
            "blob": pa.array([[b"\xff\x00"]]),
            "nan": pa.array([float("nan")]),
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "null": pa.array([None], pa.string()),
        }
        row = rows_of(parquet(pa, tmp_path / "in.parquet", columns))[0]
        assert row.data == {
            "date": "2024-05-06",
            "nano": "2024-05-06T07:08:09",
            "zoned": "2024-05-06T07:08:09Z",
            "nested": [{"t": "2024-05-06T07:08:09"}],
            "decimal": "1.50",
            "text": "é",
            "blob": ["/wA="],
            "nan": None,
            "map": {"k": 1},
            "null": None,
        }
        assert msgspec.json.decode(row.content) == row.data

    def test_nanoseconds_are_cut_wherever_they_are(self, pa: Any, tmp_path: Path) -> None:
        ns, at, cut = pa.timestamp("ns"), 1_714_979_289_123_456_789, "2024-05-06T07:08:09.123456"
        columns = {
            "plain": pa.array([at], ns),
            "large": pa.array([[at]], pa.large_list(ns)),
            "fixed": pa.array([[{"t": at}]], pa.list_(pa.struct([("t", ns)]), 1)),
            "map": pa.array([[(at, 1001)]], pa.map_(ns, pa.duration("ns"))),
        }
        row = rows_of(parquet(pa, tmp_path / "in.parquet", columns))[0]
        assert row.data == {
            "plain": cut,
            "large": [cut],
            "fixed": [{"t": cut}],
            "map": {cut: "PT0.000001S"},
        }

    def test_a_column_that_arrow_cannot_cast_is_read_beside_one_that_is_cut(
        self, pa: Any, tmp_path: Path
    ) -> None:
        messages = [{"role": "user", "refusal": None}, {"role": "assistant", "refusal": None}]
        columns = {
            "times": pa.array([[("k", 1001)]] * 2, pa.map_(pa.string(), pa.timestamp("ns"))),
            "messages": pa.array([messages] * 2),
        }
        rows = rows_of(parquet(pa, tmp_path / "in.parquet", columns))
        times = {"k": "1970-01-01T00:00:00.000001"}
        assert [row.data for row in rows] == [{"times": times, "messages": messages}] * 2

    def test_a_column_that_arrow_cannot_cut_ends_no_process(self, pa: Any, tmp_path: Path) -> None:
        inner = pa.struct([("none", pa.list_(pa.null(), 2)), ("at", pa.timestamp("ns"))])
        column = pa.array([{"none": [None, None], "at": 1}] * 2, inner)
        path = parquet(pa, tmp_path / "in.parquet", {"x": column})
        with suppress(ConfigError):  # raised by at least pyarrow 20 to 26
            assert len(rows_of(path)) == 2

    def test_ids_keep_nanoseconds_beside_a_value_that_cannot_be_read(
        self, pa: Any, tmp_path: Path
    ) -> None:
        columns = {
            "custom_id": pa.array([-1, 999, -1500, 0], pa.timestamp("ns")),
            "day": pa.array([1, 2, 3, 10_000_000], pa.int32()).cast(pa.date32()),
        }
        rows = rows_of(parquet(pa, tmp_path / "in.parquet", columns))
        assert [row.data and row.data["custom_id"] for row in rows] == [
            "1969-12-31T23:59:59.999999999",
            "1970-01-01T00:00:00.000000999",
            "1969-12-31T23:59:59.999998500",
            None,
        ]

    def test_a_value_that_cannot_be_read_is_that_rows_problem(
        self, pa: Any, tmp_path: Path
    ) -> None:
        column = pa.array([1, 10_000_000, 2], pa.int32()).cast(pa.date32())
        rows = rows_of(parquet(pa, tmp_path / "in.parquet", {"day": column}))
        assert [r.problem is None for r in rows] == [True, False, True]
        assert (rows[2].number, rows[2].data) == (3, {"day": "1970-01-03"})

    def test_a_map_that_is_no_object_is_that_rows_problem(self, pa: Any, tmp_path: Path) -> None:
        kind = pa.map_(pa.struct([("a", pa.int64())]), pa.int64())
        column = pa.array([None, [({"a": 1}, 1)], []], kind)
        rows = rows_of(parquet(pa, tmp_path / "in.parquet", {"m": column}))
        assert [row.data for row in rows] == [{"m": None}, None, {"m": {}}]

    @pytest.mark.filterwarnings("ignore:Encountered key")
    def test_the_last_value_of_a_key_counts(self, pa: Any, tmp_path: Path) -> None:
        column = pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))
        rows = rows_of(parquet(pa, tmp_path / "in.parquet", {"m": column}))
        assert [row.data for row in rows] == [{"m": {"k": 2}}]

    def test_large_rows_come_in_small_batches(self, pa: Any, tmp_path: Path) -> None:
        texts = [os.urandom(500_000).hex() for _ in range(12)]
        path = parquet(pa, tmp_path / "in.parquet", {"t": texts})
        batches = list(open_source(path).batches())
        assert max(map(len, batches)) <= 4
        assert [r.data for b in batches for r in b] == [{"t": text} for text in texts]
        problem = rows_of(path, max_row_bytes=1000)[0].problem
        assert problem == "1000008 bytes long, above the limit of 1000 bytes"

    def test_wrong_files(self, pa: Any, tmp_path: Path) -> None:
        assert "cannot be read as a Parquet file" in error_of(tmp_path, b"x", "in.parquet").what
        empty = parquet(pa, tmp_path / "empty.parquet", {"a": pa.array([], pa.int64())})
        with pytest.raises(ConfigError, match="no rows in"):
            rows_of(empty)

    def test_a_damaged_page_is_an_error_with_the_rows_before_it(
        self, pa: Any, tmp_path: Path
    ) -> None:
        columns = {"t": [f"{i:0>100}" for i in range(20_000)]}
        options: dict[str, Any] = {"row_group_size": 1000, "use_dictionary": False}
        path = parquet(pa, tmp_path / "in.parquet", columns, compression="gzip", **options)
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 3000] = b"\xff" * 3000
        path.write_bytes(content)
        rows: list[Row] = []
        with pytest.raises(CorruptInput) as caught:
            drain(path, rows)
        assert 0 < len(rows) < 20_000
        assert caught.value.where == f"after {len(rows):,} rows"

    def test_closing_early_is_quiet(self, pa: Any, tmp_path: Path) -> None:
        source = open_source(parquet(pa, tmp_path / "in.parquet", {"a": list(range(1000))}))
        batches = source.batches()
        next(batches)
        source.close()
        assert list(batches) == []


class TestDatasetFolder:
    def test_rows_of_a_saved_dataset(self, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets", reason="the hf extra is not installed")
        data = datasets.Dataset.from_dict({"a": list(range(600)), "t": ["x"] * 600})
        data.select(range(300, 0, -1)).save_to_disk(str(tmp_path / "d"))
        source = open_source(tmp_path / "d")
        assert source.total_rows == 300
        rows = [row for batch in source.batches() for row in batch]
        assert [r.data for r in rows] == [{"a": i, "t": "x"} for i in range(300, 0, -1)]

    def test_splits_are_offered(self, tmp_path: Path) -> None:
        for split in ("test", "train"):
            (tmp_path / split).mkdir()
            (tmp_path / split / "state.json").write_text("{}")
        (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        with pytest.raises(ConfigError) as caught:
            open_source(tmp_path)
        assert caught.value.what == f"{tmp_path} is a folder of datasets"
        assert caught.value.hint == f"choose one of them: {tmp_path}/test, {tmp_path}/train"

    def test_another_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="not a dataset that save_to_disk wrote"):
            open_source(tmp_path)
        (tmp_path / "part-0.parquet").touch()
        with pytest.raises(ConfigError) as caught:
            open_source(tmp_path)
        assert caught.value.hint == f"pass one file in it, such as {tmp_path}/part-0.parquet"

    def test_a_damaged_dataset_is_named(self, tmp_path: Path) -> None:
        pytest.importorskip("datasets", reason="the hf extra is not installed")
        (tmp_path / "state.json").write_text("{}")
        (tmp_path / "dataset_info.json").write_text("{}")
        with pytest.raises(ConfigError, match="cannot be read as a dataset folder"):
            open_source(tmp_path)


class TestMissingExtras:
    def test_the_install_command_is_the_hint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        for name in ("state.json", "dataset_info.json"):
            (folder / name).write_text("{}")
        (tmp_path / "in.parquet").write_bytes(b"PAR1")
        (tmp_path / "in.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
        expected = {"in.parquet": "parquet", "in.jsonl.zst": "zst", "folder": "hf"}
        for module in ("pyarrow", "pyarrow.parquet", "zstandard", "datasets"):
            monkeypatch.setitem(sys.modules, module, None)
        for name, extra in expected.items():
            with pytest.raises(ConfigError) as caught:
                open_source(tmp_path / name)
            assert caught.value.hint == f"pip install 'redline[{extra}]'"
            assert str(tmp_path / name) in caught.value.what
