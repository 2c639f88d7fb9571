"""The live view in a real kernel, run by nbclient, where that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import redline

CELL = f"""
import sys
sys.path.insert(0, {str(Path(redline.__file__).parents[1])!r})
import redline
report = redline.run(
    [{{"text": str(n)}} for n in range(30)], endpoint="sim", prompt="{{{{ text }}}}", rps=20
)
report.succeeded
"""


def test_a_cell_shows_the_run() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    assert sys.executable
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=60).execute()
    shown, result = notebook.cells[0].outputs
    assert shown.output_type == "display_data"
    assert "30 of 30 done" in shown.data["text/plain"]
    assert "30 of 30 done" in shown.data["text/html"]
    assert result.data["text/plain"] == "30"
