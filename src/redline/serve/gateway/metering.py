"""The cost of calls to tenants: estimated before a call starts, read from its answer later."""

from __future__ import annotations

import msgspec

from redline.apis import read_usage
from redline.calls.cost import DOLLAR, Price, Prices
from redline.calls.tokens import MOST_OUTPUT_TOKENS, BodyFacts, facts_of, kept_facts
from redline.waist import Outcome, Request

# Bytes per token of an English prompt with its JSON: an estimate, replaced when the answer comes.
_BYTES_PER_TOKEN = 4
_FIRST_OUTPUT = 256
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

    def change(self, prices: Prices) -> None:
        """Replaces the prices."""
        self._prices = prices

    def estimate(self, facts: BodyFacts, size_bytes: int) -> Estimate:
        """The estimate of a call with a body of this size, at most what it allows, if stated."""
        read = size_bytes // _BYTES_PER_TOKEN + 1
        most = facts.most_tokens
        written = int(self._output) if most is None else most
        answers = facts.drafts
        price = self._prices.find(facts.model)
        cost = None if price is None else price.input * read + price.output * written * answers
        return Estimate(
            read + min(written, int(2 * self._output)) * answers,
            None if cost is None else min(cost, _MOST_PICODOLLARS),
        )

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
        written = reply.output_tokens
        if written:
            # A server that counts wrongly may state more.
            each = min(written / len(reply.finish_reasons), MOST_OUTPUT_TOKENS)
            self._output += (each - self._output) / _MEMORY
        price: Price | None = self._prices.at(outcome.endpoint, model)
        return Used(
            (reply.input_tokens or 0) + (written or 0), None if price is None else price.of(usage)
        )
