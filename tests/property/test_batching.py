"""A batcher under random arrivals, lists, faults, deadlines and cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.calls import Backend, DynamicBatcher, Outcome
from redline.errors import Rejected
from redline.testing import VirtualClock
from support.batching import Asking, batcher_of, lived

ASKINGS = st.lists(
    st.builds(
        Asking,
        after_s=st.sampled_from([0.0, 0.0, 0.001, 0.009, 0.011, 0.06, 0.5]),
        texts=st.sampled_from([1, 1, 1, 1, 2, 3, 7, 12]),
        bad=st.sampled_from([False, False, False, True]),
        patience_s=st.sampled_from([None, None, None, 0.0, 0.005, 0.01, 0.03, 0.2]),
        deadline_s=st.sampled_from([None, None, None, 0.004, 0.07, 0.3]),
        model=st.sampled_from(["m", "m", "n"]),
        priority=st.sampled_from([0, 0, 10]),
    ),
    max_size=40,
)
FAULTS = st.dictionaries(st.integers(1, 12), st.sampled_from(["429", "503"]), max_size=4)


@settings(max_examples=150)
@given(plan=ASKINGS, faults=FAULTS, size=st.sampled_from([1, 4, 8]), flying=st.integers(1, 3))
def test_every_caller_has_its_own_answer_exactly_once(
    plan: list[Asking], faults: dict[int, str], size: int, flying: int
) -> None:
    lived(
        plan,
        faults,
        lambda server: batcher_of(server, max_batch_size=size, max_in_flight=flying),
    )


class Shifting(DynamicBatcher):
    """Gives each member of a batch what belongs to the next one."""

    def __init__(self, answers: Backend, **options: Any) -> None:
        super().__init__(answers, **options)
        split = self._lists.split

        def shifted(parts: Sequence[Any], outcome: Outcome) -> list[Outcome]:
            own = split(parts, outcome)
            return own[1:] + own[:1]

        self._lists = msgspec.structs.replace(self._lists, split=shifted)


class Forgetful(DynamicBatcher):
    """Does not note that a caller has left."""

    def _leave(self, member: Any) -> None:
        return


class Undividing(DynamicBatcher):
    """Fails all members of a batch for one that is bad."""

    def __init__(self, answers: Backend, **options: Any) -> None:
        super().__init__(answers, **options)
        send = self._inner.send

        async def refused(*asked: Any) -> Outcome:
            outcome = await send(*asked)
            if isinstance(outcome.error, Rejected):
                outcome.error.status = 404
            return outcome

        self._lists = msgspec.structs.replace(self._lists, backend=SimpleNamespace(send=refused))


PLAN = [
    Asking(),
    Asking(patience_s=0.005),
    Asking(after_s=0.001),
    Asking(bad=True),
    Asking(texts=3),
    Asking(after_s=0.5, patience_s=0.03),
]


@pytest.mark.parametrize("fake", [Shifting, Forgetful, Undividing])
def test_a_batcher_that_breaks_the_law_is_found(fake: type[DynamicBatcher]) -> None:
    def made(kind: type[DynamicBatcher], server: Backend) -> DynamicBatcher:
        return kind(server, clock=VirtualClock(asyncio.get_running_loop()))

    lived(PLAN, {}, lambda server: made(DynamicBatcher, server))
    with pytest.raises(AssertionError):
        lived(PLAN, {}, lambda server: made(fake, server))
