"""Other clients of the OpenAI API against `redline serve`: litellm, langchain-openai, instructor.

Each has a virtual environment of its own, with its newest version. It makes a call, reads a stream,
has a tool called or an answer of a schema, and is refused with a wrong key as it knows it from
OpenAI. What it got, and what the simulated provider has counted, must agree.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from support.serve_process import Serve, keys_of
from support.sim_process import SimProcess

SAID = "You said: hello"
CHATS = {"call": SAID, "stream": SAID, "tool": "look_up", "embeddings": 2}
REFUSED = {"refused": "AuthenticationError"}
# By the package: the script, what it must get, and the calls that reach the endpoint.
CLIENTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "litellm": ("client_litellm.py", CHATS | REFUSED, 4),
    "langchain-openai": ("client_langchain.py", CHATS | REFUSED, 4),
    "instructor": (
        "client_instructor.py",
        {"TOOLS": "City", "JSON_SCHEMA": "City", "whole": True} | REFUSED,
        3,
    ),
}
LONGEST_S = 300

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part."""
    for package in CLIENTS:
        yield package, 1, _work(package)


def _work(package: str) -> Work:
    script, wanted, calls = CLIENTS[package]

    def work(folder: Path) -> dict[str, Any]:
        python = record.peer_python(f"client-{package}", package)
        key = keys_of(folder, "one")["one"]
        with (
            SimProcess() as sim,
            Serve(folder, "--endpoint", sim.base_url, "--keys", "keys.jsonl") as serve,
        ):
            done = subprocess.run(
                [python, record.ROOT / "bench" / "peers" / script, serve.url, key],
                cwd=folder,
                env=record.clean_environment(),
                capture_output=True,
                text=True,
                timeout=LONGEST_S,
                check=False,
            )
            received = sim.stats()["received"]
            assert serve.end() == (0, ""), "the gateway has written to stderr"
        assert done.returncode == 0, done.stderr[-2000:]
        found = json.loads(done.stdout.splitlines()[-1])
        found |= {"calls": received, "versions": record.peer_versions(python, package, "openai")}
        print(f"  {found}")
        assert {name: found.get(name) for name in wanted} == wanted, found
        assert found.get("chunks", 2) > 1, found
        assert received == calls, found
        return found

    return work
