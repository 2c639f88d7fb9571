"""Reads limits written as lists of policies, by Envoy, slowapi and the IETF drafts.

| headers                                                    | written by                       |
|------------------------------------------------------------|----------------------------------|
| `X-RateLimit-Limit: 500`, `-Remaining`, `-Reset`           | slowapi, flask-limiter, GitHub   |
| `X-RateLimit-Limit: 10, 10;w=1;name="per-ip", 1000;w=3600` | Envoy (its DRAFT_VERSION_03)     |
| `RateLimit-Limit: 100`, `RateLimit-Policy: 100;w=60`       | the draft up to version 06       |
| `RateLimit: limit=100, remaining=50, reset=5`              | version 07                       |
| `RateLimit: "default";r=50;t=30`,                          | versions 08 to 11                |
| `RateLimit-Policy: "default";q=100;w=10`                   |                                  |

The draft is draft-ietf-httpapi-ratelimit-headers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from redline.limits.rule import Kind
from redline.limits.server.stated_limit import (
    WRITTEN_KINDS,
    Stated,
    lateness_s,
    read_count,
    read_limit,
    read_reset_s,
    read_window_s,
)

# A list of policies is short. A longer text is malformed, and is not parsed.
_LONGEST_TEXT = 1000
# A parameter's value is a number, a word, a "string" or :bytes:. Commas in quotes are literal.
_PARAM = r';\s*([A-Za-z]+)\s*=\s*("[^"]*"|:[^:]*:|[^\s",;]*)\s*'
_PARAMS = re.compile(_PARAM)
_MEMBERS = re.compile(rf'("[^"]*"|[^\s",;=]+)\s*((?:{_PARAM.replace("(", "(?:")})*)')
_FIELDS = re.compile(r"(limit|remaining|reset)\s*=\s*([0-9.]+)")


class _Policy(NamedTuple):
    """One policy. kind: None for a unit that redline does not limit, such as bytes."""

    name: str
    kind: Kind | None
    limit: int | None
    window_s: float | None


def read_one(
    limit: str | None,
    remaining: str | None,
    reset: str | None,
    policy: str | None,
    wall_s: float,
) -> list[Stated]:
    """Returns the limit that these separate fields state, and every policy beside it.

    `remaining` and `reset` belong to one policy only: the first one with the stated limit whose
    window is not shorter than the time until the reset.
    """
    current, policies = _sizes(limit or "")
    policies = policies or _policies(policy or "")
    left = read_count(remaining)
    reset_s = read_reset_s(reset, wall_s)
    found: list[Stated] = []
    is_placed = current is None and left is None and not reset_s
    for name, kind, size, window_s in policies:
        if kind is None or size is None:
            continue
        if (
            not is_placed
            and (current is None or size == current)
            and (window_s is None or reset_s is None or reset_s <= window_s)
        ):
            is_placed = True
            found.append(Stated(kind, size, left, reset_s, window_s, name))
        else:
            found.append(Stated(kind, size, None, None, window_s, name))
    if not is_placed:
        found.insert(0, Stated("requests", current, left, reset_s, late_s=lateness_s(reset)))
    return found


def read_list(rates: str | None, policy: str | None, wall_s: float) -> list[Stated]:
    """Returns the limits that the members of `RateLimit` state, and those of other policies."""
    if rates is not None and len(rates) > _LONGEST_TEXT:
        rates = None
    if rates is not None and ";" not in rates:
        fields = dict(_FIELDS.findall(rates))
        limit, remaining, reset = (fields.get(name) for name in ("limit", "remaining", "reset"))
        return read_one(limit, remaining, reset, policy, wall_s)
    policies = _by_name(policy or "")
    found: list[Stated] = []
    named = set()
    # Split by hand for every reply, five times as fast as with the pattern. A name that contains a
    # comma, which no provider uses, loses its policy.
    for member in (rates or "").split(","):
        quoted, *params = member.split(";")
        name, left, reset_s = quoted.strip(' "'), None, None
        for param in params:
            field, _, value = param.partition("=")
            if field.strip() == "r":
                left = read_count(value)
            elif field.strip() == "t":
                reset_s = read_reset_s(value, wall_s)
        named.add(name)
        _, kind, size, window_s = policies.get(name) or _Policy(name, "requests", None, None)
        if kind is not None and (size is not None or left is not None or reset_s):
            found.append(Stated(kind, size, left, reset_s, window_s, name))
    for name, (_, kind, size, window_s) in policies.items():
        if kind is not None and size is not None and name not in named:
            found.append(Stated(kind, size, None, None, window_s, name))
    return found


@lru_cache(maxsize=64)  # a server's limit rarely changes between replies
def _sizes(text: str) -> tuple[int | None, tuple[_Policy, ...]]:
    """Returns the bare number at the head of the list, and the distinct policies after it."""
    current = None
    policies: dict[tuple[int | None, float | None], _Policy] = {}
    for policy in _policies(text):
        if policy.window_s is None:
            current = policy.limit if current is None else current
        else:
            # Envoy repeats a policy that several of its rules share.
            policies.setdefault((policy.limit, policy.window_s), policy)
    return current, tuple(policies.values())


@lru_cache(maxsize=64)
def _policies(text: str) -> tuple[_Policy, ...]:
    """Returns the members of a list: `"default";q=100;w=10` is `default` with its parameters."""
    if len(text) > _LONGEST_TEXT:
        return ()
    members = _MEMBERS.findall(text)
    return tuple(_policy(name.strip('"'), dict(_PARAMS.findall(rest))) for name, rest in members)


@lru_cache(maxsize=64)
def _by_name(text: str) -> dict[str, _Policy]:
    return {policy.name: policy for policy in _policies(text)}


def _policy(value: str, params: dict[str, str]) -> _Policy:
    # The drafts define requests, content-bytes and concurrent-requests, and leave the list open.
    # Only the unit decides: a policy named "per-token" may mean the access token of a user.
    unit = params.get("qu", "requests").strip('"').lower().replace("_", "-")
    window_s = read_window_s(params.get("w") or params.get("window"))
    if "q" in params:
        return _Policy(value, WRITTEN_KINDS.get(unit), read_limit(params["q"]), window_s)
    name = params.get("name", value).strip('"')
    return _Policy(name, WRITTEN_KINDS.get(unit), read_limit(value), window_s)
