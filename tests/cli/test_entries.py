"""Every option makes the same job on the command line, in redline.toml and in Python."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import msgspec
import pytest

from redline import Cache, Endpoint, Limits, Timeouts
from redline.cli import program
from redline.cli.session import Session
from redline.errors import ConfigError
from redline.job.settings import TABLE, Job, Keywords, Kind, make_job

URL, OTHER = "http://127.0.0.1:9/v1", "http://127.0.0.1:8/v1"
STREAM = "redis://127.0.0.1:6379/0/tickets?group=labels"
OUTPUT = {"output": "out.jsonl"}
ENTRIES = ("flag", "toml", "python")


class Example(NamedTuple):
    """The same of one option, as flags or settings by their keys, and as keyword arguments.

    tables: what redline.toml states by tables of its own.
    """

    stated: dict[str, Any]
    keywords: dict[str, Any]
    rows: str = "in.jsonl"
    tables: str = ""


def one(key: str, stated: Any, value: Any, name: str = "") -> Example:
    return Example({key: stated}, {name or key: value})


def limit(key: str, stated: Any, **fields: Any) -> Example:
    return Example({key: stated}, {"limits": Limits(**fields)})


def timeout(key: str, **fields: Any) -> Example:
    timeouts = Timeouts(**fields)
    return Example({key: "5s"}, {"endpoint": Endpoint(base_url=URL, timeouts=timeouts)})


def endpoint(key: str, stated: Any, **fields: Any) -> Example:
    return Example({key: stated}, {"endpoint": Endpoint(base_url=URL, **fields)})


async def answer(row: Any) -> Any:
    return row


def same(value: Any) -> Any:
    return value


PRICES = {"m": {"input": 1, "output": 2}}
EXAMPLES: dict[str, list[Example]] = {
    "prompt": [one("prompt", "a {{ text }}", "a {{ text }}"), one("prompt", "@p.txt", "told")],
    "system": [one("system", "s", "s"), one("system", "@p.txt", "told")],
    "model": [one("model", "m", "m")],
    "temperature": [one("temperature", "0", {"temperature": 0}, "params")],
    "max_tokens": [one("max_tokens", "9", {"max_tokens": 9}, "params")],
    "params": [one("param", ["seed=7", "user=u"], {"seed": 7, "user": "u"}, "params")],
    "url": [one("url", "/v1/embeddings", "/v1/embeddings")],
    "method": [one("method", "PUT", "PUT")],
    "body": [one("body", "{}", "{}"), one("body", "@p.txt", "told")],
    "output_path": [one("output_path", "a.0", "a.0")],
    "constant_prompt": [one("constant_prompt", True, True)],
    "endpoint": [
        one("endpoint", "sim", "sim"),
        one("endpoint", f"{URL}/v1", f"{URL}/v1"),
        one("endpoint", [URL, OTHER], [URL, OTHER]),
        Example(
            {"endpoint": [URL, OTHER], "rps": "7", "concurrency": "9"},
            {"endpoint": [URL, OTHER], "rps": 7, "concurrency": 9},
        ),
    ],
    "balance": [one("balance", "cheapest", "cheapest")],
    "base_url": [one("base_url", f"{URL}/v1", f"{URL}/v1", "endpoint")],
    "api_key": [one("api_key_env", "PLANTED", "k", "api_key")],
    "headers": [one("header", ["A: b", "C: d"], {"A": "b", "C": "d"}, "headers")],
    "proxy": [one("proxy", "http://127.0.0.1:8", "http://127.0.0.1:8")],
    "requests": [limit("requests", ["2/1s", "9/1m"], requests=["2/1s", "9/1m"])],
    "tokens": [limit("tokens", ["2k/1s"], tokens="2k/1s")],
    "input_tokens": [limit("input_tokens", ["2k/1s"], input_tokens="2k/1s")],
    "output_tokens": [limit("output_tokens", ["2k/1s"], output_tokens="2k/1s")],
    "rps": [one("rps", "2.5", 2.5), one("rps", "2k", "2k")],
    "rpm": [
        one("rpm", "90", 90),
        Example({"rpm": "9", "requests": ["2/1s"]}, {"rpm": 9, "limits": Limits(requests="2/1s")}),
    ],
    "tpm": [one("tpm", "1.5k", "1.5k")],
    "concurrency": [one("concurrency", "7", 7), one("concurrency", "auto", "auto")],
    "rate": [one("rate", "auto", "auto")],
    "profile": [limit("profile", "moving", profile="moving")],
    "headroom": [limit("headroom", "0.8", headroom=0.8)],
    "guard_s": [limit("guard", "50ms", guard_s=0.05), limit("guard", "0", guard_s=0)],
    "charge": [limit("charge", "reserved", charge="reserved")],
    "share": [limit("share", "shared.limits", share="shared.limits")],
    "budget": [one("budget", "5usd", "5usd")],
    "budget_tokens": [one("budget_tokens", "2m", "2m"), one("budget_tokens", "9", 9)],
    "via": [one("via", "batch", "batch"), one("via", "live", "live")],
    "cache": [one("cache", True, True)],
    "no_cache": [one("no_cache", True, False, "cache")],
    "cache_dir": [one("cache_dir", "kept", "kept", "cache")],
    "cache_size": [
        Example({"cache": True, "cache_size": "5m"}, {"cache": Cache(max_bytes=5_000_000)})
    ],
    "cache_sampled": [
        Example({"cache": True, "cache_sampled": True}, {"cache": Cache(includes_sampled=True)})
    ],
    "output": [one("output", "other.jsonl", "other.jsonl")],
    "format": [one("format", "batch", "batch")],
    "ordered": [one("ordered", True, True)],
    "keep_input": [one("keep_input", True, True)],
    "raw": [one("raw", True, True)],
    "trace": [one("trace", "calls.trace", "calls.trace")],
    "metrics_port": [
        Example({"metrics_port": "9400"}, {"metrics_port": 9400}),
        one("metrics_port", "[::1]:0", "[::1]:0"),
    ],
    "retry_failed": [one("retry_failed", True, True)],
    "restart": [one("restart", True, True)],
    "force": [one("force", True, True)],
    "max_retries": [one("max_retries", "0", 0)],
    "timeout_s": [one("timeout", "500ms", 0.5, "timeout_s")],
    "connect_timeout_s": [timeout("connect_timeout", connect_s=5.0)],
    "first_byte_timeout_s": [timeout("first_byte_timeout", first_byte_s=5.0)],
    "row_deadline_s": [one("row_deadline", "5m", 300, "row_deadline_s")],
    "deadline_s": [one("deadline", "6h", 21_600, "deadline_s")],
    "limit": [one("limit", "3", 3)],
    "fail_on": [
        one("fail_on", ["empty,length"], ["empty", "length"]),
        one("fail_on", ["empty, length,"], "empty, length,"),
    ],
    "strict": [one("strict", True, True)],
    "stop_at_error_rate": [
        one("stop_at_error_rate", "20%", 0.2),
        one("stop_at_error_rate", "0.2", "20 %"),
    ],
    "longest_wait_s": [one("longest_wait", "10min", 600, "longest_wait_s")],
    "follow": [one("follow", True, True)],
    "until_empty": [Example({"until_empty": True}, {"until_empty": True}, rows=STREAM)],
    "name": [Example({}, {"endpoint": Endpoint(base_url=URL, name="e")})],
    "weight": [endpoint("weight", "2.5", weight=2.5)],
    "group": [endpoint("group", "g", group="g")],
    "models": [endpoint("models", {"fast": "qwen3-8b"}, models={"fast": "qwen3-8b"})],
    "metrics": [endpoint("metrics", True, metrics=True), endpoint("metrics", "/m", metrics="/m")],
    "probe": [endpoint("probe", True, probe=True), endpoint("probe", f"{URL}/h", probe=f"{URL}/h")],
    "tariff": [Example({}, {"endpoint": Endpoint(base_url=URL, prices=PRICES)})],
    "prices": [Example({}, {"prices": PRICES}, tables="[prices.m]\ninput = 1\noutput = 2\n")],
    "alerts": [
        Example(
            {},
            {"alerts": {"webhook": URL, "error_rate": {"above": "30%", "for": "2m"}}},
            tables=f'[alerts]\nwebhook = "{URL}"\nerror_rate = {{ above = 0.3, for = 120 }}\n',
        ),
        Example({}, {"alerts": {"built_in": False}}, tables="[alerts]\nbuilt_in = false\n"),
    ],
    "otel": [
        Example({}, {"otel": {}}, tables="[otel]\n"),
        Example(
            {},
            {"otel": {"endpoint": f"{URL}/", "headers_env": {"x": "PLANTED"}, "sample": "5 %"}},
            tables=f'[otel]\nendpoint = "{URL}"\nheaders = {{ x = "k" }}\nsample = 0.05\n',
        ),
        Example(
            {},
            {"otel": {"service_name": "labels", "every_s": 2}},
            tables='[otel]\nservice_name = "labels"\nevery_s = 2.0\n',
        ),
    ],
    "call": [Example({}, {"call": answer})],
    "before": [Example({}, {"before": same})],
    "after": [Example({}, {"after": same})],
    "executor": [Example({}, {"executor": ThreadPoolExecutor(1)})],
}
# The job that they make is the usual one: they are there to overrule redline.toml.
USUAL = ("no_cache",)
CASES = [
    pytest.param(name, example, id=f"{name}-{at}")
    for name, examples in EXAMPLES.items()
    for at, example in enumerate(examples)
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("OPENAI_API_KEY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in {"OPENAI_BASE_URL": URL, "PLANTED": "k", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(variable, value)
    Path("in.jsonl").write_text('{"text": "a"}\n')
    Path("p.txt").write_text("told")


def words(stated: dict[str, Any]) -> list[str]:
    """The flags of these keys."""
    found = []
    for key, value in stated.items():
        flag = f"--{key.replace('_', '-')}"
        each = value if isinstance(value, list) else [value]
        found += [flag if one is True else f"{flag}={one}" for one in each]
    return found


def subcommand(name: str) -> click.Command:
    """The command, as the program has it."""
    group = program()
    found = group.get_command(click.Context(group), name)
    assert found is not None
    return found


def command_line(stated: dict[str, Any], rows: str = "in.jsonl") -> Job:
    """The job of `redline run`, whose flags are `stated`."""
    session = Session(subcommand("run").make_context("run", [rows, *words(stated)]))
    return session.resolved(rows, session.given).job


def toml(stated: dict[str, Any], table: str = "run", tables: str = "") -> None:
    def text(value: Any) -> str:
        if isinstance(value, dict):
            return f"{{ {', '.join(f'{key} = {text(each)}' for key, each in value.items())} }}"
        return msgspec.json.encode(value).decode()

    lines = [f"{key} = {text(value)}" for key, value in stated.items()]
    Path("redline.toml").write_text("\n".join([f"[{table}]", *lines, tables]))


def job_of(entry: str, example: Example) -> Job:
    """The job that the example makes at one entry, with an output that it need not name."""
    match entry:
        case "flag":
            return command_line({**OUTPUT, **example.stated}, example.rows)
        case "toml":
            toml({**OUTPUT, **example.stated}, tables=example.tables)
            return command_line({}, example.rows)
        case _:
            return make_job(example.rows, {**OUTPUT, **example.keywords}, os.environ)


def comparable(job: Job) -> SimpleNamespace:
    """The fields of the job, its embedded server by what it is called."""
    fields = msgspec.structs.asdict(job)
    return SimpleNamespace(**{**fields, "embedded": job.embedded and job.embedded.place})


def test_every_option_has_an_example() -> None:
    assert EXAMPLES.keys() == TABLE.keys()
    assert all(EXAMPLES.values())


@pytest.mark.parametrize(("name", "example"), CASES)
def test_every_option_makes_the_same_job_at_every_entry(name: str, example: Example) -> None:
    option = TABLE[name]
    entries = [entry for entry in ENTRIES if entry not in option.absent]
    jobs = {entry: comparable(job_of(entry, example)) for entry in entries}
    usual = comparable(job_of("python", Example({}, {}, example.rows)))
    for entry, job in jobs.items():
        assert job == jobs["python"], entry
        assert (job == usual) == (name in USUAL), f"{entry} takes {name} and leaves it out"
    assert option.python in example.keywords
    if "flag" in jobs:
        assert option.key in example.stated


@pytest.mark.parametrize("name", [name for name, option in TABLE.items() if option.absent])
def test_an_entry_without_an_option_refuses_it_and_the_table_says_why(name: str) -> None:
    option = TABLE[name]
    assert set(option.absent) <= set(ENTRIES)
    assert all(option.absent.values())
    value: Any = True if option.kind is Kind.FLAG else "x"
    if "flag" in option.absent:
        with pytest.raises(click.NoSuchOption):
            command_line({option.key: value})
    if "toml" in option.absent:
        toml({option.key: value})
        with pytest.raises(ConfigError, match=f"unknown setting: {option.key}"):
            command_line({})
    if "python" in option.absent:
        assert option.python not in Keywords.__annotations__


def test_every_keyword_states_an_option() -> None:
    named = {option.python for option in TABLE.values() if "python" not in option.absent}
    # It is shown, and no part of a job.
    assert set(Keywords.__annotations__) == named | {"progress"}


OF_ENDPOINT = [name for name, option in TABLE.items() if option.of_endpoint]


@pytest.mark.parametrize("name", [name for name in OF_ENDPOINT if name != "base_url"])
def test_the_table_of_an_endpoint_states_its_options_too(name: str) -> None:
    for example in EXAMPLES[name]:
        toml({"base_url": URL, **example.stated}, "endpoints.e")
        job = command_line({**OUTPUT, "endpoint": "e"})
        expected = job_of("python", example)
        assert expected.endpoint is not None
        endpoint = msgspec.structs.replace(expected.endpoint, name="e")
        assert job == msgspec.structs.replace(expected, endpoints=(endpoint,))


def test_the_name_of_an_endpoint_is_that_of_its_table() -> None:
    toml({"base_url": URL}, "endpoints.e")
    assert command_line({**OUTPUT, "endpoint": "e"}) == job_of("python", EXAMPLES["name"][0])


def test_none_is_not_given_at_any_entry() -> None:
    nothing = dict.fromkeys(Keywords.__annotations__)
    usual = make_job("in.jsonl", {}, os.environ)
    assert make_job("in.jsonl", nothing, os.environ) == usual
    switches = {option.key: False for option in TABLE.values() if option.kind is Kind.FLAG}
    toml({key: False for key in switches if key not in ("follow", "until_empty")})
    assert command_line({}) == usual


# What a task has no say in.
SHARED = (
    *(
        "endpoints",
        "balance",
        "embedded",
        "limits",
        "memory",
        "cache",
        "retry",
        "timeout_s",
        "allowance",
    ),
    *("row_deadline_s", "deadline_s", "retry_failed", "restart", "force", "strict"),
    *("stop_at_error_rate", "longest_wait_s"),
)
# What each needs beside them: arguments, and flags of its own.
TASKS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "eval": ([], {"task": "task.toml", "data": "in.jsonl"}),
    "synth": ([], {"count": "1", "prompt": "{{ n }}"}),
    "tag": (["in.jsonl"], {"schema": "labels.json"}),
}


@pytest.mark.parametrize("task", TASKS)
def test_the_flags_of_a_task_are_those_of_run(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("task.toml").write_text('prompt = "{{ text }}"\ngold = "text"\nmetric = "exact"\n')
    Path("labels.json").write_text('["a", "b"]')
    jobs: list[SimpleNamespace] = []

    def carry_out(session: Session, resolved: Any) -> int:
        jobs.append(comparable(resolved.job))
        return 0

    monkeypatch.setattr(Session, "carry_out", carry_out)
    command, (arguments, flags) = subcommand(task), TASKS[task]
    keys = {param.name for param in command.params}
    shared = [name for name, option in TABLE.items() if option.key in keys]
    assert len(shared) > 30
    for name in shared:
        for example in EXAMPLES[name]:
            given = words({**OUTPUT, **flags, **example.stated})
            assert command.invoke(command.make_context(task, [*arguments, *given])) == 0
            expected = command_line({**OUTPUT, **example.stated})
            for field in SHARED:
                assert getattr(jobs[-1], field) == getattr(comparable(expected), field), name
