"""Four bottlenecks more, kept apart from those by which the rules were found.

Nothing is made to fit them: each is run once, and what came of it is on record.
"""

from __future__ import annotations

import random
from pathlib import Path

from redline.observe import Cause
from support.bottlenecks import Change, Label, Scenario, World

# A disk that stalls once there is a file with this name beside the output.
STALLING = "stalling"
SLOW_LATER = """
import os, time
write = os.write
def slow(fd, data):
    if os.readlink(f"/proc/self/fd/{fd}").endswith("out.jsonl") and os.path.exists("stalling"):
        time.sleep(%g)
    return write(fd, data)
os.write = slow
"""


def apart(seed: int) -> list[Scenario]:
    """All of them, with rates, latencies and concurrencies drawn from the seed."""
    draw = random.Random(seed)
    rate, few = draw.randint(20, 50), draw.randint(4, 8)
    latency, wide = ("--latency", f"{draw.uniform(0.08, 0.15):.3f}"), ("-c", "64")
    rps = ("--rps", str(rate))
    limited = Label(Cause.LIMIT, ("requests/s",), relaxed={"flags": wide})
    loose = ("--rps", "400")
    outputs = ("--output-tokens", f"{draw.randint(100, 200)}/1s")
    slow_s = draw.uniform(0.2, 0.4)
    return [
        Scenario(
            "output-tokens-of-two",
            Label(Cause.LIMIT, ("output tokens/s",), relaxed={"flags": (*wide, *loose)}),
            latency, (*wide, *loose, *outputs), seconds=8.0,
        ),
        Scenario(
            "limit-parked", limited, latency, (*wide, *rps), seconds=13.0,
            changes=(
                Change(5.0, _parked, Label(Cause.DOWN, relaxed={"changes": ()})),
                Change(9.0, _nothing, limited),
            ),
        ),
        Scenario(
            "writer-later",
            Label(Cause.CONCURRENCY, relaxed={"flags": ("-c", str(3 * few))}),
            latency, ("-c", str(few)), seconds=12.0, shim=SLOW_LATER % slow_s,
            changes=(Change(5.0, _stalls, Label(Cause.WRITER, relaxed={"shim": ""})),),
        ),
        Scenario(
            # All rows are sent by the change, and the answers take longer than the run. Without the
            # limit they would be sent before the first second that counts.
            "limit-then-nothing", Label(Cause.LIMIT, ("requests/s",)), ("--latency", "30"),
            ("-c", "400", *rps), seconds=12.0, rows=6 * rate,
            changes=(Change(6.0, _nothing, Label(Cause.NOTHING)),),
        ),
    ]  # fmt: skip


def _parked(world: World) -> None:
    world.sim.park("", 4.0)


def _stalls(world: World) -> None:
    words = [str(word) for word in world.redline.args]
    (Path(words[words.index("-o") + 1]).parent / STALLING).touch()


def _nothing(world: World) -> None:
    """Time goes on."""
