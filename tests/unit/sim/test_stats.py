"""Counters that add up at every moment."""

from __future__ import annotations

from random import Random

import pytest

from redline.sim import CLASSES, Stats, Ticket
from redline.sim import stats as stats_module


def assert_sum(stats: Stats) -> None:
    shown = stats.as_dict()
    assert shown["received"] == sum(shown[name] for name in CLASSES) + shown["in_flight"]
    assert shown["received"] == sum(shown["by_status"].values()) + shown["in_flight"]
    assert shown["rejected"] == sum(shown["rejected_by_limit"].values())
    assert shown["faults"] == sum(shown["faults_by_kind"].values())


def test_the_sum_holds_whatever_happens() -> None:
    rng = Random(4)
    stats = Stats()
    open_tickets: list[Ticket] = []
    for step in range(3000):
        if open_tickets and rng.random() < 0.5:
            ticket = open_tickets.pop(rng.randrange(len(open_tickets)))
            status = rng.choice([200, 429, None])
            stats.settle(ticket, rng.choice(CLASSES), status, float(step), "stall")
            stats.settle(ticket, "abandoned", None, float(step))
        else:
            open_tickets.append(stats.receive(float(step)))
        assert_sum(stats)
    assert stats.as_dict()["in_flight"] == len(open_tickets)


def test_the_most_in_flight_stays() -> None:
    stats = Stats()
    tickets = [stats.receive(1.0) for _ in range(5)]
    for ticket in tickets:
        stats.settle(ticket, "answered", 200, 2.0)
    stats.settle(stats.receive(7.0), "rejected", 429, 7.0, "requests 2/1s")
    shown = stats.as_dict()
    assert (shown["in_flight"], shown["most_in_flight"]) == (0, 5)
    assert (shown["first_received_s"], shown["last_received_s"]) == (1.0, 7.0)
    assert shown["rejected_by_limit"] == {"requests 2/1s": 1}
    assert str(stats) == "received 6 = 5 answered + 1 rejected; at most 5 in flight"


def test_the_last_requests_are_kept_in_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "KEPT_REQUESTS", 3)
    stats = Stats()
    tickets = [stats.receive(float(number)) for number in range(1, 6)]
    for ticket in reversed(tickets):
        stats.settle(ticket, "faults", None, 9.0, "reset")
    assert [record.number for record in stats.last(10)] == [1, 2, 3]
    assert [record.number for record in stats.last(1)] == [1]
    assert stats.last(0) == []
    assert stats.last(1)[0].detail == "reset"
    assert str(stats) == "received 5 = 5 faults; faults: reset 5; at most 5 in flight"


def test_nothing_received_adds_up_to_nothing() -> None:
    assert str(Stats()) == "received 0 = 0; at most 0 in flight"
