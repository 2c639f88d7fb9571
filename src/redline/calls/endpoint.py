"""What a user states about one endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redline.errors import ConfigError
from redline.limits import Limits

MAX_REPLY_BYTES = 64 * 1024 * 1024


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks of one attempt, in seconds, each above 0.

    connect_s: until the connection stands, TLS included.
    first_byte_s: from the write of the request to the first byte of the answer.
    attempt_s: from the write to the end of the answer.
    Waiting for a limit counts in none of them.
    """

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    attempt_s: float = 600.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 < value <= 86_400:
                raise ConfigError(f"{name} must be above 0 and at most 86,400 s, not {value:g}")


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP endpoint: where it is, who asks, and what it allows.

    base_url: ends in `/v1`, as in the openai SDK. api_key: sent as a bearer token; never printed
    and never written. proxy: an http:// URL, or "" for none at all; None takes HTTP(S)_PROXY and
    NO_PROXY from the environment. max_reply_bytes: a longer answer is an error of that row.
    Raises ConfigError for an unusable URL or header.
    """

    base_url: str
    name: str = ""
    api_key: str | None = None
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    proxy: str | None = None
    max_reply_bytes: int = MAX_REPLY_BYTES

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            is_url = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url or not self.base_url.isprintable() or " " in self.base_url:
            raise ConfigError(
                f"not a base URL: {self.base_url}",
                hint="write it like https://api.openai.com/v1 or http://127.0.0.1:8000/v1",
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                "a base URL holds no user name or password",
                hint="pass the key as api_key, or an Authorization header",
            )
        if parts.query or parts.fragment:
            raise ConfigError(f"a base URL has no query or fragment: {self.base_url}")
        for name, value in self.headers.items():
            if not name or not (name + value).isprintable() or ":" in name:
                raise ConfigError(f"not a header: {name!r}")
        if self.proxy and not is_proxy_url(self.proxy):
            raise ConfigError("the proxy is not an http:// URL", hint="http://host:port")
        if self.max_reply_bytes < 1:
            raise ConfigError(f"max_reply_bytes must be at least 1, not {self.max_reply_bytes}")
        if self.api_key is not None and not (self.api_key.isprintable() and self.api_key.isascii()):
            raise ConfigError(
                "the API key holds characters that no header can carry",
                hint="look for a line break or a quote mark around it",
            )

    def __repr__(self) -> str:
        return f"Endpoint({self.label}, {self.base_url})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What rich prints of it, in tracebacks too: msgspec's own form would show the key."""
        return [("name", self.label), ("base_url", self.base_url)]

    @property
    def label(self) -> str:
        """Its name in messages and results: the given one, else the host and port."""
        return self.name or urlsplit(self.base_url).netloc

    def url_of(self, path: str) -> str:
        """The whole URL of a request's path.

        A `/v1/...` path takes the base URL's own `/v1`; any other is joined at the server's root,
        which is the base URL without its `/v1`. Raises ConfigError for anything but a path: a row
        must not send the key elsewhere.
        """
        if not path.startswith("/") or path.startswith("//") or not path.isprintable():
            raise ConfigError(
                f"not a path: {path}", hint="a url is a path such as /v1/chat/completions"
            )
        base = self.base_url.rstrip("/")
        if path == "/v1" or path.startswith("/v1/"):
            return base + path[3:]
        return base.removesuffix("/v1") + path


def is_proxy_url(text: str) -> bool:
    """The text is an http:// or https:// URL of a proxy: a host, and perhaps a port and a user."""
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_url and text.isprintable() and " " not in text and not parts.query
