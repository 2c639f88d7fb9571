"""Reaches endpoints through HTTP proxies: addresses, CONNECT, and the errors of refusals.

An https endpoint is reached through a tunnel, which the proxy opens on CONNECT. For a plain http
endpoint, each request line has the full URL (RFC 9112, 3.2.2 and 3.2.3).
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes, urlsplit

import httptools
import msgspec

from redline._version import __version__
from redline.errors import CallError, Disconnected, Refused

# The bound of squid (reply_header_max_size).
_MOST_HEAD_BYTES = 64 * 1024
_MOST_REASON = 100
# An authentication scheme, without its parameters (RFC 9110, 11.6.1).
_SCHEME = re.compile(r"(?:^|,)\s*([A-Za-z][A-Za-z0-9-]*)(?=\s|,|$)")
_QUOTED = re.compile(r'"[^"]*"')
# The settings in which users name a proxy.
SETTINGS = "--proxy, HTTP_PROXY or HTTPS_PROXY"
CHECK = f"check the proxy's address in {SETTINGS}"
_NOT_HTTP = f"check that {SETTINGS} names an HTTP proxy"


class Server(msgspec.Struct, frozen=True):
    """One end of a connection: an endpoint's host, or its proxy."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy. headers: sent only to the proxy, such as Proxy-Authorization."""

    server: Server
    headers: Mapping[str, str]

    @property
    def has_credentials(self) -> bool:
        """Whether credentials are sent to the proxy."""
        return "proxy-authorization" in map(str.lower, self.headers)


def server_of(url: str) -> Server:
    """Returns the server of an http:// or https:// URL. Raises UnicodeError for a bad name."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    host = parts.hostname or ""
    return Server(ascii_name(host), parts.port or (443 if is_tls else 80), is_tls)


def ascii_name(host: str) -> str:
    """Returns a host name, with or without a port, in ASCII for DNS and HTTP: `xn--...`."""
    return host if host.isascii() else host.encode("idna").decode()


def is_for_proxy(name: str) -> bool:
    """Whether a header of this name is for the proxy and not for the server behind it."""
    return name.lower().startswith("proxy-")


def proxy_at(url: str, headers: Mapping[str, str]) -> Proxy:
    """Returns the proxy at `url`. headers: the endpoint's; `Proxy-...` ones go to the proxy."""
    own = {name: value for name, value in headers.items() if is_for_proxy(name)}
    user, colon, password = urlsplit(url).netloc.rpartition("@")[0].partition(":")
    if (user or colon) and "proxy-authorization" not in map(str.lower, own):
        secret = b64encode(unquote_to_bytes(user) + b":" + unquote_to_bytes(password)).decode()
        own["Proxy-Authorization"] = f"Basic {secret}"
    return Proxy(server_of(url), own)


class Connect(asyncio.Protocol):
    """A protocol that asks a proxy for a tunnel to `target`.

    The tunnel begins directly after the head of a 2xx response (RFC 9110, 9.3.6). In TLS the client
    sends first, so any bytes after the head are an error.
    """

    def __init__(self, proxy: Proxy, target: Server) -> None:
        self._proxy = proxy
        self._target = target
        self._parser = httptools.HttpResponseParser(self)
        self._answered: asyncio.Future[CallError | None]
        self._answered = asyncio.get_running_loop().create_future()
        self._size = 0
        self._reason = b""
        self._offers = ""  # the values of Proxy-Authenticate
        self._status = 0
        self._has_more = False

    async def open(self, transport: asyncio.Transport) -> None:
        """Opens the tunnel. Raises Disconnected, or Refused for 401 and 407."""
        lines = [f"CONNECT {self._target} HTTP/1.1", f"Host: {self._target}"]
        headers = {"User-Agent": f"redline/{__version__}", **self._proxy.headers}
        lines += [f"{name}: {value}" for name, value in headers.items()]
        transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        error = await self._answered
        if error is None and self._has_more:
            error = self._unusable("it sent data after its answer to CONNECT")
        if error is not None:
            raise error

    def _settle(self, error: CallError | None) -> None:
        if not self._answered.done():
            self._answered.set_result(error)

    def _unusable(self, text: str) -> Disconnected:
        return no_connection(f"the proxy {self._proxy.server}: {text}", _NOT_HTTP)

    def _refusal(self, said: str) -> CallError:
        """Returns the error for a non-2xx response to CONNECT. said: its status and reason."""
        status, proxy, target = self._status, self._proxy, self._target
        if status in (401, 407):
            # tinyproxy answers a wrong password with 401.
            return unauthorized(status, self._offers, proxy)
        around = (
            "or reach the endpoint without a proxy: leave out --proxy, and set "
            f"NO_PROXY={target.host}"
        )
        if status == 403:
            what, hint = "does not allow", f"ask its operator to allow {target}, {around}"
        elif status >= 500 and status not in (501, 505):
            what, hint = "could not connect to", f"check the base URL, {around}"
        else:
            what, hint = "opens no tunnel to", f"{_NOT_HTTP}, {around}"
        return no_connection(f"the proxy {proxy.server} {what} {target}: {said}", hint)

    # The event loop calls these.

    def data_received(self, data: bytes) -> None:
        if self._answered.done():
            self._has_more = True
            return
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._status:
                reason = " ".join(str(error).split())
                self._settle(self._unusable(f"its answer is not HTTP: {reason}"))
                return
            self._has_more = True
        if 200 <= self._status < 300:
            self._settle(None)
        elif self._status:
            reason = self._reason.decode("latin-1")[:_MOST_REASON]
            self._settle(self._refusal(f"HTTP {self._status} {reason}".strip()))
        elif self._size > _MOST_HEAD_BYTES:
            what = f"the headers of its answer are longer than {_MOST_HEAD_BYTES:,} bytes"
            self._settle(self._unusable(what))

    def connection_lost(self, error: Exception | None) -> None:
        text = getattr(error, "strerror", None) or str(error or "it closed the connection")
        self._settle(self._unusable(f"{text} without an answer to CONNECT"))

    # The parser calls these.

    def on_message_begin(self) -> None:
        self._has_more = self._has_more or self._status > 0

    def on_status(self, status: bytes) -> None:
        if not self._status:
            self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"proxy-authenticate":
            self._offers += value.decode("latin-1") + ", "

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 or status == 101:
            self._status = self._status or status
        else:
            self._reason = b""

    def on_body(self, data: bytes) -> None:
        self._has_more = True


def unauthorized(status: int, offers: str, proxy: Proxy) -> Refused:
    """Returns the error for a proxy's 401 or 407. offers: the values of Proxy-Authenticate."""
    schemes = _SCHEME.findall(_QUOTED.sub("", offers))
    if schemes and "basic" not in map(str.lower, schemes):
        what = f"asks for {' or '.join(schemes)[:_MOST_REASON]}"
        hint = "redline supports only Basic authentication for proxies"
    elif proxy.has_credentials:
        what = "refuses the user name or password"
        hint = f"correct them in {SETTINGS}; write @ and : in them as %40 and %3A"
    else:
        what = "asks for a user name and password"
        hint = f"add them to {SETTINGS}: http://USER:PASSWORD@HOST:PORT"
    return Refused(f"the proxy {proxy.server} {what}: HTTP {status}", hint=hint, status=status)


def no_connection(text: str, hint: str) -> Disconnected:
    """Returns the error for a connection that was not made, so the server received nothing."""
    error = Disconnected(f"no connection: {text}", hint=hint)
    error.was_sent = False
    return error
