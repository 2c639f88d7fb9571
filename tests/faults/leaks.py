"""What a run may still hold when it is over: nothing."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from faults.broken import holds
from faults.ran import Ran
from faults.script import Script

# Long after every window and every pause.
_LATER_S = 1e6
_OPEN = "/proc/self/fd"
# A run waits for the thread that counts its rows for a second at most; a busy machine may take
# longer to let it close its file. In real time, unlike the run's.
_CLOSED_WITHIN_S, _LOOK_EVERY_S = 10.0, 0.02


def descriptors() -> dict[str, str]:
    """What this process has open, by its number; empty where the system does not tell."""
    if not os.path.isdir(_OPEN):
        return {}
    found = {}
    for number in os.listdir(_OPEN):
        try:
            found[number] = os.readlink(f"{_OPEN}/{number}")
        except FileNotFoundError:
            # The one by which the folder itself was read.
            continue
    return found


def found(loop: Any, view: Any, before: dict[str, str]) -> list[str]:
    """What is in use in the run's loop after its end, in words.

    view: of the run, None where it never began. before: descriptors that were open at the start.
    """
    words = list(loop.complaints)
    tasks = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if tasks:
        words.append(f"tasks: {tasks}")
    wires = sum(not wire.is_closed for wire in loop.wires)
    if wires:
        words.append(f"{wires} connections")
    words += [f"open: {path}" for path in _still_open(before)]
    if view is not None:
        words += _held(loop, view)
    return words


def _still_open(before: dict[str, str]) -> list[str]:
    """What stays open, unlike what a thread is about to close."""
    gives_up_s = time.perf_counter() + _CLOSED_WITHIN_S
    while True:
        paths = [path for number, path in descriptors().items() if number not in before]
        if not paths or time.perf_counter() > gives_up_s:
            return paths
        time.sleep(_LOOK_EVERY_S)


def _held(loop: Any, view: Any) -> list[str]:
    tally, slots = view.tally, loop.part.slots
    counts = {"in flight": tally.in_flight, "to be tried again": tally.retrying}
    words = [f"{count} {name}" for name, count in counts.items() if count]
    if slots.in_use or not slots.is_free:
        words.append(f"{slots.in_use} of {slots.count} slots")
    if loop.part.ahead:
        words.append(f"{len(loop.part.ahead)} ahead")
    limiter = loop.part.limiter
    if limiter.waiting:
        words.append(f"{limiter.waiting} in the limiter's queue")
    later_s = loop.time() + _LATER_S
    for line in limiter.rules.lines:
        used = line.window.used(later_s)
        if used:
            words.append(f"{used} {line.kind} of {line.stated}")
        wait_s = line.window.wait_s(line.window.rate.count, later_s)
        if wait_s:
            words.append(f"{line.kind} of {line.stated} are not free for {wait_s} s")
    return words


def at_stake(facts: Any) -> tuple[int, list[Any]]:
    """Calls on the wire, and outcomes that came of calls: what a death at this moment may cost."""
    on_wire, outcomes = 0, []
    for way in facts.tried:
        if way.outcome is None:
            on_wire += any(one.is_written and one.ended_s is None for one in way.tries)
        elif way.tries and way.tries[-1].is_written:
            outcomes.append(way.outcome)
    return on_wire, outcomes


def check(script: Script, ran: Ran) -> None:
    """Raises Broken for what is still in use, and for a death that cost more than it may."""
    holds(not ran.leaks, f"still in use: {'; '.join(ran.leaks)}")
    if ran.at_stake is None or ran.facts.ended_by != "kill":
        return
    on_wire, outcomes = ran.at_stake
    there = {line["row"] for line in ran.after.succeeded + ran.after.failed}
    saved = {id(one.outcome) for one in ran.facts.taken if one.row.number in there}
    unsaved = sum(id(outcome) not in saved for outcome in outcomes)
    most = script.settings.limits.slots()
    if script.settings.has_after:
        # An answer may wait for a user's function although its slot is free again.
        most += max(most, 16)
    holds(on_wire + unsaved <= most, f"a death costs {on_wire} + {unsaved} calls, above {most}")
