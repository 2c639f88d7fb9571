"""Answers from a file: a message that contains a question gets that question's answer.

A message that equals a question, except for white space at its ends, is found by one table lookup.
Otherwise every question within the message is found by anchors: a table has, for each question, the
pieces of 32 characters that begin at its first eight characters, so that a look at every eighth
place of the message finds one of them. Questions of fewer than 39 characters have one piece, of at
most 8 characters, which is looked for at every place. Only questions whose piece is found are
compared in full. The longest one wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from redline.errors import ConfigError

MAX_LINES = 1_000_000
_LONG = (32, 8)
_SHORT = (8, 1)


class _Line(msgspec.Struct):
    question: str
    answer: str


class _Anchors:
    """Questions of at least `width + step - 1` characters, found by pieces of `width`."""

    def __init__(self, width: int, step: int) -> None:
        self._width = width
        self._step = step
        self._pieces: dict[str, list[tuple[str, int]]] = {}

    def add(self, question: str) -> None:
        for offset in range(self._step):
            piece = question[offset : offset + self._width]
            self._pieces.setdefault(piece, []).append((question, offset))

    def longest(self, message: str) -> str:
        """Returns the longest question in the message, or an empty string."""
        best = ""
        width, pieces = self._width, self._pieces
        for place in range(0, len(message) - width + 1, self._step):
            for question, offset in pieces.get(message[place : place + width], ()):
                begin = place - offset
                if begin >= 0 and len(question) > len(best) and message.startswith(question, begin):
                    best = question
        return best


class Replay:
    """Questions and their answers. If a question occurs twice, its first answer counts."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._answers: dict[str, str] = {}
        for question, answer in pairs:
            self._answers.setdefault(question.strip(), answer)
        self._groups: dict[tuple[int, int], _Anchors] = {}
        for question in self._answers:
            shape = _shape(len(question))
            self._groups.setdefault(shape, _Anchors(*shape)).add(question)

    def __len__(self) -> int:
        return len(self._answers)

    def answer(self, message: str) -> str | None:
        """Returns the answer to the longest question in the message, or None."""
        exact = self._answers.get(message.strip())
        if exact is not None:
            return exact
        found = max((group.longest(message) for group in self._groups.values()), key=len)
        return self._answers[found] if found else None


def _shape(length: int) -> tuple[int, int]:
    """Returns the width and step of the anchors for a question of this length."""
    for width, step in (_LONG, _SHORT):
        if length >= width + step - 1:
            return width, step
    return length, 1


def load_replay(path: Path) -> Replay:
    """Loads the replay from a JSONL file whose lines have a `question` and an `answer`.

    Other columns are ignored, so the GSM8K files are read as they are.
    Raises ConfigError, with file and line, for anything else.
    """
    decoder = msgspec.json.Decoder(_Line)
    pairs: list[tuple[str, str]] = []
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                text = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if text.strip():
                    pairs.append(_pair(decoder, text, f"{path}:{number}"))
                if len(pairs) > MAX_LINES:
                    raise ConfigError(
                        f"the replay file has more than {MAX_LINES:,} questions", where=str(path)
                    )
    except OSError as error:
        raise ConfigError(
            f"the replay file cannot be read: {error.strerror}", where=str(path)
        ) from error
    if not pairs:
        raise ConfigError("the replay file has no questions", where=str(path))
    return Replay(pairs)


def _pair(decoder: msgspec.json.Decoder[_Line], text: bytes, where: str) -> tuple[str, str]:
    try:
        line = decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"a replay line is not a question with an answer: {error}",
            where=where,
            hint='write lines like {"question": "2 + 2?", "answer": "4"}',
        ) from None
    if not line.question.strip():
        raise ConfigError("a replay line has an empty question", where=where)
    return line.question, line.answer
