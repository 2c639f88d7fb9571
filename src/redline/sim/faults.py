"""Draws faults according to their shares: one seeded draw per admitted request.

| kind      | what the client sees                                                       |
|-----------|----------------------------------------------------------------------------|
| `429`     | at once: HTTP 429 without Retry-After or limit headers                     |
| `503`     | at once: HTTP 503                                                          |
| `500`     | after the latency: HTTP 500                                                |
| `reset`   | after the latency: the TCP connection is reset                             |
| `half`    | after the latency: a 200 and half the body, then the connection closes     |
| `notjson` | after the latency: a 200 with an HTML page                                 |
| `stall`   | nothing at all, until the client leaves or an hour has passed              |
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from redline.errors import ConfigError, check_known

KINDS = ("429", "500", "503", "reset", "half", "notjson", "stall")
_HINT = "write one share like 0.05, or shares by kind like 429=0.02 and stall=0.01"


class Faults(msgspec.Struct, frozen=True):
    """The share of admitted requests, 0 to 1, that meets each kind of fault.

    Raises ConfigError for an unknown or repeated kind, for a share out of range, and for shares
    that add up to more than 1.
    """

    shares: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for kind, share in self.shares:
            check_known("kind of fault", kind, KINDS)
            if kind in seen:
                raise ConfigError(f"the fault {kind} is given twice", hint="give it once")
            if not 0 <= share <= 1:
                raise ConfigError(f"a share of faults must be 0 to 1, not {share:g}", hint=_HINT)
            seen.add(kind)
        if self.total > 1 + 1e-9:
            raise ConfigError(f"the shares of faults add up to {self.total:g}, which is above 1")

    @property
    def total(self) -> float:
        """The share of admitted requests that meets any fault, 0 to 1."""
        return sum(share for _, share in self.shares)

    def draw(self, rng: Random) -> str | None:
        """Returns the kind of fault for a request, None for no fault; draws once from `rng`."""
        point = rng.random()
        for kind, share in self.shares:
            if point < share:
                return kind
            point -= share
        return None

    def __str__(self) -> str:
        return ", ".join(f"{kind} {share:.3g}" for kind, share in self.shares if share) or "none"


def parse_faults(texts: Sequence[str]) -> Faults:
    """Parses `["0.05"]` (spread evenly over all kinds) or `["429=0.02", "stall=0.01"]`.

    Raises ConfigError for an unknown kind, a share outside 0 to 1, or both forms together.
    """
    if not texts:
        return Faults()
    if len(texts) == 1 and "=" not in texts[0]:
        share = _share(texts[0])
        return Faults(tuple((kind, share / len(KINDS)) for kind in KINDS) if share else ())
    pairs = []
    for text in texts:
        kind, equals, share_text = text.partition("=")
        if not equals:
            raise ConfigError(f"each of several faults needs a kind: {text}", hint=_HINT)
        pairs.append((kind.strip(), _share(share_text)))
    return Faults(tuple(pairs))


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        raise ConfigError(f"a share of faults is not a number: {text}", hint=_HINT) from None
    if not 0 <= share <= 1:
        raise ConfigError(f"a share of faults must be 0 to 1, not {text.strip()}", hint=_HINT)
    return share
