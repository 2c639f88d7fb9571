"""docs/limiter-internals.md names every tuned constant of the limits, with its value."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "src" / "redline" / "limits"
PAGE = (ROOT / "docs" / "limiter-internals.md").read_text("utf-8")
# What a file looks like is not tuned.
FORMATS = {
    *("_VERSION", "_ENTRY_BYTES", "_CLAIM_OFFSET", "_FIRST_OFFSET", "_SIZE"),
    *("_PLACE_BYTES", "_MOST_BYTES", "_FIRST_PLACE"),
}
Values = tuple[float, ...]


def assigned(body: list[ast.stmt], values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The constants that a module's or a class's statements assign, and their values."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from assigned(statement.body, dict(vars(values[statement.name])))
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                for name in names:
                    if isinstance(name, ast.Name) and name.id.isupper():
                        yield name.id, values[name.id]


def constants(folder: Path = FOLDER) -> dict[tuple[str, str], Values]:
    """The numbers of the code, by module and name."""
    found: dict[tuple[str, str], Values] = {}
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).as_posix()
        name = "redline.limits." + place.removesuffix(".py").replace("/", ".")
        if path.name == "__init__.py":
            continue
        values = dict(vars(importlib.import_module(name)))
        for constant, value in assigned(ast.parse(path.read_text("utf-8")).body, values):
            numbers = value if type(value) is tuple else (value,)
            if all(isinstance(number, (int, float)) for number in numbers):
                found[place, constant] = tuple(map(float, numbers))
    return found


def named(page: str) -> set[tuple[tuple[str, ...], str, Values]]:
    """(modules of the section, name, values) of each constant in the page's tables."""
    found = set()
    for section in page.partition("## Constants")[2].split("\n### ")[1:]:
        head, _, text = section.partition("\n")
        for names, values in re.findall(r"^\| `([A-Z_, ]+)` \| ([^|]+) \| [^|]+ \|$", text, re.M):
            numbers = [float(Fraction(value)) for value in values.split(", ")]
            each = names.split(", ")
            for at, name in enumerate(each):
                own = numbers if len(each) == 1 else numbers[at : at + 1]
                found.add((tuple(head.split(", ")), name, tuple(own)))
    return found


def missing(page: str) -> list[str]:
    """Constants that the page lacks or has with another value, and those that it invents."""
    left = named(page)
    problems = []
    for (place, name), values in constants().items():
        rows = {
            row
            for row in left
            if row[1:] == (name, values) and any(place.startswith(part) for part in row[0])
        }
        if not rows and name not in FORMATS:
            problems.append(f"{place} {name} = {values} is not in the page")
        left -= rows
    return problems + [f"the page has {name} = {values}" for _, name, values in sorted(left)]


def test_the_page_names_every_constant_with_its_value() -> None:
    assert missing(PAGE) == []


def test_a_wrong_value_or_a_constant_too_many_is_noticed() -> None:
    assert missing(PAGE.replace("| `PRIOR_S` | 0.05 |", "| `PRIOR_S` | 0.04 |")) == [
        "rule/guard.py PRIOR_S = (0.05,) is not in the page",
        "the page has PRIOR_S = (0.04,)",
    ]
    assert len(missing(PAGE.replace("| `_SLOTS` | 4199 |", "| `_PLACES` | 4199 |"))) == 2


def test_the_ring_of_kept_sends_has_room_for_all_records() -> None:
    """As the page states it, by the numbers that it states."""
    numbers = {name: values[0] for _, name, values in named(PAGE)}
    assert 1 / numbers["GRAIN"] + 1 + numbers["SWEEP_EVERY"] <= numbers["_SLOTS"]
    assert "1 / GRAIN + 1 + SWEEP_EVERY <= _SLOTS" in PAGE
