"""A budget over real connections: what cannot be written down is not written to the server."""

from __future__ import annotations

import errno
import os

import pytest

from redline import Call, Endpoint, Request
from redline.calls import HttpBackend
from redline.calls.cost import NOTHING, Allowance, Amount, Metered, Prices, Spending
from redline.calls.tokens import worst_of
from redline.errors import BudgetSpent
from redline.waist import Attempts
from support.simulated import simulated

pytestmark = [pytest.mark.real]

REQUEST = Request(
    body={"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Say hello."}]}
)


class Full:
    """An account on a disk that fills up after so many lines."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.kept: list[Amount] = []

    def keep(self, committed: Amount) -> None:
        if len(self.kept) == self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.kept.append(committed)


async def test_a_full_disk_keeps_the_request_from_the_server() -> None:
    attempts, account = Attempts(), Full(room=2)
    with simulated() as sim:
        endpoint = Endpoint(base_url=sim.base_url)
        backend = Metered(
            HttpBackend(endpoint, attempts=attempts),
            Spending(Allowance(tokens=10_000)),
            Prices(),
            account=account,
        )
        try:
            first = await backend.send(REQUEST, Call())
            second = await backend.send(REQUEST, Call())
        finally:
            await backend.aclose()
        received = sim.stats()["received"]
    assert first.reply is not None
    used = Amount(0, (first.reply.input_tokens or 0) + (first.reply.output_tokens or 0))
    assert account.kept == [Amount(0, worst_of(REQUEST).input_tokens + 9), used]
    assert isinstance(second.error, BudgetSpent)
    assert "No space left on device" in second.error.what
    assert received == 1
    assert (backend.spending.spent, backend.spending.reserved) == (used, NOTHING)
    # What is not written is no attempt.
    assert [attempt.was_sent for attempt in second.tried] == [False]
    assert (attempts.attempts, attempts.in_flight) == (received, 0)


async def test_a_server_that_is_not_there_costs_nothing() -> None:
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1")
    spending = Spending(Allowance(tokens=10_000))
    backend = Metered(HttpBackend(endpoint), spending, Prices())
    try:
        outcome = await backend.send(REQUEST, Call())
    finally:
        await backend.aclose()
    assert outcome.error is not None
    assert outcome.error.kind == "disconnected"
    assert spending.committed == NOTHING


@pytest.mark.parametrize(("fault", "is_billed"), [("reset", True), ("half", True), ("503", False)])
async def test_faults_after_the_write(fault: str, is_billed: bool) -> None:
    spending = Spending(Allowance(tokens=10_000))
    with simulated("--faults", f"{fault}=1") as sim:
        endpoint = Endpoint(base_url=sim.base_url)
        backend = Metered(HttpBackend(endpoint), spending, Prices())
        try:
            outcome = await backend.send(REQUEST, Call())
        finally:
            await backend.aclose()
    assert not outcome.is_success
    worst = Amount(0, worst_of(REQUEST).input_tokens + 9)
    assert spending.spent == (worst if is_billed else NOTHING)
