"""Which codings of an answer are undone, and which are refused."""

from __future__ import annotations

import zlib

import pytest

from redline.calls.wire import inflate
from redline.errors import BadReply

TEXT = b"text " * 100


def packed(window: int) -> bytes:
    packer = zlib.compressobj(wbits=window)
    return packer.compress(TEXT) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "window"),
    [
        ("gzip", 31),
        (" GZip ", 31),
        ("x-gzip", 31),
        ("deflate", 15),
        ("deflate", -15),
        # Two headers, or one, that also name what changes nothing (RFC 9110, 5.3 and 5.6.1).
        ("identity, gzip", 31),
        ("gzip,", 31),
        (", ,deflate, identity", 15),
    ],
)
def test_one_known_coding_is_undone(coding: str, window: int) -> None:
    found = inflate.inflate_for({"content-encoding": coding})
    assert found is not None
    assert found.take(packed(window), 10_000) == TEXT
    assert found.is_whole


@pytest.mark.parametrize("coding", ["", " ", "identity", "Identity, identity", ",,"])
def test_what_changes_nothing_needs_nothing(coding: str) -> None:
    assert inflate.inflate_for({"content-encoding": coding}) is None


@pytest.mark.parametrize(
    "coding", ["br", "gzip, gzip", "deflate, gzip", "gzip;q=1", "gzip deflate", "identity br"]
)
def test_what_was_not_asked_for_is_refused(coding: str) -> None:
    with pytest.raises(BadReply):
        inflate.inflate_for({"content-encoding": coding})
