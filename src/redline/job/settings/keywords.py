"""Turns the keyword arguments of `run`, `arun` and `stream` into `Options`."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import cache
from typing import Any, TypedDict, TypeVar, get_type_hints

import msgspec

from redline.calls import Cache, Endpoint
from redline.calls.cost import parse_price
from redline.errors import ConfigError
from redline.job.settings import values
from redline.job.settings.embedded import Embedded
from redline.job.settings.option_hints import meant
from redline.job.settings.options import TABLE, Options
from redline.limits import Limits, as_rates
from redline.limits.rule import KINDS
from redline.structs import check_number, check_type, classes_in

F = TypeVar("F", bound=Callable[..., Any])


class Keywords(TypedDict, total=False):
    """The keyword arguments, all optional; each means the same as the flag of that name, if any.

    Options:
        prompt: Jinja template of the prompt, filled from the row's columns.
        system: Template of the system message, for rows without one of their own.
        body: Template of the JSON body, in place of a prompt; model and params are added if it
            lacks them.
        url: Path to call, such as /v1/embeddings; may be a template.
        method: HTTP method: GET, HEAD, POST, PUT, PATCH or DELETE. Default: POST.
        model: The model for requests that do not name one.
        params: Other fields of the request body, such as temperature and max_tokens.
        output_path: Where the output is in the answer, such as result.items.0.text. Default: where
            the API puts it, or the whole of a plain JSON answer.
        constant_prompt: Allow a prompt or body that uses no column, so that every row sends the
            same request.
        call: A coroutine function that takes a row and returns the output, in place of an endpoint.
        endpoint: A URL, an Endpoint, "sim" (a built-in simulated server), a LocalEngine, or a list
            of URLs and Endpoints. Default: the URL in OPENAI_BASE_URL, otherwise OpenAI.
        balance: Strategy that chooses one of several endpoints for a row. Default: "p2c".
        api_key: API key; "" sends none. Default: the key in OPENAI_API_KEY, sent only to OpenAI, to
            this machine, and to OPENAI_BASE_URL if no endpoint is given.
        headers: Headers sent with every request, by name.
        proxy: URL of an HTTP proxy. Default: from HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
        limits: All limits, as a Limits, whose rates apply to each endpoint separately; rps, rpm and
            tpm are added to it, while concurrency and rate override its fields.
        rps: Requests per second to each endpoint; may be a fraction: 2.5 becomes 3 per 1.2 s.
        rpm: Requests per minute to each endpoint.
        tpm: Tokens per minute at each endpoint, input and output together; also as text: "200k".
        concurrency: Maximum requests in flight, at all endpoints together, 1 to 100,000; "auto"
            searches for the best number for each server. Default: 64 per endpoint, or more if a
            request limit needs it; with a rate of "auto", "auto".
        rate: Which limits to keep: "stated" (the default: those that are set), or "auto" (which
            also finds limits that are not set, from the server's headers or by a search).
        cache: Cache answers, and reuse them for identical requests: True, a folder, or a Cache.
            Only deterministic answers are cached, unless a Cache has includes_sampled. Default: no
            cache.
        output: File or URL for the results; the same call continues an unfinished run.
        format: Format of the result lines: "redline" (the default), or "batch", as the OpenAI
            Batch API writes them.
        ordered: Put the finished file in input order. Default: the order in which rows finish.
        keep_input: Include the row in its result line.
        raw: Keep the whole reply in the result line.
        trace: File that records the times, endpoints and outcome of each call.
        metrics_port: Port at which Prometheus can read the job's metrics, also as "HOST:PORT"; 0
            picks a free port.
        alerts: Thresholds by alert rule, and a webhook to which alerts are posted.
        otel: Send metrics and sampled spans to OpenTelemetry: {} for the default settings.
        budget: The most that this run, and earlier runs of its output that had a budget, may spend
            together, such as "5usd". With max_tokens in params, no call is sent that could exceed
            it.
        budget_tokens: The most tokens that these runs may use together; also as text: "2m".
        prices: Prices by model, in dollars per million tokens: input, cached_input and output.
        timeout_s: Longest time for one attempt, in seconds. Default: 600.
        max_retries: Maximum retries of a request. Default: 8; 0 for none at all. Retries after HTTP
            429 count separately, up to ten times as many; those after a failed connection do not
            count.
        row_deadline_s: Longest time for a row with all its retries, in seconds. Default: no limit.
        deadline_s: End the run after this time, in seconds; with output, the same call continues
            it. Default: no limit.
        limit: Send only the first N rows of the input.
        via: How to send rows: "live" (which cancels open batches), "batch" (the Batch API), or
            "auto" (batches while deadline_s allows, the rest live). Default: live, but the run is
            refused while a batch is open.
        follow: After the last row of a JSONL file, wait for rows that are appended to it.
        until_empty: End when all messages of a stream are acknowledged.
        fail_on: Kinds of answers that count as failures: length, empty, content_filter, refusal.
        strict: End the run at the first row that fails.
        stop_at_error_rate: End the run once this share of the last 1,000 rows has failed, such as
            "20%"; checked from row 100 on. Default: only if the first 100 rows all fail, except
            with retry_failed.
        longest_wait_s: End the run if no call is in flight and a limit or a Retry-After would
            delay the next one by more than this, in seconds. Default: no limit.
        retry_failed: Send only the rows that failed before.
        restart: Start over; the old files are kept.
        force: Continue an output even if it was begun with a different prompt, model or
            parameter.
        before: Plain function that takes the row and returns the row to send.
        after: Plain function that takes the output and returns the output to keep.
        executor: Executor that runs `before` and `after`. Default: a thread pool.
        progress: Show progress; `stream` shows none. Default: only on a terminal or in a notebook.
    """

    prompt: str
    system: str
    body: str
    url: str
    method: str
    model: str
    params: Mapping[str, Any]
    output_path: str
    constant_prompt: bool
    call: Callable[[Any], Awaitable[Any]]
    endpoint: Endpoint | str | Embedded | Sequence[Endpoint | str]
    balance: str
    api_key: str
    headers: Mapping[str, str]
    proxy: str
    limits: Limits
    rps: float | str
    rpm: float | str
    tpm: float | str
    concurrency: int | str
    rate: str
    cache: bool | str | os.PathLike[str] | Cache
    output: str | os.PathLike[str]
    format: str
    ordered: bool
    keep_input: bool
    raw: bool
    trace: str | os.PathLike[str]
    metrics_port: int | str
    alerts: Mapping[str, Any]
    otel: Mapping[str, Any]
    budget: str
    budget_tokens: int | str
    prices: Mapping[str, Mapping[str, float | str]]
    timeout_s: float
    max_retries: int
    row_deadline_s: float
    deadline_s: float
    limit: int
    via: str
    follow: bool
    until_empty: bool
    fail_on: Sequence[str] | str
    strict: bool
    stop_at_error_rate: float | str
    longest_wait_s: float
    retry_failed: bool
    restart: bool
    force: bool
    before: Callable[[dict[str, Any]], dict[str, Any]]
    after: Callable[[Any], Any]
    executor: Executor
    progress: bool


# The values of options that were given, by field of `Options`.
_Fields = dict[str, Any]
_NAMED = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
    for name in Keywords.__annotations__
]
# Options that cannot be combined with `call`, each with a hint.
_NOT_WITH_CALL = {
    **dict.fromkeys(("endpoint", "balance", "api_key", "headers", "proxy"), "leave one out"),
    **dict.fromkeys(
        ("prompt", "system", "body", "url", "method", "params", "output_path"),
        "the function gets the row, and redline makes no request: set it in the function",
    ),
    "constant_prompt": "the function gets the row, and redline makes no prompt",
    "prices": "a function reports no usage, so its cost is unknown",
    "fail_on": "an output has no finish reason: raise redline.errors.Rejected in the function",
}
# Options that cannot be combined with an `Endpoint`, which has its own.
_NOT_WITH_ENDPOINT = (
    *("limits", "rps", "rpm", "tpm", "concurrency", "rate"),
    *("api_key", "headers", "proxy", "timeout_s"),
)
# Options whose values may contain a key or a password, so errors do not show them.
_SECRET = ("endpoint", "api_key", "headers", "proxy", "limits", "alerts", "otel")
# Options whose values are checked elsewhere.
_UNCHECKED = ("cache", "endpoint", "fail_on")


def options_of(keywords: Mapping[str, Any]) -> Options:
    """Returns the options that the keyword arguments set.

    Raises ConfigError for an unknown argument, with the known one that was probably meant, if any,
    and for an unusable value.
    """
    for name in keywords:
        if name not in Keywords.__annotations__:
            raise ConfigError(f"unknown option: {name}", hint=meant(name, Keywords.__annotations__))
    given = {name: value for name, value in keywords.items() if value is not None}
    _check_types(given)
    _check_rivals(given)
    fields: _Fields = {}
    # In the order of `Keywords`, so that concurrency and rate override those of `limits`.
    for name in Keywords.__annotations__:
        if name in _AS_FLAGS and name in given:
            fields[name] = TABLE[name].read(given[name], name)
        elif name in given:
            read = _READERS.get(name)
            fields |= {name: given[name]} if read is None else read(given[name])
    return Options(**fields)


def lists_options(function: F) -> F:
    """Returns `function(rows, **options)` with each option in its help and its signature."""
    listed = (inspect.getdoc(Keywords) or "").partition("\n\n")[2]
    listed = re.sub(r"^    (\w+)(?=: )", _with_type, listed, flags=re.MULTILINE)
    function.__doc__ = f"{inspect.getdoc(function) or ''}\n\n{listed}"
    signature = inspect.signature(function)
    rows = next(iter(signature.parameters.values()))
    shown = signature.replace(parameters=[rows, *_NAMED])
    function.__signature__ = shown  # type: ignore[attr-defined]
    return function


def _with_type(named: re.Match[str]) -> str:
    # LocalEngine, the only public class of its kind, is in a layer above this one.
    shown = Keywords.__annotations__[named[1]].__forward_arg__.replace("Embedded", "LocalEngine")
    return f"{named[0]} ({shown})"


def _check_types(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for a value of the wrong type, or for a number or time out of range."""
    for name, value in given.items():
        if name not in _UNCHECKED:
            check_type(name, value, _kinds()[name], "" if name in _SECRET else f": {value!r}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            check_number(name, value)
            if name.endswith("_s") and value <= 0:
                raise ConfigError(f"{name} must be above 0 s, not {value:g}")
        if name in ("before", "after") and inspect.iscoroutinefunction(value):
            # The coroutine that it returns would be kept as the output, or fail a paid row.
            raise ConfigError(
                f"{name} must not be a coroutine function: it runs in a thread",
                hint="write `def`; code that awaits can be passed as `call`",
            )


@cache
def _kinds() -> dict[str, tuple[type, ...]]:
    """Returns the classes that each keyword's annotation names."""
    return {name: classes_in(hint) for name, hint in get_type_hints(Keywords).items()}


def _check_rivals(given: Mapping[str, Any]) -> None:
    if "call" in given:
        for name, hint in _NOT_WITH_CALL.items():
            if name in given:
                raise ConfigError(f"call and {name} cannot be combined", hint=hint)
    stated = given.get("endpoint")
    is_one = isinstance(stated, Endpoint)
    is_list = isinstance(stated, Sequence) and any(isinstance(one, Endpoint) for one in stated)
    if is_one or is_list:
        for name in _NOT_WITH_ENDPOINT:
            # With a list, `concurrency` bounds the calls at all endpoints together.
            if name in given and not (is_list and name == "concurrency"):
                raise ConfigError(
                    f"{name} and an Endpoint cannot be combined",
                    hint="set it in the Endpoint: api_key, headers, proxy, limits=Limits(...) or "
                    "timeouts=Timeouts(...)",
                )


def _endpoint(stated: Any) -> _Fields:
    """Returns the option for one endpoint or several; an empty string counts as not given."""
    if isinstance(stated, (str, Endpoint, Embedded)):
        return {"endpoint": stated or None}
    if not isinstance(stated, Sequence):
        raise ConfigError(
            "endpoint must be a URL, an Endpoint, a LocalEngine, or a list of URLs and Endpoints, "
            f"not {type(stated).__name__}",
            hint="to use several endpoints, pass a list of them, not a Pool: endpoint=[...]",
        )
    for one in stated:
        if not isinstance(one, (str, Endpoint, Embedded)):
            raise ConfigError(
                f"endpoint must be a list of URLs and Endpoints, not of {type(one).__name__}"
            )
    if not stated:
        raise ConfigError("endpoint is an empty list", hint="leave it out for the default")
    return {"endpoint": stated[0] if len(stated) == 1 else tuple(stated)}


def _limits(limits: Limits) -> _Fields:
    stated = msgspec.structs.asdict(limits)
    for kind in KINDS:
        stated[kind] = as_rates(stated[kind], f"limits.{kind}")
    return stated


def _cache(stated: object) -> _Fields:
    """Returns the cache options for True, False, a folder, or a Cache."""
    if isinstance(stated, bool):
        return {"cache": True} if stated else {"no_cache": True}
    if isinstance(stated, (str, os.PathLike)):
        stated = Cache(stated)
    if not isinstance(stated, Cache):
        raise ConfigError(f"cache must be True, a folder or a Cache, not {stated!r}")
    return {
        "cache": True,
        "cache_dir": stated.folder,
        "cache_size": stated.max_bytes,
        "cache_sampled": stated.includes_sampled,
    }


def _prices(tables: Mapping[str, Any]) -> _Fields:
    found = {}
    for model, table in tables.items():
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"the price of {model} must be a dict", hint='{"input": 0.5, "output": 1.5}'
            )
        found[model] = parse_price(model, table, where=f"prices[{model!r}]")
    return {"prices": found}


def _fail_on(stated: object) -> _Fields:
    """Returns the option `fail_on`. A string is split at its commas, as the flag's value is."""
    if isinstance(stated, str):
        return {"fail_on": values.words([stated])}
    reasons: tuple[object, ...] = (stated,)
    if isinstance(stated, Iterable) and not isinstance(stated, Mapping):
        reasons = tuple(stated)
    if not all(isinstance(reason, str) for reason in reasons):
        raise ConfigError(
            f"fail_on must be a string or a list of strings, not {stated!r}",
            hint='for example ["length", "empty"]',
        )
    return {"fail_on": reasons}


# Keywords that take the same values as the flag or the table in redline.toml of the same name.
_AS_FLAGS = (
    *("rps", "rpm", "tpm", "metrics_port", "alerts", "otel"),
    *("budget", "budget_tokens", "stop_at_error_rate"),
)
# Readers of other keywords. Without a reader, the value becomes the option of that name unchanged.
_READERS: dict[str, Callable[[Any], _Fields]] = {
    "params": lambda given: {"params": dict(given)},
    "endpoint": _endpoint,
    "limits": _limits,
    "cache": _cache,
    "prices": _prices,
    "fail_on": _fail_on,
    # Used by the caller, not by the job.
    "progress": lambda given: {},
}
