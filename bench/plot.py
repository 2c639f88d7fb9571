"""The pictures in docs/pictures that show a simulation in virtual time.

    python bench/plot.py            draws them
    python bench/plot.py --check    reports whether the existing files are what it draws

sends.svg   100 calls against a server that allows 20 in any second, each delayed by 0 to 50 ms on
            its way: the tutorials' token bucket, and redline with two profiles
guard.svg   the share of a limit that a guard costs, by the length of the window

Both are deterministic: the jitter is drawn from a fixed seed, and no clock is read.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from diagrams import main, svg, text

from redline.limits import Cost, Limits, Rate
from redline.limits.rule import FIRST_GUARD_S, MARGIN_S, Booking, Rules
from redline.sim import MovingWindow

RATE, CALLS, JITTER_S, ANSWER_S = Rate(20, 1.0), 100, 0.05, 0.01
SEED = 1
# How the tutorials wait for a token, and how late such a timer rings at most.
POLL_S, LATE_S = 0.1, 0.002
# The second picture's guards, in seconds.
GUARDS = {
    "tutorial": (FIRST_GUARD_S, "nothing measured yet"),
    "any": (0.02 + MARGIN_S, "20 ms of jitter"),
    "matching": (MARGIN_S, "no jitter"),
}

Point = tuple[float, float]


class Gate(Protocol):
    """A limiter, asked by whoever is first in line."""

    def wait_s(self, now_s: float) -> float: ...
    def send(self, call: int, now_s: float) -> None: ...
    def answered(self, call: int, now_s: float, is_admitted: bool) -> None: ...


class Tutorial:
    """The tutorials' bucket: it starts full, refills whole tokens only, and is polled."""

    def __init__(self, rate: Rate, rng: random.Random) -> None:
        self._rate, self._rng = rate, rng
        self._tokens, self._filled_s, self._poll_s = rate.count, 0.0, 0.0

    def wait_s(self, now_s: float) -> float:
        if now_s < self._poll_s:
            return self._poll_s - now_s
        new = int((now_s - self._filled_s) * self._rate.count / self._rate.window_s)
        if new > 0:
            self._tokens = min(self._rate.count, self._tokens + new)
            self._filled_s = now_s
        if self._tokens == 0:
            self._poll_s = now_s + POLL_S + self._rng.uniform(0, LATE_S)
        return max(0.0, self._poll_s - now_s)

    def send(self, call: int, now_s: float) -> None:
        self._tokens -= 1

    def answered(self, call: int, now_s: float, is_admitted: bool) -> None:
        if not is_admitted:
            # It asks for another token at once.
            self._poll_s = now_s


class Redline:
    """redline's own limits, as its limiter drives them."""

    def __init__(self, rate: Rate, profile: str) -> None:
        self._rules = Rules(Limits(requests=rate, profile=profile))
        self._sent: dict[int, tuple[float, list[Booking]]] = {}

    def wait_s(self, now_s: float) -> float:
        return self._rules.wait_s(Cost(), now_s)

    def send(self, call: int, now_s: float) -> None:
        bookings = self._rules.book(Cost(), now_s)
        for booking in bookings:
            booking.window.sent(booking, now_s)
        self._sent[call] = now_s, bookings

    def answered(self, call: int, now_s: float, is_admitted: bool) -> None:
        sent_s, bookings = self._sent.pop(call)
        self._rules.replied(bookings, now_s - sent_s, sent_s)


@dataclass
class Trial:
    """What the server's limiter saw. admitted, rejected: times of arrival, in seconds."""

    admitted: list[float] = field(default_factory=list)
    rejected: list[float] = field(default_factory=list)


def simulate(gate: Gate, *, seed: int = SEED, calls: int = CALLS) -> Trial:
    """All calls ask at time 0; those that are rejected ask again."""
    rng, trial, server = random.Random(seed), Trial(), MovingWindow(RATE)
    events: list[tuple[float, int, str, int, bool]] = []
    order = itertools.count()
    now_s, waiting, numbers = 0.0, calls, itertools.count()
    while waiting or events:
        wait_s = math.inf
        while waiting and (wait_s := gate.wait_s(now_s)) <= 0:
            call = next(numbers)
            gate.send(call, now_s)
            waiting -= 1
            arrival_s = now_s + rng.uniform(0, JITTER_S)
            heapq.heappush(events, (arrival_s, next(order), "arrives", call, False))
        due_s = now_s + wait_s if waiting else math.inf
        if not events or due_s < events[0][0]:
            now_s = due_s
            continue
        now_s, _, what, call, is_admitted = heapq.heappop(events)
        if what == "arrives":
            is_admitted = server.wait_s(1, now_s) <= 0
            if is_admitted:
                server.take(1, now_s)
            (trial.admitted if is_admitted else trial.rejected).append(now_s)
            answer = (now_s + ANSWER_S, next(order), "answers", call, is_admitted)
            heapq.heappush(events, answer)
        else:
            gate.answered(call, now_s, is_admitted)
            waiting += not is_admitted
    return trial


def trials() -> dict[str, Trial]:
    """The clients of the first picture, by their colour."""
    return {
        "tutorial": simulate(Tutorial(RATE, random.Random(SEED))),
        "any": simulate(Redline(RATE, "any")),
        "matching": simulate(Redline(RATE, "moving")),
    }


def cost(guard_s: float, window_s: float) -> float:
    """The share of a limit that a guard leaves unused in a long run: g / (W + g)."""
    return guard_s / (window_s + guard_s)


# A card of its own, so that it reads on any page: light, or dark where the reader's system is.
_COLOURS = {
    # name: (light, dark)
    "tutorial": ("#bc4c00", "#f0883e"),
    "any": ("#0969da", "#58a6ff"),
    "matching": ("#1a7f37", "#3fb950"),
    "allowed": ("#6e7781", "#9198a1"),
}


def _colours(place: int) -> str:
    return "\n".join(
        f".{name}.line {{ stroke: {shades[place]} }} .{name}.name {{ fill: {shades[place]} }}"
        for name, shades in _COLOURS.items()
    )


_STYLE = f"""
svg {{ font: 13px system-ui, sans-serif }}
.line {{ fill: none; stroke-width: 2 }} .title {{ font-weight: 600 }}
.rejected {{ fill: none; stroke-width: 1.6 }}
.allowed.line {{ stroke-dasharray: 2 4 }} .tutorial.line {{ stroke-dasharray: 7 3 }}
.card {{ fill: #ffffff }} .text {{ fill: #1f2328 }} .soft {{ fill: #59636e }}
.grid {{ stroke: #d1d9e0 }} .rejected {{ stroke: #cf222e }}
{_colours(0)}
@media (prefers-color-scheme: dark) {{
.card {{ fill: #0d1117 }} .text {{ fill: #e6edf3 }} .soft {{ fill: #9198a1 }}
.grid {{ stroke: #30363d }} .rejected {{ stroke: #ff7b72 }}
{_colours(1)}
}}
"""


@dataclass(frozen=True)
class Axes:
    """Where a picture's values stand on the page. left, top, width, height: in pixels."""

    most_x: float
    most_y: float
    least_x: float = 0.0
    is_log_x: bool = False
    left: float = 52.0
    top: float = 44.0
    width: float = 620.0
    height: float = 300.0

    def at(self, x: float, y: float) -> Point:
        ends = (self.least_x, x, self.most_x)
        low, here, high = map(math.log, ends) if self.is_log_x else ends
        across = (here - low) / (high - low)
        return self.left + self.width * across, self.top + self.height * (1 - y / self.most_y)

    def path(self, points: Sequence[Point], colour: str) -> str:
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in itertools.starmap(self.at, points))
        return f'<polyline class="{colour} line" points="{shown}"/>'

    def legend(self, place: Point, words: Mapping[str, str]) -> Iterator[str]:
        """A line of each colour and its meaning, downwards from `place`, in values."""
        x, y = self.at(*place)
        for row, (colour, meaning) in enumerate(words.items()):
            down = y + 25 * row
            yield f'<path class="{colour} line" d="M{x:.1f} {down:.1f}h22"/>'
            yield text(x + 30, down + 4, meaning, f"{colour} name")

    def grid(
        self, xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]]
    ) -> Iterator[str]:
        bottom, right = self.top + self.height, self.left + self.width
        for x, words in xs:
            across = self.at(x, 0)[0]
            yield text(across, bottom + 20, words, "soft", "middle")
        for y, words in ys:
            down = self.at(self.most_x, y)[1]
            yield f'<path class="grid" d="M{self.left:.0f} {down:.1f}H{right:.0f}"/>'
            yield text(self.left - 8, down + 4, words, "soft", "end")


def stairs(times_s: Sequence[float]) -> list[Point]:
    """How many there have been, at each time."""
    points: list[Point] = [(0.0, 0.0)]
    for number, at_s in enumerate(times_s, 1):
        points += [(at_s, number - 1), (at_s, number)]
    return points


def sends() -> str:
    """The first picture."""
    axes = Axes(most_x=6.0, most_y=CALLS)
    found = trials()
    windows = math.ceil(CALLS / RATE.count)
    allowed = [float(i // RATE.count) * RATE.window_s for i in range(CALLS)]
    title = f"{CALLS} calls, {RATE.count} allowed in any second, each 0 to 50 ms late"
    parts = [text(axes.left, 24, title, "text title")]
    parts += axes.grid(
        [(x, f"{x} s") for x in range(windows + 2)],
        [(y, str(y)) for y in range(0, CALLS + 1, RATE.count)],
    )
    parts.append(axes.path(stairs(allowed), "allowed"))
    for colour, trial in found.items():
        parts.append(axes.path(stairs(trial.admitted), colour))
        for at_s in trial.rejected:
            x, y = axes.at(at_s, sum(seen <= at_s for seen in trial.admitted))
            parts.append(f'<path class="rejected" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8"/>')
    parts += axes.legend(
        (3.0, 47.0),
        {
            "allowed": "the most that the limit allows",
            "matching": f"redline, --profile moving: {len(found['matching'].rejected)} rejected",
            "any": f"redline, --profile any: {len(found['any'].rejected)} rejected",
            "tutorial": f"tutorials' bucket: {len(found['tutorial'].rejected)} rejected (crosses)",
        },
    )
    return svg(700, 384, f"Calls that the server let in, over time: {title}", parts, _STYLE)


def guard() -> str:
    """The second picture."""
    windows_s = (1, 2, 6, 10, 30, 60)
    axes = Axes(most_x=60.0, most_y=6.0, least_x=1.0, is_log_x=True, height=220.0)
    title = "Share of a limit that the guard costs, by the length of the window"
    parts = [text(axes.left, 24, title, "text title")]
    parts += axes.grid([(x, f"{x} s") for x in windows_s], [(y, f"{y} %") for y in range(0, 7, 2)])
    steps = [60 ** (step / 60) for step in range(61)]
    for colour, (guard_s, _) in GUARDS.items():
        points = [(x, 100 * cost(guard_s, x)) for x in steps]
        parts.append(axes.path(points, colour))
    words = {
        colour: f"guard {1000 * guard_s:.0f} ms, {when}: {100 * cost(guard_s, 1):.1f} % of 1 s"
        for colour, (guard_s, when) in GUARDS.items()
    }
    parts += axes.legend((5.0, 5.75), words)
    return svg(700, 304, title, parts, _STYLE)


PICTURES = {"sends.svg": sends, "guard.svg": guard}


if __name__ == "__main__":
    sys.exit(main(PICTURES, "The pictures of docs/limits.md, drawn from a simulation."))
