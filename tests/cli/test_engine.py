"""`redline engine` and `--endpoint engine:MODEL`: what they run, and what they refuse in words."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import redline
from cli.conftest import Cli
from redline import EngineSettings, LocalEngine
from redline.engine.parallel import coordinator
from support.engine_models import continuation, load, other_model, random_model, tokenizer_of
from support.engine_ranks import Forked

Rows = Callable[..., str]
MANY = 4_000_000


@pytest.fixture
def folder(models_folder: Path) -> str:
    return str(random_model("llama", models_folder))


def test_a_cache_larger_than_memory_is_refused_with_its_size(cli: Cli, folder: str) -> None:
    told = cli("engine", folder, "--max-batch-size", str(MANY))
    assert told.status == 2
    assert "defect" not in told.err
    assert "the KV cache for 4,000,000 sequences of 512 tokens needs 2,097.2 GB" in told.err
    assert "max_batch_size" in told.err.partition("hint:")[2]


# Python warns of forks where there are threads; those here hold nothing.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("split", ["tensor_parallel", "pipeline_parallel"])
def test_a_cache_larger_than_memory_is_refused_by_ranks(
    cli: Cli, rows: Rows, folder: str, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "Ranks", Forked)
    endpoint = f"engine:{folder}?max_batch_size={MANY}&{split}=2"
    told = cli("run", rows({"prompt": "ab"}), "--endpoint", endpoint)
    assert told.status == 2
    assert "needs 2,097.2 GB" in told.err
    assert "defect" not in told.err


def test_max_cache_tokens_bounds_what_is_allocated(cli: Cli, rows: Rows, folder: str) -> None:
    """Without the bound this engine would need two terabytes."""
    endpoint = f"engine:{folder}?max_batch_size={MANY}&max_cache_tokens=2000"
    given = rows(*({"prompt": f"ab {number}"} for number in range(8)))
    told = cli("run", given, "--endpoint", endpoint, "--max-tokens", "4")
    assert told.status == 0, told.err
    assert len(told.results) == 8


def test_a_completion_has_16_tokens_unless_told(cli: Cli, rows: Rows, folder: str) -> None:
    def spent(url: str, **body: object) -> int:
        row = {"url": url, "body": {"temperature": 0, "ignore_eos": True, **body}}
        told = cli("run", rows(row), "--endpoint", f"engine:{folder}?max_model_len=64")
        assert told.status == 0, told.err
        tokens = told.results[0]["usage"]["completion_tokens"]
        assert isinstance(tokens, int)
        return tokens

    assert spent("/v1/completions", prompt="ab") == 16
    assert spent("/v1/completions", prompt="ab", max_tokens=20) == 20
    chat = [{"role": "user", "content": "ab"}]
    assert spent("/v1/chat/completions", messages=chat) > 20


@pytest.mark.parametrize(
    "command", [("engine", "no/such/folder"), ("serve", "--endpoint", "engine:no/such/folder")]
)
def test_a_port_that_is_taken_is_named_before_a_model_is_loaded(
    cli: Cli, command: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = cli(*command, "--port", str(taken.getsockname()[1]))
    assert told.status == 2
    assert "the server cannot listen: Address already in use" in told.err


@pytest.mark.parametrize("launcher", ["redline", "vllm"])
def test_an_empty_host_does_not_listen_on_all_addresses(cli: Cli, launcher: str) -> None:
    told = cli("engine", "no/such/folder", "--host", "", "--launcher", launcher)
    assert told.status == 2
    assert "the host is empty" in told.err


REFUSED = {
    "lfm2": "(lfm2) has conv layers",
    "minimax": "(minimax) has linear attention layers",
    "stablelm": "its attention layers do not pass on the engine's arguments",
    "nemotron": "its attention layers do not pass on the engine's arguments",
    "mistral-window": "sliding-window attention over 64 tokens",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_is_refused_for_the_reason_that_holds(
    kind: str, cli: Cli, models_folder: Path
) -> None:
    told = cli("engine", str(other_model(kind, models_folder)))
    assert told.status == 2
    assert REFUSED[kind] in told.err
    assert "KeyError" not in told.err
    assert ("sliding" in told.err) == (kind == "mistral-window")


def test_a_window_is_named_with_the_length_that_runs(cli: Cli, models_folder: Path) -> None:
    told = cli("engine", str(other_model("mistral-window", models_folder)))
    assert "max_model_len 64" in told.err.partition("hint:")[2]


@pytest.mark.parametrize("kind", ["mistral-4096", "phi3-262144"])
def test_a_window_as_long_as_any_sequence_is_no_window(
    kind: str, cli: Cli, rows: Rows, models_folder: Path
) -> None:
    folder = other_model(kind, models_folder)
    told = cli("run", rows({"prompt": "a"}), "--endpoint", f"engine:{folder}", "--max-tokens", "3")
    assert told.status == 0, told.err


def test_a_windowed_model_says_up_to_its_window_what_it_says_itself(models_folder: Path) -> None:
    folder = other_model("mistral-window", models_folder)
    prompt = tokenizer_of(folder).encode("ab cd " * 8)
    assert 20 < len(prompt) < 60
    own = continuation(load(folder), prompt, 64 - len(prompt))
    settings = EngineSettings(model=str(folder), dtype="float32", max_model_len=64)
    body: dict[str, Any] = {"prompt": prompt, "temperature": 0, "ignore_eos": True}
    row = {"url": "/v1/completions", "body": body | {"max_tokens": len(own.tokens)}}
    report = redline.run([row], endpoint=LocalEngine(settings))
    (outcome,) = report.outcomes or []
    assert outcome.output == tokenizer_of(folder).decode(own.tokens), json.dumps(own.gap)


@pytest.mark.parametrize("stated", [-1, 100_000, "</s>", [1, -1]])
def test_ends_that_are_no_tokens_of_the_model_are_left_out(
    folder: str, tmp_path: Path, stated: object
) -> None:
    """With one of them, no answer could follow a schema."""
    own = shutil.copytree(folder, tmp_path / "own")
    (own / "generation_config.json").write_text(json.dumps({"eos_token_id": stated}), "utf-8")
    schema = {"name": "yes", "schema": {"enum": ["yes"]}}
    row = {
        "messages": [{"role": "user", "content": "ab"}],
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    engine = LocalEngine(EngineSettings(model=str(own), max_batch_size=2))
    (outcome,) = redline.run([row], endpoint=engine, max_retries=0).outcomes
    assert outcome.output == '"yes"', outcome.error
