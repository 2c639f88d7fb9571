"""What an endpoint allows, as the user states it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from redline.errors import ConfigError, nearest
from redline.limits.rate import Rate, parse_rate

Profile = Literal["any", "fixed", "moving", "counter", "bucket"]
PROFILES: tuple[str, ...] = get_args(Profile)

# The guard covers network jitter and event-loop lag; 50 ms costs 5 % of a 1 s window and 0.08 % of
# a minute.
GUARD_S = 0.05
# Little's law: calls in flight = rate x latency. 30 s is a long answer; fewer slots than that would
# leave a rate limit unused.
LONG_ANSWER_S = 30.0
MIN_CONCURRENCY, MAX_AUTO_CONCURRENCY, MAX_CONCURRENCY = 64, 1000, 100_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit holds at once.

    requests, tokens: rates such as `Rate(500, 60.0)`, or text such as "500/60s"; a single one or a
    sequence. Tokens count input and output together.
    concurrency: most calls in flight, 1..100,000; None chooses 64, or enough to use the request
    rate when an answer takes 30 s, at most 1,000.
    profile: the server's algorithm. `any` is safe against all of them; see docs/limits.md.
    headroom: the share of each rate that may be used, above 0 and at most 1.
    guard_s: seconds added to each window against jitter, 0..10.
    Raises ConfigError for anything out of range.
    """

    requests: Sequence[Rate | str] | Rate | str = ()
    tokens: Sequence[Rate | str] | Rate | str = ()
    concurrency: int | None = None
    profile: str = "any"
    headroom: float = 1.0
    guard_s: float = GUARD_S

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ConfigError(
                f"unknown limit profile: {self.profile}",
                hint=nearest(self.profile, PROFILES) or f"one of {', '.join(PROFILES)}",
            )
        if not 0 < self.headroom <= 1:
            raise ConfigError(
                f"headroom must be above 0 and at most 1, not {self.headroom:g}",
                hint="0.8 uses 80 % of each rate and leaves the rest to others",
            )
        if not 0 <= self.guard_s <= 10:
            raise ConfigError(f"the guard must be 0 to 10 s, not {self.guard_s:g}")
        if self.concurrency is not None and not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigError(
                f"concurrency must be 1 to {MAX_CONCURRENCY:,}, not {self.concurrency}"
            )
        self.request_rates()
        self.token_rates()

    def request_rates(self) -> tuple[Rate, ...]:
        """The request limits, after headroom."""
        return tuple(self._usable(rate) for rate in as_rates(self.requests, "the request limit"))

    def token_rates(self) -> tuple[Rate, ...]:
        """The token limits, after headroom."""
        return tuple(self._usable(rate) for rate in as_rates(self.tokens, "the token limit"))

    def slots(self) -> int:
        """Most calls in flight."""
        if self.concurrency is not None:
            return self.concurrency
        per_s = min((rate.count / rate.window_s for rate in self.request_rates()), default=0.0)
        return max(MIN_CONCURRENCY, min(MAX_AUTO_CONCURRENCY, math.ceil(per_s * LONG_ANSWER_S)))

    def _usable(self, rate: Rate) -> Rate:
        return Rate(max(1, math.floor(rate.count * self.headroom)), rate.window_s)


def as_rates(value: Sequence[Rate | str] | Rate | str, what: str) -> tuple[Rate, ...]:
    """The rates that `value` states, text or not. Raises ConfigError that names `what`."""
    parts = (value,) if isinstance(value, (Rate, str)) else value
    return tuple(parse_rate(part, what) if isinstance(part, str) else part for part in parts)
