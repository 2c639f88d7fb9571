"""Where a request goes, and what an endpoint refuses to be."""

from __future__ import annotations

import pytest
from rich.pretty import pretty_repr

from redline.calls import Endpoint, Timeouts
from redline.errors import ConfigError

SECRET = "sk-planted-4711"


@pytest.mark.parametrize(
    ("base_url", "path", "url"),
    [
        ("https://h/v1", "/v1/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/v1/", "/v1/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/v1", "/v1", "https://h/v1"),
        ("https://h/api/v1", "/v1/embeddings", "https://h/api/v1/embeddings"),
        ("https://h/v1beta/openai", "/v1/embeddings", "https://h/v1beta/openai/embeddings"),
        ("http://h:8000", "/v1/completions", "http://h:8000/completions"),
        ("http://h:8000/v1", "/chat", "http://h:8000/chat"),
        ("http://h:8000/v1", "/v1beta/x", "http://h:8000/v1beta/x"),
        ("http://h:8000", "/chat?q=a%20b", "http://h:8000/chat?q=a%20b"),
        ("http://h:8000/", "/chat", "http://h:8000/chat"),
        ("http://h/api/v1", "/chat", "http://h/api/chat"),
        ("http://[::1]:80/v1", "/chat", "http://[::1]:80/chat"),
    ],
)
def test_a_path_is_joined_and_v1_is_never_doubled(base_url: str, path: str, url: str) -> None:
    assert Endpoint(base_url=base_url).url_of(path) == url


@pytest.mark.parametrize(
    "path",
    ["http://evil/v1", "https://h/v1/chat", "//evil/v1", "v1/chat", "", "@evil", "/v1/a\r\nX: y"],
)
def test_a_row_cannot_send_the_key_elsewhere(path: str) -> None:
    with pytest.raises(ConfigError, match="not a path") as caught:
        Endpoint(base_url="https://h/v1").url_of(path)
    assert caught.value.hint == "a url is a path such as /v1/chat/completions"


@pytest.mark.parametrize(
    "base_url",
    ["", "h/v1", "ftp://h/v1", "http://", "http:///v1", "http://[::1/v1", "http://h:99999/v1",
     "http://h:abc/v1", "http://h:0/v1", "http://a b/v1", "http://h/v1\n", "http://.../v1",
     "http://a..b/v1", f"http://{64 * 'a'}.b/v1"],
)  # fmt: skip
def test_what_is_no_base_url_is_refused(base_url: str) -> None:
    with pytest.raises(ConfigError, match="not a base URL") as caught:
        Endpoint(base_url=base_url)
    assert "https://api.openai.com/v1" in caught.value.hint


@pytest.mark.parametrize("base_url", ["http://h/v1?key=1", "http://h/v1#x"])
def test_a_base_url_has_no_query(base_url: str) -> None:
    with pytest.raises(ConfigError, match="must not have a query or fragment"):
        Endpoint(base_url=base_url)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint(base_url=f"https://me:{SECRET}@h/v1")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("", "a"), ("A:", "b"), ("A", "b\r\nC: d"), ("A\n", "b"), ("A", "b\x00")]
)
def test_what_is_no_header_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="not a header"):
        Endpoint(base_url="https://h/v1", headers={name: value})


@pytest.mark.parametrize(
    "name",
    ["Connection", "content-length", "Expect", "TE", "Trailer", "Transfer-Encoding", "UPGRADE"],
)
def test_headers_that_frame_a_message_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the header {name} cannot be set") as caught:
        Endpoint(base_url="https://h/v1", headers={name: "5"})
    assert caught.value.hint == "redline frames requests itself: leave the header out"


@pytest.mark.parametrize("key", [f"{SECRET}\n", f"{SECRET}\r", f"“{SECRET}”", f"{SECRET}\x00"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint(base_url="https://h/v1", api_key=key)
    assert SECRET not in str(caught.value)
    assert "line break or a quotation mark" in caught.value.hint


def test_the_key_is_never_printed() -> None:
    endpoint = Endpoint(
        base_url="https://h:8/v1", api_key=SECRET, headers={"Authorization": SECRET}
    )
    for text in (repr(endpoint), str(endpoint), f"{endpoint}", pretty_repr(endpoint)):
        assert SECRET not in text
        assert "https://h:8/v1" in text


def test_its_label_is_its_name_or_its_host() -> None:
    assert Endpoint(base_url="https://h:8/v1").label == "h:8"
    assert Endpoint(base_url="https://h:8/v1", name="gpu-2").label == "gpu-2"


@pytest.mark.parametrize("proxy", ["h:3128", "socks5://h", "http://h:99999", "http://a..b:1"])
def test_a_proxy_is_an_http_url(proxy: str) -> None:
    with pytest.raises(ConfigError, match="the proxy is not the URL of an HTTP proxy"):
        Endpoint(base_url="https://h/v1", proxy=proxy)


def test_the_longest_reply_is_at_least_a_byte() -> None:
    with pytest.raises(ConfigError, match="max_reply_bytes"):
        Endpoint(base_url="https://h/v1", max_reply_bytes=0)


@pytest.mark.parametrize("name", ["connect_s", "first_byte_s", "attempt_s"])
@pytest.mark.parametrize("value", [0, -1, 86_401, float("nan"), float("inf")])
def test_timeouts_have_bounds(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be above 0"):
        Timeouts(**{name: value})
