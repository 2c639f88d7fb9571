"""A program in a window of tmux, on a server of its own."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence

TMUX = shutil.which("tmux")
POLL_S = 0.05


class OnTmux:
    """A program in a window of this size, while it is entered; it has the process's own folder.

    frames: what was on the screen, line by line, each with when it was seen first.
    """

    def __init__(self, command: Sequence[str], columns: int, lines: int = 24) -> None:
        self._socket = f"redline-{secrets.token_hex(6)}"
        self.frames: list[tuple[float, list[str]]] = []
        size = ("-x", str(columns), "-y", str(lines))
        # The window stays when the program has ended.
        script = f"{shlex.join(command)}; echo status $?; exec sleep 600"
        self._tmux("-f", os.devnull, "new-session", "-d", "-s", "job", *size, script)

    def __enter__(self) -> OnTmux:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def look(self) -> list[str]:
        """What is on the screen now, without empty lines."""
        shown = self._tmux("capture-pane", "-p", "-t", "job")
        lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
        if not self.frames or lines != self.frames[-1][1]:
            self.frames.append((time.monotonic(), lines))
        return lines

    def until(self, is_seen: Callable[[list[str]], bool], within_s: float = 30.0) -> list[str]:
        """The lines once they are as wanted."""
        ends_s = time.monotonic() + within_s
        while not is_seen(lines := self.look()):
            assert time.monotonic() < ends_s, lines
            time.sleep(POLL_S)
        return lines

    def next_frame(self) -> tuple[float, list[str]]:
        """What is shown next, and when it was seen."""
        count = len(self.frames)
        self.until(lambda _: len(self.frames) > count)
        return self.frames[-1]

    def _tmux(self, *words: str) -> str:
        assert TMUX is not None
        command = [TMUX, "-u", "-L", self._socket, *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout
