"""A campaign that runs in one process depends on what it imports, and on nothing else."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from support.scripts import ROOT, script


@pytest.fixture(scope="module")
def imports() -> ModuleType:
    return script("bench/imports.py")


def test_imports_of_imports_are_found_and_the_public_door_is_left_out(
    imports: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "script.py"
    path.write_text("def late():\n    from redline.engine.draft import verification\n")
    found = {str(file.relative_to(ROOT)) for file in imports.files_of(path) - {path}}
    assert "src/redline/engine/draft/verification.py" in found
    # Imported by what it imports.
    assert "src/redline/errors.py" in found
    assert "src/redline/__init__.py" not in found
    assert not any(file.startswith("src/redline/calls/") for file in found)


def test_modules_of_tests_and_benchmarks_are_found(imports: ModuleType) -> None:
    found = imports.files_of(ROOT / "bench" / "engine_law_campaign.py")
    assert ROOT / "tests" / "support" / "decoder_law.py" in found
    assert ROOT / "bench" / "record.py" in found


def test_an_explanation_does_not_change_what_a_file_does(imports: ModuleType) -> None:
    code_of = imports.code_of
    before = code_of('"""One."""\ndef f(x):\n    """It adds."""\n    return x + 1  # one more\n')
    assert before == code_of('"""Two."""\n\ndef f(x):\n    """Adds 1."""\n    return (x + 1)\n')
    assert before != code_of('"""One."""\ndef f(x):\n    """It adds."""\n    return x + 2\n')
    assert code_of("def f():\n    'nothing'\n") == code_of("def f():\n    'none'\n")
    assert code_of("def f():\n    'nothing'\n    g()\n") == code_of("def f():\n    g()\n")
    assert code_of("RATE = 2\n'a second'\n") == code_of("RATE = 2\n'per second'\n")
    assert code_of("RATE = 'a second'\n") != code_of("RATE = 'per second'\n")
    assert code_of("raise E(f'{x} is not known')\n") == code_of(
        "raise E(f'there is no {x} here')\n"
    )
    assert code_of("raise E(f'{x} is not known')\n") != code_of("raise E(f'{y} is not known')\n")
    assert code_of("PROGRAM = 'import os\\nos.sep'\n") != code_of(
        "PROGRAM = 'import os\\nos.abc'\n"
    )
