"""The engine's test models are what its tests take them for, and the tiny example learns."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

# The engine is an extra; where it is not installed nothing here can be tried.
torch = pytest.importorskip("torch")
models = pytest.importorskip("support.engine_models")
transformers = pytest.importorskip("transformers")
make_text, train = models.make_text, models.train

NEW_TOKENS = 24
TEXT_BYTES = 60_000
TEXT_SHA256 = "bc878896fef72643d7a1961812e336f615fe1c6de7d63079c3e10ff3faee2913"


def chats(text: Any, count: int = 400) -> list[tuple[str, str]]:
    """Question and answer of the chats among the first documents."""
    found = zip(range(count), text.documents(0), strict=False)
    return [
        (messages[-2].content, messages[-1].content)
        for _, messages in found
        if not isinstance(messages, str)
    ]


def test_the_same_settings_give_the_same_bytes() -> None:
    whole = "\n".join(map(make_text.render, make_text.make_text(TEXT_BYTES)))
    assert hashlib.sha256(whole.encode()).hexdigest() == TEXT_SHA256
    assert make_text.make_text(TEXT_BYTES, seed=1) != make_text.make_text(TEXT_BYTES)


def test_documents_are_lines_and_none_comes_twice() -> None:
    lines = [make_text.render(document) for document in make_text.make_text(TEXT_BYTES)]
    assert len(set(lines)) == len(lines)
    assert not [line for line in lines if len(line.splitlines()) != 1]
    assert sum(len(line.encode()) + 1 for line in lines) >= TEXT_BYTES


def value(terms: str) -> int:
    """Of `7 + 8 - 1`, 14."""
    return sum(map(int, re.sub(r"([+-]) ", r"\1", terms).split()))


def test_sums_are_right() -> None:
    """Every equation in every answer holds."""
    sums = [
        found
        for _, answer in chats(make_text)
        for found in re.findall(r"(\d+(?: [+-] \d+)+) = (\d+)", answer)
    ]
    assert len(sums) > 50
    assert not [one for one in sums if value(one[0]) != int(one[1])]


def test_an_order_as_json_is_made_of_its_own_words() -> None:
    orders = [(asked, json.loads(said)) for asked, said in chats(make_text) if said[0] == "{"]
    assert len(orders) > 30
    for asked, fields in orders:
        assert not [word for word in fields.values() if str(word) not in asked]


def test_a_tokenizer_gives_every_text_back(models_folder: Path) -> None:
    tokenizer = models.tokenizer_of(models.random_model("llama", models_folder))
    for text in ["Fjälla", "日本 and 😀", "a\n\n  b\t12,345", "<|user|>Hello<|end|>"]:
        ids = tokenizer(text)["input_ids"]
        assert ids[0] == tokenizer.bos_token_id
        assert tokenizer.decode(ids[1:]) == text
    # A character that spans tokens, and one token a digit.
    assert len(tokenizer("😀")["input_ids"]) > 2
    assert len(tokenizer("123")["input_ids"]) == 4


def test_a_chat_reads_as_the_text_a_model_learns_from(models_folder: Path) -> None:
    tokenizer = models.tokenizer_of(models.random_model("llama", models_folder))
    chat = next(found for found in make_text.documents(0) if not isinstance(found, str))
    messages = [message._asdict() for message in chat]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == train.BEGIN + make_text.render(chat)
    opened = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert opened == text + "<|assistant|>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == tokenizer(make_text.render(chat))["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] == tokenizer.eos_token_id


@pytest.mark.slow
@pytest.mark.parametrize("kind", models.KINDS)
def test_a_random_model_wanders_and_its_best_token_stands_clear(
    models_folder: Path, kind: str
) -> None:
    model = models.load(models.random_model(kind, models_folder))
    said = models.continuations(model, models.random_prompts(6), NEW_TOKENS)
    assert len(said) >= 4
    assert min(len(set(one.tokens)) for one in said) >= NEW_TOKENS // 2
    assert {len(one.tokens) for one in said} == {NEW_TOKENS}
    assert model.config.vocab_size == models.VOCABULARY
    assert getattr(model.config, "sliding_window", None) is None
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("kind", models.KINDS)
def test_what_an_engine_may_leave_out_shows(models_folder: Path, kind: str) -> None:
    """Without a bias or a norm, or with another first token, it says something else."""
    model = models.load(models.random_model(kind, models_folder))
    prompt = models.random_prompts(1, least=30)[0]
    said = models.continuation(model, prompt, NEW_TOKENS).tokens
    other = [prompt[1], *prompt[1:]]
    assert models.continuation(model, other, NEW_TOKENS).tokens != said
    vectors = {name: value.data for name, value in model.named_parameters() if value.dim() == 1}
    assert vectors
    for name, values in vectors.items():
        kept = values.clone()
        values.fill_(0.0 if name.endswith("bias") else 1.0)
        assert models.continuation(model, prompt, NEW_TOKENS).tokens != said, name
        values.copy_(kept)
    assert models.continuation(model, prompt, NEW_TOKENS).tokens == said


def test_the_kinds_differ_in_what_matters(models_folder: Path) -> None:
    configs = {
        kind: transformers.AutoConfig.from_pretrained(models.random_model(kind, models_folder))
        for kind in models.KINDS
    }
    heads = {
        kind: config.num_attention_heads // config.num_key_value_heads
        for kind, config in configs.items()
    }
    assert heads == {
        "llama": 2,
        "llama-mha-tied": 1,
        "qwen2": 2,
        "qwen3": 2,
        "mistral": 2,
        "llama-biased": 2,
    }
    tied = [kind for kind, config in configs.items() if config.tie_word_embeddings]
    assert tied == ["llama-mha-tied", "qwen2", "llama-biased"]
    wide = [kind for kind, config in configs.items() if getattr(config, "head_dim", 16) != 16]
    assert wide == ["qwen3"]


def acceptance(target: Path, draft: Path, new_tokens: int = 32) -> float:
    """The share of the target's greedy tokens that the draft guesses, over random prompts."""
    prompts = torch.tensor(models.random_prompts(16, least=16, most=16))
    pair = train.Pair(models.load(target), models.load(draft))
    return float(train.accept(pair, prompts, new_tokens).agreement)


def test_drafts_share_the_tokenizer_and_guess_as_they_say(models_folder: Path) -> None:
    target = models.random_model("llama", models_folder)
    by_chance = models.random_draft(models_folder)
    near = models.near_draft("llama", models_folder)
    for draft in (by_chance, near):
        assert (draft / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    size = {place: (place / "model.safetensors").stat().st_size for place in (target, by_chance)}
    assert size[by_chance] < size[target] / 3
    assert acceptance(target, by_chance) < 0.1
    assert 0.2 < acceptance(target, near) < 0.9
    assert acceptance(target, target) > 0.99


@pytest.mark.parametrize("kind", models.REFUSED)
def test_a_refused_model_is_a_configuration_that_transformers_reads(
    models_folder: Path, kind: str
) -> None:
    folder = models.refused_config(kind, models_folder)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    config = transformers.AutoConfig.from_pretrained(folder)
    assert config.architectures == models.REFUSED[kind]["architectures"]
    assert ("sliding" in kind) == bool(getattr(config, "sliding_window", None))


@pytest.mark.slow
def test_a_trained_pair_guesses_well_on_text_it_has_not_seen(models_folder: Path) -> None:
    pair = models.trained_pair(models_folder)
    assert 0.55 < pair.agreement < 1.0
    assert 1.0 < pair.per_step <= train.DRAFTED + 1
    plan = models.TRAINED
    documents = make_text.make_text(int(plan.megabytes * 1e6), plan.seed, plan.towns)
    lines = [make_text.render(document) for document in documents]
    assert lines[-len(pair.documents) :] == pair.documents
    assert not set(lines[: -len(pair.documents)]) & set(pair.documents)
    # The figure is the draft's doing: one of the same shape that has learned nothing has none.
    tokenizer = models.tokenizer_of(pair.target)
    unread = [text.removesuffix(make_text.END) for text in pair.documents]
    prompts = train.held_out_prompts(tokenizer, unread, 8, train.PROMPT_TOKENS)
    untrained = train.make_model(plan.draft, tokenizer, plan.context, seed=9).eval()
    target = models.load(pair.target)
    assert train.accept(train.Pair(target, untrained), prompts).agreement < 0.1
    again = train.accept(train.Pair(target, models.load(pair.draft)), prompts)
    assert abs(again.agreement - pair.agreement) < 0.25


@pytest.mark.slow
def test_the_example_leaves_two_models_and_says_how_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--steps", "2", "--megabytes", "0.1", "--threads", "1")
    assert train.main([str(tmp_path), *words]) == 0
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"[\d,]+ documents, .* target \d\.\dM parameters, draft \d\.\dM", said[0])
    assert re.fullmatch(r"step +2/2  loss .*  held out .* tokens/s  0 s left", said[-3])
    assert said[-2].startswith("acceptance on held-out text, greedy: ")
    for name in ("target", "draft"):
        tokenizer = models.tokenizer_of(tmp_path / name)
        model = models.load(tmp_path / name)
        assert len(models.continuation(model, tokenizer("What is")["input_ids"], 3).tokens) == 3


def test_what_is_made_is_made_once_and_whole(tmp_path: Path) -> None:
    made = []

    def make(place: Path) -> None:
        place.mkdir()
        made.append(place)
        if len(made) == 1:
            raise OSError("no space left on device")

    place = tmp_path / "models" / "one"
    with pytest.raises(OSError, match="no space"):
        models.once(place, make)
    assert not place.exists()
    assert models.once(place, make) == models.once(place, make) == place
    assert len(made) == 2
