"""Defines and checks the OpenTelemetry settings of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redline.calls import is_http_url
from redline.errors import ConfigError
from redline.job.settings.api_key import key_in

_LEAST_EVERY_S, _MOST_EVERY_S = 1.0, 3_600.0
_LONGEST_NAME = 255
_URL_HINT = 'for example endpoint = "http://127.0.0.1:4318"'


class OtelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where telemetry is sent, and what it contains.

    endpoint: base URL of an OTLP/HTTP receiver; if empty, the program's OpenTelemetry providers or,
    without them, the OTEL_ variables apply. headers: sent with each export, and never printed.
    headers_env: the names of the variables that hold headers' values, by header. service_name: if
    empty, the name in the environment, otherwise `redline`. sample: the share of the calls that get
    a span, 0 to 1. every_s: seconds between two exports of metrics, 1 to 3,600. Raises ConfigError
    for an invalid endpoint, service_name or every_s; `parse_otel` checks the other values.
    """

    endpoint: str = ""
    headers: Mapping[str, str] = {}
    headers_env: Mapping[str, str] = {}
    service_name: str = ""
    sample: float = 0.01
    every_s: float = 10.0

    def __post_init__(self) -> None:
        if self.endpoint:
            _check_endpoint(self.endpoint)
        if len(self.service_name) > _LONGEST_NAME or not self.service_name.isprintable():
            raise ConfigError(
                f"service_name must be a string of at most {_LONGEST_NAME} printable characters",
                hint='for example service_name = "labels"',
            )
        if not _LEAST_EVERY_S <= self.every_s <= _MOST_EVERY_S:
            raise ConfigError(
                f"every_s must be {_LEAST_EVERY_S:g} to {_MOST_EVERY_S:,.0f} seconds, not "
                f"{self.every_s:g}",
                hint="for example every_s = 10",
            )

    def __repr__(self) -> str:
        return f"OtelSettings({self.endpoint})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Returns the fields that rich prints, also in tracebacks: without the headers."""
        return [("endpoint", self.endpoint)]


def with_secrets(settings: OtelSettings, environ: Mapping[str, str]) -> OtelSettings:
    """Returns the settings with the variables of `headers_env` read and added to `headers`.

    Raises ConfigError for a variable that is empty, not set, or has a value no header can carry.
    """
    found = {}
    for name, variable in settings.headers_env.items():
        try:
            value = key_in(variable, "headers_env", environ, ", or write it into a .env file")
        except ConfigError as error:
            error.where = "[otel]"
            raise
        if not fits_header(value):
            raise ConfigError(
                f"{variable} contains characters that are not allowed in a header",
                where="[otel], headers_env",
                hint="check for a line break around it",
            )
        found[name] = value
    headers = {**settings.headers, **found}
    return msgspec.structs.replace(settings, headers=headers, headers_env={})


def _check_endpoint(url: str) -> None:
    if not is_http_url(url):
        raise ConfigError("endpoint is not an http:// or https:// URL", hint=_URL_HINT)
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(
            "endpoint must not contain a user name or password",
            hint='pass it as a header: headers_env = { authorization = "NAME_OF_A_VARIABLE" }',
        )
    if parts.query or parts.fragment:
        raise ConfigError("endpoint must not have a query or fragment", hint=_URL_HINT)
    if parts.path.rstrip("/").endswith(("/v1/traces", "/v1/metrics", "/v1/logs")):
        raise ConfigError(
            "endpoint must not end in the path of a signal, such as /v1/traces", hint=_URL_HINT
        )


def fits_header(value: str) -> bool:
    """Whether a header can carry this value, that is, whether it is printable ASCII."""
    return value.isascii() and value.isprintable()
