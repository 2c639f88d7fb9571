"""Computes the distribution of each next token, called its law, and samples from it.

A law is a row of float32 probabilities. One function computes the laws of both the draft model and
the target model, so verification compares the distributions from which tokens are really drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from redline.engine.sample.counter_rng import Noise, Purpose, arrivals, keys, uniforms
from redline.engine.sample.params import SamplingParams

# Top-p first looks at only this many of the likeliest tokens, which are enough for most laws:
# sorting 32 rows of 32,000 tokens takes as long as 70 softmaxes of them.
_HEAD = 1024
# How many arrival times `gumbel_choice` computes at once: 2 MB of float64 fits in a core's cache.
_RACE = 1 << 18


class Past(NamedTuple):
    """The tokens before the next token; penalties count them.

    drafted: the draft tokens of this step between `generated` and the next token.
    """

    prompt: Sequence[int]
    generated: Sequence[int]
    drafted: Sequence[int] = ()


class Logprobs(NamedTuple):
    """Natural logarithms of probabilities, float32.

    chosen (R,): of the given tokens. top (R, M): of the likeliest tokens, in descending order.
    top_tokens (R, M) int64: the likeliest tokens.
    """

    chosen: Tensor
    top: Tensor
    top_tokens: Tensor


def adjusted(logits: Tensor, params: Sequence[SamplingParams], pasts: Sequence[Past]) -> Tensor:
    """Returns (R, V) logits with bias and penalties applied; `logits` itself if no row has any.

    The bias is added, then the repetition penalty divides positive logits of tokens in prompt or
    answer and multiplies negative ones (Keskar et al. 2019, as in transformers), then a token that
    was generated c times loses c * frequency_penalty + presence_penalty (OpenAI's formula). The
    greedy token of a row is the argmax of the result.
    """
    rows = [row for row, each in enumerate(params) if each.is_adjusted]
    if not rows:
        return logits
    logits = logits.to(torch.float32, copy=True)
    for row in rows:
        _adjust(logits[row], params[row], pasts[row])
    return logits


def _adjust(logits: Tensor, params: SamplingParams, past: Past) -> None:
    """Adds bias and penalties to one row (V,) float32, in place."""
    if params.logit_bias:
        logits[list(params.logit_bias)] += logits.new_tensor(list(params.logit_bias.values()))
    said = [*past.generated, *past.drafted]
    if params.repetition_penalty != 1.0:
        seen = torch.tensor([*past.prompt, *said], dtype=torch.int64, device=logits.device)
        before = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(before < 0, before * penalty, before / penalty)
    if params.presence_penalty or params.frequency_penalty:
        tokens = torch.tensor(said, dtype=torch.int64, device=logits.device)
        counts = tokens.bincount(minlength=len(logits))
        logits -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)


def distribution(logits: Tensor, params: Sequence[SamplingParams], pasts: Sequence[Past]) -> Tensor:
    """Returns (R, V) float32: the distribution of each row's next token. Rows sum to 1 within 1e-5.

    logits: (R, V), any float dtype. The steps, in the order of transformers' `generate`: bias and
    penalties (`adjusted`), temperature, top-k, top-p and min-p; each filter renormalizes. A filter
    also keeps all tokens exactly as likely as the least likely one that it must keep, so the result
    does not depend on the order of sorting. A greedy row is one-hot at its argmax. Rows are
    independent.
    """
    logits = adjusted(logits, params, pasts)
    greedy = [row for row, each in enumerate(params) if each.is_greedy]
    if len(greedy) == len(params):
        return _one_hot(logits)
    scores = logits.to(torch.float32)
    heats = [1.0 if each.is_greedy else each.temperature for each in params]
    if any(heat != 1.0 for heat in heats):
        # The maximum is subtracted first, so a small temperature turns a logit into -inf, not inf.
        scores = (scores - scores.amax(-1, keepdim=True)) / scores.new_tensor(heats)[:, None]
    probs = scores.softmax(-1)
    _filter(probs, params)
    if greedy:
        probs[greedy] = _one_hot(logits[greedy])
    return probs


def _one_hot(logits: Tensor) -> Tensor:
    law = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
    return law.scatter_(1, logits.argmax(-1, keepdim=True), 1.0)


def _filter(probs: Tensor, params: Sequence[SamplingParams]) -> None:
    """Applies top-k, top-p and min-p, in place, to the rows of (R, V) that set them."""
    size = probs.shape[-1]
    drawn = [row for row, each in enumerate(params) if not each.is_greedy]
    if rows := [row for row in drawn if 0 < params[row].top_k < size]:
        law, counts = probs[rows], [params[row].top_k for row in rows]
        places = torch.tensor(counts, device=law.device)[:, None] - 1
        probs[rows] = _kept(law, law.topk(max(counts)).values.gather(-1, places))
    if rows := [row for row in drawn if params[row].top_p < 1.0]:
        probs[rows] = _top_p(probs[rows], [params[row].top_p for row in rows])
    if rows := [row for row in drawn if params[row].min_p > 0.0]:
        law, shares = probs[rows], [params[row].min_p for row in rows]
        probs[rows] = _kept(law, law.new_tensor(shares)[:, None] * law.amax(-1, keepdim=True))


def _top_p(law: Tensor, shares: Sequence[float]) -> Tensor:
    """Limits each law to the fewest of the likeliest tokens whose sum reaches the row's share."""
    wanted = torch.tensor(shares, dtype=torch.float64, device=law.device)[:, None]
    size = law.shape[-1]
    for head in (min(_HEAD, size), size):
        values = law.topk(head).values
        sums = values.cumsum(-1, dtype=torch.float64)
        if bool((sums[:, -1:] >= wanted).all()):
            break
    # A row whose sum is below its share because of rounding keeps all of its tokens.
    last = (sums < wanted).sum(-1, keepdim=True).clamp(max=head - 1)
    return _kept(law, values.gather(-1, last))


def _kept(law: Tensor, least: Tensor) -> Tensor:
    """Limits each law to the tokens that are at least as likely as `least` (R, 1)."""
    kept = torch.where(law >= least, law, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def draw(law: Tensor, levels: Tensor) -> Tensor:
    """Returns (R,) int64: in each row, the first token whose cumulative sum exceeds the level.

    law (R, V): float32, not negative; each row sums to about 1. levels (R,): float64 in [0, 1).
    Probabilities are summed as integers, multiples of 2**-61, so the sums are exact on any device
    and in any order. They do not rise at a token of probability 0, so it is never drawn. A level is
    multiplied by the row's total, which need not be exactly 1. Since a level is at most 1 - 2**-53,
    the product rounds to less than the total.
    """
    sums = (law * 2.0**61).to(torch.int64).cumsum(-1)
    aims = (levels * sums[:, -1]).to(torch.int64)
    found = torch.searchsorted(sums, aims[:, None], right=True)[:, 0]
    # The token of an invalid law is never used, but it must be in the vocabulary.
    return found.clamp_(max=law.shape[1] - 1)


def gumbel_choice(law: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Returns (R,) int64: the argmax of log law + Gumbel noise.

    It is a function of (law, seed, position) alone. law (R, V) float32; seeds, positions (R,)
    int64. At one seed and position, two laws choose the same token with a probability of at least
    (1 - TV) / (1 + TV), where TV is their total variation distance: the best possible guarantee if
    neither choice depends on the other law (Daliri, Musco and Suresh 2024). The choice is computed
    as a race: token t arrives at time E_t / p_t, with E_t drawn from Exp(1), and the first token to
    arrive is chosen. This is equivalent, since -log E_t is a Gumbel number.
    """
    row_keys = keys(seeds, positions, Purpose.CHOICE)
    possible = law > 0
    if int(possible.sum()) * 4 <= law.numel():
        rows, tokens = possible.nonzero(as_tuple=True)
        times = torch.full(law.shape, torch.inf, dtype=torch.float64, device=law.device)
        times[rows, tokens] = arrivals(row_keys[rows], tokens) / law[rows, tokens]
        return times.argmin(-1)
    tokens = torch.arange(law.shape[-1], device=law.device)
    rows_at_once = max(1, _RACE // law.shape[-1])
    parts = zip(torch.split(row_keys, rows_at_once), torch.split(law, rows_at_once), strict=True)
    return torch.cat([(arrivals(own[:, None], tokens) / part).argmin(-1) for own, part in parts])


def sample(law: Tensor, noise: Noise, purpose: Purpose = Purpose.FOLLOWING) -> Tensor:
    """Draws one token from each row's law (R, V) float32; returns (R,) int64.

    purpose: DRAFT for a draft model's tokens, FOLLOWING otherwise. Exact rows use the noise of
    CHOICE for both, so a draft model mostly chooses the same token as the target.
    """
    tokens = draw(law, uniforms(noise.seeds, noise.positions, purpose))
    exact = noise.is_exact.nonzero()[:, 0]
    if len(exact):
        tokens[exact] = gumbel_choice(law[exact], noise.seeds[exact], noise.positions[exact])
    return tokens


def logprobs(logits: Tensor, tokens: Tensor, most: int) -> Logprobs:
    """Returns log probabilities in the model's own law: of `tokens` (R,) and of the likeliest.

    logits (R, V): before bias, penalties and temperature, as vLLM reports them by default. tokens:
    int64. most: the number of likeliest tokens in each row.
    """
    logs = logits.to(torch.float32).log_softmax(-1)
    top = logs.topk(min(most, logs.shape[-1]))
    return Logprobs(logs.gather(-1, tokens[:, None])[:, 0], top.values, top.indices)
