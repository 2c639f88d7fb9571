"""`redline run` with several endpoints: all are used, and any of them may be lost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from support.members import MemberServer, serving

Cli = Callable[..., Any]
Rows = Callable[..., str]


def tables(*servers: MemberServer, **fields: Any) -> list[str]:
    """Writes redline.toml with the endpoints a, b, ..., and names them as flags."""
    lines, flags = [], []
    for name, server in zip("abcd", servers, strict=False):
        lines += [f"[endpoints.{name}]", f'base_url = "{server.url}"']
        for key, value in fields.items():
            each = value if not isinstance(value, (list, tuple)) else value["abcd".index(name)]
            lines.append(f"{key} = {json.dumps(each)}")
        flags += ["--endpoint", name]
    Path("redline.toml").write_text("\n".join(lines))
    return flags


def names(path: str = "out.jsonl") -> Counter[str]:
    """Results by the endpoint that they name. No row may be there twice."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert len({line["row"] for line in lines}) == len(lines)
    return Counter(line["endpoint"] for line in lines)


def prompts(rows: Rows, count: int) -> str:
    return rows(*({"prompt": f"row {number}"} for number in range(count)))


def test_results_name_their_endpoints_and_all_are_used(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer() for _ in range(4)]
    with serving(*servers):
        told = cli(
            "run", prompts(rows, 200), "--model", "m", *tables(*servers), "-c", "8", "-o",
            "out.jsonl",
        )  # fmt: skip
    assert told.status == 0
    found = names()
    assert [found[name] for name in "abcd"] == [server.answered for server in servers]
    assert sum(found.values()) == 200
    assert min(found.values()) > 20
    answered = ", ".join(f"{name} {found[name]}" for name in "abcd")
    assert f"answered by: {answered}\n" in told.summary
    # -c is that of all together.
    (most,) = re.findall(r"at most (\d+) in flight", told.summary)
    assert int(most) <= 8


def test_endpoints_are_used_in_proportion_to_their_weight(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(latency_s=0.02), MemberServer(latency_s=0.02)]
    with serving(*servers):
        flags = [*tables(*servers, weight=[1, 3]), "-c", "16", "-o", "out.jsonl"]
        told = cli("run", prompts(rows, 400), "--model", "m", *flags)
    assert told.status == 0
    found = names()
    assert 2 < found["b"] / found["a"] < 4.5


def test_a_bound_of_one_endpoint_is_its_own(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(latency_s=0.02), MemberServer(latency_s=0.02)]
    with serving(*servers):
        flags = [*tables(*servers, concurrency=[1, 7]), "-c", "64", "-o", "out.jsonl"]
        told = cli("run", prompts(rows, 160), "--model", "m", *flags)
    found = names()
    assert found["b"] > 4 * found["a"] > 0
    assert "at most 8 in flight" in told.summary


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("refuse", "the endpoint refused the key: HTTP 401: no such key"),
        ("unpaid", "the account has no credit left: HTTP 402: no credit"),
    ],
)
def test_a_key_that_is_refused_in_mid_run_loses_no_row(
    cli: Cli, rows: Rows, then: str, words: str
) -> None:
    servers = [MemberServer(latency_s=0.03), MemberServer(latency_s=0.03, after=20, then=then)]
    with serving(*servers):
        flags = [*tables(*servers), "-c", "8", "-o", "out.jsonl"]
        told = cli("run", prompts(rows, 200), "--model", "m", *flags)
    assert told.status == 0
    assert sum(names().values()) == 200
    assert f"endpoint b was removed from the run: {words}\n" in told.summary
    # Those in flight when it happens, and no more.
    assert len(servers[1].asked) <= 20 + 8
    # In the progress once, as soon as it happens.
    assert told.err.count(f"endpoint b was removed from the run: {words}; 1 of 2 is left\n") == 1


def test_a_parked_endpoint_gets_nothing_and_its_rows_go_elsewhere(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(latency_s=0.02), MemberServer(latency_s=0.02, after=20, then="park")]
    with serving(*servers):
        flags = [*tables(*servers), "-c", "8", "-o", "out.jsonl"]
        began_s = time.monotonic()
        told = cli("run", prompts(rows, 400), "--model", "m", *flags)
        took_s = time.monotonic() - began_s
    assert told.status == 0
    found = names()
    assert sum(found.values()) == 400
    assert found["a"] > found["b"]
    # One 429 for each call that was on its way; then nothing until the second is over.
    until_s = servers[1].parked_until_s
    parked = [one for one in servers[1].asked if until_s - 0.7 < one.at_s < until_s]
    assert not parked
    assert took_s < 20


def test_an_endpoint_that_fails_is_named_and_loses_no_row(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(latency_s=0.02), MemberServer(latency_s=0.02, after=20, then="fail")]
    with serving(*servers):
        flags = [*tables(*servers), "-c", "8", "-o", "out.jsonl"]
        told = cli("run", prompts(rows, 800), "--model", "m", *flags)
    assert told.status == 0
    assert names() == {"a": 780, "b": 20}
    boom = "the server failed: HTTP 500: boom"
    notice = rf"^endpoint b has failed for [\d.]+ s: {boom}; it gets few calls until it recovers$"
    # At once, and not with every line.
    assert len(re.findall(notice, told.err, re.M)) == 1
    ended = rf"^endpoint b failed and got few calls for [\d.]+ s, until the end: {boom}$"
    assert re.search(ended, told.summary, re.M)
    # Those in flight, those that prove it, and one for each pause.
    assert len(servers[1].asked) <= 20 + 8 + 7 + 4


@pytest.mark.slow
@pytest.mark.parametrize("log", ["text", "json"])
@pytest.mark.parametrize(
    ("then", "is_billed"), [("fail", True), ("park", False), ("refuse", False)]
)
def test_requests_that_two_endpoints_may_have_billed_are_counted_in_words(
    cli: Cli, rows: Rows, then: str, is_billed: bool, log: str
) -> None:
    servers = [MemberServer(latency_s=0.02), MemberServer(latency_s=0.02, after=20, then=then)]
    with serving(*servers):
        flags = [*tables(*servers), "-c", "8", "--log", log, "-o", "out.jsonl"]
        told = cli("run", prompts(rows, 400), "--model", "m", *flags)
    assert told.status == 0
    # Every request that was not answered was sent again, to the other one.
    twice = sum(len(server.asked) for server in servers) - 400
    assert twice > 0
    if log == "json":
        summary = json.loads(told.err.splitlines()[-1])
        assert summary.get("failovers", 0) == (twice if is_billed else 0)
    else:
        words = (
            rf"^{twice} requests? sent to another endpoint after a failed attempt, "
            r"which may have been billed as well$"
        )
        assert len(re.findall(words, told.summary, re.M)) == is_billed
        assert told.summary.count("billed") == is_billed
    (report,) = json.loads(cli("report", "out.jsonl", "--format", "json").out)["jobs"]
    assert report["figures"]["failovers"] == (twice if is_billed else 0)


def test_an_endpoint_that_dies_in_mid_run_loses_no_row(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(latency_s=0.02), MemberServer(latency_s=0.02, after=30, then="die")]
    with serving(*servers):
        flags = [*tables(*servers), "-c", "8", "-o", "out.jsonl"]
        told = cli("run", prompts(rows, 300), "--model", "m", *flags)
    assert told.status == 0
    found = names()
    assert sum(found.values()) == 300
    assert found["b"] <= 30


def test_when_all_are_dead_the_run_ends_in_words_and_continues(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(), MemberServer()]
    flags = tables(*servers)
    for server in servers:
        server.server_close()
    name = prompts(rows, 30)
    told = cli("run", name, "--model", "m", *flags, "-o", "out.jsonl")
    assert told.status == 2
    assert re.search(
        r"error: none of 2 endpoints is left; the last was [ab]: the endpoint has not been "
        r"reachable for \d+ s: no connection: 127.0.0.1:\d+: Connection refused\n",
        told.err,
    )
    assert "30 unfinished" in told.summary
    again = [MemberServer(), MemberServer()]
    with serving(*again):
        told = cli("run", name, "--model", "m", *tables(*again), "-o", "out.jsonl")
    assert told.status == 0
    assert sum(names().values()) == 30


def test_when_every_key_is_refused_the_run_ends_with_the_error(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(after=5, then="refuse"), MemberServer(after=5, then="refuse")]
    with serving(*servers):
        flags = [*tables(*servers), "-c", "4", "-o", "out.jsonl"]
        told = cli("run", prompts(rows, 100), "--model", "m", *flags)
    assert told.status == 2
    assert "error: the endpoint refused the key: HTTP 401: no such key\n" in told.err
    for name in "ab":
        assert (
            f"endpoint {name} was removed from the run: the endpoint refused the key"
            in told.summary
        )
    assert sum(names().values()) <= 10


def test_several_keys_of_one_server_have_limits_of_their_own(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemberServer()
    for key in ("K1", "K2"):
        monkeypatch.setenv(key, key)
    with serving(server):
        flags = [*tables(server, server, api_key_env=["K1", "K2"]), "--rps", "10"]
        flags += ["-o", "out.jsonl"]
        told = cli("run", prompts(rows, 60), "--model", "m", *flags)
    assert told.status == 0
    _check_windows(server, 10)
    assert Counter(one.key for one in server.asked) == {"K1": 30, "K2": 30}
    assert len(list(Path("out.redline/limits").iterdir())) == 2


def test_a_row_that_is_too_large_for_one_endpoint_goes_to_another(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(), MemberServer()]
    small = [{"prompt": f"row {number}"} for number in range(20)]
    large = [{"prompt": f"row {number} " + "many words " * 2000} for number in range(20)]
    with serving(*servers):
        flags = [*tables(*servers, tokens=["500/1s", "1m/1s"]), "--max-tokens", "5"]
        told = cli("run", rows(*small, *large), "--model", "m", *flags, "-o", "out.jsonl")
        assert told.status == 0, told.err
        assert names()["a"] > 0
        for line in map(json.loads, Path("out.jsonl").read_text().splitlines()):
            assert line["row"] <= 20 or line["endpoint"] == "b"
        # One that none could take is a failure of its row.
        flags = [*tables(*servers, tokens=["500/1s", "600/1s"]), "--max-tokens", "5"]
        told = cli("run", rows(*small, large[0]), "--model", "m", *flags, "-o", "two.jsonl")
    assert told.status == 1
    assert "21 rows = 20 succeeded + 1 failed + 0 unfinished" in told.summary
    assert servers[0].answered + servers[1].answered == 60


def _check_windows(server: MemberServer, most: int, window_s: float = 1.0) -> None:
    for key in {one.key for one in server.asked}:
        sent = sorted(one.at_s for one in server.asked if one.key == key)
        for first, last in zip(sent, sent[most:], strict=False):
            assert last - first >= window_s, key


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_overshoots_no_key(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemberServer()
    for key in ("K1", "K2"):
        monkeypatch.setenv(key, key)
    name = prompts(rows, 48)
    with serving(server):
        flags = [
            *tables(server, server, api_key_env=["K1", "K2"]),
            "--requests",
            "12/3s",
            "--profile",
            "moving",
            "--quiet",
        ]
        command = [sys.executable, "-m", "redline", "run", name, "--model", "m", *flags]
        command += ["-o", "out.jsonl"]
        for _ in range(2):
            before = len(server.asked)
            process = subprocess.Popen(command, env=dict(os.environ))
            while len(server.asked) < before + 8 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert subprocess.run(command, check=False).returncode == 0
    assert sum(names().values()) == 48
    _check_windows(server, 12, 3.0)
    keys = Counter(one.key for one in server.asked)
    assert min(keys.values()) > 16


def test_a_row_names_a_model_as_all_know_it_and_each_endpoint_gets_its_own_name(
    cli: Cli, rows: Rows
) -> None:
    servers = [MemberServer(), MemberServer()]
    with serving(*servers):
        tables(*servers)
        text = Path("redline.toml").read_text()
        for name, model in {"a": "qwen3-8b", "b": "Qwen/Qwen3-8B"}.items():
            text += f'\n[endpoints.{name}.models]\nfast = "{model}"'
        Path("redline.toml").write_text(f'{text}\n[run]\nendpoint = ["a", "b"]\n')
        in_body = {"messages": [{"role": "user", "content": "hi"}], "model": "fast"}
        told = cli("run", rows(*[in_body] * 20, *[{"prompt": "a"}] * 20), "--model", "fast")
    assert told.status == 0
    assert {one.model for one in servers[0].asked} == {"qwen3-8b"}
    assert {one.model for one in servers[1].asked} == {"Qwen/Qwen3-8B"}


def test_a_budget_settles_by_who_answered(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(), MemberServer()]
    with serving(*servers):
        flags = tables(*servers)
        text = Path("redline.toml").read_text()
        for name, dollars in {"a": 100, "b": 300}.items():
            text += f'\n[endpoints.{name}.models]\nfast = "{name}"'
            text += f"\n[prices.{name}]\ninput = {dollars}\noutput = {dollars}"
        Path("redline.toml").write_text(text)
        budget = ["--budget", "50usd", "--max-tokens", "5", "-c", "2", "--log", "json"]
        told = cli("run", prompts(rows, 40), "--model", "fast", *flags, *budget, "-o", "out.jsonl")
    assert told.status == 0, told.err
    found = names()
    summary = json.loads(told.err.splitlines()[-1])
    spent = 15 * (found["a"] * 100 + found["b"] * 300) / 1e6
    assert summary["spent_usd"] == pytest.approx(spent)


@pytest.mark.parametrize("balance", ["round_robin", "cheapest"])
def test_endpoints_take_different_prices_for_one_model(cli: Cli, rows: Rows, balance: str) -> None:
    servers = [MemberServer(), MemberServer()]
    with serving(*servers):
        flags = [*tables(*servers), "--balance", balance]
        with Path("redline.toml").open("a") as file:
            # b takes what others do.
            file.write("\n[prices.m]\ninput = 100\noutput = 200\n")
            file.write("\n[endpoints.a.prices.m]\ninput = 300\noutput = 400\n")
        budget = ["--budget", "50usd", "--max-tokens", "5", "-c", "2", "--log", "json"]
        told = cli("run", prompts(rows, 40), "--model", "m", *flags, *budget, "-o", "out.jsonl")
    assert told.status == 0, told.err
    found = names()
    assert found["b"] == (20 if balance == "round_robin" else 40)
    summary = json.loads(told.err.splitlines()[-1])
    spent = found["a"] * (10 * 300 + 5 * 400) + found["b"] * (10 * 100 + 5 * 200)
    assert summary["spent_usd"] == pytest.approx(spent / 1e6)


def test_a_budget_reserves_what_the_dearest_endpoint_takes(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(), MemberServer()]
    with serving(*servers):
        flags = tables(*servers)
        with Path("redline.toml").open("a") as file:
            file.write("\n[endpoints.a.prices.m]\ninput = 1\noutput = 1\n")
            file.write("\n[endpoints.b.prices.m]\ninput = 1\noutput = 10000\n")
        given = ["--model", "m", *flags, "--max-tokens", "5", "-o", "out.jsonl"]
        # Five tokens of output cost $0.05 at b.
        told = cli("run", prompts(rows, 1), *given, "--budget", "0.04usd")
        assert "the next call: it may cost $0.0501" in told.err
        assert [server.asked for server in servers] == [[], []]
        assert cli("run", prompts(rows, 1), *given, "--budget", "0.06usd").status == 0


def test_in_python_the_cheapest_endpoint_is_used_while_it_has_room() -> None:
    servers = [MemberServer(), MemberServer()]

    async def main() -> Counter[str]:
        prices = [{"m": {"input": 2, "output": 2}}, {"m": {"input": "0.5", "output": 1}}]
        endpoints = [
            redline.Endpoint(base_url=server.url, name=name, prices=each)
            for server, name, each in zip(servers, "ab", prices, strict=True)
        ]
        async with redline.Client(redline.Pool(endpoints, balance="cheapest")) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            outcomes = [await client.call(body) for _ in range(10)]
        return Counter(outcome.endpoint for outcome in outcomes)

    with serving(*servers):
        assert asyncio.run(main()) == {"b": 10}


@pytest.mark.parametrize("then", ["refuse", "unpaid"])
def test_a_request_that_a_lost_key_refused_costs_nothing(cli: Cli, rows: Rows, then: str) -> None:
    servers = [MemberServer(latency_s=0.02), MemberServer(latency_s=0.02, after=10, then=then)]
    with serving(*servers):
        flags = tables(*servers)
        with Path("redline.toml").open("a") as file:
            file.write("\n[prices.m]\ninput = 100\noutput = 300\n")
        budget = ["--budget", "50usd", "--max-tokens", "5", "-c", "8", "--log", "json"]
        told = cli("run", prompts(rows, 80), "--model", "m", *flags, *budget, "-o", "out.jsonl")
    assert told.status == 0, told.err
    assert len(servers[1].asked) > 10
    summary = json.loads(told.err.splitlines()[-1])
    assert summary["spent_usd"] == pytest.approx(80 * (10 * 100 + 5 * 300) / 1e6)


def test_answers_are_cached_for_the_set_and_for_the_group(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(), MemberServer()]
    name = prompts(rows, 20)
    cached = ["--model", "m", "--temperature", "0", "--cache-dir", "kept"]
    with serving(*servers):
        for fields, alone in (({}, 20), ({"group": "g"}, 0)):
            a, b = (["--endpoint", name] for name in "ab")
            tables(*servers, **fields)
            assert cli("run", name, *cached, *a, *b).status == 0
            before = [len(server.asked) for server in servers]
            # In any order they are the same set.
            told = cli("run", name, *cached, *b, *a)
            assert told.status == 0
            assert "answered by" not in told.summary
            assert cli("run", name, *cached, *a).status == 0
            after = [len(server.asked) for server in servers]
            assert after == [before[0] + alone, before[1]]


URL = "http://127.0.0.1:9/v1"
TWO = f'[endpoints.a]\nbase_url = "{URL}"\n[endpoints.b]\nbase_url = "http://127.0.0.1:8/v1"\n'


@pytest.mark.parametrize(
    ("toml", "flags", "what", "where"),
    [
        (TWO, ["a", "c"], "unknown endpoint: c", None),
        (TWO, ["a", "a"], "--endpoint names a twice", None),
        (TWO, [URL, "http://127.0.0.1:9/b/v1"], "two endpoints are named 127.0.0.1:9",
         f"the endpoints at {URL} and http://127.0.0.1:9/b/v1"),
        (TWO, ["a", URL], "the endpoints a and 127.0.0.1:9 are the same server with the same key",
         None),
        (TWO, ["a", f"{URL}/"],
         "the endpoints a and 127.0.0.1:9 are the same server with the same key", None),
        (TWO, ["a", "sim"],
         "sim cannot be one of several endpoints: a run that starts it uses no other",
         "--endpoint sim"),
        (f"{TWO}weight = 0", ["a", "b"], "weight must be a number above 0, not 0",
         "redline.toml, [endpoints.b]"),
        (f"{TWO}weight = 'x'", ["a", "b"], "weight must be a number above 0, not x",
         "redline.toml, [endpoints.b]"),
        (f"{TWO}models = {{fast = ''}}", ["b"],
         "models must map a model's name to a name, not 'fast' = ''",
         "redline.toml, [endpoints.b]"),
        (f"{TWO}models = {{fast = 'x'}}", ["a", "b"],
         "endpoint b has a name for the model fast, but a does not", "the models of a"),
        (f"{TWO}models = {{fast = 'x'}}", ["b"], "no endpoint has a model m", "the models of b"),
        (f"{TWO}model = 'x'\n", ["a", "b"],
         "the endpoints a and b use different models: no model and x",
         "redline.toml, [endpoints.a] and redline.toml, [endpoints.b], model"),
        (f"{TWO}metrics = 'x'", ["a", "b"], "metrics must be true, false, a path or a URL, not x",
         "redline.toml, [endpoints.b]"),
        (f"{TWO}probe = 1", ["a", "b"], "probe must be true, false or text",
         "redline.toml, [endpoints.b]"),
        (f"{TWO}wieght = 2", ["a", "b"], "unknown setting: wieght", "redline.toml, [endpoints.b]"),
        (f"{TWO}prices = 3", ["a", "b"], "endpoints.b.prices must be a table", "redline.toml"),
        (f"{TWO}[endpoints.b.prices.m]\ninput = 1", ["a", "b"], "the price of m has no output",
         'redline.toml, [endpoints.b.prices."m"]'),
        (f"{TWO}[endpoints.b.prices.m]\nimput = 1", ["a", "b"], "unknown setting: imput",
         'redline.toml, [endpoints.b.prices."m"]'),
        (f"[run]\nweight = 2\n{TWO}", ["a"], "unknown setting: weight", "redline.toml, [run]"),
    ],
)  # fmt: skip
def test_bad_input_names_the_place(
    cli: Cli, rows: Rows, toml: str, flags: list[str], what: str, where: str | None
) -> None:
    Path("redline.toml").write_text(toml)
    given = [word for name in flags for word in ("--endpoint", name)]
    model = [] if "different" in what else ["--model", "m"]
    told = cli("run", rows({"prompt": "a"}), *model, *given)
    assert told.status == 2
    lines = told.err.splitlines()
    assert lines[0] == f"error: {what}"
    if where is not None:
        assert lines[1] == f"where: {where}"


def test_a_plan_shares_the_rows_among_the_endpoints(cli: Cli, rows: Rows) -> None:
    Path("redline.toml").write_text(TWO)
    flags = ["--endpoint", "a", "--endpoint", "b", "--dry-run", "--model", "m"]
    told = cli("run", prompts(rows, 200), *flags, "--rps", "10")
    assert "at least 10 s, bound by the limits of 2 endpoints together\n" in told.out + told.err


def test_a_plan_with_an_endpoint_without_limits_does_not_deny_those_of_the_other(
    cli: Cli, rows: Rows
) -> None:
    Path("redline.toml").write_text(f"{TWO}rpm = 5\n")
    flags = ["--endpoint", "a", "--endpoint", "b", "--dry-run", "--model", "m"]
    told = cli("run", prompts(rows, 200), *flags)
    assert told.out.splitlines()[2] == (
        "the limits require no wait: the server and the concurrency determine the time"
    )


def test_a_pool_is_a_backend_and_a_client_takes_it() -> None:
    servers = [MemberServer(), MemberServer()]

    async def main() -> Counter[str]:
        endpoints = [
            redline.Endpoint(base_url=server.url, name=name, proxy="")
            for name, server in zip("ab", servers, strict=True)
        ]
        body = {"model": "m", "messages": []}
        async with redline.Client(redline.Pool(endpoints, balance="round_robin")) as client:
            outcomes = await asyncio.gather(*(client.call(body) for _ in range(40)))
        assert all(outcome.is_success for outcome in outcomes)
        return Counter(outcome.endpoint for outcome in outcomes)

    with serving(*servers):
        assert asyncio.run(main()) == {"a": 20, "b": 20}
    with pytest.raises(redline.ConfigError, match="unknown way to balance: rr"):
        redline.Pool([servers[0].url], balance="rr")
    with pytest.raises(redline.ConfigError, match="unknown way to balance: None"):
        redline.Pool([servers[0].url], balance=None)  # type: ignore[arg-type]
    with pytest.raises(redline.ConfigError, match="a pool needs an endpoint"):
        redline.Pool([])
    only: Any = redline.Endpoint(base_url=servers[0].url)
    for wrong, what in (
        (servers[0].url, "a pool needs a list of URLs and Endpoints, not str"),
        (only, "a pool needs a list of URLs and Endpoints, not Endpoint"),
        ([only, 5], "an endpoint of a pool must be Endpoint or str, not int"),
    ):
        with pytest.raises(redline.ConfigError, match=what):
            redline.Pool(wrong)


def test_an_endpoint_that_is_listed_twice_is_named_as_that() -> None:
    with pytest.raises(redline.ConfigError, match="are the same server with the same key"):
        redline.Pool(["http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1/"])


def test_python_takes_a_list_of_endpoints() -> None:
    servers = [MemberServer(), MemberServer()]
    with serving(*servers):
        endpoints = [redline.Endpoint(base_url=one.url, proxy="") for one in servers]
        report = redline.run(["a"] * 40, model="m", endpoint=endpoints, concurrency=4)
    assert report.succeeded == 40
    assert [one.answered for one in report.endpoints] == [one.answered for one in servers]
    assert {outcome.endpoint for outcome in report.outcomes} == {one.label for one in endpoints}
