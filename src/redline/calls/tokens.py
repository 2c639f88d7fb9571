"""How many tokens a call will use, learned from the usage that comes back.

The first guess is 4 bytes of text to a token for Latin scripts and one token to a CJK character;
each reply's `usage` then corrects a factor. What is reserved too much or too little is settled
after the call.
"""

from __future__ import annotations

from typing import Any

from redline.calls.backend import Cost, Request
from redline.calls.outcome import Reply

_CHARS_PER_TOKEN = 4.0
# Role markers and separators: 3 to 4 tokens a message in OpenAI's chat format.
_TOKENS_PER_MESSAGE = 4
_FIRST_OUTPUT_TOKENS = 256
# A 1024 x 1024 image in OpenAI's pricing: 85 + 4 tiles of 170. Its base64 text says nothing.
_MEDIA_TOKENS = 765.0
_LEARNING_RATE = 0.05
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_TEXT_FIELDS = ("messages", "prompt", "input", "instructions", "tools", "response_format")


class TokenEstimator:
    """Estimates for one endpoint and model. Synchronous and cheap: no tokenizer is loaded."""

    def __init__(self) -> None:
        self._input_factor = 1.0
        self._output_mean: float | None = None
        self._output_deviation = 0.0

    def estimate(self, request: Request) -> Cost:
        """The tokens a call of `request` will use, input and output each at least 1.

        Output: what replies used so far, mean plus two mean deviations, bounded by the request's
        own maximum; before the first reply that maximum, or 256.
        """
        body = request.body
        if not isinstance(body, dict):
            return Cost(1, 1)
        input_tokens = max(1, round(_body_units(body) * self._input_factor))
        if request.url.endswith("/embeddings"):
            return Cost(input_tokens, 0)
        return Cost(input_tokens, max(1, self._output_tokens(body)))

    def least(self, request: Request) -> int:
        """Input tokens by the first guess alone: what is learned may be another kind of row's."""
        return max(1, round(_body_units(request.body))) if isinstance(request.body, dict) else 1

    def learn(self, request: Request, reply: Reply) -> None:
        """Corrects the estimates by a reply's usage; does nothing where it has none."""
        if reply.input_tokens and isinstance(request.body, dict):
            guess = self.estimate(request).input_tokens / self._input_factor
            ratio = reply.input_tokens / max(1.0, guess)
            self._input_factor += _LEARNING_RATE * (ratio - self._input_factor)
        if reply.output_tokens is not None:
            self._learn_output(reply.output_tokens)

    def _learn_output(self, tokens: int) -> None:
        if self._output_mean is None:
            self._output_mean = float(tokens)
            self._output_deviation = tokens / 2
            return
        error = tokens - self._output_mean
        self._output_mean += _LEARNING_RATE * error
        self._output_deviation += _LEARNING_RATE * (abs(error) - self._output_deviation)

    def _output_tokens(self, body: dict[str, Any]) -> int:
        limits = (body.get(name) for name in _OUTPUT_LIMITS)
        most = next((limit for limit in limits if isinstance(limit, int)), None)
        copies = body["n"] if isinstance(body.get("n"), int) else 1
        if self._output_mean is None:
            return (most if most is not None else _FIRST_OUTPUT_TOKENS) * copies
        learned = round(self._output_mean + 2 * self._output_deviation)
        return learned if most is None else min(learned, most * copies)


def _body_units(body: dict[str, Any]) -> float:
    return sum(_text_units(body[name]) for name in _TEXT_FIELDS if name in body)


def _text_units(value: Any) -> float:
    """Tokens of all text inside `value` by the first guess."""
    if isinstance(value, str):
        if value.startswith("data:"):
            return _MEDIA_TOKENS
        if value.isascii():
            return len(value) / _CHARS_PER_TOKEN
        wide = sum(1 for char in value if char >= "\u2e80")
        return wide + (len(value) - wide) / _CHARS_PER_TOKEN * 1.3
    if isinstance(value, dict):
        inner = sum(_text_units(item) for item in value.values())
        return inner + (_TOKENS_PER_MESSAGE if "role" in value else 0)
    if isinstance(value, (list, tuple)):
        return sum(_text_units(item) for item in value)
    return 0.25 if value is not None else 0.0
