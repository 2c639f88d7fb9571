"""From the headers of a request to its tenant, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from redline.errors import ConfigError
from redline.serve.http import Refusal
from redline.serve.keys import InvalidKey, Keyring, Tenants, TenantSettings, add_key, revoke_key
from redline.testing import ManualClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


def refused(keyring: Keyring, authorization: str | None, api_key: str | None = None) -> InvalidKey:
    with pytest.raises(InvalidKey) as caught:
        keyring.known(authorization, api_key)
    error = caught.value
    assert isinstance(error, Refusal)
    assert error.status == 401
    assert error.body["error"]["code"] == "invalid_api_key"
    assert error.body["error"]["type"] == "invalid_request_error"
    assert error.headers == {"www-authenticate": "Bearer"}
    return error


def test_each_header_leads_to_the_tenant_of_the_key(path: Path) -> None:
    _, of_acme = add_key(path, "acme")
    _, of_lab = add_key(path, "lab")
    _, also_of_acme = add_key(path, "acme")
    tenants = Tenants({"acme": TenantSettings(concurrency=3)})
    keyring = Keyring(path, tenants)
    acme = keyring.known(f"Bearer {of_acme}").tenant
    assert acme is tenants.of("acme")
    assert acme.settings.concurrency == 3
    assert keyring.known(f"bearer  {also_of_acme} ").tenant is acme
    assert keyring.known(None, of_acme).tenant is acme
    assert keyring.known("Basic YTpi", of_acme).tenant is acme
    assert keyring.known("", of_acme).tenant is acme
    assert keyring.known(f"BEARER {of_lab}", of_acme).tenant.name == "lab"
    assert keyring.known(None, of_lab).tenant.settings == TenantSettings()


@pytest.mark.parametrize(
    ("authorization", "api_key", "told"),
    [
        (None, None, "No API key was provided"),
        ("", None, "No API key was provided"),
        ("Bearer ", None, "No API key was provided"),
        ("Bearer", None, "No API key was provided"),
        ("Basic {secret}", None, "No API key was provided"),
        ("{secret}", None, "No API key was provided"),
        (None, "", "No API key was provided"),
        ("Bearer {secret}x", None, "Incorrect API key"),
        ("Bearer {secret}, Bearer {secret}", None, "Incorrect API key"),
        ("Bearer rl-\u00e9\u4e00", None, "Incorrect API key"),
        ("Bearer sk-another-servers-key", "{secret}", "Incorrect API key"),
        (None, "x" * 100_000, "Incorrect API key"),
        (None, "{digest}", "Incorrect API key"),
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(
    path: Path, authorization: str | None, api_key: str | None, told: str
) -> None:
    key, secret = add_key(path, "acme")
    keyring = Keyring(path, Tenants())
    given = [
        None if text is None else text.replace("{secret}", secret).replace("{digest}", key.sha256)
        for text in (authorization, api_key)
    ]
    error = refused(keyring, *given)
    assert told in str(error)
    for text in given:
        if text is not None and len(text) > 10:
            assert text.removeprefix("Bearer ") not in str(error.body)
    assert secret[7:] not in str(error.body)


def test_an_expired_key_is_refused_from_its_second_on(path: Path) -> None:
    key, secret = add_key(path, "acme", lasts_s=60.0)
    assert key.expires is not None
    clock = ManualClock(wall_s=key.expires.timestamp() - 0.5)
    keyring = Keyring(path, Tenants(), clock)
    assert keyring.known(None, secret).tenant.name == "acme"
    clock.advance(0.5)
    error = refused(keyring, None, secret)
    assert f"The API key {key.id} expired on {key.expires:%Y-%m-%d}" in str(error)


def test_a_revoked_key_is_refused_after_a_reload_and_others_go_on(path: Path) -> None:
    key, secret = add_key(path, "acme")
    _, other = add_key(path, "acme")
    keyring = Keyring(path, Tenants())
    assert not keyring.reload_if_changed()
    acme = keyring.known(None, secret).tenant
    started = acme.limits.try_start(0.0)
    revoke_key(path, key.id)
    assert keyring.reload_if_changed()
    assert f"The API key {key.id} has been revoked" in str(refused(keyring, None, secret))
    assert keyring.known(None, other).tenant is acme, "what counts against its limits stays"
    assert acme.limits.in_flight == 1
    assert started is not None


def test_a_new_key_is_known_after_a_reload(path: Path) -> None:
    add_key(path, "acme")
    keyring = Keyring(path, Tenants())
    _, secret = add_key(path, "lab")
    refused(keyring, None, secret)
    keyring.take(keyring.read())
    assert keyring.known(None, secret).tenant.name == "lab"


@pytest.mark.parametrize("damage", ["half", "gone", "mode"])
def test_a_damaged_file_leaves_the_keys_as_they_were(path: Path, damage: str) -> None:
    _, secret = add_key(path, "acme")
    keyring = Keyring(path, Tenants())
    data = path.read_bytes()
    if damage == "half":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "gone":
        path.unlink()
    else:
        path.chmod(0o666)
    if damage != "mode":
        with pytest.raises(ConfigError):
            keyring.reload_if_changed()
    with pytest.raises(ConfigError):
        keyring.take(keyring.read())
    assert keyring.known(None, secret).tenant.name == "acme"
    with pytest.raises(ConfigError):
        Keyring(path, Tenants())


def test_a_change_of_the_same_length_is_seen(path: Path) -> None:
    _, secret = add_key(path, "acme")
    keyring = Keyring(path, Tenants())
    found = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b"acme", b"emca"))
    other.chmod(0o600)
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)
    assert keyring.reload_if_changed()
    assert keyring.known(None, secret).tenant.name == "emca"


def test_an_empty_file_refuses_everyone(path: Path) -> None:
    path.touch(0o600)
    refused(Keyring(path, Tenants()), "Bearer rl-x")
    refused(Keyring(path, Tenants()), None)


def test_without_a_file_everyone_is_the_default_tenant() -> None:
    tenants = Tenants({"default": TenantSettings(concurrency=2)})
    keyring = Keyring(None, tenants)
    assert keyring.known(None).tenant is tenants.of("default")
    assert keyring.known("Bearer anything").tenant.settings.concurrency == 2
    keyring.take(keyring.read())
    assert not keyring.reload_if_changed()
