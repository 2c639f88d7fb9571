"""Finds the parts of a request's body that become tokens: texts, messages, ids and media."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import msgspec

from redline.apis import APIS, PLAIN

_TEXT_FIELDS = frozenset(name for api in (*APIS, PLAIN) for name in api.texts)
_JSON_FIELDS = frozenset(name for api in (*APIS, PLAIN) for name in api.as_json)
_BESIDE_MESSAGES = (_TEXT_FIELDS | _JSON_FIELDS) - {"messages"}
# The beginning of a URL that itself contains an image or a file.
DATA = "data:"
# Fields whose strings say what a part is, and are not read as text.
_LABELS = frozenset({"role", "type"})
_MEDIA_TYPES = frozenset(
    {
        *("image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video"),
        *("video_url", "file", "input_file", "document_url"),
    }
)
# At most this many values of a body are read, even if a list contains itself.
# An embeddings call may have 2,048 inputs.
MOST_VALUES = 50_000
# The number of pieces that represent a long text. Eight, evenly spread, cover a prompt's
# instructions, its documents and its end.
_PIECES = 8

# The classes of characters that `Prompt.classes` counts, in this order; each has a weight. Spaces
# are counted separately from letters, since most words are one token whatever their length.
CLASSES = ("letters", "spaces", "digits", "marks", "accented", "wide")
_SPACE, _DIGIT, _MARK, _ACCENTED, _WIDE, _TAIL = b" 0.aw-"
_LETTERS = ascii_letters.encode()


def _class_of(byte: int) -> int:
    """Returns the class of one byte of UTF-8 that is not an ASCII letter.

    A lead byte represents its character. 0xC2-0xDF lead U+0080-U+07FF: accented Latin, Greek,
    Cyrillic, Hebrew, Arabic. 0xE2 leads U+2000-U+2FFF: quotes, dashes and symbols. Other lead bytes
    are for Indic and Thai, CJK, and emoji, which take about one token per character or more.
    """
    if byte < 0x80:
        return _SPACE if byte == 0x20 else _DIGIT if 0x30 <= byte <= 0x39 else _MARK
    if byte < 0xC0:
        return _TAIL
    if byte < 0xE0:
        return _ACCENTED
    return _MARK if byte == 0xE2 else _WIDE


_CLASS_OF = bytes(map(_class_of, range(256)))


def json_text(value: Any) -> list[str]:
    """Returns the value as JSON; an empty list if it has no JSON form: such a call is refused."""
    try:
        return [msgspec.json.encode(value).decode()]
    except (TypeError, ValueError, RecursionError):
        return []


def is_media(part: dict[str, Any]) -> bool:
    """Whether a part of a message is an image, a sound, a video or a file."""
    kind = part.get("type")
    if kind == "document":
        # Anthropic's type, which may also contain a text, or parts.
        source = part.get("source")
        return isinstance(source, dict) and source.get("type") not in ("text", "content")
    return isinstance(kind, str) and kind in _MEDIA_TYPES


class Prompt:
    """The parts of a body that become tokens.

    body: the decoded body, or the texts of its messages if it has no other parts. length:
    characters in all texts. ids: tokens given as numbers.
    """

    __slots__ = ("ids", "length", "media", "messages", "texts")

    def __init__(self, body: dict[str, Any] | list[str]) -> None:
        self.media = self.ids = 0
        if type(body) is list:
            self.texts, self.messages = body, len(body)
            self.length = sum(map(len, body))
            return
        assert isinstance(body, dict)
        texts: list[str] = []
        self.texts = texts
        self.messages = 0
        rest: list[Any] = []
        said = body.get("messages")
        if type(said) is list and _BESIDE_MESSAGES.isdisjoint(body):
            for message in said if len(said) <= MOST_VALUES else said[:MOST_VALUES]:
                # Nearly all messages are a role and a text.
                if type(message) is dict and len(message) == 2 and "role" in message:
                    text = message.get("content")
                    if type(text) is str and text[:5] != DATA:
                        texts.append(text)
                        continue
                rest.append(message)
            self.messages = len(texts)
        else:
            rest = self._found(body)
        if rest:
            self._read(rest)
        self.length = sum(map(len, texts))

    def _found(self, body: dict[str, Any]) -> list[Any]:
        """Returns the values of fields that may contain texts; adds fields that count as JSON."""
        found = []
        for name, value in body.items():
            if name in _TEXT_FIELDS:
                found.append(value)
            elif name in _JSON_FIELDS and value is not None:
                self.texts += json_text(value)
        return found

    def _read(self, todo: list[Any]) -> None:
        """Adds the texts, messages, ids and media in these values."""
        values_left = MOST_VALUES
        while todo and values_left > 0:
            values_left -= 1
            value = todo.pop()
            if isinstance(value, dict):
                self._open(value, todo)
            elif isinstance(value, (list, tuple)):
                if value and type(value[0]) is int:
                    self.ids += len(value)
                else:
                    todo += value[:values_left]
            elif isinstance(value, str):
                self._add_text(value)

    def _open(self, value: dict[str, Any], todo: list[Any]) -> None:
        """Adds the texts of an object, and its other values to `todo`."""
        if "role" in value:
            self.messages += 1
        if "type" in value and is_media(value):
            # The base64 text or URL of a medium says nothing about its cost.
            self.media += 1
            return
        for name, item in value.items():
            if name in _LABELS:
                continue
            if isinstance(item, str):
                self._add_text(item)
            else:
                todo.append(item)

    def _add_text(self, text: str) -> None:
        if text.startswith(DATA):
            self.media += 1
        else:
            self.texts.append(text)

    def sample(self, most_chars: int) -> str:
        """Returns all texts joined, or evenly spread pieces: at most `most_chars` characters."""
        if self.length <= most_chars:
            return self.texts[0] if len(self.texts) == 1 else "".join(self.texts)
        piece, stride = most_chars // _PIECES, self.length / _PIECES
        found: list[str] = []
        # One piece in the middle of each stride; a piece may continue into the next texts.
        middle, missing, offset = stride / 2, piece, 0
        begin = int(middle - piece / 2)
        for text in self.texts:
            end = offset + len(text)
            while begin < end and middle < self.length:
                found.append(text[begin - offset : begin - offset + missing])
                missing -= len(found[-1])
                begin = end
                if not missing:
                    middle, missing = middle + stride, piece
                    begin = int(middle - piece / 2)
            offset = end
        return "".join(found)

    def classes(self, most_chars: int) -> tuple[float, float, float, float, float, float]:
        """Counts the characters of each of CLASSES, scaled up from `most_chars` of them."""
        texts, length = self.texts, self.length
        is_short = length <= most_chars and len(texts) == 1
        sample = texts[0] if is_short else self.sample(most_chars)
        raw = sample.encode("utf-8", "surrogatepass")
        rest = raw.translate(_CLASS_OF, _LETTERS)
        letters = len(raw) - len(rest)
        spaces, digits = rest.count(_SPACE), rest.count(_DIGIT)
        if sample.isascii():
            accented = wide = 0
            marks = len(rest) - spaces - digits
        else:
            marks, accented, wide = rest.count(_MARK), rest.count(_ACCENTED), rest.count(_WIDE)
        if length > most_chars and sample:
            scale = length / len(sample)
            return (
                letters * scale, spaces * scale, digits * scale,
                marks * scale, accented * scale, wide * scale,
            )  # fmt: skip
        return letters, spaces, digits, marks, accented, wide
