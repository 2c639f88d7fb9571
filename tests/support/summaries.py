"""A reader of summaries and plans, to see whether their numbers add up."""

from __future__ import annotations

import json
import re

_SUMMARY = re.compile(
    r"^([\d,]+) rows? = ([\d,]+) succeeded \+ ([\d,]+) failed \+ ([\d,]+) unfinished", re.M
)
_PLAN = re.compile(
    r"^([\d,]+) rows? = (?:([\d,]+) done already \+ )?([\d,]+) to send \+ ([\d,]+) that cannot be "
    r"sent(?: \+ ([\d,]+) untried)?",
    re.M,
)


def from_summary(text: str) -> str:
    """`text` from its first summary on; all of it if it has none."""
    match = _SUMMARY.search(text)
    return text if match is None else text[match.start() :]


def sums(text: str) -> list[tuple[int, int]]:
    """The whole and the sum of its parts, of each summary and plan in `text`."""
    found = []
    for match in (*_SUMMARY.finditer(text), *_PLAN.finditer(text)):
        whole, *parts = (int((number or "0").replace(",", "")) for number in match.groups())
        found.append((whole, sum(parts)))
    for line in text.splitlines():
        if line.startswith('{"event":"summary"'):
            fields = json.loads(line)
            parts = [fields[name] for name in ("succeeded", "failed", "unfinished")]
            found.append((fields["offered"], sum(parts)))
    return found
