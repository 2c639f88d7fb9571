"""open_source: the right source for what it is given, and a clear error for the rest."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import ipaddress
import os
import subprocess
import sys
import threading
import types
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from redline.errors import ConfigError
from redline.sources import MAX_ROW_BYTES, AsyncRows, Row, Rows, open_source
from redline.sources import blocks as source_blocks
from redline.sources import iterable as source_iterable


def rows_of(rows: object, max_row_bytes: int = MAX_ROW_BYTES) -> list[Row]:
    with patch.object(Rows, "_max_row_bytes", max_row_bytes):
        source = open_source(rows)
        assert not isinstance(source, AsyncRows)
        return [row for batch in source.batches() for row in batch]


def error_of(rows: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        open_source(rows)
    return caught.value


class TestPaths:
    @pytest.mark.parametrize(
        "name", ["a.jsonl", "a.ndjson", "a.json", "a.jsonlines", "a.txt", "a", "A.JSONL"]
    )
    def test_names_of_json_lines(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b'{"a":1}\n')
        for path in (tmp_path / name, str(tmp_path / name)):
            assert rows_of(path)[0].data == {"a": 1}
        assert open_source(tmp_path / name).name == str(tmp_path / name)

    def test_another_suffix_is_refused_with_those_that_are_known(self, tmp_path: Path) -> None:
        for name in ("a.xlsx", "a.xlsx.gz", "a.parquet.gz"):
            (tmp_path / name).touch()
            error = error_of(tmp_path / name)
            assert "has an unknown suffix" in error.what
            assert (
                ".jsonl, .ndjson, .jsonlines, .json, .txt, .csv and .tsv, also with .gz"
                in error.hint
            )

    def test_a_missing_file_and_the_nearest_name(self, tmp_path: Path) -> None:
        (tmp_path / "tickets.jsonl").touch()
        error = error_of(tmp_path / "tickts.jsonl")
        assert error.what == f"{tmp_path / 'tickts.jsonl'} does not exist"
        assert error.hint == "did you mean tickets.jsonl?"
        assert "no file in" in error_of(tmp_path / "zzz").hint
        assert "does not exist" in error_of(tmp_path / "nowhere" / "a.jsonl").hint

    def test_a_name_that_cannot_be_one(self) -> None:
        assert error_of("a" * 5000).what.endswith("File name too long")
        assert "null byte" in error_of("a\0b").what

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b'{"a":1}\n')
        if os.geteuid() == 0:
            # The administrator may read every file, so the system's refusal is played.
            def refuse(*_: object) -> int:
                raise PermissionError(13, "Permission denied")

            monkeypatch.setattr(source_blocks.os, "open", refuse)
        else:
            path.chmod(0)
        error = error_of(path)
        assert error.what == f"no permission to read {path}"
        assert error.hint == f"chmod u+r {path}"

    def test_a_refused_file_leaves_no_descriptor_open(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        gc.collect()
        for content in (b"\0", b"[1]", b"\xff\xfe"):
            path.write_bytes(content)
            before = len(os.listdir("/dev/fd"))
            error_of(path)
            assert len(os.listdir("/dev/fd")) <= before

    def test_no_extra_is_imported_for_json_lines(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_bytes(b'{"a":1}\n')
        code = (
            "import sys; from redline.sources.open import open_source; "
            "next(open_source(sys.argv[1]).batches()); "
            "print([m for m in ('pyarrow', 'zstandard', 'datasets') if m in sys.modules])"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "a.jsonl")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == "[]\n"


@dataclass
class Point:
    x: int


class Question(msgspec.Struct):
    prompt: str


class Tagged(msgspec.Struct, rename="camel"):
    all_tags: frozenset[str]


class TestIterables:
    def test_dicts_strings_and_records(self) -> None:
        items = [{"a": 1}, "hi", types.MappingProxyType({"b": 2}), Point(3), Question("q")]
        rows = rows_of(items)
        expected = [{"a": 1}, {"prompt": "hi"}, {"b": 2}, {"x": 3}, {"prompt": "q"}]
        assert [r.data for r in rows] == expected
        assert [r.content for r in rows] == [msgspec.json.encode(data) for data in expected]
        assert [(r.number, r.line) for r in rows] == [(i, i) for i in range(1, 6)]

    def test_a_row_is_a_copy(self) -> None:
        def reused() -> Iterator[dict[str, int]]:
            row: dict[str, int] = {}
            for i in range(5):
                row["i"] = i
                yield row

        assert [r.data for r in rows_of(reused())] == [{"i": i} for i in range(5)]

    def test_values_become_what_json_can_say(self) -> None:
        numpy = pytest.importorskip("numpy", reason="numpy comes with no extra of redline's")
        row = {"day": dt.date(2024, 5, 6), "n": numpy.int64(3), "f": numpy.float32(0.5)}
        assert rows_of([row])[0].data == {"day": "2024-05-06", "n": 3, "f": 0.5}
        days = numpy.array(["2024-05-06", "NaT"], dtype="datetime64[ns]")
        moments = ["2024-05-06T00:00:00", None]
        found = rows_of([{"one": days[0], "all": days}])[0].data
        assert found == {"one": moments[0], "all": moments}

    def test_missing_values_of_pandas_are_null(self) -> None:
        pandas = pytest.importorskip("pandas", reason="pandas comes with no extra of redline's")
        row = {"day": pandas.NaT, "n": pandas.NA, "all": [pandas.Timestamp(0), pandas.NaT]}
        found = rows_of([row])[0].data
        assert found == {"day": None, "n": None, "all": ["1970-01-01T00:00:00", None]}

    def test_paths_addresses_urls_and_secrets_become_text(self) -> None:
        pydantic = pytest.importorskip("pydantic", reason="the extra [schema] is not installed")
        values = {"at": Path("/x"), "ip": ipaddress.ip_address("10.0.0.1")}
        made = pydantic.create_model("Page", url=pydantic.HttpUrl, key=pydantic.SecretStr, at=Path)
        page = made(url="https://example.org/a", key="sk-never-printed", at="/x")
        expected = {"url": "https://example.org/a", "key": "**********", "at": "/x"}
        rows = rows_of([values, page, {"page": page}, {"type": Path}])
        assert [row.data for row in rows[:3]] == [
            {"at": "/x", "ip": "10.0.0.1"},
            expected,
            {"page": expected},
        ]
        assert rows[3].problem == "not JSON: a key or value of type type is not JSON serializable"

    def test_sets_are_sorted_so_that_each_process_reads_the_same_row(self) -> None:
        items = [
            {"b": {3, 1, "x", None, 10}, "a": [3, 1, 2]},
            {"a": [{"c": (frozenset("hgfedcba"), 2)}]},
            {"a": {frozenset("hgfe"), frozenset("dcba")}},
            {"a": Tagged(frozenset("hgfedcba"))},
        ]
        assert [row.content for row in rows_of(items)] == [
            b'{"b":["x",1,10,3,null],"a":[3,1,2]}',
            b'{"a":[{"c":[["a","b","c","d","e","f","g","h"],2]}]}',
            b'{"a":[["a","b","c","d"],["e","f","g","h"]]}',
            b'{"a":{"allTags":["a","b","c","d","e","f","g","h"]}}',
        ]

    @pytest.mark.parametrize(
        ("item", "problem"),
        [
            ([1, 2], "not an object but a list"),
            (7, "not an object but a number"),
            (None, "not an object but null"),
            ({"a": object()}, "not JSON: a key or value of type object is not JSON serializable"),
            ({(1, 2): 3}, "not JSON: a key or value of type tuple is not JSON serializable"),
        ],
    )
    def test_bad_items(self, item: object, problem: str) -> None:
        before, bad, after = rows_of([{"a": 1}, item, {"a": 2}])
        assert (bad.number, bad.data, bad.problem) == (2, None, problem)
        assert (before.data, after.data) == ({"a": 1}, {"a": 2})
        assert bad.content == rows_of([{"a": 1}, item])[1].content

    def test_more_bad_items(self) -> None:
        loop: dict[str, Any] = {}
        loop["loop"] = loop
        for item in (loop, {"a": "\ud800"}, "\ud800"):
            problem = rows_of([item])[0].problem
            assert problem is not None
            assert problem.startswith("not JSON: ")

    def test_a_long_item_is_a_bad_row(self) -> None:
        row = rows_of([{"a": "x" * 200}], max_row_bytes=100)[0]
        assert row.problem == "208 bytes long, above the limit of 100 bytes"
        assert len(row.content) == 128

    def test_what_is_known_of_the_size(self) -> None:
        sized, unsized = open_source([{"a": 1}] * 4), open_source(iter([{"a": 1}]))
        assert (sized.total_rows, unsized.total_rows) == (4, None)
        assert (sized.read_fraction(), unsized.read_fraction()) == (0.0, None)
        assert sum(map(len, sized.batches())) == 4  # type: ignore[arg-type]
        assert sized.read_fraction() == 1.0

    def test_a_length_that_raises_a_type_error_is_unknown(self) -> None:
        class Unsized:
            def __len__(self) -> int:
                raise TypeError("the data set has no length")

            def __iter__(self) -> Iterator[str]:
                yield from "ab"

        assert open_source(Unsized()).total_rows is None
        assert len(rows_of(Unsized())) == 2

    def test_no_rows(self) -> None:
        for rows in ([], iter(())):
            with pytest.raises(ConfigError, match="no rows in <iterable>"):
                rows_of(rows)

    def test_its_own_errors_pass_through(self) -> None:
        def broken() -> Iterator[str]:
            yield "hi"
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            rows_of(broken())

    def test_rows_before_an_error_of_a_container_come_first(self) -> None:
        class Broken:
            def __len__(self) -> int:
                return 300

            def __iter__(self) -> Iterator[str]:
                yield from ["x"] * 257
                raise LookupError("mine")

        sizes: list[int] = []
        with pytest.raises(LookupError, match="mine"):
            sizes.extend(len(batch) for batch in open_source(Broken()).batches())
        assert sum(sizes) == 257

    def test_batches_are_whole_while_a_container_is_quick(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(source_iterable, "time", types.SimpleNamespace(monotonic=lambda: 0.0))
        sizes = [len(batch) for batch in open_source(["x"] * 1000).batches()]
        assert sizes == [256, 256, 256, 232]

    def test_a_slow_container_is_passed_on_row_by_row(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now_s = 0.0

        class Slow:
            def __len__(self) -> int:
                return 30

            def __iter__(self) -> Iterator[str]:
                nonlocal now_s
                for i in range(30):
                    now_s += 0.06 if 20 <= i < 25 else 0.0
                    yield str(i)

        clock = types.SimpleNamespace(monotonic=lambda: now_s)
        monkeypatch.setattr(source_iterable, "time", clock)
        sizes = [len(batch) for batch in open_source(Slow()).batches()]
        assert sizes == [21, 1, 1, 1, 1, 5]

    def test_a_generator_may_wait_for_what_becomes_of_its_last_row(self) -> None:
        given: list[int] = []

        def live() -> Iterator[str]:
            for i in range(40):
                assert len(given) == i, "the rows before are still held back"
                yield str(i)

        for batch in open_source(live()).batches():
            given += [row.number for row in batch]
        assert len(given) == 40

    def test_closing_ends_at_the_next_item(self) -> None:
        source = open_source(str(i) for i in range(1000))
        batches = source.batches()
        next(batches)
        source.close()
        assert list(batches) == []

    @pytest.mark.parametrize("value", [b"rows.jsonl", 7, None, {"prompt": "hi"}])
    def test_what_is_no_iterable_of_rows_is_refused(self, value: object) -> None:
        assert error_of(value).hint

    def test_tables_are_refused_with_the_call_that_gives_rows(self) -> None:
        class DataFrame:
            def iterrows(self) -> None: ...
            def __iter__(self) -> Iterator[str]:
                return iter(["column"])

        error = error_of(DataFrame())
        assert error.what == "a DataFrame is not an iterable of rows"
        assert error.hint == 'pass df.to_dict("records")'


class TestAsyncIterables:
    def test_each_row_comes_at_once(self) -> None:
        async def main() -> None:
            ready = asyncio.Event()

            async def items() -> AsyncIterator[object]:
                yield {"a": 1}
                await ready.wait()
                yield "hi"
                yield [1]

            source = open_source(items())
            assert isinstance(source, AsyncRows)
            assert (source.name, source.total_rows) == ("<async iterable>", None)
            batches = source.batches()
            # The second row is not made before this one is out: waiting for it would never end.
            assert await anext(batches) == [Row(1, 1, {"a": 1}, b'{"a":1}')]
            ready.set()
            rest = [row async for batch in batches for row in batch]
            assert [r.data for r in rest] == [{"prompt": "hi"}, None]
            assert rest[1].problem == "not an object but a list"
            assert source.read_fraction() is None

        asyncio.run(main())

    def test_no_rows_and_closing(self) -> None:
        async def count(n: int) -> AsyncIterator[str]:
            for i in range(n):
                yield str(i)

        async def main() -> None:
            with pytest.raises(ConfigError, match="no rows in <async iterable>"):
                await anext(AsyncRows("<async iterable>", count(0)).batches())
            source = AsyncRows("mine", count(5))
            batches = source.batches()
            await anext(batches)
            source.close()
            assert [batch async for batch in batches] == []

        asyncio.run(main())


def test_a_file_stays_the_same_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("first", 1), ("second", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_bytes(b'{"a":%d}\n' % number * 1000)
    monkeypatch.chdir(tmp_path / "first")
    source = open_source("a.jsonl")
    assert source.name == "a.jsonl"
    batches = source.batches()
    found = list(next(batches))
    monkeypatch.chdir(tmp_path / "second")
    for batch in batches:
        found += batch
    assert [row.data for row in found] == [{"a": 1}] * 1000


def test_a_source_may_be_pulled_from_changing_threads(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n' * 1000)
    batches = open_source(path).batches()
    sizes: list[int] = []

    def pull() -> None:
        sizes.append(len(next(batches, [])))

    for _ in range(5):
        thread = threading.Thread(target=pull)
        thread.start()
        thread.join(10)
    assert sizes == [256, 256, 256, 232, 0]
