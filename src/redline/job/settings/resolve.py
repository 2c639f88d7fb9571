"""Makes a `Job` from options, and finds the server and the API key that they leave out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from redline.apis import api_of
from redline.calls import Cache, Endpoint, RetryPolicy, Timeouts
from redline.calls.cost import Allowance
from redline.errors import ConfigError
from redline.job.settings.api_key import KEY_VARIABLE, URL_VARIABLE, Environment, default_key
from redline.job.settings.embedded import UNKNOWN_URL, Embedded, EmbeddedSim
from redline.job.settings.keywords import options_of
from redline.job.settings.options import TABLE, Options
from redline.job.settings.otel_settings import with_secrets
from redline.job.settings.settings import BODILESS, Hooks, Job, Prompting
from redline.journal import Output
from redline.limits import Limits
from redline.store import local_path, url_of

SIM = "sim"
OPENAI = "https://api.openai.com/v1"
_OUTPUT = ("format", "ordered", "keep_input", "raw")
# Fields of a struct that take the value of the option with the same name.
_PROMPTING = [name for name in Prompting.__struct_fields__ if name in TABLE]
_MADE = ("cache", "output", "trace", "otel")
_JOB = [name for name in Job.__struct_fields__ if name in TABLE and name not in _MADE]


def make_job(rows: object, keywords: Mapping[str, Any], environ: Mapping[str, str]) -> Job:
    """Returns the job of `redline.run(rows, **keywords)`. Raises ConfigError."""
    return job_of(rows, options_of(keywords), Environment(environ=environ))


def job_of(rows: object, options: Options, environment: Environment) -> Job:
    """Returns the job that these options describe.

    rows: any input that `open_source` accepts, or a stream. environment: supplies the server's URL
    and the API key if no option does. Raises ConfigError.
    """
    embedded = embedded_in(options.endpoint)
    return Job(
        rows=rows,
        endpoints=() if options.call is not None else endpoints_of(options, environment),
        embedded=embedded,
        limits=_limits(options),
        memory=memory_path(environment.environ),
        cache=_cache(options, environment.environ),
        prompting=_prompting(options, embedded),
        output=None if options.output is None else output_at(options.output, options),
        hooks=Hooks(**_given(options, *Hooks.__struct_fields__)),
        retry=RetryPolicy(**_given(options, "max_retries")),
        allowance=_allowance(options),
        trace=None if options.trace is None else Path(options.trace),
        otel=None if options.otel is None else with_secrets(options.otel, environment.environ),
        **_given(options, *_JOB),
    )


def output_at(place: str | os.PathLike[str], options: Options) -> Output:
    """Returns the output at a path or URL, with the format and the other settings of the options.

    Raises ConfigError for a folder, and for anything else that exists but is not a file, such as a
    pipe.
    """
    if url_of(place) is None:
        path, name = local_path(place), os.fspath(place)
        if path.is_dir() or name.endswith("/"):
            hint = f"choose a file in it: {path / 'labels.jsonl'}"
            raise ConfigError(f"the output {name} is a folder", hint=hint)
        if path.exists() and not path.is_file():
            hint = "leave out -o to get results on stdout"
            raise ConfigError(f"the output {name} is not a file", hint=hint)
    return Output.at(place, **_given(options, *_OUTPUT))


def embedded_in(endpoint: object) -> Embedded | None:
    """Returns the server to start for the run; None if `endpoint` is not an embedded server."""
    if endpoint == SIM:
        return EmbeddedSim()
    return endpoint if isinstance(endpoint, Embedded) else None


def memory_path(environ: Mapping[str, str]) -> Path | None:
    """Returns the path of the file that stores the limits found, in the XDG cache folder.

    Returns None if neither XDG_CACHE_HOME nor HOME is set.
    """
    cache, home = environ.get("XDG_CACHE_HOME"), environ.get("HOME")
    if cache:
        return Path(cache, "redline", "limits.json")
    return Path(home, ".cache", "redline", "limits.json") if home else None


def _given(options: Options, *names: str) -> dict[str, Any]:
    """Returns the named options that are given, by name, so that the others keep their defaults."""
    found = {name: getattr(options, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _prompting(options: Options, embedded: Embedded | None) -> Prompting:
    fields = _given(options, *_PROMPTING)
    if embedded is not None and fields.get("method", "POST").upper() not in BODILESS:
        # An embedded server has only one model, so no option has to choose it.
        fields.setdefault("model", embedded.model)
    given = _given(options, "temperature", "max_tokens")
    limits = api_of(options.url or "").output_limits
    if "max_tokens" in given and limits:
        # The Responses API names this field differently, and refuses `max_tokens`.
        given[limits[0]] = given.pop("max_tokens")
    fields["params"] = {**(options.params or {}), **given}
    return Prompting(**fields)


def _limits(options: Options) -> Limits:
    """Returns all limits, including those set in short form: rps, rpm and tpm."""
    fields = _given(options, *Limits.__struct_fields__)
    short = {"requests": (options.rps, options.rpm), "tokens": (options.tpm,)}
    for kind, rates in short.items():
        fields[kind] = (*fields.get(kind, ()), *filter(None, rates))
    return Limits(**fields)


def endpoints_of(options: Options, environment: Environment) -> tuple[Endpoint, ...]:
    """Returns the endpoints that the options set, or the default one. Raises ConfigError."""
    stated = options.endpoint
    if isinstance(stated, Endpoint):
        return (_within(stated, options.concurrency),)
    if stated is None or isinstance(stated, str) or not isinstance(stated, Sequence):
        return (endpoint_of(options, environment),)
    for one in stated:
        if (embedded := embedded_in(one)) is not None:
            raise no_embedded(embedded.place)
    each = (dataclasses.replace(options, endpoint=one) for one in stated)
    return tuple(endpoint_of(one, environment) for one in each)


def _within(endpoint: Endpoint, most: int | str | None) -> Endpoint:
    """Returns the endpoint with at most `most` calls in flight.

    The endpoint is unchanged if its own concurrency is not higher, or is searched for: `Job.slots`
    bounds that search.
    """
    limits = endpoint.limits
    if not isinstance(most, int) or limits.is_adaptive or limits.slots() <= most:
        return endpoint
    limits = msgspec.structs.replace(limits, concurrency=most)
    return msgspec.structs.replace(endpoint, limits=limits)


def no_embedded(name: str) -> ConfigError:
    """Returns the error for an embedded server that is chosen as one of several endpoints."""
    return ConfigError(
        f"{name} cannot be one of several endpoints: a run that starts it uses no other",
        hint="start it as a separate server (redline sim, redline engine), and pass its URL",
    )


def endpoint_of(options: Options, environment: Environment) -> Endpoint:
    """Returns the endpoint that the options set, or the default one. Raises ConfigError."""
    if isinstance(options.endpoint, Endpoint):
        return options.endpoint
    base_url = options.base_url
    if isinstance(options.endpoint, str):
        base_url = options.endpoint
    place, embedded = options.name, embedded_in(options.endpoint)
    if embedded is not None:
        base_url, place = UNKNOWN_URL, embedded.place
    return Endpoint(
        base_url=base_url if base_url is not None else _usual_url(environment),
        name=place or "",
        api_key=_key(options, base_url, embedded, environment),
        limits=_limits(options),
        timeouts=_timeouts(options),
        prices=options.tariff or {},
        **_given(options, "headers", "proxy", "weight", "group", "models", "metrics", "probe"),
    )


def _usual_url(environment: Environment) -> str:
    return environment.environ.get(URL_VARIABLE) or OPENAI


def _key(
    options: Options, base_url: str | None, embedded: Embedded | None, environment: Environment
) -> str | None:
    """Returns the key to send, from the options or the environment; None to send no key.

    If the option `api_key` is empty, no key is sent. Raises ConfigError if the environment's key
    may not be sent to the URL.
    """
    if options.api_key is not None:
        return options.api_key or None
    if embedded is not None:
        return None
    key = environment.environ.get(KEY_VARIABLE) or None
    is_pair = environment.is_pair(URL_VARIABLE, KEY_VARIABLE)
    if base_url is None and environment.environ.get(URL_VARIABLE) and is_pair:
        # Both are set in the same place, so the key belongs to the URL.
        return key
    headers = options.headers or {}
    return default_key(key, base_url or _usual_url(environment), headers, environment.key_hint)


def _timeouts(options: Options) -> Timeouts:
    usual = Timeouts()
    attempt_s = usual.attempt_s if options.timeout_s is None else options.timeout_s
    connect_s, first_s = options.connect_timeout_s, options.first_byte_timeout_s
    return Timeouts(
        connect_s=usual.connect_s if connect_s is None else connect_s,
        first_byte_s=attempt_s if first_s is None else min(first_s, attempt_s),
        attempt_s=attempt_s,
    )


def _cache(options: Options, environ: Mapping[str, str]) -> Cache | None:
    """Returns the cache that the options request, with its folder; None if they request none.

    Raises ConfigError if no option sets the folder, and neither XDG_CACHE_HOME nor HOME is set.
    """
    is_wanted = options.cache or options.cache_dir is not None
    if options.no_cache or not is_wanted:
        return None
    folder = options.cache_dir
    if folder is None:
        beside = memory_path(environ)
        if beside is None:
            raise ConfigError(
                "there is no home folder for the cache",
                hint="set one: --cache-dir DIR, or cache=DIR in Python",
            )
        folder = beside.with_name("answers")
    size = {} if options.cache_size is None else {"max_bytes": options.cache_size}
    return Cache(folder, includes_sampled=bool(options.cache_sampled), **size)


def _allowance(options: Options) -> Allowance | None:
    if options.budget is None and options.budget_tokens is None:
        return None
    return Allowance(picodollars=options.budget, tokens=options.budget_tokens)
