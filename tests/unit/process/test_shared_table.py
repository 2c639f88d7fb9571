"""A table in real processes: alone with it in turn, and whole when one of them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from redline.errors import ConfigError
from redline.limits import Rate
from redline.process import SharedTable
from redline.serve.keys import SharedStore, Started, TenantLimits, TenantSettings

ADDING = """
import sys
from redline.process import SharedTable
table, times = SharedTable(int(sys.argv[1])), int(sys.argv[2])
at = table.region("sum", 1)
for _ in range(times):
    with table:
        table.words[at] += 1
"""
# As a tenant's windows do: reads, compares and changes several words.
TAKING = """
import sys, time
from redline.limits import Rate
from redline.process import SharedTable
from redline.serve.keys import SharedStore, Started, TenantLimits, TenantSettings
table = SharedTable(int(sys.argv[1]))
settings = TenantSettings(tokens=(Rate(1000, 1000.0),))
limits = TenantLimits("a", settings, store=SharedStore(table, int(sys.argv[2])))
print("ready", flush=True)
while True:
    found = limits.try_start(time.monotonic(), 5)
    assert isinstance(found, Started)
    found.cancel()
"""


def started(code: str, table: SharedTable, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(table.fd), *words],
        pass_fds=(table.fd,),
        stdout=subprocess.PIPE,
        text=True,
    )


def test_names_lead_to_the_same_words_in_every_process() -> None:
    table = SharedTable.make(2)
    other = SharedTable(table.fd)
    places = [table.region(f"r{number}", 3) for number in range(50)]
    assert [other.region(f"r{number}", 3) for number in range(50)] == places
    assert other.region("new", 1) == table.region("new", 1)
    assert len({*places}) == 50
    assert min(b - a for a, b in pairwise(places)) >= 3
    os.close(table.fd)


def test_only_a_number_of_processes_that_there_may_be_is_accepted() -> None:
    with pytest.raises(ConfigError):
        SharedTable.make(0)
    with pytest.raises(ConfigError):
        SharedTable.make(65)


def test_no_change_of_a_process_is_lost_to_another() -> None:
    table = SharedTable.make(3)
    running = [started(ADDING, table, "2000") for _ in range(3)]
    for process in running:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert table.words[table.region("sum", 1)] == 6000
    os.close(table.fd)


def test_what_a_lost_process_had_is_cleared_or_kept_by_kind() -> None:
    table = SharedTable.make(2)
    counts, amounts, plain = table.counts("c"), table.amounts("a"), table.region("p", 2)
    for own in (0, 1):
        table.words[counts + own] = 3 + own
        table.words[amounts + 1 + own] = 10 + own
        table.words[plain + own] = 7
    table.forget(0)
    assert [*table.words[counts : counts + 2]] == [0, 4]
    assert [*table.words[amounts : amounts + 3]] == [10, 0, 11]
    assert [*table.words[plain : plain + 2]] == [7, 7]
    os.close(table.fd)


def test_a_process_that_is_killed_leaves_the_lock_free_and_the_sums_right() -> None:
    table = SharedTable.make(2)
    settings = TenantSettings(tokens=(Rate(1000, 1000.0),))
    limits = TenantLimits("a", settings, store=SharedStore(table, 1))
    for number in range(4):
        process = started(TAKING, table, "0")
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.02 * number)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        table.forget(0)
        assert limits.in_flight == 0
    # At most one call of each is left that it had begun, and what it cancelled is free.
    now_s, left = time.monotonic(), 0
    while isinstance(limits.try_start(now_s, 1), Started):
        left += 1
    assert 1000 - 4 * 5 <= left <= 1000
    os.close(table.fd)
