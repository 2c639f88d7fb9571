"""Decodes tokens to text as they arrive: whole characters only, cut at stop strings.

A character may span several tokens, and some decoders write a token differently at the beginning
of a text or inside a run of bytes. So a stream decodes a short window of its last tokens. Unless a
stop string cuts the text, or a long run of bytes has an invalid one, the returned parts, joined,
equal all tokens decoded at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers.convert_slow_tokenizer import bytes_to_unicode

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# The bytes of an incomplete character belong to the last three tokens, since a character has at
# most four bytes. So tokens before the last eight do not affect how the text ends.
_CONTEXT_TOKENS = 8
# Tokens such as <0xF0> are decoded in runs: one invalid byte turns the whole run into replacement
# characters, so a run is held back until its end. A run longer than this (16 to 64 characters) is
# released in parts; otherwise text in a script outside the vocabulary would appear only at the end.
_LONGEST_RUN_TOKENS = 64
_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Piece(NamedTuple):
    """One token of a vocabulary.

    data: the bytes that it adds to a text; for a special token, the bytes of its name.
    is_silent: it adds nothing to an answer, because it is special or unknown to the tokenizer.
    is_byte: it is one byte of a run, such as <0xF0>.
    """

    data: bytes
    is_silent: bool = False
    is_byte: bool = False


class Pieces:
    """The bytes of each token of a vocabulary; one object for all streams of a tokenizer.

    tokenizer: a tokenizer of transformers. Each token is looked up once and kept, so memory is
    bounded by the vocabulary. most_bytes: the most bytes that a token adds to a text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._special = frozenset(token for token in added if added[token].special)
        self._known: dict[int, Piece] = {}
        # Tokens are decoded after this one, since decoders drop a space at the beginning of a text.
        self.anchor: list[int] = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self.anchor_length = len(self.decode(self.anchor))
        # A token's name has at least as many bytes as its text: up to twice as many if bytes are
        # written as letters, and three times as many for a space.
        self.most_bytes = max(len(name.encode()) for name in tokenizer.get_vocab())

    def of(self, token: int) -> Piece:
        """Returns the piece of `token`."""
        if token not in self._known:
            self._known[token] = self._read(token)
        return self._known[token]

    def decode(self, tokens: list[int]) -> str:
        """Decodes the tokens without special ones, and keeps every space as generated."""
        if not tokens:
            return ""
        ways = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(tokens, **ways))

    def _read(self, token: int) -> Piece:
        name: str | None = self._tokenizer.convert_ids_to_tokens(token)
        if name is None or token in self._special:
            return Piece((name or "").encode(), is_silent=True)
        if byte := _BYTE_NAME.fullmatch(name):
            return Piece(bytes([int(byte[1], 16)]), is_byte=True)
        text = self.decode([*self.anchor, token])[self.anchor_length :]
        if _REPLACEMENT in text and all(char in _BYTES for char in name):
            return Piece(bytes(_BYTES[char] for char in name))
        return Piece(text.encode())


# The byte of each character of a byte-level vocabulary, as in GPT-2's encoder.
_BYTES = {char: byte for byte, char in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]


class TextStream:
    """Decodes the tokens of one answer to text, piece by piece.

    stops: stop strings, none of them empty. continues: the answer continues its prompt's text, so
    a space at the answer's beginning is kept. is_stopped: a stop string has occurred; the returned
    text ends before it. length: the number of characters that are certain, including those held
    back or cut off; before a push, it is the offset of the token's text, or of the run of bytes
    that the token continues. Each token costs the decoding of at most 16 tokens; at the end of a
    run of bytes, at most 80.
    """

    def __init__(
        self, pieces: Pieces, stops: Sequence[str] = (), *, continues: bool = False
    ) -> None:
        self._pieces = pieces
        self._stops = stops
        self._stop_ends = frozenset(stop.encode()[-1:] for stop in stops)
        self._window: list[int] = [*pieces.anchor] if continues else []
        # How many characters of the window's text are certain and have been processed.
        self._taken = pieces.anchor_length if continues else 0
        self._run_tokens = 0  # tokens at the window's end that are bytes
        self._held = ""  # certain text that may be the beginning of a stop string
        self.is_stopped = False
        self.length = 0

    def push(self, token: int) -> str:
        """Returns the text that `token` makes certain.

        The text is empty while a character or a stop string may be incomplete.
        """
        piece = self._pieces.of(token)
        if self.is_stopped or piece.is_silent:
            return ""
        self._window.append(token)
        if not piece.is_byte:
            self._run_tokens = 0
            return self._released(self._settled())
        self._run_tokens += 1
        if self._run_tokens >= _LONGEST_RUN_TOKENS:
            return self._released(self._run_so_far())
        if piece.data in self._stop_ends and self._is_stop(new := self._unsettled()):
            return self._released(new)
        return ""

    def finish(self) -> str:
        """Returns the rest of the text, including text held back; empty after a stop string."""
        if self.is_stopped:
            return ""
        text = self._released(self._unsettled())
        self._window, held, self._held = [], self._held, ""
        return text + held

    def _unsettled(self) -> str:
        """Returns the new text of the window as if no token followed."""
        return self._pieces.decode(self._window)[self._taken :]

    def _is_stop(self, new: str) -> bool:
        """Returns whether `new` has only whole characters and completes a stop string."""
        text = self._held + new
        return _REPLACEMENT not in new and any(stop in text for stop in self._stops)

    def _settled(self) -> str:
        """Returns the new text of the window, without a last character that may still change."""
        text = self._pieces.decode(self._window)
        end = len(text) - text.endswith(_REPLACEMENT)
        new = text[self._taken : end]
        self._taken = max(self._taken, end)
        if len(self._window) >= 2 * _CONTEXT_TOKENS:
            open_chars = len(text) - self._taken
            self._window = self._window[-_CONTEXT_TOKENS:]
            self._taken = max(0, len(self._pieces.decode(self._window)) - open_chars)
        return new

    def _run_so_far(self) -> str:
        """Returns the new text of a long run of bytes, up to its last whole character."""
        window, size = self._window, len(self._window)
        texts = {end: self._pieces.decode(window[:end]) for end in range(size, size - 4, -1)}
        whole = (end for end, text in texts.items() if not text.endswith(_REPLACEMENT))
        end = next(whole, size)
        new = texts[end][self._taken :]
        self._window = [*self._pieces.anchor, *window[end:]]
        self._taken = self._pieces.anchor_length
        self._run_tokens = size - end
        return new

    def _released(self, new: str) -> str:
        """Returns the text that may be passed on now that `new` is certain.

        The stop string that is complete first ends the text, so the cut does not depend on token
        boundaries. If two end at the same place, the text is cut before the longer one.
        """
        self.length += len(new)
        text = self._held + new
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped, self._held = True, ""
            return text[: min(found)[1]]
        end = len(text) - max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[end:]
        return text[:end]


def _begun(text: str, stop: str) -> int:
    """Counts the characters at the end of `text` that are the beginning of `stop`."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
