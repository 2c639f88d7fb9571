"""What a tag may look like: a JSON Schema, lists of labels, or a pydantic model.

What the user gives              means
["a", "b"]                       {"label": one of these}
{"label": ["a", "b"],            an object with these fields, each one of its labels
 "urgency": ["low", "high"]}
{"type": "object", ...}          a JSON Schema as it is
package.module:Model             a pydantic model, which validates with its own rules as well
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from redline.errors import ConfigError

LABEL = "label"
_SCHEMA_WORDS = (
    "type",
    "properties",
    "$ref",
    "anyOf",
    "oneOf",
    "allOf",
    "enum",
    "$defs",
    "$schema",
)
_MOST_ERRORS = 5
_MISSING = "a schema needs the package jsonschema"
_INSTALL = "pip install 'redline[schema]'"


class Schema:
    """json_schema: to be sent and shown. name: of the response format."""

    def __init__(
        self, json_schema: dict[str, Any], *, name: str = "tag", model: Any = None
    ) -> None:
        self.json_schema = json_schema
        self.name = name
        self._model = model
        self._validator = _validator(json_schema)

    @property
    def labels(self) -> dict[str, list[str]]:
        """The fields of the tag that take one of a list of labels, and these."""
        found = {}
        for name, part in self.json_schema.get("properties", {}).items():
            values = part.get("enum") if isinstance(part, Mapping) else None
            if values and all(isinstance(value, str) for value in values):
                found[name] = list(values)
        return found

    def tidied(self, value: Any) -> Any:
        """The value with labels as the schema writes them, where only case or ends differ."""
        if not isinstance(value, dict):
            # The one field of a list of labels is often answered without its name.
            if isinstance(value, str) and list(self.labels) == [LABEL]:
                return self.tidied({LABEL: value})
            return value
        tidy = dict(value)
        for name, labels in self.labels.items():
            said = value.get(name)
            if isinstance(said, str) and said not in labels:
                known = {label.casefold(): label for label in labels}
                tidy[name] = known.get(said.strip().casefold(), said)
        return tidy

    def problems(self, value: Any) -> list[str]:
        """What is wrong with the value, in words for a model; none where it is valid."""
        errors = sorted(self._validator.iter_errors(value), key=lambda error: list(error.path))
        found = [_words(error) for error in errors[:_MOST_ERRORS]]
        if not found and self._model is not None:
            found = _model_problems(self._model, value)
        return found


def load(given: str) -> Schema:
    """The schema of a file, or of a pydantic model named package.module:Model. Raises ConfigError."""
    module, colon, name = given.partition(":")
    if colon and not Path(given).exists() and all(p.isidentifier() for p in module.split(".")):
        return _of_model(module, name, given)
    path = Path(given)
    try:
        value = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"the schema {path} does not exist", hint="a JSON file, or package.module:Model"
        ) from error
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read the schema: {error}", where=str(path)) from error
    return Schema(_as_json_schema(value, str(path)))


def _as_json_schema(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, list):
        return _fields({LABEL: value}, where)
    if isinstance(value, dict) and value and not any(word in value for word in _SCHEMA_WORDS):
        return _fields(value, where)
    if not isinstance(value, dict) or not value:
        raise ConfigError("a schema is an object or a list of labels", where=where)
    return value


def _fields(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An object with these fields, each one of its labels."""
    for name, labels in fields.items():
        is_list = isinstance(labels, list) and labels and all(isinstance(a, str) for a in labels)
        if not is_list or len(set(labels)) != len(labels):
            raise ConfigError(
                f"the labels of {name} must be a list of different texts",
                where=where,
                hint='{"urgency": ["low", "high"]}, or a whole JSON Schema with "type": "object"',
            )
    return {
        "type": "object",
        "properties": {name: {"type": "string", "enum": labels} for name, labels in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def _of_model(module: str, name: str, given: str) -> Schema:
    # The user's own module lies where the command is given.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        model = getattr(importlib.import_module(module), name)
        schema = model.model_json_schema()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{given} is no pydantic model: {error}", hint="package.module:Model"
        ) from error
    return Schema(schema, name=name, model=model)


def _validator(json_schema: dict[str, Any]) -> Any:
    try:
        import jsonschema
    except ImportError as error:
        raise ConfigError(_MISSING, hint=_INSTALL) from error
    kind = jsonschema.validators.validator_for(json_schema, jsonschema.Draft202012Validator)
    try:
        kind.check_schema(json_schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"not a JSON Schema: {error.message}") from error
    return kind(json_schema, format_checker=kind.FORMAT_CHECKER)


def _words(error: Any) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "enum":
        allowed = ", ".join(
            json.dumps(value, ensure_ascii=False) for value in error.validator_value
        )
        said = json.dumps(error.instance, ensure_ascii=False)
        return f"{place or 'the value'} is {said}, which is not one of {allowed}"
    return f"{place}: {error.message}" if place else str(error.message)


def _model_problems(model: Any, value: Any) -> list[str]:
    try:
        model.model_validate(value)
    except ValueError as error:
        # pydantic's ValidationError; a validator of the user's own may raise any other ValueError.
        details = error.errors() if hasattr(error, "errors") else [{"loc": (), "msg": str(error)}]
        return [
            f"{'.'.join(map(str, one['loc'])) or 'the value'}: {one['msg']}"
            for one in details[:_MOST_ERRORS]
        ]
    return []
