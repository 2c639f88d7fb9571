"""The endpoint of the articles: FastAPI, slowapi, `GET /chat` at 2 per second, 2 to 5 s per answer.

It answers with a JSON string. For the benchmark, it records a timestamp of each request on the
monotonic clock, which all processes of a machine share: POST /bench/begin?seed=N deletes the
timestamps, and GET /bench/stamps returns them. The first line on stdout is the URL.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address

LIMIT = "2/second"
SHORTEST_S, LONGEST_S = 2.0, 5.0

app = FastAPI()
app.state.limiter = limiter = Limiter(key_func=get_remote_address)
draws = random.Random(0)
answered: list[dict[str, float]] = []
refused_s: list[float] = []


@app.exception_handler(RateLimitExceeded)
async def refuse(request: Request, error: RateLimitExceeded) -> Response:
    refused_s.append(time.monotonic())
    return _rate_limit_exceeded_handler(request, error)


@app.get("/chat")
@limiter.limit(LIMIT)
async def chat(request: Request) -> str:
    stamp = {"arrival_s": time.monotonic()}
    number = len(answered)
    answered.append(stamp)
    await asyncio.sleep(draws.uniform(SHORTEST_S, LONGEST_S))
    stamp["latency_s"] = time.monotonic() - stamp["arrival_s"]
    return f"answer {number}"


@app.post("/bench/begin")
async def begin(seed: int) -> None:
    draws.seed(seed)
    answered.clear()
    refused_s.clear()


@app.get("/bench/stamps")
async def stamps() -> dict[str, Any]:
    return {"answered": answered, "refused_s": refused_s}


def main() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, log_level="error", access_log=False)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
