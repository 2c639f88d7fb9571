"""Checks the input file of a batch before its first line is sent."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from redline.apis import LineChecker, Problem, RequestLine
from redline.process import counted
from redline.sources import MAX_ROW_BYTES

_MOST_PROBLEMS = 100
# A thread pauses after this many lines; otherwise it would block the event loop for 5 ms at a time.
BREATH_LINES = 64
_BREATH_S = 1e-6
# Levels of nesting: JSON with fewer than _DEEP can always be parsed. The job's own call stack may
# take up to _SLACK levels.
_DEEP, _SLACK = 500, 50


class Checked(msgspec.Struct, frozen=True):
    """The result of checking a batch's file.

    lines: the number of requests that were read: all in the file, unless the check stopped early.
    problems: the errors in the file.
    """

    lines: int
    problems: list[Problem]


def check_file(path: Path, endpoint: str, most_lines: int) -> Checked:
    """Checks whether the file is a valid batch for this endpoint.

    endpoint: the path of the API, such as /v1/embeddings. most_lines: the most requests allowed.
    Blocks; meant for a thread. Stops at 100 problems, or at the first request beyond `most_lines`.
    Raises OSError if the file cannot be read.
    """
    checker = LineChecker(endpoint)
    problems: list[Problem] = []
    count = 0
    for number, raw in lines_of(path):
        if len(problems) >= _MOST_PROBLEMS:
            break
        if raw is None:
            text = f"This line is longer than {MAX_ROW_BYTES:,} bytes."
            problems.append(Problem("line_too_long", text, number))
            continue
        count += 1
        if count > most_lines:
            text = f"The file has more than {counted(most_lines, 'request')}."
            problems.append(Problem("too_many_requests", text))
            break
        found = checker.read(raw, number)
        if not isinstance(found, Problem) and _is_too_deep(raw):
            found = Problem("invalid_json_line", "This line is nested too deeply.", number)
        if isinstance(found, Problem):
            problems.append(found)
    if not count and not problems:
        problems.append(Problem("empty_file", "The file has no requests."))
    return Checked(count, problems)


def _is_too_deep(raw: bytes) -> bool:
    """Whether a line is nested so deeply that the job may be unable to parse it.

    How deep a nesting Python can parse depends on the depth of the call stack, which is greater in
    the job.
    """
    if raw.count(b"[") + raw.count(b"{") < _DEEP:
        return False
    try:
        msgspec.json.decode(b"[" * _SLACK + raw + b"]" * _SLACK)
    except RecursionError:
        return True
    return False


def custom_ids(path: Path) -> Iterator[str]:
    """Yields the custom_ids of a file's lines; lines that are not requests are skipped."""
    named = msgspec.json.Decoder(RequestLine)
    for _, raw in lines_of(path):
        if raw is not None:
            try:
                yield named.decode(raw).custom_id
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue


def lines_of(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yields the number, from 1, and the text of each line that is not blank.

    The text is stripped; it is None for a line longer than MAX_ROW_BYTES.
    """
    number = 0
    with path.open("rb") as file:
        while raw := file.readline(MAX_ROW_BYTES + 2):
            number += 1
            is_long = len(raw.rstrip(b"\r\n")) > MAX_ROW_BYTES
            while is_long and not raw.endswith(b"\n") and (raw := file.readline(2**20)):
                pass
            if number % BREATH_LINES == 0:
                breathe()
            if is_long:
                yield number, None
                continue
            text = (raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw).strip()
            if text:
                yield number, text


def breathe() -> None:
    """Lets the event loop's thread run."""
    time.sleep(_BREATH_S)
