"""A server whose answers take as long as a law says: python bench/law_server.py LAW NUMBERS.

A law and its numbers. Times are in seconds; each time is drawn within a fifth of the stated one,
unless the law says otherwise:

steady TIME               each answer takes TIME, regardless of their number
tail MU SIGMA             each answer takes a lognormally distributed time
servers COUNT TIME        COUNT at once, the others wait in line
random COUNT TIME         the same with exponentially distributed times
far COUNT TIME WAY        the same as `servers`, with a network delay of WAY
shared FIXED EACH         FIXED + n EACH, with n in flight when the request arrives
batches FIXED EACH        all n waiting requests are one batch, which takes FIXED + n EACH
crowded COUNT TIME SHARE  as `servers`, but with n in line each takes (1 + n SHARE) TIME
tiers COUNT FAST SLOW     COUNT at once that take FAST, and COUNT that take SLOW

The first line on stdout is the base URL. GET /v1/answered returns the times of all answers, by
time.monotonic.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import random
import sys
import time
from collections import deque
from collections.abc import Callable

import uvloop
from relay_processes import Requests, completion

Answer = Callable[[], None]
Law = Callable[[Answer], None]


class Line:
    """So many at once, the others wait. times_s: of each place, called with those in line."""

    def __init__(self, times_s: list[Callable[[int], float]], way_s: float = 0.0) -> None:
        self._free = deque(times_s)
        self._waiting: deque[Answer] = deque()
        self._way_s = way_s

    def __call__(self, answer: Answer) -> None:
        if self._way_s:
            asyncio.get_running_loop().call_later(self._way_s, self._came, answer)
        else:
            self._came(answer)

    def _came(self, answer: Answer) -> None:
        self._waiting.append(answer)
        self._serve()

    def _serve(self) -> None:
        while self._free and self._waiting:
            place, answer = self._free.popleft(), self._waiting.popleft()
            took_s = place(len(self._waiting))
            asyncio.get_running_loop().call_later(took_s, self._served, place, answer)

    def _served(self, place: Callable[[int], float], answer: Answer) -> None:
        self._free.append(place)
        answer()
        self._serve()


class Batches:
    """All that wait when one batch is done are the next one."""

    def __init__(self, fixed_s: float, each_s: float) -> None:
        self._fixed_s, self._each_s = fixed_s, each_s
        self._waiting: list[Answer] = []
        self._is_busy = False

    def __call__(self, answer: Answer) -> None:
        self._waiting.append(answer)
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        batch, self._waiting = self._waiting, []
        self._is_busy = bool(batch)
        if batch:
            took_s = about(self._fixed_s + len(batch) * self._each_s)
            asyncio.get_running_loop().call_later(took_s, self._end, batch)

    def _end(self, batch: list[Answer]) -> None:
        for answer in batch:
            answer()
        # Clients that go on at once are in the next batch.
        asyncio.get_running_loop().call_later(0.002, self._begin)


class Shared:
    """Each takes as long as those in flight let it."""

    def __init__(self, fixed_s: float, each_s: float) -> None:
        self._fixed_s, self._each_s = fixed_s, each_s
        self._in_flight = 0

    def __call__(self, answer: Answer) -> None:
        self._in_flight += 1
        took_s = about(self._fixed_s + self._in_flight * self._each_s)
        asyncio.get_running_loop().call_later(took_s, self._end, answer)

    def _end(self, answer: Answer) -> None:
        self._in_flight -= 1
        answer()


def about(seconds: float) -> float:
    return seconds * random.uniform(0.8, 1.2)


def law_of(name: str, numbers: list[float]) -> Law:
    """The law with this name. Raises KeyError for an unknown one."""
    first, second, third = (*numbers, 0.0, 0.0)[:3]
    if name in ("steady", "tail"):
        later = asyncio.get_running_loop().call_later

        def drawn_s() -> float:
            return about(first) if name == "steady" else random.lognormvariate(first, second)

        return lambda answer: later(drawn_s(), answer)  # type: ignore[return-value]  # a handle
    if name == "shared":
        return Shared(first, second)
    if name == "batches":
        return Batches(first, second)
    count = int(first)
    places: dict[str, list[Callable[[int], float]]] = {
        "servers": [lambda waiting: about(second)] * count,
        "random": [lambda waiting: random.expovariate(1 / second)] * count,
        "far": [lambda waiting: about(second)] * count,
        "crowded": [lambda waiting: about(second) * (1 + waiting * third)] * count,
        "tiers": [lambda waiting: about(second)] * count + [lambda waiting: about(third)] * count,
    }
    return Line(places[name], third if name == "far" else 0.0)


async def serve(name: str, numbers: list[float]) -> None:
    """Serves until it is cancelled."""
    law, whole, answered = law_of(name, numbers), completion(), list[float]()

    def answer(client: Requests, target: bytes, body: bytes) -> None:
        if target.endswith(b"/answered"):
            client.respond(200, json.dumps(answered).encode())
            return

        def respond() -> None:
            answered.append(time.monotonic())
            client.respond(200, whole)

        law(respond)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Requests(answer), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


def main() -> None:
    gc.freeze()
    random.seed(math.prod(map(len, sys.argv)))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(serve(sys.argv[1], [float(text) for text in sys.argv[2:]]))
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
