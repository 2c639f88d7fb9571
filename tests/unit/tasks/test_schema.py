"""What a tag may look like, as users give it; how labels are tidied; what a model is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.tasks.tag import Schema, as_json_schema, load, strict_form

LISTS = {"label": ["card_arrival", "Card Arrival?", "top up"], "urgency": ["low", "high"]}
ONE = {"type": "string", "enum": ["a", "b"]}
NESTED = {
    "type": "object",
    "$defs": {"Level": {"enum": ["low", "high"]}, "Note": {"properties": {"level": {}}}},
    "properties": {
        "level": {"$ref": "#/$defs/Level"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Level"}, {"type": "null"}]},
        "only": {"const": "Yes"},
        "topics": {"type": "array", "items": {"enum": ["a", "b"]}},
        "note": {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}},
        "stars": {"enum": [1, 2, 3]},
        "mixed": {"enum": ["a", 1]},
        "free": {"type": "string"},
        "noted": {
            "anyOf": [{"type": "null"}, {"properties": {"mood": {"enum": ["good", "bad"]}}}]
        },
        "by": {"properties": {"only": {"const": "Yes"}},
               "additionalProperties": {"$ref": "#/$defs/Level"}},
        "pair": {"prefixItems": [{"$ref": "#/$defs/Level"}, {"const": "Yes"}],
                 "items": {"enum": ["a", "b"]}},
    },
}  # fmt: skip


def test_lists_of_labels_become_a_closed_object() -> None:
    assert as_json_schema(["a", "b"]) == {
        "type": "object",
        "properties": {"label": ONE},
        "required": ["label"],
        "additionalProperties": False,
    }
    made = as_json_schema(LISTS)
    assert list(made["properties"]) == made["required"] == ["label", "urgency"]
    # A field may have the name of a word of JSON Schema.
    made = as_json_schema({"type": ["bug", "feature"], "title": ["Dr", "none"]})
    assert list(made["properties"]) == ["type", "title"]


@pytest.mark.parametrize(
    "given", [NESTED, {"type": ["object", "null"]}, {"properties": {}}, {"$ref": "#/$defs/A"}]
)
def test_a_json_schema_is_taken_as_it_is(given: Any) -> None:
    assert as_json_schema(given) is given


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "a schema is a JSON Schema, or lists of labels"),
        ("label", "a schema is a JSON Schema, or lists of labels"),
        ([], "the labels of label must be a list of distinct strings"),
        (["a", "a"], "the labels of label must be a list of distinct strings"),
        (["a", 1], "the labels of label must be a list of distinct strings"),
        ({"urgency": "low"}, "the labels of urgency must be a list of distinct strings"),
        (ONE, "a tag is an object or an array, but the schema describes a single value"),
        (
            {"enum": ["a"]},
            "a tag is an object or an array, but the schema describes a single value",
        ),
    ],
)
def test_what_is_no_schema_is_refused(given: Any, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        as_json_schema(given)
    assert caught.value.what == what


def test_labels_are_found_wherever_a_field_takes_texts_alone() -> None:
    assert Schema(NESTED).labels == {
        "level": ["low", "high"],
        "maybe": ["low", "high"],
        "only": ["Yes"],
    }
    assert Schema(NESTED).fields == tuple(NESTED["properties"])


TIDIED = [
    ({"level": "LOW"}, {"level": "low"}),
    ({"level": " Low\n"}, {"level": "low"}),
    ({"maybe": "HIGH"}, {"maybe": "high"}),
    ({"maybe": None}, {"maybe": None}),
    ({"only": "yes"}, {"only": "Yes"}),
    ({"topics": ["A", "b"]}, {"topics": ["a", "b"]}),
    ({"note": {"mood": "Good"}}, {"note": {"mood": "good"}}),
    ({"free": " As IT is "}, {"free": " As IT is "}),
    ({"noted": {"mood": "Good"}}, {"noted": {"mood": "good"}}),
    ({"noted": None}, {"noted": None}),
    ({"by": {"x": "LOW", "only": "yes"}}, {"by": {"x": "low", "only": "Yes"}}),
    ({"pair": ["LOW", "YES", "B"]}, {"pair": ["low", "Yes", "b"]}),
]


@pytest.mark.parametrize(("said", "kept"), TIDIED)
def test_labels_are_written_as_the_schema_writes_them(said: Any, kept: Any) -> None:
    value, problems = Schema(NESTED).checked(said)
    assert (value, problems) == (kept, [])


def test_a_label_that_could_be_two_is_none() -> None:
    """Labels that differ by case alone are told apart, and what could be either is neither."""
    schema = Schema(as_json_schema(["US", "us", "top  up"]))
    assert schema.checked({"label": "us"}) == ({"label": "us"}, [])
    assert schema.checked({"label": "US"}) == ({"label": "US"}, [])
    assert schema.checked({"label": "Top up"}) == ({"label": "top  up"}, [])
    value, problems = schema.checked({"label": "Us"})
    assert value == {"label": "Us"}
    assert problems == ['label is "Us", which is not one of "US", "us", "top  up"']


BAD: list[tuple[Any, Any, str]] = [
    (LISTS, {"label": "top up"}, "'urgency' is a required property"),
    (LISTS, {"label": "top up", "urgency": "mid"},
     'urgency is "mid", which is not one of "low", "high"'),
    (
        LISTS,
        {"label": "top up", "urgency": "low", "why": "x"},
        "Additional properties are not allowed ('why' was unexpected)",
    ),
    (LISTS, ["top up"], "['top up'] is not of type 'object'"),
    ([str(n) for n in range(77)], {"label": "x"}, 'label is "x", which is none of its 77 values'),
    (NESTED, {"note": {"mood": "so so"}},
     'note.mood is "so so", which is not one of "good", "bad"'),
    ({"type": "object", "properties": {"on": {"type": "string", "format": "date"}}},
     {"on": "soon"}, "on: 'soon' is not a 'date'"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "value", "problem"), BAD)
def test_what_is_wrong_is_told_in_words(given: Any, value: Any, problem: str) -> None:
    assert Schema(as_json_schema(given)).checked(value)[1] == [problem]


@pytest.mark.parametrize(
    ("step", "value", "is_valid"),
    [
        (0.01, 19.99, True),
        (0.01, 1234567.89, True),
        (0.01, 3, True),
        (0.01, 0.075, False),
        (0.01, 1e300, True),
        (2, 4.0, True),
        (2, 5, False),
    ],
)
def test_a_multiple_is_that_of_the_decimals(step: float, value: float, is_valid: bool) -> None:
    schema = Schema({"properties": {"price": {"multipleOf": step}}})
    assert (schema.checked({"price": value})[1] == []) is is_valid


def test_problems_are_few_and_short() -> None:
    schema = Schema({"type": "array", "items": {"type": "integer"}})
    _, problems = schema.checked(["x" * 10_000] * 100)
    assert len(problems) == 5
    assert max(map(len, problems)) <= 500


def test_a_bare_label_is_a_tag_where_a_tag_has_one_field() -> None:
    schema = Schema(as_json_schema(["card_arrival", "top up"]))
    for said in ("card_arrival", ' "Card_Arrival".\n', "<think>no</think>`card_arrival`"):
        assert schema.bare(said) == {"label": "card_arrival"}, said
    for said in ("", "card", "card_arrival or top up", "The label is card_arrival"):
        assert schema.bare(said) is None, said
    assert Schema(as_json_schema(LISTS)).bare("low") is None
    assert Schema(NESTED).bare("low") is None


@pytest.mark.parametrize(
    ("given", "is_strict"),
    [
        (LISTS, True),
        ({**as_json_schema(LISTS), "required": ["label"]}, False),
        ({"type": "object", "properties": {}}, False),
        ({"type": "array", "items": {"type": "object"}}, False),
        # OpenAI takes only an object at the root.
        ({"type": "array", "items": as_json_schema(["a"])}, False),
    ],
)
def test_strict_is_what_names_and_requires_all(given: Any, is_strict: bool) -> None:
    assert (strict_form(as_json_schema(given)) is not None) is is_strict


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"type": "objekt", "properties": {}}, "not a JSON Schema: "),
        ({"type": "object", "properties": []}, "not a JSON Schema: "),
        ({"properties": {"a": {"$ref": "https://127.0.0.1/x"}}}, "the schema refers to https://"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}}, "the schema refers to #/$defs/A, which it"),
        (
            {"properties": {"a": {"$ref": "#A"}}},
            "the schema refers to #A, which it does not contain",
        ),
        ({"properties": {"a": {"$dynamicRef": "#A"}}}, "the schema refers to #A, which it does"),
        *(
            (
                {"properties": {"a": {"$ref": f"#/oneOf/{step}"}}, "oneOf": [ONE]},
                f"the schema refers to #/oneOf/{step}, which it does not contain",
            )
            for step in ("1", "-1", "00", "-", "١", "enum")
        ),
    ],
)
def test_a_schema_that_could_not_be_used_is_refused_before_the_run(given: Any, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Schema(given)
    assert caught.value.what.startswith(what)


@pytest.mark.parametrize(
    ("reference", "definitions"),
    [
        ("#/$defs/list/oneOf/0", {"list": {"oneOf": [ONE]}}),
        ("#/%24defs/A", {"A": ONE}),
        ("#/$defs/a%20b", {"a b": ONE}),
        ("#/$defs/%C3%BC", {"ü": ONE}),
        ("#/$defs/5%25", {"5%": ONE}),
        ("#/$defs/a~1b", {"a/b": ONE}),
        ("#/$defs/a%7E1b", {"a/b": ONE}),
        ("#/$defs/~01", {"~1": ONE}),
        ("#/$defs/0", {"0": ONE}),
        ("#/$defs/", {"": ONE}),
    ],
)
def test_a_reference_is_a_json_pointer_in_a_fragment(reference: str, definitions: Any) -> None:
    schema = Schema({"properties": {"tag": {"$ref": reference}}, "$defs": definitions})
    assert schema.labels == {"tag": ["a", "b"]}
    assert schema.checked({"tag": "A"}) == ({"tag": "a"}, [])
    assert len(schema.checked({"tag": "c"})[1]) == 1


def test_an_anchor_is_not_the_root() -> None:
    schema = Schema(
        {
            "properties": {"level": {"enum": ["low"]}, "part": {"$ref": "#part"}},
            "$defs": {"part": {"$anchor": "part", "properties": {"level": {"type": "string"}}}},
        }
    )
    assert schema.checked({"part": {"level": "LOW"}}) == ({"part": {"level": "LOW"}}, [])


def with_anchor(draft: str, part: dict[str, Any], **more: Any) -> dict[str, Any]:
    definitions = "definitions" if "draft-0" in draft else "$defs"
    return {
        "$schema": draft,
        "properties": {"part": {"$ref": "#part"}},
        definitions: {"part": part},
        **more,
    }


DRAFT_4, DRAFT_7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 7))
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    "given",
    [
        with_anchor(DRAFT_4, {"id": "#part", "type": "string"}),
        with_anchor(DRAFT_7, {"$id": "#part", "type": "string"}),
        with_anchor(DRAFT_2020, {"$anchor": "part", "type": "string"}),
        with_anchor(DRAFT_2020, {"$dynamicAnchor": "part", "type": "string"}),
        with_anchor(
            DRAFT_2020, {"$anchor": "part", "type": "string"}, **{"$id": "https://a.example/tag"}
        ),
    ],
)
def test_an_anchor_of_the_schemas_draft_is_known(given: dict[str, Any]) -> None:
    assert Schema(given).checked({"part": "a"})[1] == []
    assert len(Schema(given).checked({"part": 1})[1]) == 1


@pytest.mark.parametrize(
    "given",
    [
        with_anchor(DRAFT_7, {"$anchor": "part"}),
        with_anchor(DRAFT_2020, {"id": "#part"}),
        with_anchor(DRAFT_2020, {"enum": [{"$anchor": "part"}]}),
        with_anchor(
            DRAFT_2020, {"$id": "https://a.example/x", "$defs": {"x": {"$anchor": "part"}}}
        ),
    ],
)
def test_an_anchor_that_is_none_in_the_schemas_draft_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the schema refers to #part, which it does not contain"):
        Schema(given)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    given: dict[str, Any] = {"type": "object"}
    for _ in range(300):
        given = {"properties": {"a": given}}
    with pytest.raises(ConfigError, match="the schema is nested too deeply"):
        Schema(given)


def deep(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = {"child": value}
    return value


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"$ref": "#/$defs/N", "$defs": {"N": {"properties": {"child": {"anyOf": [
            {"type": "null"}, {"$ref": "#/$defs/N"}]}}}}}, deep(199)),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, {"a": 1}),
        ({"properties": {"a": {"multipleOf": 0.5}}}, {"a": 10**400}),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_checked_is_not_valid(given: Any, value: Any) -> None:
    _, problems = Schema(given).checked(value)
    assert len(problems) == 1
    assert problems[0].startswith("it cannot be checked: ")


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree = {"properties": {"child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    assert Schema(tree).checked({"child": {"child": None}})[1] == []
    loop = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert Schema(loop).fields == ()
    knot = {
        "properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {"$ref": "#/properties/a"}]}}
    }
    assert Schema(knot).labels == {}


def write(path: Path, value: object) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return str(path)


def test_a_schema_comes_from_a_file(tmp_path: Path) -> None:
    assert load(write(tmp_path / "labels.json", LISTS)).labels == LISTS
    # A colon in its name makes no model of a file.
    assert load(write(tmp_path / "a:b", ["x"])).labels == {"label": ["x"]}


@pytest.mark.parametrize(
    ("content", "what"), [("{", "the schema is not JSON: "), ("[]", "the labels of label must be")]
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str, what: str) -> None:
    path = write(tmp_path / "labels.json", content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.what.startswith(what)
    assert caught.value.where == path


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json does not exist"):
        load(str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="cannot read the schema"):
        load(str(tmp_path))


MODULE = """
from datetime import date
from enum import Enum
from typing import Literal, Optional

from pydantic import BaseModel, Field, model_validator


class Urgency(Enum):
    LOW = "low"
    HIGH = "high"


class Ticket(BaseModel):
    label: Literal["bug", "question"]
    urgency: Urgency = Urgency.LOW
    due: Optional[date] = Field(default=None, alias="dueDate")
    score: int = Field(ge=0, le=10)

    @model_validator(mode="after")
    def bugs_are_scored(self):
        if self.label == "bug" and self.score == 0:
            raise ValueError("a bug needs a score")
        {"low": 1, "high": 2}[self.urgency.value if self.score != 9 else "nine"]
        return self


class Read(BaseModel):
    label: Literal["bug", "question"] = Field(validation_alias="Label")


class Written(BaseModel):
    label: Literal["bug", "question"] = Field(serialization_alias="Label")


class Score(BaseModel):
    score: float


class Node(BaseModel):
    name: str
    children: list["Node"] = []


class Topics(BaseModel):
    topics: set[Literal["gamma", "beta", "alpha", "delta"]]
    more: list[frozenset[str]] = []


not_a_model = 3
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "tickets.py").write_text(MODULE)
    (tmp_path / "broken_tickets.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for name in ("shop", "shop.tickets", "broken_tickets"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("models")
def test_a_pydantic_model_validates_by_its_own_rules() -> None:
    schema = load("shop.tickets:Ticket")
    assert (schema.name, schema.kind) == ("Ticket", "object")
    assert schema.labels == {"label": ["bug", "question"], "urgency": ["low", "high"]}
    value, problems = schema.checked({"label": "Bug", "score": 3, "dueDate": "2026-11-22"})
    assert problems == []
    assert value == {"label": "bug", "urgency": "low", "dueDate": "2026-11-22", "score": 3}
    assert schema.checked({"label": "bug", "score": 0})[1] == ["Value error, a bug needs a score"]
    assert schema.checked({"label": "bug", "score": 9})[1] == ["KeyError: 'nine'"]
    assert schema.checked({"label": "spam", "score": 11, "dueDate": "soon"})[1] == [
        "label: Input should be 'bug' or 'question'",
        "dueDate: Input should be a valid date or datetime, input is too short",
        "score: Input should be less than or equal to 10",
    ]
    node = load("shop.tickets:Node")
    assert node.fields == ("name", "children")
    assert node.checked({"name": "a", "children": [{}]})[1] == ["children.0.name: Field required"]


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("model", "read", "kept"), [("Read", "Label", "label"), ("Written", "label", "Label")]
)
def test_the_fields_are_those_of_the_models_dump(model: str, read: str, kept: str) -> None:
    schema = load(f"shop.tickets:{model}")
    assert (schema.fields, schema.labels) == ((kept,), {kept: ["bug", "question"]})
    assert schema.bare("Bug") == {read: "bug"}
    assert schema.checked({read: "Bug"}) == ({kept: "bug"}, [])


@pytest.mark.usefixtures("models")
def test_a_set_is_kept_in_the_same_order_by_each_process() -> None:
    names = ["gamma", "beta", "alpha", "delta"]
    said = {"topics": names, "more": [[*"hgfedcba"], names]}
    value, problems = load("shop.tickets:Topics").checked(said)
    assert problems == []
    assert value == {"topics": sorted(names), "more": [[*"abcdefgh"], sorted(names)]}


@pytest.mark.usefixtures("models")
def test_a_number_that_json_does_not_have_is_refused() -> None:
    schema = load("shop.tickets:Score")
    assert schema.checked({"score": 0.5}) == ({"score": 0.5}, [])
    _, problems = schema.checked({"score": "NaN"})
    assert [problem.partition(":")[0] for problem in problems] == ["a value in it cannot be stored"]


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("shop.tickets:None_such", "AttributeError"),
        ("shop.tickets:not_a_model", "AttributeError"),
        ("shop.no_such:Ticket", "ModuleNotFoundError"),
        ("broken_tickets:Ticket", "ZeroDivisionError"),
    ],
)
def test_what_is_no_model_is_told(given: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(given)
    assert caught.value.what.startswith(f"{given} cannot be loaded as a model: {why}")


def test_without_the_extra_its_install_command_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path / "labels.json", ["a"]))
    assert caught.value.what == "tagging by a schema needs jsonschema, which is not installed"
    assert caught.value.hint == "pip install 'redline[schema]'"


@pytest.mark.usefixtures("models")
def test_without_pydantic_its_install_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ConfigError) as caught:
        load("shop.tickets:Ticket")
    assert caught.value.what == "shop.tickets:Ticket needs pydantic, which is not installed"
    assert caught.value.hint == "pip install 'redline[schema]'"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('["a", "b"]', "utf-8-sig")
    assert load(str(path)).labels == {"label": ["a", "b"]}
