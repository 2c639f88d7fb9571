"""Decides which draft tokens are accepted and what follows; outputs follow the target's law.

A draft is a guess at the next K tokens. The target model reads all of them at once, and its law at
each place decides. So one pass of the target model yields up to K + 1 tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from redline.engine.sample import Noise, Purpose, draw, gumbel_choice, sample, uniforms


class Acceptance(NamedTuple):
    """For each of B rows: the number of accepted draft tokens, and the token that follows them.

    accepted (B,) int64, 0 to the number of the row's draft tokens. following (B,) int64: a
    replacement if a draft token was rejected, otherwise a bonus token.
    """

    accepted: Tensor
    following: Tensor


def verify(
    draft: Tensor, lengths: Tensor, draft_probs: Tensor | None, target_probs: Tensor, noise: Noise
) -> Acceptance:
    """Returns the number of accepted draft tokens per row, and the token that follows them.

    draft (B, K) int64; lengths (B,) int64, 0 to K: the number of the row's draft tokens;
    later entries are ignored. draft_probs (B, K, V) float32: the laws that the drafts were drawn
    from; None if they were looked up, so each has probability 1. target_probs (B, K+1, V) float32:
    the target's laws at the drafted places and after them. Both come from `distribution`.

    With p the target's law and q the draft's, accepts token x with probability min(1, p(x)/q(x)),
    otherwise draws from max(0, p - q), normalized (Leviathan et al. 2023, algorithm 1), so the
    output follows the target's law. If rounding leaves no difference, draws from p. Exact rows
    (see Noise) choose each token from the target's law alone and keep the drafts that equal the
    choices, so the output has the same law, and the same tokens whatever is drafted.
    """
    most = draft.shape[1]
    if most == 0:
        return Acceptance(lengths, sample(target_probs[:, 0], noise))
    rows = torch.arange(len(draft), device=draft.device)
    places = noise.positions[:, None] + torch.arange(most + 1, device=draft.device)
    wanted = target_probs[:, :most].gather(2, draft[:, :, None])[:, :, 0]
    levels = uniforms(noise.seeds[:, None], places[:, :most], Purpose.ACCEPT)
    # u < p / q without a division, in float64: u is below 1, so p >= q always passes.
    offered: Tensor | float = 1.0
    if draft_probs is not None:
        offered = draft_probs.gather(2, draft[:, :, None])[:, :, 0]
    accepted = _leading(levels * offered < wanted, lengths)

    law = target_probs[rows, accepted]
    # Nothing is subtracted if a row keeps its whole draft: the bonus token is the target's.
    is_rejected = (accepted < lengths)[:, None]
    at = accepted.clamp(max=most - 1)
    if draft_probs is None:
        taken = torch.zeros_like(law).scatter_(1, draft[rows, at][:, None], 1.0)
    else:
        taken = draft_probs[rows, at]
    rest = (law - taken).clamp(min=0.0)
    total = rest.sum(-1, keepdim=True)
    law = torch.where(is_rejected & (total > 0), rest / total, law)
    following = draw(law, uniforms(noise.seeds, places[rows, accepted], Purpose.FOLLOWING))

    exact = noise.is_exact.nonzero()[:, 0]
    if len(exact):
        own = places[exact]
        seeds = noise.seeds[exact, None].expand_as(own)
        choices = gumbel_choice(target_probs[exact].flatten(0, 1), seeds.flatten(), own.flatten())
        chosen = verify_choices(draft[exact], lengths[exact], choices.view_as(own))
        accepted[exact], following[exact] = chosen
    return Acceptance(accepted, following)


def verify_choices(draft: Tensor, lengths: Tensor, choices: Tensor) -> Acceptance:
    """Accepts the draft tokens before the first that differs from the target's choice.

    That choice is the token that follows them.

    choices (B, K+1) int64: the target's tokens at the drafted places and after them, such as the
    argmax of its logits for greedy rows. Other shapes as in `verify`.
    """
    if draft.shape[1] == 0:
        return Acceptance(lengths, choices[:, 0])
    accepted = _leading(draft == choices[:, :-1], lengths)
    return Acceptance(accepted, choices.gather(1, accepted[:, None])[:, 0])


def _leading(is_accepted: Tensor, lengths: Tensor) -> Tensor:
    """Returns (B,) int64: the number of drafted tokens before the first rejected one."""
    places = torch.arange(is_accepted.shape[1], device=lengths.device)
    stays = is_accepted & (places < lengths[:, None])
    return stays.to(torch.int64).cumprod(1).sum(1)
