"""Reads OpenTelemetry settings from redline.toml, or from the argument `otel` in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from redline.errors import ConfigError
from redline.job.settings.otel_settings import OtelSettings, fits_header
from redline.job.settings.tables import struct_in
from redline.job.settings.values import as_share


def parse_otel(table: Mapping[str, Any], where: str) -> OtelSettings:
    """Returns the settings in the table, with defaults for the others.

    where: the table's name in errors. Raises ConfigError for an unknown key or an invalid value.
    """
    if "sample" in table:
        table = {**table, "sample": _sample(table["sample"], where)}
    settings = struct_in(table, OtelSettings, where)
    _check_headers(settings.headers, f"{where}, headers")
    _check_headers(settings.headers_env, f"{where}, headers_env")
    return msgspec.structs.replace(settings, endpoint=settings.endpoint.rstrip("/"))


def _check_headers(headers: Mapping[str, str], where: str) -> None:
    """Raises ConfigError for an invalid header. Errors do not show values: they may be secret."""
    for name, value in headers.items():
        is_token = bool(name) and name.isascii() and name.isprintable()
        if not is_token or set(name) & set(' :"(),/;<=>?@[\\]{}'):
            raise ConfigError(f"not a header: {name!r}", where=where)
        if not value or not fits_header(value):
            raise ConfigError(
                f"the value of {name} is empty, or contains characters that are not allowed in a "
                "header",
                where=where,
            )


def _sample(stated: object, where: str) -> float:
    share = as_share(stated)
    if not 0 <= share <= 1:
        raise ConfigError(
            f"sample must be a share of the calls, 0 to 1, not {stated}",
            where=where,
            hint='for example sample = 0.01, or "1%"',
        )
    return share
