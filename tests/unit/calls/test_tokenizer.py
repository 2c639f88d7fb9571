"""tiktoken where it and its files are there: exact, and never from the network."""

from __future__ import annotations

import base64
import hashlib
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redline.calls import Request, TokenEstimator
from redline.calls.tokens import Prompt, Tokenizer, Tokenizers

# Where tiktoken keeps cl100k_base: the SHA-1 of the address it comes from.
CL100K = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


def by_characters(text: str) -> range:
    return range(len(text))


# A tiktoken whose encodings have a token for each character. `gate` is called for each it loads.
PRETENDED = {
    "tiktoken/__init__.py": """
loaded = []
gate = lambda: None

class Encoding:
    def __init__(self, name):
        loaded.append(name)
        gate()

    def encode_ordinary(self, text):
        return range(len(text))
""",
    "tiktoken/model.py": """
encoding_name_for_model = {"known": "one", "also": "one", "broken": "two"}.__getitem__
""",
    "tiktoken/load.py": """
read_file = load_tiktoken_bpe = data_gym_to_mergeable_bpe_ranks = None
""",
    "tiktoken_ext/openai_public.py": """
from tiktoken.load import data_gym_to_mergeable_bpe_ranks, load_tiktoken_bpe

ENCODING_CONSTRUCTORS = {"one": lambda: {"name": "one"}, "two": lambda: {"name": "two"}}
""",
}


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """tiktoken is imported anew in the test and again after it."""

    def forget() -> dict[str, Any]:
        names = [
            name for name in sys.modules if name.partition(".")[0] in ("tiktoken", "tiktoken_ext")
        ]
        return {name: sys.modules.pop(name) for name in names}

    before = forget()
    yield
    forget()
    sys.modules.update(before)


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    for name, text in {**PRETENDED, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: None) -> Any:
    """A tiktoken that knows `known`, `also` and `broken`; `loaded` names what it has loaded."""
    pretend(tmp_path / "packages", monkeypatch)
    return importlib.import_module("tiktoken")


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        # Other tests may have left threads that wait for work.
        if thread.name == "tokenizer":
            thread.join(10)


def test_without_tiktoken_there_is_none_and_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    before = threading.active_count()
    tokenizers = Tokenizers()
    assert tokenizers.find("known") is None
    assert tokenizers.find("known", may_block=True) is None
    assert threading.active_count() == before


def test_it_is_loaded_in_a_thread_and_there_from_then_on(pretended: Any) -> None:
    tokenizers = Tokenizers()
    assert tokenizers.find("known") is None
    wait_for_threads()
    found = tokenizers.find("known")
    assert found is not None
    assert found.count(Prompt({"prompt": "12345"})) == 5
    assert pretended.loaded == ["one"]


def test_models_share_an_encoding_and_a_router_is_no_part_of_the_name(
    pretended: Any,
) -> None:
    tokenizers = Tokenizers()
    first = tokenizers.find("known", may_block=True)
    assert first is not None
    assert tokenizers.find("router/also", may_block=True) is first
    assert pretended.loaded == ["one"]


@pytest.mark.parametrize("error", [ImportError, KeyError, FileNotFoundError, ValueError, TypeError])
def test_every_failure_means_that_there_is_none_and_is_not_repeated(
    pretended: Any, error: type[Exception]
) -> None:
    def gate() -> None:
        raise error("no")

    pretended.gate = gate
    tokenizers = Tokenizers()
    for _ in range(3):
        assert tokenizers.find("broken", may_block=True) is None
    assert pretended.loaded == ["two"]
    assert tokenizers.find("nobody's", may_block=True) is None


def test_the_models_remembered_are_bounded(pretended: Any) -> None:
    tokenizers = Tokenizers()
    for number in range(500):
        tokenizers.find(f"model-{number}", may_block=True)
    assert tokenizers.find("known", may_block=True) is None


def test_only_one_thread_loads_at_a_time(pretended: Any) -> None:
    go = threading.Event()
    pretended.gate = lambda: go.wait(30)
    tokenizers, before = Tokenizers(), threading.active_count()
    for model in ("known", "also", "broken") * 5:
        assert tokenizers.find(model) is None
    assert threading.active_count() == before + 1
    go.set()
    wait_for_threads()
    assert tokenizers.find("known") is not None


def test_of_a_long_text_only_a_sample_is_tokenized() -> None:
    seen: list[int] = []

    def encode(text: str) -> range:
        seen.append(len(text))
        return range(len(text) // 4)

    counted = Tokenizer(encode).count(Prompt({"prompt": "a" * 10**6}))
    assert counted == pytest.approx(250_000, rel=0.01)
    assert max(seen) <= 4096


def test_an_empty_prompt_has_no_tokens() -> None:
    assert Tokenizer(by_characters).count(Prompt({"prompt": ""})) == 0
    assert Tokenizer(by_characters).count(Prompt({"prompt": [1, 2]})) == 0


def test_an_estimator_that_may_block_is_exact_from_the_first_call(pretended: Any) -> None:
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


def asks_nobody() -> None:
    """Loading an encoding that is not there fails, and nothing is downloaded."""
    asked: list[str] = []

    def get(address: str, **options: Any) -> Any:
        asked.append(address)
        raise OSError("the network was asked")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "requests", SimpleNamespace(get=get))
        for model in ("gpt-4", "gpt-4o", "gpt-oss-20b", "gpt2", "code-davinci-edit-001"):
            assert Tokenizers().find(model, may_block=True) is None
    assert not asked


def test_a_missing_file_is_not_downloaded(folder: Path) -> None:
    asks_nobody()
    assert list(folder.iterdir()) == []


def test_a_damaged_file_is_not_downloaded_anew(folder: Path) -> None:
    (folder / CL100K).write_bytes(b"YQ== 0\n")
    asks_nobody()


def test_tiktoken_itself_stays_as_it_was(folder: Path) -> None:
    load = importlib.import_module("tiktoken.load")
    before = load.read_file
    asks_nobody()
    assert load.read_file is before


TINY = """
from tiktoken.load import data_gym_to_mergeable_bpe_ranks, load_tiktoken_bpe

def tiny():
    ranks = load_tiktoken_bpe("https://files.test/tiny.tiktoken", expected_hash={hash!r})
    return dict(name="tiny", pat_str=r"\\w+|\\W+", mergeable_ranks=ranks, special_tokens={{}})

ENCODING_CONSTRUCTORS = {{"o200k_base": tiny}}
"""


def test_a_file_that_is_there_is_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: None
) -> None:
    pieces = [bytes([byte]) for byte in range(256)] + [b"th", b"the"]
    lines = [base64.b64encode(piece) + b" %d" % rank for rank, piece in enumerate(pieces)]
    content = b"\n".join(lines)
    (folder / hashlib.sha1(b"https://files.test/tiny.tiktoken").hexdigest()).write_bytes(content)
    encodings = tmp_path / "packages" / "tiktoken_ext"
    encodings.mkdir(parents=True)
    source = TINY.format(hash=hashlib.sha256(content).hexdigest())
    (encodings / "openai_public.py").write_text(source)
    monkeypatch.syspath_prepend(encodings.parent)
    found = Tokenizers().find("openai/gpt-4o", may_block=True)
    assert found is not None
    # the, a space, the, a space, five letters, and a surrogate's replacement of three bytes.
    assert found.count(Prompt({"prompt": "the the ocean"})) == 9
    assert found.count(Prompt({"prompt": "\ud800"})) == 3


@pytest.mark.parametrize("name", ["tiktoken/load.py", "tiktoken_ext/openai_public.py"])
def test_a_tiktoken_of_another_layout_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: None, name: str
) -> None:
    pretend(tmp_path, monkeypatch, **{name: ""})
    assert Tokenizers().find("known", may_block=True) is None
    assert importlib.import_module("tiktoken").loaded == []
