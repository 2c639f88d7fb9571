"""Reads what a server states about its limits in the headers of its replies.

| headers                                      | sent by                                       |
|----------------------------------------------|-----------------------------------------------|
| `x-ratelimit-{limit,remaining,reset}-KIND`   | OpenAI, Azure, Groq, Mistral, Cerebras,       |
|                                              | Fireworks, Kong                               |
| `anthropic-ratelimit-KIND-{limit,...}`       | Anthropic                                     |
| `x-ratelimitbysize-{limit,remaining}-WINDOW` | Mistral, and Kong's limits by size: tokens    |
| `x-tokenlimit-{limit,remaining}`             | Together: tokens a second                     |
| `X-RateLimit-*`, `RateLimit-*`, `RateLimit`  | gateways and frameworks: see policies.py      |
| any of these after `llm_provider-`           | LiteLLM's proxy, which passes on what it got  |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from redline.limits.rule import SECONDS, Kind
from redline.limits.server.policies import read_list, read_one
from redline.limits.server.stated_limit import (
    WRITTEN_KINDS,
    Stated,
    read_count,
    read_limit,
    read_reset_s,
    read_window_s,
    server_wall_s,
)

# A layout is the names of a reply's headers in order. A reply is searched for limit headers only if
# its layout is new. A server has a few layouts; after _MOST_LAYOUTS they are forgotten and learned
# again. A layout of more than _MOST_NAMES names is not remembered.
_MOST_LAYOUTS, _MOST_NAMES = 64, 64

_LONGEST_PROCESSING_S = 86_400.0
# Only users who run Envoy themselves see the second header.
_PROCESSING = ("openai-processing-ms", "x-envoy-upstream-service-time")

_PASSED_ON = "llm_provider-"
_KINDS: dict[str, Kind] = {
    **WRITTEN_KINDS,
    "req": "requests",  # Mistral
    "project-requests": "requests",
    "project-tokens": "tokens",
    "tokens-prompt": "input_tokens",  # Fireworks; so is the next
    "tokens-generated": "output_tokens",
}
_WINDOWS = "second|minute|hour|day"
# Azure once sent `x-rate-limit-reset-tokens`, with one hyphen more than its other names.
_BY_KIND = re.compile(
    r"x-rate-?limit-(limit|remaining|reset|renewalperiod)-"
    rf"(?:({'|'.join(_KINDS)})(?:-({_WINDOWS}))?|({_WINDOWS}))"
)
_ANTHROPIC = re.compile(
    r"anthropic-ratelimit-(requests|tokens|input-tokens|output-tokens)-(limit|remaining|reset)"
)
# Anthropic documents all its limits as limits per minute.
_ANTHROPIC_WINDOW_S = 60.0
# "x-tokenlimit-limit: the maximum number of tokens per second" (docs.together.ai, "Rate limits").
# A gateway that has adopted this name for another window also states the reset. A monthly limit by
# size is left out, because it is a budget: spread evenly, it would leave almost no rate.
_TOKENS = re.compile(rf"x-(tokenlimit|ratelimitbysize)-(limit|remaining|reset)(?:-({_WINDOWS}))?")
_TOGETHER_WINDOW_S = 1.0
_UNSORTED = re.compile(r"(x-rate-?limit-|ratelimit-)(limit|remaining|reset|policy)|(ratelimit)")


class _Lane(msgspec.Struct, eq=False):
    """The names of the headers that state one limit of a kind; "" for an absent header."""

    kind: Kind
    window_s: float | None
    name: str
    is_assumed: bool = False  # whether only the documentation names the window
    limit: str = ""
    remaining: str = ""
    reset: str = ""
    renewalperiod: str = ""  # Azure and GitHub Models state the window here


class _Form(NamedTuple):
    """The names of headers that state limits without a kind, and a reader for their values."""

    read: Callable[..., list[Stated]]
    names: tuple[str, ...]


def _read_separate(
    limit: str | None, remaining: str | None, reset: str | None, policy: str | None, wall_s: float
) -> list[Stated]:
    """Reads a limit without a kind that has one header for each of its fields."""
    if limit is None and remaining is None:
        return []
    return read_one(limit, remaining, reset, policy, wall_s)


class HeaderReader:
    """Reads the limits that one endpoint states, and remembers the headers that state them.

    Headers that were found once are looked up directly in later replies. silent: the layouts of
    replies that state neither limits nor the processing time.
    """

    __slots__ = ("_forms", "_found", "_lanes", "_layouts", "_names", "silent")

    def __init__(self) -> None:
        self._layouts: set[tuple[str, ...]] = set()
        self.silent: set[tuple[str, ...]] = set()
        # By whether a proxy passes the limit on, and by the part that its header names share.
        self._found: dict[tuple[bool, str], _Lane] = {}
        self._lanes: tuple[_Lane, ...] = ()
        # The headers without a kind, by their normalized names: `ratelimit`, `x-ratelimit-limit`...
        self._names: dict[str, str] = {}
        # Gateways repeat one limit in several forms, so only the first form in a reply counts.
        self._forms: tuple[_Form, ...] = ()

    def read(self, headers: Mapping[str, str], wall_s: float) -> tuple[Stated, ...]:
        """Returns the limits that one reply states, in no particular order; usually none.

        headers: looked up in the case in which the server first sent them. wall_s: the time now,
        for resets stated as timestamps; the server's own Date takes precedence. Never raises,
        whatever the server sends.
        """
        layout = tuple(headers)
        if layout not in self._layouts:
            self._scan(layout)
        if not self._lanes and not self._forms:
            return ()
        get = headers.get
        wall_s = server_wall_s(headers, wall_s)
        found: list[Stated] = []
        for lane in self._lanes:
            limit = read_limit(get(lane.limit))
            remaining = read_count(get(lane.remaining))
            reset_s = read_reset_s(get(lane.reset), wall_s)
            window_s = lane.window_s
            if lane.renewalperiod:
                window_s = read_window_s(get(lane.renewalperiod))
            if limit is not None or remaining is not None or reset_s:
                found.append(
                    Stated(
                        lane.kind,
                        limit,
                        remaining,
                        reset_s,
                        window_s,
                        lane.name,
                        is_assumed=lane.is_assumed,
                    )
                )
        for form in self._forms:
            if stated := form.read(*map(get, form.names), wall_s):
                found += stated
                break
        return tuple(found)

    def _scan(self, layout: tuple[str, ...]) -> None:
        """Learns the names of the limit headers in a reply; earlier names are kept."""
        if len(self._layouts) >= _MOST_LAYOUTS:
            self._layouts.clear()
            self.silent.clear()
        is_short = len(layout) <= _MOST_NAMES
        if is_short:
            self._layouts.add(layout)
        is_silent = True
        for name in layout:
            plain = name.lower()
            if "limit" in plain:
                self._learn(name, plain.removeprefix(_PASSED_ON))
                is_silent = False
            elif plain in _PROCESSING:
                is_silent = False
        if is_silent:
            if is_short:
                self.silent.add(layout)
            return
        # A proxy's own limit takes precedence over a limit of the same kind that it passes on.
        own = {found.kind for (is_passed_on, _), found in self._found.items() if not is_passed_on}
        self._lanes = tuple(
            found
            for (is_passed_on, _), found in self._found.items()
            if not is_passed_on or found.kind not in own
        )
        self._forms = tuple(self._known_forms())

    def _known_forms(self) -> Iterator[_Form]:
        """Yields the forms that were seen, the newest and richest form first."""
        name = self._names.get
        policy = name("ratelimit-policy", "")
        if "ratelimit" in self._names:
            yield _Form(read_list, (self._names["ratelimit"], policy))
        for family in ("ratelimit-", "x-ratelimit-"):
            limit, remaining = name(family + "limit", ""), name(family + "remaining", "")
            if limit or remaining:
                names = limit, remaining, name(family + "reset", ""), policy
                yield _Form(_read_separate, names)
        if policy:
            yield _Form(read_list, ("", policy))

    def _learn(self, name: str, plain: str) -> None:
        is_passed_on = name.lower() != plain
        if found := _BY_KIND.fullmatch(plain):
            field, subject, span, bare_span = found.groups()
            window = span or bare_span
            window_s = SECONDS.get(window)
            # Kong gives only the window, and means requests.
            kind = _KINDS[subject] if subject else "requests"
            key = (is_passed_on, f"{subject} {window}")
        elif found := _ANTHROPIC.fullmatch(plain):
            subject, field = found.groups()
            kind, window_s, key = _KINDS[subject], _ANTHROPIC_WINDOW_S, (is_passed_on, subject)
        elif found := _TOKENS.fullmatch(plain):
            subject, field, window = found.groups()
            kind, key = "tokens", (is_passed_on, f"{subject} {window}")
            window_s = SECONDS.get(window)
            if subject == "tokenlimit" and not window and not self._tells_reset(key, field):
                window_s = _TOGETHER_WINDOW_S
        elif found := _UNSORTED.fullmatch(plain):
            what = plain.replace("rate-limit", "ratelimit")
            if not is_passed_on or what not in self._names:
                self._names[what] = name
            return
        else:
            return
        lane = self._found.setdefault(key, _Lane(kind, window_s, key[1]))
        lane.window_s, lane.is_assumed = window_s, window_s is not None and "anthropic" in plain
        setattr(lane, field, name)

    def _tells_reset(self, key: tuple[bool, str], field: str) -> bool:
        """Returns whether the limit of `key` has a header with its reset."""
        return field == "reset" or (key in self._found and self._found[key].reset != "")


def processing_s(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds that the server itself spent on the call.

    None if the server does not state them, or states more than a day.
    """
    first, second = _PROCESSING
    text = headers.get(first) or headers.get(second)
    if text is None:
        return None
    try:
        spent_s = float(text) / 1000
    except ValueError:
        return None
    return spent_s if 0 <= spent_s <= _LONGEST_PROCESSING_S else None
