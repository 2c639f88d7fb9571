"""Keeps an endpoint's limits, and adjusts them to its responses."""

from __future__ import annotations

import hashlib
import math
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from redline.calls.wire import Answer, Endpoint, Outbox, ReplyMemory
from redline.clock import Clock
from redline.errors import ConfigError, RateLimited, TimedOut
from redline.limits import Cost, Grant, RateLimiter, Slots, open_limiter
from redline.limits.discover import AdaptiveConcurrency, FoundRates, RateSearch
from redline.limits.rule import AUTO, BURSTS, Kind, Rate, soon
from redline.limits.server import HeaderReader, processing_s, stated_in_body
from redline.waist import Outcome

_OVERLOAD = frozenset({503, 529})
# The expected tokens of a call are a moving mean over about this number of calls; the expected time
# to connect is the longest of this number of recent connections.
_CALLS = 16
# Calls get ready this long before their grants, or earlier if connecting takes longer.
_LEAST_LEAD_S = 1.0
# Hosts that charge prompt + max_tokens to their limits at admission, each with its source.
_RESERVING_HOSTS = {
    # The larger of max_tokens and the estimated tokens: help.openai.com, article 6891753.
    "openai.com",
    # Prompt and max_tokens: Microsoft Learn, "Manage Azure OpenAI quota".
    "openai.azure.com",
    "cognitiveservices.azure.com",
    # Its errors count prompt and max_tokens as requested: maplibre-agent-skills, pull request 63.
    "groq.com",
    # Estimated prompt and max_completion_tokens: inference-docs.cerebras.ai, "Rate limits".
    "cerebras.ai",
}
# Charges prompt and max_tokens to the quota of input tokens: AWS, "Quotas for the bedrock-mantle
# endpoint". The second pattern is for an endpoint in the user's own network.
_MANTLE = re.compile(
    r"bedrock-mantle\.[a-z0-9-]+\.api\.aws|[a-z0-9-]+\.bedrock-mantle\.[a-z0-9-]+\.vpce\.amazonaws\.com"
)


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    """The files in which limits outlive a run; None for no file.

    recent: a folder for the sends of the last window, so that a run that is killed and restarted
    does not exceed its limits. memory: a file with the limits that searches have found.
    """

    recent: Path | None = None
    memory: Path | None = None


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that a backend shares with other backends or other runs; None for parts of its own.

    limiter: enforces the limits. stores: the files in which limits outlive a run. intake: bounds
    the memory of the answers of all backends that share it. outbox: sends the requests of all these
    backends together, after its own `before_write`. slots: makes an endpoint's slots from their
    number; not used if that number is searched for.
    """

    limiter: RateLimiter | None = None
    stores: Stores = Stores()
    intake: ReplyMemory | None = None
    outbox: Outbox | None = None
    slots: Callable[[Endpoint, int], Slots] | None = None


class EndpointLimits:
    """One endpoint's slots and limiter, adjusted by its responses.

    shared: the limiter, and the stores that carry limits from one run to the next. search: finds
    the rate limit; None if the limit is known. is_stated: whether the rates and the number of calls
    in flight are set, with no search for either. lead_s: how long before its grant a call gets
    ready.

    Raises ConfigError if the limits should be shared but cannot be.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, shared: Shared | None = None) -> None:
        shared = shared or Shared()
        limits = endpoint.limits
        self._clock = clock
        self._base_url = endpoint.base_url
        self._key = _digest(endpoint.credentials)
        self._reader = HeaderReader()
        # The provider charges prompt + max_tokens to its limits at admission, and refunds nothing.
        self.charges_reserved = _charges_reserved(endpoint)
        if shared.slots is None or limits.is_adaptive:
            self.slots = Slots(limits.slots())
        else:
            self.slots = shared.slots(endpoint, limits.slots())
        self._stated, self._found = limits, list[tuple[Kind, Rate]]()
        self._is_burst = limits.profile in BURSTS
        self._connects_s = deque[float](maxlen=_CALLS)
        self.lead_s = _LEAST_LEAD_S
        self._most_ahead = limits.ahead()
        # The mean amount of each limited kind of tokens that a call takes.
        self._amounts = dict[Kind, float]()
        self.ahead = Slots(self._most_ahead)
        self.limiter = shared.limiter or limiter_of(endpoint, clock)
        self._is_auto = limits.rate == AUTO
        self.search = RateSearch() if self._is_auto else None
        self._adaptive: AdaptiveConcurrency | None = None
        if limits.is_adaptive:
            self._adaptive = AdaptiveConcurrency(most=limits.slots())
            self.slots.resize(self._adaptive.limit)
        self.is_stated = not (self._is_auto or limits.is_adaptive)
        self._is_begun = False
        self._memory = None if self.search is None else _memory_in(shared.stores)
        self._model = ""
        if shared.stores.recent is not None:
            name = _digest(account_of(endpoint))
            # Older versions used the URL as configured; the oldest used one file for all keys.
            old_names = _digest(f"{self._base_url} {self._key}"), _digest(self._base_url)
            self.limiter.keep_sends(shared.stores.recent, name, old_names)

    def begin(self, body: object) -> None:
        """Starts the search for the limit before the first call waits; does nothing if it is known.

        body: the body of the first call's request; the search is for the limit of its model.
        """
        if self.search is None or self._is_begun:
            return
        self._is_begun = True
        self._model = str(body.get("model", "")) if isinstance(body, dict) else ""
        if self._memory is not None:
            found = self._memory.recall(self._base_url, self._key, self._model)
            self.search = RateSearch(found)
        self._searches(self.search)

    def expects(self, cost: Cost) -> None:
        """Records the tokens that a waiting call will take from the limits."""
        means = self._amounts
        for kind in {line.kind for line in self.limiter.rules.lines if line.kind != "requests"}:
            amount = cost.amount(kind)
            means[kind] = amount + (means.get(kind, amount) - amount) * (1 - 1 / _CALLS)
        self._fit_ahead()

    def next_s(self, now_s: float, coming: int = 0) -> float:
        """Returns when a call could be sent after those getting ready and `coming` others.

        In monotonic time; -inf if no call has to wait long once it gets ready: without limits, or
        if calls are sent at even intervals, since few calls get ready at once.
        """
        limiter, ahead = self.limiter, self.ahead
        if limiter.is_unlimited or not (self._is_burst or ahead.count == 1):
            return -math.inf
        return now_s + limiter.room_for_s(ahead.in_use + coming + 1, self._amounts, now_s)

    def has_room(self, now_s: float, coming: int = 0) -> bool:
        """Whether the limits soon admit a call after those getting ready and `coming` others."""
        return (
            self.ahead.in_use + coming < self.ahead.count
            and self.limiter.parked_until_s <= now_s
            and self.next_s(now_s, coming) - now_s <= self.lead_s
        )

    def connected(self, took_s: float) -> None:
        """Records how long a connection took to make, so that calls get ready in time."""
        self._connects_s.append(took_s)
        lead_s = max(_LEAST_LEAD_S, *self._connects_s)
        if lead_s != self.lead_s:
            self.lead_s = lead_s
            self._count_ahead()

    def sent(self, now_s: float) -> None:
        """Records a call that was written, if the limit is being searched for."""
        if self.search is not None:
            self.search.sent(now_s)

    def heard(
        self,
        answer: Answer,
        grant: Grant | None,
        first_byte_s: float | None,
        used: Cost | None = None,
    ) -> None:
        """Records a response: its round-trip time, the limits in its headers, and its usage.

        grant: the call's grant. first_byte_s: when the response began. used: the call's tokens;
        None if unknown. The body of a 429 may also contain the limit.
        """
        sent_s = None if grant is None else grant.sent_s
        if grant is None or sent_s is None or first_byte_s is None:
            return
        took_s, headers = first_byte_s - sent_s, answer.headers
        if tuple(headers) in self._reader.silent and answer.status != 429:
            grant.replied(took_s, used)
            return
        grant.replied(max(0.0, took_s - (processing_s(headers) or 0.0)))
        stated = self._reader.read(headers, self._clock.wall_s())
        if answer.status == 429:
            stated += stated_in_body(answer.body)
        if stated:
            self.limiter.heard(stated, grant)
            self._take_up_found()
            if not self.limiter.is_searched:
                self.search = None
        if used is not None:
            # Only now, since `remaining` in the headers was compared with the tokens reserved.
            grant.settle(used)

    def ended(self, outcome: Outcome, sent_s: float, in_flight: int, now_s: float) -> None:
        """Records the outcome of a call. in_flight: calls in flight at `sent_s`, with this one."""
        limiter, error = self.limiter, outcome.error
        is_limited = isinstance(error, RateLimited)
        # While a rate is searched for, a 429 is evidence of the rate. If the concurrency fell, too,
        # it would hold the calls back, and the search would not see that the rate was too high.
        if self._adaptive is not None and not (is_limited and self.search is not None):
            self._adapt(self._adaptive, outcome, now_s - sent_s, in_flight, now_s)
        if self.search is None:
            limiter.answered(now_s, is_limited=is_limited)
            return
        is_overload = getattr(error, "status", 0) in _OVERLOAD
        wait_s = getattr(error, "retry_after_s", None)
        if self.search.answered(now_s, sent_s, is_limited, wait_s, is_overload=is_overload):
            self._searches(self.search)

    def found(self) -> list[str]:
        """Returns the limits that searches have found, in words; empty if there are none."""
        words = []
        if self._is_auto:
            found = self.limiter.found_rates()
            if self.search is not None:
                # The rate in force may be one that is being tried.
                found = [each for each in found if each[0] != "requests"]
                if self.search.found is not None:
                    found.append(("requests", self.search.found))
            words += [f"{rate} {kind.replace('_', ' ')}" for kind, rate in found]
        if self._adaptive is not None and self._adaptive.found is not None:
            words.append(f"{self._adaptive.found} in flight")
        return words

    async def aclose(self) -> None:
        """Saves the limit that the search found, and closes the limiter's files and connections."""
        found = self.search.found if self.search is not None else None
        if self._memory is not None and found is not None:
            self._memory.remember(self._base_url, self._key, self._model, found)
        self.slots.close()
        await self.limiter.aclose()

    def _searches(self, search: RateSearch) -> None:
        self.limiter.search(search.rates())
        self._take_up_found()

    def _fit_ahead(self) -> None:
        """Bounds the calls that wait here to what the limits, found ones included, will soon admit.

        Further calls wait in the pool, where any endpoint may take them.
        """
        most = self._most_ahead
        for line in self.limiter.rules.lines:
            if amount := self._amounts.get(line.kind):
                soon_sent = soon(line.stated, self._stated.profile, self.lead_s)
                most = min(most, math.ceil(soon_sent / amount))
        if most != self.ahead.count:
            self.ahead.resize(most)

    def _take_up_found(self) -> None:
        """Adjusts how many calls get ready, if other limits have been found."""
        found = self.limiter.found_rates()
        if found != self._found:
            self._found = found
            self._count_ahead()

    def _count_ahead(self) -> None:
        """Updates how many calls the request limits, found ones included, will soon admit."""
        rates = (rate for kind, rate in self._found if kind == "requests")
        self._most_ahead = self._stated.ahead(rates, self.lead_s)
        self._fit_ahead()

    def _adapt(
        self,
        adaptive: AdaptiveConcurrency,
        outcome: Outcome,
        latency_s: float,
        in_flight: int,
        now_s: float,
    ) -> None:
        error, reply = outcome.error, outcome.reply
        # A timeout by a row's own deadline, which may be short, says nothing about the server.
        is_slow = isinstance(error, TimedOut) and error.phase != "row"
        is_limited = isinstance(error, RateLimited)
        is_overload = is_slow or is_limited or getattr(error, "status", 0) in _OVERLOAD
        if error is not None and not is_overload:
            # A malformed row or a broken connection says nothing about the server's load.
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
        # The file only saves a new search: without a writable home folder, the run continues.
        return None


def limiter_of(endpoint: Endpoint, clock: Clock) -> RateLimiter:
    """Opens the endpoint's limiter; may block for a few seconds if its limits are shared.

    Shared limits apply to all processes that use the endpoint with the same key; only a digest of
    the key is stored. Raises ConfigError if the limits should be shared but cannot be.
    """
    return open_limiter(endpoint.limits, account_of(endpoint), clock)


def account_of(endpoint: Endpoint) -> str:
    """Returns the account whose limits apply: the base URL and a digest of the credentials.

    Different spellings of an address give the same account: `https://Host:443/v1/` and
    `https://host/v1`.
    """
    parts = urlsplit(endpoint.base_url)
    host = parts.netloc.lower().removesuffix(":443" if parts.scheme == "https" else ":80")
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')} {_digest(endpoint.credentials)}"


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
