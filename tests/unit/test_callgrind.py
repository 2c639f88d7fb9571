"""The counts of callgrind are read from what its annotation prints."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.scripts import script

SHOWN = """\
--------------------------------------------------------------------------------
Ir
--------------------------------------------------------------------------------
1,300 (100.0%)  PROGRAM TOTALS

Ir                   file:function
1,000 (76.92%)  ./Python/ceval.c:_PyEval_EvalFrameDefault'2 [/usr/lib/libpython3.11.so.1.0]
  250 (19.23%)  ???:feed_data(char const*, int) [/a/parser.so]
   50 ( 3.85%)  ./malloc/malloc.c:malloc
"""


@pytest.fixture
def callgrind() -> ModuleType:
    return script("bench/callgrind.py")


def test_instructions_are_counted_by_function(
    callgrind: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, SHOWN, "")

    monkeypatch.setattr(subprocess, "run", run)
    assert callgrind.counts(Path("callgrind.out")) == {
        "_PyEval_EvalFrameDefault'2 [libpython3.11.so.1.0]": 1000,
        "feed_data(char const*, int) [parser.so]": 250,
        "malloc": 50,
    }
