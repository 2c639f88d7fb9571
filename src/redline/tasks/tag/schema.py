"""Loads the schema of tags from a JSON Schema, lists of labels, or a pydantic model.

| what the user gives                                      | a tag is                           |
|----------------------------------------------------------|------------------------------------|
| `["a", "b"]`                                             | an object with a listed `label`    |
| `{"label": ["a", "b"], "urgency": ["low", "high"]}`      | an object with listed values       |
| `{"type": "object", "properties": ...}`, any JSON Schema | any value that is valid under it   |
| `package.module:Model`, a pydantic model                 | the JSON of such a model           |
"""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from redline.errors import ConfigError
from redline.process import clipped
from redline.sources import extra, sort_sets
from redline.tasks.answers import spoken

LABEL = "label"
_NEEDED_FOR = "tagging by a schema"
_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
_WORDS = ("type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "$defs")
# More problems of the same answer add little, and each of them lengthens the next prompt.
_MOST_PROBLEMS = 5
_MOST_LISTED = 20
_LONGEST_PROBLEM = 500
# A reference may lead to another one; a longer chain counts as an empty schema.
_MOST_REFERENCES = 32
# The depth to which nested choices are searched for labels.
_MOST_NESTED = 4
# An index in a JSON Pointer: neither a sign nor leading zeros (RFC 6901, section 4).
_INDEX = re.compile("0|[1-9][0-9]{0,8}")
# Characters that may surround a label in an answer of plain text.
_AROUND = " \t\r\n\"'`*."


class Schema:
    """The schema of a tag.

    json_schema: the JSON Schema that is sent and shown. name: the name of the response format.

    fields: the names of a tag's fields in the results. labels: the allowed texts of each field that
    is limited to a list of texts. kind: `object`, `array`, or None if the schema leaves it open.
    Raises ConfigError if the JSON Schema is not valid or refers to another document.
    """

    def __init__(
        self, json_schema: dict[str, Any], *, name: str = "tag", model: Any = None
    ) -> None:
        self.json_schema = json_schema
        # OpenAI accepts these characters in the name of a response format, at most 64 of them.
        self.name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "tag"
        self._model = model
        self._validator = _validator(json_schema) if model is None else None
        root = self._followed(json_schema)
        self._parts: Mapping[str, Any] = root.get("properties") or {}
        self.kind = _kind(root)
        self.fields = tuple(self._parts)
        self.labels = {
            name: labels for name, part in self._parts.items() if (labels := self._labels(part))
        }

    def checked(self, value: Any) -> tuple[Any, list[str]]:
        """Returns the value to keep and its errors, at most six; a valid value has none.

        A label that differs only in case and white space gets the schema's spelling. With a
        pydantic model, its own dump is kept. A value that no results file can hold, such as half of
        a surrogate pair or a model's `nan`, is an error.
        """
        value = self._tidied(self.json_schema, value)
        if self._model is not None:
            value, problems = _by_model(self._model, value)
        else:
            problems = self._problems(value)
        try:
            msgspec.json.encode(value)
            json.dumps(value, allow_nan=False)  # the line above writes null for it
        except (OverflowError, ValueError) as error:
            problems.append(f"a value in it cannot be stored: {error}")
        return value, problems

    def _problems(self, value: Any) -> list[str]:
        assert self._validator is not None
        try:
            errors = islice(self._validator.iter_errors(value), _MOST_PROBLEMS)
            return list(map(_words, errors))
        except (RecursionError, ArithmeticError) as error:
            # Such as a deeply nested value in a recursive schema, or a number larger than a float.
            return [_short(f"it cannot be checked: {error}")]

    def bare(self, text: str) -> dict[str, str] | None:
        """Returns the tag if an answer is only a label and tags have one field; otherwise None."""
        if len(self._parts) != 1:
            return None
        ((name, part),) = self._parts.items()
        labels = self._labels(part)
        said = spoken(text).strip()
        for text in (said, said.strip(_AROUND)):
            label = _nearest(text, labels)
            if label in labels:
                return {name: label}
        return None

    def _tidied(self, part: Any, value: Any) -> Any:
        if not isinstance(value, (str, list, dict)) or not isinstance(part, Mapping):
            return value
        part = self._followed(part)
        if isinstance(value, str):
            return _nearest(value, self._labels(part))
        part = self._only_choice(part)
        if isinstance(value, list):
            first = part.get("prefixItems")
            inner = chain(first if isinstance(first, list) else [], repeat(part.get("items")))
            return list(map(self._tidied, inner, value))
        parts, others = part.get("properties"), part.get("additionalProperties")
        parts = parts if isinstance(parts, Mapping) else {}
        return {name: self._tidied(parts.get(name, others), item) for name, item in value.items()}

    def _only_choice(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns a part's only choice besides null; the part itself if it has several or none."""
        for _ in range(_MOST_NESTED):
            choices = part.get("anyOf") or part.get("oneOf")
            found = map(self._followed, choices if isinstance(choices, list) else [])
            others = [choice for choice in found if choice.get("type") != "null"]
            if len(others) != 1 or "properties" in part:
                break
            part = others[0]
        return part

    def _followed(self, part: Any) -> Mapping[str, Any]:
        """Returns the schema that a part refers to, or the part; `{}` if it is not an object."""
        for _ in range(_MOST_REFERENCES):
            if not isinstance(part, Mapping):
                break
            only = part.get("allOf")
            if isinstance(part.get("$ref"), str):
                part = _pointed(self.json_schema, part["$ref"])
            elif isinstance(only, list) and len(only) == 1 and "properties" not in part:
                part = only[0]
            else:
                return part
        return {}

    def _labels(self, part: Any, depth: int = 0) -> list[str]:
        """Returns the texts that a part accepts; empty if it accepts more than texts and null."""
        part = self._followed(part)
        values = [part["const"]] if "const" in part else part.get("enum")
        if isinstance(values, list):
            texts = [value for value in values if isinstance(value, str)]
            return texts if all(isinstance(value, str | None) for value in values) else []
        choices = part.get("anyOf") or part.get("oneOf") or []
        found: list[str] = []
        for choice in choices if isinstance(choices, list) else []:
            choice = self._followed(choice)
            labels = self._labels(choice, depth + 1) if depth < _MOST_NESTED else []
            if not labels and choice.get("type") != "null":
                return []
            found += labels
        return found


def load(given: str) -> Schema:
    """Loads a schema from a file or from package.module:Model, a pydantic model.

    Raises ConfigError if it cannot be read or is not valid.
    """
    module, colon, name = given.rpartition(":")
    is_model = colon and name.isidentifier() and all(map(str.isidentifier, module.split(".")))
    if is_model and not Path(given).exists():
        return _of_model(module, name, given)
    path = Path(given)
    try:
        value = msgspec.json.decode(path.read_bytes().removeprefix(BOM_UTF8))
    except FileNotFoundError as error:
        raise ConfigError(
            f"the schema {path} does not exist", hint="give a JSON file, or package.module:Model"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read the schema {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the schema is not JSON: {error}", where=str(path)) from error
    try:
        return Schema(as_json_schema(value))
    except ConfigError as error:
        error.where = error.where or str(path)
        raise


def as_json_schema(value: Any) -> dict[str, Any]:
    """Converts the content of a schema file to a JSON Schema.

    Raises ConfigError if it is neither lists of labels nor a schema, or if the schema states that
    its value is neither an object nor an array.
    """
    if isinstance(value, list):
        return _of_lists({LABEL: value})
    if not isinstance(value, dict) or not value:
        raise ConfigError(
            "a schema is a JSON Schema, or lists of labels", hint='for example ["bug", "question"]'
        )
    if _holds_lists_alone(value) or not any(word in value for word in _WORDS):
        return _of_lists(value)
    kind = value.get("type")
    is_told = "enum" in value or "const" in value or (isinstance(kind, str) and kind in _TYPES)
    if is_told and kind not in ("object", "array"):
        raise ConfigError(
            "a tag is an object or an array, but the schema describes a single value",
            hint='give the value a name: {"label": ["bug", "question"]}',
        )
    return value


def _holds_lists_alone(value: Mapping[str, Any]) -> bool:
    """Returns whether every value is a list of texts and the object is not a JSON Schema."""
    kinds = value.get("type")
    is_type = isinstance(kinds, list) and _TYPES.issuperset(map(str, kinds))
    return "enum" not in value and not is_type and all(map(_are_labels, value.values()))


def _are_labels(labels: Any) -> bool:
    return isinstance(labels, list) and set(map(type, labels)) == {str}


def _of_lists(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of an object whose fields each take one of their labels."""
    for name, labels in fields.items():
        if not _are_labels(labels) or len(set(labels)) != len(labels):
            raise ConfigError(
                f"the labels of {name} must be a list of distinct strings",
                hint='for example {"urgency": ["low", "high"]}; a JSON Schema has a "type"',
            )
    return {
        "type": "object",
        "properties": {name: {"type": "string", "enum": labels} for name, labels in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def _of_model(module: str, name: str, given: str) -> Schema:
    """Returns the schema of a user's pydantic model. Raises ConfigError if it is not one."""
    # The module may be in the working directory, which is not on the command's import path.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        model = getattr(importlib.import_module(module), name)
        schema = model.model_json_schema()
        dumped = model.model_json_schema(mode="serialization")
    except Exception as error:
        # A module may raise any error while it is imported, and the user has to fix it.
        if isinstance(error, ModuleNotFoundError) and error.name == "pydantic":
            extra("pydantic", "schema", given)
        raise ConfigError(
            f"{given} cannot be loaded as a model: {type(error).__name__}: {error}",
            hint="give a class derived from pydantic.BaseModel, as package.module:Model",
        ) from error
    made, kept = Schema(schema, name=name, model=model), Schema(dumped, model=model)
    # A model may read and dump a field under different aliases; the results hold the dump.
    made.fields, made.labels = kept.fields, kept.labels
    return made


def _validator(json_schema: dict[str, Any]) -> Any:
    """Returns the validator of a JSON Schema. Raises ConfigError if the schema is not valid."""
    jsonschema = extra("jsonschema", "schema", _NEEDED_FOR)
    referencing = extra("referencing", "schema", _NEEDED_FOR)
    kind = jsonschema.validators.validator_for(json_schema, jsonschema.Draft202012Validator)
    try:
        kind.check_schema(json_schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"not a JSON Schema: {_short(error.message)}") from error
    except RecursionError as error:
        raise ConfigError("the schema is nested too deeply") from error
    draft = referencing.jsonschema.specification_with(kind.ID_OF(kind.META_SCHEMA))
    resolver = referencing.Registry().resolver_with_root(draft.create_resource(json_schema))
    for reference in _references(json_schema):
        if not reference.startswith("#"):
            # Referenced documents are not fetched: a run must not depend on another server.
            raise ConfigError(
                f"the schema refers to {reference}, which is outside of it",
                hint="move it into $defs",
            )
        is_pointer = reference == "#" or reference.startswith("#/")
        is_known = (
            _pointed(json_schema, reference) is not None
            if is_pointer
            else _is_anchor(reference, resolver)
        )
        if not is_known:
            raise ConfigError(f"the schema refers to {reference}, which it does not contain")
    kind = jsonschema.validators.extend(kind, {"multipleOf": _multiple_of})
    return kind(json_schema, registry=referencing.Registry(), format_checker=kind.FORMAT_CHECKER)


def _multiple_of(validator: Any, step: float, value: Any, schema: Any) -> Iterator[Any]:
    """Checks `multipleOf` of decimals as they are written: 19.99 is a multiple of 0.01."""
    jsonschema = extra("jsonschema", "schema", _NEEDED_FOR)
    if not validator.is_type(value, "number"):
        return
    is_decimal = isinstance(step, float) and math.isfinite(value)
    if Fraction(str(value)) % Fraction(str(step)) if is_decimal else value % step:
        yield jsonschema.ValidationError(f"{value!r} is not a multiple of {step}")


def _is_anchor(reference: str, resolver: Any) -> bool:
    """Returns whether the schema has an anchor with this name, under the rules of its draft."""
    from referencing.exceptions import Unresolvable

    try:
        resolver.lookup(reference)
    except Unresolvable:
        return False
    return True


def _references(part: Any) -> Iterator[str]:
    """Yields every reference in a part of a schema."""
    if isinstance(part, dict):
        found = (part.get("$ref"), part.get("$dynamicRef"))
        yield from (reference for reference in found if isinstance(reference, str))
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from _references(inner)


def _pointed(root: Any, reference: str) -> Any:
    """Resolves a reference such as `#/$defs/Name` (RFC 6901, section 6).

    Returns None if the target does not exist, or if the reference is the name of an anchor.
    """
    pointer = unquote(reference.removeprefix("#"))
    if pointer and not pointer.startswith("/"):
        return None
    found = root
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and _INDEX.fullmatch(step) and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict):
            found = found.get(step)
        else:
            return None
    return found


def _kind(root: Mapping[str, Any]) -> Literal["object", "array"] | None:
    if root.get("type") == "object" or "properties" in root:
        return "object"
    return "array" if root.get("type") == "array" else None


def _nearest(said: str, labels: list[str]) -> str:
    """Returns the only label equal to `said` but for case and white space; otherwise `said`."""
    if said in labels:
        return said
    folded = _folded(said)
    alike = [label for label in labels if _folded(label) == folded]
    return alike[0] if len(alike) == 1 else said


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def _words(error: Any) -> str:
    """Describes an error in words for a model."""
    allowed = error.validator_value
    if error.validator != "enum" or not isinstance(allowed, list):
        return _placed(error.absolute_path, error.message)
    if len(allowed) > _MOST_LISTED:
        among = f"none of its {len(allowed)} values"
    else:
        values = (json.dumps(value, ensure_ascii=False) for value in allowed)
        among = f"not one of {', '.join(values)}"
    said = _short(json.dumps(error.instance, ensure_ascii=False))
    place = ".".join(map(str, error.absolute_path))
    return _short(f"{place or 'the value'} is {said}, which is {among}")


def _placed(path: Iterable[Any], message: str) -> str:
    place = ".".join(map(str, path))
    return _short(f"{place}: {message}" if place else message)


def _by_model(model: Any, value: Any) -> tuple[Any, list[str]]:
    try:
        # As JSON, so that dates, enums and similar types are read from their form in JSON.
        made = model.model_validate_json(json.dumps(value))
        dumped = made.model_dump(mode="json", by_alias=True)
        if isinstance(dumped, (dict, list)):
            sort_sets(made.model_dump(by_alias=True), dumped)
        return dumped, []
    except Exception as error:
        # pydantic's ValidationError, or any error of a validator that the user wrote.
        if not hasattr(error, "errors"):
            return value, [_short(f"{type(error).__name__}: {error}")]
        return value, [_placed(one["loc"], one["msg"]) for one in error.errors()[:_MOST_PROBLEMS]]


def _short(text: str) -> str:
    return clipped(text, _LONGEST_PROBLEM)
