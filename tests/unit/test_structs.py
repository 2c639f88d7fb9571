"""`mutable` structs are tracked by the garbage collector from the start, or never.

Settings of a wrong type are refused.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest

from redline import (
    BatchBounds,
    Cache,
    ConfigError,
    DynamicBatcher,
    Endpoint,
    Limiter,
    Limits,
    Rate,
    RetryPolicy,
    SyncLimiter,
)
from redline.calls import Call, Outcome, Reply
from redline.calls.wire import Exchange, Timeouts, Timing
from redline.clock import SYSTEM
from redline.serve.admission.fair_queue import Flow


@pytest.mark.parametrize(
    "made",
    [
        Call(),
        Reply(),
        Outcome(status="succeeded", reply=Reply()),
        Exchange(Timing(Timeouts(), SYSTEM)),
        Flow("a"),
    ],
    ids=lambda made: type(made).__name__,
)
def test_the_collector_knows_each_that_may_be_in_a_cycle(made: Any) -> None:
    assert gc.is_tracked(made)


_URL = "http://h/v1"
_RATES = "Sequence or Rate or str"


@pytest.mark.parametrize(
    ("made", "given", "what"),
    [
        (Limits, {"requests": 5}, f"requests must be {_RATES}, not int"),
        (Limits, {"requests": [5]}, "the request limit must be Rate or str, not int"),
        (Limits, {"headroom": "1"}, "headroom must be int or float, not str"),
        (Limiter, {"limits": 5}, f"requests must be {_RATES}, not int"),
        (SyncLimiter, {"limits": 5}, f"requests must be {_RATES}, not int"),
        (Rate, {"count": "1", "window_s": 1}, "count must be int, not str"),
        (Rate, {"count": 1, "window_s": "1"}, "window_s must be int or float, not str"),
        (RetryPolicy, {"max_retries": "x"}, "max_retries must be int, not str"),
        (RetryPolicy, {"max_retries": 1.5}, "max_retries must be int, not float"),
        (RetryPolicy, {"max_retries": True}, "max_retries must be int, not bool"),
        (BatchBounds, {"max_waiting": 1.5}, "max_waiting must be int, not float"),
        (Timeouts, {"attempt_s": "5"}, "attempt_s must be int or float, not str"),
        (Cache, {"max_bytes": "1g"}, "max_bytes must be int, not str"),
        (Endpoint, {"base_url": b"http://h/v1"}, "base_url must be str, not bytes"),
        (Endpoint, {"base_url": _URL, "limits": "5/1s"}, "limits must be Limits, not str"),
        # A key is not shown.
        (Endpoint, {"base_url": _URL, "api_key": b"sk"}, "api_key must be str or None, not bytes"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused_by_name(
    made: Any, given: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**given)
    assert caught.value.what == what


def test_a_batch_of_a_fraction_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_batch_size must be int, not float"):
        DynamicBatcher(Endpoint(base_url=_URL), 1.5)  # type: ignore[arg-type]


def test_a_whole_number_is_accepted_for_a_number_and_a_subclass_for_its_class() -> None:
    class Text(str):
        __slots__ = ()

    assert Timeouts(attempt_s=5).attempt_s == 5
    assert Endpoint(base_url=Text("http://h/v1")).base_url == "http://h/v1"
    assert Limits(requests=Rate(5, 1)).requests == Rate(5, 1.0)
