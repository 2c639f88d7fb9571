"""Exact tokenizers where tiktoken and its files are on this machine. Never from the network.

tiktoken keeps an encoding's file in a folder of its own and downloads it where it is missing. Here
its loader runs in a private copy whose download always fails. So the folder (and the environment
variable that names it), the file's name and its checksum remain tiktoken's business, and all that
can happen is that there is a tokenizer or that there is none.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from redline.calls.tokens.prompt import Prompt

# Tokenizing is the loop's time: 50 to 300 us for a KB. A longer text is measured by its sample.
_MOST_CHARS = 4096
# Models with a name of their own that are remembered; those beyond are estimated.
_MOST_MODELS = 64
# A broken install, an unknown model, a missing or damaged file, another version's layout.
_REASONS = (
    ImportError, LookupError, OSError, ValueError, TypeError, AttributeError, AssertionError,
)  # fmt: skip


class Tokenizer:
    """Counts by `encode`, which gives the tokens of a text."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        self._encode = encode

    def count(self, prompt: Prompt) -> float:
        """Tokens of the prompt's texts; extrapolated where they are longer than 4,096 characters.

        Texts are joined: a border between two is a token more or less.
        """
        if not prompt.length:
            return 0.0
        sample = prompt.sample(_MOST_CHARS)
        return len(self._encode(sample)) * prompt.length / max(1, len(sample))


class Tokenizers:
    """By model. Loaded in a thread, 0.3 to 1.5 s for each, and shared by all who ask."""

    def __init__(self) -> None:
        self._by_model: dict[str, Tokenizer | None] = {}
        self._by_encoding: dict[str, Tokenizer] = {}
        self._is_installed: bool | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def find(self, model: str, *, may_block: bool = False) -> Tokenizer | None:
        """The model's tokenizer, None where there is none or it is still being loaded.

        may_block: waits for it. Raises nothing.
        """
        if model in self._by_model or len(self._by_model) >= _MOST_MODELS:
            return self._by_model.get(model)
        if self._is_installed is None:
            self._is_installed = find_spec("tiktoken") is not None
        if not self._is_installed:
            return None
        if may_block:
            self._load(model)
            return self._by_model.get(model)
        # One thread at a time; whoever asks for another model asks again with its next call. It
        # is not a daemon: ending the process inside a foreign library's code could crash it.
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._load, args=(model,), name="tokenizer")
            self._thread.start()
        return None

    def _load(self, model: str) -> None:
        with self._lock:
            if model not in self._by_model:
                self._by_model[model] = self._loaded(model)

    def _loaded(self, model: str) -> Tokenizer | None:
        try:
            names: Any = importlib.import_module("tiktoken.model")
            # Routers put the provider in front: `openai/gpt-4o`.
            name = names.encoding_name_for_model(model.rpartition("/")[2])
            if name not in self._by_encoding:
                self._by_encoding[name] = Tokenizer(_encoding(name).encode_ordinary)
            return self._by_encoding[name]
        except _REASONS:
            return None


TOKENIZERS = Tokenizers()


def _encoding(name: str) -> Any:
    """tiktoken's encoding from its files on this machine. Raises one of _REASONS."""
    loader, encodings = _private("tiktoken.load"), _private("tiktoken_ext.openai_public")
    for module, parts in (
        (loader, ("read_file", "load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks")),
        (encodings, ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks")),
    ):
        for part in parts:
            if not hasattr(module, part):
                raise LookupError(f"this tiktoken has no {module.__name__}.{part}")
    vars(loader)["read_file"] = _refuse
    vars(encodings)["load_tiktoken_bpe"] = loader.load_tiktoken_bpe
    vars(encodings)["data_gym_to_mergeable_bpe_ranks"] = loader.data_gym_to_mergeable_bpe_ranks
    encoding: Any = importlib.import_module("tiktoken").Encoding
    return encoding(**encodings.ENCODING_CONSTRUCTORS[name]())


def _private(name: str) -> ModuleType:
    """A second instance of a module, that nobody else sees. Raises ImportError."""
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _refuse(address: str) -> bytes:
    raise FileNotFoundError(f"{address} is not in tiktoken's folder")
