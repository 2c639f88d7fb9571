"""The draft length in simulated machines: it gains where drafts pay, and loses nowhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from redline.engine.draft import DraftLength

MOST = 6


@dataclass(frozen=True)
class Machine:
    """Milliseconds as measured on one core: weights are read once, each token is computed.

    share: the chance that a drafted token stays. draft_ms: one pass of the draft model at batch 1.
    noise: of each step's duration; one step in a hundred is held up tenfold. first: how many times
    longer the first step of each length takes.
    """

    share: float
    draft_ms: float = 1.0
    noise: float = 0.1
    weights_ms: float = 6.0
    token_ms: float = 0.45
    first: float = 1.0

    def step_ms(self, batch: int, length: int) -> float:
        draft_ms = length * self.draft_ms * (1 + 0.08 * batch)
        return self.weights_ms + self.token_ms * batch * (length + 1) + draft_ms

    def gain(self, batch: int, length: int) -> float:
        """Tokens a second with drafts of this length, as a multiple of those without."""
        tokens = sum(self.share**place for place in range(length + 1))
        return tokens * self.step_ms(batch, 0) / self.step_ms(batch, length)

    def best_gain(self, batch: int) -> float:
        return max(self.gain(batch, length) for length in range(MOST + 1))


def steps(
    chooser: DraftLength,
    machine: Machine,
    batches: Callable[[int], int],
    count: int,
    chance: random.Random,
) -> tuple[float, list[int]]:
    """Runs `count` steps: time that was needed without drafts over time that it took; lengths.

    The time is without the noise and slow first steps: a held-up step is nobody's choice.
    """
    plain_ms = spent_ms = 0.0
    lengths: list[int] = []
    for step in range(count):
        batch = batches(step)
        length = chooser.choose(batch)
        assert 0 <= length <= MOST
        accepted = [0] * batch
        for row in range(batch):
            while accepted[row] < length and chance.random() < machine.share:
                accepted[row] += 1
        ms = machine.step_ms(batch, length)
        plain_ms += machine.step_ms(batch, 0) * (batch + sum(accepted)) / batch
        spent_ms += ms
        ms *= chance.lognormvariate(0.0, machine.noise)
        ms *= 10 if chance.random() < 0.01 else 1
        ms *= machine.first if length not in lengths else 1
        chooser.measured([length] * batch, accepted, ms / 1000)
        lengths.append(length)
    return plain_ms / spent_ms, lengths


def always(batch: int) -> Callable[[int], int]:
    return lambda step: batch


@pytest.mark.parametrize("batch", [1, 2, 8, 32])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_draft_costs_next_to_nothing(batch: int, seed: int) -> None:
    machine = Machine(share=0.02)
    gain, lengths = steps(DraftLength(MOST), machine, always(batch), 3000, random.Random(seed))
    assert gain > 0.98
    # It is tried again, rarely.
    assert 0 < sum(length > 0 for length in lengths) < 150


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_good_draft_gains_most_of_what_can_be_gained(batch: int, seed: int) -> None:
    machine = Machine(share=0.85)
    gain, _ = steps(DraftLength(MOST), machine, always(batch), 1500, random.Random(seed))
    assert gain > 0.93 * machine.best_gain(batch)
    assert batch > 2 or gain > 1.5


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_it_never_loses(share: float, batch: int) -> None:
    machine = Machine(share=share)
    gain, _ = steps(DraftLength(MOST), machine, always(batch), 3000, random.Random(5))
    assert gain > max(0.975, 0.92 * machine.best_gain(batch))


def test_the_length_falls_as_the_batch_grows() -> None:
    chooser, machine, chance = DraftLength(MOST), Machine(share=0.8), random.Random(3)
    usual = []
    for batch in (1, 2, 8, 32):
        _, lengths = steps(chooser, machine, always(batch), 400, chance)
        usual.append(sorted(lengths[100:])[150])
    assert usual == sorted(usual, reverse=True)
    assert usual[0] >= 3
    assert usual[-1] == 0


def test_batches_that_come_and_go_are_each_served() -> None:
    machine, chance = Machine(share=0.8), random.Random(11)
    sizes = [1]
    for _ in range(4000):
        sizes.append(min(32, max(1, sizes[-1] + chance.choice([-1, 0, 0, 0, 1]))))
    gain, _ = steps(DraftLength(MOST), machine, sizes.__getitem__, 4000, random.Random(1))
    plain_ms = sum(machine.step_ms(size, 0) for size in sizes)
    best_ms = sum(machine.step_ms(size, 0) / machine.best_gain(size) for size in sizes)
    assert gain > 0.92 * plain_ms / best_ms


def test_a_draft_that_has_become_good_is_found() -> None:
    chooser, chance = DraftLength(MOST), random.Random(2)
    # Drafts that cost less than is hoped: the costs, forgotten, do not have them tried again.
    steps(chooser, Machine(share=0.0, draft_ms=0.3), always(2), 1000, chance)
    _, lengths = steps(chooser, Machine(share=0.9, draft_ms=0.3), always(2), 1500, chance)
    assert sum(lengths[-300:]) > 300 * 2


def test_a_draft_that_has_become_bad_is_left() -> None:
    chooser, chance = DraftLength(MOST), random.Random(2)
    steps(chooser, Machine(share=0.9), always(4), 2000, chance)
    _, lengths = steps(chooser, Machine(share=0.0), always(4), 400, chance)
    assert sum(length > 0 for length in lengths) < 120


def test_a_first_step_that_is_held_up_misleads_nobody() -> None:
    chooser, machine = DraftLength(MOST), Machine(share=0.0)
    chooser.measured([0] * 8, [0] * 8, 100 * machine.step_ms(8, 0) / 1000)
    gain, _ = steps(chooser, machine, always(8), 500, random.Random(1))
    assert gain > 0.97


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kernels_that_are_compiled_in_the_first_step_of_a_length_do_not_count(seed: int) -> None:
    """At a batch of 32 each draft costs 0.15 of a step."""
    quick = Machine(share=0.7, draft_ms=0.15 / (1 + 0.08 * 32), weights_ms=1.0, token_ms=0.0)
    slow = replace(quick, first=10.0)
    gain, _ = steps(DraftLength(MOST), quick, always(32), 1000, random.Random(seed))
    beside, _ = steps(DraftLength(MOST), slow, always(32), 1000, random.Random(seed))
    assert gain > 1.6
    assert beside > 0.97 * gain


def test_nothing_is_drafted_before_plain_steps_are_known() -> None:
    chooser = DraftLength(MOST)
    for _ in range(3):
        assert chooser.choose(4) == 0
        chooser.measured([0] * 4, [0] * 4, None)
        assert chooser.choose(4) == 0
        chooser.measured([0] * 4, [0] * 4, 0.01)
    assert chooser.choose(4) == 1
    # Another size has to be measured by itself.
    assert chooser.choose(32) == 0


def test_while_drafts_pay_a_plain_step_is_taken_now_and_then() -> None:
    machine = Machine(share=0.9)
    _, lengths = steps(DraftLength(MOST), machine, always(1), 1000, random.Random(1))
    assert 8 <= sum(length == 0 for length in lengths) <= 15


def test_no_drafts_are_possible_with_a_most_of_none() -> None:
    chooser = DraftLength(0)
    for _ in range(10):
        chooser.measured([0], [0], 0.01)
    assert chooser.choose(1) == 0


def test_a_gain_near_the_bound_begins_nothing_and_ends_nothing() -> None:
    """Each beginning has the draft model read all that was said without it."""

    def met(*, is_drafting: bool) -> DraftLength:
        chooser = DraftLength(1)
        for _ in range(5):
            chooser.measured([0] * 32, [0] * 32, 0.010)
        for _ in range(30):
            if is_drafting:
                assert chooser.choose(32) == 1
            # 29 of 32 stay, in 1.45 times the time: a gain of 1.31.
            chooser.measured([1] * 32, [1] * 29 + [0] * 3, 0.0145)
        return chooser

    assert met(is_drafting=False).choose(32) == 0
    assert met(is_drafting=True).choose(32) == 1


def test_who_was_allowed_fewer_drafts_has_refused_none() -> None:
    """Two tokens are left of each second answer: one draft, and the token after it."""
    chooser = DraftLength(4)
    for _ in range(5):
        chooser.measured([0] * 8, [0] * 8, 0.010)
    for _ in range(40):
        chooser.choose(8)
        chooser.measured([4, 1] * 4, [4, 1] * 4, 0.012)
    assert chooser.choose(8) == 4
    # Each place would keep half of its drafts, else.
    for _ in range(40):
        chooser.measured([4, 1] * 4, [4, 1] * 4, 0.018)
    assert chooser.choose(8) == 4
