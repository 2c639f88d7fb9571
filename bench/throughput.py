"""Does `redline bench` report the figures of its peer, for the same server under the same load?

    python bench/throughput.py [--rounds 3] [--duration 60]

NVIDIA's aiperf and redline measure one `redline sim` in turn, with 16 requests in flight, streamed,
with prompts of 128 tokens and answers of 24: requests per second, time to the first token, and time
per further token. Each figure is compared with the server's own log of the same requests. aiperf is
installed in an environment of its own, with a tokenizer that is trained here; only its package is
downloaded. Exits with status 1 if redline's figures differ by more than BARS.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import record

CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS = 16, 128, 24
# About 8 requests and 200 tokens a second, which leave both clients idle for most of the time.
SERVER = ("--latency", "0.5-1.0", "--per-token", "0.05")
# Allowed differences, in proportion. The p99 is that of a few requests.
BARS = {"requests_per_s": 0.03, "ttft_p50_s": 0.05}
FIGURES = ("requests_per_s", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s")

_TRAIN = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
made = Tokenizer(models.BPE(unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.ByteLevel()
made.decoder = decoders.ByteLevel()
text = open(sys.argv[1], encoding="utf-8").read().split(". ")
special = ["<unk>", "<s>", "</s>"]
made.train_from_iterator(text, trainers.BpeTrainer(vocab_size=4000, special_tokens=special))
kept = PreTrainedTokenizerFast(
    tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
)
kept.save_pretrained(sys.argv[2])
"""


def by_aiperf(python: Path, tokenizer: Path, url: str, seconds: int, folder: Path) -> Any:
    """What aiperf says."""
    command = [
        *(str(python.with_name("aiperf")), "profile", "--model", "sim", "--url"),
        *(url.removesuffix("/v1"), "--endpoint-type", "chat", "--streaming"),
        *("--concurrency", str(CONCURRENCY), "--benchmark-duration", str(seconds)),
        *("--synthetic-input-tokens-mean", str(INPUT_TOKENS)),
        *("--synthetic-input-tokens-stddev", "0", "--output-tokens-stddev", "0"),
        *("--output-tokens-mean", str(OUTPUT_TOKENS), "--use-legacy-max-tokens"),
        *("--use-server-token-count", "--tokenizer", str(tokenizer)),
        *("--ui", "none", "--workers-max", "2", "--output-artifact-dir", str(folder)),
    ]
    # Not offline by its variables: aiperf then takes a folder for the name of a cached one.
    environ = record.clean_environment()
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False
    )
    pages = sorted(folder.rglob("profile_export_aiperf.json"))
    if done.returncode or not pages:
        raise RuntimeError(f"aiperf ended with {done.returncode}: {done.stdout}{done.stderr}")
    found = json.loads(pages[0].read_text())
    return {
        "requests_per_s": found["request_throughput"]["avg"],
        "ttft_p50_s": found["time_to_first_token"]["p50"] / 1000,
        "ttft_p99_s": found["time_to_first_token"]["p99"] / 1000,
        "tpot_mean_s": found["inter_token_latency"]["avg"] / 1000,
    }


def by_redline(url: str, seconds: int) -> Any:
    """What redline says."""
    command = [
        *(*record.REDLINE, "bench", url, "--model", "sim", "-c", str(CONCURRENCY)),
        *("--duration", f"{seconds}s", "--prompt-tokens", str(INPUT_TOKENS)),
        *("--max-tokens", str(OUTPUT_TOKENS), "--json", "-q"),
    ]
    environ = record.clean_environment()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["figures"]
    return {
        "requests_per_s": found["requests_per_s"],
        "ttft_p50_s": found["ttft"]["p50_s"],
        "ttft_p99_s": found["ttft"]["p99_s"],
        "tpot_mean_s": found["tpot"]["mean_s"],
        "bottleneck": found["client"]["bottleneck"],
    }


def by_server(url: str) -> Any:
    """What the server's own log says of all that it has answered."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url.removesuffix("/v1") + "/sim/requests", timeout=30) as page:
        log = [one for one in json.load(page)["requests"] if one["outcome"] == "answered"]
    ttfts_s = [one["first_token_s"] - one["arrival_s"] for one in log]
    last_s = max(one["ended_s"] for one in log)
    seconds = last_s - min(one["arrival_s"] for one in log)
    cuts = statistics.quantiles(ttfts_s, n=100, method="inclusive")
    tpots_s = [(one["ended_s"] - one["first_token_s"]) / (OUTPUT_TOKENS - 1) for one in log]
    return {
        "requests_per_s": len(log) / seconds,
        "ttft_p50_s": cuts[49],
        "ttft_p99_s": cuts[98],
        "tpot_mean_s": statistics.fmean(tpots_s),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    # aiperf counts the time until the last answer as well, during which fewer are in flight: some
    # 15 % of 8 seconds.
    parser.add_argument("--duration", type=int, default=60, help="seconds of each load")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    options = parser.parse_args()
    python = record.peer_python("aiperf", "aiperf")
    kept = record.Record(
        "throughput",
        {
            "server": SERVER,
            "concurrency": CONCURRENCY,
            "prompt_tokens": INPUT_TOKENS,
            "answer_tokens": OUTPUT_TOKENS,
            "rounds": options.rounds,
            "duration_s": options.duration,
            "bars": BARS,
        },
        versions=record.peer_versions(python, "aiperf"),
    )
    rounds = []
    with record.scratch() as folder:
        text, tokenizer = record.ROOT / "docs" / "architecture.md", folder / "tokenizer"
        subprocess.run([python, "-c", _TRAIN, text, tokenizer], check=True, capture_output=True)
        for number in range(options.rounds):
            found: dict[str, Any] = {}
            for name in ("redline", "aiperf"):
                with record.serving((*record.REDLINE, "sim", *SERVER)) as server:
                    place = folder / f"{name}-{number}"
                    place.mkdir()
                    if name == "aiperf":
                        found[name] = by_aiperf(
                            python, tokenizer, server.url, options.duration, place
                        )
                    else:
                        found[name] = by_redline(server.url, options.duration)
                    found[f"{name}'s server"] = by_server(server.url)
            rounds.append(found)
            _show(number, found)
    differences = {
        figure: statistics.median(
            one["redline"][figure] / one["aiperf"][figure] - 1 for one in rounds
        )
        for figure in FIGURES
    }
    print("median difference of redline from aiperf:")
    for figure, difference in differences.items():
        bar = f", at most {BARS[figure]:.0%} is wanted" if figure in BARS else ""
        print(f"  {figure:16}{difference:+.2%}{bar}")
    print(f"written: {kept.write(options.results, {'differences': differences}, rounds)}")
    return 0 if all(abs(differences[name]) <= bar for name, bar in BARS.items()) else 1


def _show(number: int, found: dict[str, Any]) -> None:
    print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
    for name, figures in found.items():
        shown = "  ".join(f"{figure} {figures[figure]:.4f}" for figure in FIGURES)
        print(f"  {name:18}{shown}{'  ' + figures.get('bottleneck', '')}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
