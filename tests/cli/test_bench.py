"""`redline bench`: what it says before, what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.scripted import Answer, scripted
from support.simulated import simulated
from support.terminal import OnTerminal

Cli = Callable[..., Any]

HANDLERS = """
import time

import redline

calls = []


async def answer(row):
    calls.append(row)
    return {"usage": {"prompt_tokens": 2, "completion_tokens": 3}}


def plain(row):
    return row["prompt"]


def batched(rows):
    return [row["prompt"] for row in rows]


def pieces(row):
    yield row["prompt"]


async def gives_up(row):
    raise ValueError("odd")


async def fails(row):
    if int(row["n"]) % 2:
        raise ValueError("odd")


number = 5
pool = redline.Pool(["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"])
"""


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of one's own in the current folder."""
    Path("mine.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def test_it_says_what_it_will_send_and_prints_figures(cli: Cli) -> None:
    told = cli("bench", "sim", "--limit", "30", "-c", "3", "--max-tokens", "4", "-q")
    assert (told.status, told.err) == (0, "")
    told = cli("bench", "sim", "--limit", "30", "-c", "3", "--max-tokens", "4")
    assert told.status == 0
    assert told.err.splitlines() == [
        "sim: closed loop of 3, for 1 m 00 s",
        "  synthetic prompts of about 128 tokens, answers of at most 4",
        "  at most 30 requests; sim runs in this process, so the times include its work",
    ]
    assert re.match(
        r"requests    [\d,.]+( ± \S+)? requests/s: 30 succeeded, 0 failed in ", told.out
    )
    for name in ("tokens ", "in flight ", "latency ", "first token ", "between tokens ", "p99"):
        assert name in told.out


@pytest.mark.slow
def test_progress_on_a_terminal_is_one_line_that_is_gone_at_the_end() -> None:
    command = [sys.executable, "-m", "redline", "bench", "sim", "--duration", "2s", "-c", "1"]
    with OnTerminal(command, columns=60) as shown:
        assert shown.end() == 0
    progress = re.compile(r"[\d.]+ s of 2\.0 s: [\d,]+ answered, 1 in flight")
    drawn = [line for frame in shown.frames for line in frame if progress.fullmatch(line)]
    assert drawn
    assert all(sum(map(bool, map(progress.fullmatch, frame))) <= 1 for frame in shown.frames)
    assert not any(map(progress.fullmatch, shown.screen.lines))


def test_a_name_with_hidden_characters_is_whole_in_json(cli: Cli) -> None:
    Path("a\u200bb.jsonl").write_text('{"prompt": "a"}\n')
    told = cli("bench", "sim", "--limit", "2", "--rows", "a\u200bb.jsonl", "--json", "-q")
    assert "\u200b" not in told.out
    assert "a\u200bb.jsonl" in json.loads(told.out)["asked"]


def test_figures_are_json_and_saved(cli: Cli) -> None:
    told = cli("bench", "sim", "--limit", "20", "--json", "-o", "f.json", "--slo", "latency<9s")
    found = json.loads(told.out)
    assert json.loads(Path("f.json").read_text()) == found
    assert found["figures"]["succeeded"] == 20
    assert found["figures"]["goodput"]["share"] == 1.0
    assert found["figures"]["tokens_per_s"] > 0
    # The same command replaces them; anything else is kept.
    assert cli("bench", "sim", "--limit", "5", "-o", "f.json").status == 0
    Path("rows.jsonl").write_text('{"prompt":"x"}\n')
    told = cli("bench", "sim", "--limit", "5", "-o", "rows.jsonl")
    assert told.status == 2
    assert "rows.jsonl exists and is not a figures file that redline wrote" in told.err
    assert Path("rows.jsonl").read_text() == '{"prompt":"x"}\n'


@pytest.mark.usefixtures("handlers")
def test_functions_are_measured_on_rows(cli: Cli) -> None:
    Path("rows.csv").write_text("n,prompt\n1,a\n2,b\n")
    told = cli("bench", "mine:answer", "--rows", "rows.csv", "--limit", "5")
    assert told.status == 0
    assert "2 rows of rows.csv in turn" in told.err
    assert [row["n"] for row in sys.modules["mine"].calls] == ["1", "2", "1", "2", "1"]
    assert cli("bench", "mine:plain", "--limit", "5").status == 0
    told = cli("bench", "mine:batched", "--batch-size", "4", "-c", "1", "--limit", "10", "--json")
    assert json.loads(told.out)["figures"]["batch_efficiency"] == pytest.approx(10 / 12)


@pytest.mark.usefixtures("handlers")
def test_a_rate_for_a_function_of_lists_is_of_requests(cli: Cli) -> None:
    flags = ("--batch-size", "8", "--constant", "20", "--duration", "1s", "--json")
    told = cli("bench", "mine:batched", *flags)
    assert "mine:batched: 20 requests/s, constant rate" in told.err
    assert "about 20 requests" in told.err
    assert json.loads(told.out)["figures"]["succeeded"] == 20


@pytest.mark.usefixtures("handlers")
def test_failures_are_counted_by_type_with_an_example(cli: Cli) -> None:
    Path("rows.csv").write_text("n\n1\n2\n")
    told = cli("bench", "mine:fails", "--rows", "rows.csv", "--limit", "10", "-c", "1")
    assert told.status == 1
    assert "5 succeeded, 5 failed" in told.out
    assert "failed: 5 ValueError, such as: ValueError: odd\n" in told.out


@pytest.mark.usefixtures("handlers")
def test_a_load_whose_requests_all_fail_gets_no_hints_for_other_commands(cli: Cli) -> None:
    def rejected(target: str) -> str:
        told = cli("bench", target, "--model", "m", "--limit", "3", "-q")
        assert told.status == 2
        return str(told.err)

    with scripted(lambda asked: Answer(400, {"error": {"message": "no"}})) as server:
        place = server.base_url.removeprefix("http://").removesuffix("/v1")
        failed = "error: no request succeeded; 3 failed, most often with"
        assert rejected(server.base_url) == (
            f"{failed}: the endpoint rejected the request: HTTP 400: no (endpoint {place})\n"
            f"where: {place}\n"
        )
    assert rejected("http://127.0.0.1:9/v1") == (
        f"{failed}: no connection: 127.0.0.1:9: Connection refused (endpoint 127.0.0.1:9)\n"
        "where: 127.0.0.1:9\n"
    )
    told = cli("bench", "mine:gives_up", "--limit", "3", "-q")
    assert told.err == f"{failed}: ValueError: odd\nwhere: mine:gives_up\n"


def test_a_recorded_trace_is_replayed_with_its_sizes(cli: Cli) -> None:
    Path("rows.jsonl").write_text("".join(f'{{"prompt":"{"abcd" * n}"}}\n' for n in range(1, 21)))
    made = ("--endpoint", "sim", "--rps", "20", "--max-tokens", "3", "--trace", "t")
    assert cli("run", "rows.jsonl", *made, "-o", "o.jsonl").status == 0
    told = cli("bench", "sim", "--replay", "t", "--json")
    figures = json.loads(told.out)["figures"]
    assert figures["succeeded"] == 20
    assert "recorded arrivals" in figures["load"]
    assert "at most 20 requests" in told.err
    # 20 requests at 20/s, and the second after the last of them.
    assert figures["seconds"] == pytest.approx(0.95, abs=0.3)
    assert figures["requests_per_s"] < 30
    assert cli("bench", "sim", "--replay", "t", "--limit", "3").status == 0


def test_the_knee_is_named(cli: Cli) -> None:
    with simulated("--latency", "0.05", "--concurrency", "2") as sim:
        flags = ("--duration", "1s", "--find-concurrency", "-c", "8", "--max-tokens", "2")
        told = cli("bench", sim.base_url, "--model", "m", *flags, "-o", "k.json")
    assert told.status == 0
    assert "closed loops of 1, 2, 4, ... at most 8, for 1.0 s each" in told.err
    found = json.loads(Path("k.json").read_text())
    knee, levels = found["knee"], found["levels"]
    assert [one["concurrency"] for one in levels] == [1, 2, 4, 8][: len(levels)]
    enough = 0.95 * max(one["requests_per_s"] for one in levels)
    least = next(one["concurrency"] for one in levels if one["requests_per_s"] >= enough)
    assert knee["concurrency"] == least
    assert f"knee: {least} in flight, " in told.out
    rows = told.out.splitlines()[1 : 1 + len(levels)]
    assert [row.split()[0] for row in rows] == [str(one["concurrency"]) for one in levels]


def test_a_single_level_is_said_to_show_no_knee(cli: Cli) -> None:
    told = cli("bench", "sim", "--find-concurrency", "--limit", "3")
    assert told.status == 0
    assert "note: only this level was measured" in told.out


@pytest.mark.parametrize("load", [("-c", "4"), ("--constant", "10")])
def test_what_limits_hold_back_is_dropped_at_the_end(cli: Cli, load: tuple[str, ...]) -> None:
    flags = ("--rps", "1", "--duration", "2s", "--max-tokens", "2", "--no-stream")
    begun_s = time.monotonic()
    told = cli("bench", "sim", *flags, *load)
    assert time.monotonic() - begun_s < 6
    assert told.status == 0
    assert " 0 failed" in told.out
    assert "dropped before the answer\n" in told.out
    in_flight = re.search(r"^in flight +([\d.]+) on average$", told.out, re.M)
    assert in_flight is not None
    assert float(in_flight[1]) < 1


def test_429s_are_not_called_limits_of_this_client(cli: Cli) -> None:
    with simulated("--requests", "5/1s", "--latency", "0.05") as sim:
        told = cli("bench", sim.base_url, "--model", "m", "--duration", "3s", "--constant", "20")
    assert "failed: " in told.out
    assert "limits of this client" not in told.out
    assert "note: 429s of the target held requests back, typically " in told.out


def test_limits_and_budgets_hold(cli: Cli) -> None:
    with simulated("--requests", "5/1s") as sim:
        flags = ("--model", "gpt-4o-mini", "--duration", "2s", "--max-tokens", "2")
        told = cli("bench", sim.base_url, *flags, "--rps", "5")
        assert "0 failed" in told.out
        assert "note: limits of this client held requests back" in told.out
        assert sim.stats()["rejected"] == 0
        before = sim.stats()["received"]
        # A load knows nothing of what the one before has just sent.
        time.sleep(1.2)
        told = cli("bench", sim.base_url, *flags, "--rps", "5", "--budget", "0.00015usd", "--json")
        assert sim.stats()["received"] - before < 5
        assert told.status == 0
        found = json.loads(told.out)["figures"]
        assert 0 < found["spent_usd"] <= 0.00015
        assert found["ended"].startswith("the budget")
        assert "within the budget" in told.err


def test_the_cost_is_that_of_the_models_that_answered(cli: Cli, tmp_path: Path) -> None:
    with simulated() as first, simulated() as second:
        (tmp_path / "redline.toml").write_text(
            f'[endpoints.cheap]\nbase_url = "{first.base_url}"\nmodels = {{ m = "gpt-4o-mini" }}\n'
            f'[endpoints.dear]\nbase_url = "{second.base_url}"\nmodels = {{ m = "gpt-4o" }}\n'
        )
        pool = ("bench", "--json", "--limit", "8", "--model", "m", "--max-tokens", "9")
        costs = [cli(*pool, *names) for names in (("cheap", "dear"), ("dear", "cheap"))]
        assert costs[0].err.split("; about")[1] == costs[1].err.split("; about")[1]
        (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "model": "m"}\n')
        told = cli("bench", "--json", "--limit", "8", "cheap", "--rows", "rows.jsonl")
    assert json.loads(told.out)["figures"]["spent_usd"] > 0


def test_an_interrupt_ends_it_with_the_figures_so_far() -> None:
    with simulated() as sim:
        command = [sys.executable, "-m", "redline", "bench", sim.base_url, "--model", "m"]
        command += ["--constant", "50", "--json", "-q"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            while sim.stats()["answered"] < 20:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    found = json.loads(out)["figures"]
    assert found["is_interrupted"]
    assert found["succeeded"] > 0


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ((), "TARGET is missing"),
        (("nowhere",), "unknown target: nowhere"),
        (("localhost:8000",), "did you mean http://localhost:8000/v1?"),
        (("mine.answer",), "a function is named with a colon, as in mine:answer"),
        (("./mine.py:answer",), "write the module's name, as in mine:answer"),
        (("smi",), "did you mean sim?"),
        (("their:answer",), "there is no module their"),
        (("mine:anwser",), "mine has no anwser"),
        (("mine:number",), "5 cannot be called"),
        (("mine:answer", "sim"), "mine:answer cannot be combined with other targets"),
        (("mine:answer", "--rps", "5"), "--rps applies to endpoints"),
        (("mine:answer", "--prompt", "{{ n }}"), "--prompt"),
        (("sim", "--constant", "0"), "--constant must be above 0"),
        (("sim", "--poisson", "fast"), "--poisson"),
        (("sim", "--constant", "1", "--poisson", "1"), "--constant and --poisson cannot be"),
        (("sim", "--duration", "5s", "--warm-up", "6s"), "the warm-up of 6 s leaves none"),
        (("sim", "--duration", "0"), "--duration must be above 0 s"),
        (("sim", "--slo", "ttft"), "slo is not an objective: ttft"),
        (("sim", "--replay", "none"), "none cannot be read"),
        (("sim", "--replay", "empty.trace"), "empty.trace holds no calls"),
        (("sim", "--rows", "none.jsonl"), "none.jsonl"),
        (("sim", "--prompt", "{{ text }}"), "--prompt is filled from rows"),
        (
            ("sim", "--system", "{{ text }}", "--limit", "3"),
            "no request can be made from a synthetic",
        ),
        (("sim", "-c", "auto"), "-c takes a number of users, not auto"),
        (("sim", "-c", "0"), "--concurrency must be 1 to 100,000, not 0"),
        (("sim", "--batch-size", "4"), "a backend takes one request at a time"),
        (("sim", "-o", "nofolder/f.json"), "f.json is in a folder that does not exist"),
        (("http://127.0.0.1:9/v1", "--model", "m", "--duration", "5s"), "no request succeeded"),
        (("mine:pool", "--limit", "40"), "no request succeeded"),
        (("mine:pieces", "--limit", "4"), "make it an async generator, or return the whole answer"),
    ],
)
def test_mistakes_are_named(cli: Cli, flags: tuple[str, ...], error: str) -> None:
    Path("empty.trace").write_text('{"kind":"run","v":1,"at":1.0}\n')
    told = cli("bench", *flags)
    assert told.status == 2
    assert error in told.err
    assert told.out == ""


def test_a_search_for_the_concurrency_in_the_settings_has_a_hint_that_helps(cli: Cli) -> None:
    """-c replaces no concurrency in the tables of several endpoints."""
    table = '[endpoints.{}]\nbase_url = "http://127.0.0.1:{}/v1"\nconcurrency = "auto"\n'
    Path("redline.toml").write_text(table.format("a", 9) + table.format("b", 10))
    told = cli("bench", "a", "b", "--model", "m", "-c", "16")
    assert told.status == 2
    assert "hint: replace auto in redline.toml with a number, or remove it and" in told.err
