"""A real FastAPI + slowapi server for the limit tests: `python slowapi_server.py 20/second moving`.

Prints its base URL first. GET /chat is limited; GET /count says how many were let in and refused.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from slowapi import Limiter
from slowapi.errors import RateLimitExceeded

STRATEGIES = {
    "fixed": "fixed-window",
    "moving": "moving-window",
    "counter": "sliding-window-counter",
}


def make_app(limit: str, strategy: str, jitter_s: float) -> FastAPI:
    """The app: a delay drawn per request before the limiter, as a network would add it."""
    limiter = Limiter(key_func=lambda: "everyone", strategy=STRATEGIES[strategy])
    app = FastAPI()
    app.state.limiter = limiter
    counts = {"admitted": 0, "refused": 0}
    delays = random.Random(1)

    @app.middleware("http")
    async def delay(request: Request, call_next):
        if request.url.path == "/chat":
            await asyncio.sleep(delays.uniform(0, jitter_s))
        return await call_next(request)

    @app.exception_handler(RateLimitExceeded)
    async def refuse(request: Request, error: RateLimitExceeded) -> JSONResponse:
        counts["refused"] += 1
        return JSONResponse({"error": {"message": "rate limit"}}, status_code=429)

    @app.get("/chat")
    @limiter.limit(limit)
    async def chat(request: Request) -> str:
        counts["admitted"] += 1
        return "hello"

    @app.get("/count")
    async def count() -> dict[str, int]:
        return counts

    return app


def main() -> None:
    limit, strategy, jitter_ms = sys.argv[1:]
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", flush=True)
    config = uvicorn.Config(
        make_app(limit, strategy, int(jitter_ms) / 1000), log_level="warning", access_log=False
    )
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
