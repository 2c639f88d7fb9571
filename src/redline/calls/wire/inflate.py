"""Decompresses a response's body, and makes the errors of invalid compression."""

from __future__ import annotations

from collections.abc import Mapping

from redline.errors import BadReply
from redline.inflate import Inflate

# Codings that change nothing.
_PLAIN = ("", "identity")


def inflate_for(headers: Mapping[str, str]) -> Inflate | None:
    """Returns a decompressor for the coding in a response's headers; None if there is no coding.

    Raises BadReply for a coding that redline did not request.
    """
    # Most responses have neither header, so they cost only these two lookups.
    if "transfer-encoding" in headers:
        coding = headers["transfer-encoding"]
        if coding.strip().lower() != "chunked":
            raise _unasked(coding)
    if "content-encoding" not in headers:
        return None
    codings = headers["content-encoding"]
    # A list, possibly from several headers (RFC 9110, 5.6.1 and 8.4); empty parts are ignored.
    kinds = [kind for part in codings.split(",") if (kind := part.strip().lower()) not in _PLAIN]
    if not kinds:
        return None
    if len(kinds) > 1 or kinds[0] not in ("gzip", "x-gzip", "deflate"):
        raise _unasked(codings)
    return Inflate(may_be_raw=kinds[0] == "deflate")


def cut_short() -> BadReply:
    """Returns the error for a body that ends before its compressed data does."""
    return BadReply("the compressed response is truncated")


def damaged(error: ValueError) -> BadReply:
    """Returns the error for a body with invalid compressed data."""
    return BadReply(f"the response cannot be decompressed: {error}")


def _unasked(coding: str) -> BadReply:
    shown = ascii(coding[:40])[1:-1]
    return BadReply(f"the response is encoded as {shown}, which was not requested")
