"""Defines the limits of an endpoint as the user sets them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import msgspec

from redline.errors import ConfigError, nearest
from redline.limits.rule.cost import KINDS, Kind
from redline.limits.rule.guard import FIRST_GUARD_S
from redline.limits.rule.rate import MAX_WINDOW_S, Rate, parse_rate
from redline.limits.rule.shape import shape_of
from redline.structs import check_type, check_types

PROFILES = ("any", "fixed", "moving", "counter", "bucket")
AUTO = "auto"
CHARGES = (AUTO, "actual", "reserved")
RATES = ("stated", AUTO)
MAX_GUARD_S = 10.0
_SECRETS = re.compile(r"(?<=//).*(?=@)|(?<=\?).+")
_NAMES = {kind: f"the {kind.replace('_tokens', ' token').rstrip('s')} limit" for kind in KINDS}

# Little's law: calls in flight = rate x latency. An answer may take 30 s; with fewer slots than
# that needs, a part of the rate limit would stay unused.
LONG_ANSWER_S = 30.0
MIN_CONCURRENCY, MAX_AUTO_CONCURRENCY, MAX_CONCURRENCY = 64, 1000, 100_000

# The profiles under which everything that a window allows may be sent at once.
BURSTS = ("fixed", "moving", "bucket")

Rates = Sequence[Rate | str] | Rate | str


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of an endpoint; all of them apply at the same time.

    requests, tokens, input_tokens, output_tokens: rates such as `Rate(500, 60.0)`, or text such as
    "500/60s"; one rate or a sequence of rates. `tokens` counts input and output together.
    concurrency: the most calls in flight, 1 to 100,000; "auto" searches for the number, at most
    1,000, that is best for the server; None means 64, or up to 1,000 if the request rate needs more
    when answers take 30 s.
    rate: "stated" keeps to the rates above, which the server's headers can only lower; "auto" also
    adopts other limits in the headers, and searches for a request limit unless they state one;
    without a `concurrency`, "auto" searches for the concurrency as well.
    profile: the server's algorithm, `fixed`, `moving`, `counter` or `bucket`; `any`, the default,
    is safe for all of them (docs/limits.md).
    headroom: the share of each rate that may be used, above 0 and at most 1.
    guard_s: the seconds added to each window against jitter, 0 to 10; with `bucket`, the burst is
    smaller by what is refilled in this time; None to measure the jitter.
    charge: which tokens the provider counts against a token limit. `actual`: the usage in the
    reply. `reserved`: prompt + max_tokens at admission, never refunded. `auto`: `reserved` for
    hosts known to charge that way, otherwise `actual`.
    share: the path of a file, or a redis:// or rediss:// URL, through which processes share these
    limits; "" for limits of this process alone.
    Raises ConfigError for an invalid value, and for `share` together with a `rate` of "auto".
    """

    requests: Rates = ()
    tokens: Rates = ()
    input_tokens: Rates = ()
    output_tokens: Rates = ()
    concurrency: int | str | None = None
    rate: str = "stated"
    profile: str = "any"
    headroom: float = 1.0
    guard_s: float | None = None
    charge: str = AUTO
    share: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        _one_of("limit profile", self.profile, PROFILES)
        _one_of("charge", self.charge, CHARGES)
        _one_of("rate", self.rate, RATES)
        if not 0 < self.headroom <= 1:
            raise ConfigError(
                f"headroom must be above 0 and at most 1, not {self.headroom:g}",
                hint="0.8 uses 80 % of each rate and leaves the rest for others",
            )
        if self.guard_s is not None and not 0 <= self.guard_s <= MAX_GUARD_S:
            raise ConfigError(f"the guard must be 0 to 10 s, not {self.guard_s:g}")
        if isinstance(self.concurrency, str):
            _one_of("concurrency", self.concurrency, (AUTO,))
        elif self.concurrency is not None and not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigError(
                f"concurrency must be 1 to {MAX_CONCURRENCY:,}, not {self.concurrency}"
            )
        for kind in KINDS:
            self.rates(kind)
        if self.share and self.rate == AUTO:
            raise ConfigError(
                "limits that are searched for cannot be shared",
                hint="set the limits, for example with --requests 500/60s, or leave out --share",
            )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Limits({shown})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Returns the fields, safe to show: `share` has no user, password or query."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        fields["share"] = _SECRETS.sub("...", self.share)
        return [*fields.items()]

    def rates(self, kind: Kind) -> tuple[Rate, ...]:
        """Returns the limits of one kind, after headroom."""
        stated = as_rates(getattr(self, kind), _NAMES[kind])
        return tuple(usable(rate, self.headroom) for rate in stated)

    def request_rates(self) -> tuple[Rate, ...]:
        """Returns the request limits, after headroom."""
        return self.rates("requests")

    def check_shared(self) -> None:
        """Raises ConfigError if there is no limit that processes could share."""
        if not any(map(self.rates, KINDS)):
            raise ConfigError(
                "there is no limit to share", hint="set one, for example with --requests 500/60s"
            )

    @property
    def counts_tokens(self) -> bool:
        """Whether a token limit is set."""
        return any(self.rates(kind) for kind in KINDS if kind != "requests")

    @property
    def is_adaptive(self) -> bool:
        """Whether the number of calls in flight is found by a search instead of configured."""
        return self.concurrency == AUTO or (self.concurrency is None and self.rate == AUTO)

    def slots(self) -> int:
        """Returns the most calls that may be in flight."""
        if isinstance(self.concurrency, int):
            return self.concurrency
        if self.is_adaptive:
            return MAX_AUTO_CONCURRENCY
        per_s = min((rate.per_s for rate in self.request_rates()), default=0.0)
        return max(MIN_CONCURRENCY, min(MAX_AUTO_CONCURRENCY, math.ceil(per_s * LONG_ANSWER_S)))

    def ahead(self, found: Iterable[Rate] = (), lead_s: float = 1.0) -> int:
        """Returns the most calls that may hold a connection while they wait for their grant.

        This is as many as may be sent in lead_s, or in a burst; without a request limit, `slots()`.
        With more, connections would be opened long before they are used, opening them at once would
        keep the event loop from sending in time, and the calls could not go to another endpoint
        that is free sooner.
        found: request limits that apply in addition to the configured ones. lead_s: how early calls
        get ready for their grant.
        """
        rates = [*self.request_rates(), *found]
        if not rates:
            return self.slots()
        return math.ceil(min(soon(rate, self.profile, lead_s) for rate in rates))


def soon(rate: Rate, profile: str, lead_s: float) -> float:
    """Returns the amount that may be sent in lead_s seconds, or in a burst if that is more."""
    most = rate.per_s * lead_s
    return max(most, rate.count) if profile in BURSTS else most


def last_send_s(before: float, rate: Rate, limits: Limits) -> float:
    """Returns the seconds until one more may be sent, after `before` requests or tokens.

    The guard is the one that `limits` sets, otherwise the one assumed before any measurement.
    """
    guard_s = FIRST_GUARD_S if limits.guard_s is None else limits.guard_s
    shape = shape_of(rate, "requests", limits.profile, guard_s)
    if shape.is_hard and not shape.is_even:
        return before // rate.count * (rate.window_s + guard_s)
    return max(0.0, before + 1 - shape.burst) * shape.unit_s


def usable(rate: Rate, share: float) -> Rate:
    """Returns `share` of the rate, above 0 and at most 1, rounded down.

    If that is less than 1 per window, returns 1 in a longer window, of at most 31 days.
    """
    if share == 1:
        return rate
    count = math.floor(rate.count * share)
    if count:
        return Rate(count, rate.window_s)
    return Rate(1, min(MAX_WINDOW_S, rate.window_s / (rate.count * share)))


def as_rates(value: Rates, what: str) -> tuple[Rate, ...]:
    """Converts one or more rates, each a Rate or text. Raises ConfigError, which names `what`."""
    parts = (value,) if isinstance(value, (Rate, str)) else value
    for part in parts:
        check_type(what, part, (Rate, str))
    return tuple(parse_rate(part, what) if isinstance(part, str) else part for part in parts)


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(
            f"unknown {what}: {value}",
            hint=nearest(value, known) or f"one of {', '.join(known)}",
        )
