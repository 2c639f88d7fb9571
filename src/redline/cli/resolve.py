"""Flags and settings become one job; nothing below sees either."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redline.calls import Endpoint, RetryPolicy, Timeouts
from redline.cli.configuration import Configuration
from redline.errors import ConfigError, nearest
from redline.limits import Limits, Rate, parse_count, parse_rate
from redline.run.options import OPENAI, SIM
from redline.run.settings import Job, Output, Prompting
from redline.run.source import open_source

_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 1e-3, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_KEY_VARIABLE = "OPENAI_API_KEY"


def make_job(given: Mapping[str, Any], configuration: Configuration) -> Job:
    """The job of `redline run`.

    given: flags by name, those of redline.toml's [run] below those of the command line.
    Raises ConfigError that names the flag.
    """
    flags = {name: value for name, value in given.items() if value not in (None, (), [])}
    prompting = _prompting(flags, configuration)
    # A wrong path is a commoner mistake than a missing key, so it is told first.
    open_source(flags["rows"]).close()
    endpoint, is_simulated = _endpoint(flags, configuration)
    output = flags.get("output")
    return Job(
        rows=flags["rows"],
        endpoint=endpoint,
        is_simulated=is_simulated,
        prompting=prompting,
        output=_output(output, flags) if output is not None else None,
        retry=RetryPolicy(max_retries=_whole(flags.get("max_retries", 8), "--max-retries")),
        row_deadline_s=_optional_duration(flags, "row_deadline"),
        deadline_s=_optional_duration(flags, "deadline"),
        limit=_optional_whole(flags, "limit"),
        fail_on=tuple(_words(flags.get("fail_on", ()))),
        strict=bool(flags.get("strict")),
        retry_failed=bool(flags.get("retry_failed")),
        restart=bool(flags.get("restart")),
        force=bool(flags.get("force")),
    )


def parse_duration(text: object, flag: str) -> float:
    """Seconds from `30`, `1.5s`, `500ms`, `5m`, `6h` or `2d`. Raises ConfigError."""
    match = _DURATION.fullmatch(str(text).strip())
    if match is None:
        raise ConfigError(
            f"{flag} is not a duration: {text}", hint="write it like 30, 500ms, 5m or 6h"
        )
    return float(match[1]) * _SECONDS[match[2]]


def _prompting(flags: Mapping[str, Any], configuration: Configuration) -> Prompting:
    named = configuration.endpoints.get(str(flags.get("endpoint")), {})
    params = dict(flags.get("params") or {})
    params.update(_param(text) for text in _words(flags.get("param", ()), split=False))
    for name in ("temperature", "max_tokens"):
        if name in flags:
            params[name] = flags[name]
    return Prompting(
        prompt=_text(flags.get("prompt"), "--prompt"),
        system=_text(flags.get("system"), "--system"),
        body=_text(flags.get("body"), "--body"),
        url=flags.get("url"),
        method=flags.get("method", "POST"),
        model=flags.get("model") or named.get("model"),
        params=params,
        output_path=flags.get("output_path"),
    )


def _text(value: str | None, flag: str) -> str | None:
    """The text itself, or of the file that `@FILE` names."""
    if value is None or not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{flag} cannot read {value[1:]}: {reason}") from error


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--param is not NAME=VALUE: {text}", hint="write it like seed=7")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def _output(path: str, flags: Mapping[str, Any]) -> Output:
    if Path(path).is_dir():
        raise ConfigError(f"the output {path} is a folder", hint=f"name a file: {path}/out.jsonl")
    return Output(
        path=Path(path),
        format=flags.get("format", "redline"),
        ordered=bool(flags.get("ordered")),
        keep_input=bool(flags.get("keep_input")),
        raw=bool(flags.get("raw")),
    )


def _endpoint(flags: Mapping[str, Any], configuration: Configuration) -> tuple[Endpoint, bool]:
    """The endpoint, and whether it is the embedded simulated one."""
    name, base_url = flags.get("endpoint"), flags.get("base_url")
    if name is not None and base_url is not None:
        raise ConfigError("--endpoint and --base-url exclude each other", hint="leave one out")
    named: dict[str, Any] = {}
    if name == SIM:
        # The embedded server's own address takes this one's place when it has started.
        base_url = "http://127.0.0.1/v1"
    elif name is not None and urlsplit(name).scheme in ("http", "https"):
        base_url, name = name, None
    elif name is not None:
        named = _named(name, configuration)
        base_url = named["base_url"]
    merged = {**named, **flags}
    base_url = base_url or configuration.environ.get("OPENAI_BASE_URL") or OPENAI
    limits, timeouts = _limits(merged), _timeouts(merged)
    endpoint = Endpoint(
        base_url=base_url,
        name=name or "",
        api_key=_api_key(merged, configuration.environ, base_url, is_sim=name == SIM),
        limits=limits,
        timeouts=timeouts,
        headers=_headers(merged.get("headers"), merged.get("header", ())),
        proxy=merged.get("proxy"),
    )
    return endpoint, name == SIM


def _named(name: str, configuration: Configuration) -> dict[str, Any]:
    if name not in configuration.endpoints:
        known = (*configuration.endpoints, SIM)
        raise ConfigError(
            f"unknown endpoint: {name}",
            hint=nearest(name, known) or "name one of redline.toml's, a URL, or sim",
        )
    return configuration.endpoints[name]


def _api_key(
    merged: Mapping[str, Any], environ: Mapping[str, str], base_url: str, *, is_sim: bool
) -> str | None:
    variable = merged.get("api_key_env")
    if variable is not None:
        if not environ.get(variable):
            raise ConfigError(
                f"--api-key-env names {variable}, which is not set",
                hint=f"export {variable}=..., or write it into a .env file",
            )
        return environ[variable]
    key = environ.get(_KEY_VARIABLE) or None
    if key is None and base_url == OPENAI and not is_sim:
        raise ConfigError(
            f"there is no API key for {OPENAI}",
            hint=f"set {_KEY_VARIABLE}, name another variable with --api-key-env, or say which "
            "server to use with --base-url (or --endpoint sim to try things out)",
        )
    return None if is_sim else key


def _limits(merged: Mapping[str, Any]) -> Limits:
    requests = [parse_rate(str(text), "--requests") for text in _listed(merged.get("requests"))]
    tokens = [parse_rate(str(text), "--tokens") for text in _listed(merged.get("tokens"))]
    if "rps" in merged:
        requests.append(_per(merged["rps"], "--rps", 1.0))
    if "rpm" in merged:
        requests.append(_per(merged["rpm"], "--rpm", 60.0))
    if "tpm" in merged:
        tokens.append(_per(merged["tpm"], "--tpm", 60.0))
    return Limits(
        requests=tuple(requests),
        tokens=tuple(tokens),
        concurrency=_optional_whole(merged, "concurrency"),
        profile=merged.get("profile", "any"),
        headroom=_share(merged.get("headroom", 1.0)),
    )


def _per(value: object, flag: str, window_s: float) -> Rate:
    """The rate of a short form; below one per window, the window grows: 0.5 per second is 1/2s."""
    text = str(value)
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if 0 < number < 1:
        return Rate(1, window_s / number)
    return Rate(parse_count(text, flag), window_s)


def _timeouts(merged: Mapping[str, Any]) -> Timeouts:
    attempt_s = parse_duration(merged.get("timeout", 600), "--timeout")
    connect_s = parse_duration(merged.get("connect_timeout", 10), "--connect-timeout")
    first_s = parse_duration(merged.get("first_byte_timeout", attempt_s), "--first-byte-timeout")
    for flag, value in (("--timeout", attempt_s), ("--connect-timeout", connect_s)):
        if value <= 0:
            raise ConfigError(f"{flag} must be above 0 s, not {value:g}")
    return Timeouts(connect_s=connect_s, first_byte_s=min(first_s, attempt_s), attempt_s=attempt_s)


def _headers(table: Mapping[str, str] | None, lines: object) -> dict[str, str]:
    headers = dict(table or {})
    for line in _words(lines, split=False):
        name, colon, value = line.partition(":")
        if not colon:
            raise ConfigError(f"--header is not NAME: VALUE: {line}")
        headers[name.strip()] = value.strip()
    return headers


def _words(value: object, *, split: bool = True) -> list[str]:
    """The words of a repeatable flag or a list in a settings file, commas dividing them."""
    texts = [str(item) for item in _listed(value)]
    if not split:
        return texts
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def _listed(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _optional_whole(flags: Mapping[str, Any], name: str) -> int | None:
    return _whole(flags[name], f"--{name}") if name in flags else None


def _whole(value: object, flag: str) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ConfigError(f"{flag} is not a whole number: {value}") from None


def _share(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ConfigError(f"--headroom is not a number: {value}") from None


def _optional_duration(flags: Mapping[str, Any], name: str) -> float | None:
    flag = f"--{name.replace('_', '-')}"
    return parse_duration(flags[name], flag) if name in flags else None
