"""Other clients of the OpenAI API against `redline serve`: litellm, langchain-openai, instructor.

Each client has a virtual environment of its own, with its newest version. It makes a call, reads a
stream, gets a tool call or an answer that follows a schema, and uses a wrong key, which must be
refused with the error that it knows from OpenAI. The gateway has two simulated providers, and
COPIES of each client run at the same time, so that both providers are used. The answers that the
clients got and the requests that the providers counted must agree.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from support.serve_process import Serve, keys_of
from support.sim_process import fleet_of

SAID = "You said: hello"
CHATS = {"call": SAID, "stream": SAID, "tool": "look_up", "embeddings": 2}
REFUSED = {"refused": "AuthenticationError"}
# By the package: the script, what it must get, and the calls of a copy that reach an endpoint.
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
COPIES = 3
# Long enough for calls of one copy to meet those of another.
LATENCY = "0.5"

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
        words = [python, record.ROOT / "bench" / "peers" / script]

        def run(url: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*words, url, key],
                cwd=folder,
                env=record.clean_environment(),
                capture_output=True,
                text=True,
                timeout=LONGEST_S,
                check=False,
            )

        with (
            fleet_of(2, "--latency", LATENCY) as sims,
            Serve(
                folder,
                *(word for sim in sims for word in ("--endpoint", sim.base_url)),
                *("--keys", "keys.jsonl"),
            ) as serve,
            ThreadPoolExecutor(COPIES) as threads,
        ):
            copies = list(threads.map(run, [serve.url] * COPIES))
            received = [sim.stats()["received"] for sim in sims]
            assert serve.end() == (0, ""), "the gateway has written to stderr"
        versions = record.peer_versions(python, package, "openai")
        for done in copies:
            assert done.returncode == 0, done.stderr[-2000:]
            found = json.loads(done.stdout.splitlines()[-1])
            assert {name: found.get(name) for name in wanted} == wanted, found
            assert found.get("chunks", 2) > 1, found
        found |= {"calls": sum(received), "by_endpoint": received, "versions": versions}
        print(f"  {found}")
        assert sum(received) == COPIES * calls, found
        assert min(received) > 0, found
        return found

    return work
