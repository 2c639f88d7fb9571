"""The local engine and transformers, compared on one CPU thread, and the gain of speculation.

    python bench/engine.py [--dtype bfloat16] [--rounds 5] [--pairs 15] [--quick]
                           [--models build/engine-models]

Measures tokens per second of a target with 32 million parameters, with greedy decoding. Prompts are
the beginnings of documents that neither model was trained on. All programs have the same dtype, one
thread, a KV cache and a warm-up. They take turns within each round, so a ratio compares runs that
are only minutes apart:

  sequential   transformers' generate, one prompt at a time
  static N     generate with N prompts of the same length at a time, until the longest of N is done
  continuous   transformers' continuous batching, kept running, with as many requests at once
  engine N     redline's core with N slots, without a server

`equal` has one output length for all prompts; `varied` has lengths from 8 to 128, drawn uniformly.
Speculation is measured in pairs at each batch size: the same prompts with and without drafts, and
with a draft model that was never trained. The two runs of a pair are split into pieces, which
alternate. The engine chooses the draft length from what it has learned in earlier runs, like a
server that has run for a minute. If a gain has a bar, its bound is the lower end of a one-sided
95 % interval for the mean of the logarithms (Student's t). A decode step is compared with the
model's linear layers alone, as the engine packs them, on the same number of rows. Each ratio is
given twice: of seconds, and of the process's CPU seconds.

If the folder has no models, examples/tiny-model trains them, which takes 10 minutes. Exits with
status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import record
import torch
from contenders import (
    DEFAULTS,
    PROMPT_TOKENS,
    SEED,
    Continuous,
    Engine,
    Job,
    Static,
    engine_model,
    held_out,
    peer_model,
    train,
    untrained,
)
from transformers.utils import logging

NEW_TOKENS = 128
# Of each answer in a pair, and of those whose steps are timed.
PAIRED_TOKENS, STEP_TOKENS = 128, 48
# So many runs of each make one of a pair: a machine that is slow for some seconds slows all alike.
PIECES = 3
VARIED_JOBS, VARIED_TOKENS = 48, (8, 128)
SLOTS = 32
GROUPS = (8, 16)
BATCHES = (1, 8, 32)
# The first steps read the prompts, and meet shapes that PyTorch has not seen.
SKIPPED_STEPS = 4
BARS = {
    "32 slots / sequential": (6.0, 8.0),
    "32 slots / static 32": (1.4, 1.9),
    "8 slots / static 8, varied": (1.6, 2.0),
    "16 slots / static 16, varied": (1.6, 2.0),
    "32 slots / continuous": (3.0, 3.0),
    "speculation at 1": (2.0, 2.0),
}
# Each ratio's contender and the peer that it is compared with.
COMPARED = {
    "32 slots / sequential": ("engine 32", "sequential"),
    "32 slots / static 32": ("engine 32", "static 32"),
    "8 slots / static 8, varied": ("engine 8, varied", "static 8, varied"),
    "16 slots / static 16, varied": ("engine 16, varied", "static 16, varied"),
    "32 slots / continuous": ("engine 32", "continuous"),
}
# What a run costs, and how its figures are named in the summary. Bars are for the first; the
# second takes less notice of other machines on the same processor.
UNITS = {"wall_s": "", "cpu_s": "_cpu"}
# A decode step, the linear layers as the engine has them, and as transformers has them.
STEPS = ("step_ms", "linears_ms", "peer_linears_ms")
# By dtype, the name of the record. The bars are for the first; not every processor computes in it.
RECORDS = {"bfloat16": "engine", "float32": "engine_float32"}
LEAST_BOUND = 0.95
MOST_STEP = 2.2
# One-sided 95 % quantiles of Student's t by degrees of freedom, for the numbers of pairs in use.
_T_95 = {1: 6.314, 2: 2.920, 4: 2.132, 9: 1.833, 14: 1.761, 19: 1.729, 29: 1.699}


def processor() -> str:
    """Its name, and what it has for numbers of 16 bits."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    told = {"model name": "unknown", "flags": ""}
    told.update(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    return ", ".join(
        [told["model name"], *sorted({"avx512_bf16", "amx_bf16"} & {*told["flags"].split()})]
    )


def timed(run: Callable[[Sequence[Job]], list[list[int]]], jobs: Sequence[Job]) -> dict[str, Any]:
    """Seconds and tokens of one run, each answer as long as it must be."""
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    answers = run(jobs)
    wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    assert [len(answer) for answer in answers] == [job.new_tokens for job in jobs]
    tokens = sum(job.new_tokens for job in jobs)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "tokens": tokens, "answers": answers}


def linears(model: Any, rows: int) -> Callable[[], None]:
    """Calls each linear layer of the model once on so many rows, and nothing else."""
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    dtype = layers[0].weight.dtype
    sizes = {layer.in_features for layer in layers}
    inputs = {size: torch.randn(1, rows, size, dtype=dtype) for size in sizes}

    @torch.inference_mode()
    def call() -> None:
        for layer in layers:
            layer(inputs[layer.in_features])

    return call


def decode_step(engine: Engine, jobs: Sequence[Job], others: Sequence[Callable[[], None]]) -> Any:
    """Median milliseconds of a decode step of `jobs` and of each of `others`, in turns."""
    engine.begin(jobs)
    for _ in range(SKIPPED_STEPS):
        engine.core.step()
    times: list[list[float]] = []
    while not engine.core.scheduler.is_idle:
        stamps = [time.perf_counter()]
        for call in (engine.core.step, *others):
            call()
            stamps.append(time.perf_counter())
        times.append([1000 * (end - begin) for begin, end in itertools.pairwise(stamps)])
    return [statistics.median(each) for each in zip(*times, strict=True)]


def batching(folder: Path, dtype: str, rounds: int, stack: ExitStack) -> Iterator[dict[str, Any]]:
    """Every run of every contender, in turns."""
    prompts = held_out(folder)
    lengths = random.Random(SEED)
    equal = [Job(prompt, NEW_TOKENS) for prompt in prompts[:SLOTS]]
    steps = [Job(prompt, STEP_TOKENS) for prompt in prompts[:SLOTS]]
    varied = [Job(prompt, lengths.randint(*VARIED_TOKENS)) for prompt in prompts[:VARIED_JOBS]]
    own = engine_model(folder / "target", dtype)
    peer, other = [peer_model(folder / "target", dtype) for _ in range(2)]
    runs: dict[str, tuple[Callable[[Sequence[Job]], list[list[int]]], Sequence[Job]]] = {
        "sequential": (Static(peer, 1), equal[:4]),
        "static 32": (Static(peer, SLOTS), equal),
        "continuous": (Continuous(other, SLOTS, stack), equal),
        "engine 32": (Engine(own, SLOTS), equal),
    }
    for size in GROUPS:
        runs[f"static {size}, varied"] = (Static(peer, size), varied)
        runs[f"engine {size}, varied"] = (Engine(own, size), varied)
    stepping = Engine(own, SLOTS)
    alone = [linears(model, SLOTS) for model in (own.model, peer)]
    for run, jobs in runs.values():
        run([Job(job.prompt, 4) for job in jobs[:SLOTS]])
    for number in range(rounds):
        told = {}
        turn = number % len(runs)
        for name in [*runs][turn:] + [*runs][:turn]:
            found = timed(*runs[name])
            told[name] = found.pop("answers")
            yield {"round": number + 1, "contender": name, **found}
        same = sum(told["static 32"][at] == told["engine 32"][at] for at in range(len(equal)))
        times = decode_step(stepping, steps, alone)
        yield {
            "round": number + 1,
            "contender": "decode step",
            **dict(zip(STEPS, times, strict=True)),
            "answers_as_generate": same / len(equal),
        }


def speculation(folder: Path, dtype: str, pairs: int) -> Iterator[dict[str, Any]]:
    """The same jobs with and without drafts, at each batch size."""
    prompts = held_out(folder)
    target, draft = [engine_model(folder / name, dtype) for name in ("target", "draft")]
    drafts = {"without": None, "draft": draft, "random draft": untrained(folder / "draft", dtype)}
    for batch in BATCHES:
        engines = {name: Engine(target, batch, model) for name, model in drafts.items()}
        for number in range(pairs + 1):
            sums: dict[str, Counter[str]] = {name: Counter() for name in engines}
            for piece in range(PIECES):
                # Others, as long as there are: how much is guessed depends on the text.
                begin = (number * PIECES + piece) * batch % (len(prompts) - batch)
                jobs = [Job(prompt, PAIRED_TOKENS) for prompt in prompts[begin : begin + batch]]
                turn = (number + piece) % len(engines)
                for name in [*engines][turn:] + [*engines][:turn]:
                    sums[name].update(_paired(engines[name], jobs))
            if number:  # the first is the warm-up
                for name, found in sums.items():
                    yield {"batch": batch, "pair": number, "contender": name, **found}


def _paired(engine: Engine, jobs: Sequence[Job]) -> Mapping[str, Any]:
    """What one run took, and what was drafted in it."""
    figures = engine.core.figures
    drafted, accepted, steps = figures.drafted_tokens, figures.accepted_tokens, figures.steps
    found = timed(engine, jobs)
    return {
        "wall_s": found["wall_s"],
        "cpu_s": found["cpu_s"],
        "tokens": found["tokens"],
        "drafted": figures.drafted_tokens - drafted,
        "accepted": figures.accepted_tokens - accepted,
        "steps": figures.steps - steps,
    }


def gain(runs: Sequence[dict[str, Any]], batch: int, name: str) -> dict[str, Any]:
    """How many times as fast the pairs of one batch size and draft are, and what was accepted."""
    own = [run for run in runs if run["batch"] == batch]
    pairs = sorted({run["pair"] for run in own})
    told: dict[str, Any] = {"pairs": len(pairs)}
    for unit, suffix in UNITS.items():
        seconds = {(run["contender"], run["pair"]): run[unit] for run in own}
        logs = [math.log(seconds["without", pair] / seconds[name, pair]) for pair in pairs]
        spread = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        least = statistics.fmean(logs) - _T_95.get(len(logs) - 1, 6.314) * spread
        told[f"gain{suffix}"] = round(math.exp(statistics.median(logs)), 3)
        told[f"lower_bound{suffix}"] = round(math.exp(least), 3)
    drafted = sum(run["drafted"] for run in own if run["contender"] == name)
    accepted = sum(run["accepted"] for run in own if run["contender"] == name)
    tokens = sum(run["tokens"] for run in own if run["contender"] == name)
    told["drafted_a_token"] = round(drafted / tokens, 3)
    told["acceptance"] = round(accepted / drafted, 3) if drafted else None
    return told


def summarize(runs: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of rates, of ratios within a round, and the verdict on each bar."""
    timed_runs = [run for run in runs if run["contender"] != "decode step"]
    steps = [run for run in runs if run["contender"] == "decode step"]
    rounds = sorted({run["round"] for run in runs})
    costs = {
        (unit, run["contender"], run["round"]): run[unit] / run["tokens"]
        for unit in UNITS
        for run in timed_runs
    }

    def ratios(unit: str) -> dict[str, float]:
        return {
            bar: statistics.median(costs[unit, peer, at] / costs[unit, own, at] for at in rounds)
            for bar, (own, peer) in COMPARED.items()
        }

    step = {
        **{name: round(statistics.median(run[name] for run in steps), 2) for name in STEPS},
        "ratio": round(statistics.median(run["step_ms"] / run["linears_ms"] for run in steps), 3),
        "answers_as_generate": min(run["answers_as_generate"] for run in steps),
    }
    gains = {
        f"{name} at {batch}": gain(pairs, batch, name)
        for batch in BATCHES
        for name in ("draft", "random draft")
    }
    found = {**ratios("wall_s"), "speculation at 1": gains["draft at 1"]["gain"]}
    found_cpu = {**ratios("cpu_s"), "speculation at 1": gains["draft at 1"]["gain_cpu"]}
    bounded = [name for name in gains if name != "draft at 1"]
    return {
        "per_s": {
            name: round(1 / statistics.median(costs["wall_s", name, one] for one in rounds), 1)
            for name in dict.fromkeys(run["contender"] for run in timed_runs)
        },
        "ratios": {name: round(value, 3) for name, value in found.items()},
        "ratios_cpu": {name: round(value, 3) for name, value in found_cpu.items()},
        "speculation": gains,
        "decode_step": step,
        "kept": {
            **{name: found[name] >= least for name, (least, _) in BARS.items()},
            **{name: gains[name]["lower_bound"] >= LEAST_BOUND for name in bounded},
            "decode step": step["ratio"] <= MOST_STEP,
        },
    }


def show(summary: dict[str, Any]) -> str:
    """The summary for a terminal."""
    lines = [f"{name:22} {per_s:9,.1f} tokens/s" for name, per_s in summary["per_s"].items()]
    lines += [
        f"{name:30} {ratio:6.2f}, by CPU seconds {summary['ratios_cpu'][name]:6.2f}"
        for name, ratio in summary["ratios"].items()
    ]
    lines += [f"{name:20} {found}" for name, found in summary["speculation"].items()]
    lines += [f"decode step {summary['decode_step']}"]
    lines += [f"bar missed: {name}" for name, is_kept in summary["kept"].items() if not is_kept]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=RECORDS, default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--models", type=Path, default=record.ROOT / "build" / "engine-models")
    parser.add_argument("--quick", action="store_true", help="1 round, 3 pairs")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    rounds, pairs = (1, 3) if args.quick else (args.rounds, args.pairs)
    train(args.models)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    settings = {
        "rounds": rounds,
        "pairs": pairs,
        "dtype": args.dtype,
        "threads": 1,
        "processor": processor(),
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "varied_tokens": VARIED_TOKENS,
        "varied_jobs": VARIED_JOBS,
        "paired_tokens": PAIRED_TOKENS,
        "pieces_a_pair": PIECES,
        "step_tokens": STEP_TOKENS,
        "draft_tokens": DEFAULTS.draft_tokens,
        "bars": {name: dict(zip(("bar", "goal"), bar, strict=True)) for name, bar in BARS.items()},
        "least_bound": LEAST_BOUND,
        "most_step": MOST_STEP,
        "models": json.loads((args.models / "training.json").read_text("utf-8")),
    }
    result = record.Record(RECORDS[args.dtype], settings, {"lengths": SEED, "random draft": SEED})
    result.versions.update(record.own_versions("torch", "transformers"))
    runs: list[dict[str, Any]] = []
    with ExitStack() as stack:
        for run in batching(args.models, args.dtype, rounds, stack):
            runs.append(run)
            print(", ".join(f"{key} {value}" for key, value in run.items()), flush=True)
    paired = []
    for run in speculation(args.models, args.dtype, pairs):
        paired.append(run)
        print(", ".join(f"{key} {value}" for key, value in run.items()), flush=True)
    summary = summarize(runs, paired)
    path = result.write(args.results, summary, {"batching": runs, "speculation": paired})
    print(show(summary), f"written: {path}", sep="\n")
    return 0 if all(summary["kept"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
