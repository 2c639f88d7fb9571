"""Checks a request's head where llhttp does not, so that all servers and proxies read it alike.

llhttp itself refuses Content-Length together with Transfer-Encoding, repeated or malformed lengths,
obsolete line folding, bare CR and LF, whitespace before a colon, control characters and malformed
chunks. Sections 3.2, 6.1 and 11.2 of RFC 9112 give the reasons for the other checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

# A registered name, an address or an IPv6 address in brackets, and a port (RFC 3986, 3.2.2).
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(?::[0-9]*)?")
# A name has at most 253 bytes (RFC 1035, 3.1).
_MOST_HOST_BYTES = 300
# Clients repeat a few targets, so read lines are cached; targets longer than this are not.
SHORT_BYTES = 200
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
_METHODS = frozenset(
    (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT")
)
_INFLATED = {b"gzip": False, b"x-gzip": False, b"deflate": True}


# The method, the decoded path, the raw query, and whether the version is HTTP/1.1, not 1.0.
Line = tuple[str, str, bytes, bool]


class Fault(Exception):
    """The reason why a request is refused. status: the HTTP status of the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def read_line(method: bytes, target: bytes, version: str) -> Line:
    """Reads a request line that llhttp has accepted. Raises Fault."""
    if method not in _METHODS:
        raise Fault(501, "the method is not supported")
    if version not in ("1.1", "1.0"):
        raise Fault(505, f"HTTP/{version} is not supported")
    if method == b"CONNECT":
        raise Fault(501, "this server is not a proxy")
    if target[:1] != b"/" and not (target == b"*" and method == b"OPTIONS"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is None or not _HOST.fullmatch(absolute[1]):
            raise Fault(400, "the target of the request is not a path")
        target = absolute[2] if absolute[2][:1] == b"/" else b"/" + absolute[2]
    elif b"#" in target:
        raise Fault(400, "the target of the request is not a path")
    path, _, query = target.partition(b"?")
    text = path.decode("ascii")
    return method.decode(), unquote(text) if "%" in text else text, query, version == "1.1"


read_short_line = lru_cache(maxsize=256)(read_line)


class Fields(dict[bytes, bytes]):
    """Header fields by lower-case name. Requests whose heads are alike may share one instance.

    kept: the object that a handler made from the fields, for the next request with these fields.
    """

    kept: Any = None


def check_fields(fields: Mapping[bytes, bytes], *, is_http_1_1: bool) -> None:
    """Raises Fault if header fields that llhttp has accepted are invalid all the same.

    fields: values by lower-case name.
    """
    if b"host" in fields:
        if not _is_host(fields[b"host"]):
            raise Fault(400, "the Host header is invalid, or there are several")
    elif is_http_1_1:
        raise Fault(400, "the Host header is missing")
    if b"transfer-encoding" in fields and (
        not is_http_1_1 or fields[b"transfer-encoding"].lower() != b"chunked"
    ):
        raise Fault(400, "Transfer-Encoding can only be chunked, and only in HTTP/1.1")


@lru_cache(maxsize=256)
def _is_host(host: bytes) -> bool:
    return len(host) <= _MOST_HOST_BYTES and _HOST.fullmatch(host) is not None


def coding_of(fields: Mapping[bytes, bytes]) -> bool | Fault | None:
    """Returns how a body with Content-Encoding is compressed.

    None if it is uncompressed; False for gzip; True for deflate, which may then be raw deflate; a
    Fault for any other coding, or for several.
    """
    coding = fields[b"content-encoding"].lower()
    if coding in (b"", b"identity"):
        return None
    if coding not in _INFLATED:
        return Fault(415, "the body must be uncompressed, gzip or deflate")
    return _INFLATED[coding]


def framing_of(fields: Mapping[bytes, bytes]) -> bytes:
    """Returns the header line that determines where the body ends; b"" if there is no body."""
    if b"transfer-encoding" in fields:
        return b"transfer-encoding: chunked"
    length = fields.get(b"content-length", b"0")
    return b"content-length: " + length if int(length) else b""
