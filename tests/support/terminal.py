"""A terminal of some columns, as far as redline uses one, and a program that runs on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence

_COMMAND = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Terminal:
    """What is on the screen, line by line. Lines that are too long wrap; nothing scrolls away."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._rest = ""

    @property
    def lines(self) -> list[str]:
        """What a person reads, without empty lines at the end."""
        found = ["".join(row).rstrip() for row in self.rows]
        while found and not found[-1]:
            found.pop()
        return found

    def feed(self, text: str) -> None:
        """Takes what a program writes."""
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                command = _COMMAND.match(text, at)
                if command is None:
                    self._rest = text[at:]
                    return
                self._obey(command[1], command[2])
                at = command.end()
                continue
            self._put(text[at])
            at += 1

    def narrow(self, columns: int) -> None:
        """Another width: lines that are too long for it are wrapped, as terminals do."""
        wrapped: list[list[str]] = []
        for number, row in enumerate(self.rows):
            if number == self._row:
                cursor = len(wrapped)
            pieces = [row[i : i + columns] for i in range(0, len(row), columns)]
            wrapped += pieces or [[]]
        self.rows, self._row, self.columns = wrapped, cursor, columns

    def _put(self, character: str) -> None:
        if character == "\n":
            self._to_row(self._row + 1)
            self._column = 0
        elif character == "\r":
            self._column = 0
        else:
            if self._column >= self.columns:
                self._put("\n")
            row = self.rows[self._row]
            row += " " * (self._column + 1 - len(row))
            row[self._column] = character
            self._column += 1

    def _obey(self, number: str, letter: str) -> None:
        if letter == "A":
            self._row = max(0, self._row - int(number or 1))
        elif letter == "H":
            assert not number, f"only the corner is known, not {number}"
            self._row = self._column = 0
        elif letter == "K":
            del self.rows[self._row][self._column :]
        elif letter == "J":
            del self.rows[self._row][self._column :]
            del self.rows[self._row + 1 :]
        else:
            assert letter in "mhl", f"a command that this terminal has not: {letter}"

    def _to_row(self, number: int) -> None:
        while len(self.rows) <= number:
            self.rows.append([])
        self._row = number


class OnTerminal:
    """A program on a pseudo-terminal of this size, while it is entered."""

    def __init__(self, command: Sequence[str], columns: int, lines: int = 24) -> None:
        self.screen = Terminal(columns)
        self._outer, inner = pty.openpty()
        self._lines = lines
        self._set_size(inner, columns)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1"},
        )
        os.close(inner)
        self.frames: list[list[str]] = []

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._outer)

    def until(self, is_seen: Callable[[list[str]], bool], within_s: float = 30.0) -> list[str]:
        """The lines once they are as wanted. Fails after a while, or if the program has ended."""
        ends_s = time.monotonic() + within_s
        while not is_seen(self.screen.lines):
            assert time.monotonic() < ends_s, self.screen.lines
            assert self._read(), self.screen.lines
        return self.screen.lines

    def resize(self, columns: int) -> None:
        """Makes the terminal narrower."""
        self.screen.narrow(columns)
        self._set_size(self._outer, columns)

    def _set_size(self, fd: int, columns: int) -> None:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", self._lines, columns, 0, 0))

    def end(self) -> int:
        """The exit status, once the program has ended and all that it wrote is read."""
        while self._read():
            pass
        return self.process.wait(30)

    def _read(self) -> bool:
        """Takes what comes in a moment; False at the end."""
        if not select.select([self._outer], [], [], 0.1)[0]:
            return True
        try:
            block = os.read(self._outer, 65_536)
        except OSError:  # Linux says EIO where the other end is closed.
            return False
        # A block may end in the middle of a character.
        self.screen.feed(block.decode(errors="replace").replace("\r\n", "\n"))
        self.frames.append(self.screen.lines)
        return bool(block)
