"""Reads the chunks of a body on the wire (RFC 9112, 7.1): a line with the size, and the bytes.

Only chunks without extensions, which most servers send, are read here. llhttp reads all others and
decides whether they are valid.
"""

from __future__ import annotations

from functools import lru_cache

# The end of a chunk that ends an event. A size line cannot end like this, since it would be empty.
CHUNK_END = b"\n\n\r\n"
# The size of a chunk of 64 KiB has five hexadecimal digits.
_MOST_DIGITS = 5
_AROUND_BYTES = len(b"\r\n\r\n")


@lru_cache(maxsize=4096)
def size_line(whole_bytes: int) -> bytes | None:
    """Returns the size line of a chunk of `whole_bytes` on the wire; None if no chunk is that long.

    The hexadecimal number is in lower case.
    """
    for digits in range(1, _MOST_DIGITS + 1):
        size = whole_bytes - _AROUND_BYTES - digits
        line = b"%x\r\n" % max(0, size)
        if size > 0 and len(line) == digits + 2:
            return line
    return None


def chunks_in(data: bytes) -> list[tuple[int, int]] | None:
    """Returns where the body of each chunk in `data` begins and ends.

    None unless `data` consists of whole chunks; the empty last chunk of a body is not accepted.
    """
    found, at = [], 0
    while at < len(data):
        end = data.find(b"\r\n", at, at + _MOST_DIGITS + 2)
        if end < 0:
            return None
        line = data[at:end].lower()
        try:
            size = int(line, 16)
        except ValueError:
            return None
        start, stop = end + 2, end + 2 + size
        if size <= 0 or line != b"%x" % size or data[stop : stop + 2] != b"\r\n":
            return None
        found.append((start, stop))
        at = stop + 2
    return found
