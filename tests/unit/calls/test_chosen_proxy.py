"""The proxy that an endpoint is reached through: a stated one, or the environment's."""

from __future__ import annotations

import os
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from redline.calls import Endpoint
from redline.calls.wire import proxy_of
from redline.errors import ConfigError

SECRET = "sk-planted-4711"
PROXY = "http://proxy.invalid:3128"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that names no proxy."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def endpoint(base_url: str = "https://h.invalid/v1", **settings: Any) -> Endpoint:
    return Endpoint(base_url=base_url, **settings)


def test_a_stated_proxy_goes_before_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_of(endpoint()) is None
    assert proxy_of(endpoint(proxy=PROXY)) == PROXY
    monkeypatch.setenv("https_proxy", "http://other.invalid:1")
    monkeypatch.setenv("no_proxy", "h.invalid")
    assert proxy_of(endpoint(proxy=PROXY)) == PROXY
    assert proxy_of(endpoint(proxy="")) is None


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY", "Https_Proxy"])
def test_the_environment_names_a_proxy_for_each_scheme(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, PROXY)
    assert proxy_of(endpoint("https://h.invalid/v1")) == PROXY
    assert proxy_of(endpoint("http://h.invalid/v1")) is None


def test_the_lower_case_name_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://other.invalid:1")
    monkeypatch.setenv("https_proxy", PROXY)
    assert proxy_of(endpoint()) == PROXY


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_the_settings_of_a_system_name_a_proxy_without_any_variable(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.calls.wire.endpoint.sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": PROXY})
    monkeypatch.setattr(urllib.request, "proxy_bypass", lambda host: host == "local.invalid")
    assert proxy_of(endpoint("https://h.invalid/v1")) == PROXY
    assert proxy_of(endpoint("https://local.invalid/v1")) is None
    assert proxy_of(endpoint("http://h.invalid/v1")) is None


@pytest.mark.parametrize(
    ("exempt", "base_url", "is_reached_directly"),
    [
        ("h.invalid", "https://h.invalid/v1", True),
        ("h.invalid:8000", "https://h.invalid:8000/v1", True),
        ("h.invalid:8000", "https://h.invalid:9000/v1", False),
        ("*", "https://h.invalid/v1", True),
        ("other.invalid", "https://h.invalid/v1", False),
        ("localhost, ::1", "https://[::1]:8000/v1", True),
        ("[::1]", "https://[::1]:8000/v1", True),
        ("::1", "https://[::2]:8000/v1", False),
    ],
)
def test_no_proxy_names_hosts_that_are_reached_directly(
    exempt: str, base_url: str, *, is_reached_directly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", PROXY)
    monkeypatch.setenv("no_proxy", exempt)
    assert proxy_of(endpoint(base_url)) == (None if is_reached_directly else PROXY)


@pytest.mark.parametrize("password", ["a..b", "\u00e4..b", "\u00e4" * 64])
def test_the_password_of_a_proxy_need_not_have_the_form_of_a_host(password: str) -> None:
    proxy = f"http://me:{password}@proxy.invalid:3128"
    assert proxy_of(endpoint(proxy=proxy)) == proxy


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_an_unusable_proxy_of_the_environment_is_named_by_its_variable_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, f"socks5://me:{SECRET}@proxy.invalid")
    with pytest.raises(ConfigError, match=f"^{name} is not the URL of an HTTP proxy") as caught:
        proxy_of(endpoint())
    assert SECRET not in str(caught.value)
    assert caught.value.where == "the environment"
    assert caught.value.hint == "use a URL such as http://host:port, or unset it"


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({}, False),
        ({"api_key": SECRET}, True),
        ({"headers": {"X-Api-Key": SECRET}}, True),
        ({"headers": {"Accept": "*/*", "Authorization": SECRET}}, True),
        ({"headers": {"Accept": "*/*"}}, False),
        # It is meant for the proxy.
        ({"headers": {"Proxy-Authorization": SECRET}}, False),
    ],
)
@pytest.mark.parametrize("way", ["--proxy", "http_proxy", "HTTP_PROXY"])
def test_no_proxy_gets_to_read_a_key(
    settings: dict[str, Any], way: str, *, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = {"proxy": PROXY} if way == "--proxy" else {}
    if not stated:
        monkeypatch.setenv(way, PROXY)
        monkeypatch.setenv("https_proxy", PROXY)
    # Through a tunnel the proxy reads nothing.
    assert proxy_of(endpoint("https://h.invalid/v1", **settings, **stated)) == PROXY
    plain = endpoint("http://h.invalid/v1", **settings, **stated)
    if not is_refused:
        assert proxy_of(plain) == PROXY
        return
    with pytest.raises(ConfigError, match="the proxy would read the API key") as caught:
        proxy_of(plain)
    assert SECRET not in str(caught.value)
    assert "http://h.invalid/v1 is not https" in caught.value.what
    assert caught.value.where == way
    assert "NO_PROXY=h.invalid" in caught.value.hint


@pytest.mark.parametrize("name", ["Host", "host", "HOST"])
def test_a_host_header_needs_a_tunnel(name: str) -> None:
    headers = {name: "other.invalid"}
    assert proxy_of(endpoint("https://h.invalid/v1", proxy=PROXY, headers=headers)) == PROXY
    assert proxy_of(endpoint("http://h.invalid/v1", proxy="", headers=headers)) is None
    with pytest.raises(ConfigError, match="takes the host from the URL") as caught:
        proxy_of(endpoint("http://h.invalid/v1", proxy=PROXY, headers=headers))
    assert "not from the Host header" in caught.value.what
    assert caught.value.where == "--proxy"
    assert caught.value.hint == "leave the header out, or use https"
