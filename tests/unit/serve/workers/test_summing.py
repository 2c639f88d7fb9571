"""The figures of several workers as those of one gateway."""

from __future__ import annotations

from redline.serve.dashboard import Binding, Second, Snapshot
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
