"""`redline sim`: simulates a provider for testing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click import Context

from redline.cli.flags import choice, flag, read_flags, switch, time, whole
from redline.cli.session import say_line, tell_line
from redline.errors import ConfigError
from redline.job.settings import Kind, Option, Reader, values
from redline.sim import (
    ALGORITHMS,
    CHARGES,
    HEADER_STYLES,
    MAX_WINDOW_S,
    SimSettings,
    parse_faults,
    parse_latency,
)


def _parsed(parse: Callable[[Any], Any]) -> Reader:
    """Returns a reader that adds the flag's name to the errors of `parse`."""

    def reader(stated: Any, flag: str) -> Any:
        try:
            return parse(stated)
        except ConfigError as error:
            error.where = error.where or flag
            raise

    return reader


def _rates(key: str, about: str, **facts: Any) -> Option:
    return flag(key, "N/W", about, kind=Kind.LIST, read=values.rates, **facts)


def _seconds(key: str, about: str) -> Option:
    return flag(key, "SECONDS", about, field=f"{key}_s", read=values.number)


PARAMS = (
    whole(
        "port",
        "Port on 127.0.0.1. Default: 0 (a free one).",
        least=0,
        most=65_535,
        section="Address",
    ),
    flag("api_key", "KEY", "Refuse API requests without this key."),
    _rates("requests", "Request limit, such as 2/1s or 500/60s. Repeatable.", section="Limits"),
    _rates("tokens", "Token limit, such as 200k/60s, on prompt and answer together. Repeatable."),
    _rates("input_tokens", "Limit on the tokens of prompts alone. Repeatable."),
    _rates("output_tokens", "Limit on the tokens of answers alone. Repeatable."),
    choice(
        "algorithm",
        ALGORITHMS,
        "How limits count: fixed (the default) or moving (windows), counter (sliding-window "
        "counter), or bucket (token bucket).",
    ),
    choice(
        "charge",
        CHARGES,
        "Which tokens count, and when: actual (the default: prompt and answer, on arrival), "
        "reserved (prompt and max_tokens, on arrival, without a refund; without max_tokens, like "
        "actual), or answered (the prompt on arrival, the answer when it ends).",
    ),
    whole("concurrency", "Requests served at once; up to 4,096 others wait. Default: no limit."),
    choice(
        "headers",
        HEADER_STYLES,
        "Style of the limit headers: openai (the default), azure, anthropic, gemini (no headers: "
        "the body of a 429 states the wait), envoy, ietf, slowapi, or none, which sends no "
        "Retry-After either.",
    ),
    flag(
        "latency",
        "SECONDS",
        "Time to an answer: 0.2, or 2-5 (uniform), or lognormal:1.2,0.4 (mu, sigma). Default: 0.",
        read=_parsed(parse_latency),
        section="Latency and faults",
    ),
    _seconds("per_token", "Time added by each token of the answer. Default: 0."),
    _seconds(
        "jitter",
        "Delay each request by 0 to this many seconds before the limits are checked. Default: 0.",
    ),
    flag(
        "faults",
        "SHARE",
        "Share of the admitted requests that go wrong: 0.05 for all kinds together, or by kind, "
        "such as 429=0.02. Kinds: 429, 500, 503, reset, half, notjson, stall. Repeatable. Default: "
        "0.",
        read=_parsed(parse_faults),
        kind=Kind.LIST,
    ),
    whole(
        "seed",
        "Seed for latencies, faults and jitter, drawn in order of arrival, and for stories. "
        "Default: 0.",
        least=-(10**15),
    ),
    flag(
        "replay",
        "FILE",
        "Answer from this file of {question, answer} lines: a request gets the answer to the "
        "question that its last user message contains.",
        read=values.path,
        section="Answers",
    ),
    switch(
        "stories",
        "Answer with made-up stories that depend on the prompt and the request's seed; without "
        "a seed, each answer is a different story.",
    ),
    flag(
        "near_duplicates",
        "SHARE",
        "Share of --stories that repeat an earlier one with three words changed: 0.1 is "
        "one in ten. Default: 0.",
        read=values.number,
    ),
    flag(
        "batch_latency",
        "SECONDS",
        "Time from the creation of a batch to the answer to each of its requests, in the form of "
        "--latency. Default: 0.",
        read=_parsed(parse_latency),
        section="Batch API",
    ),
    time("batch_window", "A batch expires after this time. Default: 24h.", most_s=MAX_WINDOW_S),
    whole("batch_tokens", "Maximum tokens waiting in all batches together. Default: no limit."),
)


def sim(ctx: Context) -> None:
    """Simulate an LLM provider: a real server with limits, latency and faults.

    It speaks the OpenAI API (chat, completions, embeddings, responses, files and batches) and costs
    nothing. The base URL is the first line on stdout. When the server ends, it prints counts of its
    requests, which GET /sim/stats shows at any time.

    An endpoint that takes 2 requests a second, answers after 2 to 5 s, and fails one time in
    twenty:

        redline sim --port 8000 --requests 2/1s --latency 2-5 --faults 0.05

    Send rows to it from another terminal:

        redline run tickets.jsonl --prompt 'Classify: {{ text }}' --model any \\
            --base-url http://127.0.0.1:8000/v1 --requests 2/1s

    Exit status: 0 ended by Ctrl-C or SIGTERM; 2 bad usage or settings; 3 a defect in redline.
    """
    # Imported here, because the flags need no server.
    from redline.sim.server import serve_forever

    settings = SimSettings(**read_flags(ctx, PARAMS))
    serve_forever(settings, on_url=say_line, on_note=tell_line)
