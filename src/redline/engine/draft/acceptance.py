"""Judges drafted tokens, and chooses the token after them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from redline.engine.draft.verification import Acceptance, verify, verify_choices
from redline.engine.sample import Noise, Past, adjusted, distribution, logprobs, masked
from redline.engine.schedule import Sequence

_NO_PAST = Past((), ())


class Chance(NamedTuple):
    """The log probability of a chosen token.

    top: the likeliest tokens, each with its log probability.
    """

    logprob: float
    top: list[tuple[int, float]]


class Judged(NamedTuple):
    """The verdict on the drafts of one sequence.

    tokens: the accepted drafts and the token after them; empty if the logits are not numbers.
    kept: the number of accepted drafts. chances: one for each token if the request asks for log
    probabilities, otherwise empty.
    """

    tokens: list[int]
    kept: int
    chances: list[Chance]


def judge(sequences: list[Sequence], logits: Tensor, laws: dict[int, Tensor]) -> list[Judged]:
    """Returns the accepted drafts and the token after them, for each sequence.

    logits (R, V): for each sequence, one row for each draft and one row for the token after them.
    laws: by sequence number, the distributions (drafts, V) from which the sequence's drafts were
    drawn; empty if all drafts were looked up, so each has probability 1.
    """
    if not sequences:
        return []
    counts = [len(one.drafted) for one in sequences]
    most = max(counts)
    # Shorter rows are padded with their last place; verification also gets the real lengths.
    places, begin = [], 0
    for count in counts:
        places.append([begin + min(step, count) for step in range(most + 1)])
        begin += count + 1
    verdict = _verdict(sequences, places, logits, laws)
    # Impossible tokens may have -inf, but at least one token must be possible.
    is_sound = logits.amax(-1).isfinite().tolist()
    kept, following = verdict.accepted.tolist(), verdict.following.tolist()
    judged = []
    for one, rows, count, token in zip(sequences, places, kept, following, strict=True):
        # Everything after a rejected draft is ignored.
        rows = rows[: count + 1]
        if all(is_sound[row] for row in rows):
            tokens = [*one.drafted[:count], token]
            chances = _chances(logits, rows, tokens, one.params.logprobs)
            judged.append(Judged(tokens, count, chances))
        else:
            judged.append(Judged([], 0, []))
    return judged


def _verdict(
    sequences: list[Sequence], places: list[list[int]], logits: Tensor, laws: dict[int, Tensor]
) -> Acceptance:
    """Returns how many drafts are accepted, and the token after them, for each sequence.

    places: each sequence's rows in `logits`, padded to the same number.
    """
    device, most = logits.device, len(places[0]) - 1
    pasts = [past_of(one, count) for one in sequences for count in range(len(one.drafted) + 1)]
    params = [one.params for one in sequences for _ in range(len(one.drafted) + 1)]
    scores = masked(logits, [(one.guide, one.drafted, len(one.drafted) + 1) for one in sequences])
    lengths = torch.tensor([len(one.drafted) for one in sequences], device=device)
    padded = [one.drafted + [0] * (most - len(one.drafted)) for one in sequences]
    draft = torch.tensor(padded, dtype=torch.int64, device=device)
    if all(one.params.is_greedy for one in sequences):
        choices = adjusted(scores, params, pasts).argmax(-1)
        return verify_choices(draft, lengths, _by_sequence(choices, places))
    target, offered = distribution(scores, params, pasts), None
    if laws:
        # The laws are on the draft model's device, but the logits of ranks are on the CPU.
        own = [laws.get(one.number, target[:0])[: len(one.drafted)].to(device) for one in sequences]
        offered = pad_sequence(own, batch_first=True)
    return verify(
        draft, lengths, offered, _by_sequence(target, places), noise_of(sequences, device)
    )


def _by_sequence(found: Tensor, places: list[list[int]]) -> Tensor:
    """Returns the rows of `found` by sequence, without a copy if none of them is padded."""
    shape = len(places), len(places[0])
    if len(found) == shape[0] * shape[1]:
        return found.reshape(*shape, *found.shape[1:])
    return found[torch.tensor(places, device=found.device)]


def noise_of(sequences: list[Sequence], device: torch.device, ahead: int = 0) -> Noise:
    """Returns the noise of each sequence's next token, or of the token `ahead` places after it.

    device: the device of the laws that the tokens are drawn from.
    """
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


def _chances(logits: Tensor, rows: list[int], tokens: list[int], most: int | None) -> list[Chance]:
    """Returns each token's chance, with the `most` likeliest in its row; empty if most is None."""
    if most is None:
        return []
    told = logprobs(logits[rows], torch.tensor(tokens, device=logits.device), most)
    likely = zip(told.top_tokens.tolist(), told.top.tolist(), strict=True)
    tops = [list(zip(tokens, chances, strict=True)) for tokens, chances in likely]
    return list(map(Chance, told.chosen.tolist(), tops))
