"""A real server with a real limiter: `opponent_server.py fixed --count 20 --window-s 1 ...`.

  fixed, moving   FastAPI and slowapi, its fixed-window and moving-window strategies
  counter         FastAPI and `limits`, SlidingWindowCounterRateLimiter
  bucket          FastAPI and a token bucket of capacity N

Its base URL is the first line on stdout. `GET /begin?jitter_ms=J&seed=S` names a run R, for which
the limiter has seen nothing yet; `GET /chat?run=R&n=I` is call I of it. A delay of 0 to J, drawn
for each request, comes before the limiter, as a network would add it, and another one, the
answer's latency, behind it. `GET /stats?run=R` shows what the limiter saw and when, on the
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from limits import RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from slowapi import Limiter
from slowapi.errors import RateLimitExceeded

KINDS = ("fixed", "moving", "counter", "bucket")


@dataclass
class Run:
    """One run's delays in seconds, and its requests as [number, entry to the limiter, its answer].

    The entry is stamped before the limiter looks at its clock, the answer after it has.
    """

    jitter_s: float
    draws: random.Random
    admitted: list[tuple[int, float, float]] = field(default_factory=list)
    rejected: list[tuple[int, float, float]] = field(default_factory=list)


class Entrance:
    """ASGI middleware: a request waits its jitter, then enters the limiter and is stamped."""

    def __init__(self, app: Any, runs: dict[str, Run]) -> None:
        self._app = app
        self._runs = runs

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/chat":
            run = self._runs[_run_of(Request(scope))]
            if run.jitter_s:
                await asyncio.sleep(run.draws.uniform(0, run.jitter_s))
            scope["entered_s"] = time.monotonic()
        await self._app(scope, receive, send)


class TokenBucket:
    """Full at first; refills `count` tokens in `window_s`, evenly, up to `count`."""

    def __init__(self, count: int, window_s: int) -> None:
        self._capacity = float(count)
        self._per_s = count / window_s
        self._level = self._capacity
        self._at_s = time.monotonic()

    def take(self) -> bool:
        now_s = time.monotonic()
        self._level = min(self._capacity, self._level + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._level < 1:
            return False
        self._level -= 1
        return True


def _run_of(request: Request) -> str:
    return request.query_params["run"]


def make_app(args: argparse.Namespace) -> FastAPI:
    """The app of one kind; every run has a limiter's state of its own."""
    app = FastAPI()
    runs: dict[str, Run] = {}
    latencies = random.Random(args.seed)
    shortest_s, longest_s = (ms / 1000 for ms in args.latency_ms)
    app.add_middleware(Entrance, runs=runs)

    def stamp(request: Request) -> tuple[int, float, float]:
        return int(request.query_params["n"]), request.scope["entered_s"], time.monotonic()

    def refuse(request: Request, error: Exception | None = None) -> JSONResponse:
        runs[_run_of(request)].rejected.append(stamp(request))
        return JSONResponse({"error": {"message": "rate limit"}}, status_code=429)

    async def answer(request: Request) -> JSONResponse:
        runs[_run_of(request)].admitted.append(stamp(request))
        await asyncio.sleep(latencies.uniform(shortest_s, longest_s))
        return JSONResponse("hello")

    @app.get("/begin")
    async def begin(jitter_ms: float, seed: int) -> str:
        name = f"r{len(runs)}"
        runs[name] = Run(jitter_ms / 1000, random.Random(seed))
        return name

    @app.get("/stats")
    async def stats(run: str) -> dict[str, list[tuple[int, float, float]]]:
        return {"admitted": runs[run].admitted, "rejected": runs[run].rejected}

    if args.kind in ("fixed", "moving"):
        limiter = Limiter(key_func=_run_of, strategy=f"{args.kind}-window")
        app.state.limiter = limiter
        app.add_exception_handler(RateLimitExceeded, refuse)
        limited = limiter.limit(f"{args.count} per {args.window_s} second")

        @app.get("/chat")
        @limited
        async def chat(request: Request) -> JSONResponse:
            return await answer(request)

        return app

    hit = _counter(args) if args.kind == "counter" else _bucket(args)

    @app.get("/chat")
    async def guarded_chat(request: Request) -> JSONResponse:
        return await answer(request) if await hit(_run_of(request)) else refuse(request)

    return app


def _counter(args: argparse.Namespace) -> Callable[[str], Awaitable[bool]]:
    strategy = SlidingWindowCounterRateLimiter(MemoryStorage())
    item = RateLimitItemPerSecond(args.count, args.window_s)

    async def hit(run: str) -> bool:
        return await strategy.hit(item, run)

    return hit


def _bucket(args: argparse.Namespace) -> Callable[[str], Awaitable[bool]]:
    buckets: dict[str, TokenBucket] = {}

    async def hit(run: str) -> bool:
        if run not in buckets:
            buckets[run] = TokenBucket(args.count, args.window_s)
        return buckets[run].take()

    return hit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--window-s", type=int, required=True)
    parser.add_argument("--latency-ms", type=float, nargs=2, default=(10, 10))
    parser.add_argument("--seed", type=int, default=1, help="of the latencies")
    parser.add_argument("--life-s", type=int, default=600, help="the server ends itself after it")
    args = parser.parse_args()
    signal.alarm(args.life_s)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", flush=True)
    config = uvicorn.Config(make_app(args), log_level="error", access_log=False, loop="uvloop")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
