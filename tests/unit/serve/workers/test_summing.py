"""The figures of several workers as those of one gateway."""

from __future__ import annotations

import msgspec

from redline.serve.dashboard import (
    Binding,
    ClassView,
    EndpointView,
    Event,
    Second,
    Snapshot,
    TenantView,
)
from redline.serve.workers import together

NOTHING = Binding(cause="nothing", sentence="")


def worker(*seconds: Second) -> Snapshot:
    return Snapshot(
        at_s=0.0, up_s=0.0, version="", is_draining=False, binding=NOTHING, history=[*seconds]
    )


def steady(first_s: float, every_s: float, count: int = 300) -> Snapshot:
    """The last `count` seconds of a worker that always does the same."""
    return worker(*[Second(first_s + n * every_s, 10.0, 40.0, 3, 1) for n in range(count)])


def test_workers_that_sample_at_different_moments_have_no_dips_in_their_sum() -> None:
    own = steady(1_000.9, 1.004)
    # The second one has not published its last second yet, the third one begins late.
    found = together([own, steady(1_000.1, 1.006, 299), steady(1_050.5, 1.003, 250)]).history
    assert [second.at_s for second in found] == [second.at_s for second in own.history]
    early = [second for second in found if second.at_s < 1_049.0]
    assert len(early) == 48
    assert {second.answers for second in early} == {20.0}
    late = [second for second in found if second.at_s > 1_052.0]
    assert {(one.answers, one.tokens, one.running, one.waiting) for one in late} == {
        (30.0, 120.0, 9, 3)
    }


def test_a_worker_that_was_away_adds_nothing_meanwhile() -> None:
    own = worker(*[Second(float(at), 1.0, 0.0, 0, 0) for at in range(10)])
    other = worker(Second(1.0, 5.0, 0.0, 0, 0), Second(8.0, 5.0, 0.0, 0, 0))
    answers = [second.answers for second in together([own, other]).history]
    assert answers[1] == answers[8] == 6.0
    assert answers[4] == answers[5] == 1.0
    assert together([own, worker()]).history == own.history


def changes(*said: tuple[float, str]) -> Snapshot:
    events = [Event(at_s=at_s, what=what) for at_s, what in said]
    return msgspec.structs.replace(worker(), changes=events)


def test_a_change_that_all_workers_noticed_is_one() -> None:
    one = changes((10.0, "down"), (12.0, "up"), (13.0, "down"), (40.0, "up"))
    other = changes((10.3, "down"), (11.9, "up"), (13.3, "down"), (60.0, "down"))
    for pair in ([one, other], [other, one]):
        found = [(event.at_s, event.what) for event in together(pair).changes]
        assert found == [
            (10.0, "down"),
            (11.9, "up"),
            (13.0, "down"),
            (40.0, "up"),
            (60.0, "down"),
        ]


def test_figures_are_added_but_for_those_that_hold_for_all_workers() -> None:
    one = msgspec.structs.replace(
        worker(),
        classes=[ClassView(name="high", running=2, waiting=1, oldest_s=3.0, admitted=7, refused=1)],
        endpoints=[EndpointView(name="a", url="u", state="ready", in_flight=2, slots=8, per_s=1.5)],
        tenants=[TenantView(name="t", calls=5, tokens=50, running=4, spent_usd=0.5)],
    )
    down = EndpointView(
        name="a", url="u", state="gone", reason="HTTP 401", slots=6, latency_s=0.5, errors=3
    )
    other = msgspec.structs.replace(
        worker(),
        classes=[ClassView(name="high", running=1, oldest_s=5.0), ClassView(name="low")],
        endpoints=[down],
        tenants=[TenantView(name="t", calls=1, refused=2, running=3), TenantView(name="u")],
    )
    for pair in ([one, other], [other, one]):
        found = together(pair)
        assert {view.name: view for view in found.classes} == {
            "high": ClassView(
                name="high", running=3, waiting=1, oldest_s=5.0, admitted=7, refused=1
            ),
            "low": ClassView(name="low"),
        }
        # Its state is that of the worker that has a reason.
        assert found.endpoints == [
            msgspec.structs.replace(down, in_flight=2, slots=8, per_s=1.5, errors=3)
        ]
        # Limits are shared: each worker knows what all of them run and have spent.
        assert {view.name: view for view in found.tenants} == {
            "t": TenantView(name="t", calls=6, refused=2, tokens=50, running=4, spent_usd=0.5),
            "u": TenantView(name="u"),
        }
