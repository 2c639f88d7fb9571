"""Small tokenizers, trained on the spot: byte-level as GPT-2, Llama 3 and Qwen have them, and with
bytes as a fallback as Llama 2 and Mistral have them, by merges and by likelihood."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

TEXT = """The quick brown fox jumps over the lazy dog, and the dog barks at the fox.
Grüße aus Köln: naïve cafés, e\u0301te\u0301 and A\u030a, x\u0302y\u0302.
世界你好。天気がいいですね。안녕하세요 세계. 日本語の文章です。
👋🏽 hello 👩‍👩‍👧‍👦 family 🏳️‍🌈 🚀🚀 done ✅ stop 🛑
for i in range(10):\n    print(i)\n\n\n        return None
"""
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'assistant' and loop.first %}"
    "{{ raise_exception('a user speaks first') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SPECIAL = ["<unk>", "<s>", "</s>"]


def _finished(made: Any, **more: Any) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=TEMPLATE,
        **more,
    )


@functools.cache
def byte_level() -> Any:
    """Merges over bytes: a character, and the space before it, may be cut anywhere."""
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    return _finished(made)


@functools.cache
def _pieces_of_text() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Merges over the 40 commonest characters, and a vocabulary that has all bytes before them."""
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=150, limit_alphabet=40, special_tokens=SPECIAL, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    trained = json.loads(made.to_str())["model"]
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    names += [name for name in trained["vocab"] if name not in names]
    merges = [tuple(pair) for pair in trained["merges"]]
    return {name: token for token, name in enumerate(names)}, merges


def _as_llama(model: Any) -> Any:
    """Spaces are ▁, one is put before the text and taken off again; <s> comes before a prompt."""
    from tokenizers import decoders, normalizers, processors

    made = tokenizers.Tokenizer(model)
    made.add_special_tokens(SPECIAL)
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return _finished(made)


@functools.cache
def byte_fallback() -> Any:
    """Merges over characters; those outside the vocabulary are written as bytes."""
    from tokenizers import models

    vocab, merges = _pieces_of_text()
    return _as_llama(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )


@functools.cache
def unigram() -> Any:
    """The likeliest cut of a text into the same pieces."""
    from tokenizers import models

    vocab, _ = _pieces_of_text()
    scored = [(name, -1.0 - token / 10) for name, token in vocab.items()]
    return _as_llama(models.Unigram(scored, unk_id=0, byte_fallback=True))


ALL = {"byte_level": byte_level, "byte_fallback": byte_fallback, "unigram": unigram}
