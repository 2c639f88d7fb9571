"""Sums the usage of all answers to one row, because each re-ask costs tokens too."""

from __future__ import annotations

from typing import Any

from redline.calls import Outcome, Reply

_LONGEST_KEPT = 4_000


class UsageSum:
    """The total usage of a row: `add` each outcome, then `put_into` the outcome to keep."""

    def __init__(self) -> None:
        self._paid: list[dict[str, Any] | None] = []
        self._given: list[dict[str, Any] | None] = []
        self._answer: Reply | None = None
        self._attempts = 0

    def add(self, outcome: Outcome) -> None:
        self._attempts = max(self._attempts, outcome.attempts)
        reply = outcome.reply
        if reply is None:
            return
        (self._given if outcome.is_cached else self._paid).append(reply.usage)
        # Only the beginning of an earlier answer is kept, not all of its bytes.
        output = reply.output
        kept = output[:_LONGEST_KEPT] if isinstance(output, str) else None
        self._answer = Reply(output=kept, finish_reason=reply.finish_reason, model=reply.model)

    def paid(self) -> dict[str, Any] | None:
        """Returns the usage of all paid answers; {} if there are none, None if any is unknown."""
        return summed(self._paid)

    def put_into(self, outcome: Outcome) -> None:
        """Sets the outcome's usage to the sum over all paid answers, or over all if none was paid.

        is_cached becomes true if no answer was paid; attempts becomes the highest of any outcome.
        An outcome without a reply, which failed after invalid answers, also gets the last answer.
        Does nothing if there was no answer.
        """
        if outcome.reply is None:
            outcome.reply = self._answer
        if outcome.reply is None:
            return
        outcome.reply.usage = summed(self._paid or self._given)
        outcome.is_cached = not self._paid
        outcome.attempts = self._attempts


def summed(usages: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Returns the sum of the usages, number by number; None if one of them is unknown."""
    total: dict[str, Any] = {}
    for usage in usages:
        if usage is None:
            return None
        _add(total, usage)
    return total


def _add(total: dict[str, Any], usage: dict[str, Any]) -> None:
    for name, value in usage.items():
        before = total.get(name)
        if isinstance(value, dict):
            total[name] = before if isinstance(before, dict) else {}
            _add(total[name], value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            total[name] = value + (before if isinstance(before, int | float) else 0)
        elif before is None:
            total[name] = value
