"""Lays out the lines that show a run, as a pure function of its state and of the width.

Each line has a label and fields. Numbers that grow are padded, so that fields stay in place. If a
line is too long, its least important fields are left out, and then its end is cut off.

input   progress of the whole input, elapsed time, ETA
rows    rows done, failed, to be retried, left; flawed answers, by flaw
speed   rows and tokens per second, calls in flight, latency
limits  usage of each limit; what binds, and for how long
batch   the states of the batches at the provider
usage   tokens per row; dollars spent and per minute; rows answered from the cache
errors  failed attempts by kind, and the message of the last one
then    one sentence for each current problem
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from redline.job.show.snapshot import Bound, Snapshot, usd_text
from redline.process import cells, counted, duration, printable, three_digits
from redline.timeline import LimitUse

LEAST_WIDTH, MOST_WIDTH = 20, 200
_LABEL = 8
_GAP = "  "
_SHORTEST_BAR = 10
# Shorter waits are over before the user can read about them.
_LEAST_WAIT_S = 0.5
_LONGEST_NAME = 24
# What a text means. Each display has its own styles for these meanings.
WARN, BAD, STRONG = "warn", "bad", "strong"
_UNITS = {
    "requests/s": "rps",
    "requests/min": "rpm",
    "tokens/min": "tpm",
    "tokens/s": "tps",
    "requests/day": "rpd",
    "tokens/day": "tpd",
    "requests/h": "requests/h",
    "tokens/h": "tokens/h",
    "input tokens/min": "input tpm",
    "output tokens/min": "output tpm",
}
_FLAWS = {"length": "cut", "empty": "empty", "content_filter": "filtered", "refusal": "refused"}


class Span(NamedTuple):
    """A piece of a line's text. style: WARN, BAD, STRONG, or empty."""

    text: str
    style: str = ""


class Field(NamedTuple):
    """A part of a line. rank: the fields with the highest rank are left out first."""

    rank: int
    spans: tuple[Span, ...]

    @property
    def width(self) -> int:
        return sum(cells(span.text) for span in self.spans)


Line = list[Span]


def text_of(line: Iterable[Span]) -> str:
    """Returns the text of a line, without styles."""
    return "".join(span.text for span in line)


def screen(snapshot: Snapshot, name: str, width: int, *, is_plain: bool = False) -> list[Line]:
    """Returns the lines, each at most `width` cells wide.

    name: the name of the input. width: raised to LEAST_WIDTH or lowered to MOST_WIDTH if necessary.
    is_plain: use only ASCII.
    """
    width = max(LEAST_WIDTH, min(width, MOST_WIDTH))
    shown = [_progress(snapshot, _plain(name), width, is_plain=is_plain)]
    for label, fields_of in (
        ("rows", _rows),
        ("speed", _speed),
        ("limits" if snapshot.limits else "binds", _limits),
        ("batch", _batches),
        ("usage", _usage),
        ("errors", _errors),
    ):
        if fields := fields_of(snapshot):
            shown.append(_line(label, fields, width))
    for notice in snapshot.notices.values():
        shown += [[Span(part, STRONG)] for part in _wrapped(_plain(notice), width)]
    return [_in_ascii(line) for line in shown] if is_plain else shown


def _progress(snapshot: Snapshot, name: str, width: int, *, is_plain: bool) -> Line:
    """Returns the line of the input's name, a bar in the remaining width, and the times."""
    label = Span(f"{'input':<{_LABEL}}")
    name = _shortened(name, min(_LONGEST_NAME, width // 4))
    elapsed = f"{duration(snapshot.elapsed_s):>9}"
    time = [Span(elapsed)]
    if snapshot.eta_s is not None:
        time.append(Span(f"{_GAP}ETA {duration(snapshot.eta_s)}"))
        if snapshot.is_on_hold:
            time.append(Span(" on hold", WARN))
    if snapshot.fraction is None:
        return _cut([label, Span(f"{name}{_GAP}"), *time], width)
    share = [Span(f"{100 * snapshot.fraction:5.1f} %")]
    # The bar has the same width with an ETA, without one, and with one that is on hold.
    end = len(elapsed) + len(_GAP) + len("ETA ") + 9 + len(" on hold") + 7 + 2 * len(_GAP)
    bar = width - _LABEL - cells(name) - len(_GAP) - end
    if bar < _SHORTEST_BAR:
        return _cut([label, Span(name + _GAP), *share, Span(_GAP), *time], width)
    full = round(bar * snapshot.fraction)
    drawn = ("#" * full + "-" * (bar - full)) if is_plain else "━" * full + "─" * (bar - full)
    line = [label, Span(name + _GAP + drawn + _GAP), *share, Span(_GAP), *time]
    return _cut(line, width)


def _rows(snapshot: Snapshot) -> list[Field]:
    counts = snapshot.input
    wide = max(len(f"{counts.rows:,}"), 5)
    least = "" if counts.is_exact else "at least "
    of = f" of {counts.rows:,}" if counts.is_exact else ""
    found = [_field(0, f"{counts.done:>{wide},}{of} done")]
    found.append(_field(0, f"{counts.failed:>5,} failed", BAD if counts.failed else ""))
    found.append(_field(2, f"{snapshot.retrying:>4,} retrying", WARN if snapshot.retrying else ""))
    if counts.is_exact or counts.left:
        found.append(_field(1, f"{least}{counts.left:>{wide},} left"))
    for flaw, count in snapshot.flawed.items():
        found.append(_field(3, f"{count:,} {_FLAWS.get(flaw, flaw)}", WARN))
    if before := counts.done - snapshot.done:
        found.append(_field(4, f"{before:,} done before"))
    if counts.untried:
        found.append(_field(4, f"{counts.untried:,} untried"))
    return found


def _speed(snapshot: Snapshot) -> list[Field]:
    if snapshot.batches is not None and not snapshot.in_flight:
        return []
    flying = f"{snapshot.in_flight:,}"
    if snapshot.slots:
        slots = f"{snapshot.slots:,}"
        flying = f"{flying:>{len(slots)}}/{slots}"
    found = [
        _field(0, f"{three_digits(snapshot.rows_per_s):>6} rows/s"),
        _field(0, f"{flying} in flight{' (auto)' if snapshot.is_adaptive else ''}"),
    ]
    p50_s, p95_s = snapshot.latency_p50_s, snapshot.latency_p95_s
    if p50_s is not None and p95_s is not None:
        found += [_field(1, f"p50 {_seconds(p50_s)}"), _field(2, f"p95 {_seconds(p95_s)}")]
    if snapshot.tokens_per_s or snapshot.tokens_per_row:
        found.append(_field(2, f"{three_digits(snapshot.tokens_per_s):>6} tokens/s"))
    if snapshot.rate_limited:
        found.append(_field(3, f"{snapshot.rate_limited:,} x 429", WARN))
    return found


def _limits(snapshot: Snapshot) -> list[Field]:
    """Returns the limits, with a mark on those that bind, and any other constraint that binds."""
    bound, found = snapshot.bound, []
    since = "" if bound is None else f", for {duration(bound.for_s)}"
    for at, use in enumerate(snapshot.limits):
        binds = bound is not None and _is_bound(use, bound, len(snapshot.limits))
        text = _use_text(use) + (" (auto)" if snapshot.are_found else "")
        spans = (Span(text), Span(f" <- binds{since}", STRONG)) if binds else (Span(text),)
        found.append(Field(1 if binds else 2 + at, spans))
        if binds:
            since = ""
    if bound is not None and since:
        label = "binds: " if snapshot.limits else ""
        text = _plain(f"{label}{bound.what}{since}")
        # First on the line, because the limits do not hold the run back.
        found.insert(0, Field(0, (Span(text, STRONG),)))
    # The line `speed` shows the number of calls in flight that was found.
    known = [one for one in snapshot.found_limits if not one.endswith(" in flight")]
    if known:
        found.append(_field(3, f"found: {', '.join(known)}"))
    if snapshot.parked_s >= _LEAST_WAIT_S:
        found.insert(1, _field(1, f"{duration(snapshot.parked_s)} to wait", WARN))
    return found


def _is_bound(use: LimitUse, bound: Bound, limits: int) -> bool:
    """Whether this limit binds: `bound` names it, or it is the only limit.

    limits: the number of limits.
    """
    return bound.cause == "limit" and (limits == 1 or use.name in bound.what.split(" and "))


def _use_text(use: LimitUse) -> str:
    """Returns a text like `178k/200k tpm`, or like `1.5/2 requests/s` for an uncommon window."""
    unit = use.name.partition(" ")[2]
    kind, _, place = unit.partition(" at ")
    at = f" at {place}" if place else ""
    if kind not in _UNITS:
        kind = kind.partition("/")[0]
        per_s = f"{use.used / use.window_s:.3g}/{use.count / use.window_s:.3g}"
        return f"{per_s} {_UNITS.get(f'{kind}/s', f'{kind}/s')}{at}"
    count = _short(use.count)
    return f"{_short(use.used):>{len(count)}}/{count} {_UNITS.get(kind, kind)}{at}"


def _batches(snapshot: Snapshot) -> list[Field]:
    use = snapshot.batches
    if use is None:
        return []
    states = ", ".join(f"{count:,} {_plain(state)}" for state, count in use.states.items())
    found = [
        _field(0, states or f"{counted(use.running, 'batch', 'batches')} running"),
        _field(1, f"{counted(use.rows, 'row')} submitted"),
        _field(2, f"{use.finished:,} of them finished"),
    ]
    if snapshot.look_in_s is not None:
        found.append(_field(3, f"next check in {duration(snapshot.look_in_s)}"))
    return found


def _usage(snapshot: Snapshot) -> list[Field]:
    found = []
    if snapshot.spent:
        here = " by this run" if snapshot.is_spent_here else ""
        found.append(_field(0, f"{snapshot.spent}{here}"))
        if snapshot.usd_per_min is not None:
            found.append(_field(2, f"{usd_text(snapshot.usd_per_min)}/min"))
        if snapshot.expected:
            found.append(_field(1, snapshot.expected))
    if snapshot.tokens_per_row is not None:
        found.append(_field(3, f"{three_digits(snapshot.tokens_per_row)} tokens/row"))
    if snapshot.cache is not None:
        share = f"{100 * snapshot.cache.share:.0f} %"
        found.append(_field(2, f"{snapshot.cache.spared:,} cached ({share})"))
    return found


def _errors(snapshot: Snapshot) -> list[Field]:
    if not snapshot.errors:
        return []
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in snapshot.errors.items())
    last = f"; last: {_plain(snapshot.last_error)}" if snapshot.last_error else ""
    here = " in this run" if snapshot.input.done > snapshot.done else ""
    return [Field(0, (Span(kinds + here, BAD), Span(last)))]


def _line(label: str, fields: Sequence[Field], width: int) -> Line:
    """Returns the label and the fields that fit, in their order."""
    kept = list(fields)
    left = width - _LABEL + len(_GAP)
    while len(kept) > 1 and sum(one.width + len(_GAP) for one in kept) > left:
        # Leaves out the last of the least important fields.
        kept.remove(max(reversed(kept), key=lambda one: one.rank))
    line = [Span(f"{label:<{_LABEL}}")]
    for at, field in enumerate(kept):
        line += [Span(_GAP)] if at else []
        line += field.spans
    return _cut(line, width)


def _field(rank: int, text: str, style: str = "") -> Field:
    return Field(rank, (Span(text, style),))


def _plain(text: str) -> str:
    """Returns the text on one line, without characters that move the cursor."""
    return " ".join(printable(text).split())


def _cut(line: Line, width: int) -> Line:
    """Returns the part of the line that fits, with an ellipsis if it was cut."""
    if sum(cells(span.text) for span in line) <= width:
        return line
    found, left = Line(), width - 1
    for span in line:
        text = span.text if cells(span.text) <= left else _clipped(span.text, left)
        found.append(Span(text, span.style))
        left -= cells(text)
        if text != span.text:
            break
    return [*found, Span("…")]


def _shortened(name: str, width: int) -> str:
    """Returns the path; cuts its beginning if it is too wide, because the end says more."""
    if cells(name) <= width:
        return name
    return "…" + _clipped(name[::-1], width - 1)[::-1]


def _clipped(text: str, width: int) -> str:
    """Returns the beginning of the text, at most `width` cells wide."""
    for at, character in enumerate(text):
        width -= cells(character)
        if width < 0:
            return text[:at]
    return text


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Yields the text in parts of at most `width` cells, divided at spaces if possible."""
    while cells(text) > width:
        longest = len(_clipped(text, width))
        blank = text.rfind(" ", 0, longest + 1)
        yield text[: blank if blank > 0 else longest]
        text = text[blank + 1 if blank > 0 else longest :]
    if text:
        yield text


def _in_ascii(line: Line) -> Line:
    """Returns the line in ASCII, as wide as before: a `?` for each cell of any other character."""
    return [
        Span("".join(one if one.isascii() else "?" * cells(one) for one in text), style)
        for text, style in ((span.text.replace("…", "~"), span.style) for span in line)
    ]


def _short(number: float) -> str:
    """Returns a text like `1,338`, `17.8k`, `200k`, `1.25m`: three digits from 10,000 on."""
    if number >= 999_500:
        return f"{number / 1e6:.3g}m"
    return f"{number / 1000:.3g}k" if number >= 10_000 else f"{number:,.0f}"


def _seconds(seconds: float) -> str:
    is_short = seconds < 0.9995
    return f"{three_digits(1000 * seconds)} ms" if is_short else f"{three_digits(seconds)} s"
