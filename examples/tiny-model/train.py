"""Trains a tiny target and its draft on text from make_text.py: two folders to serve.

    python examples/tiny-model/train.py DIR [--target tiny|32m] [--steps N] [--threads 2]

Leaves DIR/target and DIR/draft, which AutoModelForCausalLM and AutoTokenizer load, DIR/held-out.txt
with documents that neither has seen, one a line, and DIR/training.json with the figures. The draft
learns from the text and from the target's distributions, so that it predicts the target rather than
the text; they cost nothing, as the target is trained on the same batch. Needs torch and
transformers.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from make_text import END, Document, contents, make_text, render
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

BEGIN = "<|begin|>"
PAD = "<|pad|>"
SPECIAL = (BEGIN, END, PAD, "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
HELD_OUT_SHARE = 0.03
# The number of blocks over which the held-out loss is computed during training.
HELD_OUT_BLOCKS = 4
REPORT_S = 3.0
WARM_UP_SHARE = 0.08
WEIGHT_DECAY = 0.1
# The share of the target's distribution in what the draft learns from; the rest is the text.
OPINION = 0.5
# How acceptance is measured: continuations of the first tokens of held-out documents.
PROMPTS, PROMPT_TOKENS, NEW_TOKENS, DRAFTED = 32, 24, 64, 4


@dataclass(frozen=True)
class Shape:
    """The sizes of one Llama model; each head has `hidden / heads` dimensions.

    inner: the width of the MLP. is_tied: whether the embedding and the head share their weights.
    """

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    is_tied: bool = False


@dataclass(frozen=True)
class Plan:
    """What is trained, on what, and for how long.

    batch: sequences per step. length: tokens per sequence. rate, draft_rate: the highest learning
    rates. context: the longest sequence that the models declare; they are trained on `length`.
    """

    target: Shape
    draft: Shape
    steps: int
    rate: float
    draft_rate: float
    batch: int = 8
    length: int = 128
    vocabulary: int = 4096
    megabytes: float = 4.0
    towns: int = 48
    context: int = 2048
    seed: int = 0


PLANS = {
    # About 4 and 1 million parameters.
    "tiny": Plan(
        target=Shape(hidden=192, inner=512, layers=6, heads=6, kv_heads=2),
        draft=Shape(hidden=128, inner=352, layers=2, heads=4, kv_heads=2, is_tied=True),
        steps=600,
        rate=3e-3,
        draft_rate=4e-3,
    ),
    # 31.8 and 5.8 million, with a vocabulary of 1,280 tokens, all that the text yields.
    "32m": Plan(
        target=Shape(hidden=512, inner=1472, layers=10, heads=8, kv_heads=4),
        draft=Shape(hidden=512, inner=2432, layers=1, heads=8, kv_heads=4),
        steps=500,
        rate=1.2e-3,
        draft_rate=2e-3,
        # More steps for the same tokens: with few tokens, the number of steps is the bottleneck.
        batch=4,
    ),
}


class Pair(NamedTuple):
    """A target model and its draft model."""

    target: LlamaForCausalLM
    draft: LlamaForCausalLM


class Acceptance(NamedTuple):
    """How well a draft predicts what its target decodes greedily.

    agreement: of the target's tokens, the share that the draft predicts after the same prefix.
    accepted: of the tokens drafted DRAFTED at a time, the share before the first wrong one.
    per_step: tokens that one step of the target then gives, its own included; 1 to DRAFTED + 1.
    """

    agreement: float
    accepted: float
    per_step: float


def make_tokenizer(texts: Sequence[str], vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most `vocabulary` tokens, with a chat template.

    Each digit is a token of its own, as sums need it. Every text begins with BEGIN; the chat
    template adds it itself, so its output must be encoded without special tokens.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A",
        pair=f"{BEGIN} $A $B",
        special_tokens=[(BEGIN, core.token_to_id(BEGIN))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=list(SPECIAL[3:]),
        clean_up_tokenization_spaces=False,
        model_max_length=context,
        chat_template=CHAT_TEMPLATE,
    )


def make_model(
    shape: Shape, tokenizer: PreTrainedTokenizerFast, context: int, seed: int
) -> LlamaForCausalLM:
    """Returns an untrained Llama of `shape` for the tokenizer; keeps torch's random state."""
    config = LlamaConfig(
        # A multiple of 64, so that shards of the vocabulary have the same size.
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=context,
        initializer_range=0.4 / math.sqrt(shape.hidden),
        tie_word_embeddings=shape.is_tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def pack(tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document], length: int) -> Tensor:
    """Returns the joined documents cut into blocks, (N, length + 1) int64; drops the rest."""
    ids = tokenizer([render(document) for document in documents])["input_ids"]
    stream = torch.tensor([token for row in ids for token in row])
    count = len(stream) // (length + 1)
    return stream[: count * (length + 1)].view(count, length + 1)


def batches(blocks: Tensor, plan: Plan) -> Iterator[Tensor]:
    """Yields `plan.steps` random batches; every block occurs once before any occurs again."""
    generator = torch.Generator().manual_seed(plan.seed)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(plan.steps):
        while len(order) < plan.batch:
            order = torch.cat([order, torch.randperm(len(blocks), generator=generator)])
        yield blocks[order[: plan.batch]]
        order = order[plan.batch :]


def rate_share(step: int, steps: int) -> float:
    """The share of the highest learning rate: a linear warm-up, then a cosine down to 2 %."""
    warm_up = max(1, round(steps * WARM_UP_SHARE))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.02 + 0.98 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2


def optimizer(model: LlamaForCausalLM, rate: float) -> AdamW:
    """Returns AdamW with weight decay for the matrices, but not for the norms."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)


def learn(model: LlamaForCausalLM, adam: AdamW, loss: Tensor, rate: float) -> None:
    """Takes one step of `adam` on `loss` at learning rate `rate`; clips the gradients to norm 1."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in adam.param_groups:
        group["lr"] = rate
    adam.step()
    adam.zero_grad()


def losses(pair: Pair, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the target's loss, the loss that trains the draft, and the draft's on the text."""
    inputs, wanted = rows[:, :-1], rows[:, 1:].flatten()
    logits = pair.target(inputs, use_cache=False).logits.flatten(0, 1)
    guesses = pair.draft(inputs, use_cache=False).logits.flatten(0, 1)
    opinion = logits.detach().softmax(-1)
    target_loss = functional.cross_entropy(logits, wanted)
    draft_loss = functional.cross_entropy(guesses, wanted)
    lesson = OPINION * functional.cross_entropy(guesses, opinion) + (1 - OPINION) * draft_loss
    return target_loss, lesson, draft_loss


def train(
    pair: Pair, blocks: Tensor, held_out: Tensor, plan: Plan, say: Callable[[str], None]
) -> tuple[float, float]:
    """Trains both in place; returns their losses per held-out token, in nats.

    Reports progress every few seconds, less often if computing the held-out loss is slow.
    """
    adams = (optimizer(pair.target, plan.rate), optimizer(pair.draft, plan.draft_rate))
    rates = (plan.rate, plan.draft_rate)
    start_s = told_s = time.monotonic()
    wait_s = REPORT_S
    for model in pair:
        model.train()
    for step, rows in enumerate(batches(blocks, plan), 1):
        target_loss, lesson, draft_loss = losses(pair, rows)
        for model, adam, loss, rate in zip(pair, adams, (target_loss, lesson), rates, strict=True):
            learn(model, adam, loss, rate * rate_share(step - 1, plan.steps))
        now_s = time.monotonic()
        if now_s - told_s < wait_s and step < plan.steps:
            continue
        seen = held_out_losses(pair, held_out[:HELD_OUT_BLOCKS])
        left_s = (now_s - start_s) / step * (plan.steps - step)
        say(
            f"step {step:4d}/{plan.steps}  loss {target_loss:.3f}, draft {draft_loss:.3f}"
            f"  held out {seen[0]:.3f}, draft {seen[1]:.3f}"
            f"  {step * plan.batch * plan.length / (now_s - start_s):,.0f} tokens/s"
            f"  {left_s:.0f} s left"
        )
        told_s = time.monotonic()
        wait_s = max(REPORT_S, 10 * (told_s - now_s))
    for model in pair:
        model.eval()
    return held_out_losses(pair, held_out)


@torch.inference_mode()
def held_out_losses(pair: Pair, held_out: Tensor) -> tuple[float, float]:
    """Returns the mean losses of target and draft per token, in nats."""
    sums = [0.0, 0.0]
    for rows in held_out.split(8):
        target_loss, _, draft_loss = losses(pair, rows)
        sums[0] += float(target_loss) * len(rows)
        sums[1] += float(draft_loss) * len(rows)
    return sums[0] / len(held_out), sums[1] / len(held_out)


@torch.inference_mode()
def accept(pair: Pair, prompts: Tensor, new_tokens: int = NEW_TOKENS) -> Acceptance:
    """Returns how well the draft predicts the target's greedy continuations of `prompts` (N, P)."""
    model = pair.target
    end = model.generation_config.eos_token_id
    # Continuations do not stop at the end of a document, as in a benchmark of equal lengths.
    model.generation_config.eos_token_id = None
    whole = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=new_tokens,
        do_sample=False,
    )
    model.generation_config.eos_token_id = end
    start = prompts.shape[1]
    guessed = pair.draft(whole[:, :-1], use_cache=False).logits[:, start - 1 :].argmax(-1)
    agrees = (guessed == whole[:, start:]).tolist()
    drafted = accepted = steps = 0
    for row in agrees:
        place = 0
        while place < len(row):
            guesses = row[place : place + DRAFTED]
            kept = guesses.index(False) if False in guesses else len(guesses)
            drafted, accepted, steps = drafted + len(guesses), accepted + kept, steps + 1
            place += kept + 1
    tokens = sum(map(len, agrees))
    return Acceptance(
        sum(map(sum, agrees)) / tokens, accepted / max(drafted, 1), tokens / max(steps, 1)
    )


def held_out_prompts(
    tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document], count: int, length: int
) -> Tensor:
    """Returns the first tokens of at most `count` documents that have enough, (N, length) int64."""
    ids = tokenizer([render(document) for document in documents])["input_ids"]
    return torch.tensor([row[:length] for row in ids if len(row) >= length][:count])


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Saves both in `folder`, with the chat template in tokenizer_config.json."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)


def make_pair(folder: Path, plan: Plan, say: Callable[[str], None] = print) -> Acceptance:
    """Trains a pair by `plan` and saves it in `folder`; returns the draft's held-out acceptance."""
    start_s = time.monotonic()
    documents = make_text(int(plan.megabytes * 1e6), plan.seed, plan.towns)
    kept = int(len(documents) * (1 - HELD_OUT_SHARE))
    texts = [contents(document) for document in documents[:kept]]
    tokenizer = make_tokenizer(texts, plan.vocabulary, plan.context)
    blocks = pack(tokenizer, documents[:kept], plan.length)
    held_out = pack(tokenizer, documents[kept:], plan.length)
    target = make_model(plan.target, tokenizer, plan.context, plan.seed)
    pair = Pair(target, make_model(plan.draft, tokenizer, plan.context, plan.seed + 1))
    sizes = [sum(p.numel() for p in model.parameters()) for model in pair]
    say(
        f"{len(documents):,} documents, {blocks.numel():,} tokens, vocabulary {len(tokenizer):,};"
        f" target {sizes[0] / 1e6:.1f}M parameters, draft {sizes[1] / 1e6:.1f}M"
    )
    held_out_loss = train(pair, blocks, held_out, plan, say)
    prompts = held_out_prompts(tokenizer, documents[kept:], PROMPTS, PROMPT_TOKENS)
    acceptance = accept(pair, prompts)
    for model, name in zip(pair, ("target", "draft"), strict=True):
        save(model, tokenizer, folder / name)
    lines = "".join(render(document) + "\n" for document in documents[kept:])
    (folder / "held-out.txt").write_text(lines, "utf-8")
    figures = {
        "plan": asdict(plan),
        "parameters": sizes,
        "held_out_loss": held_out_loss,
        "acceptance": acceptance._asdict(),
        "duration_s": round(time.monotonic() - start_s, 1),
        "torch": torch.__version__,
    }
    (folder / "training.json").write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    return acceptance


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--target", choices=PLANS, default="tiny")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--megabytes", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(arguments)
    names = ("steps", "megabytes", "seed")
    changed = {name: value for name in names if (value := getattr(args, name)) is not None}
    plan = replace(PLANS[args.target], **changed)
    torch.set_num_threads(args.threads)
    disable_progress_bar()
    found = make_pair(args.folder, plan, lambda text: print(text, flush=True))
    print(
        f"acceptance on held-out text, greedy: {found.agreement:.0%} of the tokens guessed;"
        f" {DRAFTED} drafted at a time: {found.accepted:.0%} accepted,"
        f" {found.per_step:.2f} tokens a step"
    )
    print(f"{args.folder}/target, {args.folder}/draft")
    return 0


if __name__ == "__main__":
    sys.exit(main())
