"""`redline sim` in processes of its own, whose faults begin and end while it runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.request import Request, urlopen

from redline.cli import main
from support import forked
from support.starting import free_port


class SimProcess:
    """A simulated provider on a port of its own, while it is entered."""

    def __init__(self, *flags: str) -> None:
        self.port = free_port()
        self._flags = flags

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Returns when it takes connections."""
        words = ["sim", "--port", str(self.port), *self._flags]
        self._process, base_url = forked.started(main, words)
        assert base_url == self.base_url

    def kill(self) -> None:
        """Ends it as kill -9 does. It may be started again."""
        self._process.kill()
        forked.ended(self._process)

    def stop(self) -> None:
        """Lets it hang: connections are taken, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets it run again."""
        self._signal(signal.SIGCONT)

    def post(self, path: str, body: object, key: str = "") -> Any:
        """What it answers."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        asked = Request(self._root + path, json.dumps(body).encode(), headers)
        with urlopen(asked, timeout=30) as reply:
            return json.load(reply)

    def disturb(self, *faults: str, latency: str | None = None, key: str = "") -> None:
        """From now on these go wrong, as `--faults` has them; none if there are none."""
        body: dict[str, object] = {"faults": list(faults)}
        if latency is not None:
            body["latency"] = latency
        self.post("/sim/faults", body, key)

    def park(self, key: str, for_s: float) -> None:
        """Refuses this key for a while, with a Retry-After."""
        self.post("/sim/faults", {"park_s": for_s}, key)

    def get(self, path: str) -> Any:
        """What it shows of itself."""
        with urlopen(self._root + path, timeout=30) as reply:
            return json.load(reply)

    def stats(self) -> dict[str, Any]:
        """Its counters; see redline.sim.stats."""
        shown: dict[str, Any] = self.get("/sim/stats")
        return shown

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    @property
    def _root(self) -> str:
        return self.base_url.removesuffix("/v1")

    def __enter__(self) -> SimProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def fleet_of(count: int, *flags: str) -> Iterator[Sequence[SimProcess]]:
    """So many of them, alike."""
    with ExitStack() as stack:
        yield [stack.enter_context(SimProcess(*flags)) for _ in range(count)]
