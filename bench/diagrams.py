"""The diagrams of docs/architecture.md, drawn from the source.

    python bench/diagrams.py            draws them
    python bench/diagrams.py --check    reports whether those in docs/pictures are up to date

layers.svg   the folders of src/redline in the order of LAYERS, and which of them import which
call.svg     the functions that a row passes through, in the order in which they are called
batch.svg    the states of a part of a batch job, from the table in the ledger's docstring
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
LEDGER = "redline.job.batch.ledger"
MONO_PX, PLAIN_PX = 7.3, 6.6  # the mean width of a character, at most

_STYLE = """
svg { font: 13px system-ui, sans-serif } .mono { font: 12px ui-monospace, monospace }
.title { font-weight: 600 }
.card { fill: #ffffff } .text { fill: #1f2328 } .soft { fill: #59636e }
.box { fill: #f6f8fa; stroke: #d1d9e0 } .band { fill: #f6f8fa } .grid { stroke: #d1d9e0 }
.own { fill: #d1d9e0 } .dot { fill: #0969da }
.arrow { stroke: #59636e; stroke-width: 1.4; fill: none } .head { fill: #59636e }
.mark { stroke: #1a7f37; stroke-width: 2; fill: none } .note { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
.card { fill: #0d1117 } .text { fill: #e6edf3 } .soft { fill: #9198a1 }
.box { fill: #151b23; stroke: #3d444d } .band { fill: #151b23 } .grid { stroke: #30363d }
.own { fill: #3d444d } .dot { fill: #58a6ff }
.arrow { stroke: #9198a1 } .head { fill: #9198a1 }
.mark { stroke: #3fb950 } .note { fill: #3fb950 }
}
"""


class Step(NamedTuple):
    """A function on the way of a row, and what it does there."""

    function: str
    text: str


# In the order of their first calls in a job of one row, as tests/docs/test_architecture_page.py
# traces it.
STEPS = (
    Step("redline.job.work.runner.Runner.next_row", "one of the workers is free"),
    Step("redline.job.work.feed.Feed.next", "rows are read ahead; those done before are left out"),
    Step("redline.sources.jsonl.LineRows.batches", "reads in a thread, at most 256 rows at a time"),
    Step("redline.job.work.template.Renderer.request", "makes the request from the row"),
    Step("redline.calls.cache.backend.Cached.send", "with --cache: an earlier answer ends here"),
    Step("redline.calls.client.retry.Retry.send", "repeats attempts that may still succeed"),
    Step("redline.calls.cost.metered.Metered.send", "with --budget: reserves the worst case"),
    Step("redline.calls.http.backend.HttpBackend.send", "one attempt at one endpoint"),
    Step("redline.limits.wait.slots.Slots.take_free", "slot: a bound on calls in flight"),
    Step("redline.calls.wire.transport.Transport.exchange", "HTTP/1.1, also through a proxy"),
    Step("redline.calls.wire.pool.Pool.take_now", "connection: the last one used, or a new one"),
    Step("redline.limits.wait.limiter.Limiter.acquire_now", "grant: requests and tokens together"),
    Step("redline.journal.journal.Journal.flush", "before_write: once for all that is due now"),
    Step("redline.calls.wire.connection.Connection.leave", "stamps the request and writes it"),
    Step("redline.calls.wire.connection.Connection.on_message_complete", "the answer is whole"),
    Step("redline.apis.replies.read", "the answer becomes a Reply, or an error by its status"),
    Step("redline.calls.http.limits.EndpointLimits.heard", "limits: its headers, time and usage"),
    Step("redline.journal.journal.Journal.append", "takes the outcome as a line with a checksum"),
    Step("redline.journal.results_file.ResultsFile.flush", "writes the lines of one turn at once"),
    Step("redline.journal.results_file.ResultsFile.end_group", "fsync, in a thread, per group"),
    Step("redline.job.work.tally.Tally.rows_saved", "only now the row counts as done"),
)
# What one attempt is: these steps are repeated by a retry.
ATTEMPT = ("Metered.send", "EndpointLimits.heard")


class State(NamedTuple):
    """A line of the ledger's table: the state of a part, and the note that leads to it."""

    name: str
    note: str
    rows: str
    after: str


def resolved(dotted: str) -> object:
    """What a dotted name such as `redline.calls.http.backend.HttpBackend.send` names."""
    module, names = dotted, list[str]()
    while True:
        try:
            found: object = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            names.insert(0, last)
    for name in names:
        found = getattr(found, name)
    return found


def module_of(dotted: str) -> tuple[str, str]:
    """The module's path below src/redline, and the name within it."""
    parts = dotted.split(".")[1:]
    split = next(i for i, part in enumerate(parts) if not _is_folder(parts[: i + 1]))
    return "/".join(parts[: split + 1]), ".".join(parts[split + 1 :])


def _is_folder(parts: Sequence[str]) -> bool:
    return ROOT.joinpath("src", "redline", *parts).is_dir()


def states() -> list[State]:
    """The table of states at the head of the ledger's module."""
    lines = (importlib.import_module(LEDGER).__doc__ or "").splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith("a part is"))
    columns = ("a part is", "from the note", "its rows are", "after a restart it is")
    at = [lines[start].index(column) for column in columns]
    found = []
    for line in lines[start + 1 :]:
        if not line.strip():
            return found
        name, note = line[at[0] : at[1]].strip(), line[at[1] : at[2]].strip()
        if len(line) > at[3] and line[at[3] - 2 : at[3]] == "  ":
            found.append(State(name, note, line[at[2] : at[3]].strip(), line[at[3] :].strip()))
        else:
            found.append(State(name, note, line[at[2] :].strip(), ""))
    return found


def text(x: float, y: float, words: str, style: str = "text", anchor: str = "start") -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{style}" {at}>{escape(words, quote=False)}</text>'


def arrow(x: float, y: float, to_y: float) -> str:
    """An arrow straight down."""
    line = f'<path class="arrow" d="M{x:.1f} {y:.1f}V{to_y - 6:.1f}"/>'
    return f'{line}<path class="head" d="M{x - 4:.1f} {to_y - 7:.1f}h8l-4 7z"/>'


def svg(width: float, height: float, title: str, parts: Sequence[str], style: str = _STYLE) -> str:
    """A picture on a card of this size, in pixels."""
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    card = f'<rect class="card" width="{width:.0f}" height="{height:.0f}" rx="6"/>'
    lines = [head, f"<title>{title}</title>", f"<style>{style}</style>", card, *parts, "</svg>"]
    return "\n".join(lines) + "\n"


def parts_and_imports() -> tuple[list[str], dict[str, tuple[str, ...]], set[tuple[str, str]]]:
    """The parts from the top layer down, the subfolders of each, and who imports whom."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        rules = importlib.import_module("support.architecture_rules")
    finally:
        sys.path.pop(0)
    package = rules.Package(ROOT / "src" / "redline")
    known = {module.part for module in package.modules}
    parts = [part for part in reversed(rules.LAYERS) if part in known and part[:1] != "_"]
    inner = {
        part: tuple(folder for folder in rules.SUBFOLDERS.get(part, ()) if folder) for part in parts
    }
    imports = set[tuple[str, str]]()
    for module in package.modules:
        for found in package.imports(module):
            target = [*found.target.split("."), ""]
            if target[0] == "redline" and {module.part, target[1]} <= {*parts}:
                imports.add((module.part, target[1]))
    return parts, inner, imports


def layers() -> str:
    """The first diagram: a row for each part, with a dot below each part that it imports."""
    parts, inner, imports = parts_and_imports()
    title = "Layers: a part imports only parts below it"
    left, top, pitch = 400.0, 140.0, 25.0
    width, height = left + pitch * len(parts) + 16, top + pitch * len(parts) + 16
    drawn = [text(16, 28, title, "text title")]
    drawn.append(text(16, 50, "A dot in a row: the part of the row imports", "soft"))
    drawn.append(text(16, 67, "the part of the column. Every dot is to the", "soft"))
    drawn.append(text(16, 84, "right of the diagonal: no import goes up.", "soft"))
    for row, part in enumerate(parts):
        y, x = top + pitch * row, left + pitch * row
        if row % 2 == 0:
            drawn.append(
                f'<rect class="band" x="8" y="{y:.0f}" width="{width - 16:.0f}" '
                f'height="{pitch:.0f}"/>'
            )
        drawn.append(text(16, y + 17, part, "text mono title"))
        drawn.append(text(104, y + 17, " < ".join(inner[part]), "soft mono"))
        turn = f"translate({x + 17:.1f} {top - 8:.1f}) rotate(-55)"
        drawn.append(f'<g transform="{turn}">{text(0, 0, part, "text mono")}</g>')
        side = pitch - 8
        drawn.append(
            f'<rect class="own" x="{x + 4:.0f}" y="{y + 4:.0f}" width="{side:.0f}" '
            f'height="{side:.0f}" rx="3"/>'
        )
        for column, other in enumerate(parts):
            if part != other and (part, other) in imports:
                across = left + pitch * (column + 0.5)
                drawn.append(
                    f'<circle class="dot" cx="{across:.1f}" cy="{y + pitch / 2:.1f}" r="5"/>'
                )
    return svg(width + 30, height, title, drawn)


def call() -> str:
    """The second diagram: one step below the other."""
    title = "The path of a call"
    top, pitch, box, width = 60.0, 36.0, 26.0, 900.0
    drawn = [text(16, 28, title, "text title")]
    drawn.append(text(150, 28, "each row with its functions, in the order of their calls", "soft"))
    names = [module_of(step.function) for step in STEPS]
    for row, (step, (module, name)) in enumerate(zip(STEPS, names, strict=True)):
        y = top + pitch * row
        drawn.append(
            f'<rect class="box" x="48" y="{y:.0f}" width="452" height="{box:.0f}" rx="5"/>'
        )
        drawn.append(text(60, y + 17, module, "soft mono"))
        drawn.append(text(490, y + 17, name, "text mono", "end"))
        drawn.append(text(520, y + 17, step.text))
        if row + 1 < len(STEPS):
            drawn.append(arrow(274, y + box, y + pitch))
    rows = [index for index, (_, name) in enumerate(names) if name in ATTEMPT]
    first, last = top + pitch * rows[0], top + pitch * rows[-1] + box
    drawn.append(f'<path class="mark" d="M42 {first:.0f}h-8V{last:.0f}h8"/>')
    middle = (first + last) / 2
    turned = text(0, 0, "one attempt", "note", "middle")
    drawn.append(f'<g transform="translate(24 {middle:.0f}) rotate(-90)">{turned}</g>')
    return svg(width, top + pitch * len(STEPS) + 6, title, drawn)


def batch() -> str:
    """The third diagram: the states of a part, the notes between them, and what a restart does."""
    title = "The life of a batch: each note is durable before the next step is taken"
    found = states()
    chain, back = _chain(found)
    top, pitch, box = 84.0, 84.0, 40.0
    drawn = [text(16, 28, title, "text title")]
    for x, words in ((290, "its rows are"), (560, "after a restart it is")):
        drawn.append(text(x, 62, words, "soft"))
    for row, state in enumerate(chain):
        y = top + pitch * row
        drawn.append(
            f'<rect class="box" x="100" y="{y:.0f}" width="160" height="{box:.0f}" rx="6"/>'
        )
        drawn.append(text(180, y + 25, state.name, "text mono title", "middle"))
        for line, words in enumerate(wrapped(state.rows, 40 if state.after else 90)):
            drawn.append(text(290, y + 25 + 18 * line, words))
        drawn.append(text(560, y + 25, state.after))
        drawn.append(text(192, y - 18 if row else y - 12, f"note {state.note}", "note"))
        if row:
            drawn.append(arrow(180, y - pitch + box, y))
    places = {state.name: top + pitch * row + box / 2 for row, state in enumerate(chain)}
    for state in back:
        start, end = places[chain[-2].name], places[state.name]
        drawn.append(
            f'<path class="arrow" d="M100 {start:.0f}H60V{end:.0f}H94"/>'
            f'<path class="head" d="M93 {end - 4:.0f}v8l7 -4z"/>'
        )
        why = state.rows.partition(": ")[2]
        for x, words, style in ((50, f"note {state.note}", "note"), (80, why, "soft")):
            turned = text(0, 0, words, style, "middle")
            middle = f"translate({x} {(start + end) / 2:.0f})"
            drawn.append(f'<g transform="{middle} rotate(-90)">{turned}</g>')
    return svg(900, top + pitch * len(chain) - 20, title, drawn)


def _chain(found: Sequence[State]) -> tuple[list[State], list[State]]:
    """The states in their order, and the notes that lead back to an earlier one."""
    chain, back = list[State](), list[State]()
    for state in found:
        (back if state.name in {each.name for each in chain} else chain).append(state)
    return chain, back


def wrapped(words: str, most: int) -> Iterator[str]:
    """Lines of at most `most` characters."""
    line = ""
    for word in words.split():
        if len(line) + 1 + len(word) > most:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line


PICTURES = {"layers.svg": layers, "call.svg": call, "batch.svg": batch}


def main(pictures: Mapping[str, Callable[[], str]], what: str) -> int:
    """Writes the pictures that have changed; with --check, the status says whether any has."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args().check
    status = 0
    for name, draw in pictures.items():
        path, drawn = FOLDER / name, draw()
        if path.exists() and path.read_text("utf-8") == drawn:
            continue
        if is_check:
            print(f"{name} is not up to date: run python {sys.argv[0]}", file=sys.stderr)
            status = 1
        else:
            path.write_text(drawn, "utf-8")
            print(f"drawn: {path}")
    return status


if __name__ == "__main__":
    sys.exit(main(PICTURES, "The diagrams of docs/architecture.md, drawn from the source."))
