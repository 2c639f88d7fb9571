"""The limit on open files is raised as far as the system allows, or the user is told."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from redline.process import raise_limit

SCRIPT = """
import json, resource, sys
soft, hard, connections, others = map(int, sys.argv[1:])
held = [open("/dev/null") for _ in range(others)]
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from redline.errors import ConfigError
from redline.process.open_files import raise_limit
try:
    raise_limit(connections)
    print(json.dumps({"soft": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}))
except ConfigError as error:
    print(json.dumps({"what": error.what, "hint": error.hint}))
"""


def raised(soft: int, hard: int, connections: int, others: int = 0) -> dict[str, object]:
    """What becomes of the limit in a process that has `others` files open already."""
    words = [str(number) for number in (soft, hard, connections, others)]
    command = [sys.executable, "-c", SCRIPT, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert raised(256, 4096, 1000) == {"soft": 4096}
    # Several endpoints have idle connections besides.
    assert raised(512, 4096, 100) == {"soft": 4096}
    assert raised(512, 512, 100) == {"soft": 512}


@pytest.mark.parametrize("refused", [10_000, None])
def test_the_limit_is_bounded_where_the_system_states_none_or_refuses_it(
    monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    limits = [(256, resource.RLIM_INFINITY)]

    def set_limit(_: int, new: tuple[int, int]) -> None:
        if refused is not None and new[0] > refused:
            raise ValueError("macOS has another limit")
        limits.append(new)

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    raise_limit(1000)
    soft, hard = limits[-1]
    assert 1000 <= soft <= (refused or 1 << 20)
    assert hard == resource.RLIM_INFINITY


def test_a_hard_limit_that_is_too_low_is_told_with_the_way_out() -> None:
    assert raised(256, 512, 1000) == {
        "what": "concurrency 1,000 needs 1,064 open files, but this process may open only 512",
        "hint": "lower --concurrency to 448, or raise `ulimit -Hn`",
    }


def test_a_lower_concurrency_is_no_way_out_if_not_even_one_call_fits() -> None:
    assert raised(64, 64, 8)["hint"] == "raise `ulimit -Hn`"


def test_files_that_are_open_already_count() -> None:
    open_files = 3 + 100 + 1  # the standard streams, those held, and the listing of them
    assert raised(256, 1000 + open_files + 48, 1000, others=100) == {"soft": 1000 + open_files + 48}
    assert raised(128, 1100, 1000, others=100)["hint"] == (
        f"lower --concurrency to {1100 - open_files - 48}, or raise `ulimit -Hn`"
    )
