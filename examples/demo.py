"""The main job, killed half-way and continued: `make demo`.

It labels examples/tickets.jsonl at a simulated endpoint, so it needs no key and costs nothing.
Takes about 20 seconds. Exit status 0 only if every claim that it prints was true.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
TICKETS = "examples/tickets.jsonl"
FOLDER = "demo-out"
LABELS = f"{FOLDER}/labels.jsonl"
PROMPT = "Classify as billing, shipping, technical or other: {{ text }}"
CONCURRENCY = 16
LIMIT_S = 50.0

_IS_COLOURED = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


class Failed(Exception):
    """A claim of the demo is not true."""


def say(text: str = "", *, style: str = "0") -> None:
    print(f"\033[{style}m{text}\033[0m" if _IS_COLOURED and text else text, flush=True)


def check(claim: str, is_true: bool) -> None:
    """Prints `claim` if it is true; raises Failed otherwise."""
    if not is_true:
        raise Failed(claim)
    say(f"  ok  {claim}", style="32")


def show(*words: str) -> list[str]:
    """Prints a command as a user types it; returns the words that run it with this Python."""
    say(f"$ {shlex.join(['redline', *words])}", style="1")
    return [sys.executable, "-m", "redline", *words]


def run_command(base_url: str) -> list[str]:
    return show(
        *("run", TICKETS, "--prompt", PROMPT, "--model", "demo"),
        *("--base-url", base_url, "--rps", "20", "-c", str(CONCURRENCY), "-o", LABELS),
    )


@contextmanager
def endpoint() -> Iterator[str]:
    """Starts a simulated endpoint that takes 20 requests a second, and yields its base URL."""
    command = show("sim", "--requests", "20/1s", "--latency", "0.2-0.6")
    server = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout is not None
    try:
        base_url = server.stdout.readline().strip()
        if not base_url:
            raise Failed("the simulated endpoint starts")
        say(base_url)
        yield base_url
    finally:
        server.kill()
        server.wait()


def requests_received(base_url: str) -> int:
    """Returns the requests that the endpoint has counted, once none of them is in flight.

    Raises Failed if some still are after LIMIT_S.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    ends_s = time.monotonic() + LIMIT_S
    while time.monotonic() < ends_s:
        with opener.open(base_url.removesuffix("/v1") + "/sim/stats", timeout=10) as reply:
            stats = json.load(reply)
        if stats["in_flight"] == 0:
            return int(stats["received"])
        time.sleep(0.02)
    raise Failed("the endpoint comes to rest")


def whole_lines(path: Path) -> bytes:
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def kill_half_way(command: list[str], labels: Path, rows: int) -> bytes:
    """Runs `command`, kills it once half of `rows` are saved, and returns the lines on disk.

    Raises Failed if the command ends first, or after LIMIT_S.
    """
    process = subprocess.Popen(command, cwd=ROOT)
    ends_s = time.monotonic() + LIMIT_S
    try:
        while whole_lines(labels).count(b"\n") < rows // 2:
            if process.poll() is not None or time.monotonic() > ends_s:
                raise Failed("half of the rows are saved before the run ends")
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return whole_lines(labels)


def demo() -> None:
    rows = (ROOT / TICKETS).read_bytes().count(b"\n")
    labels = ROOT / LABELS
    shutil.rmtree(ROOT / FOLDER, ignore_errors=True)
    labels.parent.mkdir()
    say("A simulated endpoint: 20 requests a second, answers after 0.2 to 0.6 s.")
    with endpoint() as base_url:
        say(f"\nThe main job: {rows} support tickets. It is killed half-way (kill -9).")
        kept = kill_half_way(run_command(base_url), labels, rows)
        done, asked = kept.count(b"\n"), requests_received(base_url)
        say("killed", style="31")
        say(f"{done} of {rows} rows are on disk; the endpoint has received {asked} requests.")

        say("\nThe same command again. It continues.")
        status = subprocess.run(
            run_command(base_url), cwd=ROOT, timeout=LIMIT_S, check=False
        ).returncode
        again = requests_received(base_url) - asked
    say("\nThe outcome:")
    check("the second run succeeded", status == 0)
    check(
        f"the {done} rows from before are unchanged, byte for byte",
        labels.read_bytes().startswith(kept),
    )
    check(
        f"none of them was asked again: {rows} - {done} = {again} further requests",
        again == rows - done,
    )
    check(
        f"{asked + again} requests for {rows} rows: only calls in flight at the kill were repeated",
        asked + again <= rows + CONCURRENCY,
    )
    verify = subprocess.run(
        show("verify", LABELS),
        cwd=ROOT,
        timeout=LIMIT_S,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    say(verify.stdout.strip(), style="1;32")
    if verify.returncode or verify.stdout.strip() != f"verify: {rows} of {rows}, each once":
        raise Failed("every row is in the results once")


def main() -> int:
    try:
        demo()
    except Failed as error:
        say(f"  not true: {error}", style="31")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
