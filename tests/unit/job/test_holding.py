"""What holds the next call of a run back, for each state that a run can be in."""

from __future__ import annotations

from typing import Any

import pytest

from redline.job.work import Moment, holder_of
from redline.waist import Health, Load

FREE = Load(in_flight=2, slots=4)
FULL = Load(in_flight=4, slots=4)
LIMITED = Load(in_flight=4, slots=4, waiting=3)
CLOSED = Load(in_flight=0, slots=4, opens_s=9.0)
PARKED = Load(in_flight=0, slots=4, waiting=1, parked_until_s=9.0)
DOWN = Load(slots=4, state=Health.DEGRADED)
READY: dict[str, Any] = {"has_ready": True, "in_hand": 4, "in_flight": 4}


@pytest.mark.parametrize(
    ("held", "loads", "state"),
    [
        ("slots", [FULL], READY),
        ("limit", [LIMITED], READY),
        ("limit", [LIMITED], {"is_over": True, "in_hand": 4}),
        ("parked", [PARKED], READY),
        ("down", [DOWN], {"in_hand": 4, "retrying": 4}),
        ("parked", [DOWN, PARKED], READY),
        ("limit", [DOWN, LIMITED], READY),
        ("limit", [FULL, LIMITED], READY),
        ("slots", [FULL, FULL, LIMITED], READY),
        ("client", [FREE, LIMITED], {**READY, "in_flight": 1}),
        ("slots", [FREE, FREE], {**READY, "queued": 3}),
        # All rows are taken, and some calls still wait for any of the endpoints.
        ("slots", [FREE, FREE], {"is_over": True, "in_hand": 9, "queued": 3}),
        ("limit", [FREE, LIMITED], {"is_over": True, "in_hand": 9, "queued": 3}),
        # No call waits at an endpoint long before its limits let it go.
        ("limit", [CLOSED], {"is_over": True, "in_hand": 9, "queued": 3}),
        ("limit", [CLOSED, LIMITED], {**READY, "queued": 3}),
        ("slots", [FULL, FREE, CLOSED], {**READY, "queued": 3}),
        ("input", [CLOSED], {"is_starved": True}),
        ("slots", [FREE, LIMITED], {**READY, "queued": 3, "is_full_together": True}),
        ("slots", [FREE, FREE], {**READY, "is_full_together": True}),
        ("rest", [FREE, FREE], {"is_over": True, "in_hand": 4, "is_full_together": True}),
        ("input", [FREE], {"is_starved": True}),
        ("input", [FREE], {"is_starved": True, "retrying": 2, "in_hand": 2}),
        ("writer", [FREE], {"is_starved": True, "is_full": True, "is_behind": True}),
        ("memory", [FREE], {"is_starved": True, "is_full": True}),
        ("taker", [FREE], {**READY, "handing": 4, "in_hand": 0}),
        ("budget", [FREE], {**READY, "waits_for_budget": True}),
        # Calls that have their part of the budget could not be sent either.
        ("limit", [LIMITED], {**READY, "waits_for_budget": True}),
        ("parked", [PARKED], {**READY, "waits_for_budget": True}),
        ("backoff", [FREE], {"has_ready": True, "in_hand": 8, "in_flight": 2, "retrying": 6}),
        ("backoff", [FREE], {"is_over": True, "in_hand": 1, "retrying": 1}),
        ("rest", [FREE], {"is_over": True, "in_hand": 2, "in_flight": 2}),
        ("rest", [FULL], {"is_over": True, "in_hand": 4, "in_flight": 4}),
        (
            "slots",
            [Load(in_flight=4, slots=4, waiting=2, queued=2)],
            {"is_over": True, "in_hand": 6},
        ),
        ("rest", [LIMITED], {**READY, "is_ending": True}),
        ("batch", [], {"has_batches": True}),
        ("client", [FREE], {**READY, "in_flight": 1}),
        ("client", [], {}),
    ],
)
def test_each_state_has_one_holder(held: str, loads: list[Load], state: Any) -> None:
    assert holder_of(Moment(now_s=5.0, loads=loads, **state)) == held
