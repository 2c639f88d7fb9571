"""The numbers of a live view, each against what a simulated provider has logged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from support.sim_process import SimProcess

PRICES = {"input": 100.0, "output": 200.0}  # dollars for a million tokens
WITHIN = 0.02
# What is on the screen was so at some moment of this time before it was seen.
LATE_S, STEP_S = 1.0, 0.05
# How far off the beginning or the end of a standstill may be that is told, if not WITHIN.
OFF_S = 1.0
SEEN_LATE_S = 0.03
_NUMBER = r"(\d[\d,.]*[km]?)"
_DURATION = r"(?:\d+ [hm] )?[\d.]+ [sm]"
LABELS = ("input", "rows", "speed", "limits", "binds", "batch", "usage", "errors")
CUT = r"warning: all ([\d,]+) answers so far are cut by max_tokens: raise --max-tokens"
# A call may be cut off before one is refused.
OUTAGE = rf"endpoint \S+ (?:has refused connections|has been unreachable \(.*\)) for ({_DURATION})"
OUTAGE += "; retrying, nothing is lost"


class Truth(NamedTuple):
    """What the log says at one moment. Of the run alone, but for `before`.

    rows: of the input; before: those that an earlier run has done. at_s, begun_s: monotonic, of the
    moment and of the run's begin. slots: calls at once. is_tried_once: what fails is not tried
    again. seen: the requests that were over. listed: the batches. parked_at_s, parked_until_s: the
    key was refused meanwhile. gone_s: when the server was killed.
    """

    rows: int
    before: int
    at_s: float
    begun_s: float
    slots: int
    is_tried_once: bool
    stats: dict[str, Any]
    seen: list[dict[str, Any]]
    listed: list[dict[str, Any]]
    parked_at_s: float = math.inf
    parked_until_s: float = math.inf
    gone_s: float = math.inf

    @property
    def retrying(self) -> float | None:
        """Rows that wait to be tried again; of those whose server is gone the log says nothing."""
        if self.gone_s < math.inf:
            return None
        return sum(one["status"] == 429 and one["ended_s"] > self.parked_at_s for one in self.seen)

    @property
    def sent(self) -> float | None:
        """Requests; a server that is gone keeps no log of those that are sent to it still."""
        return None if self.gone_s < math.inf else int(self.stats["received"])

    @property
    def in_flight(self) -> int:
        return 0 if self.gone_s < math.inf else int(self.stats["in_flight"])

    @property
    def batches(self) -> dict[str, int]:
        """Of those that run: their number, their lines, and how many of these are over."""
        running = [one for one in self.listed if one["status"] == "in_progress"]
        counts = [one["request_counts"] for one in running]
        return {
            "in_progress": len(running),
            "total": sum(one["total"] for one in counts),
            "finished": sum(one["completed"] + one["failed"] for one in counts),
        }

    @property
    def failed(self) -> int:
        return len(self.seen) - len(self.answered) if self.is_tried_once else 0

    @property
    def answered(self) -> list[dict[str, Any]]:
        return [one for one in self.seen if one["status"] == 200]

    @property
    def done(self) -> int:
        return self.before + len(self.answered)

    @property
    def left(self) -> int:
        return self.rows - self.done - self.failed

    @property
    def ended(self) -> int:
        """Rows of this run."""
        return len(self.answered) + self.failed

    @property
    def tokens(self) -> int:
        return sum(map(_tokens, self.answered))

    @property
    def dollars(self) -> float:
        return sum(map(_dollars, self.answered))

    def errors(self, kind: str) -> int:
        """By the client's names."""
        faults = self.stats["faults_by_kind"]
        if kind == "rate_limited":
            return int(self.stats["by_status"].get("429", 0))
        if kind == "server_failed":
            return int(faults.get("500", 0) + faults.get("503", 0))
        if kind == "disconnected" and self.gone_s < math.inf:
            return int(self.stats["in_flight"])
        return 0

    def latency_s(self, q: float) -> float:
        """Interpolated, as numpy does."""
        ordered = sorted(one["ended_s"] - one["arrival_s"] for one in self.answered)
        place, share = divmod(q * (len(ordered) - 1), 1)
        above = ordered[min(int(place) + 1, len(ordered) - 1)]
        return float(ordered[int(place)] + share * (above - ordered[int(place)]))

    def per_s(self, value: Callable[[dict[str, Any]], float], over_s: float) -> float:
        """The rate over the last seconds, or what there is of them."""
        begin_s = self.at_s - over_s
        ended = [one for one in self.seen if begin_s < one["ended_s"] <= self.at_s]
        # The first frame is seen a little late, maybe after the first refusals.
        return sum(map(value, ended)) / (self.at_s - max(self.begun_s, begin_s))

    @property
    def rows_per_s(self) -> float:
        """Over the last ten seconds."""
        return self.per_s(lambda one: self.is_tried_once or one["status"] == 200, 10)


def truth_of(
    sim: SimProcess,
    *,
    rows: int,
    slots: int,
    begun_s: float,
    at_s: float,
    before: int = 0,
    is_tried_once: bool = False,
) -> Truth:
    """By what the provider says now."""
    seen = sim.get("/sim/requests?limit=100000")["requests"]
    listed = sim.get("/v1/batches")["data"]
    return Truth(rows, before, at_s, begun_s, slots, is_tried_once, sim.stats(), seen, listed)


def _tokens(request: dict[str, Any]) -> int:
    return int(request["prompt_tokens"] + request["completion_tokens"])


def _dollars(request: dict[str, Any]) -> float:
    prompt, completion = request["prompt_tokens"], request["completion_tokens"]
    return float(prompt * PRICES["input"] + completion * PRICES["output"]) / 1e6


# What may stand in a line: its label, a pattern with one number, and what that should be. None: a
# time that the log does not know, or that is told elsewhere.
FIELDS: list[tuple[str, str, Callable[[Truth], float | None] | None]] = [
    ("input", rf"{_NUMBER} %", lambda log: 100 * (1 - log.left / log.rows)),
    ("input", r"ETA .*", None),
    ("input", rf"(?P<duration>{_DURATION})", lambda log: log.at_s - log.begun_s),
    ("rows", rf"{_NUMBER} of [\d,]+ done", lambda log: log.done),
    ("rows", rf"[\d,]+ of {_NUMBER} done", lambda log: log.rows),
    ("rows", rf"{_NUMBER} failed", lambda log: log.failed),
    ("rows", rf"{_NUMBER} retrying", lambda log: log.retrying),
    ("rows", rf"{_NUMBER} left", lambda log: log.left),
    ("rows", rf"{_NUMBER} cut", lambda log: log.done),
    ("rows", rf"{_NUMBER} done before", lambda log: log.before),
    ("speed", rf"{_NUMBER} rows/s", lambda log: log.rows_per_s),
    ("speed", rf"{_NUMBER}/[\d,]+ in flight", lambda log: log.in_flight),
    ("speed", rf"{_NUMBER} in flight", lambda log: log.in_flight),
    ("speed", rf"[\d,]+/{_NUMBER} in flight", lambda log: log.slots),
    ("speed", rf"p50 {_NUMBER} s", lambda log: log.latency_s(0.5)),
    ("speed", rf"p95 {_NUMBER} s", lambda log: log.latency_s(0.95)),
    ("speed", rf"p50 {_NUMBER} ms", lambda log: 1e3 * log.latency_s(0.5)),
    ("speed", rf"p95 {_NUMBER} ms", lambda log: 1e3 * log.latency_s(0.95)),
    ("speed", rf"{_NUMBER} tokens/s", lambda log: log.per_s(_tokens, 10)),
    ("speed", rf"{_NUMBER} x 429", lambda log: log.errors("rate_limited")),
    ("limits", rf"{_NUMBER}/6,000 rpm(?: <- binds.*)?", lambda log: log.sent),
    ("limits", rf"binds: {_NUMBER} calls in flight, for .*", lambda log: log.slots),
    ("limits", r"binds: .*", None),
    ("limits", rf"(?P<about>{_DURATION}) to wait", lambda log: log.parked_until_s - log.at_s),
    ("batch", rf"{_NUMBER} in_progress", lambda log: log.batches["in_progress"]),
    ("batch", rf"{_NUMBER} rows submitted", lambda log: log.batches["total"]),
    ("batch", rf"{_NUMBER} of them finished", lambda log: log.batches["finished"]),
    ("batch", r"next check in .*", None),
    ("usage", rf"\${_NUMBER}(?: by this run)?", lambda log: log.dollars),
    ("usage", rf"\${_NUMBER}/min", lambda log: 60 * log.per_s(_dollars, 60)),
    ("usage", rf"about \${_NUMBER} (?:in all|with the rows left)", lambda log: (
        log.dollars / log.ended * (log.ended + log.left)
    )),
    ("usage", rf"{_NUMBER} tokens/row", lambda log: log.tokens / log.ended),
]  # fmt: skip


def wrong(lines: Sequence[str], log: Truth) -> list[str]:
    """What is on the screen and not so. Every field with a number has to be known."""
    found, notices = list[str](), list[str]()
    for line in lines:
        label, text = line[:8].strip(), line[8:].rstrip()
        if label not in LABELS:
            notices.append(line)
            continue
        if label == "errors":
            found += _wrong_errors(text, log)
            continue
        fields = [field.strip() for field in re.split(r"\s{2,}", text.strip())]
        # The input's name is no number, whatever it has in it.
        for field in fields[label == "input" :]:
            # The log does not know since when something binds, but it began with the run at most.
            since = re.search(rf", for ({_DURATION})$", field)
            if since and _seconds(since[1])[0] > log.at_s - log.begun_s + OFF_S:
                found.append(f"{label}: {field!r}, and the run began later")
            known = [one for one in FIELDS if one[0] == label and re.fullmatch(one[1], field)]
            if not known and re.search(r"\d", field):
                found.append(f"{label}: nobody knows what this is: {field!r}")
            for _, pattern, value in known:
                true = None if value is None else value(log)
                if true is not None and not _is_so(pattern, field, true):
                    found.append(f"{label}: {field!r}, and the log says {true:.6g}")
    return found + _wrong_notices(" ".join(notices), log)


def wrong_lately(lines: Sequence[str], log: Truth, at_s: float, only: str = "") -> list[str]:
    """The same of what was seen then: what is not so at any one moment shortly before.

    only: a pattern of what is judged.
    """
    fewest: list[str] | None = None
    for step in range(round(LATE_S / STEP_S)):
        found = wrong(lines, log._replace(at_s=at_s - STEP_S * step))
        found = [one for one in found if re.search(only, one)]
        if fewest is None or len(found) < len(fewest):
            fewest = found
        if not found:
            break
    assert fewest is not None
    return fewest


def _wrong_notices(text: str, log: Truth) -> list[str]:
    """Of the sentences below the lines, one of which may take several lines."""
    found, rest = list[str](), text
    for pattern, is_so in (
        (CUT, lambda count: number(count) == len(log.answered)),
        (OUTAGE, lambda for_s: _is_about(for_s, log.at_s - log.gone_s)),
    ):
        told = re.search(pattern, rest)
        if told is not None:
            rest = rest.replace(told[0], "")
            found += [] if is_so(told[1]) else [f"not so: {told[0]!r}"]
    return [*found, *([f"nobody knows what this is: {rest!r}"] if re.search(r"\d", rest) else [])]


def _wrong_errors(text: str, log: Truth) -> list[str]:
    counts = re.findall(r"([\d,]+) ([a-z_]+)", text.partition("; last")[0])
    assert counts, text
    found = list[str]()
    for shown, kind in counts:
        count, true = int(shown.replace(",", "")), log.errors(kind)
        # Those that were cut off; more were refused when there was nothing to keep a log.
        is_more = kind == "disconnected" and log.gone_s < math.inf
        if count != true and not (is_more and count >= true):
            found.append(f"errors: {shown} {kind}, and the log says {true}")
    return found


def _is_so(pattern: str, field: str, true: float) -> bool:
    found = re.fullmatch(pattern, field)
    assert found is not None
    if "about" in found.groupdict():
        return _is_about(found["about"], true)
    if "duration" in found.groupdict():
        shown, unit = _seconds(found["duration"])
    else:
        shown, unit = number(found[1]), _last_digit(found[1])
    # What is shown is rounded, and a client sees an answer later than its server.
    late = SEEN_LATE_S * (1e3 if field.endswith(" ms") else 1.0) if field[0] == "p" else 0.0
    return -unit / 2 <= shown - true + WITHIN * true <= 2 * WITHIN * true + unit / 2 + late


def _is_about(shown: str, true: float) -> bool:
    return abs(_seconds(shown)[0] - true) <= max(OFF_S, WITHIN * true)


def number(text: str) -> float:
    """With k or m, thousands or millions."""
    digits = text.replace(",", "")
    return float(digits.rstrip("km")) * {"k": 1e3, "m": 1e6}.get(digits[-1], 1.0)


def _last_digit(text: str) -> float:
    """What one more in the last digit would be; 0 for a count."""
    factor = {"k": 1e3, "m": 1e6}.get(text[-1], 0.0)
    decimals = len(text.rstrip("km").partition(".")[2])
    return (factor or 1.0) * 10.0**-decimals if decimals or factor else 0.0


def _seconds(text: str) -> tuple[float, float]:
    parts = re.findall(r"([\d.]+) ([hms])", text)
    seconds = sum(float(value) * {"h": 3600, "m": 60, "s": 1}[unit] for value, unit in parts)
    return seconds, 0.1 if "." in text else 1.0


def begun_of(frames: Sequence[tuple[float, list[str]]]) -> float:
    """When the run began, by the time it shows; a frame is seen late, if at all."""
    shown = [
        (at_s, found[1])
        for at_s, lines in frames
        if lines and (found := re.search(rf"^input .*?  ({_DURATION})(?:  |$)", lines[0]))
    ]
    begun_s = [at_s - _seconds(elapsed)[0] for at_s, elapsed in shown]
    assert begun_s[0] - min(begun_s) <= OFF_S, shown
    return min(begun_s)


def done_of(lines: Sequence[str]) -> int:
    """How many rows are done; -1 if the view is not there."""
    found = [re.search(rf"^rows +{_NUMBER} of", line) for line in lines]
    return next((int(number(one[1])) for one in found if one), -1)
