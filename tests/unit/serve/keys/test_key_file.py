"""The file of keys: what is in it, who may change it, and what is told of one that is damaged."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.serve.keys import add_key, read_keys, revoke_key

TIMEOUT_S = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_kept_as_a_hash(path: Path) -> None:
    key, secret = add_key(path, "acme", lasts_s=3600.0, note="ci")
    assert secret.startswith("rl-")
    assert len(secret) == 3 + 43, "256 bits in URL-safe base64"
    (kept,) = read_keys(path)
    assert kept == key
    assert key.sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert (key.tenant, key.note, key.starts) == ("acme", "ci", secret[:7])
    assert key.expires == key.created + timedelta(hours=1)
    assert secret[7:] not in path.read_text("utf-8")


def test_no_two_keys_are_the_same(path: Path) -> None:
    made = [add_key(path, "acme") for _ in range(20)]
    assert len({secret for _, secret in made}) == 20
    assert len({key.id for key, _ in made}) == 20
    assert read_keys(path) == [key for key, _ in made]


def test_only_the_owner_may_read_a_new_file_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        add_key(path, "acme")
        assert mode_of(path) == 0o600
        add_key(path, "acme")
    finally:
        os.umask(before)
    assert mode_of(path) == 0o600
    assert [other.name for other in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o640), (0o640, 0o640)])
def test_a_group_may_go_on_reading_and_others_may_not(path: Path, before: int, after: int) -> None:
    add_key(path, "acme")
    path.chmod(before)
    add_key(path, "acme")
    assert mode_of(path) == after


@pytest.mark.parametrize("mode", [0o660, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    add_key(path, "acme")
    path.chmod(mode)
    for act in (read_keys, lambda path: add_key(path, "acme"), lambda path: revoke_key(path, "k")):
        with pytest.raises(ConfigError, match="other users can write") as caught:
            act(path)
        assert caught.value.hint == f"chmod 600 {path}"


def test_a_revoked_key_stays_in_the_file(path: Path) -> None:
    first, _ = add_key(path, "acme")
    second, _ = add_key(path, "lab")
    revoked, is_new = revoke_key(path, first.id)
    assert is_new
    assert revoked.revoked is not None
    assert read_keys(path) == [revoked, second]
    assert revoke_key(path, first.id) == (revoked, False)
    assert mode_of(path) == 0o600


def test_states(path: Path) -> None:
    key, _ = add_key(path, "acme", lasts_s=60.0)
    now = datetime.now(UTC)
    assert key.state(now) == "active"
    assert key.state(now + timedelta(seconds=61)) == "expired"
    assert revoke_key(path, key.id)[0].state(now) == "revoked"


def test_lines_of_others_are_kept_byte_for_byte(path: Path) -> None:
    key, _ = add_key(path, "acme")
    edited = json.dumps(json.loads(path.read_bytes()), indent=None, separators=(" ,  ", " : "))
    path.write_bytes(b"\n" + edited.encode() + b"\n\n" + b"  \n")
    path.chmod(0o600)
    before = path.read_bytes()
    second, _ = add_key(path, "lab")
    assert path.read_bytes().startswith(before)
    revoke_key(path, second.id)
    assert path.read_bytes().startswith(before)
    assert [one.id for one in read_keys(path)] == [key.id, second.id]


def test_a_last_line_without_its_end_is_completed(path: Path) -> None:
    add_key(path, "acme")
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    add_key(path, "lab")
    assert [key.tenant for key in read_keys(path)] == ["acme", "lab"]


def test_an_empty_file_has_no_keys_and_a_missing_one_is_an_error(path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        read_keys(path)
    with pytest.raises(ConfigError, match="there is no file"):
        revoke_key(path, "k-1")
    assert not path.exists(), "nothing was made by looking"
    path.touch(0o600)
    assert read_keys(path) == []


GARBAGE: list[tuple[Any, str]] = [
    (b'{"id": "k-1", "tena', "it is not JSON"),
    (b"\xff\xfe\x00garbage", "it is not JSON"),
    (b"null", "Expected `object`"),
    (b"[" * 3000, "Expected `object`"),
    ({"tenant": None}, "`$.tenant`"),
    ({"tenant": "a b"}, "`$.tenant`"),
    ({"tenant": "acme\n"}, "`$.tenant`"),
    ({"sha256": "abc"}, "`$.sha256`"),
    ({"sha256": "A" * 64}, "`$.sha256`"),
    ({"created": "yesterday"}, "`$.created`"),
    ({"expires": "2026-01-01T00:00:00"}, "`$.expires`"),
    ({"note": "x" * 201}, "`$.note`"),
    ({"starts": "\x1b[2J"}, "`$.starts`"),
    ({"secret": "rl-verysecretverysecret"}, "a key: it contains unknown field `secret`"),
]


@pytest.mark.parametrize(("damage", "reason"), GARBAGE)
def test_a_damaged_line_is_named_and_the_file_is_left_alone(
    path: Path, damage: Any, reason: str
) -> None:
    key, secret = add_key(path, "acme")
    if isinstance(damage, dict):
        damage = json.dumps({**json.loads(path.read_bytes()), "id": "k-2", **damage}).encode()
    data = path.read_bytes() + damage
    path.write_bytes(data)
    acts = (read_keys, lambda path: add_key(path, "x"), lambda path: revoke_key(path, key.id))
    for act in acts:
        with pytest.raises(ConfigError) as caught:
            act(path)
        error = caught.value
        assert error.what.startswith("line 2 is not a key: ")
        assert reason in error.what
        assert error.where == str(path)
        assert "verysecret" not in str(error)
        assert secret[7:] not in str(error)
    assert path.read_bytes() == data


@pytest.mark.parametrize(("field", "told"), [("sha256", "the id k-"), ("id", "the same key")])
def test_two_lines_of_one_key_are_refused(path: Path, field: str, told: str) -> None:
    add_key(path, "acme")
    line = json.loads(path.read_bytes())
    line[field] = "0" * 64
    with path.open("a") as file:
        file.write(json.dumps(line))
    with pytest.raises(ConfigError, match=f"lines 1 and 2 have {told}"):
        read_keys(path)


def test_what_is_no_file_is_refused_at_once(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file"):
        read_keys(tmp_path)
    path.touch(0o600)
    os.truncate(path, 2**40)
    with pytest.raises(ConfigError, match="is larger than 256 MiB"):
        read_keys(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is not a file"):
        read_keys(path)


def test_a_link_stays_one(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.jsonl"
    add_key(target, "acme")
    path.symlink_to(target)
    add_key(path, "lab")
    assert path.is_symlink()
    assert [key.tenant for key in read_keys(target)] == ["acme", "lab"]


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "a\nb", "x" * 65, "é", "\x1b[2J"])
def test_names_that_are_none(path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a tenant's name") as caught:
        add_key(path, name)
    assert "\x1b" not in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize(
    "facts", [{"note": "x" * 201}, {"note": "a\nb"}, {"lasts_s": 0.0}, {"lasts_s": 4e8}]
)
def test_a_key_that_cannot_be_is_not_made(path: Path, facts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        add_key(path, "acme", **facts)
    assert not path.exists()


def test_a_secret_in_place_of_an_id_is_not_repeated(path: Path) -> None:
    key, secret = add_key(path, "acme")
    for given, hint in ((secret, f"its id is {key.id}"), ("rl-" + "x" * 43, "keys list")):
        with pytest.raises(ConfigError) as caught:
            revoke_key(path, given)
        assert given[3:] not in str(caught.value)
        assert hint in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        revoke_key(path, key.id[:-1])
    assert caught.value.hint == f"did you mean {key.id}?"


ADDING = """
import sys
from pathlib import Path
from redline.serve.keys import add_key, revoke_key
for number in range(int(sys.argv[3])):
    key, _ = add_key(Path(sys.argv[1]), sys.argv[2])
    if number % 2:
        revoke_key(Path(sys.argv[1]), key.id)
"""


def test_two_writers_lose_nothing(path: Path) -> None:
    """Each of four processes adds keys and revokes half of them, all at once."""
    each = 15
    names = [f"team-{number}" for number in range(4)]
    writers = [
        subprocess.Popen([sys.executable, "-c", ADDING, str(path), name, str(each)])
        for name in names
    ]
    assert [writer.wait(TIMEOUT_S) for writer in writers] == [0] * len(writers)
    keys = read_keys(path)
    for name in names:
        own = [key for key in keys if key.tenant == name]
        assert len(own) == each
        assert sum(key.revoked is not None for key in own) == each // 2
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_a_reader_never_sees_half_a_file(path: Path) -> None:
    add_key(path, "acme")
    writer = subprocess.Popen([sys.executable, "-c", ADDING, str(path), "lab", "30"])
    counts = []
    while writer.poll() is None:
        counts.append(len(read_keys(path)))
    assert writer.returncode == 0
    assert counts == sorted(counts)
    assert len(read_keys(path)) == 31


def test_nothing_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        key, secret = add_key(path, "acme")
        revoke_key(path, key.id)
        read_keys(path)
    assert secret[7:] not in caplog.text
    assert secret not in repr(key)
