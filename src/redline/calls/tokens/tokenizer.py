"""Loads exact tokenizers, if tiktoken and its files are on this machine; never downloads them.

tiktoken stores the file of an encoding in a folder, and downloads a missing or damaged file. So an
encoding is loaded only if its file exists and is undamaged.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from redline.calls.tokens.prompt import Prompt

# Longer texts are sampled: tokenizing blocks the event loop for 50 to 300 us per KB.
_MOST_CHARS = 4096
# The most model names that are looked up; other models are estimated without a tokenizer.
_MOST_MODELS = 64
# The file from which tiktoken reads each encoding: its name, which is the SHA-1 of its download
# address, and its SHA-256, both as in tiktoken_ext/openai_public.py. No model that OpenAI serves
# uses the encodings that are left out.
_O200K = (
    "fb374d419588a4632f3f557e76b4b70aebbca790",
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
)
FILES = {
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": _O200K,
    "o200k_harmony": _O200K,
}
# Raised for a broken installation, an unknown model, a missing or damaged file, or another version.
_REASONS = (
    ImportError, LookupError, OSError, ValueError, TypeError, AttributeError, AssertionError,
)  # fmt: skip


class Tokenizer:
    """Counts tokens. encode: returns the tokens of a text."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        self._encode = encode

    def count(self, prompt: Prompt) -> float:
        """Counts the tokens of the prompt's texts; extrapolates above 4,096 characters.

        Texts are joined, so each boundary between two texts may add or lose a token.
        """
        if not prompt.length:
            return 0.0
        sample = prompt.sample(_MOST_CHARS)
        return len(self._encode(sample)) * prompt.length / max(1, len(sample))


class Tokenizers:
    """Tokenizers by model, each loaded in 0.3 to 1.5 s, and shared by all callers."""

    def __init__(self) -> None:
        self._by_model: dict[str, Tokenizer | None] = {}
        self._by_encoding: dict[str, Tokenizer] = {}
        self._is_installed: bool | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def find(self, model: str, *, may_block: bool = False) -> Tokenizer | None:
        """Returns the model's tokenizer; None if there is none or it is still being loaded.

        may_block: whether to wait until it is loaded. Raises nothing.
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
        # One thread at a time: for another model, a later call starts the next thread. The thread
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
            # Routers put the provider's name first: `openai/gpt-4o`.
            name = names.encoding_name_for_model(model.rpartition("/")[2])
            if name not in self._by_encoding:
                _check_file(name)
                tiktoken: Any = importlib.import_module("tiktoken")
                self._by_encoding[name] = Tokenizer(tiktoken.get_encoding(name).encode_ordinary)
            return self._by_encoding[name]
        except _REASONS:
            return None


TOKENIZERS = Tokenizers()


def _check_file(encoding: str) -> None:
    """Raises one of _REASONS unless tiktoken can read the encoding without a download."""
    # Imported here: it imports modules for archives, which the start of a command does not need.
    from tempfile import gettempdir

    name, digest = FILES[encoding]
    folder = os.path.join(gettempdir(), "data-gym-cache")
    for variable in ("DATA_GYM_CACHE_DIR", "TIKTOKEN_CACHE_DIR"):
        folder = os.environ.get(variable, folder)
    # If the variable is empty, tiktoken stores no files.
    if not folder or hashlib.sha256(Path(folder, name).read_bytes()).hexdigest() != digest:
        raise LookupError(f"the vocabulary file of {encoding} is missing or damaged")
