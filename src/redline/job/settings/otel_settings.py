"""What a job sends to OpenTelemetry, as redline.toml and Python state it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redline.calls import is_http_url
from redline.errors import ConfigError
from redline.job.settings.option_hints import meant

_KEYS = ("endpoint", "headers", "headers_env", "service_name", "sample", "every_s")
_LEAST_EVERY_S, _MOST_EVERY_S = 1.0, 3_600.0
_LONGEST_NAME = 255
_URL_HINT = 'write it like endpoint = "http://127.0.0.1:4318"'


class OtelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """endpoint: base URL of an OTLP/HTTP receiver; if empty, the SDK's variables name it.

    headers: sent with each request, never printed. headers_env: names of variables that hold the
    value of a header, by the header's name. service_name: if empty, that of the environment, or
    `redline`. sample: share of the calls that get a span, 0 to 1. every_s: seconds between two
    exports of metrics.
    """

    endpoint: str = ""
    headers: Mapping[str, str] = {}
    headers_env: Mapping[str, str] = {}
    service_name: str = ""
    sample: float = 0.01
    every_s: float = 10.0

    def __repr__(self) -> str:
        return f"OtelSettings({self.endpoint})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What rich prints of it, in tracebacks too: msgspec's own form would show the headers."""
        return [("endpoint", self.endpoint)]


def parse_otel(table: Mapping[str, Any], where: str) -> OtelSettings:
    """The settings that the table states.

    where: how an error names the table. Raises ConfigError for an unknown key and for a value that
    is none.
    """
    for key in table:
        if key not in _KEYS:
            hint = meant(key, _KEYS) or f"known are: {', '.join(_KEYS)}"
            raise ConfigError(f"unknown setting: {key}", where=where, hint=hint)
    return OtelSettings(
        endpoint=_endpoint(table.get("endpoint", ""), where),
        headers=_texts(table.get("headers", {}), f"{where}, headers"),
        headers_env=_texts(table.get("headers_env", {}), f"{where}, headers_env"),
        service_name=_service_name(table.get("service_name", ""), where),
        sample=_sample(table.get("sample", OtelSettings().sample), where),
        every_s=_every_s(table.get("every_s", OtelSettings().every_s), where),
    )


def with_secrets(settings: OtelSettings, environ: Mapping[str, str]) -> OtelSettings:
    """The settings with the values of headers that variables hold.

    Raises ConfigError for a variable that is not set, or holds what no header can carry.
    """
    found = {}
    for name, variable in settings.headers_env.items():
        value = environ.get(variable)
        if not value:
            raise ConfigError(
                f"headers_env names {variable}, which is not set",
                where="[otel]",
                hint=f"export {variable}=..., or write it into a .env file",
            )
        if not _fits_header(value):
            raise ConfigError(
                f"{variable} holds characters that no header can carry",
                where="[otel], headers_env",
                hint="look for a line break around it",
            )
        found[name] = value
    headers = {**settings.headers, **found}
    return msgspec.structs.replace(settings, headers=headers, headers_env={})


def _endpoint(stated: object, where: str) -> str:
    if stated == "":
        return ""
    if not (isinstance(stated, str) and is_http_url(stated)):
        raise ConfigError("endpoint is not an http:// or https:// URL", where=where, hint=_URL_HINT)
    parts = urlsplit(stated)
    if "@" in parts.netloc:
        raise ConfigError(
            "endpoint holds no user name or password",
            where=where,
            hint='pass it as a header: headers_env = { authorization = "NAME_OF_A_VARIABLE" }',
        )
    if parts.query or parts.fragment:
        raise ConfigError("endpoint has no query or fragment", where=where, hint=_URL_HINT)
    if parts.path.rstrip("/").endswith(("/v1/traces", "/v1/metrics", "/v1/logs")):
        raise ConfigError(
            "endpoint is a base URL, without the path of one signal",
            where=where,
            hint=_URL_HINT,
        )
    return stated.rstrip("/")


def _texts(stated: object, where: str) -> dict[str, str]:
    """Texts by the names of headers. No value is shown: it may be a secret."""
    if not isinstance(stated, Mapping):
        raise ConfigError(
            "it must be a table of texts", where=where, hint='write it like { api-key = "..." }'
        )
    for name, value in stated.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise ConfigError("names and values of headers must be texts", where=where)
        is_token = bool(name) and name.isascii() and name.isprintable()
        if not is_token or set(name) & set(' :"(),/;<=>?@[\\]{}'):
            raise ConfigError(f"not a header: {name!r}", where=where)
        if not value or not _fits_header(value):
            raise ConfigError(
                f"the value of {name} is empty, or holds characters that no header can carry",
                where=where,
            )
    return dict(stated)


def _fits_header(value: str) -> bool:
    return value.isascii() and value.isprintable()


def _service_name(stated: object, where: str) -> str:
    if not isinstance(stated, str) or len(stated) > _LONGEST_NAME or not stated.isprintable():
        raise ConfigError(
            f"service_name is not a text of at most {_LONGEST_NAME} characters",
            where=where,
            hint='write it like service_name = "labels"',
        )
    return stated


def _sample(stated: object, where: str) -> float:
    text = str(stated).strip()
    is_percent = text.endswith("%")
    try:
        share = float(text.removesuffix("%")) / (100 if is_percent else 1)
    except ValueError:
        share = math.nan
    if isinstance(stated, bool) or not 0 <= share <= 1:
        raise ConfigError(
            f"sample is not a share of the calls, 0 to 1: {stated}",
            where=where,
            hint='write it like sample = 0.01, or "1%"',
        )
    return share


def _every_s(stated: object, where: str) -> float:
    is_number = isinstance(stated, (int, float)) and not isinstance(stated, bool)
    if not is_number or not _LEAST_EVERY_S <= float(str(stated)) <= _MOST_EVERY_S:
        raise ConfigError(
            f"every_s is not a number of seconds from {_LEAST_EVERY_S:g} to {_MOST_EVERY_S:,.0f}: "
            f"{stated}",
            where=where,
            hint="write it like every_s = 10",
        )
    return float(str(stated))
