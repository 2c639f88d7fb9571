"""The cost of a gateway per request and per streamed token: redline, its peers and a bare proxy.

    python bench/gateway.py [--rounds 5] [--gateways redline,sglang-router,...] [--quick]

Each gateway forwards to two upstreams and has a core of its own; the client and the upstreams, both
compiled (bench/peers/load.c and mock.c), share another core. The gateways take turns in each round,
with these loads:

  whole answers   bodies of 1, 4 and 100 KB, 100 connections, at most half as many requests per
                  second as the client and the upstreams can do without a gateway
  streams         a token every 20 ms; as many streams, up to 500, as keep the client and the
                  upstreams below 60 % of their core, and gaps below 25 ms at p99, without a gateway
  latency         1 KB, at the lower of 200 requests per second and half of the gateway's maximum

Figures are CPU seconds of the gateway, in all its processes and threads, per 1,000 requests and per
1,000 tokens, and latencies next to those of the same load without a gateway. redline has 100 keys
of 100 tenants, each with limits of requests, tokens, concurrency and money that do not bind, limits
of its endpoints, p2c and its metrics. The upstream checks that each request is complete, has the
upstream's own key and lacks the client's. At the end, redline's /metrics and the calls, tokens and
money of all tenants must agree with the counts of the upstreams, and each key must have been used.
Four more tenants have a limit of requests, of tokens, of money and of concurrency, and no more of
their calls than their limits allow may reach the upstreams.

Exits with status 1 if redline takes more than 1.2 times the CPU of sglang-router or more than a
fiftieth of the LiteLLM proxy's, if it adds more than 10 ms to the p99 of gaps or more than 5 ms to
that of latencies, or if an upstream gets less than 0.8 of an equal share of the calls that overlap.
If most calls do not overlap, one of two idle upstreams may get all of them: p2c chooses the one
with the lower recent latency.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record

from redline.serve.keys import add_key

GATEWAYS = ("redline", "sglang-router", "litellm", "nginx", "bare")
JUDGED, PEER, SLOW = "redline", "sglang-router", "litellm"
DIRECT = "direct"
MOST_RATIO, LEAST_TIMES_LITELLM = 1.2, 50
MOST_GAP_MS, MOST_LATENCY_MS = 10.0, 5.0
MOST_BUSY, MOST_DIRECT_GAP_MS = 0.6, 25.0
UPSTREAMS, UPSTREAM_KEY, PLAIN_KEY = 2, "upstream-key", "sk-client"
TOKENS, INTERVAL_US = 100, 20_000
BODIES = {"1 KB": 1024, "4 KB": 4096, "100 KB": 102_400}
STREAMS, LATENCY = "streams", "latency"
# Each connection has the key of one tenant, so that all of them are used.
CONNECTIONS, LATENCY_CONNECTIONS = 100, 100
STREAM_COUNTS = (500, 400, 300, 200, 100, 50)
# The LiteLLM proxy passes on some hundred tokens a second.
SLOW_STREAMS = 8
KEYS = 100
# Dollars for a million tokens of input and of output.
INPUT_USD, OUTPUT_USD = 1, 2
# Calls that each of further tenants may make, and that it tries.
BOUND, BOUND_TRIES = 10, 15
BOUND_BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": TOKENS,
    "messages": [{"role": "user", "content": "hello"}],
}
# What such a call uses: mock.c counts a token for four bytes.
BOUND_INPUT = len(json.dumps(BOUND_BODY)) // 4
BOUND_USD = (BOUND_INPUT * INPUT_USD + TOKENS * OUTPUT_USD) / 1e6
# Streams that one more tenant may have at a time, and that it tries.
BOUND_STREAMS, BOUND_STREAM_TRIES = 2, 6
# Their limits. Half a call above what BOUND calls use: one more would need more.
BOUNDS = {
    "requests": f'requests = ["{BOUND}/1h"]',
    "tokens": f'tokens = ["{round((BOUND + 0.5) * (BOUND_INPUT + TOKENS))}/1h"]',
    "money": f'money_per_day = "${(BOUND + 0.5) * BOUND_USD:.7f}"',
    "concurrency": f"concurrency = {BOUND_STREAMS}",
}
# Of the calls that an equal part would be, each upstream gets at least this, if calls overlap.
LEAST_PART = 0.8
MOST_RATE = 200.0
LOAD_CORE, GATEWAY_CORE = 0, 1
STARTS_WITHIN_S = 180.0
HERE = Path(__file__).resolve().parent
BUILT = record.PEERS / "gateway"
PEER_PACKAGES = {PEER: "sglang-router", SLOW: "litellm[proxy]"}


@dataclass(frozen=True)
class Load:
    """What load.c is told. rate: requests a second, 0 for as many as are answered."""

    name: str
    connections: int
    seconds: float
    bytes: int = 1024
    rate: float = 0.0
    is_streamed: bool = False

    def words(self, port: int, keys: Path) -> list[str]:
        tokens = TOKENS if self.is_streamed else 0
        told = (port, keys, self.connections, self.seconds, self.bytes, self.rate, tokens)
        return pinned(LOAD_CORE, str(BUILT / "load"), *(str(each) for each in (*told, INTERVAL_US)))


def pinned(core: int, *command: str) -> list[str]:
    return ["taskset", "-c", str(core), *command]


def build() -> None:
    """Compiles the client and the upstreams."""
    BUILT.mkdir(parents=True, exist_ok=True)
    for name in ("mock", "load"):
        words = ["gcc", "-O2", "-Wall", "-o", str(BUILT / name), str(HERE / "peers" / f"{name}.c")]
        subprocess.run(words, check=True)


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: bytes = answer.read()
        return found


class Process:
    """A server of the benchmark with all its children, on one core."""

    def __init__(
        self, core: int, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                pinned(core, *command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**record.clean_environment(), **(env or {})},
                start_new_session=True,
            )

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def first_line(self) -> str:
        """Raises RuntimeError if it does not come in time."""
        end_s = time.monotonic() + STARTS_WITHIN_S
        while "\n" not in self.said():
            self.check(end_s)
        return self.said().partition("\n")[0]

    def check(self, end_s: float) -> None:
        """Waits a moment. Raises RuntimeError if it has ended, or has not started by `end_s`."""
        if self._process.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"{self._process.args} did not start: {self.said()[-2000:]}")
        time.sleep(0.1)

    def cpu_s(self) -> float:
        """User and system time of it and of its children so far."""
        return sum(_cpu_s(pid) for pid in _tree(self._process.pid))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            # Of the session that it was started in.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _tree(int(child))


def _cpu_s(pid: int) -> float:
    """See proc(5), stat, fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Upstreams:
    """mock.c, and what it has counted."""

    def __init__(self, folder: Path) -> None:
        words = (str(BUILT / "mock"), str(UPSTREAMS), UPSTREAM_KEY, str(TOKENS), str(INTERVAL_US))
        self.process = Process(LOAD_CORE, words, folder / "mock.log")
        self.ports = [int(port) for port in self.process.first_line().split()]

    def counters(self) -> list[Counter[str]]:
        """Of each upstream, since the start."""
        page = fetched(f"http://127.0.0.1:{self.ports[0]}/counters")
        return [Counter(each) for each in json.loads(page)]


@dataclass
class Gateway:
    """One that serves. ports: for whole answers and for streams. keys: a file of its clients' keys.

    counted: what the upstreams have counted of its calls.
    """

    name: str
    processes: list[Process]
    ports: tuple[int, int]
    keys: Path
    counted: list[Counter[str]]

    def port(self, load: Load) -> int:
        return self.ports[load.is_streamed]

    def cpu_s(self) -> float:
        return sum(process.cpu_s() for process in self.processes)


# How each is started.


def _redline(folder: Path, upstreams: Upstreams) -> tuple[list[Process], tuple[int, int], Path]:
    keys, secrets = folder / "keys.jsonl", folder / "secrets"
    tenants = [f"tenant-{number}" for number in range(KEYS)]
    secrets.write_text("".join(f"{add_key(keys, name)[1]}\n" for name in tenants))
    for name in (*BOUNDS, "admin"):
        (folder / name).write_text(add_key(keys, name)[1])
    limits = "[tenants.admin]\nadmin = true\n"
    limits += "".join(f"[tenants.{name}]\n{limit}\n" for name, limit in BOUNDS.items())
    endpoints = "".join(
        f'[endpoints.up-{number}]\nbase_url = "http://127.0.0.1:{port}/v1"\n'
        'api_key_env = "UPSTREAM_KEY"\nmodels = { m = "m" }\nconcurrency = 512\n'
        'requests = ["60000000/60s"]\ntokens = ["60000000000/60s"]\n'
        for number, port in enumerate(upstreams.ports)
    )
    limits += "".join(
        f'[tenants.{name}]\nrequests = ["6000000/60s"]\ntokens = ["6000000000/60s"]\n'
        'concurrency = 1000\nmoney_per_day = "$10000"\n'
        for name in tenants
    )
    file = folder / "redline.toml"
    named = ", ".join(f'"up-{number}"' for number in range(UPSTREAMS))
    file.write_text(
        f'[serve]\nendpoint = [{named}]\nbalance = "p2c"\nport = 0\nkeys = "{keys}"\n'
        f'state = "{folder / "state"}"\n[prices."m"]\n'
        f"input = {INPUT_USD}\noutput = {OUTPUT_USD}\n{endpoints}{limits}"
    )
    command = (*record.REDLINE, "serve", "--config", str(file))
    process = Process(GATEWAY_CORE, command, folder / "redline.log", {"UPSTREAM_KEY": UPSTREAM_KEY})
    port = int(process.first_line().removesuffix("/v1").rpartition(":")[2])
    return [process], (port, port), secrets


def _sglang_router(folder: Path, upstreams: Upstreams) -> tuple[list[Process], tuple[int, int]]:
    python, port = record.PEERS / PEER / "bin" / "python", free_port()
    workers = [f"http://127.0.0.1:{each}" for each in upstreams.ports]
    command = (
        *(str(python), "-m", "sglang_router.launch_router", "--host", "127.0.0.1"),
        *("--port", str(port), "--policy", "power_of_two", "--log-level", "warn"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
        *("--worker-urls", *workers),
    )
    return [Process(GATEWAY_CORE, command, folder / "router.log")], (port, port)


def _litellm(folder: Path, upstreams: Upstreams) -> tuple[list[Process], tuple[int, int]]:
    port, file = free_port(), folder / "litellm.yaml"
    models = [
        {
            "model_name": "m",
            "litellm_params": {
                "model": "openai/m",
                "api_base": f"http://127.0.0.1:{each}/v1",
                "api_key": UPSTREAM_KEY,
            },
        }
        for each in upstreams.ports
    ]
    # JSON is YAML.
    file.write_text(
        json.dumps({"model_list": models, "general_settings": {"master_key": PLAIN_KEY}})
    )
    script = record.PEERS / SLOW / "bin" / "litellm"
    command = (str(script), "--config", str(file), "--host", "127.0.0.1", "--port", str(port))
    # As its authors recommend for production; it would fetch its table of prices.
    env = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return [Process(GATEWAY_CORE, command, folder / "litellm.log", env)], (port, port)


def _nginx(folder: Path, upstreams: Upstreams) -> tuple[list[Process], tuple[int, int]]:
    port = free_port()
    servers = "".join(f"server 127.0.0.1:{each};" for each in upstreams.ports)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr error;"
        "events { worker_connections 8192; }"
        f"http {{ access_log off; {temporary} keepalive_requests 100000000;"
        "client_body_buffer_size 256k; client_max_body_size 32m; proxy_buffering off;"
        f"upstream up {{ random two least_conn; {servers} keepalive 1024;"
        "keepalive_requests 100000000; }"
        f"server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://up;"
        'proxy_http_version 1.1; proxy_set_header Connection "";'
        f'proxy_set_header Authorization "Bearer {UPSTREAM_KEY}"; }} }} }}'
    )
    command = (nginx_path(), "-p", str(folder), "-c", str(file), "-e", "stderr")
    return [Process(GATEWAY_CORE, command, folder / "nginx.log")], (port, port)


def nginx_path() -> str:
    # Debian has it where only root looks.
    return shutil.which("nginx") or "/usr/sbin/nginx"


def _bare(folder: Path, upstreams: Upstreams) -> tuple[list[Process], tuple[int, int]]:
    """The passthrough of bench/relay.py. It knows one upstream, and sends no key."""
    url = f"http://127.0.0.1:{upstreams.ports[0]}/v1"
    processes, ports = [], []
    for role in ("bare", "bare-streamed"):
        words = (sys.executable, str(HERE / "relay_processes.py"), role, url)
        process = Process(GATEWAY_CORE, words, folder / f"{role}.log")
        processes.append(process)
        ports.append(int(process.first_line().removesuffix("/v1").rpartition(":")[2]))
    return processes, (ports[0], ports[1])


STARTS = {PEER: _sglang_router, SLOW: _litellm, "nginx": _nginx, "bare": _bare}


@contextmanager
def serving(name: str, folder: Path, upstreams: Upstreams) -> Iterator[Gateway]:
    """The gateway, once it answers."""
    own = folder / name
    own.mkdir()
    keys = own / "key"
    if name == DIRECT:
        keys.write_text(f"{UPSTREAM_KEY}\n")
        port = upstreams.ports[0]
        yield Gateway(name, [], (port, port), keys, [])
        return
    if name == JUDGED:
        processes, ports, keys = _redline(own, upstreams)
    else:
        processes, ports = STARTS[name](own, upstreams)
        keys.write_text(f"{PLAIN_KEY}\n")
    try:
        gateway = Gateway(name, processes, ports, keys, [Counter() for _ in range(UPSTREAMS)])
        for port in set(ports):
            _await_answer(gateway, port, upstreams)
        yield gateway
    finally:
        for process in processes:
            process.close()


def _await_answer(gateway: Gateway, port: int, upstreams: Upstreams) -> None:
    """Returns once a call through the gateway is answered. Raises RuntimeError."""
    before = upstreams.counters()
    end_s = time.monotonic() + STARTS_WITHIN_S
    load = Load("one", connections=1, seconds=0.001)
    while subprocess.run(load.words(port, gateway.keys), capture_output=True).returncode:
        gateway.processes[0].check(end_s)
    _count(gateway, before, upstreams)


def _count(gateway: Gateway, before: list[Counter[str]], upstreams: Upstreams) -> Counter[str]:
    """Adds what the upstreams have counted since then to the gateway's; the sum of it."""
    found = Counter[str]()
    for number, (now, then) in enumerate(zip(upstreams.counters(), before, strict=True)):
        now.subtract(then)
        found.update(now)
        if gateway.counted:
            gateway.counted[number].update(now)
    return found


# What is measured.


def drive(gateway: Gateway, load: Load, upstreams: Upstreams) -> dict[str, Any]:
    """One load on one gateway. Raises RuntimeError for an answer or a request that is not whole."""
    is_judged = gateway.name == JUDGED
    callers = calls_of_tenants(gateway) if is_judged else Counter[str]()
    before, cpu_s, mock_s = upstreams.counters(), gateway.cpu_s(), upstreams.process.cpu_s()
    words = load.words(gateway.port(load), gateway.keys)
    done = subprocess.run(words, capture_output=True, text=True)
    cpu_s, mock_s = gateway.cpu_s() - cpu_s, upstreams.process.cpu_s() - mock_s
    if done.returncode:
        raise RuntimeError(f"{gateway.name}, {load.name}: {done.stdout}{done.stderr}")
    found = json.loads(done.stdout)
    counted = _count(gateway, before, upstreams)
    _check(gateway, load, found, counted)
    if is_judged:
        used = len(calls_of_tenants(gateway) - callers)
        # Streams begin one after the other, in the time that one takes.
        if used < min(KEYS, load.connections, found["requests"]):
            raise RuntimeError(f"{load.name}: {used} keys were used")
    units = found["tokens"] if load.is_streamed else found["requests"]
    wall_s = max(found["wall_s"], 0.001)
    return {
        "gateway": gateway.name,
        "load": load.name,
        "connections": load.connections,
        "requests": found["requests"],
        "tokens": found["tokens"],
        "cpu_s": round(cpu_s, 3),
        "cpu_s_per_1000": round(1000 * cpu_s / max(units, 1), 5),
        "per_s": round(units / wall_s, 1),
        "wall_s": wall_s,
        "gateway_busy": round(cpu_s / wall_s, 3),
        "load_busy": round((found["cpu_s"] + mock_s) / wall_s, 3),
        "upstreams": [
            now["calls"] - then["calls"]
            for now, then in zip(upstreams.counters(), before, strict=True)
        ],
        "latency_ms": found["latency_ms"],
        "gap_ms": found["gap_ms"],
    }


def _check(gateway: Gateway, load: Load, found: dict[str, Any], counted: Counter[str]) -> None:
    """Raises RuntimeError unless what was asked arrived, and as it should."""
    told = {"calls": found["requests"], "not_whole": 0}
    if load.is_streamed:
        told |= {"streams": found["requests"], "tokens": found["tokens"]}
    if gateway.name == JUDGED:
        # Byte for byte; the peers write bodies anew.
        told |= {"wrong_key": 0, "client_key": 0, "body_bytes": found["body_bytes"]}
    wrong = {name: (counted[name], right) for name, right in told.items() if counted[name] != right}
    if wrong:
        raise RuntimeError(
            f"{gateway.name}, {load.name}: the upstreams counted, and should have: {wrong}"
        )


def check_metrics(gateway: Gateway) -> dict[str, Any]:
    """What redline's /metrics say, beside the upstreams' counts. Raises RuntimeError."""
    page = fetched(f"http://127.0.0.1:{gateway.ports[0]}/metrics").decode()
    calls = [each["calls"] for each in gateway.counted]
    right: dict[str, float] = {
        "redline_serve_requests_total": sum(calls),
        'redline_serve_tokens_total{kind="input"}': sum(
            each["prompt_tokens"] for each in gateway.counted
        ),
        'redline_serve_tokens_total{kind="output"}': TOKENS * sum(calls),
        **{
            f'redline_requests_total{{endpoint="up-{number}"}}': count
            for number, count in enumerate(calls)
        },
    }
    found = {}
    for series in right:
        name, _, label = series.rstrip("}").partition("{")
        lines = re.findall(rf"^{name}(?:\{{(.*)\}})? ([\d.e+]+)$", page, re.MULTILINE)
        found[series] = sum(float(value) for labels, value in lines if label in labels)
    if found != right:
        raise RuntimeError(f"/metrics says {found}, and the upstreams counted {right}")
    return found


def tenants_of(gateway: Gateway) -> list[dict[str, Any]]:
    """Redline's tenants that have made calls, as its state says."""
    key = (gateway.keys.parent / "admin").read_text()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{gateway.ports[0]}/status", headers={"Authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["tenants"]
        return found


def calls_of_tenants(gateway: Gateway) -> Counter[str]:
    return Counter({one["name"]: one["calls"] for one in tenants_of(gateway)})


def check_tenants(gateway: Gateway) -> dict[str, Any]:
    """What redline's tenants have used, beside the upstreams' counts. Raises RuntimeError."""
    counted = sum(gateway.counted, Counter[str]())
    written = TOKENS * counted["calls"]
    cost_usd = (counted["prompt_tokens"] * INPUT_USD + written * OUTPUT_USD) / 1e6
    tenants = tenants_of(gateway)
    found = {
        "calls": sum(one["calls"] for one in tenants),
        "tokens": sum(one["tokens"] for one in tenants),
        "spent_usd": math.fsum(one["spent_usd"] or 0.0 for one in tenants),
    }
    right = {
        "calls": counted["calls"],
        "tokens": counted["prompt_tokens"] + written,
        "spent_usd": cost_usd,
    }
    if any(not math.isclose(found[name], right[name], rel_tol=1e-9) for name in right):
        raise RuntimeError(f"the tenants have used {found}, and the upstreams counted {right}")
    return found


def check_limit(gateway: Gateway, upstreams: Upstreams, kind: str) -> None:
    """Raises RuntimeError unless as many calls of a bound tenant arrive as it may make."""
    is_stream = kind == "concurrency"
    most, tries = (BOUND_STREAMS, BOUND_STREAM_TRIES) if is_stream else (BOUND, BOUND_TRIES)
    body = {**BOUND_BODY, "stream": True} if is_stream else BOUND_BODY
    asked = urllib.request.Request(
        f"http://127.0.0.1:{gateway.ports[0]}/v1/chat/completions",
        json.dumps(body).encode(),
        {
            "Authorization": f"Bearer {(gateway.keys.parent / kind).read_text()}",
            "Content-Type": "application/json",
        },
    )

    def ask(_: int) -> int:
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    before = sum(upstreams.counters(), Counter[str]())
    with ThreadPoolExecutor(tries if is_stream else 1) as threads:
        statuses = Counter(threads.map(ask, range(tries)))
    arrived = sum(upstreams.counters(), Counter[str]())
    arrived.subtract(before)
    if (arrived["calls"], statuses) != (most, {200: most, 429: tries - most}):
        raise RuntimeError(f"{most} calls by {BOUNDS[kind]}: {arrived['calls']} came, {statuses}")
    [own] = [one for one in tenants_of(gateway) if one["name"] == kind]
    tokens = arrived["prompt_tokens"] + TOKENS * most
    cost_usd = (arrived["prompt_tokens"] * INPUT_USD + TOKENS * most * OUTPUT_USD) / 1e6
    right = {"calls": tries, "refused": tries - most, "tokens": tokens, "spent_usd": cost_usd}
    if any(not math.isclose(own[name], right[name], rel_tol=1e-9) for name in right):
        raise RuntimeError(f"{kind}: {own}, and the upstreams counted {arrived}")


def loads_of(
    gateway: Gateway, rates: Mapping[str, float], streams: int, seconds: float
) -> list[Load]:
    """Of a round."""
    wholes = [Load(name, CONNECTIONS, seconds, size, rates[name]) for name, size in BODIES.items()]
    count = min(streams, SLOW_STREAMS) if gateway.name == SLOW else streams
    return [*wholes, Load(STREAMS, count, 2 * seconds, is_streamed=True)]


def calibrated(
    direct: Gateway, upstreams: Upstreams, seconds: float, *, needs_even_gaps: bool
) -> tuple[dict[str, float], int]:
    """Rates of whole answers by their bodies, and how many streams there are. Raises RuntimeError.

    needs_even_gaps: otherwise their p99 may be above the bound: a busy machine can tell CPU time.
    """
    rates = {}
    for name, size in BODIES.items():
        most = drive(direct, Load(name, CONNECTIONS, seconds, size), upstreams)
        rates[name] = round(most["per_s"] / 2)
    for count in STREAM_COUNTS:
        found = drive(direct, Load(STREAMS, count, seconds, is_streamed=True), upstreams)
        told = f"{found['load_busy']:.0%} busy, gaps {found['gap_ms']['p99']} ms at p99"
        print(f"direct: {count} streams: {told}", flush=True)
        is_even = found["gap_ms"]["p99"] < MOST_DIRECT_GAP_MS
        if found["load_busy"] < MOST_BUSY and (is_even or not needs_even_gaps):
            return rates, count
    raise RuntimeError("the machine is too busy to measure the gaps of streams")


def one_round(
    gateways: Sequence[Gateway],
    upstreams: Upstreams,
    shape: tuple[Mapping[str, float], int],
    seconds: float,
) -> list[dict[str, Any]]:
    """All loads on all gateways; what they add to latencies beside what there is without them."""
    direct, *proxies = gateways
    rates, streams = shape
    runs = [drive(direct, Load(STREAMS, streams, 2 * seconds, is_streamed=True), upstreams)]
    for gateway in proxies:
        ceiling = 0.0
        for load in loads_of(gateway, rates, streams, seconds):
            runs.append(drive(gateway, load, upstreams))
            show_run(runs[-1])
            if load.name == "1 KB":
                ceiling = runs[-1]["per_s"]
        rate = min(MOST_RATE, ceiling / 2)
        load = Load(LATENCY, LATENCY_CONNECTIONS, 3 * seconds, rate=rate)
        beside = drive(direct, load, upstreams)
        run = drive(gateway, load, upstreams)
        run["added_ms_p99"] = round(run["latency_ms"]["p99"] - beside["latency_ms"]["p99"], 3)
        run["direct_ms_p99"] = beside["latency_ms"]["p99"]
        runs.append(run)
        show_run(run)
    return runs


def show_run(run: Mapping[str, Any]) -> None:
    told = f"{run['cpu_s_per_1000']:.4f} CPU s per 1,000, {run['per_s']:,.0f}/s"
    times = run["gap_ms"] if run["gap_ms"]["count"] else run["latency_ms"]
    told += f", gateway {run['gateway_busy']:.0%}, load {run['load_busy']:.0%}"
    print(f"{run['gateway']:14} {run['load']:8} {told}, p99 {times['p99']:.1f} ms", flush=True)


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, by load and gateway; a ratio is that of redline in its round."""
    summary: dict[str, Any] = {}
    for load in dict.fromkeys(run["load"] for run in runs):
        rows = summary[load] = {}
        each = {
            name: [run for run in runs if (run["gateway"], run["load"]) == (name, load)]
            for name in dict.fromkeys(run["gateway"] for run in runs)
        }
        for name, own in each.items():
            if not own:
                continue
            row = rows[name] = {
                key: round(statistics.median(run[key] for run in own), 4)
                for key in ("cpu_s_per_1000", "per_s", "gateway_busy", "load_busy")
            }
            row["connections"] = own[0]["connections"]
            kind = "gap_ms" if load == STREAMS else "latency_ms"
            row["p99_ms"] = round(statistics.median(run[kind]["p99"] for run in own), 3)
            if load == LATENCY:
                row["added_ms"] = round(statistics.median(run["added_ms_p99"] for run in own), 3)
            elif load == STREAMS and each.get(DIRECT):
                added = [
                    run["gap_ms"]["p99"] - beside["gap_ms"]["p99"]
                    for run, beside in zip(own, each[DIRECT], strict=True)
                ]
                row["added_ms"] = round(statistics.median(added), 3)
            base = each.get(JUDGED)
            if base and name not in (DIRECT, JUDGED):
                ratios = [
                    one["cpu_s_per_1000"] / max(run["cpu_s_per_1000"], 1e-9)
                    for one, run in zip(base, own, strict=True)
                ]
                row["redline_ratio"] = round(statistics.median(ratios), 4)
                row["redline_ratio_min"] = round(min(ratios), 4)
                row["redline_ratio_max"] = round(max(ratios), 4)
    return summary


def least_part(runs: Sequence[Mapping[str, Any]]) -> float:
    """Of an equal part of redline's calls that overlap, what the upstream with the fewest got."""
    calls = [
        run["upstreams"] for run in runs if run["gateway"] == JUDGED and run["load"] != LATENCY
    ]
    each = [sum(of) for of in zip(*calls, strict=True)]
    return round(UPSTREAMS * min(each) / sum(each), 3)


def bars(summary: Mapping[str, Any], part: float | None) -> list[tuple[str, bool]]:
    """What redline is held to, in words, and whether it is met. part: see least_part."""
    found = []
    if part is not None:
        text = f"p2c: an upstream got {part:.2f} of an equal part, at least {LEAST_PART}"
        found.append((text, part >= LEAST_PART))
    for load, rows in summary.items():
        if load != LATENCY and PEER in rows and JUDGED in rows:
            ratio = rows[PEER]["redline_ratio"]
            text = f"{load}: {ratio:.2f} times the CPU of {PEER}, at most {MOST_RATIO}"
            found.append((text, ratio <= MOST_RATIO))
        if load != LATENCY and SLOW in rows and JUDGED in rows:
            times = 1 / rows[SLOW]["redline_ratio"]
            text = f"{load}: {SLOW} takes {times:.0f} times as much, at least {LEAST_TIMES_LITELLM}"
            found.append((text, times >= LEAST_TIMES_LITELLM))
    for load, most_ms in ((STREAMS, MOST_GAP_MS), (LATENCY, MOST_LATENCY_MS)):
        if "added_ms" in summary.get(load, {}).get(JUDGED, {}):
            added_ms = summary[load][JUDGED]["added_ms"]
            text = f"{load}: p99 {added_ms:+.1f} ms over direct, at most +{most_ms:g} ms"
            found.append((text, added_ms <= most_ms))
    return found


def show(summary: Mapping[str, Any]) -> str:
    """The summary for a terminal."""
    lines = []
    for load, rows in summary.items():
        unit = "tokens" if load == STREAMS else "requests"
        lines.append(f"\n{load}: CPU seconds per 1,000 {unit}")
        for name, row in rows.items():
            own = f"{name:14} {row['cpu_s_per_1000']:9.4f} {row['per_s']:10,.0f}/s"
            own += f" p99 {row['p99_ms']:8.1f} ms, load {row['load_busy']:4.0%}"
            ratio = row.get("redline_ratio")
            lines.append(own + (f", redline takes {ratio:.3f} times" if ratio else ""))
    return "\n".join(lines)


def missing(names: Sequence[str]) -> str:
    """What is to be installed first; empty if nothing is."""
    tools = {"gcc": "gcc", "taskset": "util-linux"}
    lacking = [package for tool, package in tools.items() if shutil.which(tool) is None]
    if "nginx" in names and not Path(nginx_path()).exists():
        lacking.append("nginx-light")
    if (os.cpu_count() or 1) < 2:
        return "this needs two cores"
    return f"apt-get install {' '.join(lacking)}" if lacking else ""


def versions_of(names: Sequence[str]) -> dict[str, str]:
    """Of the peers, in their newest releases, and of what else is measured with."""
    found = record.own_versions("httptools", "uvloop", "msgspec")
    for name in names:
        if name in PEER_PACKAGES:
            package = PEER_PACKAGES[name]
            python = record.peer_python(name, package)
            found |= record.peer_versions(python, package.partition("[")[0])
    for tool, flag in (("nginx", "-v"), ("gcc", "-dumpfullversion")):
        if tool == "gcc" or tool in names:
            path = nginx_path() if tool == "nginx" else tool
            shown = subprocess.run([path, flag], capture_output=True, text=True, check=True)
            found[tool] = (shown.stdout + shown.stderr).strip().rpartition("/")[2]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--gateways", default=",".join(GATEWAYS))
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    parser.add_argument(
        "--quick", action="store_true", help="one short round, on any machine and without a record"
    )
    given = parser.parse_args()
    names = given.gateways.split(",")
    if unknown := [name for name in names if name not in GATEWAYS]:
        parser.error(f"no such gateway: {unknown[0]}")
    if lacking := missing(names):
        print(lacking, file=sys.stderr)
        return 2
    rounds, seconds = (1, 1.5) if given.quick else (given.rounds, given.seconds)
    settings = {
        "rounds": rounds,
        "seconds": seconds,
        "upstreams": UPSTREAMS,
        "connections": CONNECTIONS,
        "tokens_per_stream": TOKENS,
        "interval_us": INTERVAL_US,
        "keys": KEYS,
        "cores": {"gateway": GATEWAY_CORE, "client and upstreams": LOAD_CORE},
    }
    build()
    result = record.Record("gateway", settings, versions=versions_of(names))
    runs: list[dict[str, Any]] = []
    with record.scratch() as folder, ExitStack() as stack:
        upstreams = Upstreams(folder)
        stack.callback(upstreams.process.close)
        gateways = [
            stack.enter_context(serving(name, folder, upstreams)) for name in (DIRECT, *names)
        ]
        for gateway in gateways[1:]:
            # What is compiled, connected and learned at the beginning is not measured.
            for is_streamed in (False, True):
                warm = Load("warm", SLOW_STREAMS, seconds, is_streamed=is_streamed)
                drive(gateway, warm, upstreams)
        shape = calibrated(gateways[0], upstreams, seconds, needs_even_gaps=not given.quick)
        settings["rates"], settings["streams"] = shape
        for number in range(rounds):
            # The order changes, so that none is always the first.
            turn = [gateways[0], *gateways[1:][:: -1 if number % 2 else 1]]
            found = one_round(turn, upstreams, shape, seconds)
            runs += [{"round": number + 1, **run} for run in found]
        own = [gateway for gateway in gateways if gateway.name == JUDGED]
        metrics: dict[str, Any] = {}
        for gateway in own:
            metrics = {**check_metrics(gateway), "tenants": check_tenants(gateway)}
            for kind in BOUNDS:
                check_limit(gateway, upstreams, kind)
    summary = summarize(runs)
    print(show(summary))
    held = bars(summary, least_part(runs) if own else None)
    for text, is_met in held:
        print(f"{'met   ' if is_met else 'MISSED'} {text}")
    if not given.quick:
        whole = {"loads": summary, "bars": dict(held), "metrics": metrics}
        print(f"written: {result.write(given.results, whole, runs)}")
    return int(not all(is_met for _, is_met in held))


if __name__ == "__main__":
    sys.exit(main())
