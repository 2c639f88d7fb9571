"""`redline run` with four keys of one server, each with a limit of its own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from support.forked import Command
from support.sim_process import SimProcess

KEYS = 4
RATE = 20  # requests per second of each
# A server of its own counts them: no 1 s of any key holds more.
SERVER = ("--algorithm", "moving", "--requests", f"{RATE}/1s", "--latency", "0.2")
# The guard that a run begins with is kept free of each window.
GUARD_S = 0.055


def prepare(folder: Path, server: SimProcess, rows: int, *flags: str) -> list[str]:
    """Writes rows.jsonl and redline.toml; the words of the command that runs them to out.jsonl."""
    lines = []
    for number in range(KEYS):
        lines += [f"[endpoints.k{number}]", f'base_url = "{server.base_url}"']
        lines += [f'api_key_env = "KEY_{number}"', f'requests = ["{RATE}/1s"]']
    (folder / "redline.toml").write_text("\n".join(lines) + "\n")
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(rows):
            file.write(json.dumps({"custom_id": str(number), "prompt": f"row {number}"}) + "\n")
    named = [word for number in range(KEYS) for word in ("--endpoint", f"k{number}")]
    return [
        *("run", "rows.jsonl", "--model", "m", *named),
        *("-c", "200", "-o", "out.jsonl", *flags),
    ]


def start(words: list[str], folder: Path) -> Command:
    """The run."""
    keys = {f"KEY_{number}": f"key-{number}" for number in range(KEYS)}
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OPENAI_") and not name.lower().endswith("_proxy")
    }
    return Command(words, cwd=folder, environ=environment | keys)


def park_one(
    folder: Path, server: SimProcess, *, rows: int, after_s: float, for_s: float
) -> dict[str, Any]:
    """A run in which the first key is parked in its midst: how much of what was open it used."""
    process = start(prepare(folder, server, rows), folder)
    _until_answered(server, 1, process)
    time.sleep(after_s)
    server.park("key-0", for_s)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    stats, lines = server.stats(), results(folder)
    assert len(lines) == len({line["row"] for line in lines}) == rows
    took_s = stats["last_received_s"] - stats["first_received_s"]
    parked = stats["rejected_by_limit"].get("parked", 0)
    return {
        "rows": rows,
        "took_s": round(took_s, 2),
        "used": round(rows / ((KEYS * took_s - for_s) * RATE / (1 + GUARD_S)), 4),
        "used_of_nominal": round(rows / ((KEYS * took_s - for_s) * RATE), 4),
        "rejected_while_parked": parked,
        "rejected": stats["rejected"] - parked,
        # In the file they are in the order of their ends: a row that waited is far behind.
        "latest_place": max(place - line["row"] for place, line in enumerate(lines, 1)),
        "said": said,
    }


def kill_and_resume(folder: Path, server: SimProcess, *, rows: int, kills: int) -> dict[str, Any]:
    """A run that is killed in its midst, so many times, and then runs to its end."""
    command = prepare(folder, server, rows, "--quiet")
    for number in range(kills):
        process = start(command, folder)
        _until_answered(server, (number + 1) * rows // (kills + 1), process)
        process.kill()
        process.communicate()
    process = start(command, folder)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    stats, lines = server.stats(), results(folder)
    assert len(lines) == len({line["row"] for line in lines}) == rows
    return {"rows": rows, "kills": kills, **{k: stats[k] for k in ("received", "rejected")}}


def results(folder: Path) -> list[dict[str, Any]]:
    """The lines of out.jsonl, in their order."""
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def _until_answered(server: SimProcess, count: int, process: Command) -> None:
    while server.stats()["answered"] < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
