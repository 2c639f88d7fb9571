"""Calls are estimated by the mean length of the answers that came."""

from __future__ import annotations

import json

import pytest

from redline.calls.cost import Prices
from redline.calls.tokens import facts_of
from redline.serve.gateway.metering import Meter
from redline.waist import Outcome, Reply


@pytest.mark.parametrize("choices", [1, 3])
def test_the_mean_length_is_that_of_the_choices_that_came(choices: int) -> None:
    meter = Meter(Prices({}))
    body = json.dumps({"model": "m", "messages": []}).encode()

    def estimate() -> int:
        return meter.estimate(facts_of(body), len(body)).tokens

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
