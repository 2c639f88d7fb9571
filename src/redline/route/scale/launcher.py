"""Runs replicas as processes on this machine.

state      begins when                becomes
starting   its process is started     ready, when a real request succeeds; failed, when the process
                                      ends, it refuses a request, another process has its port, or
                                      `start_s` has passed
ready      a request succeeded        gone, when its process ends: a fleet then replaces it
ending     `stop` is called           gone; if that takes longer than END_S, `stop` raises an error

Each replica runs below a guardian, which ends it and every process that it has started, even if
this process is killed; see guardian.py.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from redline.apis import chat, completions, embeddings, responses
from redline.calls import Call, Endpoint, Health, HttpBackend, Load, Outcome, Request, Shared
from redline.calls.http import Mask
from redline.clock import SYSTEM
from redline.errors import CallError, ConfigError, Final, NoEndpoint, RedlineError, check_known
from redline.process import end_tasks, printable
from redline.route.endpoints import intake_of, seat_of
from redline.route.member import Seat
from redline.route.scale.guardian import guarded
from redline.route.scale.ports import HOST, free_port, is_listening

T = TypeVar("T")

# A replica that got SIGTERM is killed after this time.
GRACE_S = 5.0
# If the guardian has not exited after this time, `stop` raises an error.
END_S = GRACE_S + 5.0
# Seconds between two requests to a replica that is not ready; the pause doubles.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
# How much of a log an error quotes.
_QUOTED_LINES, _QUOTED_BYTES, _LONGEST_LINE = 10, 8192, 300
# Logs of replicas that have ended; older ones are removed.
_KEPT_LOGS = 100
# A variable or flag with such a name is assumed to hold a secret, unless its value is a path.
_SECRET_NAME = re.compile("key|token|secret|password|credential", re.IGNORECASE)
# The bodies of the trial requests that show that a replica works, by path.
TRIALS: Mapping[str, Mapping[str, object]] = {
    chat.API.path: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1},
    completions.API.path: {"prompt": "hello", "max_tokens": 1},
    embeddings.API.path: {"input": "hello"},
    responses.API.path: {"input": "hello", "max_output_tokens": 16},
}


class LocalReplica(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a replica.

    command: the command line. {port} is replaced by the port on 127.0.0.1 to listen on, and {slot}
    by a number from 0 that no other running replica has, for example to choose a GPU. The command
    must stay in the foreground. model: the model of the trial request. trial: the path of the
    request that a replica must answer to be ready, one of TRIALS. endpoint: limits, key, headers
    and timeouts of a replica; its base URL, name and proxy are not used.
    env: variables added to the environment of this process; values may contain {port} and {slot}.
    cwd: the command's working directory. logs: the folder for the output of replicas, one file
    each. start_s: the longest time in seconds that a replica may take to be ready, above 0 and at
    most 86,400.
    Raises ConfigError for a command that does not exist, if neither the command nor a value of env
    contains {port}, or for another value that is not valid.
    """

    command: Sequence[str]
    model: str
    trial: str = chat.API.path
    endpoint: Endpoint = Endpoint(base_url=f"http://{HOST}/v1")
    env: Mapping[str, str] = {}
    cwd: Path = Path()
    logs: Path = Path("logs")
    start_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError("command is empty", hint=_EXAMPLE)
        if not any("{port}" in part for part in (*self.command, *self.env.values())):
            raise ConfigError("command has no {port}", hint=_EXAMPLE)
        check_known("trial", self.trial, TRIALS)
        if not 0 < self.start_s <= 86_400:
            raise ConfigError(f"start_s must be above 0 and at most 86,400 s, not {self.start_s:g}")
        if not self.cwd.is_dir():
            raise ConfigError(
                f"cwd is not a folder: {self.cwd}", hint="choose a folder for the command to run in"
            )
        texts = (*self.command, *self.env, *self.env.values(), str(self.logs))
        if odd := [text for text in texts if "\0" in text]:
            raise ConfigError(f"{odd[0]!r} has a null character", hint="leave it out")
        for name in self.env:
            if not name or "=" in name:
                raise ConfigError(
                    f"env has a variable with the name {name!r}", hint='for example THREADS = "4"'
                )
        self._check_program()

    def _check_program(self) -> None:
        """Raises ConfigError if the program that the command names cannot be executed."""
        # Imported here, because shutil imports modules for archives.
        from shutil import which

        path = {**os.environ, **self.env}.get("PATH")
        name = self.command[0]
        # An absolute path: without a slash, `which` would search PATH.
        program = str(self.cwd.absolute() / name) if "/" in name else name
        if which(program, path=path) is not None:
            return
        if which(program, os.F_OK, path=path) is not None:
            raise ConfigError(f"command is not executable: {name}", hint=f"chmod +x {name}")
        raise ConfigError(
            f"command does not exist: {name}",
            hint="install it, or write its path; a shell command needs sh -c '...'",
        )


_EXAMPLE = 'for example command = "vllm serve MODEL --port {port}"'


class LocalLauncher:
    """Starts and stops replicas as processes on this machine; a Launcher."""

    def __init__(self, replica: LocalReplica) -> None:
        self._replica = replica
        self._running: dict[str, _Process] = {}
        self._logs: dict[Path, None] = {}  # the oldest first
        self._mask = Mask(_secrets(replica))
        self._intake = intake_of([replica.endpoint])

    async def start(self, name: str) -> Seat:
        """Starts a replica; returns its seat once it has answered.

        Raises RedlineError or OSError if it cannot be started or is not ready in time.
        """
        replica = self._replica
        # A process that ended too late for `stop` is still listed.
        taken = [one for one in self._running.values() if one.is_running]
        port = free_port({one.port for one in taken})
        slot = next(n for n in range(len(taken) + 1) if n not in {one.slot for one in taken})
        log = self._log(name)
        process = self._running[name] = _Process(replica, log, port, slot)
        endpoint = replace(
            replica.endpoint,
            base_url=f"http://{HOST}:{port}/v1",
            name=name,
            # A server on this machine is not behind a proxy.
            proxy="",
        )
        backend = ReplicaBackend(endpoint, process, Shared(intake=self._intake))
        try:
            await self._until_ready(process, backend)
        except BaseException:
            await backend.aclose()
            raise
        return replace(seat_of(endpoint), make=backend.join)

    async def stop(self, name: str) -> None:
        """Ends the replica and all its processes. Raises RedlineError if one does not exit."""
        process = self._running.get(name)
        if process is None:
            return
        await process.end()
        del self._running[name]

    def _log(self, name: str) -> Path:
        """Returns the path of the replica's log, and removes old logs.

        Raises RedlineError if the folder cannot be made, and OSError if a log cannot be removed.
        """
        folder = self._replica.logs
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RedlineError(
                f"its log folder {folder} cannot be created: {error.strerror}",
                hint="choose another folder with the setting logs",
            ) from error
        path = folder / f"{name}.log"
        self._logs.pop(path, None)
        running = {one.log for one in self._running.values()}
        ended = [log for log in self._logs if log not in running]
        for log in ended[:-_KEPT_LOGS]:
            del self._logs[log]
            log.unlink(missing_ok=True)
        self._logs[path] = None
        return path

    async def _until_ready(self, process: _Process, backend: ReplicaBackend) -> None:
        replica, until_s = self._replica, SYSTEM.now_s() + self._replica.start_s
        request = Request(body={"model": replica.model, **TRIALS[replica.trial]}, url=replica.trial)
        pause_s, last = _FIRST_PAUSE_S, "it did not listen on its port"
        while SYSTEM.now_s() < until_s:
            outcome = await process.unless_ended(backend.send(request, Call(deadline_s=until_s)))
            if outcome is None:
                raise self._failure(process, f"its command {process.end_text()}")
            error = outcome.error
            if error is None:
                if await asyncio.to_thread(is_listening, process.pid, process.port) is False:
                    raise self._failure(process, f"another process took its port, {process.port}")
                return
            last = self._reason(outcome, last)
            if isinstance(error, Final):
                raise self._failure(process, f"it refused a trial request: {last}")
            await process.unless_ended(asyncio.sleep(pause_s))
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
        raise self._failure(process, f"it was not ready within {replica.start_s:g} s: {last}")

    def _reason(self, outcome: Outcome, last: str) -> str:
        """Returns why a request failed, if it was sent to the replica; otherwise `last`."""
        error = outcome.error
        is_reached = any(attempt.was_sent for attempt in outcome.tried)
        if isinstance(error, CallError | NoEndpoint) and is_reached:
            return self._mask.text(error.what)
        return last

    def _failure(self, process: _Process, what: str) -> RedlineError:
        """Returns the error to raise, with the last lines of the replica's log."""
        lines = [
            printable(line)[:_LONGEST_LINE] for line in self._mask.text(process.tail()).split("\n")
        ]
        quoted = "".join(f"\n    {line}" for line in lines[-_QUOTED_LINES:] if line.strip())
        command = self._mask.text(shlex.join(process.command))
        return RedlineError(
            what,
            where=str(process.log),
            hint=f"its last lines were:{quoted}" if quoted else f"it wrote nothing: {command}",
        )


class _Process:
    """A guardian and the command below it. Raises OSError if it cannot be started."""

    def __init__(self, replica: LocalReplica, log: Path, port: int, slot: int) -> None:
        def filled(text: str) -> str:
            return text.replace("{port}", str(port)).replace("{slot}", str(slot))

        self.port = port
        self.slot = slot
        self.log = log
        self.command = [filled(part) for part in replica.command]
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        output = os.open(log, flags, 0o600)
        try:
            self._process = subprocess.Popen(
                guarded(self.command, GRACE_S),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=replica.cwd,
                env={**os.environ, **{name: filled(text) for name, text in replica.env.items()}},
                # Ctrl-C must reach only this process, which drains before it stops replicas.
                start_new_session=True,
            )
        finally:
            os.close(output)
        self._ended = asyncio.Future[Any]()
        # A daemon thread: neither the event loop nor the interpreter waits for it at exit.
        threading.Thread(target=self._watch, name=f"replica {port}", daemon=True).start()

    def _watch(self) -> None:
        self._process.wait()
        with suppress(RuntimeError):
            # The loop may be closed.
            self._ended.get_loop().call_soon_threadsafe(self._ended.set_result, None)

    @property
    def pid(self) -> int:
        """The process id of the guardian."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return not self._ended.done()

    def end_text(self) -> str:
        """Returns a text like `ended with status 1`."""
        status = self._process.returncode
        name = _SIGNALS.get((status or 0) - 128, "")
        return f"ended with status {status}{name and f' ({name})'}"

    async def unless_ended(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """Awaits `waiting`; returns its result, or None if the command ends first."""
        task = asyncio.create_task(waiting)
        try:
            await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() and self.is_running else None
        finally:
            await end_tasks(task)

    async def end(self) -> None:
        """Ends the command and its guardian. Raises RedlineError if a process is left."""
        assert self._process.stdin is not None
        # The guardian notices the end of its stdin.
        self._process.stdin.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), END_S)
        except TimeoutError:
            raise RedlineError(
                f"one of its processes did not exit within {END_S:g} s", where=str(self.log)
            ) from None

    def tail(self) -> str:
        """Returns the end of the log; "" if it cannot be read."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _QUOTED_BYTES))
                return file.read(_QUOTED_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            return ""


_SIGNALS = {number.value: number.name for number in signal.Signals}


class ReplicaBackend(HttpBackend):
    """The backend of a replica's endpoint, which is gone when the process has ended."""

    def __init__(self, endpoint: Endpoint, process: _Process, shared: Shared) -> None:
        self._process = process
        super().__init__(endpoint, shared=shared)

    def join(self, on_room: Callable[[], None]) -> ReplicaBackend:
        """Sets the callback for when this backend has room; returns this backend."""
        self.on_room = on_room
        return self

    def load(self, now_s: float, request: Request | None = None) -> Load:
        load = super().load(now_s, request)
        if self._process.is_running:
            return load
        return replace(load, state=Health.GONE, binds=f"its command {self._process.end_text()}")


def _secrets(replica: LocalReplica) -> Iterator[str]:
    """Yields the secrets that must not appear in an error that quotes a log or a command."""
    yield replica.endpoint.api_key or ""
    named = [*os.environ.items(), *replica.env.items(), *_flags(replica.command)]
    for name, value in [*named, *replica.endpoint.headers.items()]:
        if _SECRET_NAME.search(name) and not value.startswith(("/", "~")):
            yield value.rpartition(" ")[2]


def _flags(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the flags of a command line, each with its value."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            yield name, value if equals else following
