"""`redline sim`: a simulated provider to try things on."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Option

from redline.limits.rate import parse_rate
from redline.sim import SimSettings, parse_faults, parse_latency, serve_forever


class Algorithm(StrEnum):
    """How the limits count."""

    FIXED = "fixed"
    MOVING = "moving"
    COUNTER = "counter"
    BUCKET = "bucket"


class HeaderStyle(StrEnum):
    """Whose limit headers to imitate."""

    OPENAI = "openai"
    AZURE = "azure"
    ANTHROPIC = "anthropic"
    NONE = "none"


def sim(
    port: Annotated[int, Option(help="Port on 127.0.0.1; 0 picks a free one.")] = 0,
    requests: Annotated[
        list[str] | None,
        Option(metavar="N/W", help="Request limit, such as 2/1s or 500/60s. Repeatable."),
    ] = None,
    tokens: Annotated[
        list[str] | None,
        Option(
            metavar="N/W",
            help="Token limit, such as 200k/60s, on prompt and answer together. Repeatable.",
        ),
    ] = None,
    algorithm: Annotated[
        Algorithm,
        Option(help="How limits count: fixed or moving window, sliding counter, token bucket."),
    ] = Algorithm.FIXED,
    concurrency: Annotated[
        int | None,
        Option(metavar="N", help="Requests served at once; the others wait in line."),
    ] = None,
    latency: Annotated[
        str,
        Option(
            metavar="SECONDS",
            help="Time to an answer: 0.2, or 2-5 (uniform), or lognormal:1.2,0.4 (mu, sigma).",
        ),
    ] = "0",
    per_token: Annotated[
        float, Option(metavar="SECONDS", help="Time added by each token of the answer.")
    ] = 0.0,
    faults: Annotated[
        list[str] | None,
        Option(
            metavar="SHARE",
            help="Share of requests that go wrong: 0.05 for all kinds together, or by kind, "
            "such as 429=0.02. Kinds: 429, 500, 503, reset, half, notjson, stall. Repeatable.",
        ),
    ] = None,
    headers: Annotated[
        HeaderStyle, Option(help="Style of the limit headers. none sends no Retry-After either.")
    ] = HeaderStyle.OPENAI,
    replay: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Answer from this file of {question, answer} lines: a request whose last user "
            "message contains a question gets its answer.",
        ),
    ] = None,
    seed: Annotated[int, Option(help="Fixes latencies and faults, in order of arrival.")] = 0,
    api_key: Annotated[
        str | None, Option(metavar="KEY", help="Refuse requests that do not carry this key.")
    ] = None,
) -> None:
    """Simulate an LLM provider: a real server with limits, latency and faults.

    It speaks the OpenAI API (chat, completions, embeddings, responses) and
    costs nothing. The base URL is the first line on stdout. Ctrl-C ends it and
    prints what it has seen; GET /sim/stats shows that at any time.

    An endpoint that takes 2 requests a second, answers after 2 to 5 s, and
    fails one time in twenty:

        redline sim --port 8000 --requests 2/1s --latency 2-5 --faults 0.05
    """
    serve_forever(
        SimSettings(
            port=port,
            requests=tuple(parse_rate(text, "--requests") for text in requests or ()),
            tokens=tuple(parse_rate(text, "--tokens") for text in tokens or ()),
            algorithm=algorithm.value,
            concurrency=concurrency,
            latency=parse_latency(latency),
            per_token_s=per_token,
            faults=parse_faults(faults or ()),
            headers=headers.value,
            replay=replay,
            seed=seed,
            api_key=api_key,
        ),
        on_url=lambda url: print(url, flush=True),
        on_note=lambda note: print(note, file=sys.stderr, flush=True),
    )
