"""A consumer whose machine loses power at one fsync of its results: stream_worker.py URL OUT N.

N: which fsync, counted from the one that opens the file; 0 for none. What no fsync has covered is
lost. A fourth word `early` changes the journal: it acknowledges what it takes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

from broken_parts import acknowledges_early

import redline
from redline.job.outputs import resume
from redline.journal import Journal


def lose_power_at(number: int, output: str) -> None:
    """The process dies at the fsync of this number, after whatever did not wait for it."""
    real = os.fsync
    seen = synced = 0

    def fsync(fd: int) -> None:
        nonlocal seen, synced
        if os.readlink(f"/proc/self/fd/{fd}") != os.path.realpath(output):
            real(fd)
            return
        seen += 1
        if seen == number:
            time.sleep(0.3)
            os.truncate(output, synced)
            os.kill(os.getpid(), signal.SIGKILL)
        size = os.fstat(fd).st_size
        real(fd)
        synced = size

    os.fsync = fsync


async def answer(row: dict[str, Any]) -> str:
    await asyncio.sleep(0.02)
    return str(row["text"])


def main(url: str, output: str, number: str, *changes: str) -> None:
    lose_power_at(int(number), output)
    if changes == ("early",):
        resume.Journal = acknowledges_early(Journal)
    report = redline.run(url, call=answer, output=output, concurrency=4, until_empty=True)
    sys.exit(0 if report.is_complete else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
