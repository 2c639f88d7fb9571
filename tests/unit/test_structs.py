"""`mutable` structs are tracked by the garbage collector from the start, or never.

Settings of a wrong type are refused.
"""

from __future__ import annotations

import gc
import math
import re
from typing import Any

import pytest

from redline import (
    BatchBounds,
    Cache,
    Client,
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
from redline.testing import ScriptedBackend


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
        (Client, {"endpoint": _URL, "retry": 5}, "retry must be RetryPolicy or None, not int"),
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


@pytest.mark.parametrize("tokens", ["5", None, [5], math.nan, True])
async def test_tokens_of_a_call_that_are_no_number_are_refused_by_name(tokens: Any) -> None:
    limits = Limits(tokens="100/1s")
    what = re.escape(f"must be a finite number, not {tokens!r}")
    with pytest.raises(ConfigError, match=f"^tokens {what}$"):
        Limiter(limits)(tokens)
    with pytest.raises(ConfigError, match=f"^output_tokens {what}$"):
        Limiter(limits)(output_tokens=tokens)
    with pytest.raises(ConfigError, match=f"^tokens {what}$"), SyncLimiter(limits)(tokens):
        pass
    async with Limiter(limits)(5) as grant:
        with pytest.raises(ConfigError, match=f"^the usage of a call {what}$"):
            grant.settle(tokens)


@pytest.mark.parametrize("deadline_s", ["5", math.nan])
async def test_a_deadline_that_is_no_number_is_refused(deadline_s: Any) -> None:
    async with Client(_URL) as client:
        what = re.escape(f"deadline_s must be a finite number, not {deadline_s!r}")
        with pytest.raises(ConfigError, match=what):
            await client.call({"model": "m"}, deadline_s=deadline_s)
        with pytest.raises(ConfigError, match=what):
            await anext(client.stream({"model": "m"}, deadline_s=deadline_s))


async def test_an_infinite_deadline_is_none() -> None:
    async with Client(ScriptedBackend([Reply()])) as client:
        assert (await client.call({"model": "m"}, deadline_s=math.inf)).is_success


def test_a_batch_of_a_fraction_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_batch_size must be int, not float"):
        DynamicBatcher(Endpoint(base_url=_URL), 1.5)  # type: ignore[arg-type]


def test_a_whole_number_is_accepted_for_a_number_and_a_subclass_for_its_class() -> None:
    class Text(str):
        __slots__ = ()

    assert Timeouts(attempt_s=5).attempt_s == 5
    assert Endpoint(base_url=Text("http://h/v1")).base_url == "http://h/v1"
    assert Limits(requests=Rate(5, 1)).requests == Rate(5, 1.0)
