"""Three timelines of requests, engine steps and calls, drawn from runs of the code in virtual time.

    python bench/lanes.py            draws them
    python bench/lanes.py --check    reports whether those in docs/pictures are up to date

window.svg    requests under a limit of 4 in any second, when they are written and when they
              arrive: redline's window is longer by the guard, so no second has a fifth request
step.svg      the tokens that each step of the engine's scheduler computes
binding.svg   calls to two servers, one of which is slow: chosen on arrival, and with a pool,
              which assigns a call to a server only when that server has room
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from diagrams import main, svg, text

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from redline.limits import Rate
from redline.limits.rule import Window
from redline.route import Pool, Seat, strategy_of
from redline.testing import virtual_run
from redline.waist import Call, Outcome, Request, Sink
from support.fleet import LoopClock, ModelServer

LEFT, WIDTH = 96.0, 590.0

_STYLE = """
svg { font: 13px system-ui, sans-serif }
.title { font-weight: 600 } .small { font-size: 11px } .mid { text-anchor: middle }
.card { fill: #ffffff } .text { fill: #1f2328 } .soft { fill: #59636e }
.grid { stroke: #d1d9e0 } .span { fill: #ddf4ff; stroke: #0969da } .late { fill: #fff8c5 }
.a { fill: #0969da } .b { fill: #1a7f37 } .c { fill: #8250df } .d { fill: #bc4c00 }
.wait { fill: #eaeef2; stroke: #8c959f } .way { stroke: #8c959f; stroke-width: 1.4 }
.draft { fill: none; stroke: #0969da; stroke-width: 1.6 }
.gone { stroke: #cf222e; stroke-width: 1.6 } .on { fill: #ffffff }
@media (prefers-color-scheme: dark) {
.card { fill: #0d1117 } .text { fill: #e6edf3 } .soft { fill: #9198a1 }
.grid { stroke: #30363d } .span { fill: #121d2f; stroke: #58a6ff } .late { fill: #272115 }
.a { fill: #58a6ff } .b { fill: #3fb950 } .c { fill: #ab7df8 } .d { fill: #f0883e }
.wait { fill: #21262d; stroke: #6e7681 } .way { stroke: #6e7681 }
.draft { stroke: #58a6ff } .gone { stroke: #ff7b72 } .on { fill: #0d1117 }
}
"""


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}" rx="2"'
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" {size}/>'


def line(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    return f'<path class="{style}" d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}"/>'


def seconds(most_s: float, step_s: float, top: float, bottom: float) -> Iterator[str]:
    """A grid of times from 0."""
    for number in range(round(most_s / step_s) + 1):
        x = LEFT + WIDTH * number * step_s / most_s
        yield line(x, top, x, bottom, "grid")
        yield text(x, bottom + 18, f"{number * step_s:g} s", "soft small", "middle")


# A window that is longer by the guard.

LIMIT, GUARD_S, SENDS, SHOWN_S = Rate(4, 1.0), 0.15, 8, 1.5


class Sent(NamedTuple):
    """A request: when it is written, and when it arrives, in seconds."""

    at_s: float
    arrives_s: float


def sent(guard_s: float) -> list[Sent]:
    """Requests that are all ready at 0, each later by 0 to GUARD_S on its way."""
    window = Window(LIMIT, profile="moving", guard_s=guard_s)
    draw, now_s, found = random.Random(4), 0.0, list[Sent]()
    while len(found) < SENDS:
        if (wait_s := window.wait_s(1, now_s)) > 0:
            now_s += wait_s
            continue
        window.sent(window.book(1, now_s), now_s)
        found.append(Sent(now_s, now_s + draw.uniform(0, GUARD_S)))
    return found


def most_in_a_window(requests: Sequence[Sent]) -> int:
    """The most that arrive within any window of the limit, its later end left out."""
    ends = sorted(request.arrives_s for request in requests)
    return max(sum(at_s <= one < at_s + LIMIT.window_s for one in ends) for at_s in ends)


def window() -> str:
    """The first picture."""

    def x(at_s: float) -> float:
        return LEFT + WIDTH * at_s / SHOWN_S

    title = "A limit of 4 requests in any second, up to 150 ms late on their way"
    parts = [text(20, 26, title, "text title")]
    parts += seconds(SHOWN_S, 0.25, 44, 236)
    for top, guard_s, name in ((56, 0.0, "without a guard"), (156, GUARD_S, "with a guard")):
        requests = sent(guard_s)
        worst = most_in_a_window(requests)
        parts.append(text(20, top + 12, "written", "soft small"))
        parts.append(text(20, top + 50, "arrives", "soft small"))
        first = requests[0].at_s
        parts.append(box(x(first), top - 4, x(LIMIT.window_s) - x(0), 8, "span"))
        if guard_s:
            ends = x(first + LIMIT.window_s)
            parts.append(box(ends, top - 4, x(guard_s) - x(0), 8, "late"))
        for one in requests:
            parts.append(line(x(one.at_s), top + 10, x(one.arrives_s), top + 46, "way"))
            parts.append(f'<circle class="a" cx="{x(one.at_s):.1f}" cy="{top + 10}" r="3.5"/>')
            parts.append(f'<circle class="b" cx="{x(one.arrives_s):.1f}" cy="{top + 46}" r="3.5"/>')
        verdict = f"{name}: at most {worst} arrive within a second"
        parts.append(text(LEFT + WIDTH, top + 70, verdict, "text small", "end"))
    return svg(710, 270, title, parts, _STYLE)


# Steps of the engine.


class Piece(NamedTuple):
    """What a step computes of a sequence. kept: of its drafts; new: tokens that follow."""

    step: int
    sequence: int
    prompt: int
    drafts: int
    kept: int
    new: int


PROMPTS = (5, 26, 8)  # tokens; the last sequence comes at the fourth step
STEPS, STEP_TOKENS, COMES_AT = 8, 12, 3


def steps() -> list[Piece]:
    """Eight steps of the real scheduler, with at most 12 tokens each; the first sequence drafts."""
    from redline.engine.sample import SamplingParams
    from redline.engine.schedule import Bounds, Scheduler, Sequence

    scheduler = Scheduler(Bounds(slots=3, step_tokens=STEP_TOKENS, cache_tokens=400, waiting=3))
    draw, found = random.Random(2), list[Piece]()
    for step in range(STEPS):
        for number, length in enumerate(PROMPTS):
            if step == (COMES_AT if number == len(PROMPTS) - 1 else 0):
                tokens = list(range(100 * number, 100 * number + length))
                scheduler.add(Sequence(tokens, SamplingParams(), 0, number, 100), 0.0)
        for one in scheduler.running:
            if one.number == 0 and one.is_caught_up:
                one.drafted = [7, 8, 9]
        for row in scheduler.plan().rows:
            one = row.sequence
            drafts = len(one.drafted) if row.is_whole else 0
            kept = draw.randint(0, drafts)
            new = kept + 1 if row.is_whole else 0
            prompt = max(0, min(row.size, one.prompt_length - one.computed))
            found.append(Piece(step, one.number, prompt, drafts, kept, new))
            scheduler.computed(row, [1] * new, kept)
    return found


def step() -> str:
    """The second picture."""
    title = f"Eight steps of at most {STEP_TOKENS} tokens, three sequences"
    across, size, gap = 76.0, 13.0, 3.0
    parts = [text(20, 26, title, "text title")]
    found = steps()
    base = 64 + STEP_TOKENS * (size + gap)
    for number in range(STEPS):
        x = LEFT + across * number
        parts.append(text(x + 23, base + 20, f"step {number + 1}", "soft small", "middle"))
        y = base
        for piece in (one for one in found if one.step == number):
            colour = "abc"[piece.sequence]
            generates = piece.new > 0 and piece.prompt == 0
            for at in range(piece.prompt + generates + piece.drafts):
                y -= size + gap
                draft = at - piece.prompt - generates
                if draft < 0:
                    parts.append(box(x, y, 46, size, colour))
                    word = "prompt" if at < piece.prompt else "token"
                    parts.append(text(x + 23, y + 10, word, "on small", "middle"))
                else:
                    parts.append(box(x, y, 46, size, "draft"))
                    if draft >= piece.kept:
                        parts.append(line(x + 3, y + 2, x + 43, y + size - 2, "gone"))
        used = round((base - y) / (size + gap))
        parts.append(text(x + 23, y - 6, str(used), "soft small", "middle"))
    names = (
        ("a", "a short prompt, with drafts"),
        ("b", "a long prompt, read in pieces"),
        ("c", "comes later"),
    )
    for row, (colour, words) in enumerate(names):
        parts.append(box(LEFT + 200 * row, base + 36, 12, 12, colour))
        parts.append(text(LEFT + 200 * row + 18, base + 46, words, "text small"))
    parts.append(box(LEFT, base + 56, 12, 12, "draft"))
    parts.append(text(LEFT + 18, base + 66, "a draft token; crossed out if refused", "text small"))
    return svg(710, base + 84, title, parts, _STYLE)


# Early and late binding.


class Work(NamedTuple):
    """A call at a server: when it is handed over, begun and done, in seconds."""

    server: int
    slot: int
    given_s: float
    begun_s: float
    done_s: float


SLOTS, SPEEDS, CALLS, WORK_S = 2, (1.0, 0.25), 14, 1.0


class Watched(ModelServer):
    """Notes what it does."""

    def __init__(self, number: int, bound: int, notes: list[Work]) -> None:
        super().__init__(f"s{number}", speed=SPEEDS[number], slots=SLOTS, bound=bound)
        self._number, self._notes = number, notes
        self._free = list(range(SLOTS))

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        given_s = asyncio.get_running_loop().time()
        outcome = await super().send(request, call, sink)
        done_s = asyncio.get_running_loop().time()
        begun_s = done_s - self.work_s(request) / self.speed
        taken = {one.slot for one in self._notes if one.server == self._number}
        ends = {
            slot: max(
                one.done_s for one in self._notes if (one.server, one.slot) == (self._number, slot)
            )
            for slot in taken
        }
        slot = next(
            (at for at in range(SLOTS) if ends.get(at, 0.0) <= begun_s + 1e-9), len(taken) % SLOTS
        )
        self._notes.append(Work(self._number, slot, given_s, begun_s, done_s))
        return outcome


def works(*, is_late: bool) -> list[Work]:
    """Calls that all come at 0, through the real pool; early: each server takes any number."""
    notes = list[Work]()

    async def go() -> None:
        clock, begun_s = LoopClock(), asyncio.get_running_loop().time()
        servers = [Watched(n, SLOTS if is_late else 0, notes) for n in range(len(SPEEDS))]

        def seat(server: Watched) -> Seat:
            return Seat(name=server.name, make=lambda on_room: server.seated(on_room))

        strategy = strategy_of("round_robin", random.Random(0))
        pool = Pool([seat(one) for one in servers], strategy, seed=0, clock=clock)
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLS):
                group.create_task(pool.send(Request(body={"work": WORK_S}), Call()))
        notes[:] = [
            Work(w.server, w.slot, w.given_s - begun_s, w.begun_s - begun_s, w.done_s - begun_s)
            for w in notes
        ]

    virtual_run(go())
    return notes


def binding() -> str:
    """The third picture."""
    early, late = works(is_late=False), works(is_late=True)
    most_s = max(one.done_s for one in early)

    def x(at_s: float) -> float:
        return LEFT + WIDTH * at_s / most_s

    title = f"{CALLS} calls, two servers with {SLOTS} slots each, one four times slower"
    parts = [text(20, 26, title, "text title")]
    parts += seconds(most_s, 4.0, 44, 270)
    for top, found, name in ((56, early, "chosen on arrival"), (172, late, "late binding")):
        for server, speed in enumerate(("fast", "slow")):
            for slot in range(SLOTS):
                y = top + 40 * server + 18 * slot
                parts.append(text(20, y + 11, f"{speed} {slot + 1}", "soft small"))
                for one in found:
                    if (one.server, one.slot) == (server, slot):
                        width = x(one.done_s) - x(one.begun_s)
                        parts.append(box(x(one.begun_s), y, width - 1.5, 14, "ab"[server]))
        ends_s = max(one.done_s for one in found)
        at_slow = sum(one.server == 1 for one in found)
        words = f"{name}: {at_slow} calls at the slow server, done after {ends_s:g} s"
        parts.append(text(LEFT + WIDTH, top + 92, words, "text small", "end"))
    return svg(710, 304, title, parts, _STYLE)


PICTURES = {"window.svg": window, "step.svg": step, "binding.svg": binding}


if __name__ == "__main__":
    sys.exit(main(PICTURES, "Pictures of who does what when, drawn from runs of the real code."))
