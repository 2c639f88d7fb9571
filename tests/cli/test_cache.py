"""The cache on the command line: what turns it on and off, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline.job.settings import values

Cli = Callable[..., Any]
Rows = Callable[..., str]

SIM = ("--endpoint", "sim", "--prompt", "{{ text }}")
FIXED = (*SIM, "--temperature", "0")
IN = ("--cache-dir", "kept")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def cached(told: Any) -> list[bool]:
    return [line.get("cached", False) for line in told.results]


def test_without_a_flag_nothing_is_kept_and_nothing_is_told(
    cli: Cli, rows: Rows, tmp_path: Path
) -> None:
    for _ in range(2):
        told = cli("run", rows({"text": "a"}), *FIXED)
        assert "cache" not in told.out + told.err
    assert not (tmp_path / "home").exists()


def test_a_second_run_asks_nothing(cli: Cli, rows: Rows, tmp_path: Path) -> None:
    name = rows({"text": "a"}, {"text": "b"})
    first = cli("run", name, *FIXED, "--cache")
    assert "\ncache: 0 hits, 0 shared in flight, 2 misses: 0 % of requests saved\n" in (first.err)
    second = cli("run", name, *FIXED, "--cache")
    assert second.err == (
        "2 rows = 2 succeeded + 0 failed + 0 unfinished\n"
        "cache: 2 hits, 0 shared in flight, 0 misses: 100 % of requests saved\n"
    )
    assert (cached(first), cached(second)) == ([False] * 2, [True] * 2)
    assert [line["attempts"] for line in second.results] == [0, 0]
    assert [line["usage"] for line in second.results] == [line["usage"] for line in first.results]
    assert first.outputs == second.outputs
    folder = tmp_path / "home" / ".cache" / "redline" / "answers"
    assert [path.name for path in folder.iterdir()] == ["answers-v1.1.sqlite3"]


def test_sampled_rows_are_asked_and_the_summary_says_why(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a"}, {"text": "a"}, {"text": "a", "b": 1})
    for _ in range(2):
        told = cli("run", name, *SIM, *IN)
        assert "3 requests at" in told.err
        assert (
            "\ncache: 3 requests are not cached, because answers may vary; see --temperature 0, "
            "--param seed=7, --cache-sampled\n"
        ) in told.err
        assert cached(told) == [False] * 3
    told = cli("run", name, *SIM, *IN, "--cache-sampled")
    assert sorted(cached(told)) == [False, True, True]


def test_programs_are_told(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a"}, {"text": "a"}, {"text": "b"})
    told = cli("run", name, *FIXED, *IN, "--log", "json")
    summary = json.loads(told.err.splitlines()[-1])
    assert summary["cache"] == {"hits": 0, "shared": 1, "misses": 2, "passed": 0, "notes": []}
    assert "cache" not in json.loads(cli("run", name, *FIXED, "--log", "json").err)


def test_a_damaged_file_is_told_and_begun_anew(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a"})
    Path("kept").mkdir()
    Path("kept/answers-v1.1.sqlite3").write_text("no database")
    told = cli("run", name, *FIXED, *IN)
    assert told.status == 0
    assert (
        "\ncache: kept/answers-v1.1.sqlite3 is damaged (file is not a database) and left as it "
        "is; answers-v1.2.sqlite3 is used in its place\n"
    ) in told.err
    assert cached(cli("run", name, *FIXED, *IN)) == [True]


def test_a_project_turns_it_on_and_a_flag_turns_it_off(cli: Cli, rows: Rows) -> None:
    Path("redline.toml").write_text("[run]\ncache = true\ncache_dir = 'kept'\ncache_size = '5m'\n")
    name = rows({"text": "a"})
    cli("run", name, *FIXED)
    assert cached(cli("run", name, *FIXED)) == [True]
    assert cached(cli("run", name, *FIXED, "--no-cache")) == [False]
    Path("redline.toml").write_text("[run]\nno_cache = true\ncache_dir = 'kept'\n")
    assert cached(cli("run", name, *FIXED)) == [False]
    assert cached(cli("run", name, *FIXED, "--cache")) == [True]


def test_a_continued_run_looks_rows_up_as_any_other(cli: Cli, rows: Rows) -> None:
    name = rows(*({"text": str(number % 3)} for number in range(9)))
    flags = ("run", name, *FIXED, *IN, "-o", "out.jsonl")
    cli(*flags, "--limit", "5")
    told = cli(*flags)
    assert told.summary.startswith(
        "4 rows = 4 succeeded + 0 failed + 0 unfinished; 5 were done before"
    )
    assert "cache: 4 hits, " in told.err
    assert cli("verify", "out.jsonl").out == "verify: 9 of 9, each once\n"


def test_lines_of_the_batch_api_say_so_too(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a"}, {"text": "a"})
    told = cli("run", name, *FIXED, *IN, "--format", "batch")
    assert sorted(cached(told)) == [False, True]


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--cache", "--no-cache"), "--cache and --no-cache cannot be combined"),
        ((*IN, "--no-cache"), "--cache and --no-cache cannot be combined"),
        (("--cache-size", "1g"), "--cache-size needs --cache"),
        (("--cache-sampled",), "--cache-sampled needs --cache"),
        (("--cache", "--cache-size", "much"), "--cache-size is not a size: much"),
        (("--cache", "--cache-size", "9" * 400), f"--cache-size is not a size: {'9' * 400}"),
        (("--cache", "--cache-size", "1k"), "a cache needs at least 1,000,000 bytes, not 1,000"),
    ],
)
def test_flags_that_make_no_sense(cli: Cli, rows: Rows, flags: tuple[str, ...], what: str) -> None:
    told = cli("run", rows({"text": "a"}), *FIXED, *flags)
    assert told.status == 2
    assert told.err.startswith(f"error: {what}\n")


def test_a_wrong_size_names_the_table_that_it_stands_in(cli: Cli, rows: Rows) -> None:
    Path("redline.toml").write_text("[run]\ncache = true\ncache_size = 'x'\n")
    told = cli("run", rows({"text": "a"}), *FIXED)
    assert "error: --cache-size is not a size: x\nwhere: redline.toml, [run]\n" in told.err


@pytest.mark.parametrize(
    ("text", "size"),
    [("1g", 10**9), ("1.5 GB", 1_500_000_000), ("500m", 5 * 10**8), ("2000kb", 2_000_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert values.size(text, "--cache-size") == size


def test_a_place_that_cannot_be_written_ends_the_run_before_it_begins(cli: Cli, rows: Rows) -> None:
    Path("taken").write_text("")
    told = cli("run", rows({"text": "a"}), *FIXED, "--cache-dir", "taken", "-o", "out.jsonl")
    assert told.status == 2
    assert told.err.startswith("error: answers cannot be stored in taken: ")
    assert "hint: choose another folder (--cache-dir" in told.err


def test_without_a_home_a_folder_must_be_named(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    told = cli("run", rows({"text": "a"}), *FIXED, "--cache")
    assert told.status == 2
    assert told.err.startswith("error: there is no home folder for the cache\n")
