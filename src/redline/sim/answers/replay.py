"""Answers from a file: a message that contains a question gets that question's answer.

If the message is a question, apart from white space at its ends, one table lookup finds the answer.
Otherwise the questions within the message are found by their pieces. A table holds, for each
question, the 8 pieces of 32 characters that begin at its first 8 characters, so looking up the
piece at every 8th position of the message is enough to find one of them. A question of fewer than
39 characters has only one piece, of at most 8 characters, so every position is looked up. Only
questions with a piece in the message are compared in full. The longest one in it is answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from redline.errors import ConfigError

MAX_LINES = 1_000_000
# Width of pieces, and step between lookups. Each call's whole prompt is searched, so looking up
# every position of a long prompt would be slow.
_LONG = (32, 8)
_SHORT = (8, 1)


class _Line(msgspec.Struct):
    question: str
    answer: str


class Replay:
    """Looks up the answers to questions. If a question occurs twice, its first answer is used."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._answers: dict[str, str] = {}
        for question, answer in pairs:
            self._answers.setdefault(question.strip(), answer)
        # For each (width, step): each piece's questions, with the piece's offset in the question.
        self._pieces: dict[tuple[int, int], dict[str, list[tuple[str, int]]]] = {}
        for question in self._answers:
            width, step = shape = _shape(len(question))
            pieces = self._pieces.setdefault(shape, {})
            for offset in range(step):
                piece = question[offset : offset + width]
                pieces.setdefault(piece, []).append((question, offset))

    def __len__(self) -> int:
        return len(self._answers)

    def answer(self, message: str) -> str | None:
        """Returns the answer to the longest question in the message, or None."""
        exact = self._answers.get(message.strip())
        if exact is not None:
            return exact
        best = ""
        for (width, step), pieces in self._pieces.items():
            for place in range(0, len(message) - width + 1, step):
                for question, offset in pieces.get(message[place : place + width], ()):
                    begin = place - offset
                    is_longer = begin >= 0 and len(question) > len(best)
                    if is_longer and message.startswith(question, begin):
                        best = question
        return self._answers[best] if best else None


def _shape(length: int) -> tuple[int, int]:
    """Returns the width of the pieces of a question of this length, and the step of its lookups."""
    if length >= sum(_LONG) - 1:
        return _LONG
    width, step = _SHORT
    return min(width, length), step


def load_replay(path: Path) -> Replay:
    """Loads the replay from a JSONL file whose lines have a `question` and an `answer`.

    Other columns are ignored, so the GSM8K files can be used unchanged.
    Raises ConfigError, with file and line, for any other line, and for a file that cannot be read,
    has no questions, or has more than 1,000,000.
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
