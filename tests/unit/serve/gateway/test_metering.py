"""Calls are estimated by the mean length of the answers that came, and settled by their usage."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from redline.calls.cost import DOLLAR, Price, Prices
from redline.calls.tokens import facts_of
from redline.limits import Rate
from redline.serve.gateway.metering import Meter, Used
from redline.serve.keys import TenantLimits, TenantSettings
from redline.waist import Outcome, Reply

CHAT, EMBEDDINGS, MESSAGES = "/v1/chat/completions", "/v1/embeddings", "/v1/messages"
MEGABYTE = base64.b64encode(bytes(1_000_000)).decode()
SOURCE = {"type": "base64", "media_type": "image/png", "data": MEGABYTE}
# A dollar for a million tokens of input, ten for a million of output.
PRICES = Prices({"m": Price(input=10**6, cached_input=10**6, output=10**7)})


def body_of(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def said(*content: Any) -> bytes:
    return body_of(max_tokens=100, messages=[{"role": "user", "content": [*content]}])


def answered(meter: Meter, **usage: int) -> Used:
    reply = Reply(output="x", finish_reason="stop", usage=usage)
    return meter.used("m", Outcome(status="succeeded", reply=reply))


@pytest.mark.parametrize("choices", [1, 3])
def test_the_mean_length_is_that_of_the_choices_that_came(choices: int) -> None:
    meter = Meter(Prices({}))
    body = json.dumps({"model": "m", "messages": []}).encode()

    def estimate() -> int:
        return meter.estimate(facts_of(body), body, CHAT).tokens

    before, tokens = estimate(), 256 * choices
    # A server that gives fewer choices than a client asks for gives them with their usage.
    reply = Reply(
        output=["x"] * choices,
        finish_reason=["stop"] * choices if choices > 1 else "stop",
        usage={"prompt_tokens": 10, "completion_tokens": tokens},
        input_tokens=10,
        output_tokens=tokens,
    )
    for _ in range(300):
        used = meter.used("m", Outcome(status="succeeded", reply=reply))
        assert used.tokens == 10 + tokens
    assert estimate() == before


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{MEGABYTE}"}}),
        (CHAT, {"type": "input_audio", "input_audio": {"data": MEGABYTE, "format": "wav"}}),
        (MESSAGES, {"type": "image", "source": SOURCE}),
    ],
)
def test_an_image_or_a_sound_is_not_counted_by_its_bytes(path: str, part: Any) -> None:
    body = said({"type": "text", "text": "what is this?"}, part)
    assert 500 < Meter(PRICES).estimate(facts_of(body), body, path).tokens < 2_000


def test_embeddings_have_no_output() -> None:
    meter = Meter(PRICES)
    for _ in range(400):
        answered(meter, prompt_tokens=10, completion_tokens=12_000)
    body = body_of(input="hello")
    facts = facts_of(body)
    assert meter.estimate(facts, body, EMBEDDINGS).tokens < 20
    assert meter.estimate(facts, body, CHAT).tokens > 10_000


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        # Gemini counts what the model thought in the total alone.
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 1015}, 1015),
        # Anthropic counts its cache beside the input.
        ({"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 900}, 915),
    ],
)
def test_all_tokens_of_a_call_count(usage: dict[str, int], tokens: int) -> None:
    assert answered(Meter(PRICES), **usage).tokens == tokens


@pytest.mark.parametrize(
    ("limits", "fields", "tokens", "dollars"),
    [
        # 10,000 letters are 2,500 tokens by their bytes, and surely 1,200.
        ({"tokens": (Rate(2_000, 60.0),)}, {}, 2_000, None),
        ({"tokens": (Rate(1_000, 60.0),)}, {}, 1_200, None),
        ({"picodollars_per_day": DOLLAR // 500}, {}, None, 0.002),
        ({"picodollars_per_day": DOLLAR // 1000}, {}, None, 0.0012),
        # What a client lets its answer cost is not cut.
        ({"picodollars_per_day": DOLLAR // 500}, {"max_tokens": 1_000}, None, 0.0112),
    ],
)
def test_an_estimate_is_cut_to_a_limit_but_not_below_what_is_sure(
    limits: dict[str, Any], fields: dict[str, int], tokens: int | None, dollars: float | None
) -> None:
    tenant = TenantLimits("acme", TenantSettings(**limits))
    body = body_of(messages=[{"role": "user", "content": "x" * 10_000}], **fields)
    found = Meter(PRICES).cut(tenant, facts_of(body), body, CHAT)
    if tokens is not None:
        assert found.tokens == pytest.approx(tokens, rel=0.01)
    if dollars is not None:
        assert found.picodollars == pytest.approx(dollars * DOLLAR, rel=0.01)


def test_a_body_of_very_many_values_is_estimated_by_its_bytes() -> None:
    tenant = TenantLimits("acme", TenantSettings(tokens=(Rate(1_000, 60.0),)))
    body = body_of(input=[0] * 300_000)
    assert Meter(PRICES).cut(tenant, facts_of(body), body, EMBEDDINGS).tokens > 100_000
