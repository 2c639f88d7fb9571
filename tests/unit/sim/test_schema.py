"""Values that satisfy a schema."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, create_model

from redline.sim.answers import BadCall, example


class Place(BaseModel):
    city: str = Field(min_length=12, max_length=20)
    country: str | None


class Ticket(BaseModel):
    label: str = Field(json_schema_extra={"enum": ["billing", "bug", "other"]})
    urgency: int = Field(ge=1, le=5)
    score: float = Field(gt=0, lt=1)
    is_open: bool
    tags: list[str] = Field(min_length=2)
    place: Place


class Tree(BaseModel):
    name: str
    left: Tree | None
    children: list[Tree]


TEXTS = [f"message {number}" for number in range(60)]


def test_pydantic_accepts_every_value() -> None:
    schema = Ticket.model_json_schema()
    values = [Ticket.model_validate(example(schema, text)) for text in TEXTS]
    assert {value.label for value in values} == {"billing", "bug", "other"}
    assert {value.urgency for value in values} == {1, 2, 3, 4, 5}
    assert {value.is_open for value in values} == {True, False}
    assert all(len(value.tags) == 2 for value in values)


def test_the_text_alone_decides() -> None:
    schema = Ticket.model_json_schema()
    assert [example(schema, text) for text in TEXTS] == [example(schema, text) for text in TEXTS]


def test_a_schema_that_refers_to_itself_ends() -> None:
    assert Tree.model_validate(example(Tree.model_json_schema(), "x")).name.startswith("name")


@pytest.mark.parametrize(
    "bounds",
    [
        {"ge": 10},
        {"le": -10},
        {"gt": 3, "lt": 5},
        {"ge": -2, "le": -2},
        {"gt": 1000},
        {"lt": -1000},
    ],
)
@pytest.mark.parametrize("kind", [int, float])
def test_numbers_stay_within_their_bounds(kind: type, bounds: dict[str, Any]) -> None:
    model = create_model("Number", value=(kind, Field(**bounds)))
    for text in TEXTS:
        model.model_validate(example(model.model_json_schema(), text))


A_AND_B = {"properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}}
NEEDS_A, NEEDS_B = {"required": ["a"]}, {"required": ["b"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", **A_AND_B, "anyOf": [NEEDS_A, NEEDS_B]},
        {**A_AND_B, **NEEDS_A, "oneOf": [NEEDS_B]},
        {"required": ["a", "b"], "allOf": [A_AND_B, {"properties": {"b": {"const": False}}}]},
        {
            **{"$ref": "#/$defs/AB", "$defs": {"AB": A_AND_B}},
            **{"properties": {"c": {}}, "required": ["a", "b", "c"]},
        },
        {**NEEDS_A, "properties": {"a": {"maximum": 3}}, "anyOf": [A_AND_B]},
        {"type": "integer", "minimum": 0, "allOf": [{"minimum": 5}, {"maximum": 9}]},
        {"enum": ["a", "b", "c"], "anyOf": [{"enum": ["c", "d"]}]},
        {
            **{"type": "array", "items": {"type": "integer"}},
            "allOf": [{"items": {"minimum": 500}}, {"minItems": 2}],
        },
    ],
)
def test_what_is_combined_is_satisfied_together(schema: dict[str, Any]) -> None:
    # Without a type a text would be valid as well, but nothing that the schema describes.
    asked = {"type": "object", **schema} if "enum" not in schema else schema
    for text in TEXTS:
        Draft202012Validator(asked).validate(example(schema, text))


@pytest.mark.parametrize("least", [0, 5, 20_000, 1_000_000])
def test_a_text_is_as_long_as_its_schema_asks(least: int) -> None:
    text = example({"type": "string", "minLength": least}, "x")
    assert least <= len(text) <= max(least, 20)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"const": 7}, 7),
        ({"type": "null"}, None),
        ({"type": ["null", "string"]}, None),
        ({"type": "array", "maxItems": 0}, []),
        ({"anyOf": [{"const": 1}, {"const": 2}]}, 1),
        ({"oneOf": [{"const": 2}]}, 2),
        ({"allOf": [{"$ref": "#/$defs/one"}], "$defs": {"one": {"const": 3}}}, 3),
        ({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"const": 4}}}, 4),
        ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"const": 5}}}, 5),
        ({"$ref": "#/$defs/~01", "$defs": {"~1": {"const": 6}}}, 6),
        ({"$ref": "#/$defs/list/oneOf/1", "$defs": {"list": {"oneOf": [{}, {"const": 7}]}}}, 7),
        ({"properties": {}}, {}),
    ],
)
def test_small_schemas(schema: dict[str, Any], value: Any) -> None:
    assert example(schema, "x") == value


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "colour"},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/$defs/list/1", "$defs": {"list": [{}]}},
        {"$ref": "#/$defs/list/-1", "$defs": {"list": [{}]}},
        {"$ref": "#anchor"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#"},
        {"$ref": "#/$defs/A", "$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}] * 2}}},
        {"enum": ["a"], "anyOf": [{"enum": ["b"]}]},
        {"type": "array", "minItems": 10**9, "items": {"type": "string"}},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 20, "items": {"type": "string", "minLength": 10**6}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": [1]},
        {"type": "string", "maxLength": "x"},
        {"anyOf": [1]},
        {"type": "number", "minimum": "low"},
    ],
)
def test_an_impossible_schema_is_the_client_s_fault(schema: dict[str, Any]) -> None:
    with pytest.raises(BadCall) as caught:
        example(schema, "x")
    assert caught.value.status == 400
