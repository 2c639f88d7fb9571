"""The campaign of Redis streams: 10,000 messages, two consumers, and kill -9.

Each part is a run of tests/crash/streaming.py: over both files, each message has one outcome, and
all messages are acknowledged. The first part has the job's own bar. In the others, both consumers
die more often, and idle messages are claimed while their consumer starts again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from crash.streaming import Plan, consume_until_empty
from support.redis_server import redis_server

_MESSAGES, _CONCURRENCY = 10_000, 32
_PLANS = {
    "one killed twice": Plan(kills=(2, 0), seed=31, messages=_MESSAGES, concurrency=_CONCURRENCY),
    "both killed three times": Plan(
        kills=(3, 3), seed=32, messages=_MESSAGES, concurrency=_CONCURRENCY
    ),
    "claimed while it starts": Plan(
        kills=(3, 3), seed=33, messages=_MESSAGES, concurrency=_CONCURRENCY, idle="200ms"
    ),
}

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part."""
    for name, plan in _PLANS.items():
        yield name, plan.seed, _work(plan)


def _work(plan: Plan) -> Work:
    def work(folder: Path) -> dict[str, Any]:
        with redis_server() as server:
            return asdict(plan) | asdict(consume_until_empty(plan, folder, server.url))

    return work
