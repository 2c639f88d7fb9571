"""An endpoint's limits, and what its answers change about them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from redline.calls.wire import Answer, Endpoint, Outbox, ReplyMemory
from redline.clock import Clock
from redline.errors import ConfigError, RateLimited, TimedOut
from redline.limits import Grant, RateLimiter, Slots, open_limiter
from redline.limits.discover import AdaptiveConcurrency, FoundRates, RateSearch
from redline.limits.rule import AUTO
from redline.limits.server import HeaderReader, processing_s, stated_in_body
from redline.waist import Outcome

_OVERLOAD = frozenset({503, 529})
# Hosts that take prompt + max_tokens off their limits when a call comes, each with its source.
_RESERVING_HOSTS = {
    # The larger of max_tokens and the estimated tokens: help.openai.com, article 6891753.
    "openai.com",
    # Prompt and max_tokens: Microsoft Learn, "Manage Azure OpenAI quota".
    "openai.azure.com",
    "cognitiveservices.azure.com",
    # Its errors name prompt and max_tokens as requested: maplibre-agent-skills, pull request 63.
    "groq.com",
    # Estimated prompt and max_completion_tokens: inference-docs.cerebras.ai, "Rate limits".
    "cerebras.ai",
}
# Prompt and max_tokens against the quota of input tokens: AWS, "Quotas for the bedrock-mantle
# endpoint". The second form is that of an endpoint in your own network.
_MANTLE = re.compile(
    r"bedrock-mantle\.[a-z0-9-]+\.api\.aws|[a-z0-9-]+\.bedrock-mantle\.[a-z0-9-]+\.vpce\.amazonaws\.com"
)


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    """Files in which limits outlive a run; None for none.

    recent: a folder for the sends of the last window, so that a run that is killed and started
    again does not overshoot. memory: a file of the limits that have been found.
    """

    recent: Path | None = None
    memory: Path | None = None


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend has in common with other backends, or with other runs; None for its own.

    limiter: of its limits. stores: files in which they outlive a run. intake: what bounds the
    answers of all backends that are given it. outbox: through it, their requests leave together,
    after what it does before. slots: makes the slots of an endpoint, given their number, if that is
    stated.
    """

    limiter: RateLimiter | None = None
    stores: Stores = Stores()
    intake: ReplyMemory | None = None
    outbox: Outbox | None = None
    slots: Callable[[Endpoint, int], Slots] | None = None


class EndpointLimits:
    """Drives one endpoint's slots and limiter by what comes back from it.

    shared: its limiter, and where it takes up what an earlier run has kept, and keeps on.
    search: what finds the limit; None if it is stated. is_stated: neither rates nor the number of
    calls in flight are to be found.

    Raises ConfigError if its limits cannot be shared as they ask for.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, shared: Shared | None = None) -> None:
        shared = shared or Shared()
        limits = endpoint.limits
        self._clock = clock
        self._base_url = endpoint.base_url
        self._key = _key_digest(endpoint)
        self._reader = HeaderReader()
        # The provider takes prompt + max_tokens off its limits when a call comes, for good.
        self.charges_reserved = _charges_reserved(endpoint)
        if shared.slots is None or limits.is_adaptive:
            self.slots = Slots(limits.slots())
        else:
            self.slots = shared.slots(endpoint, limits.slots())
        self.ahead = Slots(limits.ahead())
        self.limiter = shared.limiter or limiter_of(endpoint, clock)
        self._is_auto = limits.rate == AUTO
        self.search = RateSearch() if limits.rate == AUTO else None
        self._adaptive: AdaptiveConcurrency | None = None
        if limits.is_adaptive:
            self._adaptive = AdaptiveConcurrency(most=limits.slots())
            self.slots.resize(self._adaptive.limit)
        self.is_stated = limits.rate != AUTO and not limits.is_adaptive
        self._is_begun = False
        self._memory = None if self.search is None else _memory_in(shared.stores)
        self._model = ""
        if shared.stores.recent is not None:
            name = _digest(_identity(self._base_url, self._key))
            # Older versions kept one file for all keys.
            old_name = _digest(self._base_url)
            self.limiter.keep_sends(shared.stores.recent, name, old_name=old_name)

    def begin(self, body: object) -> None:
        """A call with this body is about to wait for its turn, while the limit is searched for.

        The first one states the model.
        """
        if self.search is None or self._is_begun:
            return
        self._is_begun = True
        self._model = str(body.get("model", "")) if isinstance(body, dict) else ""
        if self._memory is not None:
            found = self._memory.recall(self._base_url, self._key, self._model)
            self.search = RateSearch(found)
        self.limiter.search(self.search.rates())

    def shook_hands(self, took_s: float) -> None:
        """A connection took `took_s`."""
        self.limiter.shook_hands(took_s)

    def sent(self, now_s: float) -> None:
        """A call was written, while the limit is searched for."""
        if self.search is not None:
            self.search.sent(now_s)

    def heard(self, answer: Answer, grant: Grant | None, first_byte_s: float | None) -> None:
        """An answer came: takes up what it shows of the way, and what it states of the limits.

        grant: of its call. first_byte_s: when it began. The body of a 429 may name the limit.
        """
        if grant is None or grant.sent_s is None or first_byte_s is None:
            return
        took_s, headers = first_byte_s - grant.sent_s, answer.headers
        if tuple(headers) in self._reader.silent and answer.status != 429:
            grant.replied(took_s)
            return
        grant.replied(max(0.0, took_s - (processing_s(headers) or 0.0)))
        stated = self._reader.read(headers, self._clock.wall_s())
        if answer.status == 429:
            stated += stated_in_body(answer.body)
        if stated:
            self.limiter.heard(stated, grant)
            if not self.limiter.is_searched:
                self.search = None

    def ended(self, outcome: Outcome, sent_s: float, in_flight: int, now_s: float) -> None:
        """A call that was written at `sent_s` has its outcome; in_flight: at that time, with it."""
        limiter, error = self.limiter, outcome.error
        if error is None and self.is_stated:
            if not limiter.accepted(now_s):
                limiter.answered(now_s, is_limited=False)
            return
        is_limited = isinstance(error, RateLimited)
        if self._adaptive is not None:
            self._adapt(self._adaptive, outcome, now_s - sent_s, in_flight, now_s)
        if self.search is None:
            limiter.answered(now_s, is_limited=is_limited)
            return
        retry_after_s = error.retry_after_s if isinstance(error, RateLimited) else None
        if self.search.answered(now_s, sent_s, is_limited, retry_after_s):
            limiter.search(self.search.rates())

    def found(self) -> list[str]:
        """The limits that were found, in words, if they were to be found."""
        words = []
        if self._is_auto:
            is_searching = self.search is not None and not self.search.found
            words += [
                f"{rate} {kind.replace('_', ' ')}"
                for kind, rate in self.limiter.found_rates()
                if not (is_searching and kind == "requests")
            ]
        if self._adaptive is not None:
            words.append(f"{self._adaptive.limit} in flight")
        return words

    async def aclose(self) -> None:
        """Writes down the limit that was found; closes files and connections of the limits."""
        found = self.search.found if self.search is not None else None
        if self._memory is not None and found is not None:
            self._memory.remember(self._base_url, self._key, self._model, found)
        self.slots.close()
        await self.limiter.aclose()

    def _adapt(
        self,
        adaptive: AdaptiveConcurrency,
        outcome: Outcome,
        latency_s: float,
        in_flight: int,
        now_s: float,
    ) -> None:
        error, reply = outcome.error, outcome.reply
        # A row's own deadline may be short, which says nothing of the server.
        is_slow = isinstance(error, TimedOut) and error.phase != "row"
        is_limited = isinstance(error, RateLimited)
        is_overload = is_slow or is_limited or getattr(error, "status", 0) in _OVERLOAD
        if error is not None and not is_overload:
            # A malformed row or a broken connection says nothing of the server's load.
            return
        adaptive.ended(
            now_s=now_s,
            latency_s=latency_s,
            in_flight=in_flight,
            is_overload=is_overload,
            size=(reply.output_tokens or 0) if reply is not None else 0,
        )
        if adaptive.limit != self.slots.count:
            self.slots.resize(adaptive.limit)


def _memory_in(stores: Stores) -> FoundRates | None:
    if stores.memory is None:
        return None
    try:
        return FoundRates(stores.memory)
    except ConfigError:
        # It only saves a search: a run continues without a home that can be written.
        return None


def limiter_of(endpoint: Endpoint, clock: Clock) -> RateLimiter:
    """The endpoint's limiter; may block for some seconds if its limits are shared.

    They are shared by those that use the endpoint under one key, of which only a digest shows.
    Raises ConfigError if they cannot be shared as they ask for.
    """
    return open_limiter(endpoint.limits, account_of(endpoint), clock)


def account_of(endpoint: Endpoint) -> str:
    """What its limits are of: a base URL under one key, of which only a digest shows."""
    return _identity(endpoint.base_url, _key_digest(endpoint))


def _identity(base_url: str, key: str) -> str:
    """What the limits are of: an endpoint under one key. key: its digest."""
    return f"{base_url} {key}"


def _key_digest(endpoint: Endpoint) -> str:
    return _digest(endpoint.credentials)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _charges_reserved(endpoint: Endpoint) -> bool:
    charge = endpoint.limits.charge
    if charge != AUTO:
        return charge == "reserved"
    host = urlsplit(endpoint.base_url).hostname or ""
    if _MANTLE.fullmatch(host):
        return True
    return any(host == known or host.endswith(f".{known}") for known in _RESERVING_HOSTS)
