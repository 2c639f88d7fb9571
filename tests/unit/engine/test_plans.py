"""What a scheduler plans, step after step: who runs, in what order, and who has to wait."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.schedule import (
    Bounds,
    Copied,
    Figures,
    Plan,
    QueueFull,
    Row,
    Scheduler,
    Sequence,
    common,
)
from redline.errors import RedlineError, Rejected
from support.scheduler_driver import sequence_of

# Roomy unless a test narrows it; prompts that begin alike are of no use to each other.
ROOMY = Bounds(slots=5, step_tokens=16, cache_tokens=1000, waiting=8, reuses_prefixes=False)
# What every answer says, unless a test says otherwise.
SAID = 9


def joined(
    scheduler: Scheduler, number: int, prompt: list[int], priority: int = 0, at_s: float = 0.0
) -> Sequence:
    sequence = sequence_of(number, prompt, 50, priority)
    scheduler.add(sequence, at_s)
    return sequence


def shown(plan: Plan) -> list[tuple[int, int, bool]]:
    """Whose tokens, how many of them, and whether a new token follows."""
    return [(row.sequence.number, row.size, row.is_whole) for row in plan.rows]


def finish(scheduler: Scheduler, plan: Plan) -> None:
    """The step is over; no draft of it stays."""
    for row in plan.rows:
        scheduler.computed(row, [SAID] if row.is_whole else [], 0)


def stepped(scheduler: Scheduler) -> list[tuple[int, int, bool]]:
    plan = scheduler.plan()
    finish(scheduler, plan)
    return shown(plan)


def waiting(scheduler: Scheduler) -> list[int]:
    return [one.number for _, one in sorted(scheduler.waiting, key=lambda entry: entry[0])]


def test_prompts_are_read_by_priority_and_then_by_arrival_a_piece_at_a_time() -> None:
    scheduler = Scheduler(ROOMY._replace(step_tokens=6))
    for number, priority in enumerate((1, 0, 1, 0)):
        joined(scheduler, number, [1] * 4, priority)
    assert stepped(scheduler) == [(1, 4, True), (3, 2, False)]
    # Who generates goes on, and then comes who is nearest to it.
    assert stepped(scheduler) == [(1, 1, True), (3, 2, True), (0, 3, False)]
    assert stepped(scheduler) == [(1, 1, True), (3, 1, True), (0, 1, True), (2, 3, False)]
    assert stepped(scheduler) == [(1, 1, True), (3, 1, True), (0, 1, True), (2, 1, True)]
    assert scheduler.preemptions == 0


def test_ready_are_the_nearest_to_a_new_token_first_and_then_the_first_in_order() -> None:
    scheduler = Scheduler(ROOMY._replace(step_tokens=8))
    joined(scheduler, 0, [1, 1], priority=3)
    assert stepped(scheduler) == [(0, 2, True)]
    joined(scheduler, 1, [1] * 6, priority=2)
    assert stepped(scheduler) == [(0, 1, True), (1, 6, True)]
    joined(scheduler, 2, [1] * 20, priority=1)
    assert stepped(scheduler) == [(0, 1, True), (1, 1, True), (2, 6, False)]
    assert [one.number for one in scheduler.ready()] == [1, 0, 2]


def test_a_step_that_is_full_gives_no_slot_away() -> None:
    scheduler = Scheduler(ROOMY._replace(step_tokens=3))
    first, second = joined(scheduler, 0, [1] * 3), joined(scheduler, 1, [1] * 3)
    assert stepped(scheduler) == [(0, 3, True)]
    assert (first.slot, second.slot, waiting(scheduler)) == (0, None, [1])
    assert stepped(scheduler) == [(0, 1, True), (1, 2, False)]
    joined(scheduler, 2, [1] * 3)
    # The last token of a step is used, too.
    assert stepped(scheduler) == [(0, 1, True), (1, 1, True), (2, 1, False)]


def test_steps_at_once_share_the_sequences_among_them() -> None:
    scheduler = Scheduler(ROOMY._replace(steps_at_once=2))
    for number in range(6):
        joined(scheduler, number, [1])
    first, second = scheduler.plan(), scheduler.plan()
    assert shown(first) == [(0, 1, True), (1, 1, True), (2, 1, True)]
    assert shown(second) == [(3, 1, True), (4, 1, True)]
    assert scheduler.used_tokens == 5
    assert shown(scheduler.plan()) == []
    finish(scheduler, first)
    finish(scheduler, second)
    assert [one.number for one in scheduler.ready()] == [0, 1, 2]
    third = scheduler.plan()
    assert shown(third) == shown(first)
    assert shown(scheduler.plan()) == shown(second)
    finish(scheduler, third)
    scheduler.end(third.rows[1].sequence, "stop")
    # The larger half of four, and beside them the one who waited for a slot.
    assert shown(scheduler.plan()) == [(0, 1, True), (2, 1, True), (5, 1, True)]


def test_drafts_have_half_a_step_only_while_a_prompt_can_be_read() -> None:
    scheduler = Scheduler(ROOMY._replace(slots=2, step_tokens=12))
    one, other = joined(scheduler, 0, [1]), joined(scheduler, 1, [1])
    assert stepped(scheduler) == [(0, 1, True), (1, 1, True)]
    joined(scheduler, 2, [1] * 20)
    one.drafted, other.drafted = [1] * 6, [1] * 6
    # Who waits has no slot to read into: all of the step is for those who generate.
    assert stepped(scheduler) == [(0, 7, True), (1, 5, True)]
    scheduler.end(other, "stop")
    one.drafted = [1] * 11
    assert stepped(scheduler) == [(0, 6, True), (2, 6, False)]
    # Its prompt is still being read, though nobody waits.
    one.drafted = [1] * 11
    assert stepped(scheduler) == [(0, 6, True), (2, 6, False)]
    assert one.drafted == []


def test_nobody_has_drafts_while_a_step_has_a_token_for_each_and_no_more() -> None:
    scheduler = Scheduler(ROOMY._replace(step_tokens=2))
    one, other = joined(scheduler, 0, [1]), joined(scheduler, 1, [1])
    assert stepped(scheduler) == [(0, 1, True), (1, 1, True)]
    one.drafted, other.drafted = [1], [1]
    assert stepped(scheduler) == [(0, 1, True), (1, 1, True)]


def test_a_prompt_comes_if_it_leaves_a_token_of_the_cache_beside_all_that_run() -> None:
    scheduler = Scheduler(ROOMY._replace(cache_tokens=10))
    whole = joined(scheduler, 0, [1] * 10)
    # Alone it comes, however long it is.
    assert stepped(scheduler) == [(0, 10, True)]
    scheduler.end(whole, "length")
    one = joined(scheduler, 1, [1, 1])
    assert stepped(scheduler) == [(1, 2, True)]
    longer = joined(scheduler, 2, [1] * 7)
    assert stepped(scheduler) == [(1, 1, True)], "3 and 7 tokens would fill the cache"
    scheduler.end(longer, "cancelled")
    joined(scheduler, 3, [1] * 4)
    one.drafted = [1, 1]
    assert stepped(scheduler) == [(1, 3, True)], "4 tokens, 2 drafts and 4 would fill it"
    assert stepped(scheduler) == [(1, 1, True), (3, 4, True)], "5 and 4 leave one"


def test_a_prompt_longer_than_several_steps_says_nothing_before_its_last_piece() -> None:
    scheduler = Scheduler(ROOMY._replace(step_tokens=4))
    one = joined(scheduler, 0, [1] * 11)
    assert [stepped(scheduler) for _ in range(4)] == [
        [(0, 4, False)],
        [(0, 4, False)],
        [(0, 3, True)],
        [(0, 1, True)],
    ]
    assert one.tokens == [1] * 11 + [SAID] * 2
    assert (one.computed, scheduler.used_tokens) == (12, 12)


def test_a_full_cache_takes_the_drafts_of_all_before_anyone_gives_way() -> None:
    scheduler = Scheduler(ROOMY._replace(cache_tokens=12))
    one, other = joined(scheduler, 0, [1] * 4), joined(scheduler, 1, [1] * 4)
    assert stepped(scheduler) == [(0, 4, True), (1, 4, True)]
    one.drafted, other.drafted = [1], [1]
    assert stepped(scheduler) == [(0, 2, True), (1, 2, True)], "8 tokens and 4"
    one.drafted, other.drafted = [1, 1], [1]
    plan = scheduler.plan()
    assert shown(plan) == [(0, 1, True), (1, 1, True)], "10 tokens and 5 would be too many"
    assert (one.drafted, other.drafted, scheduler.used_tokens) == ([], [], 12)
    finish(scheduler, plan)
    assert scheduler.preemptions == 0


def test_the_last_in_order_gives_way_and_is_read_again() -> None:
    scheduler = Scheduler(ROOMY._replace(cache_tokens=10))
    later = joined(scheduler, 0, [1] * 4, priority=1)
    first = joined(scheduler, 1, [1] * 4)
    assert stepped(scheduler) == [(1, 4, True), (0, 4, True)]
    assert stepped(scheduler) == [(1, 1, True), (0, 1, True)], "the cache may be full"
    assert (scheduler.used_tokens, scheduler.preemptions) == (10, 0)
    assert stepped(scheduler) == [(1, 1, True)]
    assert (later.slot, later.computed, waiting(scheduler)) == (None, 0, [0])
    assert (scheduler.used_tokens, scheduler.preemptions) == (6, 1)
    assert later.tokens == [1] * 4 + [SAID] * 2
    scheduler.end(first, "stop")
    assert stepped(scheduler) == [(0, 6, True)]
    # And once more, for one who comes before it.
    joined(scheduler, 2, [1, 1])
    assert stepped(scheduler) == [(0, 1, True), (2, 2, True)]
    assert stepped(scheduler) == [(2, 1, True)]
    assert (waiting(scheduler), scheduler.preemptions) == ([0], 2)


def test_no_more_give_way_than_must() -> None:
    scheduler = Scheduler(ROOMY._replace(cache_tokens=22))
    for number in range(3):
        joined(scheduler, number, [1])
    assert len(stepped(scheduler)) == 3
    joined(scheduler, 3, [1] * 12)
    joined(scheduler, 4, [1] * 3)
    alone = [(number, 1, True) for number in range(3)]
    assert stepped(scheduler) == [*alone, (3, 12, True), (4, 1, False)]
    # Of 25 tokens the last one had one in the cache, and would have had two more.
    assert stepped(scheduler) == [*alone, (3, 1, True)]
    assert (waiting(scheduler), scheduler.preemptions) == ([4], 1)


def test_nobody_comes_in_a_step_that_another_gives_way_in() -> None:
    scheduler = Scheduler(ROOMY._replace(cache_tokens=10))
    for number in (0, 1):
        joined(scheduler, number, [1] * 4)
    for _ in range(2):
        assert len(stepped(scheduler)) == 2
    joined(scheduler, 2, [1], priority=-1)
    assert stepped(scheduler) == [(0, 1, True)]
    assert waiting(scheduler) == [2, 1]
    assert stepped(scheduler) == [(0, 1, True), (2, 1, True)]


def test_one_who_lacks_room_waits_for_the_step_under_way_before_anyone_gives_way() -> None:
    scheduler = Scheduler(ROOMY._replace(slots=2, cache_tokens=9, steps_at_once=2))
    for number in (0, 1):
        joined(scheduler, number, [1] * 4)
    first, second = scheduler.plan(), scheduler.plan()
    assert (shown(first), shown(second)) == ([(0, 4, True)], [(1, 4, True)])
    finish(scheduler, first)
    third = scheduler.plan()
    assert shown(third) == [(0, 1, True)]
    finish(scheduler, second)
    assert shown(scheduler.plan()) == []
    assert (len(scheduler.running), scheduler.preemptions) == (2, 0)
    finish(scheduler, third)
    assert stepped(scheduler) == [(0, 1, True)]
    assert (waiting(scheduler), scheduler.preemptions) == ([1], 1)


def test_of_two_who_lack_room_the_later_gives_way_whatever_is_under_way() -> None:
    scheduler = Scheduler(ROOMY._replace(slots=4, cache_tokens=17, steps_at_once=2))
    for number in range(4):
        joined(scheduler, number, [1] * 4)
    first, second = scheduler.plan(), scheduler.plan()
    assert shown(first) == [(0, 4, True), (1, 4, True)]
    assert shown(second) == [(2, 4, True), (3, 4, True)]
    finish(scheduler, first)
    assert shown(scheduler.plan()) == [(0, 1, True)]
    assert (waiting(scheduler), scheduler.preemptions) == ([1], 1)


def test_a_full_queue_refuses_and_says_how_many_wait() -> None:
    for most, said in ((1, "1 request "), (2, "2 requests ")):
        scheduler = Scheduler(ROOMY._replace(slots=2, waiting=most))
        # Those for whom a slot is free do not count.
        for number in range(2 + most):
            joined(scheduler, number, [1])
        with pytest.raises(QueueFull) as caught:
            joined(scheduler, 8, [1])
        assert caught.value.what.startswith(said)
        assert caught.value.hint
        assert waiting(scheduler) == list(range(2 + most))
        assert len(stepped(scheduler)) == 2
        with pytest.raises(QueueFull):
            joined(scheduler, 9, [1])
        scheduler.end(scheduler.running[0], "stop")
        joined(scheduler, 10, [1])


def test_who_is_cancelled_in_the_queue_leaves_the_others_in_order() -> None:
    scheduler = Scheduler(ROOMY._replace(slots=1))
    priorities = (0, 3, 1, 4, 5, 2)
    asked = [joined(scheduler, number, [1], one) for number, one in enumerate(priorities)]
    scheduler.end(asked[0], "cancelled")
    heard = []
    while not scheduler.is_idle:
        ((number, _, _),) = stepped(scheduler)
        heard.append(number)
        scheduler.end(asked[number], "stop")
    assert heard == [2, 5, 1, 3, 4]
    assert asked[0].ended == "cancelled"
    assert scheduler.ends == {"cancelled": 1, "stop": 5}


def test_ends_are_counted_by_reason_and_errors_as_failed() -> None:
    scheduler = Scheduler(ROOMY)
    reasons: list[str | RedlineError] = ["stop", "length", "stop"]
    reasons += [Rejected("no number"), Rejected("no memory")]
    asked = [joined(scheduler, number, [1]) for number in range(len(reasons))]
    assert len(stepped(scheduler)) == len(reasons)
    for one, reason in zip(asked, reasons, strict=True):
        scheduler.end(one, reason)
    assert scheduler.ends == {"stop": 2, "length": 1, "failed": 2}
    assert [one.ended for one in asked] == reasons
    assert [one.slot for one in asked] == [None] * len(reasons)
    assert scheduler.is_idle


REUSING = ROOMY._replace(reuses_prefixes=True)


def test_a_prompt_heard_before_is_reused_but_for_its_last_token() -> None:
    scheduler = Scheduler(REUSING)
    first = joined(scheduler, 0, [1, 2, 3])
    assert stepped(scheduler) == [(0, 3, True)]
    assert scheduler.reused_tokens == 0
    scheduler.end(first, "stop")
    again = joined(scheduler, 1, [1, 2, 3])
    plan = scheduler.plan()
    assert (plan.copies, shown(plan), again.slot) == ([], [(1, 1, True)], 0)
    assert scheduler.reused_tokens == 2
    finish(scheduler, plan)
    # While it runs, its tokens are copied, for each of two who come in one step.
    others = [joined(scheduler, number, [1, 2, 3, number]) for number in (2, 3)]
    plan = scheduler.plan()
    assert plan.copies == [Copied(0, 1, 3), Copied(0, 2, 3)]
    assert [one.slot for one in others] == [1, 2]
    assert shown(plan) == [(1, 1, True), (2, 1, True), (3, 1, True)]
    assert scheduler.reused_tokens == 8


def test_a_free_slot_is_taken_over_rather_than_a_busy_one_copied() -> None:
    scheduler = Scheduler(REUSING._replace(slots=2))
    first, other = joined(scheduler, 0, [1, 2, 3]), joined(scheduler, 1, [1, 2, 4])
    # They come together, so neither has anything to give.
    assert stepped(scheduler) == [(0, 3, True), (1, 3, True)]
    scheduler.end(other, "stop")
    third = joined(scheduler, 2, [1, 2, 5])
    plan = scheduler.plan()
    assert (plan.copies, third.slot, third.computed) == ([], 1, 2)
    finish(scheduler, plan)
    scheduler.end(third, "stop")
    # But the longest beginning is the best, wherever it is.
    fourth = joined(scheduler, 3, [1, 2, 3, SAID, 5])
    plan = scheduler.plan()
    assert plan.copies == [Copied(0, 1, 4)]
    assert shown(plan) == [(0, 1, True), (3, 1, True)]
    finish(scheduler, plan)
    scheduler.end(first, "stop")
    scheduler.end(fourth, "stop")
    # Its own slot, though the other one is free as well.
    fifth = joined(scheduler, 4, [1, 2, 3, SAID, 5, 6])
    plan = scheduler.plan()
    assert (plan.copies, fifth.slot, fifth.computed) == ([], 1, 5)


def test_accepted_drafts_can_be_reused_and_rejected_ones_cannot() -> None:
    scheduler = Scheduler(REUSING._replace(slots=1))
    one = joined(scheduler, 0, [1, 2])
    assert stepped(scheduler) == [(0, 2, True)]
    one.drafted = [4, 5, 6]
    (row,) = scheduler.plan().rows
    assert (row.size, row.is_whole) == (4, True)
    scheduler.computed(row, [4, 8], 1)
    assert one.tokens == [1, 2, SAID, 4, 8]
    assert one.tokens[one.prompt_length :] == [SAID, 4, 8]
    assert (one.computed, one.drafted, one.is_caught_up) == (4, [], True)
    scheduler.end(one, "stop")
    for number, (prompt, reused) in enumerate(
        (([1, 2, SAID, 4, 5, 6], 4), ([1, 2, SAID, 4, 5, 7], 5), ([1, 2, SAID, 4, 8], 4))
    ):
        asked = joined(scheduler, 1 + number, prompt)
        assert stepped(scheduler) == [(1 + number, len(prompt) - reused, True)]
        scheduler.end(asked, "stop")


@pytest.mark.parametrize("is_in_step", [False, True])
def test_what_a_failed_sequence_has_read_is_not_reused(is_in_step: bool) -> None:
    scheduler = Scheduler(REUSING._replace(slots=1))
    failed = joined(scheduler, 0, [1, 2, 3])
    assert stepped(scheduler) == [(0, 3, True)]
    again = joined(scheduler, 1, [1, 2, 3])
    plan = scheduler.plan() if is_in_step else None
    scheduler.end(failed, Rejected("no number"))
    if plan is not None:
        assert shown(scheduler.plan()) == [], "its step still writes to the slot"
        finish(scheduler, plan)
        assert failed.tokens == [1, 2, 3, SAID]
    assert stepped(scheduler) == [(1, 3, True)]
    assert (again.slot, scheduler.reused_tokens) == (0, 0)


def test_without_reuse_every_prompt_is_read_from_its_first_token() -> None:
    scheduler = Scheduler(ROOMY._replace(slots=2))
    joined(scheduler, 0, [1, 2, 3])
    assert stepped(scheduler) == [(0, 3, True)]
    joined(scheduler, 1, [1, 2, 3])
    plan = scheduler.plan()
    assert (plan.copies, shown(plan)) == ([], [(0, 1, True), (1, 3, True)])
    assert scheduler.reused_tokens == 0


def test_the_common_beginning_is_as_long_as_a_look_at_each_token_finds() -> None:
    for length in range(12):
        for other in range(1, 12):
            for differs_at in range(12):
                held = [7] * length
                wanted = [0 if at == differs_at else 7 for at in range(other)]
                for most in (0, 1, other // 2, other):
                    assert common(held, wanted, most) == min(length, other, differs_at, most)


def test_figures_are_sums_over_all_steps() -> None:
    one, other = sequence_of(0, [1], 5), sequence_of(1, [1] * 20, 5)
    figures = Figures()
    figures.add(Plan([], [Row(one, 1, True), Row(other, 9, False)]), [0], [0])
    figures.add(Plan([], [Row(one, 4, True), Row(other, 11, True)]), [3, 0], [2, 0])
    figures.add(Plan([], [Row(one, 3, True), Row(other, 2, True)]), [2, 1], [0, 1])
    assert figures == Figures(
        steps=3, rows=6, computed_tokens=30, drafts=3, drafted_tokens=6, accepted_tokens=3
    )
