"""The help pages, word by word.

They stand in tests/cli/expected/*.txt. After a change that is meant:

    REFRESH=1 python -m pytest tests/cli/test_help.py

writes them anew; look at the difference before committing it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXPECTED = Path(__file__).parent / "expected"
PAGES = {
    "redline.txt": ["--help"],
    "run.txt": ["run", "--help"],
    "eval.txt": ["eval", "--help"],
    "synth.txt": ["synth", "--help"],
    "tag.txt": ["tag", "--help"],
    "status.txt": ["status", "--help"],
    "show.txt": ["show", "--help"],
    "compare.txt": ["compare", "--help"],
    "verify.txt": ["verify", "--help"],
    "repair.txt": ["repair", "--help"],
    "bench.txt": ["bench", "--help"],
    "engine.txt": ["engine", "--help"],
    "serve.txt": ["serve", "--help"],
    "fleet.txt": ["fleet", "--help"],
    "fleet-up.txt": ["fleet", "up", "--help"],
    "fleet-status.txt": ["fleet", "status", "--help"],
    "keys.txt": ["keys", "--help"],
    "keys-add.txt": ["keys", "add", "--help"],
    "keys-list.txt": ["keys", "list", "--help"],
    "keys-revoke.txt": ["keys", "revoke", "--help"],
    "sim.txt": ["sim", "--help"],
    "route.txt": ["route", "--help"],
    "report.txt": ["report", "--help"],
    "route-replay.txt": ["route", "replay", "--help"],
}
Cli = Callable[..., Any]


@pytest.mark.parametrize("name", PAGES)
def test_a_help_page_is_as_it_was_agreed(cli: Cli, name: str) -> None:
    told = cli(*PAGES[name])
    if os.environ.get("REFRESH"):
        (EXPECTED / name).write_text(told.out, "utf-8")
    assert told.out == (EXPECTED / name).read_text("utf-8")
    assert (told.status, told.err) == (0, "")


def test_no_page_is_forgotten() -> None:
    assert {path.name for path in EXPECTED.glob("*.txt")} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_help_page_fits_80_columns_and_its_examples_can_be_copied(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli(*PAGES[name]).out.splitlines()
    assert max(map(len, lines)) <= 80
    examples = [line for line in lines if re.match(r"    (  )*\S", line) and "redline " in line]
    assert examples
    assert all(line.startswith("    redline ") for line in examples)


def test_a_narrow_terminal_wraps_the_text(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    lines = cli("run", "--help").out.splitlines()
    prose = [line for line in lines if not line.startswith("    ")]
    assert max(map(len, prose)) <= 50


def test_help_has_no_colour_and_no_boxes(cli: Cli) -> None:
    assert cli("run", "--help").out.isascii()
    assert "\x1b" not in cli("run", "--help").out


def test_the_bare_name_shows_the_help(cli: Cli) -> None:
    assert cli() == cli("--help")


@pytest.mark.parametrize("argv", [["--version"], ["-V"], ["--version", "run"]])
def test_the_version(cli: Cli, argv: list[str]) -> None:
    told = cli(*argv)
    assert (told.status, told.err) == (0, "")
    assert re.fullmatch(r"redline \d+\.\d+\.\d+\S*\n", told.out)


def test_every_flag_is_explained(cli: Cli) -> None:
    for page in ("run", "synth", "verify", "repair", "engine", "sim"):
        text = cli(page, "--help").out
        flags = re.findall(r"^  (?:-\w, )?(--[\w-]+)(.*)$(?=\n(.*))", text, re.M)
        assert flags
        for flag, rest, following in flags:
            assert rest.strip() or following.strip(), f"{page} {flag} has no help"
