"""Jobs with a known bottleneck: planted in a real run, and looked for in its timeline.

A scenario runs `redline run` against `redline sim`, both in processes of their own, and is
interrupted before its rows run out. It has a label for each stretch of its time: the cause that was
planted, and words that name it. Seconds just after a change belong to no label, nor does what
follows the interruption.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redline.observe import Binding, Cause, bindings
from redline.timeline import NAME, Timeline, read_timeline
from support.sim_process import SimProcess

SETTLING_S = 2.0
LONGEST_S = 600
# Replaces functions of `os` in the process that it is on the path of: a disk that stalls.
SLOW_WRITES = """
import os, time
write = os.write
def slow(fd, data):
    if os.readlink(f"/proc/self/fd/{fd}").endswith("out.jsonl"):
        time.sleep(%g)
    return write(fd, data)
os.write = slow
"""
SLOW_SYNCS = """
import os, time
fsync = os.fsync
def slow(fd):
    if os.readlink(f"/proc/self/fd/{fd}").endswith("out.jsonl"):
        time.sleep(%g)
    return fsync(fd)
os.fsync = slow
"""


@dataclass(frozen=True)
class Label:
    """What binds. words: some of which `Binding.what` has to have, each; empty for any.

    settling_s: after its beginning, seconds that have no label.
    """

    cause: Cause
    words: tuple[str, ...] = ()
    settling_s: float = SETTLING_S

    def is_named(self, binding: Binding) -> bool:
        return binding.cause is self.cause and all(word in binding.what for word in self.words)


@dataclass
class World:
    """What a scenario's changes may act on."""

    sim: SimProcess
    redline: subprocess.Popen[bytes]


@dataclass(frozen=True)
class Change:
    """After `after_s` seconds `act` is done; the label holds from then on."""

    after_s: float
    act: Callable[[World], None]
    label: Label


@dataclass(frozen=True)
class Scenario:
    """seconds: from the first window to the interruption. rows_per_s: of an input that is slow.

    row: the text of each row. shim: source of a `sitecustomize` for the client. relaxed: what is
    other in a run without the cause, which must then send more; None if nothing can be relaxed.
    """

    name: str
    label: Label
    sim: tuple[str, ...]
    flags: tuple[str, ...]
    seconds: float = 6.0
    rows: int = 100_000
    row: str = "a ticket"
    rows_per_s: float | None = None
    changes: tuple[Change, ...] = ()
    shim: str = ""
    relaxed: Mapping[str, Any] | None = None

    @property
    def planted_s(self) -> tuple[float, float]:
        """When the cause that `relaxed` takes away holds, in seconds since the run began."""
        if not self.changes:
            return self.label.settling_s, self.seconds
        first, *others = self.changes
        end_s = others[0].after_s if others else self.seconds
        return first.after_s + first.label.settling_s, end_s


@dataclass
class Verdict:
    """seconds: that have a label; right: of those, how many are named by it. wrong: the others."""

    seconds: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    timeline: Timeline | None = None

    @property
    def share(self) -> float:
        return self.right / max(1, self.seconds)


def played(scenario: Scenario, folder: Path) -> Verdict:
    """What the timeline of the scenario's run says, against its labels."""
    with SimProcess(*scenario.sim) as sim, _client(scenario, folder, sim) as client:
        path = folder / "out.redline" / NAME
        _wait(lambda: path.exists() and path.read_bytes().count(b"\n") > 0, client)
        world, begun = World(sim, client), read_timeline(path).runs[0].facts.at
        changes = [(begun, scenario.label)]
        for change in scenario.changes:
            time.sleep(max(0.0, begun + change.after_s - time.time()))
            change.act(world)
            changes.append((time.time(), change.label))
        time.sleep(max(0.0, begun + scenario.seconds - time.time()))
        ended = time.time()
        client.send_signal(signal.SIGINT)
        try:
            client.wait(3)
        except subprocess.TimeoutExpired:
            # Calls in flight may take minutes: it gives them up.
            client.send_signal(signal.SIGINT)
            client.wait(30)
    return judged(read_timeline(path), changes, ended)


def gain(scenario: Scenario, found: Verdict, folder: Path) -> float | None:
    """How many times as many requests a run sends without the cause; None if that cannot be tried.

    found: of the run with it. folder: for the other run.
    """
    if scenario.relaxed is None or found.timeline is None:
        return None
    other = played(replace(scenario, **scenario.relaxed), folder).timeline
    assert other is not None
    return _sent(other, scenario.planted_s) / max(1, _sent(found.timeline, scenario.planted_s))


def _sent(timeline: Timeline, between_s: tuple[float, float]) -> int:
    begin_s, end_s = between_s
    windows = timeline.runs[-1].windows
    return sum(one.sent for one in windows if begin_s <= (one.begin_s + one.end_s) / 2 <= end_s)


def judged(timeline: Timeline, changes: Sequence[tuple[float, Label]], ended: float) -> Verdict:
    """Second by second. changes: when each label begins to hold; ended: the time of the last."""
    verdict = Verdict(timeline=timeline)
    run = timeline.runs[-1]
    found = bindings(run.windows)
    second_s = 0.5
    while run.facts.at + second_s < ended - 1.0:
        at = run.facts.at + second_s
        since, label = [one for one in changes if one[0] <= at][-1]
        nearest_s = min(abs(at - when) for when, _ in changes[1:]) if changes[1:] else 9.0
        binding = next((one for one in found if one.begin_s <= second_s < one.end_s), None)
        if at - since >= label.settling_s and nearest_s >= 0.5 and binding is not None:
            verdict.seconds += 1
            verdict.right += label.is_named(binding)
            if not label.is_named(binding):
                what = f"{binding.cause.value}: {binding.what} ({binding.evidence})"
                verdict.wrong.append(f"{second_s:.1f} s, {label.cause.value} planted: {what}")
        second_s += 1.0
    return verdict


@contextmanager
def _client(scenario: Scenario, folder: Path, sim: SimProcess) -> Iterator[subprocess.Popen[bytes]]:
    """The run, interrupted or not when it is left."""
    line = json.dumps({"text": scenario.row}) + "\n"
    rows = folder / "rows.jsonl"
    if scenario.rows_per_s is None:
        with rows.open("w") as file:
            for number in range(scenario.rows):
                file.write(json.dumps({"id": number, "text": scenario.row}) + "\n")
    environment = dict(os.environ)
    if scenario.shim:
        (folder / "sitecustomize.py").write_text(scenario.shim)
        environment["PYTHONPATH"] = str(folder)
    source = "-" if scenario.rows_per_s is not None else str(rows)
    command = [
        *(sys.executable, "-m", "redline", "run", source, "--base-url", sim.base_url),
        *("--model", "m", "-q", "-o", str(folder / "out.jsonl"), *scenario.flags),
    ]
    if "--prompt" not in scenario.flags:
        command += ["--prompt", "{{ text }}"]
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stderr=stderr
        )
    killer = threading.Timer(LONGEST_S, process.kill)
    killer.start()
    feeder = threading.Thread(target=_feed, args=(process, line, scenario.rows_per_s), daemon=True)
    feeder.start()
    try:
        yield process
    finally:
        killer.cancel()
        process.kill()
        process.wait()
        feeder.join()


def _feed(process: subprocess.Popen[bytes], line: str, rows_per_s: float | None) -> None:
    """Writes rows into the client's stdin at a rate, until nothing takes them."""
    assert process.stdin is not None
    try:
        number = 0
        while rows_per_s is not None and process.poll() is None:
            process.stdin.write(line.replace("{", f'{{"id": {number}, ', 1).encode())
            process.stdin.flush()
            number += 1
            time.sleep(1 / rows_per_s)
        process.stdin.close()
    except OSError:
        return


def _wait(is_so: Callable[[], bool], client: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert client.poll() is None, "the client has ended"
        assert time.monotonic() < deadline, "the client has not begun"
        time.sleep(0.02)


def _stopped(for_s: float) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.redline.send_signal(signal.SIGSTOP)
        threading.Timer(for_s, world.redline.send_signal, [signal.SIGCONT]).start()

    return act


def _nothing(world: World) -> None:
    """Time goes on."""


def scenarios(seed: int) -> list[Scenario]:
    """All of them, with rates, latencies and concurrencies drawn from the seed."""
    draw = random.Random(seed)
    return [*alone(draw), *chosen(draw), *changing(draw), *slow(draw)]


def alone(draw: random.Random) -> list[Scenario]:
    """Each cause by itself."""
    latency = f"{draw.uniform(0.08, 0.15):.3f}"
    few, many = draw.randint(3, 8), draw.randint(48, 64)
    served = draw.randint(3, 6)
    wide = ("-c", str(many))
    busy = "{% for i in range(" + str(draw.randint(150_000, 200_000)) + ") %}{% endfor %}{{ text }}"
    alone = {"sim": ("--latency", latency)}
    rows_per_s, lognormal = draw.uniform(15, 40), ("--latency", "lognormal:-1.2,0.6")
    return [
        Scenario(
            "input", Label(Cause.INPUT), ("--latency", latency), wide,
            rows_per_s=rows_per_s, relaxed={"rows_per_s": 4 * rows_per_s},
        ),
        Scenario(
            "client", Label(Cause.CLIENT), ("--latency", latency), (*wide, "--prompt", busy),
            relaxed={"flags": wide},
        ),
        Scenario(
            "requests", Label(Cause.LIMIT, ("requests/s",)), ("--latency", latency),
            (*wide, "--rps", str(draw.randint(20, 90))), relaxed={"flags": wide},
        ),
        Scenario(
            "concurrency", Label(Cause.CONCURRENCY), ("--latency", latency), ("-c", str(few)),
            relaxed={"flags": ("-c", str(3 * few))},
        ),
        Scenario(
            "concurrency-lognormal", Label(Cause.CONCURRENCY), ("--latency", "lognormal:-1.5,0.6"),
            ("-c", str(2 * few)), seconds=8.0, relaxed={"flags": ("-c", str(6 * few))},
        ),
        Scenario(
            "endpoint", Label(Cause.ENDPOINT),
            ("--latency", latency, "--concurrency", str(served)),
            ("-c", str(draw.randint(4, 8) * served)), seconds=8.0, relaxed=alone,
        ),
        Scenario(
            "endpoint-lognormal", Label(Cause.ENDPOINT, settling_s=3.0),
            (*lognormal, "--concurrency", str(served)), ("-c", str(3 * served)), seconds=14.0,
            relaxed={"sim": lognormal},
        ),
        Scenario(
            "endpoint-auto", Label(Cause.ENDPOINT, settling_s=8.0),
            ("--latency", "0.2", "--concurrency", str(served)), ("-c", "auto"), seconds=20.0,
            relaxed={"sim": ("--latency", "0.2")},
        ),
        Scenario(
            "writer", Label(Cause.WRITER), ("--latency", latency), wide,
            shim=SLOW_WRITES % draw.uniform(0.2, 0.4), relaxed={"shim": ""},
        ),
        Scenario(
            "nothing", Label(Cause.NOTHING), ("--latency", "30"), wide, rows=draw.randint(5, 30)
        ),
    ]  # fmt: skip


def chosen(draw: random.Random) -> list[Scenario]:
    """One of two limits, and both at once."""
    rate, row = draw.randint(30, 80), "a ticket about a printer " * 8
    latency, wide = ("--latency", "0.1"), ("-c", "64", "--rps", str(rate))

    def tokens(factor: float) -> tuple[str, ...]:
        return (*wide, "--input-tokens", f"{int(rate * ROW_TOKENS * factor)}/1s")

    strict, loose = draw.uniform(0.5, 0.8), draw.uniform(1.4, 2.0)
    requests, inputs = ("requests/s",), ("input tokens/s",)
    return [
        Scenario(
            "tokens-of-two", Label(Cause.LIMIT, inputs), latency, tokens(strict), row=row,
            relaxed={"flags": wide},
        ),
        Scenario(
            "requests-of-two", Label(Cause.LIMIT, requests), latency, tokens(loose), row=row,
            relaxed={"flags": tokens(loose)[:2] + tokens(loose)[4:]},
        ),
        Scenario(
            "both", Label(Cause.LIMIT, (*requests, *inputs)), latency, tokens(1.0), row=row,
            seconds=8.0, relaxed={"flags": ("-c", "64")},
        ),
    ]  # fmt: skip


# Of the text above, as the simulated provider counts it.
ROW_TOKENS = 50


def changing(draw: random.Random) -> list[Scenario]:
    """The cause is another one from some moment on."""
    few = draw.randint(4, 8)
    concurrency = Label(Cause.CONCURRENCY)
    latency, flags = ("--latency", "0.1"), ("-c", str(few))
    stop_s = draw.uniform(3.5, 4.5)
    return [
        Scenario(
            "parked", concurrency, latency, flags, relaxed={"changes": ()}, seconds=13.0,
            changes=(
                Change(5.0, lambda world: world.sim.park("", 4.0), Label(Cause.DOWN)),
                Change(9.0, _nothing, concurrency),
            ),
        ),
        Scenario(
            "down", concurrency, latency, flags, relaxed={"changes": ()}, seconds=12.0,
            changes=(
                Change(5.0, lambda world: world.sim.kill(), Label(Cause.DOWN)),
                Change(9.0, lambda world: world.sim.start(), Label(Cause.CONCURRENCY)),
            ),
        ),
        Scenario(
            "stopped", concurrency, latency, flags, relaxed={"changes": ()}, seconds=13.0,
            changes=(
                Change(4.0, _stopped(stop_s), Label(Cause.CLIENT, settling_s=0.5)),
                Change(4.0 + stop_s, _nothing, concurrency),
            ),
        ),
        Scenario(
            "faster", concurrency, latency, (*flags, "--rps", str(20 * few)), seconds=12.0,
            relaxed={"flags": flags},
            changes=(
                Change(
                    5.0,
                    lambda world: world.sim.disturb(latency="0.02"),
                    Label(Cause.LIMIT, ("requests/s",)),
                ),
            ),
        ),
        Scenario(
            "slower", concurrency, latency, flags, relaxed={"changes": ()}, seconds=13.0,
            changes=(
                Change(5.0, lambda world: world.sim.disturb(latency="0.5"), Label(Cause.ENDPOINT)),
            ),
        ),
    ]  # fmt: skip


def slow(draw: random.Random) -> list[Scenario]:
    """Answers that take 30 s, so that most seconds bring none."""
    few = draw.randint(6, 10)
    return [
        Scenario(
            "concurrency-30s", Label(Cause.CONCURRENCY), ("--latency", "30"), ("-c", str(few)),
            seconds=100.0, relaxed={"flags": ("-c", str(3 * few))},
        ),
        Scenario(
            "requests-30s", Label(Cause.LIMIT, ("requests",)), ("--latency", "30"),
            ("-c", "200", "--rpm", str(draw.randint(60, 120))), seconds=60.0,
            relaxed={"flags": ("-c", "200")},
        ),
        Scenario(
            "endpoint-30s", Label(Cause.ENDPOINT, settling_s=90.0),
            ("--latency", "30", "--concurrency", str(few)), ("-c", str(3 * few)), seconds=200.0,
            relaxed={"sim": ("--latency", "30")},
        ),
    ]  # fmt: skip
