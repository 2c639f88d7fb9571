"""Settings beside the command line: redline.toml, .env and the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Rows = Callable[..., str]

KEY = "sk-planted-0123456789"
SIM = ("--endpoint", "sim", "--prompt", "{{ text }}")


def toml(text: str) -> None:
    Path("redline.toml").write_text(text, "utf-8")


def key_seen(odd: Any) -> str | None:
    found: str | None = odd.headers[-1].get("authorization")
    return found


@pytest.mark.parametrize(
    ("text", "what", "where", "hint"),
    [
        ("nope = 1\n", "unknown setting: nope", "redline.toml",
         "known settings: alerts, endpoints, otel, prices, run, serve, tenants"),
        ("[runs]\nx = 1\n", "unknown setting: runs", "redline.toml", "did you mean run?"),
        ("[run]\npromt = 'x'\n", "unknown setting: promt", "redline.toml, [run]",
         "did you mean prompt?"),
        ("[run]\nmax-retires = 1\n", "unknown setting: max_retires", "redline.toml, [run]",
         "did you mean max_retries?"),
        ("[run]\nmax-retries = 1\nmax_retries = 9\n",
         "max_retries is set twice, once as max-retries", "redline.toml, [run]",
         "leave one out"),
        ("[run]\ndry_run = true\n", "unknown setting: dry_run", "redline.toml, [run]", None),
        ("[run]\nmodel = true\n", "model must be text or a number", "redline.toml, [run]", ""),
        ("[run]\nquiet = 'no'\n", "quiet must be true or false", "redline.toml, [run]", ""),
        ("[run]\nparam = {}\n", "param must be text, or a list of texts", "redline.toml, [run]",
         ""),
        ("[run]\nlog = 'xml'\n", "--log must be one of text, json, not xml",
         "redline.toml, [run]", ""),
        ("[run]\nproxy = 'x'\n", "the proxy is not the URL of an HTTP proxy",
         "redline.toml, [run]", "for example http://host:port"),
        ("[run]\nrpm = 'x'\n", "--rpm is not a number above 0: x", "redline.toml, [run]",
         "for example 500, 200k or 1.5m"),
        ("run = 3\n", "run must be a table", "redline.toml", "write [run]"),
        ("[endpoints.sim]\nbase_url = 'http://h/v1'\n",
         "no endpoint can be named sim, the name of the simulated provider",
         "redline.toml, [endpoints.sim]", "choose another name"),
        ("[endpoints.a]\nbase_ur = 'x'\n", "unknown setting: base_ur",
         "redline.toml, [endpoints.a]", "did you mean base_url?"),
        ("[endpoints.a.price.m]\ninput = 1\n", "unknown setting: price",
         "redline.toml, [endpoints.a]", "did you mean prices?"),
        ("[endpoints.a]\nmodel = 'x'\n", "the endpoint a has no base_url",
         "redline.toml, [endpoints.a]",
         'for example base_url = "http://127.0.0.1:8000/v1"'),
        ("[prices.gpt-4.1]\ninput = 1\noutput = 2\n", "unknown setting: 1",
         'redline.toml, [prices."gpt-4"]', 'quote a name that contains a dot: "gpt-4.1"'),
        ("[endpoints.a.models]\ngpt-4.1 = 'x'\n", "models must be a table of texts",
         "redline.toml, [endpoints.a]", 'quote a name that contains a dot, such as "gpt-4.1"'),
        ("[endpoints.a]\nbase_url = 'x'\nheaders = 3\n", "headers must be a table of texts",
         "redline.toml, [endpoints.a]", ""),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_its_table(
    cli: Cli, rows: Rows, text: str, what: str, where: str, hint: str | None
) -> None:
    toml(text)
    told = cli("run", rows({"text": "a"}), *SIM)
    assert told.status == 2
    assert told.err.startswith(f"error: {what}\nwhere: {where}\n")
    if hint is not None:
        assert told.err == f"error: {what}\nwhere: {where}\n" + (hint and f"\nhint: {hint}\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[run\n", "Expected"),
        (f"a = {'[' * 5000}", "lists are nested too deeply"),
        (f"a = {'1' * 5000}", "a number is too long"),
    ],
)
def test_a_file_that_is_not_toml(cli: Cli, rows: Rows, text: str, why: str) -> None:
    toml(text)
    told = cli("run", rows({"text": "a"}), *SIM)
    assert told.status == 2
    assert told.err.startswith("error: redline.toml is not valid TOML: " + why)
    assert f"where: {Path.cwd() / 'redline.toml'}\n" in told.err
    Path("redline.toml").write_bytes(b"\xff\xfe")
    assert "redline.toml: it is not UTF-8" in cli("run", "in.jsonl", *SIM).err
    Path("redline.toml").unlink()
    Path("redline.toml").mkdir()
    assert "redline.toml: Is a directory" in cli("run", "in.jsonl", *SIM).err


def test_a_dotenv_file_that_is_not_text(cli: Cli, rows: Rows) -> None:
    Path(".env").write_bytes(b"A=\xff\xfe\n")
    told = cli("run", rows({"text": "a"}), *SIM)
    assert (told.status, told.err) == (
        2,
        f"error: cannot read {Path.cwd() / '.env'}: it is not UTF-8\n",
    )


def test_a_line_of_a_dotenv_file_that_cannot_be_read_is_named(
    cli: Cli, rows: Rows, odd: Any
) -> None:
    Path(".env").write_text(f"A B=3\n\nOPENAI_API_KEY={KEY}\n\nC D=3 # E\n", "utf-8")
    told = cli("run", rows({"prompt": "a"}), "--base-url", f"{odd.url}/v1", "--model", "m")
    lines = told.err.splitlines()
    ends = "is skipped, as it does not have the form NAME=VALUE"
    assert lines[:2] == [f"note: {Path.cwd() / '.env'}: line {n} {ends}" for n in (1, 5)]
    assert "python-dotenv" not in told.err
    assert key_seen(odd) == f"Bearer {KEY}"


def test_flags_under_run_hold_unless_the_command_line_says_otherwise(
    cli: Cli, rows: Rows, odd: Any
) -> None:
    toml(
        f"[run]\nbase-url = '{odd.url}/v1'\nprompt = 'P {{{{ text }}}}'\nmodel = 'm'\n"
        "quiet = true\ntemperature = 0.5\nparam = ['seed=7']\nconcurrency = 2\nrpm = 6000\n"
    )
    name = rows({"text": "a"})
    assert cli("run", name).status == 0
    assert cli("run", name, "--model", "other", "--body", '{"q": {{ text | json }}}').status == 0
    message = {"role": "user", "content": "P a"}
    assert [body for _, _, body in odd.asked] == [
        {"model": "m", "seed": 7, "temperature": 0.5, "messages": [message]},
        {"model": "other", "seed": 7, "temperature": 0.5, "q": "a"},
    ]
    # The endpoint on the command line takes the place of the base URL in the file.
    assert cli("run", name, "--endpoint", "sim").outputs == ["You said: P a"]


def test_an_empty_list_of_endpoints_is_as_none(
    cli: Cli, rows: Rows, odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml("[run]\nendpoint = []\n")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{odd.url}/v1")
    assert cli("run", rows({"prompt": "a"})).status == 0
    assert cli("run", "in.jsonl", "--base-url", f"{odd.url}/v1").status == 0


def test_paths_may_begin_with_the_home_folder(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("home").mkdir()
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    toml(
        "[run]\noutput = '~/out.jsonl'\nshare = '~/team.limits'\ntrace = '~/calls.trace'\n"
        "requests = '100/1s'\n"
    )
    assert cli("run", rows({"prompt": "a"}), "--endpoint", "sim").status == 0
    assert cli("run", "in.jsonl", "--endpoint", "sim", "--output=~/2.jsonl").status == 0
    found = {path.name for path in Path("home").iterdir()}
    assert {"out.jsonl", "2.jsonl", "team.limits", "calls.trace"} <= found
    told = cli("run", "in.jsonl", "--endpoint", "sim", "--output=~/no/o.jsonl")
    assert f"hint: mkdir -p {Path('home').absolute()}/no," in told.err


def test_a_named_endpoint_brings_its_settings(
    cli: Cli, rows: Rows, odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml(
        f"[run]\nmodel = 'general'\nprompt = '{{{{ text }}}}'\n"
        f"[endpoints.gpu-2]\nbase_url = '{odd.url}/v1'\nmodel = 'own'\napi_key_env = 'GPU_KEY'\n"
        "requests = ['100/1s', '5000/1m']\nrpm = 6000\nheaders = { X-Team = 'search' }\n"
    )
    monkeypatch.setenv("GPU_KEY", KEY)
    name = rows({"text": "a"})
    told = cli("run", name, "--endpoint", "gpu-2")
    assert told.results[0]["endpoint"] == "gpu-2"
    assert odd.asked[0][2]["model"] == "own"
    assert odd.headers[0]["x-team"] == "search"
    assert key_seen(odd) == f"Bearer {KEY}"
    assert cli("run", name, "--endpoint", "gpu-2", "--model", "mine").status == 0
    assert odd.asked[1][2]["model"] == "mine"
    told = cli("run", name, "--endpoint", "gpu-3")
    assert told.err == "error: unknown endpoint: gpu-3\n\nhint: did you mean gpu-2?\n"


def test_an_error_in_an_endpoints_table_says_so(cli: Cli, rows: Rows) -> None:
    toml("[endpoints.a]\nbase_url = 'http://127.0.0.1:9/v1'\ntimeout = 'x'\n")
    told = cli("run", rows({"text": "a"}), "--endpoint", "a", "--prompt", "{{ text }}")
    assert told.err.startswith(
        "error: --timeout is not a time: x\nwhere: redline.toml, [endpoints.a]\n"
    )
    toml("[endpoints.a]\nbase_url = 'gpu:8000'\n")
    told = cli("run", rows({"text": "a"}), "--endpoint", "a", "--prompt", "{{ text }}")
    assert told.err.startswith(
        "error: not a base URL: gpu:8000\nwhere: redline.toml, [endpoints.a]\n"
    )
    toml("[endpoints.a]\nbase_url = 'http://127.0.0.1:9/v1'\nproxy = 'x'\n")
    told = cli("run", rows({"text": "a"}), "--endpoint", "a", "--prompt", "{{ text }}")
    assert told.err.startswith(
        "error: the proxy is not the URL of an HTTP proxy\nwhere: redline.toml, [endpoints.a]\n"
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("base_url = 'x'", "not a base URL: x"),
        ("endpoint = 'http://:x/v1'", "not a base URL: http://:x/v1"),
        ("endpoint = 'sim'\nbase_url = 'http://127.0.0.1:9/v1'",
         "--endpoint and --base-url cannot be combined"),
        ("endpoint = ['sim', 'sim']", "--endpoint names sim twice"),
    ],
)  # fmt: skip
def test_an_error_in_a_servers_setting_under_run_says_so(
    cli: Cli, rows: Rows, text: str, what: str
) -> None:
    toml(f"[run]\n{text}\n")
    told = cli("run", rows({"prompt": "a"}))
    assert told.err.startswith(f"error: {what}\nwhere: redline.toml, [run]\n")


def test_the_key_comes_from_the_environment_or_from_dotenv(
    cli: Cli, rows: Rows, odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = rows({"prompt": "a"})
    base = ("run", name, "--base-url", f"{odd.url}/v1")
    cli(*base)
    assert key_seen(odd) is None
    Path(".env").write_text(f"OPENAI_API_KEY={KEY}-dotenv\nOTHER={KEY}-other\n")
    cli(*base)
    assert key_seen(odd) == f"Bearer {KEY}-dotenv"
    cli(*base, "--api-key-env", "OTHER")
    assert key_seen(odd) == f"Bearer {KEY}-other"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    cli(*base)
    assert key_seen(odd) == f"Bearer {KEY}"


def test_the_base_url_comes_from_the_environment(
    cli: Cli, rows: Rows, odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{odd.url}/v1")
    assert cli("run", rows({"prompt": "a"})).status == 0
    assert len(odd.asked) == 1
    monkeypatch.setenv("OPENAI_BASE_URL", "nonsense")
    told = cli("run", "in.jsonl")
    assert told.err.startswith("error: not a base URL: nonsense\nwhere: OPENAI_BASE_URL\n")


def test_the_key_is_never_told_or_written(
    cli: Cli, rows: Rows, odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    name = rows({"prompt": "a"})
    texts = []
    for kind in ("", "/refused", "/missing", "/html"):
        for more in ([], ["--log", "json"], ["--dry-run"]):
            told = cli(
                "run", name, "--base-url", f"{odd.url}{kind}/v1", "--max-retries", "0",
                "-o", f"out{kind.replace('/', '-')}.jsonl", *more,
            )  # fmt: skip
            texts += [told.out, told.err]
    told = cli("run", name, "--base-url", f"{odd.url}/v1", "--header", KEY)
    texts.append(told.err)
    files = [path for path in Path().rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [text for text in texts if KEY in text]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    # The server saw it, so that this test can fail.
    assert key_seen(odd) == f"Bearer {KEY}"


def test_the_embedded_server_needs_no_model_and_is_sent_no_key(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    told = cli("run", rows({"prompt": "a"}, {"prompt": "b", "model": "mine"}), "--endpoint", "sim")
    assert [line["model"] for line in told.results] == ["sim", "mine"]
