"""Answers follow their JSON schema, on models that would write anything but that."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from jsonschema import Draft202012Validator
from llguidance import LLTokenizer, TokenizerWrapper

from redline.engine.draft import judge
from redline.engine.model import Loaded
from redline.engine.sample import (
    Grammars,
    Guide,
    SamplingParams,
    guided,
    masked,
)
from redline.engine.schedule import Sequence
from redline.errors import Rejected
from support.engine_driver import GREEDY, Heard, Joining, Setting, drive, loaded, make_core
from support.engine_models import (
    VOCABULARY,
    continuations,
    load,
    near_draft,
    random_model,
    random_prompts,
    tokenizer_of,
)
from support.sampling_law import p_value

END = 1
NEW = 48
SHORT = {"type": "string", "maxLength": 5}
SCHEMAS: dict[str, dict[str, Any]] = {
    "enum": {"enum": ["low", "höchste", None, 3, {"a": [True]}]},
    "number": {"type": "number", "minimum": -2, "maximum": 7.5},
    "integer": {"type": "integer"},
    "object": {
        "type": "object",
        "properties": {
            "name": SHORT,
            "size": {"type": "integer", "minimum": 1, "maximum": 500},
            "inner": {
                "type": "object",
                "properties": {"is_new": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
                "required": ["is_new"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "inner"],
        "additionalProperties": False,
    },
    "array": {"type": "array", "items": {"enum": [1, "zwei", None]}, "minItems": 2, "maxItems": 6},
    "unicode": {"type": "string", "pattern": "^[äöü€😀]{2,4}$"},
    "more properties": {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": {"type": "integer", "maximum": 9},
    },
    "any string": {"type": "string"},
    "any object": {"type": "object"},
}
SEEDED = SamplingParams(temperature=1.0, seed=7)
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=1.3, top_p=0.9, logprobs=2),
    "seeded": SEEDED,
    # Penalties and a bias for the end change what is likely, and not what may come.
    "adjusted": SamplingParams(
        temperature=0.7, repetition_penalty=2.0, logit_bias={END: 100.0}, ignore_eos=True
    ),
}
FEW = ("enum", "number", "object")


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


class Ground(NamedTuple):
    """What the tests stand on."""

    tokenizer: Any
    model: Loaded
    near: Loaded
    prompts: list[list[int]]
    grammars: Grammars


@pytest.fixture(scope="module")
def ground(models_folder: Path) -> Ground:
    folder = random_model("llama-mha-tied", models_folder)
    near = near_draft("llama-mha-tied", models_folder)
    prompts = random_prompts(len(SCHEMAS), most=30, seed=4)
    tokenizer = tokenizer_of(folder)
    grammars = Grammars(tokenizer, VOCABULARY, {END})
    return Ground(tokenizer, loaded(folder), loaded(near), prompts, grammars)


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn without a seed is the same every time: how many answers end depends on it."""
    monkeypatch.setattr(secrets, "randbits", random.Random(1).getrandbits)


def answers(
    ground: Ground,
    params: SamplingParams,
    setting: Setting,
    names: Iterable[str] = SCHEMAS,
) -> list[Heard]:
    """One answer under each schema; they join at steps of their own."""
    core = make_core(ground.model, setting, ground.near)
    joining = [
        Joining(prompt, NEW, 2 * at, params, ground.grammars.guide(SCHEMAS[name]))
        for at, (prompt, name) in enumerate(zip(ground.prompts, names, strict=False))
    ]
    heard = drive(core, joining)
    if setting.cache_tokens < 1000:
        assert core.scheduler.preemptions > 0
    return heard


def follows(text: str, schema: dict[str, Any]) -> bool:
    try:
        return Draft202012Validator(schema).is_valid(json.loads(text))
    except json.JSONDecodeError:
        return False


def check_answers(ground: Ground, heard: list[Heard], names: Iterable[str] = SCHEMAS) -> None:
    """Each is what its schema describes, or the beginning of that where it was cut."""
    for name, answer in zip(names, heard, strict=True):
        if answer.reason == "length":
            assert len(answer.tokens) == NEW
            assert ground.grammars.guide(SCHEMAS[name]).fitting(answer.tokens) == NEW
            continue
        assert answer.reason == "stop"
        text = ground.tokenizer.decode(answer.tokens, skip_special_tokens=True)
        assert follows(text, SCHEMAS[name])
    assert sum(answer.reason == "stop" for answer in heard) > len(heard) / 2


@pytest.mark.parametrize(
    ("way", "draft"),
    [("sampled", None), ("sampled", "model"), ("adjusted", "lookup")],
)
def test_answers_follow_their_schemas(ground: Ground, way: str, draft: str | None) -> None:
    setting = Setting(slots=5, drafts=3 if draft else 0, draft=draft)
    check_answers(ground, answers(ground, WAYS[way], setting))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["greedy", "seeded"])
def test_drafts_preemption_and_stages_change_no_answer(ground: Ground, way: str) -> None:
    params = WAYS[way]
    plain = answers(ground, params, Setting(slots=4))
    check_answers(ground, plain)
    settings = [
        Setting(slots=9, drafts=4, draft="model", cache_tokens=90),
        Setting(slots=6, drafts=2, draft="model", steps_at_once=2),
        Setting(slots=3, drafts=3, draft="lookup", step_tokens=20),
    ]
    for setting in settings if way == "greedy" else settings[:1]:
        for one, other in zip(plain, answers(ground, params, setting), strict=True):
            assert (one.tokens, one.reason) == (other.tokens, other.reason)


def test_answers_without_a_schema_stay_those_of_generate(
    ground: Ground, models_folder: Path
) -> None:
    model = load(random_model("llama-mha-tied", models_folder))
    said = continuations(model, random_prompts(6, most=30, seed=3), 20)
    assert len(said) > 3
    joining = [Joining(one.prompt, 20) for one in said] + [
        Joining(prompt, NEW, 1, GREEDY, ground.grammars.guide(SCHEMAS[name]))
        for prompt, name in zip(ground.prompts, FEW, strict=False)
    ]
    core = make_core(ground.model, Setting(slots=8, drafts=3, draft="model"), ground.near)
    heard = drive(core, joining)
    for one, answer in zip(said, heard[: len(said)], strict=True):
        assert answer.tokens == one.tokens
    check_answers(ground, heard[len(said) :], FEW)


def test_what_is_drawn_follows_the_models_law_within_the_schema(ground: Ground) -> None:
    """The first of a draft's token and what replaces it, over 2,000 draws from one law."""
    count = 2000
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, VOCABULARY, generator=generator)
    guides = [ground.grammars.guide(SCHEMAS["integer"]) for _ in range(count)]
    sequences = [
        Sequence([9], SamplingParams(), seed, seed, 99, guide=guide)
        for seed, guide in enumerate(guides)
    ]
    offered = masked(torch.randn(1, VOCABULARY, generator=generator), [(guides[0], [], 1)])
    law = offered.softmax(-1)
    drawn = law.multinomial(count, replacement=True, generator=generator)[0].tolist()
    for sequence, token in zip(sequences, drawn, strict=True):
        sequence.drafted = [token]
    judged = judge(sequences, logits.repeat(count, 1), dict.fromkeys(range(count), law))
    expected = masked(logits[:1], [(guides[0], [], 1)]).softmax(-1)[0]
    assert int((expected > 0).sum()) == 11
    first = torch.tensor([found.tokens[0] for found in judged])
    assert p_value(first, expected) > 0.001
    unguided = logits[0].softmax(-1)
    assert p_value(first, unguided) < 0.001
    for sequence, found in zip(sequences, judged, strict=True):
        assert sequence.guide is not None
        # A zero is whole: what is judged behind it does not count.
        taken = sequence.guide.take(found.tokens)
        assert taken == found.tokens[: len(taken)] != []
        assert sequence.guide.ended in (None, "stop")


def test_blanks_between_parts_are_bounded(ground: Ground) -> None:
    """A model that likes them would write nothing else."""
    guide = ground.grammars.guide({"type": "object"})

    def fits(text: str) -> bool:
        tokens = ground.tokenizer.encode(text, add_special_tokens=False)
        return guide.fitting(tokens) == len(tokens)

    assert fits('{"a": [1, {"b": "ö"}]}')
    assert fits('{\n  "a": [\n    1\n  ]\n}')
    assert not fits('{  "a"')
    assert not fits("{\n" + 21 * " ")
    assert not fits('{"a": 1} ')


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "text"}, "Invalid type: text"),
        ({"not": {"type": "string"}}, 'Unimplemented keys: ["not"]'),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum (5) is greater than maximum"),
        ({"$ref": "https://example.com/x.json"}, "not present in a registry"),
        ({"type": "string", "format": "colour"}, "Unknown format: colour"),
        (nested(200), "recursion limit"),
        (nested(100_000), "recursion"),
        ({"const": "\ud800"}, "surrogates not allowed"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, str) else "",
)
def test_a_schema_that_cannot_be_followed_is_refused(
    ground: Ground, schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Rejected) as caught:
        ground.grammars.guide(schema)
    assert reason in caught.value.what
    assert "\n" not in caught.value.what
    assert caught.value.status is None, "so the client is told the hint, too"


def test_a_tokenizer_that_cannot_be_guided_is_refused() -> None:
    class Slow(list[int]):
        eos_token_id = END

    with pytest.raises(Rejected, match="Only fast tokenizers"):
        Grammars(Slow(), VOCABULARY, {END}).guide({"type": "object"})


class _NoBraces:
    """A vocabulary that can begin an object, and not end it."""

    eos_token_id = END
    bos_token_id = None

    def __init__(self) -> None:
        self.tokens = [b"<begin>", b"<end>", *(bytes([code]) for code in range(32, ord("}")))]
        self.special_token_ids = [0, END, *range(len(self.tokens), VOCABULARY)]
        self.tokens += [b"<unused>"] * (VOCABULARY - len(self.tokens))

    def __call__(self, text: str) -> list[int]:
        return [ord(char) - 30 for char in text]


def test_an_answer_that_cannot_go_on_ends_with_an_error(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = LLTokenizer(TokenizerWrapper(_NoBraces()))
    monkeypatch.setattr(guided, "from_tokenizer", lambda *given, **named: tokens)
    grammars = Grammars([], VOCABULARY, {END})
    guide = grammars.guide({"type": "object", "additionalProperties": False})
    heard = drive(make_core(ground.model, Setting()), [Joining([9], NEW, guide=guide)])
    assert isinstance(heard[0].reason, Rejected)
    assert "cannot be continued within the schema" in heard[0].reason.what
    assert len(heard[0].tokens) < 30


def test_guides_of_one_schema_are_apart(ground: Ground) -> None:
    one, other = (ground.grammars.guide(SCHEMAS["integer"]) for _ in range(2))
    digits = ground.tokenizer.encode("12", add_special_tokens=False)
    assert one.take([*digits, END, 5]) == [*digits, END]
    assert one.ended == "stop"
    assert other.ended is None
    assert other.fitting(digits) == 2


def test_logits_that_nothing_guides_are_not_copied() -> None:
    logits = torch.zeros(2, VOCABULARY)
    nobody: Guide | None = None
    assert masked(logits, [(nobody, [], 2)]) is logits
