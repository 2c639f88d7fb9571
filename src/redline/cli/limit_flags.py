"""The flags that say how fast."""

from __future__ import annotations

from typing import Annotated, Any

from redline.cli.command import one_of
from redline.cli.flags import Option
from redline.limits.settings import CHARGES, PROFILES, RATES

LIMITS = "How fast"


def _flag(metavar: str, text: str, *names: str, **settings: Any) -> Any:
    return Option(*names, metavar=metavar, help=text, section=LIMITS, **settings)


RequestsFlag = Annotated[
    list[str] | None,
    _flag("N/W", "Request limit, such as 2/1s or 10k/1d. Repeatable; all limits hold at once."),
]
TokensFlag = Annotated[
    list[str] | None,
    _flag("N/W", "Limit on input and output tokens together, such as 200k/60s. Repeatable."),
]
InputTokensFlag = Annotated[
    list[str] | None, _flag("N/W", "Limit on input tokens alone. Repeatable.")
]
OutputTokensFlag = Annotated[
    list[str] | None, _flag("N/W", "Limit on output tokens alone. Repeatable.")
]
RpsFlag = Annotated[str | None, _flag("N", "Requests a second: short for --requests N/1s.")]
RpmFlag = Annotated[str | None, _flag("N", "Requests a minute: short for --requests N/60s.")]
TpmFlag = Annotated[str | None, _flag("N", "Tokens a minute: short for --tokens N/60s.")]
ConcurrencyFlag = Annotated[
    str | None,
    _flag(
        "N|auto",
        "Most requests in flight; auto finds the server's best. Default: 64, or what a request "
        "limit can use.",
        "-c",
        "--concurrency",
    ),
]
RateFlag = Annotated[
    str | None,
    _flag(
        "auto",
        "Limits that are not stated: auto reads them from the server's headers, and finds them "
        "where it sends none.",
        complete=one_of(*RATES),
    ),
]
ProfileFlag = Annotated[
    str | None,
    _flag(
        "NAME",
        "How the server counts: any (safe with all, the default), or fixed or moving window, "
        "sliding-window counter, or token bucket.",
        complete=one_of(*PROFILES),
    ),
]
HeadroomFlag = Annotated[
    str | None, _flag("SHARE", "Share of each rate to use: 0.8 leaves a fifth to others.")
]
GuardFlag = Annotated[
    str | None,
    _flag("TIME", "Added to each window against jitter, such as 50ms. Default: measured."),
]
ChargeFlag = Annotated[
    str | None,
    _flag(
        "NAME",
        "What the provider takes off a token limit: actual usage, or prompt and max_tokens "
        "reserved for good. Default auto: by the provider.",
        complete=one_of(*CHARGES),
    ),
]
ShareFlag = Annotated[
    str | None,
    _flag(
        "FILE|URL",
        "Processes that name the same file, or the same redis:// server, share the limits.",
    ),
]
