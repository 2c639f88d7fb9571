"""Every module and file that code or docs name exists: no retired path is left.

The changelog and the decisions speak of their own time, and are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "redline"
FOLDERS = ("src", "tests", "bench", "examples", "docs")
SUFFIXES = {".py", ".md", ".lua", ".toml"}
# Invented names: planted packages, and users' own files.
INVENTED = {"tests/test_architecture.py", "tests/docs/test_paths.py", "tests/unit/test_depth.py"}
PARTS = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
# Top-level folders and modules of earlier structures; `run` is also the name of a function.
RETIRED = {"run", "listening", "locked", "printable", "lasting", "threads", "signals"}
# Names that only ever were modules.
RETIRED_NAMES = (
    *("answer_headers", "batch_collect", "batch_door", "batch_fill", "batch_ledger", "batch_live"),
    *("batch_open", "batch_plan", "batch_send", "batch_spool", "budget_flags", "cache_file"),
    *("cache_key", "cache_settings", "cache_store", "default_key", "limit_flags", "object_store"),
    *("output_names", "source_arrow", "source_bytes", "source_follow", "source_row"),
    *("source_stream", "store_errors", "stream_consumer", "stream_group", "via_flag"),
)


def pages() -> Iterator[Path]:
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile")
    yield ROOT / "pyproject.toml"
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            is_past = name.startswith(("docs/decisions/", "tests/fixtures/", "bench/results/"))
            if path.suffix in SUFFIXES and not is_past and name not in INVENTED:
                yield path


def offered(folder: Path) -> set[str]:
    """The names that a folder's `__init__.py` imports, and the modules and folders in it."""
    names = {path.stem for path in folder.iterdir()}
    for node in ast.walk(ast.parse((folder / "__init__.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def exists(dotted: str) -> bool:
    """Whether the first parts of `calls.http.Endpoint` lead to a module or a name of a door."""
    folder = SOURCE
    for part in dotted.split("."):
        if part not in offered(folder):
            return False
        if not (folder / part / "__init__.py").exists():
            return True  # a module or a name; what it holds is not looked at
        folder /= part
    return True


def is_lost(dotted: str) -> bool:
    """Whether `calls.http.Endpoint` names what is not there; not for names such as `toml`."""
    first, *inner = dotted.split(".")
    if first in RETIRED:
        return bool(inner) or first not in offered(SOURCE)
    return (SOURCE / first).is_dir() and not exists(dotted)


def lost_paths(text: str) -> list[str]:
    """The names in a text that lead nowhere in this repository."""
    names = re.findall(r"(?<![\w/.-])redline\.(\w+(?:\.\w+)*)", text)
    lost = [f"redline.{name}" for name in names if is_lost(name)]
    inner = re.findall(rf"`((?:{'|'.join(sorted(PARTS))})(?:\.\w+)+)`", text)
    lost += [name for name in inner if not exists(name) and not name.endswith(".jsonl")]
    files = re.findall(r"(?<![\w/.-])(?:src/redline/)?((?:[a-z]\w*/)+\w+\.py)\b", text)
    lost += [
        file
        for file in files
        if file.split("/")[0] in PARTS | RETIRED and not (SOURCE / file).exists()
    ]
    return lost + re.findall(rf"`(?:{'|'.join(RETIRED_NAMES)})(?:\.py)?`", text)


@pytest.mark.slow
def test_no_retired_path_is_left() -> None:
    lost = {
        path.relative_to(ROOT).as_posix(): lost_paths(path.read_text("utf-8")) for path in pages()
    }
    assert {path: names for path, names in lost.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import redline.run.source\n",
        "from redline.calls.apis import read\n",
        "see redline.limits.rule.budget.Budget",
        "`limits/window.py` decides",
        "src/redline/run/hope.py",
        "as `output_names` says",
    ],
)
def test_a_retired_path_is_found(text: str) -> None:
    assert len(lost_paths(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "redline.run(rows), redline.toml, `timeline.jsonl` and labels.redline/run/x.py",
        "redline.limits.rule.window.Window",
        "from redline.calls import Client",
        "`limits/rule/window.py` decides, tests/limits/other.py, other/limits/none.py",
    ],
)
def test_an_existing_path_is_not(text: str) -> None:
    assert lost_paths(text) == []


def test_retired_names_are_retired() -> None:
    modules = {path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py")}
    assert not {path.name for path in modules} & set(RETIRED_NAMES)
    assert not {path.parts[0] for path in modules} & RETIRED
