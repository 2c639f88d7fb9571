"""`redline eval` on real questions and a real model's answers, through faults and a death."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.simulated import simulated

pytestmark = pytest.mark.real


def evaluation(*flags: str) -> list[str]:
    return [sys.executable, "-m", "redline", "eval", *flags]


def run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        evaluation(*flags), cwd=folder, capture_output=True, text=True, timeout=240
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def gsm8k(shared_data: Path) -> tuple[Path, Path]:
    folder = shared_data / "gsm8k"
    return folder / "test.jsonl", folder / "answers-175b-finetuning.jsonl"


@pytest.mark.slow
def test_a_real_models_answers_are_judged_as_their_publisher_did(
    gsm8k: tuple[Path, Path], tmp_path: Path
) -> None:
    questions, answers = gsm8k
    with simulated("--replay", str(answers)) as sim:
        told = run(tmp_path, "gsm8k", "--data", str(questions), "--base-url", sim.base_url,
                   "--model", "m", "--quiet")  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[-1] == "accuracy: 458/1319"
    right = [answer["is_correct"] for answer in lines(answers)]
    graded = sorted(lines(tmp_path / "gsm8k.results.jsonl"), key=lambda line: line["row"])
    assert [line["correct"] for line in graded] == right
    assert {line["verdict"] for line in graded} == {"correct", "wrong", "invalid"}


@pytest.mark.slow
def test_faults_and_a_death_half_way_change_no_score(
    gsm8k: tuple[Path, Path], tmp_path: Path
) -> None:
    questions, answers = gsm8k
    faults = ["--faults", "0.05", "--latency", "0.02"]
    with simulated("--replay", str(answers), *faults) as sim:
        flags = ["gsm8k", "--data", str(questions), "--base-url", sim.base_url, "--model", "m",
                 "--timeout", "2", "-o", "out.jsonl"]  # fmt: skip
        results = tmp_path / "out.jsonl"
        first = subprocess.Popen(
            evaluation(*flags), cwd=tmp_path, stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline_s = time.monotonic() + 120
        while first.poll() is None and time.monotonic() < deadline_s:
            if results.exists() and results.read_bytes().count(b"\n") > 400:
                break
            time.sleep(0.01)
        assert first.poll() is None, "it ended before it could be killed"
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        told = run(tmp_path, *flags)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[-1] == "accuracy: 458/1319"
    right = [answer["is_correct"] for answer in lines(answers)]
    graded = sorted(lines(results), key=lambda line: line["row"])
    assert [line["correct"] for line in graded] == right


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_a_task_of_ones_own_with_samples_and_shots(tmp_path: Path) -> None:
    # The simulated model repeats what it is asked, so what stands last in a prompt is its answer.
    rows = [{"word": word, "gold": gold} for word, gold in (("ja", "ja"), ("nein", "ja"))]
    data = write(tmp_path / "words.jsonl", rows)
    write(tmp_path / "shots.jsonl", [{"word": "oui", "gold": "oui"}] * 3)
    (tmp_path / "words.toml").write_text(
        'prompt = "Say {{ word }}"\ngold = "gold"\nmetric = "regex"\npattern = \'Say (\\w+)\'\n'
        'shots = 2\nshots_file = "shots.jsonl"\n[params]\nmax_tokens = 50\n'
    )
    with simulated() as sim:
        flags = ["--task", "words.toml", "--data", data.name, "--base-url", sim.base_url]
        flags += ["--model", "m", "--samples", "4", "--temperature", "1"]
        told = run(tmp_path, *flags)
        assert told.returncode == 0, told.stderr
        assert sim.stats()["received"] == 8
    assert told.stdout.splitlines()[-1] == "accuracy: 4/8"
    assert re.search(r"^pass@4 +50\.0%$", told.stdout, re.M)
    assert re.search(r"^majority +50\.0%  1 of 2$", told.stdout, re.M)
    graded = lines(tmp_path / "words.results.jsonl")
    assert sorted((line["row"], line["correct"]) for line in graded) == [
        *[(1, True)] * 4,
        *[(2, False)] * 4,
    ]
    verified = subprocess.run(
        [sys.executable, "-m", "redline", "verify", "words.results.jsonl"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert verified.stdout == "verify: 8 of 8, each once\n"
