"""The figures of docs/benchmarks.md and its pages of detail, from bench/results/*.json.

    python bench/report.py            write the figures into the pages
    python bench/report.py --check    report whether the pages and the files agree

The macro NAME of bench/report.md.jinja makes the text between `<!-- figures: NAME -->` and
`<!-- end -->`, in every page of docs that has such a marker. The text around it is written by hand
and may only name numbers that are settings of a benchmark.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

Result = Mapping[str, Any]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
TEMPLATE = Path(__file__).with_suffix(".md.jinja")
DOCS = ROOT / "docs"
NAMES = (
    "article",
    "run",
    "memory",
    "limits",
    "tokens",
    "search",
    "concurrency",
    "waiters",
    "route",
    "route_real",
    "pool_cost",
    "failures",
    "scaling",
    "binds",
    "predict",
    "throughput",
    "show",
    "recorder",
    "transports",
    "server",
    "relay",
    "gateway",
    "opcodes",
    "instructions",
    "versions",
    "profile",
    "journal",
    "scale",
    "connections",
    "soak",
    "engine",
)
# Those that may have left no record yet: their parts say so.
AWAITED = ("opcodes", "route_real", "throughput", "show")
# Tables from all results.
SUMMARIES = ("costs", "gains", "lost")

_BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# 429 is the name of a status, and no figure.
_NAMES_OF_STATUSES = {429.0}
# Measured by others: the text says by whom.
_FROM_ELSEWHERE = {0.32, 1.45, 1.19}
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def pages() -> dict[Path, str]:
    """The text of every page of docs that has a marker."""
    texts = {path: path.read_text() for path in sorted(DOCS.glob("*.md"))}
    return {path: text for path, text in texts.items() if _BLOCK.search(text)}


def load(folder: Path = RESULTS, names: Iterable[str] = NAMES) -> dict[str, Result]:
    """The existing result files, by name."""
    paths = {name: folder / f"{name}.json" for name in names}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


@cache
def _macros() -> Any:
    """What bench/report.md.jinja defines."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        fmt=format,
        flow=lambda text: " ".join(text.split()) + "\n",
        at=lambda mapping, key: mapping[key],
        values=lambda mapping: list(mapping.values()),
        once=lambda items: list(dict.fromkeys(items)),
        difference=lambda mapping, above, below: mapping[above] - mapping[below],
        median=statistics.median,
    )
    environment.tests.update(calm=is_calm, of_redline=lambda run: run["limiter"][:7] == "redline")
    return environment.get_template(TEMPLATE.name).module


def blocks(results: Mapping[str, Result]) -> dict[str, str]:
    """The generated parts of the pages, by name."""
    macros = _macros()
    made = {
        name: f"{getattr(macros, name)(result)}\n{macros.source(result)}"
        for name, result in results.items()
    }
    made |= {name: "No record yet." for name in AWAITED if name not in results}
    made["losses"] = macros.losses(_losses(results))
    if results.keys() >= {*NAMES} - {*AWAITED}:
        earlier = len([*_slower(results["limits"])])
        for name in SUMMARIES:
            made[name] = getattr(macros, name)({**results, "earlier": earlier})
    made["campaigns"] = macros.campaigns(load(names=macros.CAMPAIGNS))
    return {name: re.sub(r"\n{3,}", "\n\n", text).strip() for name, text in made.items()}


def filled(page: str, results: Mapping[str, Result]) -> str:
    """The page with its generated parts as the results make them.

    Raises KeyError for a part whose result file is missing, if it is not awaited.
    """
    made = blocks(results)
    return _BLOCK.sub(lambda match: f"{match[1]}\n{made[match[2]]}\n\n{match[3]}", page)


def strange_numbers(page: str, results: Mapping[str, Result]) -> list[str]:
    """Numbers of the hand-written text that are no setting of any benchmark."""
    text = _CODE.sub("", _BLOCK.sub("", page))
    settings = {number for result in results.values() for number in _numbers(result["settings"])}
    known = settings | _NAMES_OF_STATUSES | _FROM_ELSEWHERE
    return [word for word in _NUMBER.findall(text) if float(word.replace(",", "")) not in known]


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(key)
            yield from _numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, str):
        yield from (float(word.replace(",", "")) for word in _NUMBER.findall(value))
    elif isinstance(value, (int, float)):
        yield float(value)


# summary key, words, whether less is better
_JUDGED = (
    ("end_s_median", "seconds from first send to last answer", True),
    ("rejected_median", "429s a run", True),
    ("startup_s_median", "seconds of start-up", True),
    ("cpu_s_per_1000", "CPU seconds per 1,000 calls", True),
    ("rows_per_s", "rows a second", False),
    ("peak_rss_mb", "MB of peak memory", True),
)


def _losses(results: Mapping[str, Result]) -> list[str]:
    """Every median that is worse for redline than for a peer."""
    names = _macros().CLIENTS
    groups: list[tuple[str, Mapping[str, Any]]] = []
    if "article" in results:
        groups.append(("the articles' comparison", results["article"]["summary"]))
    if "run" in results:
        groups += results["run"]["summary"].items()
    lines = []
    for group, clients in groups:
        own = clients.get("redline", {})
        for kind, peer in clients.items():
            for key, words, is_less_better in _JUDGED:
                if kind not in names or key not in own or key not in peer:
                    continue
                mine, theirs = own[key], peer[key]
                if mine != theirs and (mine > theirs) == is_less_better:
                    lines.append(f"{group}: {mine:,} {words}, against {theirs:,} of {names[kind]}")
    if "limits" in results:
        lines += _slower(results["limits"])
    return lines


def _slower(result: Result) -> Iterator[str]:
    """The settings in which a peer's median makespan is below redline's with the server's profile.

    A client that is rejected may finish earlier, so each makespan is followed by its 429s.
    """
    names = _macros().LIMITERS
    for title, limiters in result["summary"]["tables"].items():
        for server, redline in limiters["redline-matching"].items():
            own = redline["ratio"]
            earlier = [
                f"{found['ratio']:.3f} / {found['rejected']:g} of {names[name]}"
                for name, servers in limiters.items()
                if not name.startswith("redline") and (found := servers[server])["ratio"] < own
            ]
            if earlier:
                yield f"{title}, {server}: {own:.3f} / 0, against {', '.join(earlier)}"


def is_calm(run: Mapping[str, Any]) -> bool:
    """The machine added no more jitter of its own than the guard has to spare."""
    jitter_s = 0.05 if "jitter 0-50 ms" in run["table"] else 0.0
    return bool(run["real_jitter_s"] <= jitter_s + 0.005)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    results, texts = load(), pages()
    made = {path: filled(text, results) for path, text in texts.items()}
    if args.check:
        is_same = made == texts
        print("the pages and the files agree" if is_same else "run `python bench/report.py`")
        return 0 if is_same else 1
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
