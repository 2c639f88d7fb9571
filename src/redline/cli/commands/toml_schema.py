"""Builds the JSON Schema of redline.toml, for editors that complete and check the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from redline.calls.cost import PRICE_KEYS
from redline.cli.session import ENDPOINT_KEYS, RUN_KEYS
from redline.job.settings import FLAGS, OF_ENDPOINT, Kind, Option, kinds_of
from redline.serve.batches import BATCH_OPTIONS
from redline.serve.gateway import CLASS_OPTIONS
from redline.serve.keys import TENANT_OPTIONS

_SCALAR = {"type": ["string", "number"]}
_TYPES: dict[Kind, dict[str, Any]] = {
    Kind.TEXT: _SCALAR,
    Kind.FLAG: {"type": "boolean"},
    Kind.LIST: {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]},
    Kind.PAGE: {"type": ["boolean", "string"]},
    Kind.TABLE: {"type": "object", "additionalProperties": _SCALAR},
}


def toml_schema(of_serve: Iterable[Option]) -> dict[str, Any]:
    """Returns the schema of the whole file. of_serve: the settings of [serve]."""
    prices = _tables(_table(dict.fromkeys(PRICE_KEYS, Kind.TEXT)))
    endpoint = _table(ENDPOINT_KEYS, OF_ENDPOINT.values())
    endpoint["properties"]["prices"] = prices
    options = list(of_serve)
    serve = _table(kinds_of(options), options)
    serve["properties"]["classes"] = _tables(_table(kinds_of(CLASS_OPTIONS)))
    serve["properties"]["batches"] = _table(kinds_of(BATCH_OPTIONS))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "redline.toml",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "run": _table(RUN_KEYS, FLAGS.values()),
            "endpoints": _tables({**endpoint, "required": ["base_url"]}),
            "prices": prices,
            "serve": serve,
            "tenants": _tables(_table(kinds_of(TENANT_OPTIONS))),
            "alerts": {"type": "object"},
            "otel": {"type": "object"},
        },
    }


def _tables(each: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a table whose keys are arbitrary and whose values match `each`."""
    return {"type": "object", "additionalProperties": each}


def _table(kinds: Mapping[str, Kind], described: Iterable[Option] = ()) -> dict[str, Any]:
    """Returns the schema of a table with these keys, each also spelled with dashes."""
    about = {option.key: option.help for option in described if option.help}
    properties = dict[str, Any]()
    for key, kind in kinds.items():
        properties[key] = dict(_TYPES[kind])
        if key in about:
            properties[key]["description"] = about[key]
        if "_" in key:
            properties[key.replace("_", "-")] = _TYPES[kind]
    return {"type": "object", "properties": properties, "additionalProperties": False}
