"""docs/architecture.md and its diagrams show the tree as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.architecture_rules import LAYERS, SUBFOLDERS
from support.scripts import script

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "redline"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
# Folder, what it holds, and the modules to begin with.
TABLE = [
    (folder, re.findall(r"`(\w+)`(?=[,;:]|$)", modules.strip()))
    for folder, modules in re.findall(r"^\| `([a-z/]+)` \| .* \| (.*) \|$", PAGE, re.M)
    if (SOURCE / folder).is_dir()
]


@pytest.fixture(scope="module")
def diagrams() -> ModuleType:
    return script("bench/diagrams.py")


def folders() -> list[str]:
    """Every folder of src/redline, in the order of the layers from the top."""
    found = []
    for part in reversed(LAYERS):
        for inner in reversed(SUBFOLDERS.get(part, ("",))):
            folder = f"{part}/{inner}".strip("/")
            if (SOURCE / folder / "__init__.py").exists():
                found.append(folder)
    return found


def test_the_table_has_every_folder_in_the_order_of_the_layers() -> None:
    existing = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")}
    assert {*folders()} == existing - {"."}
    assert [folder for folder, _ in TABLE] == folders()


def test_the_table_names_modules_of_their_folders() -> None:
    missing = [
        f"{folder}/{module}"
        for folder, modules in TABLE
        for module in modules
        if module.islower() and not (SOURCE / folder / f"{module}.py").exists()
    ]
    assert sum(len(modules) for _, modules in TABLE) > len(TABLE)
    assert [name for name in missing if not name.endswith(PUBLIC_FUNCTIONS)] == []


# Functions that the table names beside their module.
PUBLIC_FUNCTIONS = ("job/run", "job/arun", "job/stream")


def test_every_path_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.py)`", PAGE)
    named += re.findall(r"`((?:tests|bench|docs|src)/[\w/-]*)`", PAGE)
    assert named
    assert [
        name for name in named if not any((base / name).exists() for base in (ROOT, SOURCE))
    ] == []
    links = re.findall(r"\]\(((?!https?:|#)[^)#]+)", PAGE)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_the_extras_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    named = re.findall(r"^\| `\[(\w+)\]` \|", PAGE, re.M)
    assert {*named} == {*re.findall(r"^(\w+) = \[", extras, re.M)} - {"all"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layers.svg", "call.svg", "batch.svg"])
def test_a_diagram_is_what_the_script_draws(diagrams: ModuleType, name: str) -> None:
    drawn = diagrams.PICTURES[name]()
    path = diagrams.FOLDER / name
    assert path.read_text("utf-8") == drawn, "run python bench/diagrams.py"
    assert f"(pictures/{name})" in PAGE


def test_the_states_are_those_of_the_ledger(diagrams: ModuleType, tmp_path: Path) -> None:
    """Each note of the table leads to the state that the table says."""
    from redline.job.batch import Ledger, Note
    from redline.journal import Output

    ledger = Ledger(Output(path=tmp_path / "labels.jsonl"))
    (tmp_path / "labels.redline").mkdir()
    ledger.begin("https://api.example.com")
    ledger.part_path(1).write_bytes(b"")
    reached = []
    for state in diagrams.states():
        ledger.write(Note(at=state.note, part=1))
        reached.append(ledger.parts[1].state if ledger.parts else "done")
    ledger.close()
    assert reached == [state.name for state in diagrams.states()]
    assert reached == ["spooled", "uploaded", "making", "running", "uploaded", "done"]


# Runs a job of one row, and prints the steps in the order in which they were first called.
TRACE = """
import importlib.util, sys, threading
from pathlib import Path

spec = importlib.util.spec_from_file_location("diagrams", sys.argv[1])
diagrams = importlib.util.module_from_spec(spec)
sys.modules["diagrams"] = diagrams
spec.loader.exec_module(diagrams)
waiting = {diagrams.resolved(step.function).__code__: step.function for step in diagrams.STEPS}

def called(frame, event, arg):
    if event == "call" and frame.f_code in waiting:
        print(waiting.pop(frame.f_code), flush=True)

import redline

Path("rows.jsonl").write_text('{"prompt": "Hello"}\\n')
options = {"rps": 100, "cache": "cache", "budget_tokens": 10_000, "params": {"temperature": 0}}
threading.setprofile(called)
sys.setprofile(called)
redline.run("rows.jsonl", model="m", endpoint="sim", output="out.jsonl", concurrency=1, **options)
"""


def test_a_row_passes_the_steps_of_the_diagram_in_their_order(
    diagrams: ModuleType, tmp_path: Path
) -> None:
    found = subprocess.run(
        [sys.executable, "-c", TRACE, str(ROOT / "bench" / "diagrams.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [step.function for step in diagrams.STEPS]
