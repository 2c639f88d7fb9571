"""Defines the settings of a simulated provider: its limits, latency, faults and answers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from redline.errors import ConfigError, check_known
from redline.limits.rule import KINDS, Rate, Rates, as_rates, span
from redline.sim.faults import Faults
from redline.sim.latency import Constant, Latency
from redline.structs import check_types

ALGORITHMS = ("fixed", "moving", "counter", "bucket")
HEADER_STYLES = ("openai", "azure", "anthropic", "gemini", "envoy", "ietf", "slowapi", "none")
CHARGES = ("actual", "reserved", "answered")
MAX_PER_TOKEN_S = 60.0
MAX_JITTER_S = 60.0
DAY_S = 86_400.0
MAX_WINDOW_S = 30 * DAY_S


class SimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings with which a simulated provider starts.

    host, port: the address on which it listens; port 0 selects a free one.
    requests, tokens, input_tokens, output_tokens: the rate limits of each key, as in Limits; all of
        them apply at once. `tokens` counts input and output together.
    algorithm: how the limits count: `fixed` or `moving` window, sliding window `counter`, or token
        `bucket`.
    charge: how tokens count. `actual`: prompt and answer on arrival; `reserved`: prompt and
        max_tokens on arrival without a refund, or prompt and answer if max_tokens is not given;
        `answered`: the prompt on arrival, the answer when it ends.
    jitter_s: each request is delayed by 0 to this many seconds before the limits are checked; 0 to
        60.
    concurrency: requests served at once, at least 1; up to 4,096 others wait in order of arrival,
        and any further request gets 503. None for no limit.
    latency: seconds before the first byte. per_token_s: further seconds per completion token, 0 to
        60.
    faults: the share of admitted requests that fails, by kind.
    headers: the style of limit headers. `none` and `gemini` send neither limit headers nor
        Retry-After, but with `gemini`, the body of a 429 states the wait.
    replay: a JSONL file to answer from, each line with a `question` and its `answer`.
    stories: whether to answer with invented stories, determined by the question and the request's
        seed; without a seed, each answer is a new story.
    near_duplicates: the share of stories, 0 to 1, that repeat an earlier one with a few words
        changed.
    seed: determines the stories and, in order of arrival, latencies, faults and jitter.
    api_key: the key that requests must have, except those for health, metrics and counters; None
        to require none.
    batch_latency: seconds from the creation of a batch to the answer of each of its lines.
    batch_window_s: the seconds after which a batch expires, above 0 and at most 30 days.
    batch_tokens: the most tokens (bytes divided by four) that may wait in all batches together; a
        batch that would exceed this number fails. At least 1; None for no limit.
    Raises ConfigError for a value that is not valid.
    """

    host: str = "127.0.0.1"
    port: int = 0
    requests: Rates = ()
    tokens: Rates = ()
    input_tokens: Rates = ()
    output_tokens: Rates = ()
    algorithm: str = "fixed"
    charge: str = "actual"
    jitter_s: float = 0.0
    concurrency: int | None = None
    latency: Latency = Constant(0.0)
    per_token_s: float = 0.0
    faults: Faults = Faults()
    headers: str = "openai"
    replay: Path | None = None
    stories: bool = False
    near_duplicates: float = 0.0
    seed: int = 0
    api_key: str | None = None
    batch_latency: Latency = Constant(0.0)
    batch_window_s: float = DAY_S
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        _ = self.rates  # raises ConfigError
        check_known("algorithm", self.algorithm, ALGORITHMS)
        check_known("charge", self.charge, CHARGES)
        check_known("header style", self.headers, HEADER_STYLES)
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"a port must be 0 to 65535, not {self.port}", hint="0 picks one")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(
                f"concurrency must be at least 1, not {self.concurrency}",
                hint="leave it out for no limit",
            )
        if not 0 <= self.per_token_s <= MAX_PER_TOKEN_S:
            raise ConfigError(
                f"the time per token must be between 0 and {MAX_PER_TOKEN_S:g} s, "
                f"not {self.per_token_s:g}",
                hint="0.02 is 50 tokens a second",
            )
        if not 0 <= self.jitter_s <= MAX_JITTER_S:
            raise ConfigError(
                f"the jitter must be between 0 and {MAX_JITTER_S:g} s, not {self.jitter_s:g}",
                hint="0.05 is a slow network",
            )
        if self.stories and self.replay is not None:
            raise ConfigError("stories and a replay cannot be combined", hint="leave one out")
        if not 0 <= self.near_duplicates <= 1:
            raise ConfigError(
                f"the share of near-duplicates must be 0 to 1, not {self.near_duplicates:g}",
                hint="0.1 is one story in ten",
            )
        if self.near_duplicates and not self.stories:
            raise ConfigError("only stories have near-duplicates", hint="turn on stories, too")
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("the required API key is empty", hint="leave it out to require none")
        if not 0 < self.batch_window_s <= MAX_WINDOW_S:
            raise ConfigError(
                f"a batch's window must be above 0 and at most {span(MAX_WINDOW_S)}, "
                f"not {span(self.batch_window_s)}",
                hint="24h, the default, is OpenAI's",
            )
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise ConfigError(
                f"the token limit for batches must be at least 1, not {self.batch_tokens}",
                hint="leave it out for no limit",
            )

    @property
    def rates(self) -> dict[str, tuple[Rate, ...]]:
        """The rate limits by kind; the kinds are redline.sim.admission.KINDS."""
        return {kind.replace("_", "-"): as_rates(getattr(self, kind), kind) for kind in KINDS}

    def __str__(self) -> str:
        """Returns one line that describes what is simulated, without the key."""
        told = [f"{what} {rate}" for what, rates in self.rates.items() for rate in rates]
        parts = [f"{', '.join(told)} ({self.algorithm})" if told else "no rate limit"]
        if self.charge != "actual":
            parts.append(f"tokens as {self.charge}")
        if self.jitter_s:
            parts.append(f"jitter 0-{self.jitter_s:g} s")
        if self.concurrency is not None:
            parts.append(f"{self.concurrency} at once")
        parts.append(f"latency {self.latency}")
        if self.per_token_s:
            parts.append(f"{self.per_token_s:g} s per token")
        if self.faults.total:
            parts.append(f"faults {self.faults.total * 100:.3g} %")
        if self.replay is not None:
            parts.append(f"answers from {self.replay}")
        if self.batch_latency != Constant(0.0) or self.batch_window_s != DAY_S:
            parts.append(f"batches {self.batch_latency}, expiring after {self.batch_window_s:g} s")
        if self.batch_tokens is not None:
            parts.append(f"at most {self.batch_tokens} tokens in batches")
        if self.stories:
            parts.append("stories")
        if self.near_duplicates:
            parts.append(f"{self.near_duplicates * 100:.3g} % near-duplicates")
        parts.append(f"seed {self.seed}")
        return "; ".join(parts)
