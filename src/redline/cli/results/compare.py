"""`redline compare`: compares two results files row by row."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from click import Context

from redline.apis import loose_json
from redline.calls.cost import dollars_text
from redline.cli.flags import Word, flag, read_flags, switch, whole
from redline.cli.results.reading import SEED, notes_of, open_results, priced
from redline.cli.results.show import seconds
from redline.cli.session import aligned, folded, new_file, say_json, say_lines, screen_width
from redline.errors import ConfigError
from redline.job.inspect import KINDS, PAGE, Comparison, Figures, Opened, compare_outputs, page_of
from redline.process import counted, write_file

_USUAL_SAMPLE, _MOST_SAMPLED = 10, 1000
# The minimum width of a table's columns, in characters.
_NARROW = 10

PARAMS = (
    Word("first", "A", "The results file of a run, or its URL."),
    Word("second", "B", "The results file of another run over the same rows."),
    flag("output", "FILE", "Also write an HTML page that shows outputs side by side.", short="-o"),
    whole(
        "sample",
        "Show at most N rows of each group on the page, such as rows with different outputs. "
        f"Default: {_USUAL_SAMPLE}.",
        most=_MOST_SAMPLED,
    ),
    SEED,
    switch("json", "Print JSON, for programs."),
)


def compare(ctx: Context, first: str, second: str) -> None:
    """Compare two results files by the rows that both have.

    Rows are matched by their custom_id, otherwise by their content, and numbered as in B. The
    comparison shows rows that failed in only one of the files, equal and different outputs, tokens,
    cost and latency; for `redline eval`, also scores.

        redline compare small.jsonl large.jsonl
        redline compare small.jsonl large.jsonl -o page.html

    The page is self-contained; it shows texts of both files.

    Exit status: 0 compared, whether or not the files differ; 2 no such file, no row in common, or
    bad usage; 3 a defect in redline.
    """
    given = read_flags(ctx, PARAMS)
    page = None
    if "output" in given:
        page = new_file(given["output"], "page", PAGE, "choose a file, such as -o page.html")
    sample, seed = given.get("sample", _USUAL_SAMPLE), given.get("seed", 0)
    if page is None and ("sample" in given or "seed" in given):
        raise ConfigError("--sample and --seed need a page", hint="add -o page.html")
    with open_results(first) as one, open_results(second) as two:
        tariff, of_prices = priced()
        found = compare_outputs(one, two, tariff, sample=sample if page else 0, seed=seed)
        scores = _scores(found, one, two)
        if page is not None:
            table = list(_table(found))
            data = page_of(found, (one, two), table, scores).encode("utf-8", "replace")
            write_file(page, data)
        if "json" in given:
            say_json(loose_json.encoded(found.as_fields()))
            return
        notes = [*_notes(one, first), *_notes(two, second), *of_prices]
        if page is not None:
            notes.append(f"page: {page}")
        say_lines(_lines(found, (one, two), scores, notes))


def _notes(found: Opened, name: str) -> list[str]:
    notes = ["a run is still adding rows"] if found.is_running else []
    return [f"{name}: {note}" for note in [*notes, *notes_of(found, name)]]


def _lines(
    found: Comparison, sides: tuple[Opened, Opened], scores: str, notes: list[str]
) -> Iterator[str]:
    width = screen_width()
    for letter, side in zip("AB", sides, strict=True):
        model = f", model {side.model}" if side.model else ""
        yield from folded(f"{letter}  {side.name}{model}", width, 2)
    yield ""
    only = f"{found.only_first:,} in A only, {found.only_second:,} in B only"
    yield from folded(f"{counted(found.common, 'row')} in common; {only}", width, 2)
    if found.changed:
        hold = "has" if found.changed == 1 else "have"
        yield from folded(
            f"{found.changed:,} of these {hold} different contents in A and B", width, 2
        )
    rows = [("", "A", "B"), *_table(found)]
    yield from ["", *aligned(rows, is_figures=True, least=_NARROW)]
    yield from ["", *_pairs(found, width)]
    if found.settings:
        yield from ["", "settings that differ"]
        for name, one, two in found.settings:
            text = f"{name}: {one or 'not set'} in A, {two or 'not set'} in B"
            yield from folded(text, width, 4, "  ")
    if scores:
        yield ""
    for line in scores.splitlines():
        # A line that fits keeps its aligned columns.
        yield from [line] if len(line) <= width else folded(line, width, 3)
    for note in notes:
        yield from ["", *folded(note, width, 5)]


def _table(found: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yields the lines of the table of common rows: a title, and a figure for A and for B."""
    one, two = found.first, found.second
    yield "succeeded", f"{one.succeeded:,}", f"{two.succeeded:,}"
    yield "failed", f"{one.failed:,}", f"{two.failed:,}"
    for reason in sorted({*one.reasons, *two.reasons} - {"stop", None}, key=str):
        first, second = (
            f"{side.reasons[reason].rows:,}" if reason in side.reasons else "0"
            for side in (one, two)
        )
        yield f"finish: {reason}", first, second
    yield "tokens in", f"{one.input_tokens:,}", f"{two.input_tokens:,}"
    yield "tokens out", f"{one.output_tokens:,}", f"{two.output_tokens:,}"
    if one.cost.priced or two.cost.priced:
        yield "cost", _cost(one), _cost(two)
    sides = (one.latencies.quantiles(), two.latencies.quantiles())
    if any(sides):
        names = {"latency p50": "p50_s", "latency p95": "p95_s", "latency, most": "max_s"}
        for title, name in names.items():
            first, second = (
                "-" if side is None else seconds(getattr(side, name)) for side in sides
            )
            yield title, first, second


def _cost(figures: Figures) -> str:
    cost = figures.cost
    is_part = cost.unpriced or cost.unstated
    if not cost.priced:
        return "unknown" if is_part else "-"
    return dollars_text(cost.picodollars) + (f" for {cost.priced:,}" if is_part else "")


def _pairs(found: Comparison, width: int) -> Iterator[str]:
    """Yields lines that count rows by their result in each output, with examples of each kind."""
    if answered := found.equal + found.different:
        share = 100 * found.equal / answered
        yield f"outputs: {found.equal:,} equal ({share:.1f} %), {found.different:,} different"
    for kind, words in KINDS.items():
        count = found.pairs[kind]
        if count and kind != "equal":
            names = [one.name for one in found.examples.get(kind, [])]
            more = ["..."] if names and count > len(names) else []
            yield from folded(", ".join([f"{words}: {count:,}", *names, *more]), width, 3)


def _scores(found: Comparison, one: Opened, two: Opened) -> str:
    """Returns the text of `redline eval compare`; empty for outputs that are not graded."""
    if not found.grades:
        return ""
    # Imported here: most outputs are not graded.
    from redline.tasks.evaluate import Comparison as Scores
    from redline.tasks.evaluate import compare as compare_scores
    from redline.tasks.evaluate import paired

    if any(side.settings.get("samples") for side in (one, two)):
        scores = compare_scores(one.output.path, two.output.path)
        return msgspec.structs.replace(scores, first=one.name, second=two.name).words()
    total = found.grades.total()
    return Scores(
        first=one.name,
        second=two.name,
        pairs=paired(dict(found.grades.items())),
        won=[example.row for example in found.examples.get("better", [])],
        lost=[example.row for example in found.examples.get("worse", [])],
        first_answers=total,
        second_answers=total,
        only_first=0,
        only_second=0,
    ).words()
