"""`redline show`: shows the contents of a results file, in numbers and row by row."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from click import Context

from redline.apis import loose_json
from redline.calls.cost import dollars_text
from redline.cli.flags import Word, flag, read_flags, switch, whole
from redline.cli.results.reading import SEED, notes_of, open_results, priced
from redline.cli.session import folded, say, say_json, say_lines, screen_width
from redline.errors import ConfigError
from redline.job.inspect import (
    Ending,
    Figures,
    Found,
    Line,
    Opened,
    Selection,
    figures_of,
    row_number,
    select,
)
from redline.journal import FAIL_ON
from redline.process import counted, duration

_MOST_SAMPLED = 100_000
# Rows of a sample up to this size are shown with their requests, if necessary from the input.
_FEW = 100
# The maximum number of lines of a folded text.
_TEXT_LINES, _MESSAGE_LINES = 6, 3

PARAMS = (
    Word("results", "OUT", "The results file of a run, or its URL."),
    switch("failed", "Show the rows that failed.", section="Rows instead of numbers"),
    switch("cut", "Show the successful rows whose answer was cut at the token limit."),
    flag(
        "row",
        "N",
        "Show in full the row with this number in the input, from 1, or with this custom_id.",
    ),
    whole(
        "sample",
        "Show at most N rows, drawn at random from all, or from those of --failed and --cut.",
        most=_MOST_SAMPLED,
    ),
    SEED,
    switch("json", "Print JSON, for programs; rows as they are in the file."),
)


def show(ctx: Context, results: str) -> None:
    """Show the contents of OUT: how rows ended, with examples, and tokens, cost and latency.

    Results and failures of all runs count, each row once. The job may still be running.

        redline show labels.jsonl
        redline show labels.jsonl --failed --sample 5
        redline show labels.jsonl --row 17

    Prices come from redline.toml in this folder, otherwise from redline's own list.

    Exit status: 0 shown; 2 no such file or row, or bad usage; 3 a defect in redline.
    """
    given = read_flags(ctx, PARAMS)
    selection = _selection(given)
    with open_results(results) as found:
        if selection is None:
            tariff, notes = priced()
            figures = figures_of(found, tariff)
            if "json" in given:
                say_json(loose_json.encoded(_fields(found, figures)))
            else:
                say_lines(_lines(found, figures, results, notes))
            return
        _show_rows(found, selection, is_json="json" in given)


def _selection(given: Mapping[str, Any]) -> Selection | None:
    """Returns the requested selection of rows; None for the numbers of all rows.

    Raises ConfigError for flags that cannot be combined.
    """
    for name in ("failed", "cut", "sample", "seed"):
        if "row" in given and name in given:
            raise ConfigError(f"--row and --{name} cannot be combined", hint="leave one out")
    if "seed" in given and "sample" not in given:
        raise ConfigError("--seed needs --sample", hint="add --sample 5")
    if not {"failed", "cut", "row", "sample"} & given.keys():
        return None
    return Selection(
        failed="failed" in given,
        cut="cut" in given,
        row=given.get("row"),
        sample=given.get("sample"),
        seed=given.get("seed", 0),
        adds_input="json" not in given and given.get("sample", 0) <= _FEW,
    )


def _show_rows(found: Opened, selection: Selection, *, is_json: bool) -> None:
    width, is_any = screen_width(), False
    for row in select(found, selection):
        if is_json:
            say_json(row.data)
        elif selection.row is not None:
            say(("\n" if is_any else "") + _whole_row(row))
        else:
            say("\n" if is_any else "")
            say_lines(_short_row(row, width))
        is_any = True
    if is_any:
        return
    if selection.row is not None:
        raise _missing(found, selection.row)
    if not is_json:
        wanted = []
        if selection.cut:
            wanted.append("was cut at the token limit")
        if selection.failed:
            wanted.append("has failed")
        say(f"no row {' or '.join(wanted) or 'has an outcome yet'}\n")


def _missing(found: Opened, row: str) -> ConfigError:
    """Returns the error that explains why a row is missing."""
    name = found.name
    rows = None if found.manifest is None else found.manifest.rows
    number = row_number(row)
    if number is not None and rows is not None and number > rows:
        hint = f"its input has {counted(rows, 'row')}"
    elif found.lines.damaged:
        hint = "a damaged line may belong to that row: redline verify counts missing rows"
    elif rows is None or found.lines.rows < rows:
        hint = "it may not be done yet; rows are numbered from 1, as in the input"
    else:
        hint = "pass the row's number in the input, counting from 1, or its custom_id"
    return ConfigError(f"{name} has no row {row}", hint=hint)


def _fields(found: Opened, figures: Figures) -> dict[str, Any]:
    lines, manifest = found.lines, found.manifest
    return {
        "output": found.name,
        **figures.as_fields(),
        "input": None if manifest is None else {"name": manifest.input, "rows": manifest.rows},
        "begun": None if manifest is None else manifest.begun,
        "is_running": found.is_running,
        "settings": found.settings,
        "spent": None if found.spent is None else found.spent._asdict(),
        "damaged": lines.damaged,
        "repeated": lines.results.repeated,
        "outdated": lines.results.outdated + lines.failures.outdated,
        "contested": lines.failures.contested,
        "is_torn": lines.is_torn,
    }


def _lines(found: Opened, figures: Figures, name: str, of_prices: list[str]) -> Iterator[str]:
    width = screen_width()
    yield from folded(_sum(found, figures), width, 3)
    yield from _origin(found, width)
    if figures.succeeded:
        yield from ["", "succeeded", *_counted(_reasons(figures), figures.rows, width)]
    if figures.failed:
        yield from ["", "failed", *_counted(_errors(figures), figures.rows, width)]
    table = [row for row in _table(found, figures) if row[1]]
    if table:
        yield ""
    for title, text in table:
        yield from _beside(f"{title:12}", text, width, 10)
    for note in (*notes_of(found, name), *of_prices):
        yield from ["", *folded(note, width, 5)]
    if figures.rows:
        flags = ["--failed"] * bool(figures.failed) + ["--cut"] * bool(figures.cut)
        listed = ", ".join([*flags, "--sample 5, --row N"])
        yield from ["", f"rows: redline show {shlex.quote(name)} {listed}"]


def _sum(found: Opened, figures: Figures) -> str:
    rows, manifest = counted(figures.rows, "row"), found.manifest
    line = f"{rows} = {figures.succeeded:,} succeeded + {figures.failed:,} failed"
    if manifest is None:
        return line
    if manifest.rows is None:
        now = "a run is in progress" if found.is_running else "the last run did not finish"
        return f"{line} so far; {now}"
    return f"{line}; of {manifest.rows:,} in the input" if manifest.rows > figures.rows else line


def _origin(found: Opened, width: int) -> list[str]:
    manifest = found.manifest
    if manifest is None:
        return []
    input_name = f"from {found.input_name}, " if found.input_name else ""
    model = "" if found.model is None else f"model {found.model}, "
    begun = f"begun {manifest.begun[:16].replace('T', ' ')} UTC"
    return folded(f"{input_name}{model}{begun}", width, 2)


def _reasons(figures: Figures) -> Iterator[tuple[Ending, str]]:
    for reason, ending in figures.reasons.items():
        text = reason or "no finish reason"
        if reason in FAIL_ON:
            text += f": {FAIL_ON[reason]}"
        if reason not in ("stop", None):
            text += f", such as {ending.example}"
        yield ending, text


def _errors(figures: Figures) -> Iterator[tuple[Ending, str]]:
    for (kind, status), ending in figures.errors.items():
        code = "" if status is None else f", HTTP {status}"
        yield ending, f"{kind}{code}, such as {ending.example}: {ending.message}"


def _counted(endings: Iterable[tuple[Ending, str]], total: int, width: int) -> Iterator[str]:
    """Formats each ending as `  1,234   12.3 %  stop`, the most frequent first."""
    for ending, text in sorted(endings, key=lambda pair: -pair[0].rows):
        share = 100 * ending.rows / total
        number = f"  {ending.rows:>{len(f'{total:,}')},}  {share:5.1f} %  "
        yield from _beside(number, text, width, _MESSAGE_LINES)


def _beside(head: str, text: str, width: int, most_lines: int) -> Iterator[str]:
    """Yields `head` and, beside it, the folded text, line by line."""
    for line in folded(text, width - len(head), most_lines):
        yield f"{head}{line}"
        head = " " * len(head)


def _table(found: Opened, figures: Figures) -> Iterator[tuple[str, str]]:
    """Yields pairs of a title and its text, which is empty if the title does not apply."""
    yield "verdicts", _listed(figures.verdicts)
    yield "re-asks", f"{figures.reasks:,}" if figures.reasks is not None else ""
    yield "dropped", _listed(figures.dropped)
    yield "tokens", tokens_text(figures)
    yield "cost", cost_text(figures)
    yield "spent", _spent_text(found, figures)
    yield "latency", latency_text(figures)
    yield "endpoints", _listed(figures.endpoints)
    yield "models", _listed(figures.models)
    yield "cached", counted(figures.cached, "answer") if figures.cached else ""
    yield "batched", counted(figures.batched, "answer") if figures.batched else ""


def _listed(counts: Mapping[str, int]) -> str:
    """Lists the counts, the most frequent first: `gpt-4o 900, gpt-4o-mini 100`."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count:,}" for name, count in ordered)


def tokens_text(figures: Figures) -> str:
    """Returns `10 in, 10 out; 5.0 in and 5.0 out per answer`; empty if no counts are known."""
    count, read, written = figures.stated, figures.input_tokens, figures.output_tokens
    if not count or not (read or written):
        return ""
    each = f"{read / count:,.1f} in and {written / count:,.1f} out per answer"
    text = f"{read:,} in, {written:,} out; {each}"
    if figures.unstated:
        text += f"; {counted(figures.unstated, 'answer reports', 'answers report')} none"
    return text


def cost_text(figures: Figures) -> str:
    """Returns the cost, such as `$0.42`, and the answers that it leaves out, with the reason.

    Empty if no answer costs anything.
    """
    cost, parts = figures.cost, list[str]()
    unpriced = sum(cost.unpriced.values())
    if cost.priced:
        of = f" for {counted(cost.priced, 'answer')}" if unpriced or cost.unstated else ""
        parts.append(f"{dollars_text(cost.picodollars)}{of}")
    if unpriced:
        first = next(iter(cost.unpriced))
        number = f" for {counted(unpriced, 'answer')}" if cost.priced else ""
        parts.append(
            f"unknown{number}: no price is known for {' and '.join(cost.unpriced)} "
            f'(set [prices."{first}"] in redline.toml)'
        )
    if cost.unstated:
        parts.append(f"{counted(cost.unstated, 'answer reports', 'answers report')} no tokens")
    return "; ".join(parts)


def _spent_text(found: Opened, figures: Figures) -> str:
    """Returns the spending according to the budget's account; empty without a budget."""
    spent = found.spent
    if spent is None:
        return ""
    # The account counts the calls of a built-in server like any others, but these cost nothing.
    costs = bool(spent.picodollars and (figures.cost.priced or figures.cost.unpriced))
    money = f"{dollars_text(spent.picodollars)} and " if costs else ""
    return (
        f"{money}{counted(spent.tokens, 'token')} by runs with a budget, including failed and open "
        "calls"
    )


def latency_text(figures: Figures) -> str:
    """Returns `p50 12 ms, p95 1.2 s, at most 4.0 s`; empty if no answer was live."""
    found = figures.latencies.quantiles()
    if found is None:
        return ""
    p50, p95, most = map(seconds, (found.p50_s, found.p95_s, found.max_s))
    return f"p50 {p50}, p95 {p95}, at most {most}"


def seconds(value: float) -> str:
    """Formats a duration as `0.8 ms`, `12 ms` or `1.2 s`."""
    if value < 0.00995:
        return f"{1000 * value:.1f} ms"
    return f"{1000 * value:.0f} ms" if value < 0.9995 else duration(value)


def _head(line: Line) -> str:
    """Returns the row and how it ended, on one line."""
    ended = line.reason
    if line.error is not None:
        code = "" if line.error.status is None else f", HTTP {line.error.status}"
        ended = f"failed: {line.error.kind}{code}"
    parts = (
        line.name,
        ended,
        line.verdict if isinstance(line.verdict, str) else "",
        f"from the cache of {line.endpoint}" if line.cached else line.endpoint,
        counted(line.attempts, "attempt") if line.attempts > 1 else "",
        seconds(line.latency_s) if line.latency_s and not line.cached else "",
    )
    return "  ".join(filter(None, parts))


def _short_row(row: Found, width: int) -> list[str]:
    line = row.line
    if line is None:
        return ["a line that is nested too deeply, or written by another version of redline"]
    lines = folded(_head(line), width, 2)
    if asked := line.input_text():
        lines += folded(asked, width, _MESSAGE_LINES, "  | ")
    if line.error is not None:
        lines += folded(line.error.message, width, _TEXT_LINES, "  ")
    return lines + folded(line.text(), width, _TEXT_LINES, "  ")


def _whole_row(row: Found) -> str:
    line = row.line
    if line is None:
        return row.data.decode("utf-8", "replace")
    lines = [_head(line)]
    if line.model is not None:
        lines.append(f"model {line.model}")
    if line.usage is not None:
        lines.append(f"usage {msgspec.json.encode(line.usage).decode()}")
    if asked := line.input_text():
        lines += ["", "asked", asked]
    if line.error is not None:
        error = line.error
        lines += ["", "error", error.message, *filter(None, (error.where, error.hint))]
    if answer := line.text():
        lines += ["", "answer", answer]
    return "\n".join(lines) + "\n"
