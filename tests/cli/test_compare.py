"""`redline compare`: two results files by the rows that both have, as text and as a page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Cli
from cli.test_outputs import contents
from cli.test_show import nested
from support.output_files import failure, result, write_output

Rows = Callable[..., str]
SIM = ("--endpoint", "sim", "-q")
EVIL = '<script>alert(1)</script> \u202e\x1b[31m & "quoted" </pre><img src=x onerror=alert(2)>'


def outputs(first: list[bytes], second: list[bytes], *, failed: tuple[bytes, ...] = ()) -> None:
    write_output(Path("a.jsonl"), first, rows=9)
    write_output(Path("b.jsonl"), second, failed, rows=9, system="Be brief.")


def scores(cli: Cli) -> str:
    """What `redline eval compare` says to a person."""
    said, _, for_programs = cli("eval", "compare", "a.jsonl", "b.jsonl").out.partition("\n\nonly")
    assert for_programs
    return said


def test_answers_that_are_nested_deeply_are_compared(cli: Cli) -> None:
    deep: list[Any] = []
    for _ in range(700):
        deep = [deep]
    outputs([result(1, tool_calls=deep)], [result(1, tool_calls=deep)])
    assert "outputs: 1 equal (100.0 %)" in cli("compare", "a.jsonl", "b.jsonl").out
    outputs([result(1)], [nested(1, 3000)])
    lines = cli("compare", "a.jsonl", "b.jsonl").out.splitlines()
    # The row has no name where its line cannot be read.
    assert "different outputs: 1" in lines


def test_two_runs_of_the_same_rows(cli: Cli, rows: Rows) -> None:
    three = [{"custom_id": name, "prompt": f"Say {name}.", "max_tokens": 9} for name in "abc"]
    name = rows(*three[:2], {**three[2], "max_tokens": 0})
    cli("run", name, "--model", "small", *SIM, "-o", "a.jsonl")
    other = rows(
        {**three[0], "prompt": "Say more."}, *three[1:], {"prompt": "new"}, name="two.jsonl"
    )
    cli("run", other, "--model", "large", *SIM, "-o", "b.jsonl")
    told = cli("compare", "a.jsonl", "b.jsonl")
    assert (told.status, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[:2] == ["A  a.jsonl, model small", "B  b.jsonl, model large"]
    assert "3 rows in common; 0 in A only, 1 in B only" in lines
    assert "2 of these have different contents in A and B" in lines
    assert [line.split() for line in lines if line.startswith(("succeeded", "failed  "))] == [
        ["succeeded", "2", "3"],
        ["failed", "1", "0"],
    ]
    assert "outputs: 1 equal (50.0 %), 1 different" in lines
    assert "failed in A, finished in B: 1, row 3 (c)" in lines
    assert '  model: "small" in A, "large" in B' in lines
    found = json.loads(cli("compare", "a.jsonl", "b.jsonl", "--json").out)
    assert (found["common"], found["only_second"], found["equal"]) == (3, 1, 1)
    assert found["pairs"]["gained"] == 1
    assert found["settings"]["model"] == ['"small"', '"large"']


def test_graded_outputs_have_the_scores_of_eval_compare(cli: Cli, rows: Rows) -> None:
    Path("task.toml").write_text(
        'prompt = "{{ q }}"\ngold = "gold"\nmetric = "regex"\npattern = "(\\\\w+)$"\n'
    )
    asked = [{"q": f"Is {n} right", "gold": "right" if n % 3 else "wrong"} for n in range(12)]
    data = rows(*asked)
    evaluate = ("eval", "--task", "task.toml", "--data", data, "--model")
    cli(*evaluate, "small", *SIM, "-o", "a.jsonl")
    # Another system message, which the simulated model does not repeat: the answers are the same.
    cli(*evaluate, "large", *SIM, "-o", "b.jsonl")
    assert scores(cli) in cli("compare", "a.jsonl", "b.jsonl").out
    outputs(
        [result(row, correct=row % 2 == 0, strict=True, verdict="v") for row in range(1, 20)],
        [result(row, correct=row % 5 != 0, strict=True, verdict="v") for row in range(1, 20)],
    )
    text = cli("compare", "a.jsonl", "b.jsonl", "-o", "page.html").out
    assert scores(cli) in text
    assert "right in B, not in A: 8, row 1, row 3, row 7, row 9, row 11, ..." in text
    assert "right in B, not in A: 8" in Path("page.html").read_text("utf-8")
    found = json.loads(cli("compare", "a.jsonl", "b.jsonl", "--json").out)
    assert found["grades"]["only_second_right"] == 8


def test_several_samples_are_compared_by_question(cli: Cli, rows: Rows) -> None:
    Path("task.toml").write_text(
        'prompt = "{{ q }}"\ngold = "gold"\nmetric = "regex"\npattern = "(\\\\w+)$"\n'
    )
    data = rows(*({"q": f"Is {n} right", "gold": "right"} for n in range(4)))
    evaluate = ("eval", "--task", "task.toml", "--data", data, "--samples", "3", "--model")
    for model, name in (("small", "a.jsonl"), ("large", "b.jsonl")):
        cli(*evaluate, model, *SIM, "--temperature", "1", "-o", name)
    told = cli("compare", "a.jsonl", "b.jsonl")
    assert "12 rows in common" in told.out
    assert scores(cli) in told.out


class Page(HTMLParser):
    """What a page holds: its texts, its elements, and what it would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.elements: list[str] = []
        self.loads: list[str] = []
        self.policy = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "poster") or name[:2] == "on":
                self.loads.append(f"{name}={value}")
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_shows_both_sides_escaped_and_loads_nothing(cli: Cli) -> None:
    outputs(
        [
            result(1, EVIL, input={"text": EVIL}, model=EVIL),
            *(result(n, "old") for n in range(2, 40)),
        ],
        [result(1, "short", custom_id=EVIL), *(result(n, "new " * 5000) for n in range(2, 39))],
        failed=(failure(39, "timed_out"),),
    )
    told = cli("compare", "a.jsonl", "b.jsonl", "-o", "page.html", "--sample", "4")
    assert told.out.endswith("\npage: page.html\n")
    text = Path("page.html").read_text("utf-8")
    page = Page(text)
    assert not {"script", "img", "iframe", "object", "embed"} & set(page.elements)
    assert page.loads == ["href=data:,"]
    assert page.policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert not set("\x1b\u202e") & set(text)
    assert not re.search(r"url\(|@import|https?:", text)
    # Never all: four of each kind, and of a long text its beginning.
    assert "".join(page.texts).count("16,000 more characters") == 4
    assert page.elements.count("article") == 5
    assert "timed_out: timed_out it is" in "".join(page.texts)
    assert "finished in A, failed in B: 1" in text
    again = cli("compare", "a.jsonl", "b.jsonl", "-o", "page.html", "--sample", "4")
    assert again.status == 0
    assert Path("page.html").read_text("utf-8") == text
    cli("compare", "a.jsonl", "b.jsonl", "-o", "page.html", "--sample", "4", "--seed", "7")
    assert Path("page.html").read_text("utf-8") != text
    cli("compare", "a.jsonl", "b.jsonl", "-o", "page.html", "--sample", "100")
    page = Page(Path("page.html").read_text("utf-8"))
    asked = next(each for each in page.texts if each.startswith("text: <"))
    assert asked == f"text: {EVIL}".replace("\u202e\x1b[31m", "")


def test_a_page_shows_what_was_asked_from_either_input(cli: Cli, rows: Rows) -> None:
    asked = [{"custom_id": name, "prompt": f"Say {name}."} for name in "ab"]
    cli("run", rows(*asked), "--model", "small", *SIM, "-o", "a.jsonl")
    other = rows({**asked[0], "prompt": "Say more."}, asked[1], name="two.jsonl")
    cli("run", other, "--model", "large", *SIM, "-o", "b.jsonl")
    cli("compare", "a.jsonl", "b.jsonl", "-o", "page.html")
    texts = Page(Path("page.html").read_text("utf-8")).texts
    assert [text for text in texts if text.startswith("custom_id")] == [
        "custom_id: a\nprompt: Say a.",
        "custom_id: b\nprompt: Say b.",
    ]
    Path("in.jsonl").unlink()
    cli("compare", "a.jsonl", "b.jsonl", "-o", "page.html")
    assert "prompt: Say more." in Path("page.html").read_text("utf-8")


def test_a_text_fits_its_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "x" * 200
    write_output(Path("a.jsonl"), [result(n, custom_id=name) for n in range(9)], prompt=name)
    write_output(Path("b.jsonl"), [result(n, "no") for n in range(9)], prompt=name + "y")
    for columns in ("60", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = cli("compare", "a.jsonl", "b.jsonl").out.splitlines()
        assert max(map(len, lines)) <= int(columns)


@pytest.mark.parametrize(
    ("argv", "what", "hint"),
    [
        (["a.jsonl", "a.jsonl"], "a.jsonl and a.jsonl are the same file", "choose another file"),
        (["a.jsonl", "link.jsonl"], "are the same file", "choose another file"),
        (["a.jsonl", "c.jsonl"], "a.jsonl and c.jsonl have no row in common", "custom_id"),
        (["a.jsonl", "e.jsonl"], "no row in common", "redline eval compare matches questions"),
        (["a.jsonl", "d.jsonl"], "d.jsonl does not exist", ""),
        (["a.jsonl"], "B is missing", ""),
        (["a.jsonl", "b.failed.jsonl"], "b.failed.jsonl holds the failures of b.jsonl", "b.jsonl"),
        (["a.jsonl", "b.jsonl", "-o", "c.jsonl"], "c.jsonl exists and is not a page", "another -o"),
        (
            ["a.jsonl", "b.jsonl", "-o", "own.html"],
            "own.html exists and is not a page",
            "away first",
        ),
        (["a.jsonl", "b.jsonl", "-o", "."], "the page . is a folder", "-o page.html"),
        (["a.jsonl", "b.jsonl", "-o", "no/p.html"], "a folder that does not exist", "-o page.html"),
        (["a.jsonl", "b.jsonl", "-o", "/dev/zero"], "/dev/zero exists and is not a page", "-o"),
        (
            ["a.jsonl", "b.jsonl", "--sample", "3"],
            "--sample and --seed need a page",
            "-o page.html",
        ),
    ],
)
def test_a_mistake_is_named_with_its_remedy(
    cli: Cli, argv: list[str], what: str, hint: str
) -> None:
    outputs([result(1)], [result(1)], failed=(failure(2),))
    write_output(Path("c.jsonl"), [result(5)])
    write_output(Path("e.jsonl"), [result(5)], samples=3)
    Path("link.jsonl").symlink_to("a.jsonl")
    Path("own.html").write_text("<!doctype html>\n<title>Mine</title>\n", "utf-8")
    before = contents()
    told = cli("compare", *argv)
    assert (told.status, told.out) == (2, "")
    assert what in told.err
    assert hint in told.err
    assert before == contents()


def test_what_is_wrong_with_either_file_is_told(cli: Cli) -> None:
    outputs([result(1), result(2).replace(b"yes", b"yea")], [result(1), result(3)[:50]])
    told = cli("compare", "a.jsonl", "b.jsonl")
    assert told.status == 0
    assert "a.jsonl: 1 line is damaged and not counted" in told.out
    assert "b.jsonl: the last line is incomplete" in told.out


def test_one_format_is_compared_with_another(cli: Cli, rows: Rows) -> None:
    name = rows({"prompt": "one"}, {"prompt": "two"}, {"prompt": "one"})
    cli("run", name, "--model", "m", *SIM, "-o", "a.jsonl")
    cli("run", name, "--model", "m", *SIM, "--format", "batch", "-o", "b.jsonl")
    found: Any = json.loads(cli("compare", "a.jsonl", "b.jsonl", "--json").out)
    assert (found["common"], found["equal"]) == (3, 3)
