"""tiktoken where it and its files are there: exact, and never from the network."""

from __future__ import annotations

import base64
import hashlib
import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mutants import assert_caught, mutant, with_names
from redline.calls import Request, TokenEstimator
from redline.calls import tokenizer as tokenizer_module
from redline.calls.prompt import Prompt
from redline.calls.tokenizer import Tokenizer, Tokenizers

# Where tiktoken keeps cl100k_base: the SHA-1 of the address it comes from.
CL100K = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


def by_characters(text: str) -> range:
    return range(len(text))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """tiktoken seems to be there and to know `known` and `also`; the names it was asked to load."""
    loaded: list[str] = []

    def encoding(name: str) -> Any:
        loaded.append(name)
        return SimpleNamespace(encode_ordinary=by_characters)

    names = {"known": "one", "also": "one", "broken": "two"}
    model = SimpleNamespace(encoding_name_for_model=names.__getitem__)
    monkeypatch.setitem(sys.modules, "tiktoken.model", model)
    monkeypatch.setattr(tokenizer_module, "find_spec", lambda name: object())
    monkeypatch.setattr(tokenizer_module, "_encoding", encoding)
    return loaded


def test_without_tiktoken_there_is_none_and_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "find_spec", lambda name: None)
    before = threading.active_count()
    tokenizers = Tokenizers()
    assert tokenizers.find("known") is None
    assert tokenizers.find("known", may_block=True) is None
    assert threading.active_count() == before


def test_it_is_loaded_in_a_thread_and_there_from_then_on(pretended: list[str]) -> None:
    tokenizers = Tokenizers()
    assert tokenizers.find("known") is None
    assert tokenizers._thread is not None
    tokenizers._thread.join(10)
    found = tokenizers.find("known")
    assert found is not None
    assert found.count(Prompt({"prompt": "12345"})) == 5
    assert pretended == ["one"]


def test_models_share_an_encoding_and_a_router_is_no_part_of_the_name(
    pretended: list[str],
) -> None:
    tokenizers = Tokenizers()
    first = tokenizers.find("known", may_block=True)
    assert first is not None
    assert tokenizers.find("router/also", may_block=True) is first
    assert pretended == ["one"]


@pytest.mark.parametrize("error", [ImportError, KeyError, FileNotFoundError, ValueError, TypeError])
def test_every_failure_means_that_there_is_none_and_is_not_repeated(
    pretended: list[str], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    tries = []

    def encoding(name: str) -> Any:
        tries.append(name)
        raise error("no")

    monkeypatch.setattr(tokenizer_module, "_encoding", encoding)
    tokenizers = Tokenizers()
    for _ in range(3):
        assert tokenizers.find("broken", may_block=True) is None
    assert tries == ["two"]
    assert tokenizers.find("nobody's", may_block=True) is None


def test_the_models_remembered_are_bounded(pretended: list[str]) -> None:
    tokenizers = Tokenizers()
    for number in range(500):
        tokenizers.find(f"model-{number}", may_block=True)
    assert len(tokenizers._by_model) == 64
    assert tokenizers.find("known", may_block=True) is None


def test_only_one_thread_loads_at_a_time(
    pretended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def encoding(name: str) -> Any:
        go.wait(30)
        return SimpleNamespace(encode_ordinary=by_characters)

    monkeypatch.setattr(tokenizer_module, "_encoding", encoding)
    tokenizers, before = Tokenizers(), threading.active_count()
    for model in ("known", "also", "broken") * 5:
        assert tokenizers.find(model) is None
    assert threading.active_count() == before + 1
    go.set()
    assert tokenizers._thread is not None
    tokenizers._thread.join(10)
    assert tokenizers.find("known") is not None


def tokenizes_little(module: Any) -> None:
    seen: list[int] = []

    def encode(text: str) -> range:
        seen.append(len(text))
        return range(len(text) // 4)

    counted = module.Tokenizer(encode).count(Prompt({"prompt": "a" * 10**6}))
    assert counted == pytest.approx(250_000, rel=0.01)
    assert max(seen) <= 4096


def test_of_a_long_text_only_a_sample_is_tokenized() -> None:
    all_of_it = mutant(tokenizer_module, "_MOST_CHARS = 4096", "_MOST_CHARS = 10**9")
    assert_caught(tokenizes_little, tokenizer_module, all_of_it)


def test_an_empty_prompt_has_no_tokens() -> None:
    assert Tokenizer(by_characters).count(Prompt({"prompt": ""})) == 0
    assert Tokenizer(by_characters).count(Prompt({"prompt": [1, 2]})) == 0


def test_an_estimator_that_may_block_is_exact_from_the_first_call(pretended: list[str]) -> None:
    request = Request(body={"model": "known", "prompt": "x" * 30})
    assert TokenEstimator(Tokenizers(), may_block=True).estimate(request).input_tokens == 30
    assert TokenEstimator(Tokenizers()).estimate(request).input_tokens < 15


# With the real tiktoken.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """tiktoken's folder, empty."""
    pytest.importorskip("tiktoken", reason="tiktoken, the extra `tokens`, is not installed")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path


def asks_nobody(module: Any) -> None:
    """Loading an encoding that is not there fails, and nothing is downloaded."""
    asked: list[str] = []

    def get(address: str, **options: Any) -> Any:
        asked.append(address)
        raise OSError("the network was asked")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "requests", SimpleNamespace(get=get))
        for name in ("cl100k_base", "o200k_base", "o200k_harmony", "gpt2", "p50k_edit"):
            with pytest.raises(module._REASONS):
                module._encoding(name)
        assert module.Tokenizers().find("gpt-4o", may_block=True) is None
    assert not asked


def test_a_missing_file_is_not_downloaded(folder: Path) -> None:
    line = 'vars(loader)["read_file"] = _refuse'
    assert_caught(asks_nobody, tokenizer_module, mutant(tokenizer_module, line, "pass"))
    assert list(folder.iterdir()) == []


def test_a_damaged_file_is_not_downloaded_anew(folder: Path) -> None:
    (folder / CL100K).write_bytes(b"YQ== 0\n")
    asks_nobody(tokenizer_module)


def test_tiktoken_itself_stays_as_it_was(folder: Path) -> None:
    load = importlib.import_module("tiktoken.load")
    before = load.read_file
    asks_nobody(tokenizer_module)
    assert load.read_file is before


TINY = """
from tiktoken.load import data_gym_to_mergeable_bpe_ranks, load_tiktoken_bpe

def tiny():
    ranks = load_tiktoken_bpe("https://files.test/tiny.tiktoken", expected_hash={hash!r})
    return dict(name="tiny", pat_str=r"\\w+|\\W+", mergeable_ranks=ranks, special_tokens={{}})

ENCODING_CONSTRUCTORS = {{"o200k_base": tiny}}
"""


def test_a_file_that_is_there_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [bytes([byte]) for byte in range(256)] + [b"th", b"the"]
    lines = [base64.b64encode(piece) + b" %d" % rank for rank, piece in enumerate(pieces)]
    content = b"\n".join(lines)
    (folder / hashlib.sha1(b"https://files.test/tiny.tiktoken").hexdigest()).write_bytes(content)
    source = TINY.format(hash=hashlib.sha256(content).hexdigest())

    def private(name: str) -> ModuleType:
        if name == "tiktoken.load":
            return tokenizer_module._private(name)
        module = ModuleType(name)
        exec(source, module.__dict__)
        return module

    with_tiny = with_names(tokenizer_module, _private=private)
    found = with_tiny.Tokenizers().find("openai/gpt-4o", may_block=True)
    assert found is not None
    # the, a space, the, a space, five letters, and a surrogate's replacement of three bytes.
    assert found.count(Prompt({"prompt": "the the ocean"})) == 9
    assert found.count(Prompt({"prompt": "\ud800"})) == 3


def test_a_tiktoken_of_another_layout_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = with_names(tokenizer_module, _private=ModuleType)
    with pytest.raises(LookupError, match=r"no tiktoken\.load\.read_file"):
        strange._encoding("cl100k_base")
    assert strange.Tokenizers().find("gpt-4", may_block=True) is None
