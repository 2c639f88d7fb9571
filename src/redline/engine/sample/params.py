"""Checks the sampling parameters of a request: OpenAI's, and those that vLLM adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from redline.errors import Rejected

# As in vLLM: a temperature below this counts as 0, so that 1 / temperature fits a float32.
_LEAST_TEMPERATURE = 1e-5

# OpenAI's ranges. The three parameters that OpenAI lacks have vLLM's ranges, except that a
# repetition penalty above 10 would be useless: it leaves almost nothing of a logit.
_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 10.0),
    "n": (1, 128),
    "logprobs": (0, 20),
    "max_tokens": (1, 2**31),
    "top_k": (-1, 2**31),
    "seed": (-(2**63), 2**64 - 1),
}
_BIASES = (-100.0, 100.0)
_Stops = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=16)
]
# Every bias is added to the logits of every token of every answer.
_Biases = Annotated[Mapping[int, float], Meta(max_length=1024)]
# Every stop token is compared with every token of every answer.
_StopTokens = Annotated[tuple[int, ...], Meta(max_length=128)]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters of one request, which determine its tokens and where its text ends.

    temperature: 0 is greedy. top_k: 0 or -1 for all tokens. seed: in float32, the same seed gives
    the same tokens, whatever else is computed; None for random noise. max_tokens: the most tokens
    of an answer; None if not given, then see `Asked.most_tokens`. logprobs: the number of likely
    tokens to report with each chosen token; None for no log probabilities. n: the number of
    answers.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: _Biases = msgspec.field(default_factory=dict)
    seed: int | None = None
    stop: _Stops = ()
    stop_token_ids: _StopTokens = ()
    max_tokens: int | None = None
    logprobs: int | None = None
    n: int = 1
    ignore_eos: bool = False

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the most likely one."""
        return self.temperature < _LEAST_TEMPERATURE

    @property
    def is_adjusted(self) -> bool:
        """Whether a bias or a penalty changes the model's logits."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return bool(self.logit_bias) or penalties != (0.0, 0.0, 1.0)

    def check(self, vocabulary: int) -> None:
        """Raises Rejected, with the parameter's name, for the first parameter that is not valid.

        vocabulary: the number of the model's tokens; ids in `logit_bias` and `stop_token_ids` must
        be below it. NaN is never in range.
        """
        told = [(name, getattr(self, name), bounds) for name, bounds in _RANGES.items()]
        for token, bias in self.logit_bias.items():
            told.append((f"logit_bias.{token}", bias, _BIASES))
        for name, value, (least, most) in told:
            if value is not None and not least <= value <= most:
                raise Rejected(f"`{name}` is {value}", hint=f"it must be from {least} to {most}")
        named = {"logit_bias": self.logit_bias, "stop_token_ids": self.stop_token_ids}
        for name, tokens in named.items():
            for token in tokens:
                if not 0 <= token < vocabulary:
                    raise Rejected(
                        f"`{name}` names token {token}, but the model has {vocabulary} tokens",
                        hint=f"token ids are from 0 to {vocabulary - 1}",
                    )
        if "" in self.stop:
            raise Rejected(
                "`stop` has an empty string", hint="leave it out: it would end every text at once"
            )
