"""Proxies: what names one that cannot be used, and that none of them reads a key."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import redline

Cli = Callable[..., Any]
Rows = Callable[..., str]

KEY = "sk-0123456789abcdef"
MALFORMED = [
    "garbage",
    "h:3128",
    "http://",
    "http://:3128",
    "http://h:99999",
    "http://[::1",
    "socks5://h:1",
]


@contextmanager
def recording(reply: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A proxy that answers each connection's first bytes with `reply`, and keeps them."""
    heard: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            with connected:
                heard.append(connected.recv(65_536))
                connected.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize("value", MALFORMED)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY"])
def test_a_malformed_variable_is_named_before_anything_is_sent(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    scheme = name.lower().removesuffix("_proxy")
    told = cli(
        "run", rows({"prompt": "a"}), "--model", "m", "--base-url", f"{scheme}://h.invalid/v1"
    )
    assert told.status == 2
    assert told.err == (
        f"error: {name} is not the URL of an HTTP proxy\n"
        "where: the environment\n\n"
        "hint: use a URL such as http://host:port, or unset it\n"
    )


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_flag_is_named(cli: Cli, rows: Rows, value: str) -> None:
    where = ("--base-url", "http://h.invalid/v1", "--proxy", value)
    told = cli("run", rows({"prompt": "a"}), "--model", "m", *where)
    assert told.status == 2
    assert told.err.startswith("error: the proxy is not the URL of an HTTP proxy\nwhere: --proxy\n")


@pytest.mark.parametrize(
    "value", ["garbage", "http://", "https://h:99999/v1", "http://h:x", "://", "http://["]
)
def test_a_malformed_base_url_is_named(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", value)
    told = cli("run", rows({"prompt": "a"}), "--model", "m")
    assert told.status == 2
    assert told.err.startswith(f"error: not a base URL: {value}\nwhere: OPENAI_BASE_URL\n")


@pytest.mark.parametrize("way", ["flag", "variable"])
@pytest.mark.parametrize("secret", ["key", "header"])
def test_a_proxy_is_not_shown_the_key_of_a_plain_http_endpoint(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch, way: str, secret: str
) -> None:
    file = rows({"prompt": "a"})
    flags = ["--model", "m", "--base-url", "http://h.invalid/v1", "--max-retries", "0"]
    monkeypatch.setenv("MY_KEY", KEY)
    flags += ["--api-key-env", "MY_KEY"] if secret == "key" else ["--header", f"X-Api-Key: {KEY}"]
    with recording(b"") as (proxy, heard):
        if way == "flag":
            flags += ["--proxy", proxy]
        else:
            monkeypatch.setenv("HTTP_PROXY", proxy)
        told = cli("run", file, *flags)
    assert heard == []
    assert told.status == 2
    where = "--proxy" if way == "flag" else "HTTP_PROXY"
    assert told.err == (
        "error: the proxy would read the API key, because http://h.invalid/v1 is not https\n"
        f"where: {where}\n\n"
        "hint: use https, or reach the endpoint without a proxy: leave out --proxy, and set "
        "NO_PROXY=h.invalid\n"
    )


def test_a_tunnel_is_asked_for_without_the_key(cli: Cli, rows: Rows) -> None:
    with recording(b"HTTP/1.1 302 Found\r\nLocation: http://h.invalid/\r\n\r\n") as (proxy, heard):
        report = redline.run(
            [{"prompt": "a"}],
            model="m",
            endpoint="https://h.invalid/v1",
            api_key=KEY,
            headers={"X-Api-Key": KEY},
            proxy=proxy,
            max_retries=0,
        )
    assert not report.succeeded
    assert heard
    assert all(head.startswith(b"CONNECT h.invalid:443 ") for head in heard)
    assert not any(KEY.encode() in head or b"uthorization" in head for head in heard)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    with recording(b"") as (elsewhere, heard):
        head = (
            f"HTTP/1.1 {status} Elsewhere\r\nLocation: {elsewhere}/v1\r\nContent-Length: 0\r\n\r\n"
        )
        with recording(head.encode()) as (url, asked):
            report = redline.run(
                [{"prompt": "a"}],
                model="m",
                endpoint=f"{url}/v1",
                api_key=KEY,
                proxy="",
            )
    assert (report.failed, len(asked), heard) == (1, 1, [])
