"""Writes to stdout, including the results of a run without an output file, and to stderr."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from typing import Any, TextIO

import msgspec

from redline.apis import loose_json
from redline.errors import ConfigError, JournalError, RedlineError
from redline.events import AlertChanged, Event
from redline.journal import Output, Result, error_fields, line_writer
from redline.process import lasting, printable, printable_json

# A line may be 10 MB long. The event loop gets a turn after at most this many bytes: about 1 ms.
_TURN_BYTES = 256 * 1024
# The pause before writing to a full pipe again grows between these bounds: it is short at first,
# because a quick reader takes 64 KB in about 0.1 ms.
_LEAST_WAIT_S, _MOST_WAIT_S = 0.0001, 0.01
_HOME_AND_CLEAR = "\x1b[H\x1b[J"


def tell(text: str) -> None:
    """Writes to stderr. A failed write is not an error: the exit status still shows the result."""
    stream = lasting(sys.stderr)
    stream.write(printable(text))
    stream.flush()


def tell_line(text: str) -> None:
    """Writes a line to stderr as `tell` does."""
    tell(f"{text}\n")


def say(text: str = "", *, clears: bool = False) -> None:
    """Writes to stdout and flushes it; does nothing if stdout is closed.

    clears: whether the terminal is cleared first. Raises BrokenPipeError if the reader has closed
    the pipe, JournalError for other failures, such as a full disk.
    """
    if sys.stdout is None:
        return
    try:
        if text:
            # Writing even an empty string fails on a terminal that no longer exists.
            sys.stdout.write((_HOME_AND_CLEAR if clears else "") + printable(text))
        sys.stdout.flush()
    except OSError as error:
        raise lost_stdout(error) from error


def say_line(line: str) -> None:
    """Writes a line to stdout as `say` does."""
    say(f"{line}\n")


def say_lines(lines: Iterable[str]) -> None:
    """Writes lines to stdout as `say` does."""
    say("".join(f"{line}\n" for line in lines))


def say_json(data: bytes) -> None:
    """Writes JSON to stdout as `say` does; characters that `say` would remove are escaped.

    data: one JSON value; a line feed follows it.
    """
    say(printable_json(data).decode().removesuffix("\n") + "\n")


def lost_stdout(error: OSError, more_hint: str = "") -> Exception:
    """Returns the error to raise after a failed write to stdout; see `say`.

    more_hint: appended to the error's hint.
    """
    if isinstance(error, BrokenPipeError):
        # Without its errno: on EPIPE, click would end the program itself.
        return BrokenPipeError()
    hint = f"redirect stdout elsewhere{more_hint}"
    return JournalError(f"cannot write to stdout: {error.strerror}", hint=hint)


def forget_stdout() -> None:
    """Prevents the interpreter's flush at exit from writing to a stdout that refuses writes."""
    if sys.stdout is None:
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def hold_standard_streams() -> None:
    """Opens the null device in place of a closed stdin, stdout or stderr.

    Otherwise the next file or socket would get the closed stream's number and be used in its
    place. sys.stderr is never None afterwards: with None, `print` would write to stdout.
    Characters that the encoding of stdout lacks are written as escapes.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    out = sys.stdout
    if isinstance(out, TextIOWrapper) and (out.errors == "strict" or out.encoding == "ascii"):
        # As on stderr: the name of a file need not be valid text, and latin-1 and the ASCII of
        # the locale C lack most characters.
        out.reconfigure(errors="backslashreplace")


class Notes:
    """Writes the events of a run to stderr, and keeps its first failure for the summary.

    is_json: each line on stderr is a JSON object.
    """

    def __init__(self, *, is_json: bool = False) -> None:
        self.is_json = is_json
        self.first_failure: RedlineError | None = None

    def note(self, result: Result) -> None:
        if self.first_failure is None:
            self.first_failure = result.outcome.error

    def tell(self, kind: str, line: str = "", /, **fields: Any) -> None:
        """Writes the line unless it is empty; with JSON, always an object of kind and fields."""
        if self.is_json:
            line = loose_json.encoded({"event": kind, **fields}).decode()
        if line:
            tell_line(line)

    def on_event(self, event: Event) -> None:
        """Writes a line when an alert fires or ends. A Listener."""
        if isinstance(event, AlertChanged):
            fields = msgspec.structs.asdict(event)
            del fields["at_s"]
            self.tell("alert", **fields)


class Lines:
    """Writes each success to `stream` and each failure to stderr, one line each, as rows finish.

    stream: None if stdout is closed, which raises ConfigError. lines: the contents of a result
    line.
    """

    def __init__(self, stream: TextIO | None, lines: Output, notes: Notes) -> None:
        if stream is None:
            raise ConfigError("stdout is closed, so results would be lost", hint="add -o FILE")
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._turn = asyncio.Lock()
        self._line_of = line_writer(lines)
        self._notes = notes

    async def write(self, result: Result) -> None:
        """Writes a result. Raises OSError if the reader has gone or the disk is full."""
        error = result.outcome.error
        if result.outcome.is_success:
            async with self._turn:
                line = self._line_of(result)
                await self._put(printable_json(line) if self._is_terminal else line)
        elif error is not None:
            fields = error_fields(error)
            self._notes.tell("failure", f"failed: {error}", row=result.row.number, error=fields)

    async def _put(self, data: bytes) -> None:
        """Writes a result. A slow reader delays the results, but not the event loop."""
        fd, poll = self._stream.fileno(), select.poll()
        poll.register(fd, select.POLLOUT)
        # A view: slicing the bytes would copy the rest of a long line each time.
        left, turn_bytes = memoryview(data), _TURN_BYTES
        while left:
            # A ready pipe takes this much without blocking (POSIX). The loop's own events are not
            # used: uvloop's would make the pipe non-blocking for other writers.
            wait_s = _LEAST_WAIT_S
            while not poll.poll(0):
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _MOST_WAIT_S)
            written = os.write(fd, left[: select.PIPE_BUF])
            left, turn_bytes = left[written:], turn_bytes - written
            if turn_bytes <= 0:
                turn_bytes = _TURN_BYTES
                await asyncio.sleep(0)
