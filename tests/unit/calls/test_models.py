"""A request's model as an endpoint calls it."""

from __future__ import annotations

import pytest

from redline.calls import Request
from redline.calls.http.models import renamed

MODELS = {"fast": "qwen3-8b"}


def test_the_other_values_keep_their_bytes() -> None:
    request = Request(raw=b'{"model": "fast", "seed": 1.50, "messages": [ {"a": "\\u00e9"} ]}')
    found = renamed(request, MODELS).raw
    assert found == b'{"model":"qwen3-8b","seed":1.50,"messages":[ {"a": "\\u00e9"} ]}'


def test_a_body_that_is_a_value_is_not_changed_in_place() -> None:
    request = Request(body={"model": "fast", "n": 2})
    assert renamed(request, MODELS).body == {"model": "qwen3-8b", "n": 2}
    assert request.body["model"] == "fast"


@pytest.mark.parametrize(
    "request_",
    [
        Request(raw=b'{"model": "slow"}'),
        Request(raw=b'{"model": 7}'),
        Request(raw=b'["fast"]'),
        Request(raw=b"no JSON"),
        Request(body={"model": ["fast"]}),
        Request(body={"messages": []}),
        Request(body=b"fast"),
        Request(),
    ],
)
def test_anything_else_is_sent_as_it_is(request_: Request) -> None:
    assert renamed(request_, MODELS) is request_
