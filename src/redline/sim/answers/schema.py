"""Makes JSON values that satisfy a simple JSON schema: the same value for the same text."""

from __future__ import annotations

import math
import re
from typing import Any
from urllib.parse import unquote
from zlib import crc32

from redline.sim.answers.bodies import BadCall

# A schema may nest, and refer to itself. Deeper than this, null and empty arrays are preferred.
_DEEP = 8
_MAX_DEPTH = 32
_MAX_VALUES = 10_000
# The most characters, in all texts together, that are added to reach minLength.
_MAX_PADDING = 10_000_000
# The most schemas that are merged into one.
_MAX_PARTS = 1_000
_COMBINING = ("$ref", "anyOf", "oneOf", "allOf")
# Of two bounds, the tighter one applies.
_BOUNDS = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
}
# An index in a JSON Pointer: neither a sign nor leading zeros.
_INDEX = re.compile("0|[1-9][0-9]{0,8}")
_TOO_LARGE = "The schema is too large or too deep to be simulated."

Schema = dict[str, Any]


def example(schema: Schema, text: str) -> Any:
    """Returns a value for the schema; the same `text` gives the same value.

    Supports type, enum, const, properties, items, minItems, maxItems, minimum, maximum, their
    exclusive forms, minLength, maxLength, anyOf, oneOf, allOf and `$ref` within the schema.
    Raises BadCall for a schema that is not valid, too large, or not satisfied by any value found.
    """
    maker = _Maker(schema, crc32(text.encode(errors="surrogatepass")))
    try:
        return maker.value(schema, "answer", 0)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        # The schema comes from the client: if a keyword has a value of the wrong type, such as a
        # list for `properties`, using it may raise any of these errors.
        raise BadCall(f"The schema is not a valid JSON schema: {error}") from None


class _Maker:
    """Makes the value of a schema. Raises BadCall if it is too large or nests too deeply."""

    def __init__(self, root: Schema, seed: int) -> None:
        self._root = root
        self._seed = seed
        self._values = 0
        self._padding = 0

    def value(self, schema: Any, name: str, depth: int) -> Any:
        self._values += 1
        if depth > _MAX_DEPTH or self._values > _MAX_VALUES:
            raise BadCall(_TOO_LARGE)
        if not isinstance(schema, dict):
            schema = {}
        schema = self._resolve(schema, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            if not (options := schema["enum"]):
                raise BadCall(f"The schema allows no value for {name}.")
            return options[self._pick(name) % len(options)]
        kind = _kind(schema)
        if kind == "object":
            properties = schema.get("properties") or {}
            return {key: self.value(part, key, depth + 1) for key, part in properties.items()}
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in ("integer", "number"):
            return self._number(schema, name, kind == "integer")
        if kind == "string":
            return self._string(schema, name)
        if kind == "boolean":
            return self._pick(name) % 2 == 0
        if kind == "null":
            return None
        raise BadCall(f"The schema has a type that cannot be simulated: {kind}")

    def _pick(self, name: str) -> int:
        return crc32(name.encode(errors="surrogatepass"), self._seed)

    def _resolve(self, schema: Schema, depth: int) -> Schema:
        """Merges a schema with its `$ref`, its `allOf`, and one option of `anyOf` and `oneOf`."""
        merged: Schema = {}
        waiting = [schema]
        for _ in range(_MAX_PARTS):
            if not waiting:
                return merged
            part = waiting.pop(0)
            _merge({key: part[key] for key in part if key not in _COMBINING}, into=merged)
            if "$ref" in part:
                waiting.append(self._follow(str(part["$ref"])))
            for options in (part.get("anyOf"), part.get("oneOf")):
                if options:
                    nulls = [option for option in options if option.get("type") == "null"]
                    waiting.append(nulls[0] if depth > _DEEP and nulls else options[0])
            waiting += part.get("allOf") or ()
        raise BadCall("The schema refers to itself without end.")

    def _follow(self, reference: str) -> Schema:
        """Resolves a JSON Pointer in a fragment (RFC 6901, section 6)."""
        start, *steps = unquote(reference).split("/")
        place: Any = self._root if start == "#" else None
        for step in steps:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, list) and _INDEX.fullmatch(step) and int(step) < len(place):
                place = place[int(step)]
            else:
                place = place.get(step) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise BadCall(f"The schema refers to something it does not contain: {reference}")
        return place

    def _array(self, schema: Schema, name: str, depth: int) -> list[Any]:
        least = int(schema.get("minItems") or 0)
        count = least if depth > _DEEP else max(least, 1)
        count = min(count, int(schema.get("maxItems", count)))
        return [
            self.value(schema.get("items"), f"{name} {index}" if index else name, depth + 1)
            for index in range(min(count, _MAX_VALUES + 1))
        ]

    def _number(self, schema: Schema, name: str, is_integer: bool) -> float:
        low = schema.get("minimum", -math.inf)
        high = schema.get("maximum", math.inf)
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if is_integer:
            low = max(math.ceil(low) if low > -math.inf else low, _above(above))
            high = min(math.floor(high) if high < math.inf else high, _below(below))
        else:
            low = max(low, -math.inf if above is None else above)
            high = min(high, math.inf if below is None else below)
        if math.isinf(low):
            low = 0 if high > 0 else high - 100
        if math.isinf(high):
            high = low + 100
        if low > high:
            raise BadCall(f"The schema allows no number for {name}.")
        if is_integer:
            return int(low) + self._pick(name) % (int(high) - int(low) + 1)
        return float(low) + (self._pick(name) % 999 + 1) / 1000 * (float(high) - float(low))

    def _string(self, schema: Schema, name: str) -> str:
        text = f"{name} {self._pick(name) % 1000}"
        missing = max(0, int(schema.get("minLength") or 0) - len(text))
        self._padding += missing
        if self._padding > _MAX_PADDING:
            raise BadCall(_TOO_LARGE)
        text += "." * missing
        return text[: int(schema["maxLength"])] if "maxLength" in schema else text


def _merge(part: Schema, *, into: Schema) -> None:
    """Adds the keywords of `part` to `into`, so that a value must satisfy both."""
    for key, value in part.items():
        if key not in into:
            into[key] = value
        elif key == "properties":
            both = {
                name: {"allOf": [into[key][name], value[name]]} for name in into[key].keys() & value
            }
            into[key] = {**into[key], **value, **both}
        elif key == "items":
            into[key] = {"allOf": [into[key], value]}
        elif key in _BOUNDS:
            into[key] = _BOUNDS[key](into[key], value)
        elif key == "enum":
            into[key] = [option for option in into[key] if option in value]


def _above(value: float | None) -> float:
    return -math.inf if value is None else math.floor(value) + 1


def _below(value: float | None) -> float:
    return math.inf if value is None else math.ceil(value) - 1


def _kind(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind is None:
        kind = "object" if "properties" in schema else "string"
    return str(kind)
