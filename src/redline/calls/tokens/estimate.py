"""Estimates the tokens that a call will use, and learns from the usage of replies.

Input: a weighted sum of characters by class, messages, media and a constant; an exact tokenizer's
count replaces the characters if there is one. Output: see pending_outputs.py. Each model has its
own estimates. The difference from the true number is settled after the call.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from redline.apis import api_of
from redline.calls.tokens.asked import Asked, asked_of, chat_of
from redline.calls.tokens.body_facts import MOST_OUTPUT_TOKENS
from redline.calls.tokens.kalman import Prior, Weights
from redline.calls.tokens.pending_outputs import PendingOutputs
from redline.calls.tokens.tokenizer import TOKENIZERS, Tokenizer, Tokenizers
from redline.calls.tokens.upper_bound import FRAME_TOKENS
from redline.limits import Cost
from redline.limits.rule import CERTAIN, Spread
from redline.waist import Reply, Request

# Mean error of the first guess, before any reply: 8 to 21 % in English, code, JSON, Chinese and
# Japanese text under the tokenizers cl100k_base, o200k_base and DeepSeek's, 13 to 27 % in German
# and Russian manual pages.
FIRST_GUESS_ERROR = 0.2

# OpenAI's chat format adds 4 tokens per message and 3 to begin the answer: 5 per message is right
# for three messages. The constant may grow to the tokens that the server adds: a system prompt, or
# a conversation that it stores.
_CONSTANT = Prior(0.0, 100.0, 200_000.0)
_MESSAGE = Prior(5.0, 3.0, 100.0)
# A 1024 x 1024 image in OpenAI's pricing: 85 + 4 tiles of 170. A PDF also counts as a medium; one
# with 100 pages may cost 200,000.
_MEDIA = Prior(765.0, 400.0, 200_000.0)
# Tokens per character of each of prompt.CLASSES. The first values are the least-squares fit to
# English, code, JSON and CJK text with the tokenizers above, rounded. The deviations cover the fits
# to each kind of text alone: in plain prose nearly all weight is on the spaces.
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
_MESSAGE_BYTES = len('{"role":"","content":""},')
_BY_TOKEN = (_CONSTANT, _MESSAGE, _MEDIA, Prior(1.0, 0.1, 2.0))
# Half the first guess for a letter; less for other classes, on which tokenizers differ more.
# Spaces and marks have no minimum: a run of them may be a single token.
_LEAST_LETTER, _LEAST_DIGIT, _LEAST_ACCENTED, _LEAST_WIDE = 0.12, 0.25, 0.1, 0.3

# More than any model's context window: a larger usage is taken for an error.
_MOST_INPUT_TOKENS = 10_000_000
_FIRST_OUTPUT_TOKENS = 256

_LEAST_VARIANCE = 1e-6

_MODELS_KEPT = 32

# Learning the input costs ten times as much as everything else at the end of a call. So once the
# weights are settled, they learn from only one reply in eight.
_SHARE = 1 / 8
# A call that reserves a bound needs no estimate, and there may be thousands a second: learning from
# all of them would cost as much as enforcing their limits. So only this share is followed.
_SHARE_OF_BOUNDS = 1 / 32
# Multiples of the golden ratio are spread evenly modulo 1, even those of every n-th call: if rows
# of two kinds alternate, the weights learn from both.
_GOLDEN = (math.sqrt(5) - 1) / 2


class _Model:
    """The learned estimates of one model."""

    def __init__(self) -> None:
        self.by_class = Weights(_BY_CLASS)
        self.by_token = Weights(_BY_TOKEN)
        self.outputs = PendingOutputs()
        self._replies = 0
        self.tells_usage = False
        self.is_settled = False
        # Upper bounds on the tokens of a chat's JSON: per byte, and a constant in addition.
        self.most_per_byte, self.most_beside = 1.0, 0
        # The last result of `output`, and its arguments.
        self._output: tuple[Any, int, int | None, tuple[int, Spread]] | None = None

    def counts_reply(self, reply: Reply) -> bool:
        """Counts a reply; True if the input weights should learn from it."""
        self.tells_usage = bool(reply.input_tokens)
        self._replies = replies = self._replies + 1
        return replies * _GOLDEN % 1 < _SHARE or not self.is_settled

    def input_tokens(self, asked: Asked, tokenizer: Tokenizer | None) -> int:
        """Returns the expected tokens of the prompt, 1 or more."""
        weights = self.by_class if tokenizer is None else self.by_token
        found = round(weights.value(asked.amounts(tokenizer))) + asked.ids
        return found if found > 1 else 1

    def learn_input(self, asked: Asked, tokenizer: Tokenizer | None, used: int) -> None:
        """Learns from a prompt that took `used` tokens."""
        weights = self.by_class if tokenizer is None else self.by_token
        weights.learn(asked.amounts(tokenizer), min(used, _MOST_INPUT_TOKENS) - asked.ids)
        self.is_settled = weights.is_settled
        if self.is_settled:
            constant, message, _, *texts = *self.by_class.values, *self.by_token.values[3:]
            other, other_message, *_ = self.by_token.values
            each = max(message, other_message) / _MESSAGE_BYTES
            self.most_per_byte = max(1.0, each, *texts)
            self.most_beside = math.ceil(FRAME_TOKENS + max(constant, other))

    def output(self, copies: int, most: int | None) -> tuple[int, Spread]:
        """Returns the expected tokens of the whole output, and the spread of the true number.

        copies: the number of answers. most: the maximum of each answer in tokens, None for none.
        """
        moments = self.outputs.moments
        known = self._output
        if known is not None and known[0] is moments and known[1] == copies and known[2] == most:
            return known[3]
        if not self.outputs.is_known:
            first = max(_FIRST_OUTPUT_TOKENS, self.outputs.largest) if most is None else most
            return max(1, first) * copies, CERTAIN
        mean, variance, third = moments
        bound = MOST_OUTPUT_TOKENS if most is None else most
        mean = max(1.0, min(mean, bound))
        above = bound - mean
        # The largest variance of a bounded variable (Bhatia and Davis 2000).
        variance = min(variance, mean * above)
        third = min(third, variance * above)
        # The variance of equal outputs may not be 0, because of rounding errors in sums.
        is_certain = variance < _LEAST_VARIANCE
        spread = (
            CERTAIN if is_certain else Spread(variance * copies, third * copies, above * copies)
        )
        found = round(mean * copies), spread
        self._output = moments, copies, most, found
        return found


class Sending(msgspec.Struct, frozen=True, eq=False):
    """A call in flight: what it asks for, the model that learns from it, and its number.

    number: that of the call in the model's PendingOutputs. teaches: whether the input weights
    always learn from its reply.
    """

    asked: Asked | None
    model: _Model | None = None
    number: int = 0
    teaches: bool = False


# For a call from which nothing is learned.
UNFOLLOWED = Sending(None)


class TokenEstimator:
    """Token estimates for the models of one endpoint. Synchronous and cheap; raises nothing.

    may_block: whether to wait up to 1.5 s, once per encoding, for a tokenizer to load; otherwise
    estimates are made without the tokenizer until it is loaded.
    """

    def __init__(self, tokenizers: Tokenizers = TOKENIZERS, *, may_block: bool = False) -> None:
        self._tokenizers = tokenizers
        self._may_block = may_block
        # In order of use, the most recently used model last.
        self._models: dict[str, _Model] = {}
        self._unknown = _Model()
        self._bounds = 0  # calls sent with a bound

    def estimate(self, request: Request) -> Cost:
        """Returns the expected tokens of a call with `request`: input, 1 or more, and output.

        The output is the mean of the calls in flight, with its spread, so that a caller can reserve
        a quantile of the sum of many calls; the quantiles of single calls add up to far more. Until
        twenty outputs are counted, the output is the request's own maximum; without a maximum, the
        larger of 256 and the largest output so far. Embeddings have 0 tokens of output.
        """
        asked = asked_of(request)
        if asked is None:
            return Cost(1, 1)
        name = asked.name
        model = self._models.get(name) or self._unknown
        input_tokens = model.input_tokens(asked, self._tokenizer(name))
        if not asked.has_output:
            return Cost(input_tokens, 0)
        return Cost(input_tokens, *model.output(asked.drafts, asked.most_output))

    def bound(self, request: Request, most: int) -> Cost | None:
        """Returns an estimate whose input is an upper bound (`Cost.is_bound`).

        The input of `estimate` does not exceed the bound either. The bound is computed from the
        bytes of a chat, in a fraction of the time that an estimate takes. None if the request is
        not a usual chat, if its model is not known well or reports no usage with which to settle
        the bound, or if the result exceeds `most` tokens.
        """
        chat, raw = chat_of(request), request.raw
        if chat is None or raw is None or not api_of(request.url).has_output:
            return None
        model = self._models.get(chat.model or "")
        if model is None or not (model.is_settled and model.tells_usage):
            return None
        input_tokens = model.most_beside + math.ceil(model.most_per_byte * len(raw))
        output_tokens, spread = model.output(1, chat.most_output())
        if input_tokens + output_tokens > most:
            return None
        return Cost(input_tokens, output_tokens, spread, True)

    def most(self, request: Request) -> Cost:
        """Returns the tokens charged by a provider that counts the whole maximum at admission.

        Equals the estimate if the request has no maximum.
        """
        cost, asked = self.estimate(request), asked_of(request)
        if asked is None or asked.most_output is None or not cost.output_tokens:
            return cost
        return Cost(cost.input_tokens, asked.most_output * asked.drafts)

    def least(self, request: Request) -> int:
        """Returns a low estimate of the call's input tokens, usually about half of the true number.

        Ignores everything learned, since it may come from another kind of row, and a row whose
        result is above the limit is refused for good.
        """
        asked = asked_of(request)
        return 1 if asked is None else _least(asked)

    def first_error(self, request: Request) -> float:
        """Returns the mean relative error of the input's first guess; 0 with a tokenizer."""
        asked = asked_of(request)
        is_exact = asked is not None and self._tokenizer(asked.name) is not None
        return 0.0 if is_exact else FIRST_GUESS_ERROR

    def begin(self, request: Request, *, teaches: bool = False) -> Sending:
        """Records that a call with `request` is sent now; pass the result to `end`.

        teaches: whether the input weights always learn from its reply.
        """
        asked = asked_of(request)
        if asked is None:
            return UNFOLLOWED
        model = self._model(asked.name)
        return Sending(asked, model, model.outputs.begin(), teaches)

    def begin_bound(self, request: Request) -> Sending:
        """Records one in 32 calls that reserve a bound, like `begin`.

        Returns UNFOLLOWED for the other calls. If the usage of an unfollowed call exceeds its
        bound, call `begin` then.
        """
        self._bounds = bounds = self._bounds + 1
        if bounds * _GOLDEN % 1 >= _SHARE_OF_BOUNDS:
            return UNFOLLOWED
        return self.begin(request, teaches=True)

    def end(self, sending: Sending, reply: Reply | None, took_s: float) -> None:
        """Ends a call after `took_s` seconds, and learns from the usage in its reply.

        A usage that cannot be true (not positive, or far off) has little effect or none.
        """
        asked, model = sending.asked, sending.model
        if model is None or asked is None:
            return
        each: int | None = None
        if reply is not None:
            teaches = model.counts_reply(reply) or sending.teaches
            used = reply.input_tokens
            if teaches and type(used) is int and used > 0:
                model.learn_input(asked, self._tokenizer(asked.name), used)
            used = reply.output_tokens
            if asked.has_output and type(used) is int and used >= 0:
                copies, most = asked.drafts, asked.most_output
                each = used if copies == 1 else -(-used // copies)
                bound = MOST_OUTPUT_TOKENS if most is None else most
                if each > bound:
                    each = bound
        model.outputs.end(sending.number, each, took_s)

    def _tokenizer(self, name: str) -> Tokenizer | None:
        return self._tokenizers.find(name, may_block=self._may_block) if name else None

    def _model(self, name: str) -> _Model:
        models = self._models
        if len(models) == 1 and name in models:
            return models[name]
        model = models.pop(name, None) or _Model()
        models[name] = model
        if len(models) > _MODELS_KEPT:
            del models[next(iter(models))]
        return model


def _least(asked: Asked) -> int:
    _, messages, _, letters, _, digits, _, accented, wide = asked.amounts(None)
    text = (
        letters * _LEAST_LETTER
        + digits * _LEAST_DIGIT
        + accented * _LEAST_ACCENTED
        + wide * _LEAST_WIDE
    )
    return max(1, asked.ids + int(messages) + round(text))
