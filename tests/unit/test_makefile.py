"""Every target of the Makefile does something, and every script of bench/ can begin."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "Makefile").read_text("utf-8")
TARGETS = re.search(r"^\.PHONY: (.*)$", RULES, re.MULTILINE)


def test_each_target_is_written_once_and_explained() -> None:
    assert TARGETS is not None
    explained = Counter(re.findall(r"^([a-z-]+):[^=\n]*## ", RULES, re.MULTILINE))
    inner = {"check-style", "check-types", "check-fast"}
    assert explained == Counter(set(TARGETS[1].split()) - inner)


def test_every_program_that_tests_are_skipped_without_is_installed() -> None:
    listed = re.search(r"for program in (.*); do", RULES)
    assert listed is not None
    texts = [path.read_text("utf-8") for path in (ROOT / "tests").glob("*/*.py")]
    needed = {name for text in texts for name in re.findall(r'which\("([\w-]+)"\)', text)}
    # Any machine has the one; the other is of the package prometheus.
    assert needed - {"bash", "promtool"} <= set(listed[1].split())
    assert {"tmux", "chromium"} <= needed


@pytest.mark.parametrize("target", TARGETS[1].split() if TARGETS else [])
def test_each_target_has_something_to_do(target: str) -> None:
    words = ["make", "--dry-run", "--always-make", "--no-print-directory", target, "NAME=kills"]
    shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "Nothing to be done" not in shown
    assert shown.strip()


def begin_scripts() -> None:
    """Every campaign lists its parts, and imports all it needs for that."""
    os.chdir(ROOT)
    sys.path.insert(0, "bench")
    campaigns = importlib.import_module("campaign").CAMPAIGNS
    importlib.import_module("engine")
    assert sum(bool([*parts()]) for parts in campaigns.values()) == 17


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_the_longest_scripts_of_bench_can_begin() -> None:
    """The process is forked, as to import PyTorch in another one takes seconds."""
    process = multiprocessing.get_context("fork").Process(target=begin_scripts)
    process.start()
    process.join(100)
    process.kill()
    assert process.exitcode == 0
