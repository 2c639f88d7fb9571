"""Judges drafted tokens, and chooses the token after them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from redline.engine.draft.verification import verify
from redline.engine.sample import Noise, Past, adjusted, distribution, logprobs, masked, sample
from redline.engine.schedule import Sequence

_NO_PAST = Past((), ())


class Chance(NamedTuple):
    """The logarithm of a chosen token's probability, and the likeliest tokens with theirs."""

    logprob: float
    top: list[tuple[int, float]]


class Judged(NamedTuple):
    """The verdict on the drafts of one sequence.

    tokens: the accepted drafts and the token after them; none if the logits that they follow from
    are not numbers. kept: the number of accepted drafts. chances: one for each token if the request
    asks for log probabilities, otherwise none.
    """

    tokens: list[int]
    kept: int
    chances: list[Chance]


def judge(sequences: list[Sequence], logits: Tensor, laws: dict[int, Tensor]) -> list[Judged]:
    """Returns the tokens that follow in each sequence.

    logits (R, V): for each sequence one row for each of its drafts, and one for the token after.
    laws: (drafts, V) that the drafts were drawn from, by the sequence's number, for each sequence
    with drafts; empty if all drafts were looked up instead, so that each has probability 1.
    """
    params = [one.params for one in sequences for _ in range(len(one.drafted) + 1)]
    pasts = [past_of(one, count) for one in sequences for count in range(len(one.drafted) + 1)]
    scores = masked(logits, [(one.guide, one.drafted, len(one.drafted) + 1) for one in sequences])
    if all(one.params.is_greedy for one in sequences):
        choices = adjusted(scores, params, pasts).argmax(-1).tolist()
        judged = _by_choices(sequences, choices)
    elif any(one.drafted for one in sequences):
        judged = _by_law(sequences, distribution(scores, params, pasts), laws)
    else:
        law = distribution(scores, params, pasts)
        tokens = sample(law, noise_of(sequences, law.device)).tolist()
        judged = [Judged([token], 0, []) for token in tokens]
    _tell_chances(sequences, judged, logits)
    return _sound(judged, sequences, logits)


def noise_of(sequences: list[Sequence], device: torch.device, ahead: int = 0) -> Noise:
    """Returns the noise of each sequence's next token, or of the one `ahead` tokens after it.

    device: of the laws that the tokens are drawn from.
    """
    # Explicit dtypes, since the lists may be empty.
    places = [len(one.tokens) - one.prompt_length + ahead for one in sequences]
    return Noise(
        torch.tensor([one.seed for one in sequences], dtype=torch.int64, device=device),
        torch.tensor(places, dtype=torch.int64, device=device),
        torch.tensor([one.is_seeded for one in sequences], dtype=torch.bool, device=device),
    )


def past_of(sequence: Sequence, drafted: int) -> Past:
    """Returns the tokens that penalties count before the token after `drafted` draft tokens."""
    if not sequence.params.is_adjusted:
        return _NO_PAST
    begin = sequence.prompt_length
    tokens = sequence.tokens
    return Past(tokens[:begin], tokens[begin:], sequence.drafted[:drafted])


def _by_choices(sequences: list[Sequence], choices: list[int]) -> list[Judged]:
    """Keeps drafts as long as they equal the target's own choices."""
    judged, at = [], 0
    for one in sequences:
        kept = 0
        while kept < len(one.drafted) and one.drafted[kept] == choices[at + kept]:
            kept += 1
        judged.append(Judged([*one.drafted[:kept], choices[at + kept]], kept, []))
        at += len(one.drafted) + 1
    return judged


def _by_law(sequences: list[Sequence], target: Tensor, laws: dict[int, Tensor]) -> list[Judged]:
    counts = [len(one.drafted) for one in sequences]
    most = max(counts)
    # Shorter rows are padded with their last place; verification gets the real lengths, too.
    places, begin = [], 0
    for count in counts:
        places.append([begin + min(step, count) for step in range(most + 1)])
        begin += count + 1
    padded = [one.drafted + [0] * (most - len(one.drafted)) for one in sequences]
    draft_laws = None
    if laws:
        draft_laws = target.new_zeros(len(sequences), most, target.shape[-1])
        for row, one in enumerate(sequences):
            if one.drafted:
                draft_laws[row, : len(one.drafted)] = laws[one.number][: len(one.drafted)]
    verdict = verify(
        torch.tensor(padded, device=target.device),
        torch.tensor(counts, device=target.device),
        draft_laws,
        target[torch.tensor(places, device=target.device)],
        noise_of(sequences, target.device),
    )
    kept, following = verdict.accepted.tolist(), verdict.following.tolist()
    return [
        Judged([*one.drafted[:count], token], count, [])
        for one, count, token in zip(sequences, kept, following, strict=True)
    ]


def _sound(judged: list[Judged], sequences: list[Sequence], logits: Tensor) -> list[Judged]:
    """Returns the judgements, without the tokens of sequences whose logits are not numbers."""
    # Impossible tokens may have -inf, but not all tokens.
    rows = logits.amax(-1).isfinite().tolist()
    found, begin = [], 0
    for one, own in zip(sequences, judged, strict=True):
        # Everything after a rejected draft is ignored.
        is_sound = all(rows[begin : begin + own.kept + 1])
        found.append(own if is_sound else Judged([], 0, []))
        begin += len(one.drafted) + 1
    return found


def _tell_chances(sequences: list[Sequence], judged: list[Judged], logits: Tensor) -> None:
    """Adds the chances of tokens whose requests ask for them."""
    begin = 0
    for one, found in zip(sequences, judged, strict=True):
        most = one.params.logprobs
        if most is not None:
            rows = logits[begin : begin + len(found.tokens)]
            told = logprobs(rows, torch.tensor(found.tokens, device=logits.device), most)
            likely = zip(told.top_tokens.tolist(), told.top.tolist(), strict=True)
            tops = [list(zip(tokens, chances, strict=True)) for tokens, chances in likely]
            found.chances.extend(map(Chance, told.chosen.tolist(), tops))
        begin += len(one.drafted) + 1
