"""The limit on open files is raised as far as the concurrency needs, or the user is told."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, resource, sys
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from redline.errors import ConfigError
from redline.run.descriptors import raise_limit
try:
    raise_limit(connections)
    print(json.dumps({"soft": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}))
except ConfigError as error:
    print(json.dumps({"what": error.what, "hint": error.hint}))
"""


def raised(soft: int, hard: int, connections: int) -> dict[str, object]:
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard), str(connections)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_low_soft_limit_is_raised_to_what_is_needed() -> None:
    assert raised(256, 4096, 1000) == {"soft": 1064}


def test_a_soft_limit_that_suffices_is_left_alone() -> None:
    assert raised(512, 4096, 100) == {"soft": 512}


def test_a_hard_limit_that_is_too_low_is_told_with_the_way_out() -> None:
    assert raised(256, 512, 1000) == {
        "what": "concurrency 1,000 needs 1,064 open files, and this process may have 512",
        "hint": "lower --concurrency to 448, or raise `ulimit -Hn`",
    }
