"""Estimates what a call will cost its tenant, and later reads the real cost from the answer."""

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
# A larger body is searched for images, sounds and files, whose bytes say little about tokens.
_LARGE_BYTES = 16 * 1024
_MEDIA = (b"base64", b"input_audio")
# A body with more commas may have too many values to be parsed for an estimate.
_MOST_COMMAS = 200_000
_FIRST_OUTPUT = 256
_EMBEDDINGS = embeddings.API.path
# More than any call costs; bounded because workers sum the reservations of all calls in 64 bits.
_MOST_PICODOLLARS = 1000 * DOLLAR
# The mean length of answers covers about this many of the latest answers.
_MEMORY = 64


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """The estimated cost of one call. picodollars: None if its model has no known price."""

    tokens: int
    picodollars: int | None


class Used(msgspec.Struct, frozen=True, gc=False):
    """The tokens and the cost of one call; None if unknown."""

    tokens: int | None
    picodollars: int | None


NOTHING = Used(0, 0)


def read_request(request: Request) -> tuple[BodyFacts, bytes]:
    """Returns the facts of a request's body, and the body as it is sent."""
    raw = request.raw
    if raw is None:
        raw = msgspec.json.encode(request.body)
    return kept_facts(request) or facts_of(raw), raw


class Meter:
    """Estimates the cost of calls, and reads it from outcomes, at the prices in `prices`."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._output = float(_FIRST_OUTPUT)
        # This estimator does not learn from answers, which would cost time in every call.
        self._estimator = TokenEstimator()

    def change(self, prices: Prices) -> None:
        """Replaces the prices."""
        self._prices = prices

    def estimate(self, facts: BodyFacts, raw: bytes, path: str) -> Estimate:
        """Estimates a call with this body; its output tokens are bounded by the body's maximum."""
        size_bytes = len(raw)
        read = size_bytes // _BYTES_PER_TOKEN + 1
        # The messages of a Chat contain only text.
        if (
            size_bytes > _LARGE_BYTES
            and not isinstance(facts, Chat)
            and any(mark in raw for mark in _MEDIA)
        ):
            read = self._read(facts, raw, path)[0]
        return self._estimate(facts, path, read, int(self._output))

    def cut(self, limits: TenantLimits, facts: BodyFacts, raw: bytes, path: str) -> Estimate:
        """Estimates a call whose first estimate exceeds a limit, and cuts the result to the limit.

        The result has at least the tokens that the call uses in any case, about half of its input.
        Its cost is at least that of these tokens plus the body's maximum of output tokens, if any.
        """
        most_tokens, most_picodollars = limits.most
        read, least = self._read(facts, raw, path)
        expected = self._estimate(facts, path, read, int(self._output))
        cost, sure = expected.picodollars, self._estimate(facts, path, least, 0).picodollars
        if cost is not None and sure is not None:
            cost = max(sure, min(cost, most_picodollars))
        return Estimate(max(least, min(expected.tokens, most_tokens)), cost)

    def _estimate(self, facts: BodyFacts, path: str, read: int, unstated: int) -> Estimate:
        """Estimates a call from its input tokens, `read`.

        unstated: the tokens to assume for each answer if the body sets no maximum.
        """
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
        """Returns the input tokens, from the contents of the body: the expected and the least."""
        if raw.count(b",") > _MOST_COMMAS:
            read = len(raw) // _BYTES_PER_TOKEN + 1
            return read, read
        request = Request.read(raw, path, facts.model)
        keep_facts(request, facts)
        estimator = self._estimator
        return estimator.estimate(request).input_tokens, estimator.least(request)

    def used(self, model: str | None, outcome: Outcome) -> Used:
        """Returns the usage of an outcome; zero if the call was refused, cached or never sent."""
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
            # A server that counts wrongly may report more than the maximum.
            each = min(usage.output / len(reply.finish_reasons), MOST_OUTPUT_TOKENS)
            self._output += (each - self._output) / _MEMORY
        price: Price | None = self._prices.at(outcome.endpoint, model)
        return Used(usage.tokens, None if price is None else price.of(usage))
