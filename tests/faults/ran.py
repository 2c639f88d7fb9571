"""One run of a script that is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from faults.files import Files
from faults.script import Run
from faults.trace import Facts


@dataclass
class Ran:
    """report: None where it was cut short or could not begin; error: what it raised.

    ended_s: None where it was killed. leaks: what was found in use in its loop, in words.
    at_stake: what was on the wire or not saved at its death.
    """

    run: Run
    facts: Facts
    before: Files
    after: Files
    ended_s: float | None = None
    report: Any = None
    error: BaseException | None = None
    leaks: list[str] = field(default_factory=list)
    at_stake: tuple[int, list[Any]] | None = None
