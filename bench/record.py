"""The parts that benchmarks share: processes and their costs, a server, and the file of figures.

A benchmark writes `bench/results/<name>.json`: the commit, the command, versions, settings, seeds,
raw figures and the duration. bench/report.py writes the figures of the benchmark pages in docs from
these files alone.
"""

from __future__ import annotations

import io
import json
import os
import platform
import pty
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PEERS = ROOT / ".venv-peers"
REDLINE = (sys.executable, "-m", "redline")
# The yardstick: its simulated provider serves all benchmarks, so that figures of different commits
# have the same server.
SIM_COMMIT = "4294e90"
# A client that takes longer than this has hung.
LONGEST_S = 1800


@dataclass(frozen=True)
class Finished:
    """A process that has ended with status 0. Times are seconds, stamps monotonic."""

    started_s: float
    ended_s: float
    cpu_s: float
    peak_rss_mb: float
    stdout: str

    @property
    def wall_s(self) -> float:
        return self.ended_s - self.started_s


def run_client(command: Sequence[str], folder: Path, *, on_terminal: bool = False) -> Finished:
    """What `command` cost, run to its end in `folder`.

    on_terminal: its stderr is a terminal, so that progress is drawn as a user sees it.
    Its CPU time is user and system time of the process itself, from wait4.
    Raises RuntimeError, with what it said, where it fails.
    """
    drain = _Drain(on_terminal=on_terminal)
    started_s = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=drain.fd,
        text=True,
    )
    drain.start()
    assert process.stdout is not None
    killer = threading.Timer(LONGEST_S, process.kill)
    killer.start()
    try:
        stdout = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        ended_s = time.monotonic()
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        killer.cancel()
        process.stdout.close()
        said = drain.finish()
    if process.returncode != 0:
        shown = shlex.join(command)
        raise RuntimeError(f"`{shown}` ended with {process.returncode}: {stdout}{said}")
    return Finished(
        started_s, ended_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, stdout
    )


class _Drain:
    """Reads what a process writes to stderr, through a pipe or a terminal, and keeps the end."""

    def __init__(self, *, on_terminal: bool) -> None:
        self._reader, self.fd = pty.openpty() if on_terminal else os.pipe()
        self._tail = b""
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        os.close(self.fd)
        self._thread.start()

    def finish(self) -> str:
        self._thread.join()
        os.close(self._reader)
        return self._tail.decode("utf-8", "replace")

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._reader, 65536)
            except OSError:
                # Linux ends a terminal whose other side is closed with EIO.
                return
            if not data:
                return
            self._tail = (self._tail + data)[-4000:]


def clean_environment() -> dict[str, str]:
    """This environment without what would change a client: keys, base URLs, proxies, and Python's
    own settings, of which some keep a client from caching its compiled code.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "PYTHON")) and not name.lower().endswith("_proxy")
    }
    # Any key will do for a server on loopback.
    return {**environment, "OPENAI_API_KEY": "bench-key", "TERM": "xterm-256color"}


class Server:
    """A server process whose first line on stdout is its URL."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.close()
            raise RuntimeError(f"`{shlex.join(command)}` did not start")

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        """User and system time so far, in seconds (proc(5), stat, fields 14 and 15)."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def serving(command: Sequence[str]) -> Iterator[Server]:
    """A server that runs inside the block."""
    server = Server(command)
    try:
        yield server
    finally:
        server.close()


def source_of(commit: str) -> Path:
    """The `src` of a commit of this checkout, extracted once."""
    folder = PEERS / f"redline-{commit}"
    if not folder.exists():
        git = ["git", "-C", str(ROOT), "archive", commit, "src"]
        archive = subprocess.run(git, check=True, capture_output=True).stdout
        PEERS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PEERS) as made:
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(Path(made) / "all", filter="data")
            try:
                (Path(made) / "all").rename(folder)
            except OSError:
                # Another process has extracted it meanwhile.
                if not folder.is_dir():
                    raise
    return folder / "src"


def sim(*flags: str) -> tuple[str, ...]:
    """The command of the simulated provider of `SIM_COMMIT`, on a free port."""
    start = f"import sys; sys.path.insert(0, {str(source_of(SIM_COMMIT))!r}); "
    start += "sys.argv[0] = 'redline'; from redline.cli import main; main()"
    return (sys.executable, "-c", start, "sim", "--port", "0", *flags)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for inputs and outputs, gone after the block."""
    with tempfile.TemporaryDirectory(prefix="redline-bench-") as folder:
        yield Path(folder)


def write_rows(path: Path, count: int, prompt_bytes: int = 1024) -> None:
    """`count` rows whose prompts differ and are `prompt_bytes` long."""
    filler = "the quick brown fox jumps over the lazy dog " * (prompt_bytes // 40 + 1)
    with path.open("w") as file:
        for number in range(count):
            prompt = f"{number} {filler}"[:prompt_bytes]
            file.write(json.dumps({"custom_id": f"row-{number}", "prompt": prompt}) + "\n")


def peer_python(name: str, *packages: str) -> Path:
    """The Python of a virtual environment that holds the newest `packages` and nothing else."""
    folder = PEERS / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--upgrade"]
    done = subprocess.run([*pip, *packages], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"pip cannot install {', '.join(packages)}: {done.stderr}")
    return python


def peer_versions(python: Path, *packages: str) -> dict[str, str]:
    """The versions of `packages` in that environment."""
    code = "import sys, json, importlib.metadata as m; print(json.dumps({n: m.version(n)"
    code += " for n in sys.argv[1:]}))"
    shown = subprocess.run(
        [python, "-c", code, *packages], check=True, capture_output=True, text=True
    )
    versions: dict[str, str] = json.loads(shown.stdout)
    return versions


def own_versions(*packages: str) -> dict[str, str]:
    """The versions of `packages` in this environment."""
    return {name: version(name) for name in packages}


@dataclass
class Record:
    """One benchmark's result file in the making; the clock starts now.

    settings: what was measured. seeds: of everything random.
    """

    name: str
    settings: Mapping[str, Any]
    seeds: Mapping[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    begun_s: float = field(default_factory=time.monotonic)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])

    def write(self, folder: Path, summary: Mapping[str, Any], raw: object) -> Path:
        """The file, written. summary: figures for people; raw: every single measurement."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        whole = {
            "name": self.name,
            "commit": _git("rev-parse", "HEAD"),
            "src_differs_from_commit": bool(_git("status", "--porcelain", "--", "src")),
            "command": shlex.join(["python", *sys.argv]),
            "versions": {
                "python": platform.python_version(),
                "redline": version("redline"),
                "platform": f"{platform.system()} {platform.machine()}",
                "cpus": str(os.cpu_count()),
                **self.versions,
            },
            "settings": self.settings,
            "seeds": self.seeds,
            "load_before": round(self.load_before, 2),
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "duration_s": round(time.monotonic() - self.begun_s, 1),
            "summary": summary,
            "raw": raw,
        }
        path.write_text(json.dumps(whole, indent=1) + "\n")
        return path


def _git(*words: str) -> str:
    shown = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return shown.stdout.strip()
