"""The same command again, and commands that are nearly the same."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from crash.killing import ids, sealed_lines
from redline.errors import ConfigError, Rejected
from redline.job.outputs import Verification, verify
from redline.journal import Output

pytestmark = pytest.mark.crash


class Bench:
    """One output and whoever answers: counts what is asked, fails what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "labels.jsonl"
        self.failed = folder / "labels.failed.jsonl"
        self.asked: list[str] = []
        self.bad: set[str] = set()

    async def answer(self, row: dict[str, Any]) -> str:
        return f"answer to {self.note(row)['text']}"

    def note(self, row: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(row["text"])
        if row["text"] in self.bad:
            raise Rejected("told to fail")
        return row

    def work(self, rows: object, **options: Any) -> list[str]:
        """Runs to the end with a function; the texts that were asked."""
        return self._run(rows, call=self.answer, **options)

    def send(self, rows: object, **options: Any) -> list[str]:
        """Runs to the end with requests to a server; the texts that were asked."""
        options = {"prompt": "{{ text }}", "model": "m", **options}
        return self._run(rows, endpoint="sim", before=self.note, **options)

    def _run(self, rows: object, **options: Any) -> list[str]:
        self.asked = []
        options = {"concurrency": 4, "progress": False, "output": self.output, **options}
        report = redline.run(rows, **options)
        assert report.is_complete or report.untried, report
        return sorted(self.asked)

    def verdict(self, rows: object) -> Verification:
        return verify(Output(path=self.output), rows)

    def done(self) -> list[str]:
        return sorted(line["output"] for line in sealed_lines(self.output))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def named(*texts: str) -> list[dict[str, Any]]:
    return [{"custom_id": f"id-{text}", "text": text} for text in texts]


def unnamed(*texts: str) -> list[dict[str, Any]]:
    return [{"text": text} for text in texts]


Rows = Callable[..., list[dict[str, Any]]]
both = pytest.mark.parametrize("rows", [named, unnamed])


@both
def test_a_finished_run_asks_nothing_and_changes_nothing(bench: Bench, rows: Rows) -> None:
    assert bench.work(rows("a", "b", "c")) == ["a", "b", "c"]
    before = bench.output.read_bytes()
    assert bench.work(rows("a", "b", "c")) == []
    assert bench.output.read_bytes() == before


@both
@pytest.mark.parametrize(
    "longer",
    [("new", "a", "b", "c"), ("a", "new", "b", "c"), ("a", "b", "c", "new")],
    ids=["start", "middle", "end"],
)
def test_rows_added_to_the_input_are_simply_done(
    bench: Bench, rows: Rows, longer: tuple[str, ...]
) -> None:
    bench.bad = {"b"}
    bench.work(rows("a", "b", "c"))
    before = bench.output.read_bytes()
    assert bench.work(rows(*longer)) == ["new"]
    assert bench.output.read_bytes().startswith(before)
    verdict = bench.verdict(rows(*longer))
    assert (verdict.is_whole, verdict.succeeded, verdict.failed, verdict.strange) == (True, 3, 1, 0)


@both
def test_a_limit_and_then_more(bench: Bench, rows: Rows) -> None:
    texts = [f"text {number}" for number in range(10)]
    assert bench.work(rows(*texts), limit=3) == texts[:3]
    assert bench.work(rows(*texts), limit=7) == texts[3:7]
    assert bench.work(rows(*texts)) == texts[7:]
    assert bench.verdict(rows(*texts)).is_whole


def test_identical_rows_without_a_name_are_each_done_once(bench: Bench) -> None:
    assert bench.work(unnamed("same", "same", "other", "same"), limit=2) == ["same", "same"]
    rows = unnamed("same", "same", "other", "same")
    assert bench.work(rows) == ["other", "same"]
    assert bench.work(rows) == []
    assert str(bench.verdict(rows)) == "verify: 4 of 4, each once"


def test_a_repeated_custom_id_is_that_rows_failure_and_stays_one_when_rows_are_added(
    bench: Bench,
) -> None:
    twice = [{"custom_id": "x", "text": "first"}, {"custom_id": "x", "text": "second"}]
    assert bench.work(twice) == ["first"]
    [failure] = sealed_lines(bench.failed)
    assert failure["error"]["message"] == "an earlier row has the same custom_id: x"
    assert failure["row"] == 2
    assert bench.work([*named("new"), *twice]) == ["new"]
    assert len(sealed_lines(bench.failed)) == 1
    assert str(bench.verdict([*named("new"), *twice])) == (
        "verify: 3 of 3, each once; 1 of them as failures"
    )


def test_retrying_takes_what_succeeds_out_of_the_failures(bench: Bench) -> None:
    rows = named("a", "b", "c", "d")
    bench.bad = {"b", "c"}
    bench.work(rows)
    # Without the flag a failure is an outcome like any other.
    assert bench.work(rows) == []
    bench.bad = {"c"}
    assert bench.work(rows, retry_failed=True) == ["b", "c"]
    assert ids(bench.failed) == ["id-c"]
    assert sorted(ids(bench.output)) == ["id-a", "id-b", "id-d"]
    assert bench.work(rows, retry_failed=True) == ["c"]
    assert ids(bench.failed) == ["id-c"], "failing again must leave one line"
    bench.bad = set()
    assert bench.work(rows, retry_failed=True) == ["c"]
    assert not bench.failed.exists()
    assert bench.work(rows, retry_failed=True) == []
    assert str(bench.verdict(rows)) == "verify: 4 of 4, each once"


def test_a_retry_leaves_rows_that_were_never_asked_to_a_plain_run(bench: Bench) -> None:
    rows = named("a", "b", "c")
    bench.bad = {"a"}
    bench.work(rows, limit=2)
    bench.bad = set()
    assert bench.work(rows, retry_failed=True) == ["a"]
    assert bench.work(rows) == ["c"]
    assert bench.verdict(rows).is_whole


def test_an_ordered_output_is_in_the_order_of_the_input(bench: Bench) -> None:
    texts = [f"{number:02}" for number in range(40)]
    bench.bad = {"07"}
    bench.work(named(*texts), limit=25, concurrency=16)
    bench.work(named(*texts), ordered=True, concurrency=16)
    assert ids(bench.output) == [f"id-{text}" for text in texts if text != "07"]
    bench.bad = set()
    bench.work(named(*texts), ordered=True, retry_failed=True)
    assert ids(bench.output) == [f"id-{text}" for text in texts]


def test_rows_added_in_front_come_first_in_an_ordered_output(bench: Bench) -> None:
    bench.work(named("b", "d"), ordered=True)
    bench.work(named("a", "b", "c", "d"), ordered=True)
    assert ids(bench.output) == ["id-a", "id-b", "id-c", "id-d"]


@pytest.mark.parametrize("format", ["redline", "batch"])
def test_both_formats_are_continued_and_may_keep_their_input(bench: Bench, format: str) -> None:
    rows = named("a", "b", "c", "d")
    options = {"format": format, "keep_input": True}
    assert bench.work(rows, limit=2, **options) == ["a", "b"]
    assert bench.work(rows, **options) == ["c", "d"]
    lines = sealed_lines(bench.output)
    assert sorted(line["input"]["text"] for line in lines) == ["a", "b", "c", "d"]
    assert all(line["input"]["custom_id"] == line["custom_id"] for line in lines)
    assert bench.verdict(rows).is_whole
    if format == "batch":
        assert {line["response"]["status_code"] for line in lines} == {200}


CHANGES = [
    ({"prompt": "{{ text }}."}, {"prompt": "{{ text }}"}, 'prompt was "{{ text }}." and is now'),
    ({"model": "one"}, {"model": "two"}, 'model was "one" and is now "two"'),
    ({}, {"params": {"seed": 7}}, 'params was not set and is now {"seed":7}'),
    ({"system": "Be kind."}, {}, 'system was "Be kind." and is now not set'),
    ({}, {"format": "batch"}, 'format was "redline" and is now "batch"'),
    ({"keep_input": True}, {}, "keep_input was true and is now not set"),
    (
        {"system": "Be kind. " * 20 + "Be brief."},
        {"system": "Be kind. " * 20 + "Be exact."},
        'system was ...e kind. Be kind. Be brief." and is now ...e kind. Be kind. Be exact."',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), CHANGES)
def test_a_changed_setting_is_refused_and_says_what_changed_and_how_to_go_on(
    bench: Bench, old: dict[str, Any], new: dict[str, Any], said: str
) -> None:
    bench.send(named("a"), **old)
    before = bench.output.read_bytes()
    with pytest.raises(ConfigError) as caught:
        bench.send(named("a", "b"), **new)
    assert f"{bench.output} was begun with different settings: {said}" in caught.value.what
    assert "--restart" in caught.value.hint
    assert "--force" in caught.value.hint
    assert bench.asked == []
    assert bench.output.read_bytes() == before
    # The refusal has left everything as it was for the old settings.
    assert bench.send(named("a", "b"), **old) == ["b"]


def test_force_goes_on_in_the_same_file(bench: Bench) -> None:
    bench.send(named("a"), model="one")
    before = bench.output.read_bytes()
    assert bench.send(named("a", "b"), model="two", force=True) == ["b"]
    assert bench.output.read_bytes().startswith(before)
    # From now on the new settings are those of the output.
    assert bench.send(named("a", "b", "c"), model="two") == ["c"]


def test_failures_under_a_wrong_model_are_kept_for_an_input_that_is_gone(bench: Bench) -> None:
    bench.bad = {"a", "b"}
    bench.send(iter(named("a", "b")), model="wrong")
    failures = bench.failed.read_bytes()
    bench.bad = set()
    assert bench.send(iter(named("b", "c")), model="right") == ["b", "c"]
    assert not bench.failed.exists()
    aside = bench.output.parent / "labels.redline" / "labels.failed.outdated-1.jsonl"
    assert aside.read_bytes() == failures


def test_failures_of_one_pipe_are_not_those_of_the_next(bench: Bench) -> None:
    def work(text: str) -> list[str]:
        read, write = os.pipe()
        os.write(write, json.dumps({"text": text}).encode())
        os.close(write)
        # As a shell's `<(...)`, which gives each command the same name.
        number = fcntl.fcntl(read, fcntl.F_DUPFD, 512)
        os.close(read)
        assert number == 512
        try:
            return bench.work(f"/dev/fd/{number}")
        finally:
            os.close(number)

    bench.bad = {"a", "b"}
    assert [work("a"), work("b")] == [["a"], ["b"]]
    assert len(sealed_lines(bench.failed)) == 2


def test_a_change_of_the_working_folder_takes_no_file_elsewhere(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)

    async def answer(row: dict[str, Any]) -> str:
        monkeypatch.chdir(elsewhere)
        if row["text"] == "bad":
            raise Rejected("told to fail")
        return "good"

    rows = [*named("good", "bad"), *named("good")]
    report = redline.run(rows, call=answer, output="labels.jsonl", ordered=True, concurrency=1)
    assert repr(report).endswith("output='labels.jsonl')")
    assert list(elsewhere.iterdir()) == []
    assert len(sealed_lines(bench.failed)) == 2
    manifest = tmp_path / "labels.redline" / "manifest.json"
    assert json.loads(manifest.read_bytes())["rows"] == 3


def test_restart_keeps_the_old_files_aside_each_time(bench: Bench) -> None:
    bench.bad = {"b"}
    bench.send(named("a", "b"), model="one")
    first = bench.output.read_bytes(), bench.failed.read_bytes()
    bench.send(named("a", "b"), model="two", restart=True)
    second = bench.output.read_bytes()
    assert bench.send(named("a", "b"), model="three", restart=True) == ["a", "b"]
    folder = bench.output.parent
    kept = [folder / "labels.old-1.jsonl", folder / "labels.old-1.failed.jsonl"]
    assert tuple(path.read_bytes() for path in kept) == first
    assert (folder / "labels.old-2.jsonl").read_bytes() == second
    assert bench.send(named("a", "b"), model="three") == []


def test_restart_puts_a_foreign_file_aside(bench: Bench) -> None:
    bench.output.write_text("my notes")
    with pytest.raises(ConfigError, match="not a results file"):
        bench.work(named("a"))
    assert bench.work(named("a"), restart=True) == ["a"]
    assert (bench.output.parent / "labels.old-1.jsonl").read_text() == "my notes"


def test_an_empty_file_is_a_new_output(bench: Bench) -> None:
    bench.output.touch()
    assert bench.work(named("a")) == ["a"]


@pytest.mark.parametrize("damage", ["cut", "not UTF-8"])
def test_a_damaged_manifest_is_told_and_may_be_overruled(bench: Bench, damage: str) -> None:
    bench.work(named("a"))
    manifest = bench.output.parent / "labels.redline" / "manifest.json"
    data = manifest.read_bytes()
    manifest.write_bytes(
        data[:40] if damage == "cut" else data.replace(b'"redline": "', b'"redline": "\xff')
    )
    with pytest.raises(redline.errors.JournalError, match=r"manifest\.json is damaged") as caught:
        bench.work(named("a", "b"))
    assert "--force" in caught.value.hint
    assert bench.work(named("a", "b"), force=True) == ["b"]


def test_the_input_may_come_from_anywhere_as_long_as_its_rows_are_the_same(
    bench: Bench, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in named("a", "b", "c")))
    assert bench.work(path, limit=1) == ["a"]
    assert bench.work(iter(named("a", "b", "c"))) == ["b", "c"]
    assert bench.work(str(path)) == []


def test_verify_names_what_is_missing_repeated_or_strange(bench: Bench) -> None:
    bench.bad = {"c"}
    bench.work(named("a", "b", "c"))
    data = bench.output.read_bytes()
    lines = data.splitlines(keepends=True)
    cases = [
        (data, named("a", "b", "c", "d"), "3 of 4; 1 missing, the first is row 4"),
        (data + lines[0], named("a", "b", "c"), "3 of 3; 1 line repeats a row"),
        (lines[0], named("a", "b", "c"), "2 of 3; 1 missing"),
        (data[:-1], named("a", "b", "c"), "1 line is damaged"),
        (data, named("a", "b"), "2 of 2, each once; 1 line belongs to no row of the input"),
    ]
    for written, rows, said in cases:
        bench.output.write_bytes(written)
        assert said in str(bench.verdict(rows))


def test_results_of_a_function_that_asks_another_model_are_not_continued(bench: Bench) -> None:
    bench.work(named("a"), model="one")
    with pytest.raises(ConfigError, match='model was "one" and is now "two"'):
        bench.work(named("a", "b"), model="two")
    assert bench.work(named("a", "b"), model="one") == ["b"]
