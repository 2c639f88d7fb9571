"""The verdict on each sequence's drafts: with its own rows, past, noise and log probabilities."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.draft import Judged, ModelDrafter, judge
from redline.engine.sample import SamplingParams, distribution
from redline.engine.schedule import Sequence
from support.engine_tables import TableRunner, tables

VOCABULARY = 9
TARGET, _ = tables()


def sequence(
    number: int, prompt: list[int], said: list[int], drafted: list[int], **params: Any
) -> Sequence:
    one = Sequence(
        [*prompt], SamplingParams(**params), seed=1000 + number, number=number, most_tokens=100
    )
    one.is_seeded = one.params.seed is not None
    one.tokens += said
    one.drafted = drafted
    return one


def rows_of(sequences: list[Sequence], seed: int = 0) -> Any:
    count = sum(len(one.drafted) + 1 for one in sequences)
    chance = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(count, VOCABULARY, generator=chance)


def by_hand(one: Sequence, rows: list[list[float]]) -> list[int]:
    """The greedy tokens of a sequence without bias or penalties, from its own rows."""
    said = list[int]()
    for row, draft in zip(rows, [*one.drafted, None], strict=True):
        said.append(row.index(max(row)))
        if said[-1] != draft:
            break
    return said


def chances_by_hand(row: list[float], token: int, most: int) -> Any:
    whole = math.log(sum(map(math.exp, row)))
    logs = sorted(((value - whole, at) for at, value in enumerate(row)), reverse=True)
    return row[token] - whole, [(at, log) for log, at in logs[:most]]


def batch(seed: int, **params: Any) -> list[Sequence]:
    """Sequences with 0 to 3 drafts, some of which the greedy choice confirms."""
    chance = random.Random(seed)
    found = [
        sequence(number, [1, 2], [3], [0] * drafts, logprobs=logprobs, **params)
        for number, (drafts, logprobs) in enumerate([(2, 3), (0, None), (3, 0), (0, 1), (1, 2)])
    ]
    rows = rows_of(found, seed).tolist()
    begin = 0
    for one in found:
        for at in range(len(one.drafted)):
            row = rows[begin + at]
            best = row.index(max(row))
            one.drafted[at] = best if chance.random() < 0.7 else (best + 1) % VOCABULARY
        begin += len(one.drafted) + 1
    return found


@pytest.mark.parametrize("seed", range(12))
def test_tokens_and_log_probabilities_come_from_the_rows_of_the_sequence(seed: int) -> None:
    sequences = batch(seed, temperature=0.0)
    logits = rows_of(sequences, seed)
    rows = logits.tolist()
    judged = judge(sequences, logits, {})
    assert len(judged) == len(sequences)
    begin = 0
    for one, found in zip(sequences, judged, strict=True):
        own = rows[begin : begin + len(one.drafted) + 1]
        begin += len(own)
        said = by_hand(one, own)
        assert found.tokens == said
        assert found.kept == len(said) - 1
        most = one.params.logprobs
        if most is None:
            assert found.chances == []
            continue
        assert len(found.chances) == len(said)
        for row, token, each in zip(own, said, found.chances, strict=False):
            logprob, top = chances_by_hand(row, token, most)
            assert each.logprob == pytest.approx(logprob, abs=1e-5)
            assert [at for at, _ in each.top] == [at for at, _ in top]
            assert [log for _, log in each.top] == pytest.approx([log for _, log in top], abs=1e-5)


def test_a_penalty_counts_the_drafts_before_a_place_and_not_the_others() -> None:
    # After each token, the model would say 4 again, and 5 is nearly as likely.
    logits = torch.full((3, VOCABULARY), -9.0)
    logits[:, 4], logits[:, 5] = 3.0, 2.0
    greedy = {"temperature": 0.0}
    [plain] = judge([sequence(0, [4], [], [4, 4], **greedy)], logits, {})
    assert (plain.tokens, plain.kept) == ([4, 4, 4], 2)
    # Said once as a draft, 4 loses 2, and what is in the prompt does not count as said.
    [present] = judge([sequence(0, [4], [], [4, 4], presence_penalty=2.0, **greedy)], logits, {})
    assert (present.tokens, present.kept) == ([4, 5], 1)
    # A repetition counts in the prompt, too: 3 / 2 is less than 2.
    [repeated] = judge([sequence(0, [4], [], [4, 4], repetition_penalty=2.0, **greedy)], logits, {})
    assert (repeated.tokens, repeated.kept) == ([5], 0)
    # Said before the drafts, it counts at each place.
    [before] = judge([sequence(0, [1], [4], [5, 4], presence_penalty=2.0, **greedy)], logits, {})
    assert (before.tokens, before.kept) == ([5, 4, 4], 2)


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"seed": 5}], ids=str)
def test_what_is_no_number_ends_its_own_sequence_alone(params: dict[str, Any]) -> None:
    sequences = [sequence(number, [1], [2], [3, 3], **params) for number in range(3)]
    logits = torch.full((9, VOCABULARY), -50.0)
    # All but the second one's first draft are confirmed; what follows a refused one is ignored.
    logits[:, 3] = 50.0
    logits[3, 3], logits[3, 6] = -50.0, 50.0
    logits[4] = math.nan
    logits[8] = math.nan
    judged = judge(sequences, logits, {})
    assert judged == [Judged([3, 3, 3], 2, []), Judged([6], 0, []), Judged([], 0, [])]


def test_a_draft_from_the_law_of_the_target_is_always_accepted() -> None:
    sequences = [sequence(number, [1], [], [0] * (number % 3)) for number in range(60)]
    logits = rows_of(sequences)
    law = distribution(logits, [SamplingParams()] * len(logits), [])
    laws, begin, chance = {}, 0, torch.Generator().manual_seed(3)
    for one in sequences:
        own = law[begin : begin + len(one.drafted)]
        begin += len(one.drafted) + 1
        if len(own):
            laws[one.number] = own
            one.drafted = torch.multinomial(own, 1, generator=chance)[:, 0].tolist()
    assert [one.kept for one in judge(sequences, logits, laws)] == [
        len(one.drafted) for one in sequences
    ]
    # Looked up, the same drafts count as certain, and are accepted as often as they are likely.
    kept = sum(one.kept for one in judge(sequences, logits, {}))
    assert kept < 40


@pytest.mark.parametrize("params", [{}, {"seed": 5}, {"temperature": 0.0}], ids=str)
def test_tensors_are_on_the_device_of_the_logits(params: dict[str, Any]) -> None:
    def verdicts() -> list[list[Judged]]:
        sequences = [
            sequence(number, [1], [2], [3] * (number % 3), logprobs=1, **params)
            for number in range(6)
        ]
        law = {one.number: even[: len(one.drafted)] for one in sequences if one.drafted}
        return [judge(sequences, logits, {}), judge(sequences, logits, law)]

    logits, even = rows_of([sequence(0, [], [], [0] * 11)]), torch.full((2, VOCABULARY), 1 / 9)
    expected = verdicts()
    # On `meta` there are no numbers: a tensor that is made there by mistake cannot be used.
    with torch.device("meta"):
        assert verdicts() == expected


def drafted_by_itself(most: int, rounds: int, **params: Any) -> list[Sequence]:
    """The draft model is the target, and reads whole prompts at first."""
    runner, target = TableRunner(TARGET, 4), TableRunner(TARGET, 4)
    drafter = ModelDrafter(runner)
    sequences = [sequence(number, [1, 2, number, 3], [], [], **params) for number in range(4)]
    sizes = list[int]()
    run = runner.run

    def counted(work: Any) -> Any:
        sizes.append(len(work.tokens))
        return run(work)

    runner.run = counted  # type: ignore[method-assign]
    for one in sequences:
        one.slot = one.number
    for round_ in range(rounds):
        for one in sequences:
            one.drafted = []
        sizes.clear()
        drafts = drafter.draft(sequences, [most] * 4)
        # Each has read all but its last draft and the token after it, or its whole prompt.
        missing = 4 if not round_ else min(2, most + 1)
        assert sizes == [4 * missing, *[4] * (most - 1)]
        assert drafts.is_usual == (round_ > 0)
        assert all(len(drafts.laws[one.number]) == most for one in sequences)
        rows = torch.cat([read(target, one) for one in sequences])
        for one, found in zip(sequences, judge(sequences, rows, drafts.laws), strict=True):
            assert found.kept == len(one.drafted) == most
            one.tokens += found.tokens
    return sequences


def read(target: TableRunner, one: Sequence) -> Any:
    tokens = [*one.tokens, *one.drafted]
    pairs = [*pairwise(tokens)][-len(one.drafted) - 1 :]
    return torch.stack([target.table[before, here] for before, here in pairs])


@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize("params", [{}, {"seed": 5}, {"temperature": 0.0}], ids=str)
def test_a_model_that_drafts_for_itself_is_always_right_and_reads_each_token_once(
    params: dict[str, Any], most: int
) -> None:
    sequences = drafted_by_itself(most, 5, **params)
    assert all(len(one.tokens) == 4 + 5 * (most + 1) for one in sequences)
