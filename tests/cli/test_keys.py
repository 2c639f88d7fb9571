"""`redline keys`: what it prints, what it keeps, and what it says of mistakes."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline.serve.keys import Keyring, Tenants

Cli = Callable[..., Any]
SECRET = re.compile(r"rl-[A-Za-z0-9_-]{43}")
ADDED = re.compile(
    r"key (k-[0-9a-f]{8}) of tenant team-a, until (\d{4}-\d\d-\d\d \d\d:\d\d) UTC: "
    r"copy it now, because keys\.jsonl does not contain it\n"
)


def test_a_key_is_printed_once_and_opens_the_door(cli: Cli, tmp_path: Path) -> None:
    told = cli("keys", "add", "team-a", "--expires", "90d", "--note", "nightly jobs")
    assert told.status == 0
    secret = told.out.strip()
    assert SECRET.fullmatch(secret)
    assert told.out == f"{secret}\n", "it is the only line on stdout"
    assert ADDED.fullmatch(told.err), told.err
    path = tmp_path / "keys.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Keyring(path, Tenants()).known(f"Bearer {secret}").tenant.name == "team-a"


def test_a_list_has_no_secret_and_no_hash(cli: Cli, tmp_path: Path) -> None:
    secrets = [cli("keys", "add", "team-a", "--expires", "90d", "--note", "ci").out.strip()]
    secrets += [cli("keys", "add", "b").out.strip()]
    lines = [json.loads(line) for line in (tmp_path / "keys.jsonl").read_text().splitlines()]
    plain, as_json = cli("keys", "list"), cli("keys", "list", "--json")
    for told in (plain, as_json):
        assert (told.status, told.err) == (0, "")
        for secret, line in zip(secrets, lines, strict=True):
            assert secret[7:] not in told.out
            assert secret[:7] in told.out
            assert line["sha256"] not in told.out
    header, first, second, blank, count = plain.out.splitlines()
    assert header.split() == ["id", "tenant", "key", "created", "expires", "state", "note"]
    created, expires = lines[0]["created"][:10], lines[0]["expires"][:10]
    starts = f"{secrets[0][:7]}..."
    shown = [lines[0]["id"], "team-a", starts, created, expires, "active", "ci"]
    assert first.split() == shown
    assert second.split()[4:] == ["never", "active"]
    assert (blank, count) == ("", "2 keys in keys.jsonl")
    found = json.loads(as_json.out)
    assert [one["tenant"] for one in found] == ["team-a", "b"]
    assert found[1] == {
        "id": lines[1]["id"],
        "tenant": "b",
        "starts": secrets[1][:7],
        "created": lines[1]["created"],
        "expires": None,
        "revoked": None,
        "state": "active",
        "note": "",
    }


def test_a_revoked_key_is_shown_as_such(cli: Cli, tmp_path: Path) -> None:
    cli("keys", "add", "team-a")
    key_id = json.loads((tmp_path / "keys.jsonl").read_text())["id"]
    assert cli("keys", "revoke", key_id) == (0, f"key {key_id} of tenant team-a is revoked\n", "")
    again = cli("keys", "revoke", key_id)
    assert again.status == 0
    assert re.fullmatch(
        rf"key {key_id} of tenant team-a was revoked on \d{{4}}-\d\d-\d\d\n", again.out
    )
    assert " revoked" in cli("keys", "list").out
    assert json.loads(cli("keys", "list", "--json").out)[0]["state"] == "revoked"


def test_another_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "other.keys"
    cli("keys", "add", "team-a", "--file", str(path))
    assert f"1 key in {path}" in cli("keys", "list", "--file", str(path)).out
    assert not (tmp_path / "keys.jsonl").exists()
    path.write_text("")
    assert cli("keys", "list", "--file", str(path)).out == f"{path} holds no keys\n"
    assert cli("keys", "list", "--file", str(path), "--json").out == "[]\n"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (
            ["list"],
            "error: there is no file keys.jsonl\n\nhint: redline keys add TENANT creates it\n",
        ),
        (["revoke", "k-1"], "error: there is no file keys.jsonl\n\nhint: redline keys add TENANT"),
        (["add"], "error: TENANT is missing\nwhere: redline keys add\n"),
        (["add", "team a"], "error: not a tenant's name: team a\n\nhint: use up to 64 letters"),
        (["add", "a", "--expires", "soon"], "error: --expires is not a time: soon\n"),
        (["add", "a", "--expires", "9999d"], "error: --expires must be above 0 s and at most"),
        (["add", "a", "--note", "x" * 201], "error: a note is one line of at most 200 characters"),
        (
            ["add", "a", "--file", "no/keys.jsonl"],
            "error: cannot write no/keys.jsonl: No such file",
        ),
        (
            ["add", "a", "--expire", "9d"],
            "error: unknown flag: --expire\n\nhint: did you mean --ex",
        ),
        (["ad", "a"], "error: unknown command: ad\n\nhint: did you mean add?"),
    ],
)
def test_mistakes(cli: Cli, tmp_path: Path, argv: list[str], told: str) -> None:
    found = cli("keys", *argv)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith(told), found.err
    assert not (tmp_path / "keys.jsonl").exists()


def test_a_key_given_for_its_id_is_not_repeated(cli: Cli, tmp_path: Path) -> None:
    secret = cli("keys", "add", "team-a").out.strip()
    key_id = json.loads((tmp_path / "keys.jsonl").read_text())["id"]
    found = cli("keys", "revoke", secret)
    assert (found.status, found.out) == (2, "")
    assert found.err == (
        "error: the given text is a key, not the id of a key\nwhere: keys.jsonl\n\n"
        f"hint: its id is {key_id}\n"
    )


def test_a_damaged_file_is_named_with_its_line_and_left_alone(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    cli("keys", "add", "team-a")
    data = path.read_bytes() + b'{"id": "k-1", "tenant": "b", "starts": "rl-'
    path.write_bytes(data)
    for argv in (["list"], ["add", "b"], ["revoke", "k-1"]):
        found = cli("keys", *argv)
        assert (found.status, found.out) == (2, "")
        assert found.err.startswith(
            "error: line 2 is not a key: it is not JSON\nwhere: keys.jsonl\n\nhint: fix or delete"
        )
    assert path.read_bytes() == data


def test_a_note_moves_no_cursor(cli: Cli, tmp_path: Path) -> None:
    cli("keys", "add", "team-a", "--note", "fine")
    path = tmp_path / "keys.jsonl"
    path.write_bytes(path.read_bytes().replace(b"fine", rb"\u001b[2Jbad\nline"))
    told = cli("keys", "list")
    assert "\x1b" not in told.out
    assert told.out.splitlines()[1].endswith("bad line")


@pytest.mark.slow
def test_several_processes_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "redline", "keys", "add"]
    makers = [
        subprocess.Popen([*command, f"team-{number}"], stdout=-1, stderr=-1, text=True)
        for number in range(6)
    ]
    secrets = [maker.communicate()[0].strip() for maker in makers]
    assert [maker.returncode for maker in makers] == [0] * 6
    keyring = Keyring(tmp_path / "keys.jsonl", Tenants())
    names = [keyring.known(None, secret).tenant.name for secret in secrets]
    assert names == [f"team-{number}" for number in range(6)]
