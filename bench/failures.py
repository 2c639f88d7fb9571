"""A pool of real servers that fail: the effect on its calls, and what remains afterwards.

    python bench/failures.py [--parts faults,all,killed,keys,resumed,disturbed] [--calls 20000]

The servers are processes of `redline sim` on this machine.

faults: four servers that answer after 50 ms, with 64 calls in flight. One of them begins to fail,
while its health page, which the pool reads, still answers 200. The faults: HTTP 500, a reset, HTML
instead of an answer, silence (a call is given up after 5 s), a failure of one call in five, HTTP
429 without Retry-After, and answers that take ten times as long. The bars: at most 1 % of the first
attempts meet the fault, including those that test whether the server works again. Every call is
answered. The server has half of its share of the answers again within 30 s of its recovery. The
slow server's share of the calls is at most its share of the speed, and at least half of its share
of the squares of the speeds: p2c makes the calls in flight at a server proportional to its speed,
and the number of those that end in a second is proportional to its speed as well.

all: all four servers fail 30 % of the calls and work on 16 calls at once each, while the pool reads
their health pages. The bar: a pool with breakers answers at least 0.95 times as many calls per
second as one without, as the median of alternating pairs.

killed: `redline run` with four servers, one of which is killed (SIGKILL) under load and started
again on the same port. The bars: each row has one result, and the server answers again.

keys: four keys of one server, each limited to 20 requests in any second; the server asks one of
them to wait for 10 s during the run. The bars: at least 0.98 of what the limits allow is used; the
server rejects only requests that were already sent when the key was parked; no result is later than
the calls that waited with it explain. resumed: such a run is killed twice and resumed; no request
is rejected.

disturbed: 10,000 calls of one pool with random cancellations, deadlines, priorities and streams,
through servers that die, fail and park the key. The bar: no call, slot, grant, token, reservation,
retry, task or socket is left.

Exits with status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import record
import uvloop

sys.path.insert(0, str(record.ROOT / "tests"))

from support import disturbed_pool, failing_fleet, four_keys
from support.failing_fleet import LATENCY_S, MODES, SLOW, SLOWER, TIMEOUT_S
from support.sim_process import SimProcess, fleet_of

SERVERS = 4
AT_ONCE = 64
CALLS = 20_000
PAIRS = 5
ALL_FAIL = "500=0.3"
SLOTS = 16
PARKED_S = 10.0
KEY_ROWS = 6_000
DISTURBED = 10_000
SEED = 1
BARS = {"seen": 0.01, "back_s": 30.0, "throughput": 0.95, "used": 0.98, "least": 0.5}
# Rows that may wait together for the four keys: as many as are in flight in the run.
MOST_LATE = 220

Found = dict[str, Any]


def faults(calls: int) -> Found:
    """Each way to fail, with servers of its own."""
    found = {}
    for mode in MODES:
        with fleet_of(SERVERS, *failing_fleet.SERVER) as servers:
            playing = failing_fleet.through_fault(
                servers, mode, calls=calls, at_once=AT_ONCE, probe=True
            )
            met = uvloop.run(playing)
        is_seen_little = met["share_failed"] <= BARS["seen"]
        if mode == SLOW:
            fair, square = (1 / (1 + (SERVERS - 1) * times) for times in (SLOWER, SLOWER**2))
            is_seen_little = BARS["least"] * square <= met["share"] <= fair
        is_back = met["back_s"] is not None and met["back_s"] <= BARS["back_s"]
        met["is_kept"] = is_seen_little and is_back and not met["unanswered"]
        found[mode] = met
        print(f"  {mode:18} {met}", flush=True)
    return {"modes": found, "is_kept": all(met["is_kept"] for met in found.values())}


def all_fail(calls: int) -> Found:
    """Answers a second with breakers and without, in interleaved pairs."""
    flags = (*failing_fleet.SERVER, "--concurrency", str(SLOTS), "--faults", ALL_FAIL)
    pairs = []

    def per_s() -> float:
        with fleet_of(SERVERS, *flags) as servers:
            found = failing_fleet.answers_per_s(servers, calls=calls // 4, at_once=AT_ONCE)
            return round(uvloop.run(found), 1)

    for number in range(PAIRS):
        pair = {}
        for who in ("with", "without") if number % 2 else ("without", "with"):
            if who == "with":
                pair[who] = per_s()
            else:
                # No evidence is ever enough.
                with patch("redline.route.health.EVIDENCE", math.inf):
                    pair[who] = per_s()
        pairs.append(pair)
        print(f"  answers/s: {pair}", flush=True)
    ratio = statistics.median(pair["with"] / pair["without"] for pair in pairs)
    return {"pairs": pairs, "ratio": round(ratio, 3), "is_kept": ratio >= BARS["throughput"]}


def killed(calls: int) -> Found:
    """A run of which one server is killed and comes back."""
    with record.scratch() as folder, fleet_of(SERVERS, *failing_fleet.SERVER) as servers:
        rows = [json.dumps({"prompt": f"row {number}"}) + "\n" for number in range(calls)]
        (folder / "rows.jsonl").write_text("".join(rows))
        named = [word for one in servers for word in ("--endpoint", one.base_url)]
        command = [*record.REDLINE, "run", "rows.jsonl", "--model", "m", *named]
        command += ["-c", str(AT_ONCE), "-o", "out.jsonl", "--quiet"]
        process = subprocess.Popen(command, cwd=folder, env=record.clean_environment())
        victim = servers[-1]
        _until(lambda: victim.stats()["answered"] > calls // 20)
        before = victim.stats()["answered"]
        victim.kill()
        time.sleep(3)
        victim.start()
        began_s, back_s = time.monotonic(), None
        while process.poll() is None:
            if back_s is None and victim.stats()["answered"] > 20:
                back_s = round(time.monotonic() - began_s, 2)
            time.sleep(0.05)
        lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        counts = Counter(line["row"] for line in lines)
        after = victim.stats()["answered"]
    is_back = back_s is not None and back_s <= BARS["back_s"]
    is_whole = process.returncode == 0 and set(counts) == set(range(1, calls + 1))
    found = {
        "rows": calls,
        "missing": calls - len(counts),
        "twice": sum(count > 1 for count in counts.values()),
        "answered_before": before,
        "answered_after": after,
        "back_s": back_s,
    }
    print(f"  {found}", flush=True)
    return {**found, "is_kept": is_whole and is_back and not found["twice"]}


def keys() -> Found:
    """Four keys of one server, of which one is parked."""
    with record.scratch() as folder, SimProcess(*four_keys.SERVER) as server:
        found = four_keys.park_one(folder, server, rows=KEY_ROWS, after_s=10, for_s=PARKED_S)
    found.pop("said")
    is_used = found["used_of_nominal"] >= BARS["used"]
    is_free = not found["rejected"] and found["latest_place"] <= MOST_LATE
    print(f"  {found}", flush=True)
    return {**found, "is_kept": is_used and is_free}


def resumed() -> Found:
    """A run with four keys that is killed and goes on."""
    with record.scratch() as folder, SimProcess(*four_keys.SERVER) as server:
        found = four_keys.kill_and_resume(folder, server, rows=KEY_ROWS // 5, kills=2)
    print(f"  {found}", flush=True)
    return {**found, "is_kept": not found["rejected"]}


def disturbed(calls: int) -> Found:
    """What is left after one pool has been disturbed."""
    with fleet_of(disturbed_pool.SERVERS, *disturbed_pool.SERVER) as servers:
        run = uvloop.run(disturbed_pool.disturbed(servers, calls=calls, at_once=AT_ONCE, seed=SEED))
    print(f"  {run}", flush=True)
    return {"runs": [run], "is_kept": not run["left"]}


def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default="faults,all,killed,keys,resumed,disturbed")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            del os.environ[name]
    parts: dict[str, Callable[[], Found]] = {
        "faults": lambda: faults(args.calls),
        "all": lambda: all_fail(args.calls),
        "killed": lambda: killed(args.calls),
        "keys": keys,
        "resumed": resumed,
        "disturbed": lambda: disturbed(DISTURBED),
    }
    settings = {
        "servers": SERVERS,
        "at_once": AT_ONCE,
        "calls": args.calls,
        "latency_s": LATENCY_S,
        "timeout_s": TIMEOUT_S,
        "slower": SLOWER,
        "all_fail": 0.3,
        "slots": SLOTS,
        "pairs": PAIRS,
        "keys": four_keys.KEYS,
        "rate": four_keys.RATE,
        "parked_s": PARKED_S,
        "disturbed": DISTURBED,
        "bars": BARS,
    }
    versions = record.own_versions("msgspec", "uvloop")
    made = record.Record("failures", settings, seeds={"disturbed": SEED}, versions=versions)
    found: dict[str, Found] = {}
    for name in args.parts.split(","):
        print(name)
        found[name] = parts[name]()
        print(f"  {'kept' if found[name]['is_kept'] else 'NOT KEPT'}", flush=True)
    is_kept = all(one["is_kept"] for one in found.values())
    if set(found) == set(parts):
        summary = {name: one for name, one in found.items() if name != "disturbed"}
        summary["disturbed"] = {"left": sum(len(run["left"]) for run in found["disturbed"]["runs"])}
        summary["is_kept"] = is_kept
        print(made.write(args.out, summary, found))
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
