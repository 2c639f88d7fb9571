"""Masks secrets in texts from a server, even if the server quotes them escaped or in part."""

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
# Where a character of a decoded text begins and ends in the original text.
_Span = tuple[int, int]

HIDDEN = "<key>"
# A key shorter than this is a placeholder such as `EMPTY`, and may be part of any word. A part of a
# key that is as long as this reveals too much.
_LEAST = 8
# A header whose name has one of these words is secret; other values are hidden only as a whole.
_SECRET_NAMES = re.compile("auth|key|token|secret|cookie|password|credential", re.IGNORECASE)
# Escapes of JSON and Python, also of a body inside a body; HTML entities; URL escapes, also twice.
# A run of backslashes is matched only from its first one: trying each would take too long.
_ESCAPE = re.compile(
    r"(?<!\\)\\++(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(?=[/\"'+=&_.~-]))"
    r"|&#[xX]([0-9a-fA-F]{1,6});?|&#([0-9]{1,7});?|&([a-zA-Z]{2,8};)|%([0-9a-fA-F]{2})"
)
# The base of each group's digits.
_BASES = {1: 16, 2: 16, 3: 16, 4: 10, 6: 16}
_NAME = 5
_MOST_ROUNDS = 4
_SECRET = b"\1"
_RUN = re.compile(b"\1+")
# Messages quote the beginning of a body; `hide` masks what they quote beyond this length.
_LONGEST_BODY = 4096
# An error keeps at most this much of its body.
_LONGEST_KEPT = 64 * 1024
_SKIPPED = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)


class Mask:
    """Replaces secrets in a text with `<key>`.

    secrets: texts of which even parts, of 8 or more characters, are replaced, also in base64 or
    hex. wholes: texts to replace only as a whole. Shorter secrets and wholes are not replaced.
    """

    def __init__(self, secrets: Iterable[str], wholes: Iterable[str] = ()) -> None:
        self._parts: set[str] = set()
        for secret in secrets:
            for form in _forms(secret):
                last = len(form) - _LEAST + 1
                self._parts.update(form[at : at + _LEAST] for at in range(last))
        self._wholes = {bare for whole in wholes if len(bare := _bare(whole)) >= _LEAST}

    def text(self, text: str) -> str:
        """Returns the text with every secret replaced."""
        if not self._parts and not self._wholes:
            return text
        plain, spans = _unescaped(text)
        plain = _lowered(plain)
        parts = self._parts
        # One byte per character of `plain`: whether it is part of a secret.
        marks = bytearray(len(plain))
        for at in range(len(plain) - _LEAST + 1):
            if plain[at : at + _LEAST] in parts:
                marks[at : at + _LEAST] = _SECRET * _LEAST
        for whole in self._wholes:
            at = plain.find(whole)
            while at >= 0:
                marks[at : at + len(whole)] = _SECRET * len(whole)
                at = plain.find(whole, at + len(whole))
        masked, written = [], 0
        for run in _RUN.finditer(marks):
            masked += [text[written : spans[run.start()][0]], HIDDEN]
            written = spans[run.end() - 1][1]
        return "".join([*masked, text[written:]])

    def body(self, body: bytes) -> bytes:
        """Returns the body with every secret in its first 4 KiB replaced."""
        beginning = body[:_LONGEST_BODY]
        masked = self._bytes(beginning)
        return body if masked == beginning else masked + body[_LONGEST_BODY:]

    def whole(self, body: bytes, masked: bytes) -> bytes | Callable[[], bytes]:
        """Returns the part of the body that an error keeps: at most 64 KiB, with secrets replaced.

        masked: the result of `body`. For a body above 4 KiB, returns a function that masks it on
        demand, which takes about 1 ms per KiB.
        """
        if len(body) <= _LONGEST_BODY:
            return masked
        kept = body[:_LONGEST_KEPT]
        return lambda: self._bytes(kept)[:_LONGEST_KEPT]

    def _bytes(self, body: bytes) -> bytes:
        return self.text(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def read(self, body: bytes, read: Callable[[bytes], T]) -> T:
        """Returns `read(body)`. If `read` fails, raises its error with quoted secrets replaced."""
        try:
            return read(body)
        except (CallError, NoEndpoint) as found:
            error = found
        masked = self.body(body)
        if masked != body:
            # Raises the same error, but its quote is cut only after the secrets are replaced.
            read(masked)
        raise error

    def hide(self, error: RedlineError) -> None:
        """Makes the error's texts safe to print and to store."""
        error.what = printable(self.text(error.what))
        error.hint = printable(self.text(error.hint))


NO_SECRETS = Mask(())


def mask_of(
    endpoint: Endpoint, proxy: str | None, headers: Mapping[str, str] | None = None
) -> Mask:
    """Returns the mask for messages about a call to the endpoint.

    It hides the endpoint's key, the proxy's password, and the values of the endpoint's headers and
    of the request's own `headers`. A value such as `Bearer abc` is hidden with and without its
    scheme.
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
    return _lowered(_SKIPPED.sub("", text))


def _lowered(text: str) -> str:
    """Returns the text in lower case, with the same length: `İ` would become two characters."""
    return "".join([small if len(small := char.lower()) == 1 else char for char in text])


def _forms(secret: str) -> Iterator[str]:
    """Yields the secret and its encodings, as they occur anywhere in a longer encoded text."""
    if len(secret) < _LEAST:
        return
    raw = secret.encode()
    yield _bare(secret)
    yield raw.hex()
    for encode in (b64encode, urlsafe_b64encode):
        # Three bytes become four characters, so a secret may begin at any of three offsets.
        # Characters that depend on the bytes before or after the secret are left out.
        for before, depending in ((0, 0), (1, 2), (2, 3)):
            encoded = encode(bytes(before) + raw).decode().rstrip("=")
            yield encoded[depending:-1].lower()


def _unescaped(text: str) -> tuple[str, list[_Span]]:
    """Decodes a text's escapes; also returns where each character begins and ends in `text`."""
    plain, spans = text, [(at, at + 1) for at in range(len(text))]
    for _ in range(_MOST_ROUNDS):
        size = len(plain)
        plain, spans = _unescaped_once(plain, spans)
        if len(plain) == size:
            break
    if _SKIPPED.search(plain) is None:
        return plain, spans
    kept = [at for at, char in enumerate(plain) if not _SKIPPED.match(char)]
    return "".join([plain[at] for at in kept]), [spans[at] for at in kept]


def _unescaped_once(text: str, spans: list[_Span]) -> tuple[str, list[_Span]]:
    """Decodes one layer of escapes, each of which becomes shorter."""
    chars: list[str] = []
    found_in: list[_Span] = []
    at = 0
    for found in _ESCAPE.finditer(text):
        char = _char(found)
        if char is None:
            continue
        chars += text[at : found.start()]
        found_in += spans[at : found.start()]
        at = found.end()
        if char:
            chars.append(char)
            found_in.append((spans[found.start()][0], spans[at - 1][1]))
    return "".join([*chars, text[at:]]), found_in + spans[at:]


def _char(found: re.Match[str]) -> str | None:
    """Returns an escape's character; empty for a mere backslash, None for an unknown escape."""
    for number, base in _BASES.items():
        if digits := found[number]:
            code = int(digits, base)
            return chr(code) if code <= sys.maxunicode else None
    if name := found[_NAME]:
        char = html5.get(name)
        return char if char is not None and len(char) == 1 else None
    return ""
