"""The settings of a simulated provider: its limits, latency, faults and answers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from redline.errors import ConfigError, nearest
from redline.limits.rule import Rate
from redline.sim.faults import Faults
from redline.sim.latency import Constant, Latency

ALGORITHMS = ("fixed", "moving", "counter", "bucket")
HEADER_STYLES = ("openai", "azure", "anthropic", "gemini", "envoy", "ietf", "slowapi", "none")
CHARGES = ("actual", "reserved", "answered")
MAX_PER_TOKEN_S = 60.0
MAX_JITTER_S = 60.0
DAY_S = 86_400.0
MAX_WINDOW_S = 30 * DAY_S
# The default latency of batches, and their default window.
_BATCH_S = (Constant(0.0), DAY_S)


class SimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings with which a simulated provider starts.

    host, port: the address on which it listens; port 0 lets the system pick one.
    requests, tokens, input_tokens, output_tokens: the rate limits of each key; all of them hold at
        once. `tokens` counts input and output together.
    algorithm: how the limits count: `fixed` and `moving` windows, sliding window `counter`,
        token `bucket`.
    charge: when tokens are counted. `actual`: prompt and answer on arrival; `reserved`: prompt and
        max_tokens on arrival, never given back (the answer's tokens if there is no max_tokens);
        `answered`: the prompt on arrival, the answer when it ends.
    jitter_s: each request is delayed by 0 to this many seconds before the limits are checked.
    concurrency: requests served at once; further ones wait in arrival order. None for no cap.
    latency: seconds before the first byte; per_token_s: seconds more per completion token.
    faults: the share of admitted requests that fails, by kind.
    headers: the style of limit headers. `none` sends neither limit headers nor Retry-After.
    replay: a file of `question` and `answer` lines to answer from.
    stories: answers are made-up stories, by the question and the seed of the request.
    near_duplicates: the share of stories that repeat an earlier one with a few words changed.
    seed: fixes latencies, faults and jitter, in the order of arrival, and the stories.
    api_key: if set, the key every request must carry.
    batch_latency: seconds from the creation of a batch to the answer of each of its lines.
    batch_window_s: the seconds after which a batch expires. batch_tokens: the most tokens that
        all batches may have waiting, one for four bytes; a batch beyond that fails. None for no
        limit.
    Raises ConfigError for a value that is not valid.
    """

    host: str = "127.0.0.1"
    port: int = 0
    requests: tuple[Rate, ...] = ()
    tokens: tuple[Rate, ...] = ()
    input_tokens: tuple[Rate, ...] = ()
    output_tokens: tuple[Rate, ...] = ()
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
        for what, value, known in (
            ("algorithm", self.algorithm, ALGORITHMS),
            ("charge", self.charge, CHARGES),
            ("header style", self.headers, HEADER_STYLES),
        ):
            if value not in known:
                hint = nearest(value, known) or f"choose one of {', '.join(known)}"
                raise ConfigError(f"unknown {what}: {value}", hint=hint)
        rules = (
            (
                0 <= self.port <= 65535,
                f"a port must be 0 to 65535, not {self.port}",
                "0 picks one",
            ),
            (
                self.concurrency is None or self.concurrency >= 1,
                f"concurrency must be at least 1, not {self.concurrency}",
                "leave it out for no cap",
            ),
            (
                0 <= self.per_token_s <= MAX_PER_TOKEN_S,
                f"the time per token must be between 0 and {MAX_PER_TOKEN_S:g} s, "
                f"not {self.per_token_s:g}",
                "0.02 is 50 tokens a second",
            ),
            (
                0 <= self.jitter_s <= MAX_JITTER_S,
                f"the jitter must be between 0 and {MAX_JITTER_S:g} s, not {self.jitter_s:g}",
                "0.05 is a slow network",
            ),
            (
                self.replay is None or not self.stories,
                "stories and a replay cannot be combined",
                "leave one out",
            ),
            (
                0 <= self.near_duplicates <= 1,
                f"the share of near-duplicates must be 0 to 1, not {self.near_duplicates:g}",
                "0.1 is one story in ten",
            ),
            (
                self.stories or not self.near_duplicates,
                "near-duplicates are those of stories",
                "ask for stories, too",
            ),
            (
                self.api_key is None or self.api_key.strip(),
                "the key to ask for is empty",
                "leave it out to ask for none",
            ),
            (
                0 < self.batch_window_s <= MAX_WINDOW_S,
                f"a batch's window must be above 0 and at most {MAX_WINDOW_S:g} s, "
                f"not {self.batch_window_s:g}",
                "24h, the default, is OpenAI's",
            ),
            (
                self.batch_tokens is None or self.batch_tokens >= 1,
                f"the tokens of batches must be at least 1, not {self.batch_tokens}",
                "leave it out for no limit",
            ),
        )
        for is_kept, what, hint in rules:
            if not is_kept:
                raise ConfigError(what, hint=hint)

    @property
    def rates(self) -> dict[str, tuple[Rate, ...]]:
        """The rate limits by kind, as redline.sim.admission names the kinds."""
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "input-tokens": self.input_tokens,
            "output-tokens": self.output_tokens,
        }

    def __str__(self) -> str:
        """Returns one line that describes what is simulated, without the key."""
        rates = [f"{what} {rate}" for what, each in self.rates.items() for rate in each]
        window, batch_s = f"{self.batch_window_s:g} s", (self.batch_latency, self.batch_window_s)
        told = {
            f"{', '.join(rates)} ({self.algorithm})" if rates else "no rate limit": True,
            f"tokens as {self.charge}": self.charge != "actual",
            f"jitter 0-{self.jitter_s:g} s": self.jitter_s,
            f"{self.concurrency} at once": self.concurrency is not None,
            f"latency {self.latency}": True,
            f"{self.per_token_s:g} s per token": self.per_token_s,
            f"faults {self.faults.total * 100:.3g} %": self.faults.total,
            f"answers from {self.replay}": self.replay is not None,
            f"batches {self.batch_latency}, expiring after {window}": batch_s != _BATCH_S,
            f"at most {self.batch_tokens} tokens in batches": self.batch_tokens is not None,
            "stories": self.stories,
            f"{self.near_duplicates * 100:.3g} % near-duplicates": self.near_duplicates,
            f"seed {self.seed}": True,
        }
        return "; ".join(text for text, is_told in told.items() if is_told)
