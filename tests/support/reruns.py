"""Runs on a real fleet of simulated providers, and what a replay of one says of the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path

from redline.route.replay import Replay
from redline.timeline import read_trace
from support.starting import answers, end, free_port, start

# Unequal in slots and in speed: calls at once, and the logarithm of the median latency.
SERVERS = ((8, -2.5), (4, -2.5), (4, -2.0), (2, -1.5))
SIGMA = 0.5
REDLINE = (sys.executable, "-m", "redline")


@contextmanager
def fleet() -> Iterator[list[str]]:
    """The URLs of the servers."""
    with ExitStack() as stack:
        urls = list[str]()
        for number, (slots, mu) in enumerate(SERVERS):
            port = free_port()
            command = [*REDLINE, "sim", "--port", str(port), "--concurrency", str(slots)]
            command += ["--latency", f"lognormal:{mu},{SIGMA}", "--seed", str(number)]
            process = start(command, lambda port=port: answers(port))  # type: ignore[misc]
            stack.callback(end, process, signal.SIGTERM)
            urls.append(f"http://127.0.0.1:{port}/v1")
        yield urls


def rerun(urls: Sequence[str], strategy: str, path: Path, *, calls: int, workers: int) -> float:
    """The makespan of a run by this strategy, whose trace is at `path`."""
    folder = path.parent / f"{path.name}.run"
    folder.mkdir()
    rows = (json.dumps({"prompt": f"row {number}"}) for number in range(calls))
    (folder / "rows.jsonl").write_text("\n".join(rows))
    flags = ["--model", "m", "-c", str(workers), "--balance", strategy, "-q", "-o", "out.jsonl"]
    flags += [word for url in urls for word in ("--endpoint", url)]
    command = [*REDLINE, "run", "rows.jsonl", *flags, "--trace", str(path)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=clean)
    (run,) = read_trace(path, calls).runs
    assert len(run.calls) == calls
    return max(call.done_s for call in run.calls) - min(call.arrived_s for call in run.calls)


def makespans(replay: Replay) -> dict[str, float]:
    """By strategy."""
    return {one.strategy: one.mean("makespan_s") for one in replay.scored}


def wrong_pairs(
    real: Mapping[str, float], told: Mapping[str, float], *, noise: float
) -> list[tuple[str, str]]:
    """The pairs whose first is really faster by more than this share, and was told to be slower."""
    return [
        (better, worse)
        for better, worse in permutations(real, 2)
        if real[better] < real[worse] * (1 - noise) and told[better] >= told[worse]
    ]
