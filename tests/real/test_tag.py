"""`redline tag` on real messages, with a model that errs in every way, through a death and after.

Every row ends with a valid tag, or in the failures with its reason; none is lost, none is wrong in
silence, and the score is that of scikit-learn on the same file.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from support.tagging_server import MANNERS, USAGE, TaggingModel, tagging

pytestmark = pytest.mark.real

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
}


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "redline", *flags]


def redline(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*flags), cwd=folder, capture_output=True, text=True, timeout=110, env=ENVIRONMENT
    )


def lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def last_lines(text: str) -> dict[str, str]:
    return dict(line.split(": ") for line in text.rpartition("\n\n")[2].splitlines())


class Biased(TaggingModel):
    """Right for nine texts of ten: what is gold is told to it."""

    def __init__(self, labels: list[str], gold: dict[str, str]) -> None:
        super().__init__(labels)
        self._gold = gold

    def label(self, text: str) -> str:
        return self._gold[text] if self._draw(text, "right") % 10 else super().label(text)


def kill_half_way(folder: Path, flags: list[str], results: Path, rows: int) -> None:
    """Kills the command once `rows` lines are there."""
    first = subprocess.Popen(
        command(*flags), cwd=folder, env=ENVIRONMENT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline_s = time.monotonic() + 60
    while first.poll() is None and time.monotonic() < deadline_s:
        if results.exists() and results.read_bytes().count(b"\n") > rows:
            break
        time.sleep(0.01)
    assert first.poll() is None, "it ended before it could be killed"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()


@pytest.fixture
def messages(shared_data: Path) -> Path:
    return shared_data / "banking77"


@pytest.mark.slow
def test_banking77_is_tagged_through_every_kind_of_bad_answer_and_a_death(
    messages: Path, tmp_path: Path
) -> None:
    with (messages / "test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    labels = json.loads((messages / "categories.json").read_text("utf-8"))
    model = Biased(labels, {row["text"]: row["category"] for row in rows})
    results = tmp_path / "tagged.jsonl"
    flags = ["tag", str(messages / "test.csv"), "--schema", str(messages / "categories.json")]
    flags += ["--model", "m", "-c", "64", "--gold", "category", "-o", "tagged.jsonl"]
    with tagging(model) as base_url:
        flags += ["--base-url", base_url]
        kill_half_way(tmp_path, flags, results, 800)
        told = redline(tmp_path, *flags, "--export", "tagged.parquet")
    assert told.returncode == 1, told.stderr
    # Those that were on their way until the first answer without it, in both runs.
    assert 1 <= model.refused_formats < 600

    # Every row is valid or has failed with its reason, as its text decides.
    succeeded, failed = lines(results), lines(tmp_path / "tagged.failed.jsonl")
    ends = {line["row"]: line for line in (*succeeded, *failed)}
    assert sorted(ends) == list(range(1, len(rows) + 1))
    assert len(succeeded) + len(failed) == len(rows) == 3080
    for number, row in enumerate(rows, start=1):
        expected, line = model.expected(row["text"]), ends[number]
        assert line["input"] == row
        assert line["reasks"] == expected.reasks
        if expected.label is None:
            assert line["error"]["message"].startswith(expected.reason), row
        else:
            assert line["output"] == {"label": expected.label}, row
            asks = 1 + expected.reasks
            assert line["usage"] == {name: asks * count for name, count in USAGE.items()}
    manners = Counter(model.manner(row["text"]) for row in rows)
    assert manners.keys() >= MANNERS.keys(), "a manner of answering never occurred"
    assert len(failed) == sum(manners[name] for name in ("stubborn", "refusal", "nothing"))

    # The score, and the numbers in the summary.
    gold = [line["input"]["category"] for line in succeeded]
    said = [line["output"]["label"] for line in succeeded]
    right = sum(one == other for one, other in zip(gold, said, strict=True))
    f1 = f1_score(gold, said, average="macro", zero_division=0.0)
    assert last_lines(told.stdout) == {
        "tagged": str(len(succeeded)),
        "failed": str(len(failed)),
        "reasks": str(sum(model.expected(row["text"]).reasks for row in rows)),
        "without_gold": "0",
        "macro_f1": f"{f1:.6f}",
        "accuracy": f"{right}/{len(succeeded)}",
    }
    assert right / len(succeeded) == accuracy_score(gold, said)
    with (tmp_path / "tagged.confusion.csv").open(encoding="utf-8", newline="") as file:
        header, *matrix = list(csv.reader(file))
    names = sorted({*gold, *said})
    assert header[1:] == [line[0] for line in matrix] == names
    assert [list(map(int, line[1:])) for line in matrix] == (
        confusion_matrix(gold, said, labels=names).tolist()
    )
    assert "the endpoint does not accept response_format" in told.stdout

    # The table has the rows that have a tag, and says which it has not.
    table = pyarrow.parquet.read_table(tmp_path / "tagged.parquet").to_pylist()
    assert table == [{**line["input"], **line["output"]} for line in succeeded]
    left_out = f"{len(succeeded):,} rows; without the {len(failed):,} that failed"
    assert f"table: tagged.parquet, {left_out}" in told.stdout
    verified = redline(tmp_path, "verify", "tagged.jsonl")
    assert verified.stdout == (
        f"verify: 3,080 of 3,080, each once; {len(failed)} of them as failures\n"
    )


def few(folder: Path, model: TaggingModel, manners: dict[str, int]) -> list[str]:
    """Texts that are answered so, as many of each as is said, in in.csv; and labels.json."""
    texts: list[str] = []
    left, number = Counter(manners), 0
    while left.total():
        number += 1
        text = f"message {number}"
        if left[model.manner(text)] > 0:
            left[model.manner(text)] -= 1
            texts.append(text)
    (folder / "in.csv").write_text("text\n" + "".join(f"{text}\n" for text in texts))
    (folder / "labels.json").write_text(json.dumps(model.labels))
    return texts


def test_every_ask_of_a_row_is_charged_to_the_budget(tmp_path: Path) -> None:
    model = TaggingModel(["a", "b"])
    texts = few(tmp_path, model, {"plain": 5, "twice": 3, "stubborn": 2, "wrong label": 4})
    asks = sum(1 + model.expected(text).reasks for text in texts)
    assert asks == 5 + 9 + 6 + 8
    with tagging(model) as base_url:
        told = redline(
            *(tmp_path, "tag", "in.csv", "--schema", "labels.json", "--base-url", base_url),
            *("--model", "m", "--response-format", "never", "--budget-tokens", "10m"),
            *("--max-tokens", "50", "-o", "tagged.jsonl", "-c", "2"),
        )
    assert told.returncode == 1, told.stderr
    spent = re.search(r"([\d,]+) of 10,000,000 tokens", told.stderr)
    assert spent is not None, told.stderr
    assert int(spent[1].replace(",", "")) == 110 * asks == 110 * model.asked
    assert last_lines(told.stdout)["reasks"] == str(asks - len(texts))


def test_what_a_row_cost_is_in_the_summary_where_the_price_is_known(tmp_path: Path) -> None:
    model = TaggingModel(["a", "b"])
    texts = few(tmp_path, model, {"plain": 2, "stubborn": 2, "wrong label": 2})
    asks = sum(1 + model.expected(text).reasks for text in texts)
    prices = '[prices."m"]\ninput = 1000\noutput = 0\n'
    (tmp_path / "redline.toml").write_text(prices)
    with tagging(model) as base_url:
        told = redline(
            *(tmp_path, "tag", "in.csv", "--schema", "labels.json", "--base-url", base_url),
            *("--model", "m", "--response-format", "never", "-o", "tagged.jsonl"),
        )
    assert told.returncode == 1, told.stderr
    # 100 tokens at 1,000 dollars a million, for each ask.
    assert f"${asks * 0.1:.2f}" in told.stderr, told.stderr


def test_more_reasks_mend_what_failed_without_asking_the_others_again(tmp_path: Path) -> None:
    model = TaggingModel(["a", "b"])
    texts = few(tmp_path, model, {"plain": 3, "twice": 2, "stubborn": 1})
    flags = ["tag", "in.csv", "--schema", "labels.json", "--model", "m", "-o", "tagged.jsonl"]
    flags += ["--response-format", "never", "-c", "1"]
    with tagging(model) as base_url:
        flags += ["--base-url", base_url]
        told = redline(tmp_path, *flags, "--reasks", "1")
        assert (told.returncode, model.asked) == (1, 3 + 2 * 2 + 2)
        assert last_lines(told.stdout) == {"tagged": "3", "failed": "3", "reasks": "3"}
        told = redline(tmp_path, *flags, "--reasks", "2", "--retry-failed")
        assert (told.returncode, model.asked) == (1, 9 + 2 * 3 + 3)
    assert last_lines(told.stdout) == {"tagged": "5", "failed": "1", "reasks": "6"}
    assert len(lines(tmp_path / "tagged.jsonl")) == len(texts) - 1


def test_a_row_that_is_interrupted_between_its_asks_is_unfinished(tmp_path: Path) -> None:
    model = TaggingModel(["a", "b"])
    model.latency_s = 0.1
    few(tmp_path, model, {"stubborn": 30})
    flags = ["tag", "in.csv", "--schema", "labels.json", "--model", "m", "-o", "tagged.jsonl"]
    flags += ["--response-format", "never", "-c", "6"]
    with tagging(model) as base_url:
        flags += ["--base-url", base_url]
        first = subprocess.Popen(
            command(*flags), cwd=tmp_path, env=ENVIRONMENT, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        deadline_s = time.monotonic() + 60
        while model.asked < 10 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        first.send_signal(signal.SIGINT)
        _, told = first.communicate(timeout=60)
        assert first.returncode == 130, told
        interrupted = lines(tmp_path / "tagged.failed.jsonl")
        last = redline(tmp_path, *flags)
    # Whoever was asked again, or would have been, has no outcome yet.
    assert len(interrupted) < 30
    assert all(line["reasks"] == 2 for line in interrupted)
    assert last_lines(last.stdout) == {"tagged": "0", "failed": "30", "reasks": "60"}
