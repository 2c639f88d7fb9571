"""A million rows end to end: rate, CPU and memory, and how fast a half-finished run resumes.

    python bench/scale.py [--rows 1000000] [--concurrency 64] [--prompt-bytes 200]

`redline run` is killed with SIGKILL when half of the rows are in the results file, and started
again. The cost of a resume is the time from that start to the first request that the server
receives. The second run completes the job, `redline verify` checks the files, and `redline report`
writes a page of the job, whose own data is at most a megabyte. Resident memory is read twice a
second, as in memory.py. The server is a `redline sim`, which shares the machine.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memory
import msgspec
import record

MOST_MB = 200.0
MOST_RESUME_S = 5.0
MOST_REPORT_KB = 1000
PLOTLY = re.compile(r"<script>[^<]*plotly\.js.*?</script>", re.DOTALL)
EVERY_S = 0.5
_SOON_S = 0.02

Sample = dict[str, float]


def received(url: str) -> int:
    """Requests that the server has received so far."""
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/sim/stats", timeout=30) as answer:
        return int(msgspec.json.decode(answer.read())["received"])


class Client:
    """One `redline run` under watch: its rows, memory and CPU time."""

    def __init__(self, command: list[str], folder: Path, counter: memory.LineCounter) -> None:
        self._folder = folder
        self._counter = counter
        self.samples: list[Sample] = []
        self.begun_s = time.monotonic()
        with (folder / "stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                command, cwd=folder, env=record.clean_environment(), stderr=stderr
            )

    def watch(self, is_enough: Callable[[int], bool]) -> dict[str, float]:
        """Samples until so many rows are done or the process has ended; kills it then.

        Returns its wall and CPU seconds and the rows in the file.
        """
        try:
            while not self._has_ended():
                rows = self._counter.read()
                memory_mb = memory.resident_mb(self._process.pid)
                if memory_mb is not None:
                    at_s = round(time.monotonic() - self.begun_s, 2)
                    self.samples.append({"rows": rows, "rss_mb": round(memory_mb, 2), "at_s": at_s})
                if is_enough(rows):
                    self._kill()
                time.sleep(EVERY_S)
        finally:
            self._kill()
            _, status, usage = os.wait4(self._process.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError((self._folder / "stderr").read_text()[-4000:])
        return {
            "wall_s": round(time.monotonic() - self.begun_s, 2),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
            "rows_in_file": self._counter.read(),
        }

    def at_work_s(self, url: str, before: int) -> float:
        """Seconds from its start until the server receives a request of its own."""
        while received(url) <= before:
            if self._has_ended():
                raise RuntimeError((self._folder / "stderr").read_text()[-4000:])
            time.sleep(_SOON_S)
        return time.monotonic() - self.begun_s

    def _kill(self) -> None:
        """Not by Popen's own method, which would reap it."""
        os.kill(self._process.pid, signal.SIGKILL)

    def _has_ended(self) -> bool:
        """Without reaping it: wait4 tells its costs at the end."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None


def measure(args: argparse.Namespace, folder: Path, url: str) -> dict[str, Any]:
    """The raw figures of the run that is killed and of the one that goes on."""
    record.write_rows(folder / "rows.jsonl", args.rows, args.prompt_bytes)
    flags = f"--model sim --base-url {url} -c {args.concurrency} -o out.jsonl --requests 6m/60s"
    command = [*record.REDLINE, "run", "rows.jsonl", *flags.split()]
    counter = memory.LineCounter(folder / "out.jsonl")
    first = Client(command, folder, counter)
    killed = first.watch(lambda rows: rows >= args.rows // 2)
    print(
        f"killed with {killed['rows_in_file']:,} rows done after {killed['wall_s']} s", flush=True
    )
    before = received(url)
    second = Client(command, folder, counter)
    resume_s = second.at_work_s(url, before)
    print(f"at work again after {resume_s:.2f} s", flush=True)
    finished = second.watch(lambda rows: False)
    verify = [*record.REDLINE, "verify", "out.jsonl"]
    verified = record.run_client(verify, folder)
    report = [*record.REDLINE, "report", "out.jsonl", "-o", "page.html"]
    reported = record.run_client(report, folder)
    # All that the page has of the job, with its own style and script.
    page = PLOTLY.sub("", (folder / "page.html").read_text("utf-8"))
    return {
        "killed": killed,
        "finished": finished,
        "resume_s": round(resume_s, 2),
        "verify_s": round(verified.wall_s, 2),
        "report_s": round(reported.wall_s, 2),
        "report_kb": round(len(page.encode()) / 1000),
        "samples": {"killed": first.samples, "finished": second.samples},
    }


def summarize(raw: dict[str, Any], rows: int) -> dict[str, Any]:
    """What the record says of it."""
    killed, finished = raw["killed"], raw["finished"]
    first_rows, rest = killed["rows_in_file"], rows - killed["rows_in_file"]
    samples = raw["samples"]["killed"] + raw["samples"]["finished"]
    early = memory.at_rows(raw["samples"]["killed"], rows / 10)["rss_mb"]
    return {
        "rows_per_s": round(first_rows / killed["wall_s"]),
        "rows_per_s_resumed": round(rest / (finished["wall_s"] - raw["resume_s"])),
        "cpu_s_per_1000": round(1000 * killed["cpu_s"] / first_rows, 3),
        "rss_mb_at_a_tenth": round(early, 1),
        "peak_mb": round(max(sample["rss_mb"] for sample in samples), 1),
        "resume_s": raw["resume_s"],
        "rows_done_at_resume": first_rows,
        "verify_s": raw["verify_s"],
        "report_s": raw["report_s"],
        "report_kb": raw["report_kb"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--prompt-bytes", type=int, default=200)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    settings = {
        "rows": args.rows,
        "concurrency": args.concurrency,
        "prompt_bytes": args.prompt_bytes,
        "every_s": EVERY_S,
        "most_mb": MOST_MB,
        "most_resume_s": MOST_RESUME_S,
        "most_report_kb": MOST_REPORT_KB,
        "server": f"redline sim of {record.SIM_COMMIT}",
    }
    result = record.Record("scale", settings, {"sim": 0})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    with record.scratch() as folder, record.serving(record.sim()) as server:
        raw = measure(args, folder, server.url)
    summary = summarize(raw, args.rows)
    path = result.write(args.results, summary, raw)
    for name, value in summary.items():
        print(f"{name:20} {value:>12,}")
    print(f"written: {path}")
    within = (
        summary["peak_mb"] <= MOST_MB
        and summary["resume_s"] <= MOST_RESUME_S
        and summary["report_kb"] <= MOST_REPORT_KB
    )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
