"""What a simulated provider is to be: its limits, its speed, its faults, its answers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from redline.errors import ConfigError, nearest
from redline.limits.rate import Rate
from redline.sim.faults import Faults
from redline.sim.latency import Constant, Latency

ALGORITHMS = ("fixed", "moving", "counter", "bucket")
HEADER_STYLES = ("openai", "azure", "anthropic", "none")
MAX_PER_TOKEN_S = 60.0


class SimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a simulated provider does, fixed before it starts.

    host, port: where it listens; port 0 lets the system pick one.
    requests, tokens: the rate limits; all of them hold at once.
    algorithm: how the limits count: `fixed` and `moving` windows, sliding window `counter`,
        token `bucket`.
    concurrency: requests served at once; further ones wait in arrival order. None for no cap.
    latency: seconds before the first byte; per_token_s: seconds more per completion token.
    faults: the share of admitted requests that goes wrong, by kind.
    headers: whose limit headers to imitate. `none` sends no limit headers and no Retry-After.
    replay: a file of `question` and `answer` lines to answer from.
    seed: fixes latencies and faults, in the order of arrival.
    api_key: where set, the key every request must carry.
    Raises ConfigError for a value that cannot work.
    """

    host: str = "127.0.0.1"
    port: int = 0
    requests: tuple[Rate, ...] = ()
    tokens: tuple[Rate, ...] = ()
    algorithm: str = "fixed"
    concurrency: int | None = None
    latency: Latency = Constant(0.0)
    per_token_s: float = 0.0
    faults: Faults = Faults()
    headers: str = "openai"
    replay: Path | None = None
    seed: int = 0
    api_key: str | None = None

    def __post_init__(self) -> None:
        _one_of("algorithm", self.algorithm, ALGORITHMS)
        _one_of("header style", self.headers, HEADER_STYLES)
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"a port lies in 0 to 65535, not {self.port}", hint="0 picks one")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(
                f"concurrency must be at least 1, not {self.concurrency}",
                hint="leave it out for no cap",
            )
        if not 0 <= self.per_token_s <= MAX_PER_TOKEN_S:
            raise ConfigError(
                f"the time per token must be between 0 and {MAX_PER_TOKEN_S:g} s, "
                f"not {self.per_token_s:g}",
                hint="0.02 is 50 tokens a second",
            )
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("the key to ask for is empty", hint="leave it out to ask for none")

    def __str__(self) -> str:
        """What is simulated, on one line. The key is not shown."""
        rates = [f"requests {rate}" for rate in self.requests]
        rates += [f"tokens {rate}" for rate in self.tokens]
        parts = [f"{', '.join(rates)} ({self.algorithm})" if rates else "no rate limit"]
        if self.concurrency is not None:
            parts.append(f"{self.concurrency} at once")
        parts.append(f"latency {self.latency}")
        if self.per_token_s:
            parts.append(f"{self.per_token_s:g} s per token")
        if self.faults.total:
            parts.append(f"faults {self.faults.total * 100:.3g} %")
        if self.replay is not None:
            parts.append(f"answers from {self.replay}")
        parts.append(f"seed {self.seed}")
        return "; ".join(parts)


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            f"unknown {what}: {value}",
            hint=nearest(value, known) or f"choose one of {', '.join(known)}",
        )
