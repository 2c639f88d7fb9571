"""`mutable` structs are tracked by the garbage collector from the start, or never."""

from __future__ import annotations

import gc
from typing import Any

import pytest

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
