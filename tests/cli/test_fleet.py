"""What is told of a fleet file that cannot work, and of a fleet that does not run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline.limits import Limits, Rate
from redline.serve.fleet import read_fleet
from support.scripted import scripted

Cli = Callable[..., Any]

COMMAND = f'command = "{sys.executable} server.py --port {{port}}"'
GOOD = f"""
model = "m"
[front]
port = 8080
[replica]
{COMMAND}
rpm = 600
concurrency = 8
timeout = "30s"
api_key_env = "KEY"
env = {{ CUDA_VISIBLE_DEVICES = "{{slot}}", THREADS = 4 }}
headers = {{ x-team = "a" }}
[scale]
min_replicas = 0
max_replicas = 4
target_utilization = 0.5
"""
NAME, BALANCE, FRONT, REPLICA, SCALE = (
    "fleet.toml",
    "fleet.toml, balance",
    "fleet.toml, [front]",
    "fleet.toml, [replica]",
    "fleet.toml, [scale]",
)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "secret-0123456789")


def test_a_file_states_a_fleet(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(GOOD, "utf-8")
    found = read_fleet(path)
    assert (found.model, found.balance, found.front.port) == ("m", "p2c", 8080)
    assert found.scale.max_replicas == 4
    assert found.scale.target_utilization == 0.5
    replica = found.replica
    assert tuple(replica.command) == (sys.executable, "server.py", "--port", "{port}")
    assert replica.env == {"CUDA_VISIBLE_DEVICES": "{slot}", "THREADS": "4"}
    assert replica.endpoint.limits == Limits(requests=(Rate(600, 60.0),), concurrency=8)
    assert replica.endpoint.api_key == "secret-0123456789"
    assert replica.endpoint.headers == {"x-team": "a"}
    assert replica.endpoint.timeouts.attempt_s == 30
    assert (replica.cwd, replica.logs) == (tmp_path, tmp_path / "fleet.logs")


@pytest.mark.parametrize(
    ("old", "new", "what", "where", "hint"),
    [
        ('model = "m"', "", "model is missing", NAME, "model ="),
        ('model = "m"', "model = 5", "model must be text, not a whole number", NAME, ""),
        ('model = "m"', 'modle = "m"', "unknown setting: modle", NAME, "did you mean model?"),
        ("[front]", "balance = 'p3c'\n[front]", "unknown way to balance: p3c", BALANCE, "p2c?"),
        ("[front]", "[front", "fleet.toml is not valid TOML", "fleet.toml", "toml.io"),
        ("[front]\nport = 8080", "front = 8080", "front must be a table", NAME, "write [front]"),
        ("8080", '"8080"', "port must be a whole number, not text", FRONT, ""),
        ("port = 8080", "host = ''", "the host is empty", FRONT, "0.0.0.0 means all IPv4 ones"),
        ("8080", "88080", "port must be 0 to 65535, not 88080", FRONT, "free"),
        ("port = 8080", "prot = 8080", "unknown setting: prot", FRONT, "did you mean port?"),
        (COMMAND, "", "command is empty", REPLICA, "{port}"),
        (COMMAND, 'command = "sleep 5"', "command has no {port}", REPLICA, "--port {port}"),
        (COMMAND, 'command = "nope {port}"', "command does not exist: nope", REPLICA, "install"),
        (COMMAND, 'command = "sh -c \'x {port}"', "command cannot be read", REPLICA, ""),
        (COMMAND, "command = 5", "command must be text or a list, not a whole", REPLICA, ""),
        ("rpm = 600", "rpmm = 600", "unknown setting: rpmm", REPLICA, "did you mean rpm?"),
        ("rpm = 600", "t-rial = 1\nt_rial = 2", "t_rial is set twice", REPLICA, "leave one out"),
        ("rpm = 600", 'rpm = "many"', "rpm is not", REPLICA, ""),
        ("rpm = 600", "rpm = true", "rpm must be text or a number", REPLICA, ""),
        ("concurrency = 8", "concurrency = 0", "concurrency must be", REPLICA, ""),
        (
            '"KEY"',
            '"sk-7f"',
            "api_key_env takes the name of an environment variable",
            REPLICA,
            "export",
        ),
        (
            '"KEY"',
            '"NO_KEY"',
            "api_key_env names NO_KEY, which is empty or not set",
            REPLICA,
            "export",
        ),
        ("rpm = 600", "base_url = 'http://a/v1'", "unknown setting: base_url", REPLICA, ""),
        ("rpm = 600", "trial = '/v1/embedding'", "unknown trial: /v1/embedding", REPLICA, "dings?"),
        ("rpm = 600", "start_s = 0", "start_s must be above 0", REPLICA, ""),
        ("THREADS = 4", '"A=B" = 4', "env has a variable with the name 'A=B'", REPLICA, "THREADS"),
        ("THREADS = 4", 'A = "\\u0000"', "'\\x00' has a null character", REPLICA, "leave it out"),
        ("rpm = 600", "cwd = 'nowhere'", "cwd is not a folder", REPLICA, ""),
        ("max_replicas = 4", "max_replica = 4", "unknown setting: max_replica", SCALE, "replicas?"),
        ("max_replicas = 4", "max_replicas = 4.5", "max_replicas must be a whole", SCALE, ""),
        ("min_replicas = 0", "min_replicas = 5", "max_replicas must be at least 5", SCALE, ""),
        ("min_replicas = 0", "min_replicas = true", "min_replicas must be a whole", SCALE, ""),
        ("0.5", '"half"', "target_utilization must be a number, not text", SCALE, ""),
        ("0.5", "1.5", "target_utilization must be above 0 and at most 1", SCALE, "0.7"),
        ("0.5", "0.5\npolicy = 'demmand'", "the scaling policy must be demand or rps", SCALE, ""),
    ],
)
def test_a_mistake_is_told_with_its_file_and_table(
    cli: Cli, tmp_path: Path, old: str, new: str, what: str, where: str, hint: str
) -> None:
    assert old in GOOD
    (tmp_path / "fleet.toml").write_text(GOOD.replace(old, new, 1), "utf-8")
    told = cli("fleet", "up", "fleet.toml")
    assert (told.status, told.out) == (2, "")
    assert told.err.startswith(f"error: {what}"), told.err
    assert f"\nwhere: {where}\n" in told.err, told.err
    assert hint in told.err.partition("\nhint: ")[2]
    assert "secret-0" not in told.err


def test_a_command_with_a_relative_path_is_in_the_folder_of_the_file(
    cli: Cli, tmp_path: Path
) -> None:
    program = tmp_path / "serve.sh"
    program.write_text("#!/bin/sh\n", "utf-8")
    fleet = GOOD.replace(COMMAND, 'command = ["./serve.sh", "{port}"]')
    (tmp_path / "fleet.toml").write_text(fleet, "utf-8")
    program.chmod(0o600)
    told = cli("fleet", "up", "fleet.toml")
    assert told.status == 2
    assert told.err == (
        "error: command is not executable: ./serve.sh\nwhere: fleet.toml, [replica]\n\n"
        "hint: chmod +x ./serve.sh\n"
    )
    program.chmod(0o700)
    for path in (Path("fleet.toml"), tmp_path / "fleet.toml"):
        assert tuple(read_fleet(path).replica.command) == ("./serve.sh", "{port}")


def test_a_fleet_whose_address_is_taken_starts_no_replica(
    cli: Cli, tmp_path: Path, odd: Any
) -> None:
    """Its replicas would write the logs of the fleet that runs."""
    port = odd.url.rpartition(":")[2]
    fleet = GOOD.replace("8080", port).replace("min_replicas = 0", "min_replicas = 1")
    (tmp_path / "fleet.toml").write_text(fleet, "utf-8")
    told = cli("fleet", "up", "fleet.toml")
    assert (told.status, told.out) == (2, "")
    assert told.err.startswith("error: the server cannot listen: Address already in use")
    assert not (tmp_path / "fleet.logs").exists()


def test_a_file_that_is_not_there(cli: Cli) -> None:
    told = cli("fleet", "up", "fleet.toml")
    assert (told.status, told.out) == (2, "")
    assert told.err.startswith("error: there is no file fleet.toml\n")


def test_a_command_that_is_mistyped_or_missing(cli: Cli) -> None:
    assert "hint: did you mean status?" in cli("fleet", "statsu").err
    assert cli("fleet") == cli("fleet", "--help")
    assert cli("fleet").status == 0


def test_no_fleet_runs(cli: Cli, tmp_path: Path, odd: Any) -> None:
    (tmp_path / "fleet.toml").write_text(GOOD.replace("8080", "9"), "utf-8")
    told = cli("fleet", "status", "fleet.toml")
    assert (told.status, told.out) == (2, "")
    assert told.err.startswith("error: no fleet answers at 127.0.0.1:9: Connection refused")
    assert "\nwhere: fleet.toml\n" in told.err
    told = cli("fleet", "status", odd.url)
    assert told.status == 2
    assert told.err.startswith("error: this is not a redline fleet")
    told = cli("fleet", "status", odd.url.replace("http:", "https:"))
    assert told.status == 2
    assert told.err.startswith("error: no fleet answers at 127.0.0.1:")
    told = cli("fleet", "status", "http://me:secret-1@127.0.0.1:9")
    assert "\nwhere: http://...@127.0.0.1:9\n" in told.err
    for url in ("http://127.0.0.1:99999", "https://[::1", "http://"):
        told = cli("fleet", "status", url)
        assert told.status == 2
        assert told.err.startswith(f"error: the URL of the fleet is not valid\nwhere: {url}\n")
    (tmp_path / "fleet.toml").write_text(GOOD.replace("8080", "0"), "utf-8")
    assert "fleet.toml sets no port" in cli("fleet", "status", "fleet.toml").err


def test_a_page_that_is_not_text_is_not_a_fleets(cli: Cli) -> None:
    with scripted(lambda asked: b"\xff") as server:
        for more in ([], ["--json"]):
            told = cli("fleet", "status", server.base_url, *more)
            assert (told.status, told.out) == (2, "")
            assert told.err.startswith("error: this is not a redline fleet: its page is not UTF-8")


def test_hidden_characters_of_a_fleet_are_escaped_in_json(cli: Cli) -> None:
    page = '{"model": "a\u200bb"}'.encode()
    with scripted(lambda asked: page) as server:
        told = cli("fleet", "status", server.base_url, "--json")
    assert told == (0, '{"model": "a\\u200bb"}\n', "")
