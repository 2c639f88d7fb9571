"""Hashes of what prompts begin with."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from redline.calls import Request
from redline.calls.tokens import PREFIX_CHARS, prefixes_of

SYSTEM = "You are a careful clerk. " * 40  # 1,000 characters


def chat(system: str, user: str, **fields: Any) -> dict[str, Any]:
    said = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"messages": said, "model": "m", **fields}


def raw(body: dict[str, Any]) -> Request:
    return Request(raw=msgspec.json.encode(body))


def shared(one: Request, other: Request) -> int:
    """The prefixes that both have."""
    pairs = zip(prefixes_of(one), prefixes_of(other), strict=False)
    return sum(mine == theirs for mine, theirs in pairs)


def test_calls_agree_as_far_as_their_prompts_do() -> None:
    one, other = raw(chat(SYSTEM, "a" * 2000)), raw(chat(SYSTEM, "b" * 2000))
    assert shared(one, other) == sum(chars <= len(SYSTEM) for chars in PREFIX_CHARS) == 3
    assert len(prefixes_of(one)) > 3


def test_after_a_difference_nothing_agrees() -> None:
    """A hash is of the whole prefix, and not of its last block."""
    one, other = raw(chat("x" + SYSTEM, "a" * 2000)), raw(chat("y" + SYSTEM, "a" * 2000))
    assert shared(one, other) == 0


@pytest.mark.parametrize("fields", [{"seed": 7}, {"logit_bias": {"7": 1}}])
def test_fields_that_are_no_prompt_do_not_matter(fields: dict[str, Any]) -> None:
    """Those that the quick decode knows, and those that need a decode of all."""
    one, other = raw(chat(SYSTEM, "a")), raw(chat(SYSTEM, "a", **fields))
    assert prefixes_of(one) == prefixes_of(other) != ()


def test_another_model_has_another_cache() -> None:
    one, other = raw(chat(SYSTEM, "a")), raw(chat(SYSTEM, "a", model="n"))
    assert shared(one, other) == 0


def test_a_prompt_in_parts_is_read_in_its_order() -> None:
    parts = [{"type": "text", "text": SYSTEM[:500]}, {"type": "text", "text": SYSTEM[500:]}]
    in_parts = {"messages": [{"role": "user", "content": parts}], "model": "m"}
    assert prefixes_of(Request(body=in_parts)) == prefixes_of(raw(chat(SYSTEM, "")))


def test_tools_are_read_before_the_messages() -> None:
    def tools(about: str) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "look", "description": about}}]

    same, other = tools("a" * 600), tools("b" * 600)
    one = raw(chat(SYSTEM, "a", tools=same))
    assert shared(one, raw(chat(SYSTEM, "b", tools=same))) >= 5
    assert shared(one, Request(body=chat(SYSTEM, "b", tools=same))) >= 5
    assert shared(one, raw(chat(SYSTEM, "a", tools=other))) == 0
    assert shared(one, raw(chat(SYSTEM, "a"))) == 0


@pytest.mark.parametrize("field", ["prompt", "input", "instructions"])
def test_other_apis_have_prompts_as_well(field: str) -> None:
    first, second = ({field: SYSTEM + end, "model": "m"} for end in ("a", "b"))
    url = "/v1/completions" if field == "prompt" else "/v1/responses"
    assert shared(Request(body=first, url=url), Request(body=second, url=url)) == 3


def test_a_prompt_of_token_ids_has_prefixes() -> None:
    one, other = ({"prompt": [*range(500), end], "model": "m"} for end in (1, 2))
    assert shared(Request(body=one), Request(body=other)) >= 4


@pytest.mark.parametrize("body", [None, [], "text", b"bytes", {}, chat("", "short"), {"input": 3}])
def test_what_has_no_long_prompt_has_no_prefix(body: Any) -> None:
    assert prefixes_of(Request(body=body)) == ()


def test_any_length_has_a_bounded_number() -> None:
    prefixes = prefixes_of(raw(chat("z" * 4_000_000, "")))
    assert len(prefixes) == len(PREFIX_CHARS) == 64
    # A context window of 100,000 tokens is told apart to its end.
    assert PREFIX_CHARS[-1] > 400_000
    assert all(abs(one) < 2**53 for one in prefixes)


def test_the_next_prefix_is_at_most_an_eighth_longer_or_one_block() -> None:
    steps = pairwise(PREFIX_CHARS)
    assert all(0 < longer - chars <= max(256, chars / 8) for chars, longer in steps)
