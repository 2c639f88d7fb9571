"""Defines the options of a job, and their names on the command line, in TOML and in Python.

An option is a field of `Options`; the field's metadata is an `Option`, which describes everything
but the type. New options are added here. `TABLE` holds each `Option` under the name of its field.
`values` reads the values of flags and settings, `keywords` reads the arguments of `redline.run`,
and `resolve` makes the job.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec

from redline.calls import Endpoint
from redline.calls.cost import Price, parse_money
from redline.job.settings import values
from redline.job.settings.alert_settings import parse_alerts
from redline.job.settings.embedded import Embedded
from redline.job.settings.otel_settings import OtelSettings
from redline.job.settings.otel_table import parse_otel
from redline.job.settings.settings import METHODS, VIAS
from redline.journal import FAIL_ON, FORMATS
from redline.limits import PROFILES, Rate, rate_per
from redline.limits.rule import AUTO, CHARGES, MAX_CONCURRENCY, MAX_GUARD_S, RATES
from redline.observe import AlertSettings
from redline.route import STRATEGIES

_PROMPT, _ENDPOINT = "From row to request", "Endpoints"
_LIMITS, _COST, _CACHE = "Limits", "Cost", "Reusing answers"
_OUTPUT, _AGAIN = "Output", "If the output exists"
_END, _CONTINUOUS = "When to stop", "Continuous input"

_LONGEST_TIMEOUT_S = 86_400.0
_MOST_RETRIES = 100


class Kind(StrEnum):
    """The type of the value of a flag or a setting; errors describe it by the enum's value."""

    TEXT = "text or a number"
    FLAG = "true or false"
    LIST = "text, or a list of texts"
    PAGE = "true, false or text"
    TABLE = "a table of texts"


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """The names of one option, and how its value is read.

    key: the name in redline.toml and, with dashes, on the command line; if empty, the field's name
    without the suffix `_s`. short: the one-letter flag, such as `-o`. python: the argument of
    `redline.run` that sets the option; the field's name if empty. field: the field that the option
    sets; the key if empty. read: turns the value of the flag or setting, which has the type `kind`,
    into that of the field. metavar, help: shown by `--help`. complete: the values that a shell's
    completion offers. section: the section of `--help`; the previous option's if empty.
    of_endpoint: whether a table [endpoints.NAME] may set the option. absent: the places where the
    option cannot be set, "flag", "toml" or "python", each with the reason.
    """

    key: str = ""
    short: str = ""
    python: str = ""
    field: str = ""
    read: values.Reader = values.plain
    kind: Kind = Kind.TEXT
    metavar: str | None = None
    help: str = ""
    section: str = ""
    complete: tuple[str, ...] = ()
    of_endpoint: bool = False
    absent: Mapping[str, str] = {}


def flag(key: str, metavar: str | None, about: str, **facts: Any) -> Option:
    """Returns an option with a flag.

    facts: other fields of `Option`; without `section`, the flag joins the previous flag's section.
    """
    return Option(key=key, metavar=metavar, help=about, **facts)


def switch(key: str, about: str, **facts: Any) -> Option:
    """Returns an option whose flag takes no value."""
    return Option(key=key, help=about, kind=Kind.FLAG, **facts)


def whole(key: str, about: str, *, least: int = 1, most: int = 10**15, **facts: Any) -> Option:
    """Returns an option with a flag that takes a whole number from `least` to `most`."""
    reader = partial(values.whole, least=least, most=most)
    return flag(key, "N", about, read=reader, **facts)


def time(
    key: str,
    about: str,
    *,
    most_s: float = values.MAX_SECONDS,
    may_be_0: bool = False,
    **facts: Any,
) -> Option:
    """Returns an option with a flag that takes a duration; `--drain` sets the field `drain_s`."""
    reader = partial(values.duration, most_s=most_s, may_be_0=may_be_0)
    return flag(key, "TIME", about, field=f"{key}_s", read=reader, **facts)


def choice(key: str, known: Sequence[str], about: str, **facts: Any) -> Option:
    """Returns an option with a flag that takes one of `known`."""
    reader = partial(values.choice, known=known)
    return flag(key, "NAME", about, read=reader, complete=tuple(known), **facts)


def _field(option: Option) -> Any:
    """Returns a dataclass field with this option as its metadata, and None as its default."""
    return field(default=None, metadata={"option": option})


def _option(**facts: Any) -> Any:
    return _field(Option(**facts))


def _flag(metavar: str, about: str, *, key: str = "", **facts: Any) -> Any:
    return _field(flag(key, metavar, about, **facts))


def _switch(about: str, **facts: Any) -> Any:
    return _field(switch("", about, **facts))


def _whole(about: str, **facts: Any) -> Any:
    return _field(whole("", about, **facts))


def _time(about: str, **facts: Any) -> Any:
    return _field(time("", about, **facts))


def _choice(known: Sequence[str], about: str, **facts: Any) -> Any:
    return _field(choice("", known, about, **facts))


def _of_each(metavar: str, about: str, **facts: Any) -> Any:
    """Returns a field with a flag that a table [endpoints.NAME] may set, too."""
    return _flag(metavar, about, of_endpoint=True, **facts)


def _rates(about: str, section: str = "") -> Any:
    """Returns a field for rates, with a repeatable flag; in Python, `limits` sets it."""
    return _of_each(
        "N/W", about, read=values.rates, kind=Kind.LIST, python="limits", section=section
    )


def _per(window_s: float, about: str) -> Any:
    return _of_each("N", about, read=lambda text, flag: rate_per(text, window_s, flag))


def _only_in_python(reason: str) -> Any:
    return _option(absent=dict.fromkeys(("flag", "toml"), reason))


def _of_one_endpoint(**facts: Any) -> Any:
    """Returns a field that, outside Python, only a table [endpoints.NAME] can set."""
    return _option(
        of_endpoint=True,
        python="endpoint",
        absent={
            "flag": "it belongs to one endpoint: set it in the endpoint's table in redline.toml",
            "toml": "set it in [endpoints.NAME]",
        },
        **facts,
    )


_IS_CODE = "text cannot hold a function"
_OF_ONE_INPUT = {"toml": "it describes a single input, not a project"}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options:
    """The options of a job, from any source. None: not given, so its default applies."""

    prompt: str | None = _flag(
        "TEMPLATE",
        "Jinja template of the prompt, such as 'Classify: {{ text }}', filled from the row's "
        "columns. @FILE reads it from a file.",
        read=values.text_or_file,
        section=_PROMPT,
    )
    system: str | None = _flag(
        "TEMPLATE",
        "Template of the system message, for rows without one of their own.",
        read=values.text_or_file,
    )
    model: str | None = _of_each("NAME", "The model for requests that do not name one.")
    temperature: float | None = _flag(
        "T", "Sampling temperature.", read=values.number, python="params"
    )
    max_tokens: int | None = _whole(
        "Maximum tokens per answer, unless a row sets it.", python="params"
    )
    params: dict[str, Any] | None = _flag(
        "NAME=VALUE",
        "Any other field of the request body, such as seed=7; the value is read as JSON if it is "
        "valid JSON, otherwise as text. Repeatable.",
        key="param",
        read=values.pairs,
        kind=Kind.LIST,
    )
    url: str | None = _flag(
        "PATH",
        "Path to call. Default: /v1/chat/completions; /v1/completions, /v1/embeddings and "
        "/v1/responses are also supported; any other path takes and returns plain JSON. May be a "
        "template: '/chat?q={{ text | urlencode }}'.",
    )
    method: str | None = _flag(
        "METHOD",
        "HTTP method: GET, HEAD, POST, PUT, PATCH or DELETE. Default: POST. GET and HEAD send no "
        "body.",
        complete=METHODS,
    )
    body: str | None = _flag(
        "TEMPLATE",
        "Template of the JSON body: '{\"q\": {{ text | json }}}'; fields set by --model, "
        "--param and the like are added if it lacks them. @FILE reads it from a file.",
        read=values.text_or_file,
    )
    output_path: str | None = _flag(
        "PATH",
        "Where the output is in the answer, such as result.items.0.text. Default: "
        "where the API puts it, or the whole of a plain JSON answer.",
    )
    constant_prompt: bool | None = _switch(
        "Allow a prompt or body that uses no column, so that every row sends the same request."
    )
    endpoint: Endpoint | Embedded | str | Sequence[Endpoint | str] | None = _flag(
        "NAME",
        "A URL, a name from redline.toml, sim (a built-in simulated server, for testing), or "
        "engine:MODEL (a built-in local model). Repeatable: several URLs or names share the "
        "rows.",
        read=values.one_or_more,
        kind=Kind.LIST,
        section=_ENDPOINT,
    )
    balance: str | None = _choice(
        STRATEGIES,
        "Which of several endpoints gets a row: p2c (the default: the one that should answer "
        "first), least_tokens, room (for rate limits), prefix (for servers with a prefix "
        "cache), cheapest, round_robin, weighted_score or normalized_score.",
    )
    base_url: str | None = _of_each(
        "URL",
        "URL of the server, usually ending in /v1, as in the openai SDK. Default: "
        "$OPENAI_BASE_URL or, if that is not set, OpenAI. OPENAI_API_KEY is sent to "
        "$OPENAI_BASE_URL if both are set in the environment or both in .env.",
        python="endpoint",
    )
    api_key: str | None = _of_each(
        "NAME",
        "Name of the variable that holds the API key, in the environment or in .env. Default: "
        "OPENAI_API_KEY, sent to a server that you name only if it is OpenAI or this machine.",
        key="api_key_env",
    )
    headers: Mapping[str, str] | None = _flag(
        "'NAME: VALUE'",
        "Header sent with every request. Repeatable.",
        key="header",
        read=values.headers,
        kind=Kind.LIST,
    )
    proxy: str | None = _of_each(
        "URL",
        "HTTP proxy. Default: from HTTP_PROXY, HTTPS_PROXY and NO_PROXY.",
    )
    requests: Sequence[Rate] | None = _rates(
        "Request limit, such as 2/1s or 10k/1d. Repeatable: all limits apply at once, and to "
        "each endpoint separately.",
        _LIMITS,
    )
    tokens: Sequence[Rate] | None = _rates(
        "Limit on input and output tokens together, such as 200k/60s. Repeatable."
    )
    input_tokens: Sequence[Rate] | None = _rates("Limit on input tokens alone. Repeatable.")
    output_tokens: Sequence[Rate] | None = _rates("Limit on output tokens alone. Repeatable.")
    rps: Rate | None = _per(1.0, "Requests per second to each endpoint: short for --requests N/1s.")
    rpm: Rate | None = _per(
        60.0, "Requests per minute to each endpoint: short for --requests N/60s."
    )
    tpm: Rate | None = _per(60.0, "Tokens per minute at each endpoint: short for --tokens N/60s.")
    concurrency: int | str | None = _of_each(
        "N|auto",
        "Maximum requests in flight, at all endpoints together; auto searches for the best "
        "number for each server. Default: 64 per endpoint, or more if a request limit needs it; "
        "with --rate auto, auto.",
        read=partial(values.whole_or, word=AUTO, least=1, most=MAX_CONCURRENCY),
        short="-c",
    )
    rate: str | None = _choice(
        RATES,
        "Which limits to keep: stated (the default: the limits that are set), or auto (which also "
        "discovers limits that are not set: from the server's headers and, if these state no "
        "request limit, by a search).",
        of_endpoint=True,
    )
    profile: str | None = _choice(
        PROFILES,
        "How the server counts: any (the default, safe for all of these), fixed or moving "
        "(windows), counter (sliding-window counter), or bucket (token bucket).",
        of_endpoint=True,
        python="limits",
    )
    headroom: float | None = _of_each(
        "SHARE",
        "Share of each rate to use: 0.8 leaves a fifth for others. Default: 1.",
        read=values.share,
        python="limits",
    )
    guard_s: float | None = _time(
        "Margin for network jitter, such as 50ms: added to each window or, with --profile bucket, "
        "taken off the burst. Default: measured.",
        most_s=MAX_GUARD_S,
        may_be_0=True,
        of_endpoint=True,
        python="limits",
    )
    charge: str | None = _choice(
        CHARGES,
        "What counts against a token limit: actual (the usage), reserved (prompt and max_tokens, "
        "with nothing given back), or auto (the default: like reserved for providers known to "
        "charge that way, otherwise like actual).",
        of_endpoint=True,
        python="limits",
    )
    share: str | None = _of_each(
        "FILE|URL",
        "Share the rate limits of each endpoint and key, but not -c, with all processes that use "
        "the same file or redis:// URL.",
        read=lambda text, flag: os.path.expanduser(text),
        python="limits",
    )
    budget: int | None = _flag(
        "MONEY",
        "The most that a run may spend, such as 5usd, including what earlier runs of the same "
        "output file spent with a budget. With --max-tokens, no call is sent that could exceed it.",
        read=parse_money,
        section=_COST,
    )
    budget_tokens: int | None = _flag(
        "N",
        "The most input and output tokens that a run may use, such as 2m; counted and enforced "
        "like --budget.",
        read=values.count,
    )
    via: str | None = _choice(
        VIAS,
        "How to send rows: live (which cancels open batches), batch (the provider's Batch API: "
        "usually half the price, within a day), or auto (batches while --deadline allows, the rest "
        "live). Default: live, but the run is refused while a batch is open.",
    )
    cache: bool | None = _switch(
        "Cache answers, and reuse them for identical requests in this run and in later ones with "
        "--cache, except with --retry-failed. Without --cache-sampled, only deterministic answers "
        "are cached: those with temperature 0 or a seed, and embeddings.",
        section=_CACHE,
    )
    no_cache: bool | None = _switch("Use no cache, even if redline.toml sets one.", python="cache")
    cache_dir: str | os.PathLike[str] | None = _flag(
        "DIR",
        "Keep the cache in this folder. Default: redline/answers in $XDG_CACHE_HOME or ~/.cache. "
        "Implies --cache.",
        read=values.local,
        python="cache",
    )
    cache_size: int | None = _flag(
        "SIZE",
        "Maximum size of the cache, such as 500m; the least recently used answers are removed "
        "first. Default: 1g.",
        read=values.size,
        python="cache",
    )
    cache_sampled: bool | None = _switch(
        "Also cache sampled answers: identical requests then get the same answer.", python="cache"
    )
    output: str | os.PathLike[str] | None = _flag(
        "FILE",
        "Results file: one JSON line per success. The same command continues it. With a URL such "
        "as s3://bucket/labels.jsonl, the results are written to s3.redline/ and uploaded when "
        "the run ends. Without -o, they go to stdout, and the run cannot be continued.",
        read=values.place,
        short="-o",
        section=_OUTPUT,
    )
    format: str | None = _choice(
        FORMATS,
        "Format of the results: redline (the default), or batch (lines of the OpenAI Batch API).",
    )
    ordered: bool | None = _switch(
        "Put the finished file in input order. Default: the order in which rows finish."
    )
    keep_input: bool | None = _switch("Include the row in its result line.")
    raw: bool | None = _switch("Keep the whole reply in the result line.")
    trace: str | os.PathLike[str] | None = _flag(
        "FILE",
        "File for `redline route replay`: the times, endpoints and outcome of each call, but no "
        "prompts or answers. Later runs are appended.",
        read=values.local,
    )
    metrics_port: tuple[str, int] | None = _flag(
        "[HOST:]PORT",
        "Serve the job's metrics to Prometheus at http://HOST:PORT/metrics while it runs. Default "
        "HOST: 127.0.0.1. Port 0 picks a free one and prints it.",
        read=values.address,
    )
    retry_failed: bool | None = _switch("Send only the rows that failed before.", section=_AGAIN)
    restart: bool | None = _switch(
        "Start over. The old files are renamed, for example to labels.old-1.jsonl."
    )
    force: bool | None = _switch(
        "Continue an output even if it was begun with a different prompt, model or parameter."
    )
    max_retries: int | None = _whole(
        "Maximum retries of a request. Default: 8; 0 for none at all. Retries after HTTP 429 count "
        "separately, up to ten times as many; those after a failed connection do not count.",
        least=0,
        most=_MOST_RETRIES,
        section=_END,
    )
    timeout_s: float | None = _time(
        "Longest time for one attempt: 30 (seconds), 500ms or 5m. Default: 10m.",
        most_s=_LONGEST_TIMEOUT_S,
        of_endpoint=True,
    )
    connect_timeout_s: float | None = _time(
        "Longest time to connect. Default: 10s.",
        most_s=_LONGEST_TIMEOUT_S,
        of_endpoint=True,
        python="endpoint",
    )
    first_byte_timeout_s: float | None = _time(
        "Longest wait for the first byte of an answer. Default: --timeout.",
        most_s=_LONGEST_TIMEOUT_S,
        of_endpoint=True,
        python="endpoint",
    )
    row_deadline_s: float | None = _time(
        "Longest time for a row with all its retries. Default: no limit."
    )
    deadline_s: float | None = _time(
        "End the run after this time, such as 6h. With an output file, the same command continues "
        "it. Default: no limit."
    )
    limit: int | None = _whole("Send only the first N rows of the input.")
    fail_on: Sequence[str] | None = _flag(
        "REASONS",
        "Kinds of answers that count as failures, separated by commas: length (cut at the token "
        "limit), empty, content_filter or refusal. Default: none.",
        read=partial(values.choices, known=tuple(FAIL_ON)),
        kind=Kind.LIST,
        complete=tuple(FAIL_ON),
    )
    strict: bool | None = _switch("End the run at the first row that fails.")
    stop_at_error_rate: float | None = _flag(
        "SHARE",
        "End the run once this share of the last 1,000 rows has failed, such as 20%; checked from "
        "row 100 on. Default: only if the first 100 rows all fail, except with --retry-failed.",
        read=values.part,
    )
    longest_wait_s: float | None = _time(
        "End the run if no call is in flight and a limit or a Retry-After would delay the next one "
        "by more than this, such as 10m. With an output file, the same command continues it. "
        "Default: no limit.",
    )
    follow: bool | None = _switch(
        "After the last row of a JSONL file, wait for more, as tail -F does. Ctrl-C ends the run.",
        section=_CONTINUOUS,
        absent=_OF_ONE_INPUT,
    )
    until_empty: bool | None = _switch(
        "End when every message of the stream is acknowledged. Default: wait for more.",
        absent=_OF_ONE_INPUT,
    )
    name: str | None = _option(
        python="endpoint",
        absent={
            "flag": "--endpoint NAME names a table of redline.toml",
            "toml": "it is the NAME of [endpoints.NAME]",
        },
    )
    weight: float | None = _of_one_endpoint(read=values.weight)
    group: str | None = _of_one_endpoint()
    models: Mapping[str, str] | None = _of_one_endpoint(kind=Kind.TABLE)
    metrics: bool | str | None = _of_one_endpoint(kind=Kind.PAGE)
    probe: bool | str | None = _of_one_endpoint(kind=Kind.PAGE)
    tariff: Mapping[str, Price] | None = _option(
        python="endpoint",
        absent={
            "flag": "the tables [endpoints.NAME.prices.MODEL] of redline.toml set it",
            "toml": "the tables [endpoints.NAME.prices.MODEL] set it",
        },
    )
    prices: Mapping[str, Price] | None = _option(
        absent={"flag": "the tables [prices.MODEL] of redline.toml set them"}
    )
    alerts: AlertSettings | None = _option(
        read=parse_alerts,
        absent={"flag": "the table [alerts] of redline.toml sets them"},
    )
    otel: OtelSettings | None = _option(
        read=parse_otel, absent={"flag": "the table [otel] of redline.toml sets it"}
    )
    call: Callable[[Any], Awaitable[Any]] | None = _only_in_python(_IS_CODE)
    before: Callable[[dict[str, Any]], dict[str, Any]] | None = _only_in_python(_IS_CODE)
    after: Callable[[Any], Any] | None = _only_in_python(_IS_CODE)
    executor: Executor | None = _only_in_python(_IS_CODE)


def _table() -> dict[str, Option]:
    found, section = {}, ""
    for each in fields(Options):
        option, name = each.metadata["option"], each.name
        section = option.section or section
        found[name] = msgspec.structs.replace(
            option,
            key=option.key or name.removesuffix("_s"),
            python=option.python or name,
            field=name,
            section=section,
        )
    return found


TABLE = _table()
# The options that are flags, in the order of `--help`.
FLAGS = {name: option for name, option in TABLE.items() if "flag" not in option.absent}
# The options that a table [endpoints.NAME] may set.
OF_ENDPOINT = {name: option for name, option in TABLE.items() if option.of_endpoint}


def options_in(given: values.Flags, shown: Callable[[str], str] = values.flag_of) -> Options:
    """Returns `Options` with the values of the given flags or settings; see `read`."""
    return Options(**read({**FLAGS, **OF_ENDPOINT}.values(), given, shown))


def read(
    options: Iterable[Option], given: values.Flags, shown: Callable[[str], str] = values.flag_of
) -> dict[str, Any]:
    """Returns, by field, the values of the options that `given` sets.

    given: values of flags or settings, by key. shown: returns the name of a key in errors. Raises
    ConfigError, which names the option, for a value that it cannot use.
    """
    return {
        option.field or option.key: option.read(given[option.key], shown(option.key))
        for option in options
        if option.key in given
    }


def kinds_of(options: Iterable[Option]) -> dict[str, Kind]:
    """Returns the type of each option's value in redline.toml, by key."""
    return {option.key: option.kind for option in options}
