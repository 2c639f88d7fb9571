"""Where a request goes, and what an endpoint refuses to be."""

from __future__ import annotations

import math
from typing import Any

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
        ("https://h/v1beta/openai", "/v1", "https://h/v1beta/openai"),
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
    assert caught.value.hint == "`url` must be a path, such as /v1/chat/completions"


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


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ({"base_url": f"https://me:{SECRET}@h:99999/v1"}, "https://...@h:99999/v1"),
        ({"base_url": f"https://me:/{SECRET}?@h:99999/v1"}, "https://...@h:99999/v1"),
        ({"base_url": f"me:{SECRET}@h/v1"}, "...@h/v1"),
        ({"base_url": f"https://h/v1?key={SECRET}"}, "https://h/v1?..."),
        ({"base_url": f"https://h/v1#{SECRET}"}, "https://h/v1#..."),
        ({"metrics": f"http://me:{SECRET}@h:9000/stats"}, "http://...@h:9000/stats"),
        ({"probe": f"http://me:{SECRET}@h:9000/health?a={SECRET}"}, "http://...@h:9000/health?..."),
    ],
)
def test_a_secret_in_a_url_is_not_shown(stated: dict[str, Any], shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint(**{"base_url": "https://h/v1", **stated})
    assert SECRET not in f"{caught.value} {caught.value.hint}"
    assert caught.value.what.endswith(shown)


@pytest.mark.parametrize("base_url", ["http://h/v1?key=1", "http://h/v1#x"])
def test_a_base_url_has_no_query(base_url: str) -> None:
    with pytest.raises(ConfigError, match="must not have a query or fragment") as caught:
        Endpoint(base_url=base_url)
    assert "--url" in caught.value.hint


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="user name or password") as caught:
        Endpoint(base_url=f"https://me:{SECRET}@h/v1")
    assert SECRET not in str(caught.value)
    assert "api_key" in caught.value.hint
    assert "Authorization header" in caught.value.hint


@pytest.mark.parametrize("base_url", ["https://me@h/v1", f"https://:{SECRET}@h/v1"])
def test_half_a_login_in_the_url_is_refused_too(base_url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint(base_url=base_url)
    assert caught.value.what == "a base URL must not contain a user name or password"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("", "a"), ("A:", "b"), ("A", "b\r\nC: d"), ("A\n", "b"), ("A", "b\x00")),
        *(("a b", "c"), ("A ", "b"), ("Ä", "b"), ("A(1)", "b")),
    ],
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
    assert "the API key" in caught.value.what
    assert caught.value.hint.startswith("check for a line break or a quotation mark")


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


@pytest.mark.parametrize(
    "proxy", ["h:3128", "socks5://h", "http://h:99999", "http://a..b:1", "http://h:3128?a=b"]
)
def test_a_proxy_is_an_http_url(proxy: str) -> None:
    with pytest.raises(ConfigError, match="the proxy is not the URL of an HTTP proxy") as caught:
        Endpoint(base_url="https://h/v1", proxy=proxy)
    assert "http://host:port" in caught.value.hint


def test_the_longest_reply_is_at_least_a_byte() -> None:
    with pytest.raises(ConfigError, match="max_reply_bytes"):
        Endpoint(base_url="https://h/v1", max_reply_bytes=0)
    assert Endpoint(base_url="https://h/v1", max_reply_bytes=1).max_reply_bytes == 1


@pytest.mark.parametrize("weight", [0, -1, math.inf, math.nan])
def test_a_weight_is_a_finite_share(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight must be a number above 0") as caught:
        Endpoint(base_url="https://h/v1", weight=weight)
    assert caught.value.hint == "remove the endpoint to send nothing to it"
    assert Endpoint(base_url="https://h/v1", weight=0.01).weight == 0.01


@pytest.mark.parametrize("kind", ["metrics", "probe"])
@pytest.mark.parametrize(
    ("page", "is_one"),
    [
        (True, True),
        (False, True),
        ("/stats", True),
        ("http://10.0.0.5:9000/stats", True),
        ("https://h/stats?all=1", True),
        ("stats", False),
        ("", False),
        ("//h/stats", False),
        ("ftp://h/stats", False),
        ("/stats#top", False),
        ("http://h/stats#top", False),
        ("/sta\nts", False),
        (f"http://me:{SECRET}@h/stats", False),
    ],
)
def test_the_page_of_a_server_is_a_path_or_a_url_without_a_password(
    kind: str, page: Any, *, is_one: bool
) -> None:
    if is_one:
        assert getattr(Endpoint(base_url="https://h/v1", **{kind: page}), kind) == page
        return
    with pytest.raises(ConfigError, match=f"{kind} must be true, false, a path or a URL") as caught:
        Endpoint(base_url="https://h/v1", **{kind: page})
    assert f"{kind} = true" in caught.value.hint
    # The example is the page that servers usually have.
    usual = {"metrics": "/metrics", "probe": "/health"}[kind]
    assert f'{kind} = "http://10.0.0.5:9000{usual}"' in caught.value.hint


@pytest.mark.parametrize("models", [{"": "m"}, {"fast": ""}, {"fast": 1}, {1: "m"}])
def test_a_model_is_named_by_a_name(models: Any) -> None:
    with pytest.raises(ConfigError, match="models must map a model's name to a name") as caught:
        Endpoint(base_url="https://h/v1", models=models)
    assert 'fast = "qwen3-8b"' in caught.value.hint


@pytest.mark.parametrize(
    ("headers", "kinds"), [({"A": 1}, "str and int"), ({b"A": "b"}, "bytes and str")]
)
def test_what_is_no_text_is_no_header_and_is_not_repeated(headers: Any, kinds: str) -> None:
    with pytest.raises(ConfigError, match=f"must be text, not {kinds}") as caught:
        Endpoint(base_url="https://h/v1", headers=headers)
    assert "b'" not in str(caught.value)


def test_a_wrong_price_names_its_endpoint() -> None:
    with pytest.raises(ConfigError, match="input is not a price") as caught:
        Endpoint(base_url="https://h:8/v1", prices={"qwen": {"input": -1.0, "output": 1.0}})
    assert caught.value.where == "the prices of h:8"


def test_two_keys_are_two_accounts_wherever_they_are_written() -> None:
    def credentials(key: str | None, **headers: str) -> str:
        return Endpoint(base_url="https://h/v1", api_key=key, headers=headers).credentials

    accounts = [
        credentials(None),
        credentials("sk-a"),
        credentials("sk-b"),
        credentials(None, Authorization="sk-a"),
        credentials("sk-a", Cookie="a"),
        credentials("sk-a", Cookie="b"),
        credentials("sk-a", Cookie="a", Token="b"),
    ]
    assert len(set(accounts)) == len(accounts)
    # What says nothing about who asks, the case of a name and the order make no other account.
    assert credentials("sk-a", Accept="*/*") == credentials("sk-a")
    assert credentials("sk-a", token="b", cookie="a") == accounts[-1]
    # An Authorization header replaces the key.
    assert credentials("sk-b", authorization="Bearer sk-a") == credentials("sk-a")
    assert credentials("sk-b", Authorization="sk-a") == credentials(None, Authorization="sk-a")
    # The digest of a key is in the names of files that later versions read.
    assert credentials("sk-a") == "sk-a"
    assert credentials("sk-a", Token="b", Cookie="a") == "sk-a\ncookie: a\ntoken: b"


@pytest.mark.parametrize("name", ["connect_s", "first_byte_s", "attempt_s"])
@pytest.mark.parametrize("value", [0, -1, 86_401, float("nan"), float("inf")])
def test_timeouts_have_bounds(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be above 0"):
        Timeouts(**{name: value})
