"""What it costs to record a run: python bench/recorder.py [--pairs 10]

Each pair runs the same rows as they are run, with the timeline of what binds and the figures of the
screen, and with both taken out by a `sitecustomize`: nothing is sampled, and the attempts of a call
are thrown away. In turn, against one server, under the loads of bench/versions.py, with a limit
that never binds. Status 1 if the upper end of a one-sided 95 % interval for the mean ratio of CPU
seconds is above --most.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import record
from versions import IN_FLIGHT, LOADS, Variant, compare, summarize, write_rows

LOAD = "with --rps"
OFF = """
import sys
from redline.job.work import sampler
from redline.timeline import Gatherer

begin = Gatherer.__init__

def without(self):
    begin(self)
    self.due = sys.maxsize

async def nothing(self, *parts):
    self._cpu.close()

Gatherer.__init__ = without
sampler.Sampler.start = lambda self, *parts: None
sampler.Sampler.finish = nothing
"""


def main() -> int:
    """The exit status: 0 if it costs no more than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--most", type=float, default=1.05, help="the bound that is allowed")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    settings = {"pairs": given.pairs, "load": LOAD, "most": given.most}
    settings |= {name: counts._asdict() for name, counts in IN_FLIGHT.items()}
    kept = record.Record("recorder", settings, {"sim": 0})
    kept.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    summary, raw = dict[str, Any](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as name:
        folder, source = Path(name), record.ROOT / "src"
        (folder / "sitecustomize.py").write_text(OFF)
        # As a path of two folders: the first has what takes the recorder out.
        sources = [Path(f"{folder}{os.pathsep}{source}"), source]
        for in_flight, counts in IN_FLIGHT.items():
            rows = [write_rows(folder / f"{n}.jsonl", n) for n in (counts.many, counts.few)]
            with record.serving(record.sim("--latency", str(counts.latency_s))) as server:
                flags = [*LOADS[LOAD], "-c", str(counts.count), "--base-url", server.url]
                variants = [Variant(source, flags) for source in sources]
                raw[in_flight] = compare(variants, rows, counts, given.pairs)
            one = summary[in_flight] = summarize(raw[in_flight])
            print(
                f"{in_flight}: {one['old_cpu_s_per_1000']:.4f} -> {one['new_cpu_s_per_1000']:.4f} "
                f"CPU s per 1,000 calls, median ratio {one['ratio']:.3f}, upper 95 % bound "
                f"{one['bound']:.3f} ({given.most:g} allowed)",
                flush=True,
            )
    print(f"written: {kept.write(given.results, summary, raw)}")
    return int(any(one["bound"] > given.most for one in summary.values()))


if __name__ == "__main__":
    sys.exit(main())
