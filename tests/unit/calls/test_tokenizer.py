"""Exact counts if tiktoken and its files are on this machine, and never from the network."""

from __future__ import annotations

import base64
import hashlib
import importlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redline.calls import Request, TokenEstimator
from redline.calls.tokens import Prompt, Tokenizer, Tokenizers, tokenizer


def by_characters(text: str) -> range:
    return range(len(text))


# A tiktoken whose encodings have a token for each character. `gate` is called for each it loads.
PRETENDED = {
    "tiktoken/__init__.py": """
loaded = []
gate = lambda: None

def get_encoding(name):
    loaded.append(name)
    gate()
    return Encoding()

class Encoding:
    def encode_ordinary(self, text):
        return range(len(text))
""",
    "tiktoken/model.py": """
names = {"known": "cl100k_base", "also": "cl100k_base", "broken": "o200k_base", "new": "o300k"}
encoding_name_for_model = names.__getitem__
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

    # A thread of an earlier test may be about to import it.
    wait_for_threads()
    before = forget()
    yield
    wait_for_threads()
    forget()
    sys.modules.update(before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """tiktoken's folder, empty."""
    folder = tmp_path / "encodings"
    folder.mkdir()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    return folder


def put(folder: Path, monkeypatch: pytest.MonkeyPatch, *encodings: str) -> None:
    """Puts files of these encodings into the folder, which count as undamaged."""
    for encoding in encodings:
        name, _ = tokenizer.FILES[encoding]
        (folder / name).write_text(encoding)
        digest = hashlib.sha256(encoding.encode()).hexdigest()
        monkeypatch.setitem(tokenizer.FILES, encoding, (name, digest))


@pytest.fixture
def pretended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: None
) -> Any:
    """A tiktoken that knows `known`, `also` and `broken`; `loaded` names what it has loaded."""
    for name, text in PRETENDED.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    put(folder, monkeypatch, "cl100k_base", "o200k_base")
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
    assert pretended.loaded == ["cl100k_base"]


def test_models_share_an_encoding_and_a_router_is_no_part_of_the_name(
    pretended: Any,
) -> None:
    tokenizers = Tokenizers()
    first = tokenizers.find("known", may_block=True)
    assert first is not None
    assert tokenizers.find("router/also", may_block=True) is first
    assert pretended.loaded == ["cl100k_base"]


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
    assert pretended.loaded == ["o200k_base"]
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


def test_an_encoding_whose_file_is_not_known_is_not_asked_for(pretended: Any) -> None:
    assert Tokenizers().find("new", may_block=True) is None
    assert pretended.loaded == []


@pytest.mark.parametrize("variable", ["DATA_GYM_CACHE_DIR", "TMPDIR"])
def test_the_folder_is_where_tiktoken_looks(
    pretended: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("DATA_GYM_CACHE_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(folder.parent))
    if variable == "TMPDIR":
        monkeypatch.delenv("DATA_GYM_CACHE_DIR")
        folder.rename(folder.parent / "data-gym-cache")
    else:
        monkeypatch.setenv(variable, str(folder))
    assert Tokenizers().find("known", may_block=True) is not None


def test_there_is_none_if_tiktoken_keeps_no_files(
    pretended: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    assert Tokenizers().find("known", may_block=True) is None
    assert pretended.loaded == []


# With the real tiktoken.


@pytest.fixture
def asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the real tiktoken would download."""
    pytest.importorskip("tiktoken", reason="tiktoken, the extra `tokens`, is not installed")
    found: list[str] = []

    def get(address: str, **options: Any) -> Any:
        found.append(address)
        raise OSError("the network was asked")

    monkeypatch.setitem(sys.modules, "requests", SimpleNamespace(get=get))
    return found


@pytest.mark.parametrize("content", [None, b"YQ== 0\n"])
def test_a_missing_or_damaged_file_is_not_downloaded(
    folder: Path, asked: list[str], content: bytes | None
) -> None:
    if content is not None:
        for name, _ in tokenizer.FILES.values():
            (folder / name).write_bytes(content)
    before = sorted(folder.iterdir())
    for model in ("gpt-4", "gpt-4o", "gpt-oss-20b", "gpt2", "code-davinci-edit-001"):
        assert Tokenizers().find(model, may_block=True) is None
    assert not asked
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("encoding", tokenizer.FILES)
def test_the_files_are_those_that_tiktoken_reads(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], encoding: str
) -> None:
    """tiktoken reads a file of the name, and expects the digest."""
    load = importlib.import_module("tiktoken.load")
    name, digest = tokenizer.FILES[encoding]
    content = b"\n".join(base64.b64encode(bytes([byte])) + b" %d" % byte for byte in range(256))
    (folder / name).write_bytes(content)
    expected: list[str] = []
    monkeypatch.setattr(load, "check_hash", lambda data, digest: expected.append(digest) or True)
    registry = importlib.import_module("tiktoken.registry")
    monkeypatch.setattr(registry, "ENCODINGS", {})
    found = registry.get_encoding(encoding)
    assert expected == [digest]
    assert not asked
    # A surrogate is replaced by a character of three bytes.
    assert Tokenizer(found.encode_ordinary).count(Prompt({"prompt": "\ud800"})) == 3
