"""Guides decoding: finds the tokens that a JSON schema allows at each place of an answer.

llguidance keeps the state of the grammar and lists the allowed tokens. The logits of all other
tokens become -inf before any distribution is computed, so all tokens follow the schema: greedy
tokens, seeded tokens and drafts. Drafts are tried and rolled back: the state advances only by the
tokens that a sequence keeps, whatever is rejected or preempted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor
from torch.nn.functional import embedding

from redline.errors import Rejected

# JSON allows any amount of white space between its parts, and some models would write it endlessly.
# One space, or a line end and some indentation, is enough.
_WHITESPACE = r" |\n[ \t]{0,20}"
# The number of schemas whose grammars are kept; the rows of a job mostly share one schema.
_KEPT = 8
_LONGEST_REASON_CHARS = 300
# (256, 8): what each byte of a mask adds to the logits of its eight tokens, lowest bit first.
# Looking values up here and adding them takes a fifth of the time of unpacking the bits and filling
# the logits.
_ADDED = torch.where((torch.arange(256)[:, None] >> torch.arange(8)) & 1 == 1, 0.0, -torch.inf)


class Guide:
    """The state of one answer in its grammar.

    ended: `stop` once the grammar is complete and nothing may follow; an error if the grammar can
    no longer be followed; None while the answer continues.
    """

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self.ended: str | Rejected | None = None

    def fitting(self, drafted: list[int]) -> int:
        """Returns how many drafted tokens are allowed before the first that is not."""
        fitting: int = self._matcher.validate_tokens(drafted)
        return fitting

    def masks(self, drafted: list[int], count: int) -> list[bytes]:
        """Returns the tokens allowed at each of `count` places, as masks with a bit for each token.

        The last place is after all drafts, the others are before the last drafts. The bits are in
        token order, the lowest bit of a byte first. After a draft that does not fit, every token is
        allowed, because such a place is not used.
        """
        masks: list[bytes] = []
        begin, tried = len(drafted) + 1 - count, 0
        for token in [*drafted, None]:
            if tried >= begin:
                masks.append(self._mask())
            if token is None or self._matcher.is_stopped():
                break
            if not self._matcher.try_consume_tokens([token]):
                break
            tried += 1
        self._matcher.rollback(tried)
        return masks + [_any_token(masks[0] if masks else self._mask())] * (count - len(masks))

    def take(self, tokens: list[int]) -> list[int]:
        """Advances by new tokens. Returns those up to the answer's end; none if any is invalid."""
        matcher = self._matcher
        for place, token in enumerate(tokens):
            if matcher.is_error() or not matcher.consume_token(token):
                self.ended = _lost(matcher)
                return []
            if matcher.is_stopped():
                self.ended = "stop" if matcher.is_accepting() else _lost(matcher)
                return tokens[: place + 1]
        return tokens

    def _mask(self) -> bytes:
        """Returns a mask of the tokens allowed now, or of all tokens if none is allowed.

        A row without any allowed token would not be a distribution; `take` then reports an error.
        """
        mask: bytes = self._matcher.compute_bitmask()
        return mask if mask.count(0) < len(mask) else _any_token(mask)


class Grammars:
    """Makes guides for a model.

    tokenizer: a tokenizer of transformers. vocabulary: the number of the model's tokens. ends: the
    model's end tokens, which are allowed only after complete JSON.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = sorted(ends)
        self._compiled = lru_cache(maxsize=_KEPT)(self._compile)

    def guide(self, schema: dict[str, Any]) -> Guide:
        """Returns the guide of one answer. Raises Rejected for a schema that cannot be followed.

        A new schema takes a few milliseconds; the very first takes about a second more if the
        vocabulary is large. May be called from any thread.
        """
        try:
            matcher = self._compiled(msgspec.json.encode(schema))
        except (ValueError, RecursionError) as error:
            what = f"the schema in `response_format` cannot be followed: {_on_one_line(str(error))}"
            hint = (
                "remove the part that the message names, and check the answer against it yourself"
            )
            raise Rejected(what, hint=hint) from error
        return Guide(matcher.deep_copy())

    @cached_property
    def _tokens(self) -> LLTokenizer:
        size = max(self._vocabulary, len(self._tokenizer))
        try:
            return from_tokenizer(self._tokenizer, n_vocab=size, eos_token=self._ends or None)
        except ValueError as error:
            what = f"this model's answers cannot be made to follow a schema: {error}"
            raise Rejected(what) from error

    def _compile(self, schema: bytes) -> LLMatcher:
        grammar = LLMatcher.grammar_from_json_schema(
            schema.decode(), defaults={"whitespace_pattern": _WHITESPACE}
        )
        matcher = LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher


def masked(logits: Tensor, rows: Iterable[tuple[Guide | None, list[int], int]]) -> Tensor:
    """Returns (R, V) logits with -inf for tokens not allowed; `logits` itself if no row is guided.

    rows: for each sequence in turn, its guide, its drafts, and the number of its rows in `logits`;
    the last row is for the place after all of its drafts.
    """
    guided: list[int] = []
    masks: list[bytes] = []
    begin = 0
    for guide, drafted, count in rows:
        if guide is not None:
            guided += range(begin, begin + count)
            masks += guide.masks(drafted, count)
        begin += count
    if not guided:
        return logits
    bits = torch.frombuffer(bytearray(b"".join(masks)), dtype=torch.uint8)
    bits = bits.view(len(masks), -1).to(logits.device, torch.int32)
    added = embedding(bits, _ADDED.to(logits.device)).flatten(1)[:, : logits.shape[-1]]
    return logits.index_add(0, torch.tensor(guided, device=logits.device), added)


def _any_token(mask: bytes) -> bytes:
    return b"\xff" * len(mask)


def _lost(matcher: Any) -> Rejected:
    reason = _on_one_line(matcher.get_error() or matcher.stop_reason())
    what = f"the answer cannot be continued within the schema of `response_format`: {reason}"
    return Rejected(what, hint="try a simpler schema")


def _on_one_line(reason: str) -> str:
    return " ".join(reason.split())[:_LONGEST_REASON_CHARS]
