"""The cost of watching a run: python bench/recorder.py [--pairs 10]

Each pair runs the same rows with everything on (the timeline of what binds, the live view on a
terminal and the metrics page) and with everything off: no view and no page, nothing is sampled, and
the attempts of a call are discarded. The two alternate, against one server, under both loads of
bench/run.py, with its rows and its limit that never binds. The cost of a run of fewer rows is
subtracted, to leave out what occurs once, such as the start of the page's server. Ten pairs take
about 30 minutes if the cores are idle. Exits with status 1 if the upper end of a one-sided 95 %
interval for the mean ratio of CPU seconds is above --most.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import record
import run
from versions import InFlight, compare, summarize

# Rows of the two runs, and runs of each in a pair. The median of seven turns scatters two thirds as
# much as their mean: a turn beside other work may cost twice as much. At 1,000 in flight, the
# ratios of ten pairs were between 0.96 and 1.19 with 12,000 rows; with 24,000 rows and seven turns,
# their standard deviation was 0.04.
SIZES = {64: (24_000, 2_000, 7), 1_000: (24_000, 4_000, 11)}
# Of bench/run.py.
LOADS = {
    name: InFlight(in_flight, latency_s, *SIZES[in_flight])
    for name, (in_flight, latency_s) in run.LOADS.items()
}
START = f"""
import sys
sys.path.insert(0, {str(record.ROOT / "src")!r})
sys.argv[0] = "redline"
from redline.cli import main
"""
# Takes out what records.
WITHOUT = """
from redline.job.work import sampler
from redline.timeline import Gatherer

begin = Gatherer.__init__

def without(self):
    begin(self)
    self.due = sys.maxsize

Gatherer.__init__ = without
# What has not begun has nothing to finish.
sampler.Sampler.start = lambda self, *parts: None
"""
# What each run has beside its rows and its load: with all of it, and without.
ON, OFF = ("--metrics-port", "0"), ("-q",)


class Variant(NamedTuple):
    """Runs with all of it on, or off, against a server with so many calls in flight."""

    is_on: bool
    url: str
    in_flight: int

    def cpu_s(self, rows: Path) -> float:
        """CPU seconds of one run over `rows`. Raises RuntimeError if a result is missing."""
        usual = run.command("redline", None, self.url, self.in_flight)
        words = [str(rows) if word == "rows.jsonl" else word for word in usual]
        code = f"{START}{'' if self.is_on else WITHOUT}main()"
        words = [sys.executable, "-c", code, *words[len(record.REDLINE) :]]
        words += ON if self.is_on else OFF
        with record.scratch() as folder:
            process = record.run_client(words, folder, on_terminal=self.is_on)
            written = (folder / "out.jsonl").read_bytes().count(b"\n")
        expected = rows.read_bytes().count(b"\n")
        if written != expected:
            raise RuntimeError(f"{written} of {expected} results were written")
        return process.cpu_s


def main() -> int:
    """The exit status: 0 if it costs no more than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--most", type=float, default=1.05, help="the bound that is allowed")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    settings = {"pairs": given.pairs, "most": given.most, "prompt_bytes": run.PROMPT_BYTES}
    settings |= {"on": f"{shlex.join(ON)}, on a terminal", "off": shlex.join(OFF)}
    settings |= {name: counts._asdict() for name, counts in LOADS.items()}
    kept = record.Record("recorder", settings, {"sim": 0})
    kept.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    summary, raw = dict[str, Any](), dict[str, Any]()
    for load, counts in LOADS.items():
        with (
            record.scratch() as folder,
            record.serving(record.sim("--latency", str(counts.latency_s))) as server,
        ):
            rows = [folder / f"{count}.jsonl" for count in (counts.many, counts.few)]
            for path, count in zip(rows, (counts.many, counts.few), strict=True):
                record.write_rows(path, count, run.PROMPT_BYTES)
            variants = [Variant(is_on, server.url, counts.count) for is_on in (False, True)]
            raw[load] = compare(variants, rows, counts, given.pairs)
        one = summary[load] = summarize(raw[load])
        print(
            f"{load}: {one['old_cpu_s_per_1000']:.4f} -> {one['new_cpu_s_per_1000']:.4f} "
            f"CPU s per 1,000 calls, median ratio {one['ratio']:.3f}, upper 95 % bound "
            f"{one['bound']:.3f} ({given.most:g} allowed)",
            flush=True,
        )
    print(f"written: {kept.write(given.results, summary, raw)}")
    return int(any(one["bound"] > given.most for one in summary.values()))


if __name__ == "__main__":
    sys.exit(main())
