"""Tags as CSV and Parquet: every column, every value, read back by others."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from redline.errors import ConfigError, JournalError
from redline.tasks.tag import check_path, write_table
from support.tagged_files import tagged

TEXTS = [
    "plain",
    'a "quote", a comma',
    "two\nlines",
    "two\rlines",
    "two\r\nlines",
    "end\r",
    "=SUM(A1)",
    "-1",
    "é 漢 😀",
    "",
    " ends ",
]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_text_comes_back(tmp_path: Path) -> None:
    """Every text comes back as it was, in both forms and in order."""
    rows = [({"id": str(n), "text": text}, {"label": text}) for n, text in enumerate(TEXTS)]
    output = tagged(tmp_path / "out.jsonl", *rows)
    expected = [{"id": str(n), "text": text, "label": text} for n, text in enumerate(TEXTS)]
    for name in ("out.csv", "out.parquet"):
        assert write_table(output.path, tmp_path / name) == len(TEXTS)
    assert read_csv(tmp_path / "out.csv") == expected
    assert parquet.read_table(tmp_path / "out.parquet").to_pylist() == expected


# Values in the order of the rows; the column's type; its values there; its cells in CSV.
KINDS: list[tuple[list[Any], Any, list[Any], list[str]]] = [
    ([None, 1, -(2**62)], pyarrow.int64(), [None, 1, -(2**62)], ["", "1", str(-(2**62))]),
    ([1, 2.5, None], pyarrow.float64(), [1.0, 2.5, None], ["1", "2.5", ""]),
    ([True, False, None], pyarrow.bool_(), [True, False, None], ["true", "false", ""]),
    ([True, 1, 2], pyarrow.string(), ["true", "1", "2"], ["true", "1", "2"]),
    (["x", 1, None], pyarrow.string(), ["x", "1", None], ["x", "1", ""]),
    ([2**63, 1, None], pyarrow.string(), [str(2**63), "1", None], [str(2**63), "1", ""]),
    ([None, None, None], pyarrow.string(), [None] * 3, [""] * 3),
    ([["a", "b"], {"c": 1}, "d"], pyarrow.string(), ['["a","b"]', '{"c":1}', "d"],
     ['["a","b"]', '{"c":1}', "d"]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "kind", "cells", "texts"), KINDS)
def test_a_column_has_the_type_of_all_its_values(
    tmp_path: Path, values: list[Any], kind: Any, cells: list[Any], texts: list[str]
) -> None:
    rows = [({"id": n}, {"value": value}) for n, value in enumerate(values)]
    output = tagged(tmp_path / "out.jsonl", *rows)
    write_table(output.path, tmp_path / "out.parquet")
    made = parquet.read_table(tmp_path / "out.parquet")
    assert made.schema.field("value").type == kind
    assert made.column("value").to_pylist() == cells
    write_table(output.path, tmp_path / "out.csv")
    assert [row["value"] for row in read_csv(tmp_path / "out.csv")] == texts


def test_a_type_that_shows_late_holds_for_the_first_batch(tmp_path: Path) -> None:
    early = 5000  # more than are written at once
    rows = [({"id": n}, {"value": None if n < early else "late"}) for n in range(early + 1)]
    write_table(tagged(tmp_path / "out.jsonl", *rows).path, tmp_path / "out.parquet")
    made = parquet.read_table(tmp_path / "out.parquet")
    assert made.column("value").to_pylist() == [None] * early + ["late"]
    assert made.column("id").to_pylist() == list(range(early + 1))


def test_no_column_of_the_rows_is_lost(tmp_path: Path) -> None:
    # The second row has no column `label`: its tag must not slip in there.
    output = tagged(
        tmp_path / "out.jsonl",
        ({"label": "mine", "tag_label": "too"}, {"label": "a"}),
        ({"text": "x"}, {"label": "b", "sure": True}),
    )
    write_table(output.path, tmp_path / "out.csv")
    assert read_csv(tmp_path / "out.csv") == [
        {"label": "mine", "tag_label": "too", "text": "", "tag_tag_label": "a", "sure": ""},
        {"label": "", "tag_label": "", "text": "x", "tag_tag_label": "b", "sure": "true"},
    ]


def test_a_tag_that_is_a_list_is_one_column(tmp_path: Path) -> None:
    output = tagged(tmp_path / "out.jsonl", ({"text": "x"}, ["a", "b"]))
    write_table(output.path, tmp_path / "out.csv")
    assert read_csv(tmp_path / "out.csv") == [{"text": "x", "output": '["a","b"]'}]


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    output = tagged(tmp_path / "out.jsonl", ({"text": "x"}, {"label": "a"}))
    old = tmp_path / "out.csv"
    old.write_text("old")
    broken = output.path.read_bytes()
    output.path.write_bytes(broken + broken.replace(b'"a"', b'"b"'))
    with pytest.raises(JournalError, match="damaged"):
        write_table(output.path, old)
    assert old.read_text() == "old"


def test_where_no_table_can_be_is_told_before_the_run(tmp_path: Path) -> None:
    check_path(tmp_path / "OUT.CSV")
    with pytest.raises(ConfigError, match=r"cannot export to out\.xlsx"):
        check_path(Path("out.xlsx"))
    with pytest.raises(ConfigError, match="its folder does not exist"):
        check_path(tmp_path / "none" / "out.csv")


def test_parquet_without_its_extra_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError) as caught:
        check_path(tmp_path / "out.parquet")
    assert caught.value.what == f"writing {tmp_path / 'out.parquet'} needs pyarrow, which is not " \
        "installed"  # fmt: skip
    assert caught.value.hint == "pip install 'redline[parquet]'"
