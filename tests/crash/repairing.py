"""A program that lets `redline repair` die at each step it takes on the disk.

    python repairing.py MANNER FOLDER [MUTANT]

Manners of death as in dying.py. Ends with status 0 once every step had its death, after each of
which both files were the old or the new one, no byte was gone, and a second repair went through.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import zlib
from pathlib import Path
from typing import Any

from crash.dying import Disk, in_child
from mutants import mutant
from redline.run import repair as repairs
from redline.run.settings import Output

_MOST_STEPS = 100


def line(number: int) -> bytes:
    """The line of row `number`, sealed."""
    body = json.dumps({"v": 1, "hash": f"{number:016x}", "row": number})[:-1].encode()
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


LINES = [line(number) for number in range(1, 8)]
# The old file, the new file, and what is taken out.
FILES = {
    "labels.jsonl": (
        b"".join([*LINES[:3], b"notes\n", *LINES[3:5], LINES[0], b"torn"]),
        b"".join(LINES[:5]),
        b"notes\n" + LINES[0] + b"torn",
    ),
    "labels.failed.jsonl": (b"other\n" + b"".join(LINES[5:]), b"".join(LINES[5:]), b"other\n"),
}


def begin(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "labels.redline").mkdir()
    (folder / "labels.redline" / "manifest.json").write_text('{"settings": {}}')
    (folder / "labels.redline" / "lock").touch()
    for name, (old, _, _) in FILES.items():
        (folder / name).write_bytes(old)


def check(folder: Path, *, is_over: bool) -> None:
    """Each file is the old one or the new one, and what is not in it stands beside it, whole."""
    for name, (old, new, out) in FILES.items():
        path = folder / name
        assert path.exists(), f"{name} is gone"
        data = path.read_bytes()
        assert data in ((new,) if is_over else (old, new)), f"{name} is neither: {data!r}"
        asides = [found.read_bytes() for found in folder.glob(f"{path.stem}.damaged-*.jsonl")]
        assert all(aside == out for aside in asides), f"beside {name}: {asides}"
        assert data == old or asides, f"{name} was repaired and what went out is gone"
    if is_over:
        left = [path.name for path in folder.rglob("*unfinished*")]
        assert not left, f"left behind: {left}"


def sweep(manner: str, base: Path, module: Any) -> int:
    """The number of steps, each of which had its death."""
    for fatal in range(1, _MOST_STEPS):
        folder = base / f"{fatal}" / "out"
        begin(folder)
        output = Output(path=folder / "labels.jsonl")

        def die(fatal: int = fatal, folder: Path = folder, output: Output = output) -> bool:
            Disk(folder, manner, fatal)
            return bool(module.repair(output))

        status = in_child(die)
        assert status in (0, signal.SIGKILL), f"step {fatal}: wait status {status}"
        check(folder, is_over=status == 0)
        assert in_child(lambda output=output: bool(module.repair(output))) == 0
        check(folder, is_over=True)
        shutil.rmtree(folder.parent)
        if status == 0:
            return fatal - 1
    raise AssertionError(f"more than {_MOST_STEPS} steps")


_ASIDE = "replace_file(done.aside, _copier(fd, _pairs(out)))"
_KEPT = 'replace_file(path, _copier(fd, _pairs(array("Q", [0, *out, size]))))'
# One line broken each, so that the sweep must fail.
MUTANTS = {
    "aside-comes-last": (_ASIDE, f"{_KEPT}; {_ASIDE}"),
    "aside-is-not-synced": (
        _ASIDE,
        'done.aside.write_bytes(b"".join(os.pread(fd, e - b, b) for b, e in _pairs(out)))',
    ),
    "old-file-removed-first": (_KEPT, f"path.unlink(); {_KEPT}"),
}


def main(manner: str, folder: str, *mutants: str) -> None:
    module = mutant(repairs, *MUTANTS[mutants[0]]) if mutants else repairs
    steps = sweep(manner, Path(folder), module)
    print(f"repair: {steps} steps, a death {manner} each")


if __name__ == "__main__":
    main(*sys.argv[1:])
