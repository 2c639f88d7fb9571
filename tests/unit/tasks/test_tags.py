"""What tagging came to, read from its files: who counts, and as what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError, JournalError
from redline.tasks.tag import Gold, Schema, as_json_schema, review
from support.tagged_files import ended, failed, tagged

SCHEMA = Schema(as_json_schema({"label": ["a", "b"], "urgency": ["low", "high"]}))
LABEL = Gold("label", "gold")


def row(gold: Any, label: Any, **tag: Any) -> tuple[dict[str, Any], Any]:
    return {"text": "x", "gold": gold}, {"label": label, **tag}


def last_lines(text: str) -> dict[str, str]:
    """What a program reads: the lines after the blank one."""
    return dict(line.split(": ") for line in text.rpartition("\n\n")[2].splitlines())


def test_a_failed_row_is_counted_by_itself(tmp_path: Path) -> None:
    output = tagged(
        tmp_path / "out.jsonl",
        row("a", "a"), row("a", "b"), row("b", "b"), row("", "b"), row(None, "a"), reasks=1,
    )  # fmt: skip
    # Row 3 failed before it succeeded; row 7 failed twice, and its later line counts.
    failed(output, 3, 6, 7, 7, reasks=2)
    ended(output, 7)
    found = review(output, SCHEMA, LABEL)
    assert (found.tagged, found.failed, found.reasks) == (5, 2, 5 + 4)
    assert (found.without_gold, found.strays, found.is_over) == (2, 0, True)
    assert last_lines(found.text()) == {
        "tagged": "5",
        "failed": "2",
        "reasks": "9",
        "without_gold": "2",
        "macro_f1": "0.666667",
        "accuracy": "2/3",
    }
    assert found.text().splitlines()[-1] == "accuracy: 2/3"


def test_what_is_read_is_said_in_words(tmp_path: Path) -> None:
    rows = [row("a", "b")] * 12 + [row("A", "a")] * 3 + [row("b", "b")] * 2000
    output = tagged(tmp_path / "out.jsonl", *rows)
    failed(output, 3000)
    text = review(output, SCHEMA, LABEL).text("table: x.csv, 2,015 rows")
    assert text == (
        "the run has not finished: these are the tags so far\n\n"
        "tagged 2,015, failed 1, re-asks 2\n"
        "accuracy  99.3%  2,000 of 2,015  (95 %: 98.8 to 99.5 %)\n"
        "macro F1  0.332  over 3 labels\n"
        "    12 x a tagged as b\n"
        "     3 x A tagged as a\n"
        "not compared: 1 failed, 0 without gold\n"
        "gold labels that are not in the schema: 3 rows\n"
        "table: x.csv, 2,015 rows\n\n"
        "tagged: 2015\nfailed: 1\nreasks: 2\n"
        "without_gold: 0\nmacro_f1: 0.332336\naccuracy: 2000/2015\n"
    )


def test_without_gold_nothing_is_compared(tmp_path: Path) -> None:
    output = tagged(tmp_path / "out.jsonl", row("a", "a"))
    ended(output, 1)
    assert review(output, SCHEMA, None).text() == (
        "tagged 1, failed 0, re-asks 0\n\ntagged: 1\nfailed: 0\nreasks: 0\n"
    )


def test_rows_that_all_failed_have_no_score(tmp_path: Path) -> None:
    output = tagged(tmp_path / "out.jsonl")
    output.path.unlink()
    failed(output, 1, 2)
    ended(output, 2)
    assert last_lines(review(output, SCHEMA, LABEL).text())["accuracy"] == "0/0"


def test_what_is_no_text_is_compared_by_its_json(tmp_path: Path) -> None:
    numbers = Schema({"properties": {"label": {"enum": [1, 2]}}})
    output = tagged(tmp_path / "out.jsonl", row("1", 1), row(2, 2), row("null", None), row(1, True))
    found = review(output, numbers, LABEL).agreement
    assert found is not None
    assert found.counts == {("1", "1"): 1, ("2", "2"): 1, ("null", "null"): 1, ("1", "true"): 1}


def test_gold_may_write_a_value_in_another_way(tmp_path: Path) -> None:
    free = Schema({"properties": {"label": {"type": ["boolean", "number"]}}})
    rows = [row("True", True), row("FALSE", True), row("4.0", 4), row(4, 4.0), row("x", 1.5)]
    found = review(tagged(tmp_path / "out.jsonl", *rows), free, LABEL).agreement
    assert found is not None
    assert found.counts == {
        ("true", "true"): 1, ("false", "true"): 1, ("4", "4"): 2, ("x", "1.5"): 1,
    }  # fmt: skip


def test_gold_may_write_lists_and_objects_with_spaces(tmp_path: Path) -> None:
    rows = [
        row('["Late", "lost"]', ["Late", "lost"]),
        row('["late"]', ["Late"]),
        row('{"b": 1, "a": [true]}', {"a": [True], "b": 1}),
        row(["x", "y"], ["x", "y"]),
        row("late", ["late"]),
    ]
    output = tagged(tmp_path / "out.jsonl", *rows)
    found = review(output, Schema({"type": "object"}), Gold("label", "gold")).agreement
    assert found is not None
    assert (found.correct, found.total) == (3, 5)
    assert found.confusions(9) == [(('["late"]', '["Late"]'), 1), (("late", '["late"]'), 1)]


def test_a_gold_text_is_compared_as_it_is(tmp_path: Path) -> None:
    texts = Schema(as_json_schema(["True", "true", "4.0"]))
    rows = [row("True", "true"), row("4.0", "4.0"), row("True", "True")]
    found = review(tagged(tmp_path / "out.jsonl", *rows), texts, LABEL).agreement
    assert found is not None
    assert found.counts == {("True", "true"): 1, ("4.0", "4.0"): 1, ("True", "True"): 1}


def test_a_tag_that_lacks_the_field_is_not_right(tmp_path: Path) -> None:
    output = tagged(tmp_path / "out.jsonl", ({"gold": "a"}, {}), ({"gold": "a"}, "a"))
    found = review(output, SCHEMA, LABEL).agreement
    assert found is not None
    assert (found.correct, found.total) == (0, 2)


def test_a_column_that_is_no_label_is_told(tmp_path: Path) -> None:
    rows = [row(f"text {number}", "a") for number in range(1200)]
    with pytest.raises(ConfigError, match="are not labels of the schema"):
        review(tagged(tmp_path / "out.jsonl", *rows), SCHEMA, LABEL)


def test_a_damaged_line_is_not_passed_over(tmp_path: Path) -> None:
    output = tagged(tmp_path / "out.jsonl", row("a", "a"), row("b", "b"))
    output.path.write_bytes(output.path.read_bytes().replace(b'"label":"a"', b'"label":"b"'))
    with pytest.raises(JournalError, match="damaged"):
        review(output, SCHEMA, LABEL)
