"""Jobs with a known bottleneck: planted in a real run, and looked for in its timeline.

A scenario runs `redline run` against `redline sim`, both in processes of their own, and is
interrupted before its rows run out. It has a label for each stretch of its time: the cause that was
planted, and words that name it. Seconds just after a change belong to no label, nor does what
follows the interruption. Each label is confirmed by a run in which its cause is relaxed.
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

# What the bar leaves out after a change.
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

    relaxed: what is other in a run without the cause, which must then send more while the label
    holds; None if nothing can be relaxed. settling_s: after its beginning, seconds that have no
    label.
    """

    cause: Cause
    words: tuple[str, ...] = ()
    relaxed: Mapping[str, Any] | None = None
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

    row: the text of each row. shim: source of a `sitecustomize` for the client.
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

    @property
    def labels(self) -> list[Label]:
        return [self.label, *(change.label for change in self.changes)]


@dataclass
class Verdict:
    """seconds: that have a label; right: of those, how many are named by it. wrong: the others.

    marks_s: when each label began to hold, and when the run was interrupted, in seconds since it
    began.
    """

    seconds: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    timeline: Timeline | None = None
    marks_s: list[float] = field(default_factory=list)

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


def gains(scenario: Scenario, found: Verdict, folder: Path) -> dict[str, float]:
    """How many times as many requests a second runs send while a label holds, without its cause.

    By the label's place and cause; not those of labels whose cause cannot be relaxed. found: of the
    run with all causes. folder: for the other runs, one for all labels that are relaxed alike.
    """
    others = list[tuple[Mapping[str, Any], Verdict]]()
    gained = dict[str, float]()
    for place, label in enumerate(scenario.labels):
        if label.relaxed is None:
            continue
        other = next((run for relaxed, run in others if relaxed == label.relaxed), None)
        if other is None:
            own = folder / str(place)
            own.mkdir()
            other = played(replace(scenario, **label.relaxed), own)
            others.append((label.relaxed, other))
        # A change may take a second or two; a run without changes has no times of its own.
        marks_s = other.marks_s if len(other.marks_s) == len(found.marks_s) else found.marks_s
        sent_per_s = _sent_per_s(found, found.marks_s, place, label.settling_s)
        gain = _sent_per_s(other, marks_s, place, label.settling_s) / max(0.1, sent_per_s)
        gained[f"{place + 1}. {label.cause.value}"] = gain
    return gained


def _sent_per_s(run: Verdict, marks_s: Sequence[float], place: int, settling_s: float) -> float:
    """Requests a second between two marks, without the seconds that belong to no label."""
    assert run.timeline is not None
    begin_s, end_s = marks_s[place] + settling_s, marks_s[place + 1]
    windows = [
        window
        for window in run.timeline.runs[-1].windows
        if begin_s <= (window.begin_s + window.end_s) / 2 <= end_s
    ]
    return sum(one.sent for one in windows) / max(1.0, sum(one.span_s for one in windows))


def judged(timeline: Timeline, changes: Sequence[tuple[float, Label]], ended: float) -> Verdict:
    """Second by second. changes: when each label begins to hold; ended: the time of the last.

    A second without a window is wrong. One in which the label changes has no label.
    """
    run = timeline.runs[-1]
    marks_s = [at - run.facts.at for at in (*(when for when, _ in changes), ended)]
    verdict = Verdict(timeline=timeline, marks_s=marks_s)
    found = bindings(run.windows)
    second_s = 0.5
    while run.facts.at + second_s < ended - 1.0:
        at = run.facts.at + second_s
        since, label = [one for one in changes if one[0] <= at][-1]
        nearest_s = min(abs(at - when) for when, _ in changes[1:]) if changes[1:] else 9.0
        binding = next((one for one in found if one.begin_s <= second_s < one.end_s), None)
        if at - since >= label.settling_s and nearest_s >= 0.5:
            verdict.seconds += 1
            is_right = binding is not None and label.is_named(binding)
            verdict.right += is_right
            if not is_right:
                what = "no window"
                if binding is not None:
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
            "input", Label(Cause.INPUT, relaxed={"rows_per_s": 4 * rows_per_s}),
            ("--latency", latency), wide, rows_per_s=rows_per_s,
        ),
        Scenario(
            "client", Label(Cause.CLIENT, relaxed={"flags": wide}), ("--latency", latency),
            (*wide, "--prompt", busy),
        ),
        Scenario(
            "requests", Label(Cause.LIMIT, ("requests/s",), relaxed={"flags": wide}),
            ("--latency", latency), (*wide, "--rps", str(draw.randint(20, 90))),
        ),
        Scenario(
            "concurrency", Label(Cause.CONCURRENCY, relaxed={"flags": ("-c", str(3 * few))}),
            ("--latency", latency), ("-c", str(few)),
        ),
        Scenario(
            "concurrency-lognormal",
            Label(Cause.CONCURRENCY, relaxed={"flags": ("-c", str(6 * few))}),
            ("--latency", "lognormal:-1.5,0.6"), ("-c", str(2 * few)), seconds=8.0,
        ),
        Scenario(
            "endpoint", Label(Cause.ENDPOINT, relaxed=alone),
            ("--latency", latency, "--concurrency", str(served)),
            ("-c", str(draw.randint(4, 8) * served)), seconds=8.0,
        ),
        Scenario(
            "endpoint-lognormal", Label(Cause.ENDPOINT, relaxed={"sim": lognormal}),
            (*lognormal, "--concurrency", str(served)), ("-c", str(3 * served)), seconds=14.0,
        ),
        Scenario(
            "endpoint-auto", Label(Cause.ENDPOINT, relaxed={"sim": ("--latency", "0.2")}),
            ("--latency", "0.2", "--concurrency", str(served)), ("-c", "auto"), seconds=20.0,
        ),
        Scenario(
            "writer", Label(Cause.WRITER, relaxed={"shim": ""}), ("--latency", latency), wide,
            shim=SLOW_WRITES % draw.uniform(0.2, 0.4),
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

    def limited(*words: str, relaxed: tuple[str, ...]) -> Label:
        return Label(Cause.LIMIT, words, relaxed={"flags": relaxed})

    strict, loose = draw.uniform(0.5, 0.8), draw.uniform(1.4, 2.0)
    requests, inputs = "requests/s", "input tokens/s"
    without_rps = tokens(loose)[:2] + tokens(loose)[4:]
    return [
        Scenario(
            "tokens-of-two", limited(inputs, relaxed=wide), latency, tokens(strict), row=row
        ),
        Scenario(
            "requests-of-two", limited(requests, relaxed=without_rps), latency, tokens(loose),
            row=row,
        ),
        Scenario(
            "both", limited(requests, inputs, relaxed=("-c", "64")), latency, tokens(1.0), row=row,
            seconds=8.0,
        ),
    ]  # fmt: skip


# Of the text above, as the simulated provider counts it.
ROW_TOKENS = 50


def changing(draw: random.Random) -> list[Scenario]:
    """The cause is another one from some moment on."""
    few = draw.randint(4, 8)
    latency, flags, rps = ("--latency", "0.1"), ("-c", str(few)), ("--rps", str(20 * few))
    more, unchanged = ("-c", str(3 * few)), {"changes": ()}
    concurrency = Label(Cause.CONCURRENCY, relaxed={"flags": more})
    down = Label(Cause.DOWN, relaxed=unchanged)
    stop_s = draw.uniform(3.5, 4.5)
    return [
        Scenario(
            "parked", concurrency, latency, flags, seconds=13.0,
            changes=(
                Change(5.0, lambda world: world.sim.park("", 4.0), down),
                Change(9.0, _nothing, concurrency),
            ),
        ),
        Scenario(
            "down", concurrency, latency, flags, seconds=18.0,
            changes=(
                Change(5.0, lambda world: world.sim.kill(), down),
                Change(9.0, lambda world: world.sim.start(), concurrency),
            ),
        ),
        Scenario(
            "stopped", concurrency, latency, flags, seconds=13.0,
            changes=(
                # The stop is seen at once: fewer seconds are left out than might be.
                Change(
                    4.0, _stopped(stop_s), Label(Cause.CLIENT, relaxed=unchanged, settling_s=0.5)
                ),
                Change(4.0 + stop_s, _nothing, concurrency),
            ),
        ),
        Scenario(
            "faster", Label(Cause.CONCURRENCY, relaxed={"flags": (*more, *rps)}), latency,
            (*flags, *rps), seconds=12.0,
            changes=(
                Change(
                    5.0,
                    lambda world: world.sim.disturb(latency="0.02"),
                    Label(Cause.LIMIT, ("requests/s",), relaxed={"flags": flags}),
                ),
            ),
        ),
        Scenario(
            "slower", concurrency, latency, flags, seconds=13.0,
            changes=(
                Change(
                    5.0,
                    lambda world: world.sim.disturb(latency="0.5"),
                    Label(Cause.ENDPOINT, relaxed=unchanged),
                ),
            ),
        ),
    ]  # fmt: skip


def slow(draw: random.Random) -> list[Scenario]:
    """Answers that take 30 s, so that most seconds bring none."""
    few = draw.randint(6, 10)
    latency = ("--latency", "30")
    rpm = ("--rpm", str(draw.randint(60, 120)))
    return [
        Scenario(
            "concurrency-30s", Label(Cause.CONCURRENCY, relaxed={"flags": ("-c", str(3 * few))}),
            latency, ("-c", str(few)), seconds=100.0,
        ),
        Scenario(
            "requests-30s", Label(Cause.LIMIT, ("requests",), relaxed={"flags": ("-c", "200")}),
            latency, ("-c", "200", *rpm), seconds=60.0,
        ),
        Scenario(
            # One p95 latency is left out, as for any cause that lies in the endpoint: a call waits
            # for two others, 30 s each. Of the other scenarios it is at most SETTLING_S.
            "endpoint-30s",
            Label(Cause.ENDPOINT, relaxed={"sim": latency}, settling_s=90.0),
            (*latency, "--concurrency", str(few)), ("-c", str(3 * few)), seconds=200.0,
        ),
    ]  # fmt: skip
