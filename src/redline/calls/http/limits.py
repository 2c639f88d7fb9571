"""An endpoint's limits, and what its answers change about them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from redline.calls.wire import Endpoint
from redline.clock import Clock
from redline.errors import ConfigError, RateLimited, TimedOut
from redline.limits import AnyGrant, AnyLimiter, Cost, Limiter, Rate, Slots, open_limiter
from redline.limits.discover import AdaptiveConcurrency, FoundRates, RateSearch
from redline.limits.rule import AUTO, RecentSends
from redline.limits.server import Feedback, HeaderReader, processing_s, stated_in_body
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
# endpoint". The second form is that of an endpoint in one's own network.
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


class EndpointLimits:
    """Drives one endpoint's slots and limiter by what comes back from it.

    search: what finds the limit; None where it is stated.

    Raises ConfigError where its limits cannot be shared as they ask for.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, limiter: AnyLimiter | None = None) -> None:
        limits = endpoint.limits
        self._clock = clock
        self._base_url = endpoint.base_url
        self._reader = HeaderReader()
        self._recent: RecentSends | None = None
        # The provider takes prompt + max_tokens off its limits when a call comes, for good.
        self.charges_reserved = _charges_reserved(endpoint)
        self.slots = Slots(limits.slots())
        self.ahead = Slots(limits.ahead())
        self.limiter = limiter or limiter_of(endpoint, clock)
        # What is shared is steered by all who share it, through their ledger.
        self._own = self.limiter if isinstance(self.limiter, Limiter) else None
        self._feedback = Feedback(self._own.rules) if self._own is not None else None
        self._is_auto = limits.rate == AUTO
        self.search = RateSearch() if limits.rate == AUTO else None
        self._adaptive: AdaptiveConcurrency | None = None
        if limits.is_adaptive:
            self._adaptive = AdaptiveConcurrency(most=limits.slots())
            self.slots.resize(self._adaptive.limit)
        self._is_begun = False
        self._memory: FoundRates | None = None
        self._model = ""

    def keep(self, stores: Stores) -> None:
        """Takes up what an earlier run has kept, and keeps on."""
        if stores.memory is not None and self.search is not None:
            try:
                self._memory = FoundRates(stores.memory)
            except ConfigError:
                # It only saves a search: a home that cannot be written stops nobody.
                self._memory = None
        if stores.recent is not None and self._own is not None:
            name = hashlib.sha256(self._base_url.encode()).hexdigest()[:12]
            self._recent = RecentSends(stores.recent, name, self._clock)
            self._own.rules.keep_in(self._recent)

    def begin(self, body: object) -> None:
        """A call with this body is about to wait for its turn, while the limit is searched for.

        The first one tells the model.
        """
        if self.search is None or self._is_begun:
            return
        self._is_begun = True
        self._model = str(body.get("model", "")) if isinstance(body, dict) else ""
        if self._memory is not None:
            self.search = RateSearch(self._memory.recall(self._base_url, self._model))
        self._follow_search(self.search)

    def shook_hands(self, took_s: float) -> None:
        """A connection took `took_s`."""
        if isinstance(self.limiter, Limiter):
            self.limiter.rules.shook_hands(took_s)
        else:
            self.limiter.jitter.shook_hands(took_s)

    def sent(self, now_s: float) -> None:
        """A call was written, while the limit is searched for."""
        if self.search is not None:
            self.search.sent(now_s)

    def heard(
        self, headers: Mapping[str, str], grant: AnyGrant, took_s: float, refusal: bytes = b""
    ) -> None:
        """The head of an answer came `took_s` after the write of its call.

        refusal: the body of a 429, which may name the limit.
        """
        grant.replied(max(0.0, took_s - (processing_s(headers) or 0.0)))
        if self._feedback is None or self._own is None:
            return
        stated = self._reader.read(headers, self._clock.wall_s())
        if refusal:
            stated += stated_in_body(refusal)
        if not stated:
            return
        if self.search is not None and any(
            one.kind == "requests" and one.limit is not None for one in stated
        ):
            # The server tells its limit, so there is nothing to search for.
            self.search = None
            self._own.rules.end_search()
            # Nobody is let go before what the server tells has taken this one's place.
            self._own.rules.set_rates("requests", self._stated_rates(), self._clock.now_s())
        if self._feedback.heard(stated, grant.taken, self._clock.now_s()):
            self._own.refresh()

    def settle(self, grant: AnyGrant, used: Cost) -> None:
        """A call has used `used`, as its reply says."""
        if self.charges_reserved:
            # What was reserved is not given back; only what an estimate had missed is added.
            reserved = grant.cost
            used = Cost(
                max(used.input_tokens, reserved.input_tokens),
                max(used.output_tokens, reserved.output_tokens),
            )
        grant.settle(used)

    def ended(self, outcome: Outcome, sent_s: float, in_flight: int, now_s: float) -> None:
        """A call that was written at `sent_s` has its outcome; in_flight: at that time, with it."""
        error = outcome.error
        is_limited = isinstance(error, RateLimited)
        if self._adaptive is not None:
            self._adapt(self._adaptive, outcome, now_s - sent_s, in_flight, now_s)
        if self._own is None or self._feedback is None:
            if is_limited and not isinstance(self.limiter, Limiter):
                self.limiter.limited(now_s)
        elif self.search is not None:
            retry_after_s = error.retry_after_s if isinstance(error, RateLimited) else None
            if self.search.answered(now_s, sent_s, is_limited, retry_after_s):
                self._follow_search(self.search)
        elif self._feedback.answered(now_s, is_limited=is_limited):
            self._own.refresh()

    def found(self) -> list[str]:
        """The limits that were found, in words, where they were to be found."""
        words = []
        if self._is_auto and self._own is not None:
            is_searching = self.search is not None and not self.search.found
            words += [
                f"{line.stated} {line.kind.replace('_', ' ')}"
                for line in self._own.rules.lines
                if line.user is None and not (is_searching and line.kind == "requests")
            ]
        if self._adaptive is not None:
            words.append(f"{self._adaptive.limit} in flight")
        return words

    async def aclose(self) -> None:
        """Writes down the limit that was found; closes files and connections of the limits."""
        found = self.search.found if self.search is not None else None
        if self._memory is not None and found is not None:
            self._memory.remember(self._base_url, self._model, found)
        if self._recent is not None:
            self._recent.close()
        if not isinstance(self.limiter, Limiter):
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

    def _follow_search(self, search: RateSearch) -> None:
        assert self._own is not None
        self._own.set_rates("requests", [*self._stated_rates(), *search.rates()])

    def _stated_rates(self) -> list[Rate]:
        """The request limits that the user stated."""
        assert self._own is not None
        lines = self._own.rules.lines
        return [line.user for line in lines if line.kind == "requests" and line.user is not None]


def limiter_of(endpoint: Endpoint, clock: Clock) -> AnyLimiter:
    """The endpoint's limiter; may block for some seconds where its limits are shared.

    They are shared by those that use the endpoint under one key, of which only a digest shows.
    Raises ConfigError where they cannot be shared as they ask for.
    """
    key = hashlib.sha256((endpoint.api_key or "").encode()).hexdigest()[:12]
    return open_limiter(endpoint.limits, f"{endpoint.base_url} {key}", clock)


def _charges_reserved(endpoint: Endpoint) -> bool:
    charge = endpoint.limits.charge
    if charge != AUTO:
        return charge == "reserved"
    host = urlsplit(endpoint.base_url).hostname or ""
    if _MANTLE.fullmatch(host):
        return True
    return any(host == known or host.endswith(f".{known}") for known in _RESERVING_HOSTS)
