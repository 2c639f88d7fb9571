"""Two consumers of a Redis stream, some killed and started again, until the stream is empty.

The small form is a test, the long form the campaign `redis-streams` of bench/campaign.py.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crash.killing import (
    PROMPT,
    Server,
    await_lines,
    clean_environ,
    sealed_lines,
    serving,
    whole_part,
)
from support.forked import Command

if TYPE_CHECKING:
    from redis import Redis

STREAM, GROUP = "tickets", "labels"
# Above what any of these takes, so that a process that hangs does not hang the tests.
_LIMIT_S = 600.0


@dataclass(frozen=True)
class Plan:
    """kills: of each consumer, so many times, at random moments. idle: see docs/continuous.md."""

    kills: tuple[int, int]
    seed: int
    messages: int = 600
    concurrency: int = 16
    idle: str = "60s"
    server: tuple[str, ...] = ("--latency", "0.02-0.1", "--faults", "500=0.01")


SMALL = Plan(kills=(2, 0), seed=1)


@dataclass
class Figures:
    """lines_at_kills: of the results that were there. unacknowledged_at_kills: of those, in Redis.

    by_consumer: messages each of the two has done. received: requests; allowed: those that
    messages, retries and kills explain.
    """

    messages: int = 0
    kills: int = 0
    lines_at_kills: list[int] = field(default_factory=list)
    unacknowledged_at_kills: list[int] = field(default_factory=list)
    by_consumer: list[int] = field(default_factory=list)
    outcomes: int = 0
    repeated: int = 0
    pending: int = 0
    received: int = 0
    allowed: int = 0
    duration_s: float = 0.0


def fill(redis: Redis, count: int, stream: str = STREAM) -> list[str]:
    """Adds messages, every other one as JSON; their ids."""
    with redis.pipeline(transaction=False) as pipe:
        for number in range(1, count + 1):
            text = f"message {number}: " + "é words " * (number % 7)
            if number % 2:
                pipe.xadd(stream, {"text": text})
            else:
                pipe.xadd(stream, {"json": json.dumps({"text": text})})
        return [_text(message_id) for message_id in pipe.execute()]


def consumer_flags(url: str, output: Path, server: Server, *more: str) -> list[str]:
    """The arguments of `redline run` for one consumer."""
    flags = ["run", url, "--prompt", PROMPT, "--model", "sim", "--base-url", server.base_url]
    return [*flags, "-o", str(output), "--quiet", *more]


def outcomes(folder: Path) -> Counter[str]:
    """How many lines each message has, over all results and failures in a folder."""
    return Counter(
        line["message"] for path in folder.glob("*.jsonl") for line in sealed_lines(path)
    )


def summary(redis: Redis, stream: str = STREAM, group: str = GROUP) -> dict[str, Any]:
    """What the group has: `pending`, and `last-delivered-id`."""
    groups: list[dict[str, Any]] = redis.xinfo_groups(stream)  # type: ignore[assignment]
    return next(found for found in groups if _text(found["name"]) == group)


def consume_until_empty(plan: Plan, folder: Path, redis_url: str) -> Figures:
    """Two consumers with a file each; what is killed is started again by the same command.

    Raises AssertionError where a message has no outcome or two, over both files, or is not
    acknowledged.
    """
    from redis import Redis

    begun_s = time.monotonic()
    redis = Redis.from_url(redis_url)
    sent = fill(redis, plan.messages)
    figures = Figures(messages=plan.messages, kills=sum(plan.kills))
    outputs = [folder / "a.jsonl", folder / "b.jsonl"]
    url = f"{redis_url}/{STREAM}?group={GROUP}&idle={plan.idle}"
    with serving("--seed", str(plan.seed), *plan.server) as server:
        more = ("-c", str(plan.concurrency), "--until-empty")
        commands = [consumer_flags(url, output, server, *more) for output in outputs]
        running = [
            _Consumer(command, output) for command, output in zip(commands, outputs, strict=True)
        ]
        try:
            _kill(plan, running, redis, figures)
            for consumer in running:
                consumer.end()
        finally:
            for consumer in running:
                consumer.kill()
        stats = server.stats()
    found = outcomes(folder)
    figures.by_consumer = [len(sealed_lines(output)) for output in outputs]
    figures.outcomes = len(found)
    figures.repeated = sum(count > 1 for count in found.values())
    group = summary(redis)
    figures.pending = group["pending"]
    figures.received = stats["received"]
    retries = stats["faults"] + stats["rejected"] + stats["overloaded"]
    # What is in flight, and what is answered and waits for leave to be written.
    figures.allowed = plan.messages + retries + figures.kills * 2 * plan.concurrency
    figures.duration_s = round(time.monotonic() - begun_s, 2)
    redis.close()
    assert found == Counter(sent), f"not each once: {figures}"
    assert figures.pending == 0, f"not acknowledged: {figures}"
    assert _text(group["last-delivered-id"]) == sent[-1], f"not handed out: {figures}"
    return figures


class _Consumer:
    """One consumer's process, and the next one of the same command after a kill."""

    def __init__(self, flags: Sequence[str], output: Path) -> None:
        self.output = output
        self._flags = flags
        self.start()

    def start(self) -> None:
        self.process = Command(self._flags, environ=clean_environ())

    def lines(self) -> int:
        return whole_part(self.output).count(b"\n")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def end(self) -> None:
        """Waits for it to end by itself, with all done."""
        _, err = self.process.communicate(timeout=_LIMIT_S)
        assert self.process.returncode == 0, err


def _kill(plan: Plan, running: Sequence[_Consumer], redis: Redis, figures: Figures) -> None:
    chance = random.Random(plan.seed)
    # Both in turn, so that neither has done all before it is to die.
    turns = range(max(plan.kills))
    victims = [index for turn in turns for index in (0, 1) if turn < plan.kills[index]]
    # Few lines between two deaths: the other one goes on while this one starts again.
    share = max(2, plan.messages // (10 * (sum(plan.kills) + 1)))
    for index in victims:
        consumer = running[index]
        wanted = consumer.lines() + chance.randint(share // 2, share)
        await_lines(consumer.output, wanted, consumer.process)
        assert consumer.process.poll() is None, "the stream was empty before the last kill"
        # The moment falls anywhere: within a group, between write, fsync and acknowledgement.
        time.sleep(chance.uniform(0, 0.06))
        consumer.kill()
        assert consumer.process.returncode == -signal.SIGKILL
        figures.lines_at_kills.append(consumer.lines())
        figures.unacknowledged_at_kills.append(_unacknowledged(consumer.output, redis))
        consumer.start()


def _unacknowledged(output: Path, redis: Redis) -> int:
    """How many messages have their line in the file and wait for their acknowledgement."""
    entries: list[dict[str, Any]] = redis.xpending_range(STREAM, GROUP, "-", "+", 100_000)  # type: ignore[assignment]
    pending = {_text(entry["message_id"]) for entry in entries}
    lines = [json.loads(line) for line in whole_part(output).splitlines()]
    return sum(line["message"] in pending for line in lines)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
