"""`redline sim`: a simulated provider for trials."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from click import Context

from redline.cli.flags import flag, stated
from redline.errors import ConfigError
from redline.job.settings import Flags, Kind, flag_of, values
from redline.sim import ALGORITHMS, CHARGES, HEADER_STYLES, SimSettings, parse_faults, parse_latency

_WHERE, _LIMITS = "Address", "Limits"
_SPEED, _ANSWERS = "Latency and faults", "Answers"
_BATCHES = "Its Batch API"

T = TypeVar("T")

PARAMS = (
    flag("port", "N", "Port on 127.0.0.1. Default 0: a free one.", section=_WHERE),
    flag("api_key", "KEY", "Refuse requests without this key."),
    flag(
        "requests",
        "N/W",
        "Request limit, such as 2/1s or 500/60s. Repeatable.",
        kind=Kind.LIST,
        section=_LIMITS,
    ),
    flag(
        "tokens",
        "N/W",
        "Token limit, such as 200k/60s, on prompt and answer together. Repeatable.",
        kind=Kind.LIST,
    ),
    flag(
        "input_tokens", "N/W", "Limit on the tokens of prompts alone. Repeatable.", kind=Kind.LIST
    ),
    flag(
        "output_tokens", "N/W", "Limit on the tokens of answers alone. Repeatable.", kind=Kind.LIST
    ),
    flag(
        "algorithm",
        "NAME",
        "How limits count: fixed (the default) or moving window, sliding-window counter, "
        "or token bucket.",
        complete=ALGORITHMS,
    ),
    flag(
        "charge",
        "NAME",
        "When tokens are counted: actual (the default), prompt and answer on arrival; "
        "reserved, prompt and max_tokens on arrival, never given back; answered, the prompt on "
        "arrival and the answer when it ends.",
        complete=CHARGES,
    ),
    flag("concurrency", "N", "Requests served at once; the others wait in line."),
    flag(
        "headers",
        "NAME",
        "Style of the limit headers: openai (the default), azure, anthropic, gemini, "
        "envoy, ietf, slowapi, or none, which sends no Retry-After either.",
        complete=HEADER_STYLES,
    ),
    flag(
        "latency",
        "SECONDS",
        "Time to an answer: 0.2, or 2-5 (uniform), or lognormal:1.2,0.4 (mu, sigma). Default 0.",
        section=_SPEED,
    ),
    flag("per_token", "SECONDS", "Time added by each token of the answer. Default 0."),
    flag(
        "jitter",
        "SECONDS",
        "Delay each request by 0 to this many seconds before the limits are checked. Default 0.",
    ),
    flag(
        "faults",
        "SHARE",
        "Share of requests that go wrong: 0.05 for all kinds together, or by kind, "
        "such as 429=0.02. Kinds: 429, 500, 503, reset, half, notjson, stall. Repeatable.",
        kind=Kind.LIST,
    ),
    flag(
        "seed",
        "N",
        "Seed of latencies, faults and jitter, in order of arrival, and of stories. Default 0.",
    ),
    flag(
        "replay",
        "FILE",
        "Answer from this file of {question, answer} lines: a request whose last user "
        "message contains a question gets its answer.",
        section=_ANSWERS,
    ),
    flag(
        "stories",
        None,
        "Answer with made-up stories, by the prompt and the request's seed; without a "
        "seed, another one each time.",
        kind=Kind.FLAG,
    ),
    flag(
        "near_duplicates",
        "SHARE",
        "Share of --stories that repeat an earlier one with three words changed: 0.1 is "
        "one in ten.",
    ),
    flag(
        "batch_latency",
        "SECONDS",
        "Time from the creation of a batch to the answer of each of its requests, as for "
        "--latency. Default 0.",
        section=_BATCHES,
    ),
    flag("batch_window", "TIME", "A batch expires after this time. Default 24h."),
    flag(
        "batch_tokens", "N", "Tokens that all batches together may have waiting. Default: no limit."
    ),
)


def sim(ctx: Context) -> None:
    """Simulate an LLM provider: a real server with limits, latency and faults.

    It speaks the OpenAI API (chat, completions, embeddings, responses, files and batches) and costs
    nothing. The base URL is the first line on stdout. Ctrl-C ends it and prints what it has seen;
    GET /sim/stats shows that at any time.

    An endpoint that takes 2 requests a second, answers after 2 to 5 s, and fails one time in
    twenty:

        redline sim --port 8000 --requests 2/1s --latency 2-5 --faults 0.05

    Ask it from another terminal:

        redline run tickets.jsonl --prompt 'Classify: {{ text }}' --model any \\
            --base-url http://127.0.0.1:8000/v1 --requests 2/1s

    Exit status: 0 ended by Ctrl-C, 2 bad usage or settings, 3 a defect in redline.
    """
    # Imported here: no other command pays for a server's start-up.
    from redline.sim.server import serve_forever

    serve_forever(
        _settings(stated(ctx)),
        on_url=partial(print, flush=True),
        on_note=partial(print, file=sys.stderr, flush=True),
    )


def _settings(flags: Flags) -> SimSettings:
    """Returns the simulator's settings. Raises ConfigError that names the flag."""
    usual = SimSettings()
    return SimSettings(
        port=values.whole(flags, "port", 0, 65_535) or 0,
        requests=values.rates(flags, "requests") or (),
        tokens=values.rates(flags, "tokens") or (),
        input_tokens=values.rates(flags, "input_tokens") or (),
        output_tokens=values.rates(flags, "output_tokens") or (),
        algorithm=values.choice(flags, "algorithm", ALGORITHMS) or usual.algorithm,
        charge=values.choice(flags, "charge", CHARGES) or usual.charge,
        jitter_s=values.number(flags, "jitter") or 0.0,
        concurrency=values.whole(flags, "concurrency", 1),
        latency=_parsed(flags, "latency", parse_latency, usual.latency),
        per_token_s=values.number(flags, "per_token") or 0.0,
        faults=_parsed(flags, "faults", parse_faults, usual.faults),
        headers=values.choice(flags, "headers", HEADER_STYLES) or usual.headers,
        replay=Path(flags["replay"]) if "replay" in flags else None,
        stories="stories" in flags,
        near_duplicates=values.number(flags, "near_duplicates") or 0.0,
        seed=values.whole(flags, "seed", -(10**15)) or 0,
        api_key=flags.get("api_key"),
        batch_latency=_parsed(flags, "batch_latency", parse_latency, usual.batch_latency),
        batch_window_s=values.duration(flags, "batch_window") or usual.batch_window_s,
        batch_tokens=values.whole(flags, "batch_tokens", 1),
    )


def _parsed(flags: Flags, name: str, parse: Callable[..., T], usual: T) -> T:
    """Parses the value of a flag with the simulator's own parser; an error names the flag."""
    if name not in flags:
        return usual
    try:
        return parse(flags[name])
    except ConfigError as error:
        error.where = error.where or flag_of(name)
        raise
