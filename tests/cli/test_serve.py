"""`redline serve` without serving: what it says of settings."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

Cli = Callable[..., Any]

GOOD = """
[serve]
port = 8080
cache = true
cache-ttl = "1h"
endpoint = ["one"]
[serve.classes.low]
most_waiting = 5
[endpoints.one]
base_url = "http://127.0.0.1:9000/v1"
models = { fast = "m" }
metrics = "/metrics"
rpm = 500
[endpoints.one.prices.m]
input = 0.5
output = "1.5"
[tenants.a]
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
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def test_the_schema_takes_what_the_command_takes(
    cli: Cli, schema: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("redline.toml").write_text(GOOD, "utf-8")
    jsonschema.validate(tomllib.loads(GOOD), schema)
    told = cli("serve", "--check")
    assert (told.status, told.err) == (0, "")
    assert "one: http://127.0.0.1:9000/v1, models fast" in told.out


@pytest.mark.parametrize(
    ("old", "new", "what", "where"),
    [
        ("port = 8080", "prot = 8080", "unknown setting: prot", "redline.toml, [serve]"),
        ("cache = true", "cache = 'yes'", "cache must be true or false", "redline.toml, [serve]"),
        ("most_waiting = 5", "most = 5", "unknown setting: most", "[serve.classes.low]"),
        ("base_url = \"", "base = \"", "unknown setting: base", "[endpoints.one]"),
        ("admin = true", "admin = 'no'", "admin must be true or false", "[tenants.a]"),
        ("[tenants.a]", "[tenant.a]", "unknown setting: tenant", "redline.toml"),
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
        jsonschema.validate(tomllib.loads(bad), schema)
    told = cli("serve", "--check")
    assert told.status == 2
    assert what in told.err
    assert where in told.err


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--config", "none.toml"], "there is no file none.toml"),
        (["--endpoint", "nowhere"], "unknown endpoint: nowhere"),
        (["--tls-cert", "a.pem"], "HTTPS needs --tls-key, too"),
        (["--cache-ttl", "1h"], "--cache-ttl needs --cache"),
        (["--max-wait", "1s"], "--max-wait needs --function"),
        (["--function", "a:b", "--endpoint", "sim"], "--function and --endpoint exclude each"),
        ([], "a gateway needs an endpoint"),
        (["--port", "70000"], "--port"),
        (["--balance", "p3c"], "did you mean p2c?"),
    ],
)  # fmt: skip
def test_flags_that_cannot_be(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = cli("serve", "--check", *flags)
    assert told.status == 2
    assert what in told.err
