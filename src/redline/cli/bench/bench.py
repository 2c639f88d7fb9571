"""`redline bench`: measures the throughput and latency of a target under a given load."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from click import Context

from redline.cli.bench.command import bench_command, rate_per_s, users
from redline.cli.bench.target import run_options
from redline.cli.flags import Word, flag, stated, switch, time, whole
from redline.job.settings import read, values

_MOST_PROMPT_TOKENS = 1_000_000

_OWN = (
    time(
        "duration",
        "How long to send requests. Default: 60s; 15s for each number of users with "
        "--find-concurrency; the whole trace with --replay.",
        section="What load",
    ),
    flag(
        "warm_up",
        "TIME",
        "Leave out of the figures this first part of the duration, in which caches fill and "
        "servers compile. Default: 0s.",
        field="warm_up_s",
        read=partial(values.duration, may_be_0=True),
    ),
    whole("limit", "Send at most N requests."),
    flag(
        "concurrency",
        "N",
        "Number of users; each sends its next request when its previous answer is complete. "
        "Default: the sum of the endpoints' concurrency if all set it, otherwise 16. With a rate "
        "or a trace: maximum requests in flight, default 1000.",
        short="-c",
        read=users,
    ),
    flag(
        "constant",
        "N|N/W",
        "Send requests at a constant rate, such as 20 (per second) or 90/60s, whether or not "
        "earlier ones are answered.",
        read=rate_per_s,
    ),
    flag(
        "poisson",
        "N|N/W",
        "Send requests at random times, as independent users do, at this average rate.",
        read=rate_per_s,
    ),
    flag(
        "replay",
        "TRACE",
        "Send requests at the recorded times of the last run in TRACE, a file that redline run "
        "--trace wrote. Synthetic prompts are about as long as the recorded ones, and without "
        "--max-tokens, each answer is at most as long as the recorded one.",
    ),
    whole("seed", "Seed for random arrivals and synthetic prompts. Default: 0.", least=0),
    switch(
        "find_concurrency",
        "Try 1, 2, 4, ... users, at most -c N (default 256), while throughput rises; report the "
        "smallest of these that reaches 95 % of the best throughput.",
    ),
    flag(
        "slo",
        "LIST",
        "Objectives that a request must meet to count as goodput, such as ttft<500ms,latency<3s: "
        "upper bounds of latency, ttft (time to the first token) and tpot (time per output token "
        "after the first).",
    ),
    flag(
        "rows",
        "FILE",
        "Send the rows of FILE, as redline run does, and start over at the end; at most the first "
        "10,000, or 64 MiB, are used. Default: synthetic prompts.",
        section="Requests",
    ),
    whole(
        "prompt_tokens",
        "Send different synthetic prompts of about N tokens. Default: 128. With synthetic "
        "prompts, --max-tokens is also 128 by default. Not with --rows.",
        most=_MOST_PROMPT_TOKENS,
    ),
    whole(
        "batch_size",
        "If TARGET is a function, call it with lists of at most N rows; it must return a list of "
        "the same length.",
    ),
    switch("no_stream", "Ask for whole answers instead of streams."),
    flag(
        "output",
        "FILE",
        "Save the figures in FILE as JSON.",
        read=values.local,
        short="-o",
        section="Display",
    ),
    switch("json", "Print the figures as JSON."),
    switch("quiet", "Print only the figures: no summary of requests, no progress.", short="-q"),
)
PARAMS = (
    Word(
        "targets",
        "TARGET",
        "A URL, a name from redline.toml, sim or engine:MODEL; several URLs or names form a pool. "
        "Or module:name of a Backend, a Client, a Pool, or a function of a row, async or plain.",
        is_many=True,
    ),
    *_OWN,
    *run_options(),
)


def bench(ctx: Context, targets: list[str] | None) -> int:
    r"""Measure the throughput and latency of a target under a load that you choose.

    By default, each of -c N users sends a request when its previous answer is complete. If the API
    supports it, answers are streamed, which shows the times to the first token and between tokens.
    Nothing is retried unless the target is a Client. Limits and budgets apply to endpoints.
    Requests may cost money, so a summary of them is printed first, except with -q.

        redline bench sim --duration 5s
        redline bench http://127.0.0.1:8000/v1 --model m -c 32 --warm-up 10s

    At a given rate, latency counts from when a request was due, so a server that stops for 5 s
    raises the latency of every request due in that time:

        redline bench http://127.0.0.1:8000/v1 --model m --poisson 20 \
            --slo 'ttft<500ms,latency<3s'

    Which concurrency is enough?

        redline bench http://127.0.0.1:8000/v1 --model m --find-concurrency

    Ctrl-C ends the benchmark and prints the figures so far. Exit status: 0 measured; 1 some
    requests failed; 2 bad usage or settings, or no request succeeded; 3 a defect in redline; 130
    interrupted.
    """
    own = {option.key for option in _OWN}
    given = stated(ctx)
    left = {*own, "targets"} - {"concurrency"}
    flags = {name: value for name, value in given.items() if name not in left}
    return bench_command(Path.cwd(), targets or [], read(_OWN, given), flags)
