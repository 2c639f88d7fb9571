"""`redline fleet up`: starts replicas that scale with the load, and serves them at one URL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from click import Context

from redline.cli.flags import Word
from redline.cli.session import StatusLine, error_text, say_line, tell
from redline.errors import ConfigError, JournalError, RedlineError

if TYPE_CHECKING:
    from redline.serve.fleet import FleetStatus

PARAMS = (
    Word("file", "FILE", "Settings, such as fleet.toml: how to start a replica, and how many."),
)
_FAILED = 1
# Without a terminal, a changed state is shown at most once in this interval.
_EVERY_S = 60.0


def fleet_up(ctx: Context, file: str) -> int:
    """Start a fleet of model servers, and serve it behind one URL.

    The URL is the first line on stdout. Replicas are started and stopped as the load requires;
    calls wait while no replica is running, unless three starts in a row have failed. Each change is
    shown on stderr with its reason. Ctrl-C or SIGTERM lets the calls in flight finish within 60 s,
    or the file's drain_s, and then stops the replicas; a second signal stops everything
    immediately.

    With the file

        model = "Qwen/Qwen3-8B"
        [replica]
        command = "vllm serve Qwen/Qwen3-8B --port {port}"
        env = { CUDA_VISIBLE_DEVICES = "{slot}" }
        concurrency = 128

    1 to 8 servers, each with a GPU of its own, answer on port 8080:

        redline fleet up fleet.toml

    docs/fleet.md explains the file.

    Exit status: 0 ended by a signal; 1 the fleet failed; 2 bad usage or settings; 3 a defect in
    redline; 130 ended by a second Ctrl-C, 143 by a second SIGTERM.
    """
    # Imported here, because the flags need no server.
    from redline.serve.fleet import read_fleet, serve_fleet

    view = _View()
    try:
        serve_fleet(
            read_fleet(Path(file)),
            on_url=say_line,
            on_event=view.event,
            on_status=view.status,
        )
    except (ConfigError, JournalError):
        raise
    except RedlineError as error:
        view.line.clear()
        tell(error_text(error))
        return _FAILED
    view.line.clear()
    return 0


class _View:
    """Shows events as lines on stderr, and the state in a line that is redrawn on a terminal.

    Without a terminal, writes the state as a line if it has changed, at most once a minute.
    """

    def __init__(self) -> None:
        self.line = StatusLine()
        self._shown = ""
        self._shown_s = time.monotonic()

    def event(self, text: str) -> None:
        self.line.write(f"{time.strftime('%H:%M:%S')} {text}")

    def status(self, status: FleetStatus) -> None:
        text = str(status)
        if self.line.is_live:
            self.line.show(text)
        elif text != self._shown and time.monotonic() >= self._shown_s + _EVERY_S:
            self.event(text)
            self._shown, self._shown_s = text, time.monotonic()
