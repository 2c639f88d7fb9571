"""The options of `run` and `stream`, by name, and the job they make."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import msgspec

from redline.calls import Cache, Endpoint, RetryPolicy, Timeouts
from redline.calls.prices import Price, parse_price
from redline.calls.spending import Allowance, parse_money
from redline.errors import ConfigError
from redline.limits import Limits, as_rates, parse_count, rate_per
from redline.run.default_key import KEY_VARIABLE, URL_VARIABLE, default_key
from redline.run.embedded import UNKNOWN_URL, Embedded, EmbeddedSim
from redline.run.option_hints import meant
from redline.run.output import Output
from redline.run.settings import Hooks, Job, Prompting

F = TypeVar("F", bound=Callable[..., Any])

SIM = "sim"
OPENAI = "https://api.openai.com/v1"


class Options(TypedDict, total=False):
    """Every option is optional and means what the flag of its name means; see ABOUT."""

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
    endpoint: Endpoint | Embedded | str
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
    retry_failed: bool
    restart: bool
    force: bool
    before: Callable[[dict[str, Any]], dict[str, Any]]
    after: Callable[[Any], Any]
    executor: Executor
    progress: bool


# What each option says, in the order of `Options`.
ABOUT = {
    "prompt": "Jinja template of the user message over the row's columns.",
    "system": "Template of the system message.",
    "body": "Template of the whole JSON body, instead of a prompt.",
    "url": "Path to call, such as /v1/embeddings; may be a template.",
    "method": "HTTP method. Default: POST.",
    "model": "The model to ask, for rows that name none.",
    "params": "Other fields of the body, such as temperature and max_tokens.",
    "output_path": "Where a plain JSON answer holds the output, such as result.items.0.text.",
    "constant_prompt": "The prompt uses no column on purpose: every row asks the same.",
    "call": "A coroutine function of one row that answers instead of an endpoint.",
    "endpoint": 'A URL, an Endpoint, "sim" (a simulated server inside), or a LocalEngine.',
    "api_key": "Default: OPENAI_API_KEY, for OpenAI and this machine; empty sends none.",
    "headers": "Sent with every request.",
    "proxy": "URL of an HTTP proxy. Default: as HTTP_PROXY, HTTPS_PROXY and NO_PROXY say.",
    "limits": "All limits at once, as a Limits; the short forms below are added to it.",
    "rps": "Requests a second; a fraction is kept: 2.5 are 3 in 1.2 s.",
    "rpm": "Requests a minute.",
    "tpm": 'Tokens a minute, input and output together; also as text: "200k".',
    "concurrency": 'Most requests in flight; "auto" finds the server\'s best.',
    "rate": '"auto" finds the limits that are not stated.',
    "cache": "Answers are kept and not asked again: True, a folder, or a Cache.",
    "output": "File or URL of the results, which the same call continues.",
    "format": '"redline", or "batch" for lines of the OpenAI Batch API.',
    "ordered": "Put the finished file in input order.",
    "keep_input": "Repeat the row in its result line.",
    "raw": "Keep the whole reply in the result line.",
    "budget": 'What all runs of the output may spend, such as "5usd".',
    "budget_tokens": 'The same in tokens, also as text: "2m".',
    "prices": "Dollars for a million tokens, by model: input, cached_input and output.",
    "timeout_s": "For one attempt, in seconds. Default: 600.",
    "max_retries": "Attempts after the first. Default: 8.",
    "row_deadline_s": "For a row with all its retries, in seconds.",
    "deadline_s": "For the run, in seconds. The same call continues it.",
    "limit": "Only the first N rows.",
    "via": '"live", "batch" (the Batch API), or "auto".',
    "follow": "Rows that are written to the file later are done, too.",
    "until_empty": "End when all messages of a stream are acknowledged.",
    "fail_on": "Answers to count as failures: length, empty, content_filter, refusal.",
    "strict": "End the run at the first row that fails.",
    "retry_failed": "Do just the rows that failed before.",
    "restart": "Start over; the old files are kept.",
    "force": "Continue an output that was begun with another prompt, model or parameter.",
    "before": "Function that gets the row and returns the row to send.",
    "after": "Function that gets the output and returns the output to keep.",
    "executor": "Runs before and after. Default: threads.",
    "progress": "Show progress on stderr. Default: if that is a terminal.",
}
_LISTED = "\n".join(
    ["Options:"]
    + [
        f"    {name} ({Options.__annotations__[name].__forward_arg__}): {ABOUT[name]}"
        for name in ABOUT
    ]
)
_NAMED = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in ABOUT]
_PROMPTING = (
    *("prompt", "system", "body", "url", "method", "model", "output_path", "constant_prompt"),
)
_OUTPUT = ("format", "ordered", "keep_input", "raw")
_JOB = (
    *("row_deadline_s", "deadline_s", "limit", "strict", "via"),
    *("retry_failed", "restart", "force", "follow", "until_empty"),
)
_HOOKS = ("before", "after", "executor")
_OF_ENDPOINT = (
    *("limits", "rps", "rpm", "tpm", "concurrency", "rate"),
    *("api_key", "headers", "proxy", "timeout_s"),
)
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("prompt", "system", "body", "url", "method", "model"), (str,)),
    **dict.fromkeys(("output_path", "api_key", "proxy", "format", "via"), (str,)),
    **dict.fromkeys(("rps", "rpm", "tpm"), (int, float, str)),
    **dict.fromkeys(("max_retries", "limit"), (int,)),
    "concurrency": (int, str),
    "rate": (str,),
    **dict.fromkeys(("timeout_s", "row_deadline_s", "deadline_s"), (int, float)),
    **dict.fromkeys(("ordered", "keep_input", "raw", "strict", "progress"), (bool,)),
    "constant_prompt": (bool,),
    **dict.fromkeys(("retry_failed", "restart", "force", "follow", "until_empty"), (bool,)),
    "endpoint": (Endpoint, str, Embedded),
    "limits": (Limits,),
    "output": (str, os.PathLike),
    "headers": (Mapping,),
    "budget": (str,),
    "budget_tokens": (int, str),
    "prices": (Mapping,),
    "params": (Mapping,),
}
_NAME_THE_KEY = f'api_key=os.environ["{KEY_VARIABLE}"] sends it there, api_key="" sends none'
_SHORT_WINDOWS_S = {"rps": 1.0, "rpm": 60.0}


def make_job(rows: object, options: Options, environ: Mapping[str, str]) -> Job:
    """The job of these options.

    environ: OPENAI_API_KEY and OPENAI_BASE_URL stand in for a missing endpoint and key.
    Raises ConfigError for an unknown option, with the nearest known one, or an unusable value.
    """
    for name in options:
        if name not in Options.__annotations__:
            raise ConfigError(f"unknown option: {name}", hint=meant(name, Options.__annotations__))
    given = {name: value for name, value in options.items() if value is not None}
    _check_types(given)
    if "call" in given:
        for name in ("endpoint", "api_key", "headers", "proxy"):
            if name in given:
                raise ConfigError(f"call and {name} exclude each other", hint="leave one out")
    limits = _limits(given)
    output = given.get("output")
    return Job(
        rows=rows,
        call=given.get("call"),  # type: ignore[arg-type]
        endpoint=None if "call" in given else _endpoint(given, limits, environ),
        embedded=_embedded(given),
        limits=limits,
        memory=memory_path(environ),
        cache=_cache(given.get("cache"), environ),
        prompting=Prompting(
            params=dict(given.get("params", {})),  # type: ignore[call-overload]
            **{**_default_model(given), **_some(given, _PROMPTING)},
        ),
        output=Output.at(output, **_some(given, _OUTPUT)) if output is not None else None,  # type: ignore[arg-type]
        hooks=Hooks(**_some(given, _HOOKS)),
        retry=RetryPolicy(**_some(given, ("max_retries",))),
        allowance=allowance(given.get("budget"), given.get("budget_tokens")),  # type: ignore[arg-type]
        prices=_prices(given.get("prices", {})),  # type: ignore[arg-type]
        fail_on=_reasons(given.get("fail_on", ())),
        **_some(given, ("timeout_s", *_JOB)),
    )


def lists_options(function: F) -> F:
    """`function(rows, **options)`, with each option in its help and in its signature."""
    function.__doc__ = f"{inspect.getdoc(function) or ''}\n\n{_LISTED}"
    signature = inspect.signature(function)
    rows = next(iter(signature.parameters.values()))
    shown = signature.replace(parameters=[rows, *_NAMED])
    function.__signature__ = shown  # type: ignore[attr-defined]
    return function


def allowance(money: str | None, tokens: int | str | None, prefix: str = "") -> Allowance | None:
    """What `5usd` and `2m` tokens allow; None where neither is given.

    prefix: of the names in errors. Raises ConfigError.
    """
    if money is None and tokens is None:
        return None
    return Allowance(
        picodollars=None if money is None else parse_money(money, f"{prefix}budget"),
        tokens=None if tokens is None else parse_count(str(tokens), _tokens_name(prefix)),
    )


def _reasons(stated: Any) -> tuple[str, ...]:
    """Reasons to fail on; as text, commas stand between them, as in the flag."""
    return (
        tuple(part.strip() for part in stated.split(","))
        if isinstance(stated, str)
        else tuple(stated)
    )


def _tokens_name(prefix: str) -> str:
    return f"{prefix}budget-tokens" if prefix else "budget_tokens"


def _prices(tables: Mapping[str, Any]) -> dict[str, Price]:
    found = {}
    for model, table in tables.items():
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"the price of {model} must be a dict", hint='{"input": 0.5, "output": 1.5}'
            )
        found[model] = parse_price(model, table, where=f"prices[{model!r}]")
    return found


def memory_path(environ: Mapping[str, str]) -> Path | None:
    """Where limits that were found are kept, by the XDG base directories; None without a home."""
    cache, home = environ.get("XDG_CACHE_HOME"), environ.get("HOME")
    if cache:
        return Path(cache, "redline", "limits.json")
    return Path(home, ".cache", "redline", "limits.json") if home else None


def cache_in(cache: Cache, environ: Mapping[str, str]) -> Cache:
    """The cache with its folder: the user's own, where none is named.

    Raises ConfigError where there is no home for it.
    """
    if cache.folder is not None:
        return cache
    beside = memory_path(environ)
    if beside is None:
        raise ConfigError(
            "there is no home folder to keep answers in", hint="name a folder: --cache-dir DIR"
        )
    return msgspec.structs.replace(cache, folder=beside.with_name("answers"))


def _cache(given: object, environ: Mapping[str, str]) -> Cache | None:
    """What the option says: True, False, a folder, or all of it. Raises ConfigError."""
    if given is None or given is False:
        return None
    if given is True:
        given = Cache()
    elif isinstance(given, (str, os.PathLike)):
        given = Cache(given)
    if not isinstance(given, Cache):
        raise ConfigError(f"cache must be True, a folder or a Cache, not {given!r}")
    return cache_in(given, environ)


def _check_types(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for a value whose type its option cannot use."""
    for name, value in given.items():
        kinds = _TYPES.get(name)
        # True is an int to Python, and never a number here.
        is_flag = isinstance(value, bool)
        if kinds is not None and (is_flag != (kinds == (bool,)) or not isinstance(value, kinds)):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(f"{name} must be {names}, not {type(value).__name__}: {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{name} must be a finite number, not {value}")


def _default_model(given: Mapping[str, Any]) -> dict[str, str]:
    """An embedded server has one model, so none need be named."""
    embedded = _embedded(given)
    return {} if embedded is None else {"model": embedded.model}


def _embedded(given: Mapping[str, Any]) -> Embedded | None:
    """The server to start for the run, where the endpoint is one."""
    endpoint = given.get("endpoint")
    if endpoint == SIM:
        return EmbeddedSim()
    return endpoint if isinstance(endpoint, Embedded) else None


def _some(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _limits(given: Mapping[str, Any]) -> Limits:
    """`limits`, with the short forms added to it."""
    limits: Limits = given.get("limits", Limits())
    requests = list(as_rates(limits.requests, "limits.requests"))
    tokens = list(as_rates(limits.tokens, "limits.tokens"))
    for name, window_s in _SHORT_WINDOWS_S.items():
        if name in given:
            requests.append(rate_per(given[name], window_s, name))
    if "tpm" in given:
        tokens.append(rate_per(given["tpm"], 60.0, "tpm"))
    return msgspec.structs.replace(
        limits,
        requests=tuple(requests),
        tokens=tuple(tokens),
        concurrency=given.get("concurrency", limits.concurrency),
        rate=given.get("rate", limits.rate),
    )


def _key(given: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """The key to send: the option's, an empty one for none, or that of the environment."""
    endpoint = given.get("endpoint")
    if "api_key" in given:
        return given["api_key"] or None
    if isinstance(endpoint, Embedded) or endpoint == SIM:
        return None
    key = environ.get(KEY_VARIABLE)
    if not endpoint and environ.get(URL_VARIABLE):
        # Both are stated in the environment: they belong together.
        return key or None
    return default_key(key, endpoint or OPENAI, given.get("headers", {}), _NAME_THE_KEY)


def _endpoint(given: Mapping[str, Any], limits: Limits, environ: Mapping[str, str]) -> Endpoint:
    endpoint = given.get("endpoint")
    embedded = _embedded(given)
    if embedded is not None:
        endpoint = UNKNOWN_URL
    if isinstance(endpoint, Endpoint):
        for name in _OF_ENDPOINT:
            if name in given:
                raise ConfigError(
                    f"{name} and an Endpoint exclude each other",
                    hint="set it in the Endpoint: api_key, headers, proxy, limits=Limits(...) or "
                    "timeouts=Timeouts(...)",
                )
        return endpoint
    timeout_s = given.get("timeout_s", Timeouts().attempt_s)
    return Endpoint(
        base_url=endpoint or environ.get(URL_VARIABLE) or OPENAI,
        api_key=_key(given, environ),
        name=embedded.place if embedded is not None else "",
        limits=limits,
        timeouts=Timeouts(first_byte_s=timeout_s, attempt_s=timeout_s),
        **_some(given, ("headers", "proxy")),
    )
