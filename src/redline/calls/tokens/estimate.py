"""How many tokens a call will use, learned from the usage that comes back.

Input: characters by class, each class with its weight, messages and a constant; or the count of an
exact tokenizer where there is one. Output: what replies used (pending_outputs.py). All of it by
model. What is reserved too much or too little is settled after the call.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

import msgspec

from redline.apis import APIS, api_of, drafts, number
from redline.calls.tokens.kalman import Prior, Weights
from redline.calls.tokens.pending_outputs import PendingOutputs
from redline.calls.tokens.prompt import Prompt
from redline.calls.tokens.tokenizer import TOKENIZERS, Tokenizer, Tokenizers
from redline.limits import Cost
from redline.limits.rule import CERTAIN, Spread
from redline.waist import Reply, Request

# Enough to be steady, few enough to forget how it began.
_RECENT = 256
# How far the first guess, before any reply, was off in the mean: by 8 to 21 % in English, code,
# JSON, Chinese and Japanese text under the tokenizers cl100k_base, o200k_base and DeepSeek's, by 13
# to 27 % in German and Russian manual pages.
FIRST_GUESS_ERROR = 0.2

# OpenAI's chat format adds 4 tokens a message and 3 to begin the answer: 5 a message is right for
# three of them. The constant may grow to a system prompt that the server puts in front.
_CONSTANT = Prior(0.0, 100.0, 20_000.0)
_MESSAGE = Prior(5.0, 3.0, 100.0)
# A 1024 x 1024 image in OpenAI's pricing: 85 + 4 tiles of 170.
_MEDIA = Prior(765.0, 400.0, 10_000.0)
# Tokens for each character of prompt.CLASSES. The first values are the least-squares fit to
# English, code, JSON and CJK text under the tokenizers above, rounded. The deviations cover what
# each kind would give by itself: in plain prose nearly all weight is on the spaces.
_BY_CLASS = (
    _CONSTANT,
    _MESSAGE,
    _MEDIA,
    Prior(0.25, 0.1, 2.0),
    Prior(0.2, 0.4, 2.0),
    Prior(0.9, 0.4, 2.0),
    Prior(0.25, 0.4, 2.0),
    Prior(0.45, 0.3, 3.0),
    Prior(0.95, 0.4, 4.0),
)
_BY_TOKEN = (_CONSTANT, _MESSAGE, _MEDIA, Prior(1.0, 0.1, 2.0))
# Long texts are judged by so many of their characters, which bounds the time.
_MOST_CHARS = 4096
# Half the first guess for a letter or digit, less for others, where tokenizers differ more.
# Spaces and marks may come in runs that are one token.
_LEAST_LETTER, _LEAST_DIGIT, _LEAST_ACCENTED, _LEAST_WIDE = 0.12, 0.25, 0.1, 0.3

_FIRST_OUTPUT_TOKENS = 256
# Above what any model answers at once: a usage or a wish beyond it is a false one.
_MOST_OUTPUT_TOKENS = 1_000_000
OUTPUT_LIMITS = tuple(dict.fromkeys(name for api in APIS for name in api.output_limits))

_MODELS_KEPT = 32
_LONGEST_NAME = 256

# Learning the input costs ten times as much as all else at a call's end. So once it is settled, one
# reply in eight teaches it.
_SHARE = 1 / 8
# Multiples of the golden ratio fall evenly between whole numbers, and those of every n-th call do,
# too: where rows of two kinds take turns, both teach.
_GOLDEN = (math.sqrt(5) - 1) / 2


class Accuracy(msgspec.Struct, frozen=True):
    """Errors of estimates relative to what was used, weighted by tokens, over the latest `calls`.

    bias: signed, above 0 where too much was estimated. absolute: 0 or more. 0.08 is 8 %. Both are
    None before the first reply.
    """

    calls: int = 0
    bias: float | None = None
    absolute: float | None = None


class TokenAccuracy(msgspec.Struct, frozen=True):
    """Of input and output. An output is estimated high on purpose, so its bias is above 0."""

    input: Accuracy
    output: Accuracy


class Comparison:
    """Estimates beside what was used, of the last 256 calls."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[int, int]] = deque(maxlen=_RECENT)

    def add(self, estimated: int, used: int) -> None:
        self._pairs.append((estimated, used))

    def accuracy(self) -> Accuracy:
        used = sum(pair[1] for pair in self._pairs)
        if not used:
            return Accuracy(len(self._pairs))
        off = [estimated - used for estimated, used in self._pairs]
        return Accuracy(len(off), sum(off) / used, sum(map(abs, off)) / used)


class _Model:
    """What is known of one model."""

    def __init__(self) -> None:
        self.by_class = Weights(_BY_CLASS)
        self.by_token = Weights(_BY_TOKEN)
        self.outputs = PendingOutputs()
        self._replies = 0

    def weights(self, tokenizer: Tokenizer | None) -> Weights:
        """Those of the input that are in use."""
        return self.by_class if tokenizer is None else self.by_token

    def counts_reply(self, weights: Weights) -> bool:
        """A reply has come; True where it is one for these weights to learn from."""
        self._replies += 1
        return not weights.is_settled or self._replies * _GOLDEN % 1 < _SHARE


class Sending(NamedTuple):
    """A call on its way: what is to learn from it, and its number there."""

    model: _Model | None
    number: int


class TokenEstimator:
    """Estimates for the models of one endpoint. Synchronous and cheap; raises nothing.

    may_block: waits up to 1.5 s, once for each encoding, for a tokenizer to be loaded, rather than
    estimating without it meanwhile.
    """

    def __init__(self, tokenizers: Tokenizers = TOKENIZERS, *, may_block: bool = False) -> None:
        self._tokenizers = tokenizers
        self._may_block = may_block
        # In order of use, the latest last.
        self._models: dict[str, _Model] = {}
        self._unknown = _Model()
        self._inputs = Comparison()
        self._outputs = Comparison()

    def estimate(self, request: Request) -> Cost:
        """The tokens a call of `request` will use, input and output each at least 1.

        Output: the mean of those in flight, and how far it may lie from that, so that whoever adds
        up many calls can keep the quantile of their sum free; the quantiles of single calls add up
        to far more. Before twenty replies the request's own maximum, or 256 or the largest reply
        so far. Embeddings have none.
        """
        body = request.body
        if not isinstance(body, dict):
            return Cost(1, 1)
        name = _name(body)
        model = self._models.get(name, self._unknown)
        prompt = Prompt(body)
        tokenizer = self._tokenizer(name)
        amounts = _amounts(prompt, tokenizer)
        input_tokens = _input_tokens(model.weights(tokenizer), amounts, prompt)
        if not api_of(request.url).has_output:
            return Cost(input_tokens, 0)
        return Cost(input_tokens, *_output(model, body))

    def most(self, request: Request) -> Cost:
        """What a provider charges that counts the whole maximum at admission, used or not.

        As the estimate where the request states no maximum.
        """
        cost, body = self.estimate(request), request.body
        most = _most_output(body) if isinstance(body, dict) else None
        if most is None or not cost.output_tokens:
            return cost
        return Cost(cost.input_tokens, most * drafts(body))

    def least(self, request: Request) -> int:
        """Input tokens that the call surely costs, about half of the true number.

        What is learned plays no part: it may be another kind of row's, and a row above the limit
        is refused for good.
        """
        return _least(Prompt(request.body)) if isinstance(request.body, dict) else 1

    def first_error(self, request: Request) -> float:
        """How far the input's first guess is off in the mean: 0.2 is 20 %; 0 with a tokenizer."""
        body = request.body
        is_exact = isinstance(body, dict) and self._tokenizer(_name(body)) is not None
        return 0.0 if is_exact else FIRST_GUESS_ERROR

    def begin(self, request: Request) -> Sending:
        """A call of `request` is sent now; give what this returns to `end`."""
        body = request.body
        if not isinstance(body, dict):
            return Sending(None, 0)
        model = self._model(_name(body))
        return Sending(model, model.outputs.begin())

    def end(self, sending: Sending, request: Request, reply: Reply | None, took_s: float) -> None:
        """The call is over after took_s; corrects the estimates by its reply's usage.

        A usage that cannot be true (no positive number, or far off) moves them little or not.
        """
        model, body = sending.model, request.body
        if model is None or not isinstance(body, dict):
            return
        each: int | None = None
        if reply is not None:
            teaches = self._learn_input(model, body, reply)
            if api_of(request.url).has_output:
                each = self._learn_output(model, body, reply, is_compared=teaches)
        model.outputs.end(sending.number, each, took_s)

    def accuracy(self) -> TokenAccuracy:
        """How far recent estimates were off, each as it stood when its reply came.

        Of the replies that the input is learned from: all at first, then one in eight.
        """
        return TokenAccuracy(self._inputs.accuracy(), self._outputs.accuracy())

    def _tokenizer(self, name: str) -> Tokenizer | None:
        return self._tokenizers.find(name, may_block=self._may_block) if name else None

    def _learn_input(self, model: _Model, body: dict[str, Any], reply: Reply) -> bool:
        """True where this reply is one to learn from."""
        tokenizer = self._tokenizer(_name(body))
        weights = model.weights(tokenizer)
        teaches = model.counts_reply(weights)
        used = _count(reply.input_tokens)
        if used and teaches:
            prompt = Prompt(body)
            amounts = _amounts(prompt, tokenizer)
            estimated = _input_tokens(weights, amounts, prompt)
            # No true usage is further off than this.
            used = min(used, 100 * estimated + int(_CONSTANT.most))
            self._inputs.add(estimated, used)
            weights.learn(amounts, used - prompt.ids)
        return teaches

    def _learn_output(
        self, model: _Model, body: dict[str, Any], reply: Reply, *, is_compared: bool
    ) -> int | None:
        """Tokens of one choice; None where the reply does not tell them."""
        used = _count(reply.output_tokens)
        if used is None:
            return None
        copies, most = drafts(body), _most_output(body)
        each = min(-(-used // copies), _MOST_OUTPUT_TOKENS if most is None else most)
        if is_compared:
            self._outputs.add(_output(model, body)[0], each * copies)
        return each

    def _model(self, name: str) -> _Model:
        model = self._models.pop(name, None) or _Model()
        self._models[name] = model
        if len(self._models) > _MODELS_KEPT:
            del self._models[next(iter(self._models))]
        return model


def _amounts(prompt: Prompt, tokenizer: Tokenizer | None) -> tuple[float, ...]:
    """What the weights that are in use weigh."""
    if tokenizer is not None:
        return 1.0, prompt.messages, prompt.media, tokenizer.count(prompt)
    return 1.0, prompt.messages, prompt.media, *prompt.classes(_MOST_CHARS)


def _input_tokens(weights: Weights, amounts: tuple[float, ...], prompt: Prompt) -> int:
    return max(1, round(weights.value(amounts)) + prompt.ids)


def _least(prompt: Prompt) -> int:
    letters, _, digits, _, accented, wide = prompt.classes(_MOST_CHARS)
    text = (
        letters * _LEAST_LETTER
        + digits * _LEAST_DIGIT
        + accented * _LEAST_ACCENTED
        + wide * _LEAST_WIDE
    )
    return max(1, prompt.ids + prompt.messages + round(text))


def _output(model: _Model, body: dict[str, Any]) -> tuple[int, Spread]:
    """Tokens of the whole output, and how far the true number may lie from that."""
    copies, most = drafts(body), _most_output(body)
    outputs = model.outputs
    if not outputs.is_known:
        first = max(_FIRST_OUTPUT_TOKENS, outputs.largest) if most is None else most
        return max(1, first) * copies, CERTAIN
    bound = _MOST_OUTPUT_TOKENS if most is None else most
    mean, variance, third = outputs.read()
    mean = max(1.0, min(mean, bound))
    above = bound - mean
    # What is bounded varies by no more than this (Bhatia and Davis 2000).
    variance = min(variance, mean * above)
    spread = Spread(variance * copies, min(third, variance * above) * copies, above * copies)
    return max(1, round(mean * copies)), spread


def _most_output(body: dict[str, Any]) -> int | None:
    """Of one choice, as the request states it. Some servers take -1 for no maximum."""
    for name in OUTPUT_LIMITS:
        stated = body.get(name)
        if stated is not None and (most := number(stated)) is not None and most >= 0:
            return max(1, min(most, _MOST_OUTPUT_TOKENS))
    return None


def _name(body: dict[str, Any]) -> str:
    """The model, empty where it is none or no name that anyone would give one."""
    name = body.get("model")
    return name if isinstance(name, str) and len(name) <= _LONGEST_NAME else ""


def _count(reading: Any) -> int | None:
    """A number of tokens, None where a server sent something else."""
    return reading if type(reading) is int and reading >= 0 else None
