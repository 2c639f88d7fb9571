"""Defines a user's settings for one endpoint, and finds the proxy through which it is reached."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redline.calls.cost import Price, parse_price
from redline.calls.wire.exchange import Timeouts
from redline.calls.wire.proxy import ascii_name
from redline.calls.wire.request_head import FRAMING_HINT, is_framing, is_token
from redline.errors import ConfigError
from redline.limits import Limits
from redline.structs import check_types

MAX_REPLY_BYTES = 64 * 1024 * 1024
# The query and the fragment of a URL.
_BEHIND_PATH = re.compile(r"([?#&]).*", re.DOTALL)
# Headers that identify the caller, except those for the proxy itself.
_SECRET_HEADER = re.compile(r"(?!proxy-).*(authorization|key|token|secret|cookie).*", re.IGNORECASE)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP endpoint: its address, the caller's credentials, and its limits.

    base_url: usually ends in `/v1`, as in the openai SDK. name: the endpoint's name in messages and
    results; empty for host and port. api_key: sent as a bearer token; never printed or stored; None
    or "" to send none, whatever OPENAI_API_KEY is. headers: sent with each request, by name.
    proxy: the URL of an HTTP proxy, or "" for no proxy; None uses HTTP(S)_PROXY and NO_PROXY from
    the environment, or the settings of macOS or Windows. max_reply_bytes: a row with a longer
    response fails; at least 1, 64 MiB by default. weight: in a pool, the endpoint's capacity in
    proportion to that of the others, above 0. group: endpoints of one group give the same answers;
    empty for no group. models: the endpoint's model names by the requested names; other names are
    sent unchanged. metrics, probe: in a pool, for your own server: True to read its /metrics and to
    check its /health every second; a path or a URL to use another page. prices: the endpoint's
    prices by model, if it has prices of its own; a dict of dollars per million tokens is accepted
    instead of a Price. Raises ConfigError for a value that cannot be used.
    """

    base_url: str
    name: str = ""
    api_key: str | None = None
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    proxy: str | None = None
    max_reply_bytes: int = MAX_REPLY_BYTES
    weight: float = 1.0
    group: str = ""
    models: Mapping[str, str] = msgspec.field(default_factory=dict)
    metrics: bool | str = False
    probe: bool | str = False
    prices: Mapping[str, Price | Mapping[str, float | str]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)
        if not is_http_url(self.base_url):
            raise ConfigError(
                f"not a base URL: {_shown(self.base_url)}",
                hint="for example https://api.openai.com/v1 or http://127.0.0.1:8000/v1",
            )
        parts = urlsplit(self.base_url)
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                "a base URL must not contain a user name or password",
                hint="use --api-key-env (in Python api_key), or an Authorization header",
            )
        if parts.query or parts.fragment:
            raise ConfigError(
                f"a base URL must not have a query or fragment: {_shown(self.base_url)}",
                hint="a query belongs to the path of the requests: "
                "redline run --url '/chat/completions?api-version=...'",
            )
        for name, value in self.headers.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                # The value is not shown: it may be a secret.
                kinds = f"{type(name).__name__} and {type(value).__name__}"
                raise ConfigError(f"names and values of headers must be text, not {kinds}")
            if not is_token(name) or not value.isprintable():
                raise ConfigError(
                    f"not a header: {name!r}",
                    hint="a name has only letters, digits and symbols such as -, and a value has "
                    "no control characters",
                )
            if is_framing(name):
                raise ConfigError(f"the header {name} cannot be set", hint=FRAMING_HINT)
        if self.proxy and not is_proxy_url(self.proxy):
            raise ConfigError(
                "the proxy is not the URL of an HTTP proxy", hint="for example http://host:port"
            )
        if self.max_reply_bytes < 1:
            raise ConfigError(f"max_reply_bytes must be at least 1, not {self.max_reply_bytes}")
        if self.api_key is not None and not (self.api_key.isprintable() and self.api_key.isascii()):
            raise ConfigError(
                "the API key contains characters that are not allowed in a header",
                hint="check for a line break or a quotation mark around it",
            )
        if not 0 < self.weight < math.inf:
            raise ConfigError(
                f"weight must be a number above 0, not {self.weight:g}",
                hint="remove the endpoint to send nothing to it",
            )
        _ = self.tariff  # raises for an invalid price
        for name, model in self.models.items():
            if not (name and model and isinstance(name, str) and isinstance(model, str)):
                raise ConfigError(
                    f"models must map a model's name to a name, not {name!r} = {model!r}",
                    hint='for example fast = "qwen3-8b"',
                )
        for name in ("metrics", "probe"):
            _check_page(name, getattr(self, name))

    @property
    def tariff(self) -> dict[str, Price]:
        """The endpoint's prices by model."""
        where = f"the prices of {self.label}"
        return {
            model: price if isinstance(price, Price) else parse_price(model, price, where)
            for model, price in self.prices.items()
        }

    def __repr__(self) -> str:
        return f"Endpoint({self.label}, {self.base_url})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Returns what rich prints, even in tracebacks: msgspec's own form would show the key."""
        return [("name", self.label), ("base_url", self.base_url)]

    @property
    def label(self) -> str:
        """The endpoint's name in messages and results: the given one, or host and port."""
        return self.name or urlsplit(self.base_url).netloc

    @property
    def credentials(self) -> str:
        """The key and the headers with credentials; different values mean different accounts.

        An Authorization header replaces the key; if it holds a bearer token, that is the key.
        """
        found = {name.lower(): text for name, text in self.headers.items() if is_secret(name)}
        stated = found.get("authorization", f"Bearer {self.api_key or ''}")
        scheme, _, key = stated.partition(" ")
        if scheme.lower() == "bearer":
            found.pop("authorization", None)
        else:
            key = ""
        return "\n".join([key, *sorted(f"{name}: {text}" for name, text in found.items())])

    def url_of(self, path: str) -> str:
        """Returns the full URL for a request's path.

        A `/v1/...` path is joined to the base URL, without a second `/v1`; any other path is joined
        to the base URL without its `/v1`. Raises ConfigError for anything but a path: a row must
        not send the key to another server.
        """
        check_path(path)
        base = self.base_url.rstrip("/")
        if path == "/v1" or path.startswith("/v1/"):
            return base + path[3:]
        return base.removesuffix("/v1") + path


def check_path(path: str) -> None:
    """Raises ConfigError unless `path`, the url of a request, is a path."""
    if not path.startswith("/") or path.startswith("//") or not path.isprintable():
        raise ConfigError(
            f"not a path: {path}", hint="`url` must be a path, such as /v1/chat/completions"
        )


def _check_page(name: str, stated: bool | str) -> None:
    """Raises ConfigError unless the setting `name` is true, false, a path or a URL."""
    if isinstance(stated, bool):
        return
    if stated.isprintable() and "#" not in stated:
        is_path = stated.startswith("/") and not stated.startswith("//")
        if is_path or (is_http_url(stated) and "@" not in urlsplit(stated).netloc):
            return
    raise ConfigError(
        f"{name} must be true, false, a path or a URL, not {_shown(stated)}",
        hint=f"for example {name} = true, or {name} = "
        f'"http://10.0.0.5:9000/{"metrics" if name == "metrics" else "health"}"',
    )


def _shown(url: str) -> str:
    """Returns a (possibly invalid) URL without its user, password, query and fragment."""
    before, at, rest = url.rpartition("@")
    if at:
        # A password may contain any character.
        scheme, slashes, _ = before.partition("://")
        rest = f"{scheme}://...@{rest}" if slashes else f"...@{rest}"
    return _BEHIND_PATH.sub(r"\1...", rest)


def is_secret(header: str) -> bool:
    """Whether a header of this name identifies the caller."""
    return _SECRET_HEADER.fullmatch(header) is not None


def is_proxy_url(text: str) -> bool:
    """Whether the text can be a proxy's URL: http:// or https://, without a query."""
    return is_http_url(text) and not urlsplit(text).query


def is_http_url(text: str) -> bool:
    """Whether the text is an http:// or https:// URL with a valid host name."""
    try:
        parts = urlsplit(text)
        # Fails for an empty label, and for one of more than 63 bytes.
        host = (parts.hostname or "").encode("idna")
        ascii_name(parts.netloc.rpartition("@")[2])
        is_url = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:
        return False
    return is_url and text.isprintable() and " " not in text


def proxy_of(endpoint: Endpoint) -> str | None:
    """Returns the proxy's URL: the endpoint's, otherwise the environment's; None for no proxy.

    Raises ConfigError if it is not the URL of a proxy, or if the endpoint's key would pass through
    the proxy unencrypted: https uses a tunnel through the proxy, but plain http does not.
    """
    if endpoint.proxy is not None:
        proxy, origin = endpoint.proxy or None, ""
    else:
        proxy, origin = _env_proxy(endpoint.base_url)
    if proxy is None:
        return None
    if not is_proxy_url(proxy):
        # The URL is not shown, because it may contain a password.
        raise ConfigError(
            f"{origin} is not the URL of an HTTP proxy",
            where="the environment",
            hint="use a URL such as http://host:port, or unset it",
        )
    parts = urlsplit(endpoint.base_url)
    is_plain = parts.scheme == "http"
    if is_plain and "host" in map(str.lower, endpoint.headers):
        raise ConfigError(
            "a proxy takes the host from the URL, not from the Host header",
            where=origin or "--proxy",
            hint="leave the header out, or use https",
        )
    has_key = endpoint.api_key or any(map(is_secret, endpoint.headers))
    if has_key and is_plain:
        raise ConfigError(
            f"the proxy would read the API key, because {endpoint.base_url} is not https",
            where=origin or "--proxy",
            hint="use https, or reach the endpoint without a proxy: leave out --proxy, and set "
            f"NO_PROXY={parts.hostname}",
        )
    return proxy


def _env_proxy(base_url: str) -> tuple[str | None, str]:
    """Returns the proxy that the environment sets for this URL, and the variable's name."""
    # macOS and Windows also have system-wide settings.
    is_elsewhere = sys.platform in ("darwin", "win32")
    if not is_elsewhere and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None, ""
    # Imported only here: it imports http.client and email, which few runs need.
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(base_url)
    proxy = getproxies().get(parts.scheme)
    # NO_PROXY may contain the port, and lists an IPv6 address with or without brackets.
    hosts = (parts.netloc.rpartition("@")[2], parts.hostname or "")
    if proxy is None or any(map(proxy_bypass, hosts)):
        return None, ""
    named = f"{parts.scheme}_proxy"
    # getproxies prefers the lower-case variable.
    names = [named, *(name for name in os.environ if name.lower() == named)]
    origin = next((name for name in names if os.environ.get(name) == proxy), named.upper())
    return proxy, origin
