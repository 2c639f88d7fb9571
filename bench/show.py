"""The memory that `redline show` and `redline compare` use: at most 200 MB for 1,000,000 rows.

    python bench/show.py [--rows 1000000] [--most-mb 200]

Two outputs of the same named rows are written, with graded answers of 30 words, and one failure per
hundred rows. The record is bench/results/show.json. The exit status is 0 within the bound, and 1
above it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import record

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
COMMANDS = (
    ("show", "a.jsonl"),
    ("show", "a.jsonl", "--sample", "5"),
    ("show", "a.jsonl", "--row", "r1"),
    ("compare", "a.jsonl", "b.jsonl"),
    ("compare", "a.jsonl", "b.jsonl", "-o", "page.html"),
)


def line(row: int, rng: random.Random) -> tuple[bytes, bool]:
    """The sealed line of a row, and whether it is a failure."""
    name = f"r{row}"
    fields: dict[str, Any] = {
        "v": 1,
        "hash": blake2b(f"custom_id:{name}".encode(), digest_size=8).hexdigest(),
        "custom_id": name,
        "row": row,
    }
    has_failed = rng.random() < 0.01
    if has_failed:
        error = {"kind": "server_failed", "message": "the server failed: HTTP 500", "status": 500}
        fields |= {"status": "exhausted", "error": error, "input": {"text": "x" * 100}}
    else:
        is_right = rng.random() < 0.6
        fields |= {
            "output": " ".join(rng.choices(WORDS, k=30)),
            "tool_calls": None,
            "finish_reason": "length" if rng.random() < 0.02 else "stop",
            "usage": {"prompt_tokens": 50, "completion_tokens": 40, "total_tokens": 90},
            "model": "gpt-4o-mini",
            "endpoint": "api",
            "attempts": 1,
            "latency_s": round(rng.lognormvariate(0, 0.5), 4),
            "correct": is_right,
            "strict": is_right,
            "verdict": "correct" if is_right else "wrong",
        }
    body = json.dumps(fields, separators=(",", ":"))[:-1]
    body += f',"row_hash":"{zlib.crc32(name.encode()) or 1:08x}"'
    return b'%b,"crc":"%08x"}\n' % (body.encode(), zlib.crc32(body.encode())), has_failed


def write_output(folder: Path, stem: str, rows: int, seed: int) -> None:
    """An output of so many rows and its failures."""
    rng = random.Random(seed)
    (folder / f"{stem}.redline").mkdir()
    manifest = {"rows": rows, "settings": {"model": "gpt-4o-mini", "prompt": stem}}
    (folder / f"{stem}.redline" / "manifest.json").write_text(json.dumps(manifest))
    results, failures = folder / f"{stem}.jsonl", folder / f"{stem}.failed.jsonl"
    with results.open("wb") as good, failures.open("wb") as bad:
        for row in range(1, rows + 1):
            data, has_failed = line(row, rng)
            (bad if has_failed else good).write(data)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--most-mb", type=float, default=200.0)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args(arguments)
    seeds = {stem: seed for seed, stem in enumerate("ab")}
    result = record.Record("show", {"rows": args.rows, "most_mb": args.most_mb}, seeds)
    result.versions.update(record.own_versions("msgspec"))
    raw = dict[str, dict[str, float]]()
    with record.scratch() as folder:
        for stem, seed in seeds.items():
            write_output(folder, stem, args.rows, seed)
        for command in COMMANDS:
            done = record.run_client([*record.REDLINE, *command], folder)
            title = " ".join(command)
            print(f"{done.peak_rss_mb:6.1f} MB {done.cpu_s:6.1f} s of CPU  {title}", flush=True)
            raw[title] = {"peak_mb": round(done.peak_rss_mb, 1), "cpu_s": round(done.cpu_s, 1)}
    peak_mb = max(one["peak_mb"] for one in raw.values())
    print(f"at most {peak_mb:.1f} MB of {args.most_mb:g} MB for {args.rows:,} rows")
    print(f"written: {result.write(args.results, {'peak_mb': peak_mb}, raw)}")
    return 0 if peak_mb <= args.most_mb else 1


if __name__ == "__main__":
    sys.exit(main())
