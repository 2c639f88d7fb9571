"""`redline sim`: a simulated provider to try things on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from click import Context

from redline.cli import values
from redline.cli.command import one_of, stated
from redline.cli.flags import Option
from redline.cli.values import Flags, flag_of
from redline.errors import ConfigError
from redline.sim import SimSettings, parse_faults, parse_latency
from redline.sim.settings import ALGORITHMS, CHARGES, HEADER_STYLES

_WHERE, _LIMITS = "Where it listens", "What it allows"
_SPEED, _ANSWERS = "How fast and how well it works", "What it answers"
_BATCHES = "Its Batch API"

T = TypeVar("T")


def sim(
    ctx: Context,
    port: Annotated[
        str | None,
        Option(metavar="N", help="Port on 127.0.0.1. Default 0: a free one.", section=_WHERE),
    ] = None,
    api_key: Annotated[
        str | None,
        Option(
            metavar="KEY",
            help="Refuse requests that do not carry this key.",
            section=_WHERE,
        ),
    ] = None,
    requests: Annotated[
        list[str] | None,
        Option(
            metavar="N/W",
            help="Request limit, such as 2/1s or 500/60s. Repeatable.",
            section=_LIMITS,
        ),
    ] = None,
    tokens: Annotated[
        list[str] | None,
        Option(
            metavar="N/W",
            help="Token limit, such as 200k/60s, on prompt and answer together. Repeatable.",
            section=_LIMITS,
        ),
    ] = None,
    input_tokens: Annotated[
        list[str] | None,
        Option(
            metavar="N/W",
            help="Limit on the tokens of prompts alone. Repeatable.",
            section=_LIMITS,
        ),
    ] = None,
    output_tokens: Annotated[
        list[str] | None,
        Option(
            metavar="N/W",
            help="Limit on the tokens of answers alone. Repeatable.",
            section=_LIMITS,
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="How limits count: fixed (the default) or moving window, sliding-window counter, "
            "or token bucket.",
            complete=one_of(*ALGORITHMS),
            section=_LIMITS,
        ),
    ] = None,
    charge: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="When tokens are counted: actual (the default), prompt and answer on arrival; "
            "reserved, prompt and max_tokens on arrival, never given back; answered, the prompt on "
            "arrival and the answer when it ends.",
            complete=one_of(*CHARGES),
            section=_LIMITS,
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Requests served at once; the others wait in line.",
            section=_LIMITS,
        ),
    ] = None,
    headers: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Style of the limit headers: openai (the default), azure, anthropic, gemini, "
            "envoy, ietf, slowapi, or none, which sends no Retry-After either.",
            complete=one_of(*HEADER_STYLES),
            section=_LIMITS,
        ),
    ] = None,
    latency: Annotated[
        str | None,
        Option(
            metavar="SECONDS",
            help="Time to an answer: 0.2, or 2-5 (uniform), or lognormal:1.2,0.4 (mu, sigma). "
            "Default 0.",
            section=_SPEED,
        ),
    ] = None,
    per_token: Annotated[
        str | None,
        Option(
            metavar="SECONDS",
            help="Time added by each token of the answer. Default 0.",
            section=_SPEED,
        ),
    ] = None,
    jitter: Annotated[
        str | None,
        Option(
            metavar="SECONDS",
            help="Hold each request up by 0 to so many seconds before the limits are asked. "
            "Default 0.",
            section=_SPEED,
        ),
    ] = None,
    faults: Annotated[
        list[str] | None,
        Option(
            metavar="SHARE",
            help="Share of requests that go wrong: 0.05 for all kinds together, or by kind, "
            "such as 429=0.02. Kinds: 429, 500, 503, reset, half, notjson, stall. Repeatable.",
            section=_SPEED,
        ),
    ] = None,
    seed: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Fixes latencies, faults and jitter, in order of arrival, and stories. Default 0.",
            section=_SPEED,
        ),
    ] = None,
    replay: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Answer from this file of {question, answer} lines: a request whose last user "
            "message contains a question gets its answer.",
            section=_ANSWERS,
        ),
    ] = None,
    stories: Annotated[
        bool,
        Option(
            help="Answer with made-up stories, by the prompt and the request's seed; without a "
            "seed, another one each time.",
            section=_ANSWERS,
        ),
    ] = False,
    near_duplicates: Annotated[
        str | None,
        Option(
            metavar="SHARE",
            help="Share of --stories that tell an earlier one again, three words changed: 0.1 is "
            "one in ten.",
            section=_ANSWERS,
        ),
    ] = None,
    batch_latency: Annotated[
        str | None,
        Option(
            metavar="SECONDS",
            help="Time from the making of a batch to the answer of each of its requests, as for "
            "--latency. Default 0.",
            section=_BATCHES,
        ),
    ] = None,
    batch_window: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="A batch expires after so long. Default 24h.",
            section=_BATCHES,
        ),
    ] = None,
    batch_tokens: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Tokens that all batches together may have waiting. Default: no limit.",
            section=_BATCHES,
        ),
    ] = None,
) -> None:
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
    from redline.sim.foreground import serve_forever

    serve_forever(
        _settings(stated(ctx)),
        on_url=lambda url: print(url, flush=True),
        on_note=lambda note: print(note, file=sys.stderr, flush=True),
    )


def _settings(flags: Flags) -> SimSettings:
    """Raises ConfigError that names the flag."""
    usual = SimSettings()
    return SimSettings(
        port=values.whole(flags, "port", 0, 65_535) or 0,
        requests=tuple(values.rates(flags, "requests")),
        tokens=tuple(values.rates(flags, "tokens")),
        input_tokens=tuple(values.rates(flags, "input_tokens")),
        output_tokens=tuple(values.rates(flags, "output_tokens")),
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
    """What the simulator's own reader makes of a flag; its error is told to be of that flag."""
    if name not in flags:
        return usual
    try:
        return parse(flags[name])
    except ConfigError as error:
        error.where = error.where or flag_of(name)
        raise
