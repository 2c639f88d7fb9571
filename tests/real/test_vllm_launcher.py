"""The vLLM launcher, with a stand-in for the command `vllm` that checks what it is given."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redline.engine import EngineSettings, command, launch, url_host
from redline.errors import ConfigError

# Takes the flags of vLLM 0.32 that redline gives, and no others. A worker of its own notes its
# number and waits, as vLLM's EngineCore does.
STAND_IN = """
import argparse, http.server, json, os, signal, subprocess, sys, time

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("verb", choices=["serve"])
parser.add_argument("model")
parser.add_argument("--served-model-name", nargs="+", required=True)
parser.add_argument("--host", required=True)
for name in ("port", "tensor-parallel-size", "pipeline-parallel-size", "max-num-seqs"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--max-num-batched-tokens", type=int, required=True)
parser.add_argument("--max-model-len", type=int)
parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16", "float16"], required=True)
parser.add_argument("--speculative-config", type=json.loads)
parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, required=True)
given = parser.parse_args()
print("loading", given.model, flush=True)
mood = os.environ.get("MOOD", "")
if mood == "dies":
    sys.exit("ValueError: the model is not there")
deaf = "trap '' TERM; " * (mood == "deaf")
worker = subprocess.Popen(["/bin/sh", "-c", deaf + "echo; exec sleep 60"], stdout=subprocess.PIPE)
worker.stdout.readline()
begun = time.monotonic()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_ready = mood != "never" and time.monotonic() - begun > 0.3
        self.answer(200 if is_ready else 503, b"")

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(200, json.dumps({"object": "chat.completion", **vars(given)}).encode())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def leave(number, _):
    print("told to end by", signal.Signals(number).name, flush=True)
    worker.kill()
    sys.exit(0)


signal.signal(signal.SIGINT, leave)
signal.signal(signal.SIGTERM, signal.SIG_IGN if mood == "deaf" else leave)
server = http.server.HTTPServer((given.host, given.port), Handler)
open(os.environ["NUMBERS"], "w").write(f"{os.getpid()} {worker.pid} ")
server.serve_forever()
"""
# As the command line does it, with bounds that a test can wait for.
LAUNCH = """
import sys
from redline.engine import vllm
from redline.engine.settings import EngineSettings
from redline.errors import RedlineError

vllm._GRACE_S = int(sys.argv[2])
try:
    vllm.launch(
        EngineSettings(model="m"),
        host="127.0.0.1",
        port=0,
        on_url=lambda url: print(url, flush=True),
        on_note=lambda note: print(note, file=sys.stderr, flush=True),
        start_s=float(sys.argv[1]),
    )
except RedlineError as error:
    print(f"error: {error.what}", file=sys.stderr)
    sys.exit(2)
"""

Start = Callable[..., "Launched"]


class Launched:
    """A launcher in a process of its own."""

    def __init__(self, folder: Path, command: list[str], mood: str) -> None:
        self._numbers = folder / "numbers"
        self._numbers.write_text("", "utf-8")
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env={
                **os.environ,
                "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
                "MOOD": mood,
                "NUMBERS": str(self._numbers),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def url(self) -> str:
        """The first line on stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def numbers(self) -> list[int]:
        """The stand-in's process and its worker's."""
        return [int(number) for number in self._numbers.read_text("utf-8").split()]

    def end(self) -> tuple[int, str, str]:
        """Its status, the rest of stdout, and stderr."""
        out, err = self.process.communicate(timeout=40)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    vllm = tmp_path / "vllm"
    # A path with a space cannot stand behind #!.
    python = shlex.quote(sys.executable)
    vllm.write_text(f'#!/bin/sh\nexec {python} -S "$0.py" "$@"\n', "utf-8")
    vllm.chmod(0o755)
    (tmp_path / "vllm.py").write_text(STAND_IN, "utf-8")
    begun: list[Launched] = []

    def start(*flags: str, mood: str = "", start_s: float = 20.0) -> Launched:
        """By the command line where flags are given, else by LAUNCH."""
        # A busy machine takes a while to end what does listen.
        command = ["-c", LAUNCH, str(start_s), "1" if mood == "deaf" else "20"]
        if flags:
            command = ["-m", "redline", "engine", *flags, "--launcher", "vllm"]
        begun.append(Launched(tmp_path, command, mood))
        return begun[-1]

    yield start
    for launched in begun:
        launched.process.kill()
        launched.process.wait()
        # What guards a killed launcher has them open, too, until it has slept for its grace.
        for pipe in (launched.process.stdout, launched.process.stderr):
            assert pipe is not None
            pipe.close()


def all_gone(numbers: list[int]) -> bool:
    """Whether none of the processes runs any more; they get some seconds to end."""
    end_s = time.monotonic() + 8
    while time.monotonic() < end_s:
        if not any(is_running(number) for number in numbers):
            return True
        time.sleep(0.05)
    return False


def is_running(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    # Where no process 1 collects the dead, orphans stay on as such.
    return state not in "ZX"


def asked(url: str) -> Any:
    body = json.dumps({"model": "m", "messages": []}).encode()
    with urllib.request.urlopen(f"{url}/chat/completions", body, timeout=5) as answer:
        return json.load(answer)


def test_vllm_serves_with_the_same_settings_until_it_is_told_to_end(start: Start) -> None:
    launched = start(
        *("org/model", "--dtype", "bfloat16", "--draft-model", "org/draft", "--draft-tokens", "3"),
        *("--max-batch-size", "7", "--max-step-tokens", "99", "--max-model-len", "1234"),
        *("--tensor-parallel", "2", "--pipeline-parallel", "3", "--no-prefix-reuse"),
    )
    url = launched.url()
    assert url.startswith("http://127.0.0.1:")
    assert url.endswith("/v1")
    seen = asked(url)
    assert seen["port"] == int(url.split(":")[2].removesuffix("/v1")) > 0
    assert (seen["model"], seen["served_model_name"]) == ("org/model", ["org/model"])
    assert seen["dtype"] == "bfloat16"
    assert seen["speculative_config"] == {"model": "org/draft", "num_speculative_tokens": 3}
    assert (seen["max_num_seqs"], seen["max_num_batched_tokens"]) == (7, 99)
    assert seen["max_model_len"] == 1234
    assert seen["enable_prefix_caching"] is False
    assert (seen["tensor_parallel_size"], seen["pipeline_parallel_size"]) == (2, 3)
    launched.process.terminate()
    status, out, err = launched.end()
    assert (status, out) == (0, "")
    assert "\nloading org/model\n" in err
    assert err.endswith("told to end by SIGTERM\n")
    assert all_gone(launched.numbers())


def test_an_interrupt_is_passed_on_also_before_vllm_is_ready(start: Start) -> None:
    launched = start(mood="never")
    assert launched.process.stderr is not None
    assert launched.process.stderr.readline().startswith("starting vllm serve m --served-")
    assert launched.process.stderr.readline() == "loading m\n"
    while len(launched.numbers()) < 2:
        time.sleep(0.02)
    launched.process.send_signal(signal.SIGINT)
    status, out, err = launched.end()
    assert (status, out) == (0, "")
    assert err == "told to end by SIGINT\n"
    assert all_gone(launched.numbers())


def test_a_killed_launcher_leaves_nothing_behind(start: Start) -> None:
    numbers = []
    for mood in ("", "deaf"):
        launched = start(mood=mood)
        launched.url()
        numbers += launched.numbers()
        launched.process.kill()
        launched.process.wait()
    assert len(set(numbers)) == 4
    assert all_gone(numbers)


def test_what_does_not_listen_is_killed(start: Start) -> None:
    launched = start(mood="deaf")
    launched.url()
    launched.process.terminate()
    assert launched.end()[0] == 0
    assert all_gone(launched.numbers())


def test_vllm_that_cannot_start_is_told_below_its_own_words(start: Start) -> None:
    status, out, err = start("m", mood="dies").end()
    assert (status, out) == (1, "")
    told = "error: vLLM exited before it was ready, with status 1\n"
    assert f"loading m\nValueError: the model is not there\n{told}" in err


def test_vllm_that_dies_while_it_serves_is_told_and_its_workers_end(start: Start) -> None:
    launched = start()
    launched.url()
    os.kill(launched.numbers()[0], signal.SIGKILL)
    status, _, err = launched.end()
    assert status == 2
    assert err.endswith("error: vLLM exited while serving, with status -9\n")
    assert all_gone(launched.numbers())


def test_vllm_that_never_gets_ready_is_ended(start: Start) -> None:
    launched = start(mood="never", start_s=1.5)
    status, out, err = launched.end()
    assert (status, out) == (2, "")
    assert err.endswith("told to end by SIGTERM\nerror: vLLM was not ready within 1.5 s\n")
    assert all_gone(launched.numbers())


def test_without_the_command_it_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="not on PATH") as caught:
        launch(EngineSettings(model="m"), host="127.0.0.1", port=0, on_url=print, on_note=print)
    assert "pip install vllm" in caught.value.hint


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .*in use"):
            launch(
                EngineSettings(model="m"), host="127.0.0.1", port=port, on_url=print, on_note=print
            )


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("gpu-1", "gpu-1")],
)
def test_the_url_says_where_this_machine_reaches_it(host: str, shown: str) -> None:
    assert url_host(host) == shown


def test_lookup_is_vllms_ngram_method_with_the_same_lengths() -> None:
    settings = EngineSettings(model="m", has_lookup=True, draft_tokens=5)
    parts = command(settings, "::1", 8000)
    assert json.loads(parts[parts.index("--speculative-config") + 1]) == {
        **{"method": "ngram", "num_speculative_tokens": 5},
        **{"prompt_lookup_min": 2, "prompt_lookup_max": 8},
    }
    assert parts[:3] == ["vllm", "serve", "m"]
    assert parts[parts.index("--host") + 1] == "::1"
    assert "--enable-prefix-caching" in parts
    assert "--max-model-len" not in parts


def test_a_folder_is_called_by_its_last_name(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    parts = command(EngineSettings(model=str(tmp_path / "tiny")), "127.0.0.1", 1)
    assert parts[parts.index("--served-model-name") + 1] == "tiny"


@pytest.mark.parametrize("name", [".", "./", "../tiny"])
def test_the_folder_one_is_in_is_called_by_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path / "tiny")
    parts = command(EngineSettings(model=name), "127.0.0.1", 1)
    assert parts[parts.index("--served-model-name") + 1] == "tiny"


@pytest.mark.parametrize(
    "settings",
    [
        EngineSettings(model="m"),
        EngineSettings(model="m", draft_model="d", draft_tokens=0),
        EngineSettings(model="m", has_lookup=True, draft_tokens=0),
    ],
    ids=str,
)
def test_nobody_drafts_where_nothing_is_said(settings: EngineSettings) -> None:
    assert "--speculative-config" not in command(settings, "127.0.0.1", 1)


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"threads": 2}, "--threads"),
        ({"max_wait_s": 0.1}, "--max-wait-time"),
        ({"max_cache_tokens": 5}, "--max-cache-tokens"),
        ({"max_waiting": 1}, "--max-waiting"),
    ],
)
def test_what_vllm_lacks_is_refused_by_name(given: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=f"no counterpart of {flag}:"):
        command(EngineSettings(model="m", **given), "127.0.0.1", 1)
