"""`redline serve` without serving: what it says of settings."""

from __future__ import annotations

import json
import re
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from redline.job.settings import values
from redline.serve.gateway import GatewaySettings

Cli = Callable[..., Any]

GOOD = """
[serve]
port = 8080
cache = true
cache-ttl = "1h"
endpoint = ["one"]
[serve.classes.low]
most_waiting = 5
[serve.batches]
file_size = "1g"
lines = 100_000
stored = "1t"
files = 10
queued = 20
uploads = 1
running = 2
running_each = 1
kept = "90d"
longest_window = "14d"
[endpoints.one]
base_url = "http://127.0.0.1:9000/v1"
models = { fast = "m" }
metrics = "/metrics"
rpm = 500
[endpoints.one.prices.m]
input = 0.5
output = "1.5"
[tenants.default]
requests = ["60/60s"]
admin = true
[prices."gpt-4o"]
input = 1
output = 2
[run]
max_retries = 3
"""


@pytest.fixture
def schema(cli: Cli) -> dict[str, Any]:
    told = cli("serve", "--schema")
    assert (told.status, told.err) == (0, "")
    found: dict[str, Any] = json.loads(told.out)
    return found


def test_the_schema_takes_what_the_command_takes(
    cli: Cli, schema: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("redline.toml").write_text(GOOD, "utf-8")
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(tomllib.loads(GOOD))
    told = cli("serve", "--check")
    assert (told.status, told.err) == (0, "")
    assert "one: http://127.0.0.1:9000/v1, models fast" in told.out


@pytest.mark.parametrize(
    ("old", "new", "what", "where"),
    [
        ("port = 8080", "prot = 8080", "unknown setting: prot", "redline.toml, [serve]"),
        ("port = 8080", "port = true", "port must be text or a number", "redline.toml, [serve]"),
        ("cache = true", "cache = 'yes'", "cache must be true or false", "redline.toml, [serve]"),
        ("most_waiting = 5", "most = 5", "unknown setting: most", "[serve.classes.low]"),
        ("queued = 20", "queue = 20", "unknown setting: queue", "[serve.batches]"),
        ("queued = 20", "queued = false", "queued must be text or a number", "[serve.batches]"),
        ("base_url = \"", "base = \"", "unknown setting: base", "[endpoints.one]"),
        ("admin = true", "admin = 'no'", "admin must be true or false", "[tenants.default]"),
        ("[tenants.default]", "[tenant.a]", "unknown setting: tenant", "redline.toml"),
        ("input = 1\n", "inputs = 1\n", "unknown setting: inputs", '[prices."gpt-4o"]'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_table_and_found_by_the_schema(
    cli: Cli,
    schema: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    what: str,
    where: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = GOOD.replace(old, new, 1)
    Path("redline.toml").write_text(bad, "utf-8")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(tomllib.loads(bad))
    told = cli("serve", "--check")
    assert told.status == 2
    assert what in told.err
    assert where in told.err


def test_limits_that_apply_to_no_call_are_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = '[tenants.team-a]\nrequests = "1/60s"\n'
    Path("redline.toml").write_text(table)
    told = cli("serve", "--endpoint", "sim", "--check")
    assert told.status == 2
    assert "the limits of tenant team-a apply to no call: no key file is set" in told.err
    assert 'keys = "keys.jsonl"' in told.err
    Path("redline.toml").write_text(f'[serve]\nkeys = "keys.jsonl"\n{table}')
    assert cli("keys", "add", "team-a").status == 0
    assert cli("serve", "--endpoint", "sim", "--check").status == 0


def test_the_default_size_of_a_body_is_what_the_help_says(cli: Cli) -> None:
    stated = re.search(r"request's body. Default: (\S+)\.", cli("serve", "--help").out)
    assert stated is not None
    assert GatewaySettings(endpoints=()).most_body_bytes == values.size(stated[1], "--body-size")


def test_a_check_names_no_address_of_an_endpoint_that_has_not_started(cli: Cli) -> None:
    told = cli("serve", "--endpoint", "sim", "--check")
    endpoints = ["1 endpoint:", "  sim: starts with the gateway"]
    assert told.out.splitlines() == [*endpoints, "address: http://127.0.0.1:8080/v1"]
    told = cli("serve", "--endpoint", "sim", "--host", "::1", "--check")
    assert told.out.splitlines() == [*endpoints, "address: http://[::1]:8080/v1"]


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--config", "none.toml"], "there is no file none.toml"),
        (["--endpoint", "nowhere"], "unknown endpoint: nowhere"),
        (["--tls-cert", "a.pem"], "HTTPS needs --tls-key, too"),
        (["--cache-ttl", "1h"], "--cache-ttl needs --cache"),
        (["--max-wait", "1s"], "--max-wait needs --function"),
        (["--function", "a:b", "--endpoint", "sim"], "--function and --endpoint cannot be"),
        ([], "a gateway needs an endpoint"),
        (["--port", "70000"], "--port"),
        (["--balance", "p3c"], "did you mean p2c?"),
        (["--drain", "48h"], "--drain must be above 0 s and at most 24 h"),
        (["--endpoint", "sim", "--body-size", "0"], "body size must be above 0"),
        (["--endpoint", "sim", "--body-size", "1.01g"], "size must be above 0 and at most 1g"),
        (["--endpoint", "sim", "--keys", "none.jsonl"], "redline keys add TENANT creates it"),
        (["--endpoint", "sim", "--keys", "junk"], "line 1 is not a key"),
        (["--endpoint", "sim", "--state", "junk/state"], "junk is not a folder"),
        (["--endpoint", "sim", "--state", "kept"], "kept/batches is not a folder"),
        (["--endpoint", "sim", "--cache", "--state", "kept2"], "kept2/answers is not a folder"),
        (["--function", "json:loads", "--cache"], "--function and --cache cannot be combined"),
        (["--function", "json:loads", "-c", "4"], "--function and --concurrency cannot be"),
        (["--function", "json:loads", "--rpm", "9"], "--function and --rpm cannot be combined"),
        (["--function", "json:loads", "--timeout", "9s"], "--function and --timeout cannot be"),
        (["--function", "json:loads", "--header", "A: b"], "--function and --header cannot be"),
        (["--function", "json:loads", "--proxy", "http://h"], "--function and --proxy cannot be"),
        (["--endpoint", "sim", "--tls-cert", "junk", "--tls-key", "junk"], "both must be PEM"),
        (["--function", "nowhere:embed"], "there is no module nowhere"),
        (["--function", "json:decoder"], "json:decoder cannot be called"),
    ],
)  # fmt: skip
def test_flags_that_cannot_be(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("junk").write_text("junk\n", "utf-8")
    for name in ("kept/batches", "kept2/answers"):
        Path(name).parent.mkdir()
        Path(name).touch()
    told = cli("serve", "--check", *flags)
    assert told.status == 2
    assert what in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("toml", "what", "where"),
    [
        ("[serve]\nport = 80.5", "--port is not a whole number: 80.5", "redline.toml, [serve]"),
        (
            "[serve]\nfunction = 'json:loads'\nmax_batch_size = 'x'",
            "--max-batch-size is not a whole number: x",
            "redline.toml, [serve]",
        ),
        ("[serve]\ndrain = '-5'", "--drain is not a time: -5", "redline.toml, [serve]"),
        ("[serve]\nbody_size = 'big'", "--body-size is not a size", "redline.toml, [serve]"),
        ("[serve]\nrpm = 'many'", "--rpm is not a number above 0: many", "redline.toml, [serve]"),
        ("[serve]\nendpoint = []", "a gateway needs an endpoint", ""),
        (
            "[serve.classes.mine]\npriority = 10",
            "the classes normal and mine both have priority 10",
            "redline.toml, [serve.classes.mine]",
        ),
        (
            "[endpoints.two]\nbase_url = 'http://127.0.0.1:9001/v1'\nrpm = 9\n"
            "share = 'none/shared'",
            "the shared limits cannot be saved in none/shared: none does not exist",
            "",
        ),
        (
            "[endpoints.two]\nbase_url = 'http://127.0.0.1:9001/v1'\nrpm = 9\nshare = '.'",
            "the shared limits cannot be saved in .: Is a directory",
            "",
        ),
        (
            "[endpoints.two]\nbase_url = 'http://127.0.0.1:9001/v1'\nshare = 'shared'",
            "there is no limit to share",
            "",
        ),
        (
            "[endpoints.two]\nbase_url = 'http://127.0.0.1:9000/v1'",
            "the endpoints one and two are the same server with the same key",
            "",
        ),
        (
            "[endpoints.'127.0.0.1:9']\nbase_url = 'http://127.0.0.1:8/v1'\n"
            "[serve]\nendpoint = ['127.0.0.1:9', 'http://127.0.0.1:9/v1']",
            "two endpoints are named 127.0.0.1:9",
            "the endpoints at http://127.0.0.1:8/v1 and http://127.0.0.1:9/v1",
        ),
    ],
)
def test_values_of_the_file_that_cannot_be_are_named_with_their_table(
    cli: Cli, toml: str, what: str, where: str
) -> None:
    one = '[endpoints.one]\nbase_url = "http://127.0.0.1:9000/v1"\n'
    Path("redline.toml").write_text(one + toml, "utf-8")
    told = cli("serve", "--check")
    assert told.status == 2
    assert what in told.err
    assert where in told.err
    assert "Traceback" not in told.err


def test_hints_name_the_file_of_config(cli: Cli) -> None:
    Path("mine.toml").write_text("[serve]\n", "utf-8")
    command = ("serve", "--check", "--config", "mine.toml")
    assert "or [endpoints.NAME] in mine.toml; to try things out" in cli(*command).err
    assert "a name from mine.toml, sim, or" in cli(*command, "--endpoint", "gpu:8000").err


def test_a_value_of_the_command_line_is_not_blamed_on_the_file(cli: Cli) -> None:
    Path("redline.toml").write_text("[serve]\nport = 1\n", "utf-8")
    told = cli("serve", "--check", "--endpoint", "sim", "--port", "x")
    assert "--port is not a whole number: x" in told.err
    assert "redline.toml" not in told.err


def test_a_start_says_what_stands_in_its_way_and_what_to_do(cli: Cli) -> None:
    Path("junk").write_text("junk\n", "utf-8")
    sim = ("serve", "--endpoint", "http://127.0.0.1:9/v1", "--port")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        told = cli(*sim, str(port))
        assert told.status == 2
        assert f"cannot listen: Address already in use\nwhere: 127.0.0.1:{port}" in told.err
        assert "choose another port" in told.err
    told = cli(*sim, "0", "--host", "203.0.113.9")
    assert "cannot listen: Cannot assign requested address" in told.err
    assert "the host must be an address of this machine" in told.err
    told = cli(*sim, "0", "--check", "--host", "")
    assert told.err.startswith("error: the host is empty")
    told = cli(*sim, "0", "--state", "junk")
    assert "the state cannot be saved in junk" in told.err
    assert "--state" in told.err


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("queued = 0", "queued must be 1 to 1,000,000"),
        ("lines = 'many'", "lines is not a whole number: many"),
        ("file_size = 0", "file_size must be above 0"),
        ("longest_window = 'soon'", "longest_window is not a time: soon"),
    ],
)
def test_a_wrong_bound_of_batches_is_named_as_the_file_has_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    head = '[endpoints.one]\nbase_url = "http://127.0.0.1:9000/v1"\n[serve.batches]\n'
    Path("redline.toml").write_text(head + line, "utf-8")
    told = cli("serve", "--check")
    assert told.status == 2
    assert what in told.err
    assert "redline.toml, [serve.batches]" in told.err
