"""Flags and settings become one job; nothing below sees either."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redline.calls import Endpoint, RetryPolicy, Timeouts
from redline.cli import values
from redline.cli.cache_flags import cache_of
from redline.cli.configuration import Configuration, where_endpoint, where_run
from redline.cli.values import Flags, flag_of
from redline.errors import ConfigError, nearest
from redline.limits import Limits
from redline.limits.settings import (
    AUTO,
    CHARGES,
    MAX_CONCURRENCY,
    MAX_GUARD_S,
    PROFILES,
    RATES,
)
from redline.run.default_key import KEY_VARIABLE, URL_VARIABLE, default_key
from redline.run.embedded import UNKNOWN_URL, Embedded, EmbeddedSim
from redline.run.flaws import FAIL_ON
from redline.run.object_url import local_path, url_of
from redline.run.options import OPENAI, SIM, allowance, memory_path
from redline.run.output import FORMATS, Output
from redline.run.settings import VIAS, Job, Prompting
from redline.run.source import open_source, opened
from redline.run.stream_url import stream_of

_ENGINE = "engine:"
_LONGEST_TIMEOUT_S = 86_400.0
_MOST_RETRIES = 100
# One of a pair on the command line takes the place of the other in redline.toml.
_NAME_THE_KEY = (
    f"--api-key-env NAME sends the key in NAME there, also if it is {KEY_VARIABLE}; "
    f"{KEY_VARIABLE}= before the command sends none"
)
_RIVALS = (("endpoint", "base_url"), ("body", "prompt"), ("body", "system"))
_NEED_OUTPUT = ("ordered", "retry_failed", "restart", "force")


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """job: what to run. lines: what a result line holds, also where results go to stdout."""

    job: Job
    lines: Output


class _Server(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers. origin: where its URL was stated. table: its settings in redline.toml."""

    base_url: str
    origin: str
    name: str = ""
    table: dict[str, Any] = {}

    embedded: Embedded | None = None


def resolve(
    rows: object, given: Flags, configuration: Configuration, *, is_sending: bool = True
) -> Resolved:
    """The job of `redline run`.

    given: the flags on the command line. They come before an endpoint's own settings, and these
    before redline.toml's [run]. is_sending: False for a dry run, which needs no key.
    Raises ConfigError that names the flag, and the table of redline.toml where it stands there.
    """
    stated = {name: value for name, value in given.items() if value not in (None, [], False)}
    defaults = _defaults(stated, configuration)
    # A wrong path is a commoner mistake than a missing key, so it is told first.
    found: object = rows
    follows = "follow" in stated
    if stream_of(rows) is None:
        found = rows if follows else opened(rows)
        if found is rows:
            open_source(rows, is_followed=follows).close()
    server = _server({**defaults, **stated}, configuration)
    flags = {**defaults, **server.table, **stated}
    try:
        for name in _NEED_OUTPUT:
            if name in stated and _output_place(flags) is None:
                raise ConfigError(
                    f"{flag_of(name)} needs an output file", hint="name one: -o labels.jsonl"
                )
        endpoint = _endpoint(server, flags, configuration, is_sending=is_sending)
        resolved = _resolved(found, flags, endpoint, embedded=server.embedded)
        job = msgspec.structs.replace(
            resolved.job,
            memory=memory_path(configuration.environ),
            cache=cache_of(flags, stated, configuration.environ),
            allowance=allowance(flags.get("budget"), flags.get("budget_tokens"), "--"),
            prices=configuration.prices,
        )
        return Resolved(job=job, lines=resolved.lines)
    except ConfigError as error:
        error.where = error.where or _origin(error.what, stated, server, configuration)
        raise


def _defaults(stated: Flags, configuration: Configuration) -> dict[str, Any]:
    """What [run] says, without what the command line says otherwise."""
    defaults = {name: value for name, value in configuration.run.items() if value is not False}
    for pair in _RIVALS:
        for mine, rival in (pair, pair[::-1]):
            if mine in stated:
                defaults.pop(rival, None)
    return defaults


def _origin(what: str, stated: Flags, server: _Server, configuration: Configuration) -> str:
    """The table of redline.toml that holds the flag which an error names, or nothing."""
    for word in what.split():
        name = word.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name in stated:
            continue
        if name in server.table:
            return where_endpoint(server.name)
        if name in configuration.run:
            return where_run()
    return ""


def _resolved(
    rows: object, flags: Flags, endpoint: Endpoint, *, embedded: Embedded | None
) -> Resolved:
    place = _output_place(flags)
    lines = Output.at(
        place or "-",
        format=values.choice(flags, "format", FORMATS) or "redline",
        ordered="ordered" in flags,
        keep_input="keep_input" in flags,
        raw="raw" in flags,
    )
    retries = values.whole(flags, "max_retries", 0, _MOST_RETRIES)
    job = Job(
        rows=rows,
        endpoint=endpoint,
        embedded=embedded,
        prompting=_prompting(flags, embedded.model if embedded is not None else None),
        output=lines if place is not None else None,
        retry=RetryPolicy() if retries is None else RetryPolicy(max_retries=retries),
        row_deadline_s=values.duration(flags, "row_deadline"),
        deadline_s=values.duration(flags, "deadline"),
        limit=values.whole(flags, "limit", 1),
        follow="follow" in flags,
        until_empty="until_empty" in flags,
        fail_on=tuple(values.choices(flags, "fail_on", tuple(FAIL_ON))),
        via=values.choice(flags, "via", VIAS) or "",
        strict="strict" in flags,
        retry_failed=place is not None and "retry_failed" in flags,
        restart=place is not None and "restart" in flags,
        force=place is not None and "force" in flags,
    )
    return Resolved(job=job, lines=lines)


def _prompting(flags: Flags, model: str | None) -> Prompting:
    """model: the one to ask where none is named."""
    params = values.pairs(flags, "param")
    temperature = values.number(flags, "temperature")
    max_tokens = values.whole(flags, "max_tokens", 1)
    if temperature is not None:
        params["temperature"] = temperature
    if max_tokens is not None:
        params["max_tokens"] = max_tokens
    return Prompting(
        prompt=values.text_or_file(flags, "prompt"),
        system=values.text_or_file(flags, "system"),
        body=values.text_or_file(flags, "body"),
        url=flags.get("url"),
        method=flags.get("method", "POST"),
        model=flags.get("model", model),
        params=params,
        output_path=flags.get("output_path"),
        constant_prompt="constant_prompt" in flags,
    )


def _output_place(flags: Flags) -> str | None:
    """The path or URL of the results; None for stdout."""
    text = flags.get("output", "-")
    if text == "-":
        return None
    if url_of(text) is None:
        _check_output_path(local_path(text), text)
    return str(text)


def _check_output_path(path: Path, text: str) -> None:
    """Raises ConfigError where no file can be at `path`."""
    if path.is_dir():
        raise ConfigError(
            f"the output {text} is a folder", hint=f"name a file in it: {path / 'labels.jsonl'}"
        )
    if path.exists() and not path.is_file():
        raise ConfigError(
            f"the output {text} is not a file", hint="leave out -o to have results on stdout"
        )
    if not path.parent.is_dir():
        is_file = path.parent.exists()
        raise ConfigError(
            f"{path.parent} is a file and no folder"
            if is_file
            else f"the folder {path.parent} does not exist",
            where=f"--output {text}",
            hint="choose another -o"
            if is_file
            else f"mkdir -p {path.parent}, or choose another -o",
        )


def _server(chosen: Flags, configuration: Configuration) -> _Server:
    """The one that --endpoint, --base-url or the environment names, else OpenAI."""
    name, base_url = chosen.get("endpoint"), chosen.get("base_url")
    if name is not None and base_url is not None:
        raise ConfigError("--endpoint and --base-url exclude each other", hint="leave one out")
    if (embedded := _embedded(name)) is not None:
        origin = "--endpoint"
        return _Server(base_url=UNKNOWN_URL, origin=origin, name=embedded.place, embedded=embedded)
    if name is not None and urlsplit(name).scheme in ("http", "https"):
        return _Server(base_url=name, origin="--endpoint")
    if name is not None:
        table = _named(name, configuration)
        return _Server(
            base_url=table["base_url"], origin=where_endpoint(name), name=name, table=table
        )
    if base_url is not None:
        return _Server(base_url=base_url, origin="--base-url")
    if url := configuration.environ.get(URL_VARIABLE):
        return _Server(base_url=url, origin=URL_VARIABLE)
    return _Server(base_url=OPENAI, origin="")


def _embedded(name: str | None) -> Embedded | None:
    """The server inside that --endpoint names; None where it names another one."""
    if name == SIM:
        return EmbeddedSim()
    if name is not None and name.startswith(_ENGINE):
        # Imported here: no other run pays for what serves a model.
        from redline.cli.engine_flags import settings_in
        from redline.serve.local import LocalEngine

        return LocalEngine(settings_in(name.removeprefix(_ENGINE)))
    return None


def _named(name: str, configuration: Configuration) -> dict[str, Any]:
    if name not in configuration.endpoints:
        known = (*configuration.endpoints, SIM)
        raise ConfigError(
            f"unknown endpoint: {name}",
            hint=nearest(name, known)
            or "name a URL such as http://127.0.0.1:8000/v1, one of redline.toml's, sim, or "
            "engine:MODEL",
        )
    return configuration.endpoints[name]


def _endpoint(
    server: _Server, flags: Flags, configuration: Configuration, *, is_sending: bool
) -> Endpoint:
    limits, timeouts = _limits(flags), _timeouts(flags)
    headers = {**flags.get("headers", {}), **values.headers(flags, "header")}
    key = _api_key(server, flags, configuration, headers) if is_sending else None
    try:
        return Endpoint(
            base_url=server.base_url,
            name=server.name,
            api_key=key,
            limits=limits,
            timeouts=timeouts,
            headers=headers,
            proxy=flags.get("proxy"),
        )
    except ConfigError as error:
        if "base URL" in error.what:
            error.where = server.origin
        elif "proxy" in error.what:
            error.where = "--proxy"
        raise


def _api_key(
    server: _Server, flags: Flags, configuration: Configuration, headers: Mapping[str, str]
) -> str | None:
    """The key to send, None for none. An embedded server is never shown the default one."""
    variable, environ = flags.get("api_key_env"), configuration.environ
    if variable is not None:
        if not environ.get(variable):
            raise ConfigError(
                f"--api-key-env names {variable}, which is not set",
                hint=f"export {variable}=..., or write it into a .env file",
            )
        return environ[variable]
    if server.embedded is not None:
        return None
    key = environ.get(KEY_VARIABLE) or None
    if key is None and server.base_url == OPENAI:
        raise ConfigError(
            f"there is no API key for {OPENAI}",
            hint=f"set {KEY_VARIABLE} or --api-key-env, name another server with --base-url, or "
            "try things out with --endpoint sim",
        )
    if server.origin == URL_VARIABLE and configuration.is_pair(URL_VARIABLE, KEY_VARIABLE):
        return key
    return default_key(key, server.base_url, headers, _NAME_THE_KEY)


def _limits(flags: Flags) -> Limits:
    headroom = values.number(flags, "headroom")
    if headroom is not None and not 0 < headroom <= 1:
        raise ConfigError(
            f"--headroom must be above 0 and at most 1, not {headroom:g}",
            hint="0.8 uses 80 % of each rate and leaves the rest to others",
        )
    return Limits(
        requests=(
            *values.rates(flags, "requests"),
            *values.rate_per(flags, "rps", 1.0),
            *values.rate_per(flags, "rpm", 60.0),
        ),
        tokens=(*values.rates(flags, "tokens"), *values.rate_per(flags, "tpm", 60.0)),
        input_tokens=values.rates(flags, "input_tokens"),
        output_tokens=values.rates(flags, "output_tokens"),
        concurrency=AUTO
        if flags.get("concurrency") == AUTO
        else values.whole(flags, "concurrency", 1, MAX_CONCURRENCY),
        rate=values.choice(flags, "rate", RATES) or "stated",
        profile=values.choice(flags, "profile", PROFILES) or "any",
        headroom=1.0 if headroom is None else headroom,
        guard_s=values.duration(flags, "guard", MAX_GUARD_S),
        charge=values.choice(flags, "charge", CHARGES) or AUTO,
        share=flags.get("share", ""),
    )


def _timeouts(flags: Flags) -> Timeouts:
    usual = Timeouts()
    attempt_s = values.duration(flags, "timeout", _LONGEST_TIMEOUT_S) or usual.attempt_s
    connect_s = values.duration(flags, "connect_timeout", _LONGEST_TIMEOUT_S) or usual.connect_s
    first_s = values.duration(flags, "first_byte_timeout", _LONGEST_TIMEOUT_S) or attempt_s
    return Timeouts(connect_s=connect_s, first_byte_s=min(first_s, attempt_s), attempt_s=attempt_s)
