"""The cost of calls to tenants: estimated before a call starts, read from its answer later."""

from __future__ import annotations

import msgspec

from redline.apis import embeddings, read_usage
from redline.calls.cost import DOLLAR, Price, Prices
from redline.calls.tokens import (
    MOST_OUTPUT_TOKENS,
    BodyFacts,
    Chat,
    TokenEstimator,
    facts_of,
    keep_facts,
    kept_facts,
)
from redline.serve.keys import TenantLimits
from redline.waist import Outcome, Request

# Bytes per token of an English prompt with its JSON: an estimate, replaced when the answer comes.
_BYTES_PER_TOKEN = 4
# Above this size a body is searched for images, sounds and files: of those, bytes are no measure.
_LARGE_BYTES = 16 * 1024
_MEDIA = (b"base64", b"input_audio")
# A body with more commas, and so maybe values, takes too long to read for an estimate.
_MOST_COMMAS = 200_000
_FIRST_OUTPUT = 256
_EMBEDDINGS = embeddings.API.path
# Above the cost of any call: workers sum the reservations of all calls in 64 bits.
_MOST_PICODOLLARS = 1000 * DOLLAR
# The mean length of answers is taken over about this many of the latest ones.
_MEMORY = 64


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """The estimate of one call. picodollars: None if no price of its model is known."""

    tokens: int
    picodollars: int | None


class Used(msgspec.Struct, frozen=True, gc=False):
    """The usage of one call; None for what is unknown."""

    tokens: int | None
    picodollars: int | None


NOTHING = Used(0, 0)


def read_request(request: Request) -> tuple[BodyFacts, bytes]:
    """The facts of a request's body, and the body as it is sent."""
    raw = request.raw
    if raw is None:
        raw = msgspec.json.encode(request.body)
    return kept_facts(request) or facts_of(raw), raw


class Meter:
    """Estimates and reads the cost of calls, at these prices."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._output = float(_FIRST_OUTPUT)
        # It does not learn from answers: that would cost time in every call.
        self._estimator = TokenEstimator()

    def change(self, prices: Prices) -> None:
        """Replaces the prices."""
        self._prices = prices

    def estimate(self, facts: BodyFacts, raw: bytes, path: str) -> Estimate:
        """The estimate of a call with this body, at most what it allows, if stated."""
        size_bytes = len(raw)
        read = size_bytes // _BYTES_PER_TOKEN + 1
        # The messages of a Chat are texts.
        if (
            size_bytes > _LARGE_BYTES
            and not isinstance(facts, Chat)
            and any(mark in raw for mark in _MEDIA)
        ):
            read = self._read(facts, raw, path)[0]
        return self._estimate(facts, path, read, int(self._output))

    def cut(self, limits: TenantLimits, facts: BodyFacts, raw: bytes, path: str) -> Estimate:
        """The estimate of a call for which `estimate` is above a limit, cut to that limit.

        Not below what the call surely uses, about half of its input; for money, not below what its
        answers may cost by the maximum that it states.
        """
        most_tokens, most_picodollars = limits.most
        read, least = self._read(facts, raw, path)
        expected = self._estimate(facts, path, read, int(self._output))
        cost, sure = expected.picodollars, self._estimate(facts, path, least, 0).picodollars
        if cost is not None and sure is not None:
            cost = max(sure, min(cost, most_picodollars))
        return Estimate(max(least, min(expected.tokens, most_tokens)), cost)

    def _estimate(self, facts: BodyFacts, path: str, read: int, unstated: int) -> Estimate:
        """The estimate by the input tokens. unstated: the length of an answer without a maximum."""
        most = facts.most_tokens
        written = unstated if most is None else most
        if path == _EMBEDDINGS:
            written = 0
        answers = facts.drafts
        price = self._prices.find(facts.model)
        cost = None if price is None else price.input * read + price.output * written * answers
        return Estimate(
            read + min(written, int(2 * self._output)) * answers,
            None if cost is None else min(cost, _MOST_PICODOLLARS),
        )

    def _read(self, facts: BodyFacts, raw: bytes, path: str) -> tuple[int, int]:
        """The input tokens of a call, by the contents of its body: expected, and at least."""
        if raw.count(b",") > _MOST_COMMAS:
            read = len(raw) // _BYTES_PER_TOKEN + 1
            return read, read
        request = Request.read(raw, path, facts.model)
        keep_facts(request, facts)
        estimator = self._estimator
        return estimator.estimate(request).input_tokens, estimator.least(request)

    def used(self, model: str | None, outcome: Outcome) -> Used:
        """The usage of an outcome: zero if the endpoint refused the call or was not asked."""
        reply = outcome.reply
        if reply is None:
            is_sent = any(attempt.was_sent for attempt in outcome.tried)
            is_refused = getattr(outcome.error, "status", None) is not None
            return NOTHING if is_refused or not is_sent else Used(None, None)
        if outcome.is_cached:
            return NOTHING
        usage = read_usage(reply.usage, has_output=False)
        if usage is None:
            return Used(None, None)
        if usage.output:
            # A server that counts wrongly may state more.
            each = min(usage.output / len(reply.finish_reasons), MOST_OUTPUT_TOKENS)
            self._output += (each - self._output) / _MEMORY
        price: Price | None = self._prices.at(outcome.endpoint, model)
        return Used(usage.tokens, None if price is None else price.of(usage))
