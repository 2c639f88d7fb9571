"""Machine instructions by C function, counted by valgrind's tool callgrind.

The same program with the same input takes nearly the same number of instructions each time,
whatever else the machine does, so small differences are visible. The program runs about fifty times
slower while they are counted.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

INSTALL = "valgrind is not installed: apt-get install valgrind"
# A line of callgrind_annotate: instructions, their share, file:function, and the shared object.
_LINE = re.compile(r"\s*([\d,]+) \([ \d.]+%\)\s+\S+?:(.*?)(?: \[(.*)\])?$", re.MULTILINE)


def is_installed() -> bool:
    return shutil.which("valgrind") is not None


def under(path: Path) -> list[str]:
    """What a command is prefixed with, so that its counts are in the file `path` when it ends."""
    return ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={path}", "--"]


def counts(path: Path) -> Counter[str]:
    """The instructions of a run, of all its threads, by function."""
    command = ["callgrind_annotate", "--threshold=100", "--auto=no", str(path)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = Counter[str]()
    for number, function, library in _LINE.findall(shown):
        name = f"{function} [{Path(library).name}]" if library else function
        found[name] += int(number.replace(",", ""))
    return found


def versions() -> dict[str, str]:
    """That of valgrind."""
    shown = subprocess.run(["valgrind", "--version"], check=True, capture_output=True, text=True)
    return {"valgrind": shown.stdout.strip().removeprefix("valgrind-")}
