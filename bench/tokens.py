"""Token limits, learned from the start: how much of them is used, and how often they are exceeded.

    python bench/tokens.py [--quick] [--seeds 1,2,3] [--rates 200k/60s,20k/60s]

Runs in virtual time, through redline's own backend (tests/support/token_world.py): calls always
wait, with prompts of 50 to 400 tokens, outputs that are lognormally distributed with a mean of 200,
max_tokens of 1,024, and a delay of 0 to 50 ms before the server's limiter. A run's sends do not
depend on the server if it rejects no call. So each run is judged by every server that its profile
is made for, in twelve phases of the server's clock: fixed windows from the first hit and on the
clock, moving windows, the sliding-window counter and a token bucket; and by what they may charge.

The bar: with a limit of 200k/60s, at least 95 % is used, and servers that charge on arrival reject
no call. The other limits are shown for comparison. One of a few dozen calls cannot be used to 95 %
with such outputs, because one output may take 5 % of it. One of 6 s, in which answers may take
longer than a window, is sometimes exceeded while the outputs are being learned. Rejections by
servers that count an output when it ends (`answered`) are shown, but are not part of the bar: with
predictable outputs, no room is kept free for it. Exits with status 1 if the bar is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from redline.limits import Rate, parse_rate
from support.pacing import SERVERS
from support.token_world import Found, Setting, Traffic, drive

USED = 0.95
BAR_RATE = "200k/60s"
RATES = (BAR_RATE, "600k/6s", "60k/6s", "20k/60s")
PHASES = 12
WINDOWS, QUICK_WINDOWS = {60.0: 6.5, 6.0: 12.5}, {60.0: 4.5, 6.0: 8.5}
# By Little's law 410 calls are in flight.
CONCURRENCY = {"600k/6s": 700}
# The mean time to an answer is 1.75 s each time.
TRAFFIC = {
    "uncertain outputs": Traffic(),
    "long answers take longer": Traffic(latency_s=(0.5, 0.5), per_token_s=0.00625),
    "predictable outputs": Traffic(shape=0.05, most_tokens=260),
}
# Servers that each profile is made for.
MADE_FOR = {
    "any": tuple(SERVERS),
    "fixed": ("fixed", "aligned", "moving"),
    "bucket": ("bucket",),
}
CHARGES = ("actual", "answered")


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    rate: str
    traffic: str
    profile: str
    charge: str = "actual"

    def setting(self, windows: float, seed: int) -> Setting:
        return Setting(
            "bucket" if self.profile == "bucket" else "moving",
            {"tokens": parse_rate(self.rate)},
            self.profile,
            self.charge,
            TRAFFIC[self.traffic],
            CONCURRENCY.get(self.rate, 64),
            windows,
            seed=seed,
        )


def cases(rates: Sequence[str]) -> list[Case]:
    """Every rate and traffic with every profile, and what is charged in advance."""
    found = [Case(r, t, p) for r in rates for t in TRAFFIC for p in MADE_FOR]
    return [*found, *(Case(r, "uncertain outputs", p, "reserved") for r in rates for p in MADE_FOR)]


def measure(case: Case, windows: float, seed: int) -> dict[str, Any]:
    """The figures of one run."""
    found = drive(case.setting(windows, seed))
    rate = parse_rate(case.rate)
    charges = ("reserved",) if case.charge == "reserved" else CHARGES
    rejected = {
        f"{kind}, {charge}": sum(
            found.rejections(SERVERS[kind](rate), charge, number / PHASES)
            for number in range(PHASES)
        )
        for kind in MADE_FOR[case.profile]
        for charge in charges
    }
    return {
        **asdict(case),
        "seed": seed,
        "calls": len(found.calls),
        "rejected_in_run": found.rejected,
        "rejected": rejected,
        "judged": PHASES * len(rejected) * len(found.calls),
        "used": round(_used(found, case, rate, 0.0), 4),
        "used_after_first": round(_used(found, case, rate, 1.0), 4),
    }


def _used(found: Found, case: Case, rate: Rate, after_windows: float) -> float:
    if case.charge == "reserved":
        # What counts is what is charged.
        for call in found.calls:
            call.output_tokens = call.most_tokens - call.input_tokens
    return found.used(after_windows=after_windows)


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line of each case: the least used by any seed, and all rejections."""
    lines = []
    for case in dict.fromkeys((r["rate"], r["traffic"], r["profile"], r["charge"]) for r in runs):
        own = [r for r in runs if (r["rate"], r["traffic"], r["profile"], r["charge"]) == case]
        by_charge = {
            charge: sum(
                count
                for run in own
                for server, count in run["rejected"].items()
                if server.endswith(charge)
            )
            for charge in (*CHARGES, "reserved")
        }
        used = min(run["used"] for run in own)
        is_bound = case[0] == BAR_RATE
        charged = by_charge["actual"] + by_charge["reserved"]
        lines.append(
            {
                **dict(zip(("rate", "traffic", "profile", "charge"), case, strict=True)),
                "used_min": used,
                "used_after_first_min": min(run["used_after_first"] for run in own),
                "rejected": by_charge,
                "judged": sum(run["judged"] for run in own),
                "is_kept": not is_bound or (not charged and used >= USED),
            }
        )
    return lines


def show(lines: Sequence[dict[str, Any]]) -> str:
    """The table."""
    shown = [
        f"{'limit':10}{'traffic':26}{'profile':9}{'charge':10}{'used':>7}{'after 1st':>11}"
        f"{'rejected':>10}{'answered':>10}{'of':>10}"
    ]
    for line in lines:
        rejected = line["rejected"]
        shown.append(
            f"{line['rate']:10}{line['traffic']:26}{line['profile']:9}{line['charge']:10}"
            f"{line['used_min']:7.1%}{line['used_after_first_min']:11.1%}"
            f"{rejected['actual'] + rejected['reserved']:10}{rejected['answered']:10}"
            f"{line['judged']:10,}{'' if line['is_kept'] else '  MISSED'}"
        )
    return "\n".join(shown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed and fewer windows")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--rates", default=",".join(RATES))
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")][: 1 if args.quick else None]
    windows = QUICK_WINDOWS if args.quick else WINDOWS
    settings = {
        "traffic": {name: asdict(traffic) for name, traffic in TRAFFIC.items()},
        "windows": {f"{window_s:g} s": count for window_s, count in windows.items()},
        "phases": PHASES,
        "jitter_s": Setting("moving", {"tokens": parse_rate(BAR_RATE)}).jitter_s,
        "bar": {"rate": BAR_RATE, "used": USED, "rejected": 0},
    }
    result = record.Record("tokens", settings, {"calls": seeds})
    runs = []
    for case in cases(args.rates.split(",")):
        of_case = [measure(case, windows[parse_rate(case.rate).window_s], seed) for seed in seeds]
        runs += of_case
        print(show(summarize(of_case)).splitlines()[-1], flush=True)
    lines = summarize(runs)
    path = result.write(args.results, {"lines": lines}, runs)
    print(show(lines), f"written: {path}", sep="\n")
    return 0 if all(line["is_kept"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
