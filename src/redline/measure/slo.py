"""Parses and checks service level objectives, which an answer must meet to count as goodput.

Goodput is the rate of answers that meet all objectives (Zhong et al., DistServe: Disaggregating
Prefill and Decoding for Goodput-optimized Large Language Model Serving, OSDI 2024).
"""

from __future__ import annotations

import re

import msgspec

from redline.errors import ConfigError, nearest

FIGURES = ("latency", "ttft", "tpot")
_HINT = "for example ttft<500ms,latency<3s; the figures are latency, ttft and tpot"
_ONE = re.compile(r"([a-z_]+)\s*<=?\s*(\d+(?:\.\d+)?|\.\d+)\s*(us|ms|s|m)?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, None: 1.0}


class Objective(msgspec.Struct, frozen=True):
    """One objective: `figure`, one of FIGURES, must be at most `most_s` seconds."""

    figure: str
    most_s: float

    def __str__(self) -> str:
        most = f"{1000 * self.most_s:g}ms" if self.most_s < 1 else f"{self.most_s:g}s"
        return f"{self.figure}<{most}"


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Parses objectives such as `ttft<500ms,latency<3s`; a bound without a unit is in seconds.

    Raises ConfigError for an unknown figure, for a bound of 0, and for text in another form.
    """
    found = list[Objective]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _ONE.fullmatch(part)
        if match is None:
            raise ConfigError(f"slo is not an objective: {part}", hint=_HINT)
        name, most_s = match[1], float(match[2]) * _SECONDS[match[3]]
        if name not in FIGURES:
            raise ConfigError(
                f"slo has an unknown figure: {name}", hint=nearest(name, FIGURES) or _HINT
            )
        if most_s <= 0:
            raise ConfigError(f"slo must be above 0 s: {part}", hint=_HINT)
        found.append(Objective(name, most_s))
    if not found:
        raise ConfigError("slo states no objective", hint=_HINT)
    return tuple(found)


def keeps(
    objectives: tuple[Objective, ...],
    latency_s: float,
    ttft_s: float | None,
    tpot_s: float | None,
) -> bool:
    """Returns whether an answer with these figures meets all objectives.

    Without a stream, the first token arrives with the last one, so the latency counts as the ttft.
    An answer of one token, or not in several pieces, has no tpot, and meets any objective for it.
    """
    taken = {
        "latency": latency_s,
        "ttft": latency_s if ttft_s is None else ttft_s,
        "tpot": 0.0 if tpot_s is None else tpot_s,
    }
    return all(taken[one.figure] <= one.most_s for one in objectives)
