"""eval, tag and synth with two endpoints: both answer, and the results say which."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.conftest import Cli, Told
from support.simulated import Simulated, simulated

Rows = Callable[..., str]
Pair = tuple[Simulated, Simulated]

COUNT = 12


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    """Slow enough that two calls at once are on both of them."""
    with simulated("--latency", "0.05") as one, simulated("--latency", "0.05") as two:
        yield one, two


def answered(cli: Cli, servers: Pair, *command: str) -> Told:
    """What a command comes to with both, of which each must have answered what the results say."""
    Path("redline.toml").write_text(
        "".join(
            f'[endpoints.{name}]\nbase_url = "{server.base_url}"\n'
            for name, server in zip("ab", servers, strict=True)
        )
    )
    before = [server.stats()["answered"] for server in servers]
    flags = ["--endpoint", "a", "--endpoint", "b", "--model", "m", "-c", "4", "-o", "out.jsonl"]
    told = cli(*command, *flags)
    assert told.status == 0, told.err
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert sorted(line["row"] for line in lines) == [*range(1, COUNT + 1)]
    found = Counter(line["endpoint"] for line in lines)
    after = [server.stats()["answered"] for server in servers]
    assert [found["a"], found["b"]] == [a - b for a, b in zip(after, before, strict=True)]
    assert min(found["a"], found["b"]) > COUNT // 6
    assert f"\nanswered by: a {found['a']}, b {found['b']}\n" in told.err
    return told


def test_an_evaluation_asks_both(cli: Cli, rows: Rows, servers: Pair) -> None:
    Path("task.toml").write_text(
        'prompt = "Say {{ said }}"\ngold = "gold"\nmetric = "regex"\npattern = \'Say (\\w+)\'\n'
    )
    data = rows(*({"said": f"yes{at}", "gold": f"yes{at % 9}"} for at in range(COUNT)))
    told = answered(cli, servers, "eval", "--task", "task.toml", "--data", data)
    assert told.out.splitlines()[-1] == f"accuracy: 9/{COUNT}"


def test_tagging_asks_both(cli: Cli, rows: Rows, servers: Pair) -> None:
    Path("labels.json").write_text('["bug", "question"]')
    given = rows(*({"text": f"Text {at}."} for at in range(COUNT)))
    told = answered(cli, servers, "tag", given, "--schema", "labels.json")
    assert f"tagged {COUNT}, failed 0" in told.out


def test_synthesis_asks_both(cli: Cli, servers: Pair) -> None:
    prompt = "Story {{ n }} is told once, of {{ topic }}."
    flags = ["--count", str(COUNT), "--prompt", prompt, "--vary", "topic=tea,rain"]
    told = answered(cli, servers, "synth", *flags)
    assert told.out.splitlines()[-1] == f"delivered: {COUNT}/{COUNT}"
