"""The campaign of deaths at the journal's steps: a kill or a loss of power, followed by a resume.

A part is one purpose of system calls for the disk, such as the manifest or the resume, with kills
or with losses of power. Each of its points in time has at least 50 deaths, in as many seeded cases
as necessary; tests/crash/runs.py defines what must hold after each. A failure's message says how to
reproduce it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from crash.dying import hunt

LEAST = 50
LOSSES = {"killed": ("none",), "power": ("all", "some", "some")}

_LINES = ("before its write", "within its write", "written, not synced", "synced, not acknowledged")
_FILE = (
    *("before its write", "within its write", "written, not synced", "synced, not renamed"),
    "renamed, folder not synced",
)
_EVERY = ("new", "limited", "ordered", "resume", "lost-blocks", "retry-failed", "mended", "restart")
# Whose deaths to seek, and the moments of each purpose.
STEPS: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "group": (_EVERY[:4], {"group": _LINES}),
    "failures": (("new", "resume", "retry-failed"), {"failures": _LINES}),
    "opening": (_EVERY, {"opening": ()}),
    "manifest": (_EVERY, {"manifest": (*_FILE, "in place")}),
    "resume": (
        ("resume",),
        {
            "resume": (
                *("before the scan", "within the scan", "torn tail found"),
                *("torn tail cut, not synced", "found lines not synced", "found lines synced"),
                *("name synced", "unfinished file found", "unfinished file removed"),
            )
        },
    ),
    "lost lines": (
        ("lost-blocks",),
        {"lost lines": ("reading", *_FILE, "in place"), "lost lines, aside": _FILE[:-1]},
    ),
    "old lines": (
        ("changed",),
        {"old lines": ("reading", *_FILE, "in place"), "old lines, aside": _FILE[:-1]},
    ),
    "sorting": (("ordered",), {"sorting": ("reading", *_FILE, "in place")}),
    "failures rewritten": (
        ("retry-failed", "mended"),
        {
            "failures rewritten": (
                *("reading", *_FILE, "before the removal", "removed, folder not synced"),
                "in place",
            )
        },
    ),
    "restart": (
        ("restart",),
        {"restart": ("before a rename", "renamed, folder not synced", "in place")},
    ),
    "recent sends": (("limited",), {"recent sends": ("", "within a write")}),
    "timeline": (("new", "resume"), {"timeline": ("", "within a write")}),
    "repair": (
        ("repair",),
        {"repair": ("reading", *_FILE, "in place"), "repair, aside": _FILE[:-1]},
    ),
}

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, first seed and work of each part."""
    for name, (works, purposes) in STEPS.items():
        wanted = [
            f"{purpose}: {moment}" if moment else purpose
            for purpose, moments in purposes.items()
            for moment in moments or ("",)
        ]
        for manner, losses in LOSSES.items():
            yield f"{name}, {manner}", 1, _work(works, wanted, losses)


def _work(works: tuple[str, ...], wanted: list[str], losses: tuple[str, ...]) -> Work:
    def work(folder: Path) -> dict[str, Any]:
        moments, cases = hunt(works, wanted, losses, LEAST, folder)
        deaths = {moment: moments[moment] for moment in wanted}
        others = moments.total() - sum(deaths.values())
        print(
            f"  {moments.total()} deaths in {cases} cases; fewest {min(deaths.values())} a moment"
        )
        return {"cases": cases, "deaths": moments.total(), "at": deaths, "elsewhere": others}

    return work
