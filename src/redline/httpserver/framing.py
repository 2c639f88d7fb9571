"""What a request's head must say, beyond what llhttp checks, so that two readers agree on it.

llhttp itself refuses Content-Length together with Transfer-Encoding, repeated or malformed lengths,
obsolete line folding, bare CR and LF, whitespace before a colon, control characters and malformed
chunks. RFC 9112, 3.2, 6.1 and 11.2, have the reasons for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

# A registered name, an address or an IPv6 address in brackets, and a port (RFC 3986, 3.2.2).
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(?::[0-9]*)?")
# A name has at most 253 bytes (RFC 1035, 3.1).
_MOST_HOST_BYTES = 300
# Clients send few targets again and again; longer ones are not kept.
_SHORT_BYTES = 200
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
_INFLATED = {b"gzip": False, b"x-gzip": False, b"deflate": True}


class Fault(NamedTuple):
    """Why a request is refused before its handler sees it."""

    status: int
    reason: str


def fault_of(
    method: str, target: bytes, version: str, fields: Mapping[bytes, bytes]
) -> Fault | None:
    """What is wrong with a head that llhttp has accepted, or None.

    method: empty for one that is not HTTP's own. fields: values by lower-case name.
    """
    if not method:
        return Fault(501, "the method is not supported")
    is_http_1_1 = version == "1.1"
    if not is_http_1_1 and version != "1.0":
        return Fault(505, f"HTTP/{version} is not supported")
    host = fields.get(b"host")
    if host is None:
        if is_http_1_1:
            return Fault(400, "the Host header is missing")
    elif not _is_host(host):
        return Fault(400, "the Host header is not a host, or there are several")
    if b"transfer-encoding" in fields and (
        not is_http_1_1 or fields[b"transfer-encoding"].lower() != b"chunked"
    ):
        return Fault(400, "Transfer-Encoding can only be chunked, and only in HTTP/1.1")
    if method == "CONNECT":
        return Fault(501, "this server is not a proxy")
    return None if target[:1] == b"/" and b"#" not in target else _target_fault(method, target)


@lru_cache(maxsize=256)
def _is_host(host: bytes) -> bool:
    return len(host) <= _MOST_HOST_BYTES and _HOST.fullmatch(host) is not None


def _target_fault(method: str, target: bytes) -> Fault | None:
    if target == b"*" and method == "OPTIONS":
        return None
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or not _HOST.fullmatch(absolute[1]):
        return Fault(400, "the target of the request is not a path")
    return None


def split_target(target: bytes) -> tuple[str, bytes]:
    """Path, decoded, and query, as it is, of a target without a fault."""
    return _split_short(target) if len(target) <= _SHORT_BYTES else _split(target)


def _split(target: bytes) -> tuple[str, bytes]:
    if target[:1] != b"/" and target != b"*":
        absolute = _ABSOLUTE.fullmatch(target)
        assert absolute is not None
        target = absolute[2] if absolute[2][:1] == b"/" else b"/" + absolute[2]
    path, _, query = target.partition(b"?")
    text = path.decode("ascii")
    return (unquote(text) if "%" in text else text), query


_split_short = lru_cache(maxsize=256)(_split)


def coding_of(fields: Mapping[bytes, bytes]) -> bool | Fault | None:
    """How a body is compressed: None if it is not, otherwise whether it may be raw deflate.

    A Fault for any other coding, or for several.
    """
    coding = fields[b"content-encoding"].lower()
    if coding in (b"", b"identity"):
        return None
    if coding not in _INFLATED:
        return Fault(415, "the body must be plain, gzip or deflate")
    return _INFLATED[coding]


def framing_of(fields: Mapping[bytes, bytes]) -> bytes:
    """The header line that says where a body ends; empty if there is no body."""
    if b"transfer-encoding" in fields:
        return b"transfer-encoding: chunked"
    length = fields.get(b"content-length", b"0")
    return b"content-length: " + length if int(length) else b""
