"""The fuzz campaign of redline's own transport: seeded faults in answers, in random pieces.

Twenty parts take half a minute of CPU time each, with different seeds. Each part counts its
executions and the lines of connection.py, answer_form.py and both inflate.py that they reached. It
fails if the property of tests/support/fuzzing.py does not hold, or if fewer than 90 % of the lines
were reached.

Four more parts run `redline run` repeatedly against a server with such answers, and fail if the
property of tests/support/socket_fuzzing.py does not hold.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import coverage
import record

sys.path.insert(0, str(record.ROOT / "tests"))

from redline import inflate as decompression
from redline.calls.wire import answer_form, connection, inflate
from support.fuzzing import fuzz
from support.socket_fuzzing import Figures, fuzz_run

LASTS_S = 30.0
PARTS = 20
OVER_SOCKETS = 4
ROWS = 40
LEAST_PERCENT = 90.0

Work = Callable[[Path], dict[str, Any]]


class UnreachedError(AssertionError):
    """Too few lines were reached; `found` keeps the figures for the record."""

    def __init__(self, what: str, found: dict[str, Any]) -> None:
        super().__init__(what)
        self.found = found


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part."""
    for seed in range(1, PARTS + 1):
        yield f"seed {seed}", seed, _work(seed)
    for seed in range(1, OVER_SOCKETS + 1):
        yield f"redline run, seed {seed}", seed, _runs(seed)


def _work(seed: int) -> Work:
    def work(_: Path) -> dict[str, Any]:
        modules = (connection, answer_form, inflate, decompression)
        watched = coverage.Coverage(data_file=None, include=[str(m.__file__) for m in modules])
        watched.start()
        try:
            for module in modules:
                _run_again(module)
            found = fuzz(connection, seed, lasts_s=LASTS_S).as_record()
        finally:
            watched.stop()
        found["executions_per_s"] = round(found["executions"] / LASTS_S)
        found["lines"] = {module.__name__: _reached(watched, module) for module in modules}
        for name, lines in found["lines"].items():
            print(f"  {name}: {lines['percent']} % of {lines['lines']} lines; not {lines['not']}")
            if lines["percent"] < LEAST_PERCENT:
                raise UnreachedError(f"{lines['percent']} % of {name} was reached", found)
        print(f"  {found['executions']:,} executions: {found['outcomes']}")
        return found

    return work


def _runs(seed: int) -> Work:
    def work(folder: Path) -> dict[str, Any]:
        figures, runs, ends_s = Figures(), 0, time.monotonic() + LASTS_S
        while time.monotonic() < ends_s:
            fuzz_run(folder / str(runs), 1_000 * seed + runs, ROWS, figures)
            runs += 1
        print(f"  {figures.executions:,} answers in {runs} runs: {figures.outcomes}")
        return {"runs": runs, **figures.as_record()}

    return work


def _run_again(module: ModuleType) -> None:
    """Runs the lines that run at the module's import, in a copy that is dropped."""
    spec = find_spec(module.__name__)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))


def _reached(watched: coverage.Coverage, module: ModuleType) -> dict[str, Any]:
    _, lines, _, missing, _ = watched.analysis2(str(module.__file__))
    percent = 100 * (len(lines) - len(missing)) / len(lines)
    return {"lines": len(lines), "percent": round(percent, 1), "not": missing}
