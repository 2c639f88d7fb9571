"""The main job on real data: every question and every message, through faults, each once."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from redline.job.outputs import verify
from redline.journal import Output
from support.simulated import simulated

REDLINE = (sys.executable, "-m", "redline")


def redline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*REDLINE, *arguments], cwd=cwd, capture_output=True, text=True, timeout=100, check=False
    )


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_gsm8k_question_gets_its_replayed_answer_through_five_percent_faults(
    shared_data: Path, tmp_path: Path
) -> None:
    questions = shared_data / "gsm8k" / "test.jsonl"
    answers = shared_data / "gsm8k" / "answers-175b-finetuning.jsonl"
    flags = ("--replay", str(answers), "--faults", "0.05", "--latency", "0.05-0.15", "--seed", "3")
    with simulated(*flags) as sim:
        done = redline(
            *("run", str(questions), "--prompt", "{{ question }}", "--model", "replayed"),
            *("-c", "64", "--timeout", "1", "--base-url", sim.base_url, "-o", "out.jsonl"),
            "--keep-input",
            cwd=tmp_path,
        )
        stats = sim.stats()
    assert done.returncode == 0, done.stderr
    results = lines(tmp_path / "out.jsonl")
    assert len(results) == 1319
    replayed = {line["question"]: line["answer"] for line in lines(answers)}
    assert all(line["output"] == replayed[line["input"]["question"]] for line in results)
    assert sorted(line["row"] for line in results) == list(range(1, 1320))
    assert not (tmp_path / "out.failed.jsonl").exists()
    assert str(verify(Output(path=tmp_path / "out.jsonl"))) == "verify: 1,319 of 1,319, each once"
    assert stats["most_in_flight"] == 64
    assert 0.04 <= stats["faults"] / stats["received"] <= 0.06
    assert stats["faults_by_kind"].keys() == {
        "429",
        "500",
        "503",
        "reset",
        "half",
        "notjson",
        "stall",
    }
    assert stats["answered"] == 1319
    assert stats["received"] == 1319 + stats["faults"]


def test_every_banking77_message_is_tagged_with_a_template(
    shared_data: Path, tmp_path: Path
) -> None:
    messages = shared_data / "banking77" / "test.csv"
    with simulated("--latency", "0.01") as sim:
        done = redline(
            *("run", str(messages), "--model", "m", "-c", "64", "--base-url", sim.base_url),
            *("--prompt", "Label: {{ category | replace('_', ' ') }}. Text: {{ text | trim }}"),
            *("-o", "tagged.jsonl", "--keep-input", "--ordered"),
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    results = lines(tmp_path / "tagged.jsonl")
    with messages.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [line["input"] for line in results] == rows
    for line, row in zip(results, rows, strict=True):
        label = row["category"].replace("_", " ")
        assert line["output"].startswith(f"You said: Label: {label}. Text: "[:60])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst", "csv", "parquet"])
def test_every_kind_of_file_gives_the_same_results(suffix: str, tmp_path: Path) -> None:
    rows = [{"text": f"message {number}, with a comma"} for number in range(40)]
    path = tmp_path / f"in.{suffix}"
    _write(path, rows)
    with simulated() as sim:
        done = redline(
            *("run", str(path), "--prompt", "{{ text }}", "--model", "m"),
            *("--base-url", sim.base_url, "-o", "out.jsonl", "--ordered"),
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    outputs = [line["output"] for line in lines(tmp_path / "out.jsonl")]
    assert outputs == [f"You said: {row['text']}" for row in rows]


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    match path.name.partition(".")[2]:
        case "jsonl":
            path.write_text(text)
        case "jsonl.gz":
            import gzip

            path.write_bytes(gzip.compress(text.encode()))
        case "jsonl.zst":
            zstandard = pytest.importorskip("zstandard")
            path.write_bytes(zstandard.compress(text.encode()))
        case "csv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, ["text"])
                writer.writeheader()
                writer.writerows(rows)
        case "parquet":
            arrow = pytest.importorskip("pyarrow")
            parquet = pytest.importorskip("pyarrow.parquet")
            parquet.write_table(arrow.Table.from_pylist(rows), path)
