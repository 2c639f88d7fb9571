"""Secrets are taken out of what a server says, also if it quotes them escaped or in part."""

from __future__ import annotations

import re
import sys
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from html.entities import html5
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from redline.calls.wire import Endpoint
from redline.errors import CallError, NoEndpoint, RedlineError
from redline.process import printable

T = TypeVar("T")

HIDDEN = "<key>"
# A shorter key is a placeholder such as `EMPTY`, and may be part of any word. A part of a key that
# is this long shows too much of it.
_LEAST = 8
# A header with one of these in its name holds a secret; of any other only the whole value is one.
_SECRET_NAMES = re.compile("auth|key|token|secret|cookie|password|credential", re.IGNORECASE)
# JSON's and Python's escapes, also of a body inside a body; HTML's entities; URL's, also twice.
_ESCAPE = re.compile(
    r"\\+u([0-9a-fA-F]{4})|\\+x([0-9a-fA-F]{2})|&#[xX]([0-9a-fA-F]{1,6});?|&#([0-9]{1,7});?"
    r"|&([a-zA-Z]{2,8};)|%([0-9a-fA-F]{2})|\\+(?=[/\"'+=&_.~-])"
)
# By group: in which base its digits are.
_BASES = {1: 16, 2: 16, 3: 16, 4: 10, 6: 16}
_NAME = 5
_MOST_ROUNDS = 4
# Messages quote the beginning of a body. What they quote from behind this is masked when it is cut.
_LONGEST_BODY = 4096
# An error keeps as much of its body.
_LONGEST_KEPT = 64 * 1024
_SKIPPED = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)


class Mask:
    """Writes `<key>` for secrets in a text.

    secrets: also in part, from 8 characters on, and in base64 or hex. wholes: only as they are.
    """

    def __init__(self, secrets: Iterable[str], wholes: Iterable[str] = ()) -> None:
        self._parts: set[str] = set()
        for secret in secrets:
            for form in _forms(secret):
                last = len(form) - _LEAST + 1
                self._parts.update(form[at : at + _LEAST] for at in range(last))
        self._wholes = {bare for whole in wholes if len(bare := _bare(whole)) >= _LEAST}

    def text(self, text: str) -> str:
        """The text with every secret replaced."""
        if not self._parts and not self._wholes:
            return text
        plain, starts, ends = _unescaped(text)
        plain = plain.lower()
        parts = self._parts
        found = [
            (at, at + _LEAST)
            for at in range(len(plain) - _LEAST + 1)
            if plain[at : at + _LEAST] in parts
        ]
        for whole in self._wholes:
            at = plain.find(whole)
            while at >= 0:
                found.append((at, at + len(whole)))
                at = plain.find(whole, at + len(whole))
        masked, written = [], 0
        for begin, end in _merged(found):
            masked += [text[written : starts[begin]], HIDDEN]
            written = ends[end - 1]
        return "".join([*masked, text[written:]])

    def body(self, body: bytes) -> bytes:
        """The body with every secret in its beginning replaced."""
        beginning = body[:_LONGEST_BODY]
        masked = self._bytes(beginning)
        return body if masked == beginning else masked + body[_LONGEST_BODY:]

    def whole(self, body: bytes, masked: bytes) -> bytes | Callable[[], bytes]:
        """What an error keeps of its body: at most 64 KiB with every secret replaced.

        masked: what `body` made of it. A function of a longer one, which takes 1 ms for 1 KiB.
        """
        if len(body) <= _LONGEST_BODY:
            return masked
        kept = body[:_LONGEST_KEPT]
        return lambda: self._bytes(kept)[:_LONGEST_KEPT]

    def _bytes(self, body: bytes) -> bytes:
        return self.text(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def read(self, body: bytes, read: Callable[[bytes], T]) -> T:
        """What `read` makes of the body. An error quotes the body with its secrets replaced."""
        try:
            return read(body)
        except (CallError, NoEndpoint) as found:
            error = found
        masked = self.body(body)
        if masked != body:
            # The same error again: its quote is cut after the secrets are gone.
            read(masked)
        raise error

    def hide(self, error: RedlineError) -> None:
        """Makes the error's words safe to print and to keep."""
        error.what = printable(self.text(error.what))
        error.hint = printable(self.text(error.hint))


NO_SECRETS = Mask(())


def mask_of(
    endpoint: Endpoint, proxy: str | None, headers: Mapping[str, str] | None = None
) -> Mask:
    """What must not show in a message about a call to the endpoint.

    Its key, the proxy's password, and what its headers and the request's own `headers` hold. A
    header such as `Bearer abc` may be quoted with its scheme or without.
    """
    secrets = [endpoint.api_key or ""]
    wholes = []
    if proxy is not None and "@" in proxy:
        user, _, password = urlsplit(proxy).netloc.rpartition("@")[0].partition(":")
        secrets += [f"{unquote(user)}:{unquote(password)}", unquote(password)]
    for name, value in [*endpoint.headers.items(), *(headers or {}).items()]:
        if _SECRET_NAMES.search(name):
            secrets.append(value.rpartition(" ")[2])
        wholes += [value, value.rpartition(" ")[2]]
    return Mask(secrets, wholes)


def _bare(text: str) -> str:
    return _SKIPPED.sub("", text).lower()


def _forms(secret: str) -> Iterator[str]:
    """The secret, and what encodings make of it anywhere in a longer text."""
    if len(secret) < _LEAST:
        return
    raw = secret.encode()
    yield _bare(secret)
    yield raw.hex()
    for encode in (b64encode, urlsafe_b64encode):
        # Three bytes become four characters, so there are three ways to fall into them. Characters
        # that depend on what precedes or follows are left out.
        for before, depending in ((0, 0), (1, 2), (2, 3)):
            encoded = encode(bytes(before) + raw).decode().rstrip("=")
            yield encoded[depending:-1].lower()


def _unescaped(text: str) -> tuple[str, list[int], list[int]]:
    """The decoded text, and where in the original each character begins and ends."""
    plain, starts, ends = text, list(range(len(text))), list(range(1, len(text) + 1))
    for _ in range(_MOST_ROUNDS):
        plain, starts, ends, is_changed = _unescaped_once(plain, starts, ends)
        if not is_changed:
            break
    if _SKIPPED.search(plain) is None:
        return plain, starts, ends
    kept = [at for at, char in enumerate(plain) if not _SKIPPED.match(char)]
    return (
        "".join([plain[at] for at in kept]),
        [starts[at] for at in kept],
        [ends[at] for at in kept],
    )


def _unescaped_once(
    text: str, starts: list[int], ends: list[int]
) -> tuple[str, list[int], list[int], bool]:
    """One layer of escapes less; the last is False if there was none."""
    chars: list[str] = []
    begins: list[int] = []
    stops: list[int] = []
    at = 0
    for found in _ESCAPE.finditer(text):
        char = _char(found)
        if char is None:
            continue
        chars += text[at : found.start()]
        begins += starts[at : found.start()]
        stops += ends[at : found.start()]
        at = found.end()
        if char:
            chars.append(char)
            begins.append(starts[found.start()])
            stops.append(ends[at - 1])
    if not at:
        return text, starts, ends, False
    return "".join([*chars, text[at:]]), begins + starts[at:], stops + ends[at:], True


def _char(found: re.Match[str]) -> str | None:
    """The character of an escape; empty for a mere backslash, None for no known character."""
    for number, base in _BASES.items():
        if digits := found[number]:
            code = int(digits, base)
            return chr(code) if code <= sys.maxunicode else None
    if name := found[_NAME]:
        char = html5.get(name)
        return char if char is not None and len(char) == 1 else None
    return ""


def _merged(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(found):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
