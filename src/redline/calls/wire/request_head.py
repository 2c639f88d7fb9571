"""Makes the head of a request on the wire: the request line and the headers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from redline._version import __version__
from redline.errors import BadRow

# A header's name (RFC 9110, 5.6.2), and characters that its value must not contain: line breaks,
# NUL, halves of surrogate pairs.
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_UNSENDABLE = re.compile("[\r\n\0\ud800-\udfff]")
# Headers that frame a message; redline writes them itself.
_FRAMING = frozenset(
    ("connection", "content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade")
)
FRAMING_HINT = "redline frames requests itself: leave the header out"


def is_token(name: str) -> bool:
    """Whether a header may have this name."""
    return _TOKEN.fullmatch(name) is not None


def is_framing(name: str) -> bool:
    """Whether a header of this name frames the message."""
    return name.lower() in _FRAMING


def request_head(method: str, target: str, host: str, headers: Mapping[str, str]) -> bytes:
    """Returns the head of a request, without its Content-Length and the final line break.

    headers: replace redline's own; if names differ only in case, the last one counts. Raises
    BadRow for an invalid method or header, and for a header that frames the message.
    """
    if not method.isascii() or not method.isalpha() or method == "CONNECT":
        raise BadRow(
            f"the request cannot be sent: invalid method: {method}", hint="use GET or POST"
        )
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or _UNSENDABLE.search(value):
            raise BadRow(
                f"the request cannot be sent: invalid header: {name!r}",
                hint="check the headers of the request",
            )
        if is_framing(name):
            raise BadRow(f"the request cannot be sent with header {name!r}", hint=FRAMING_HINT)
    own = {
        "Host": host,
        "User-Agent": f"redline/{__version__}",
        "Accept-Encoding": "gzip, deflate",
    }
    pairs = [*own.items(), *headers.items()]
    lines = {name.lower(): f"{name}: {value}" for name, value in pairs}
    return "\r\n".join([f"{method} {target} HTTP/1.1", *lines.values(), ""]).encode()
