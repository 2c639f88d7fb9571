"""The public surface of redline as sorted lines: python bench/inventory.py [OLD [NEW]].

Without an argument, it describes this checkout; with one argument, that commit. With two, it prints
the differences between them, and exits with status 1 if there are any; `.` is this checkout. A
change that only moves and renames modules shows no difference. It uses public entry points alone:
the command line, the public modules, small jobs against `redline sim` for the files, and requests
to the servers for their endpoints; environment variables and error kinds are read from the source.
It writes no record. --parts selects the parts to describe; the jobs and the engine take a minute
each.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import record
from versions import checked_out

PARTS = ("surface", "refusals", "jobs", "engine", "source")
ROWS = [
    *({"custom_id": f"r{n}", "text": f"Ticket {n}.", "gold": f"{n}"} for n in range(4)),
    {"text": "Without a name.", "gold": "5"},
]
# Each brings its request; one is refused.
REQUESTS = [
    {"custom_id": "messages", "messages": [{"role": "user", "content": "one"}]},
    {"custom_id": "cut", "prompt": "two", "max_tokens": 1},
    {"custom_id": "refused", "prompt": "three", "max_tokens": 0},
    {"custom_id": "vector", "url": "/v1/embeddings", "body": {"model": "m", "input": "four"}},
    {"custom_id": "response", "url": "/v1/responses", "body": {"model": "m", "input": "five"}},
]
TASK = 'prompt = "Say {{ text }}"\ngold = "gold"\nmetric = "regex"\npattern = "(\\\\d)"\n'
INPUTS = {
    "in.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS) + "no JSON\n",
    "requests.jsonl": "".join(json.dumps(row) + "\n" for row in REQUESTS),
    "labels.json": '["bug", "question"]',
    "task.toml": TASK,
}
ASK = ["--prompt", "Classify: {{ text }}", "--model", "m", "-o", "out.jsonl"]
TAG = ["tag", "in.jsonl", "--schema", "labels.json", "--model", "m", "-o", "out.jsonl"]
EVAL = ["eval", "--task", "task.toml", "--data", "in.jsonl", "--model", "m", "-o", "out.jsonl"]
SYNTH = ["synth", "--count", "3", "--model", "m", "--vary", "topic=tea,rain", "-o", "out.jsonl"]
JSON = ["--log", "json"]
WAITING = ["--via", "batch", "--deadline", "0.5"]
# Nothing listens there; that is noticed, and reported as progress.
DOWN = ["--base-url", "http://127.0.0.1:1/v1", "--deadline", "2"]
# Each runs in a folder of its own.
JOBS = {
    "own": [["run", "requests.jsonl", "--model", "m", "-o", "out.jsonl", *JSON]],
    "json": [["run", "in.jsonl", *ASK, *JSON], ["verify", "out.jsonl"], ["repair", "out.jsonl"]],
    "text": [["run", "in.jsonl", *ASK], ["run", "in.jsonl", *ASK, "--retry-failed", "--ordered"]],
    "plan": [["run", "in.jsonl", *ASK, "--dry-run"]],
    "stdout": [["run", "in.jsonl", *ASK[:-2]], ["run", "in.jsonl", *ASK[:-2], *JSON]],
    "whole": [["run", "in.jsonl", *ASK, "--raw", "--keep-input", "--rps", "1000", "--tpm", "1m"]],
    "cached": [["run", "in.jsonl", *ASK, *JSON, "--cache-dir", "kept", "--cache-sampled"]] * 2,
    "bounded": [["run", "in.jsonl", *ASK, *JSON, "--budget-tokens", "10k", "--max-tokens", "9"]],
    "shared": [["run", "in.jsonl", *ASK, *JSON, "--rps", "1000", "--share", "shared.limits"]],
    "limited": [["run", "in.jsonl", *ASK, *JSON, "--rate", "auto"]],
    "format": [["run", "in.jsonl", *ASK, "--format", "batch", *JSON]],
    "batched": [["run", "in.jsonl", *ASK, "--via", "batch", *JSON]],
    "waiting": [["run", "in.jsonl", *ASK, *WAITING, *JSON]],
    "down": [["run", "in.jsonl", *ASK, *DOWN, *JSON]],
    "eval": [[*EVAL, *JSON], [*EVAL, "--samples", "2", "--temperature", "1", "--restart"]],
    "tag": [[*TAG, "--gold", "gold", "--export", "out.csv"], [*TAG, *JSON]],
    "synth": [[*SYNTH, "--prompt", "Tell {{ n }} of {{ topic }}."]],
}
# Flags of the servers of those that need one of their own.
SERVERS = {"limited": ["--requests", "1000/1s"], "waiting": ["--batch-latency", "600"]}
# What a server may be asked, beside what the source names.
PATHS = [
    *("/", "/health", "/healthz", "/metrics", "/v1", "/v1/batches", "/v1/chat/completions"),
    *("/v1/completions", "/v1/embeddings", "/v1/files", "/v1/models", "/v1/responses"),
    *("/sim/faults", "/sim/limits", "/sim/requests", "/sim/stats"),
    *("/v1/messages", "/tokenize", "/version"),
]
MESSAGES = [{"role": "user", "content": "one two"}]
BODIES = {
    "/v1/chat/completions": {"model": "m", "messages": MESSAGES, "max_tokens": 3},
    "/v1/completions": {"model": "m", "prompt": "one two", "max_tokens": 3},
    "/v1/embeddings": {"model": "m", "input": "one two"},
    "/v1/responses": {"model": "m", "input": "one two", "max_output_tokens": 16},
}
MODEL = """
import sys
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
words = {word: at for at, word in enumerate(["<s>", "</s>", "<unk>", "one", "two", "three"])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
    chat_template="{% for m in messages %}{{ m.content }} {% endfor %}",
).save_pretrained(sys.argv[1])
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(
    vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
    bos_token_id=0, eos_token_id=1,
)).save_pretrained(sys.argv[1])
"""


def environment(source: Path, home: Path) -> dict[str, str]:
    """That of a user without settings, for the redline of `source`."""
    own = record.clean_environment() | {"PYTHONPATH": str(source), "HOME": str(home)}
    own |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "XDG_CACHE_HOME": str(home / "user")}
    return own


def redline(source: Path, folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*record.REDLINE, *arguments],
        cwd=folder,
        env=environment(source, folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@contextmanager
def serving(source: Path, folder: Path, arguments: list[str]) -> Iterator[str]:
    """The base URL of `redline sim` or `redline engine`."""
    with subprocess.Popen(
        [*record.REDLINE, *arguments],
        cwd=folder,
        env=environment(source, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url, f"no URL from redline {' '.join(arguments)}"
            yield url
        finally:
            process.send_signal(signal.SIGINT)


def surface(source: Path, folder: Path, what: str = "surface") -> list[str]:
    """Commands, settings and the Python API, or refusals, from a process of that redline."""
    script = Path(__file__).with_name("surface.py")
    shown = subprocess.run(
        [sys.executable, script, what],
        cwd=folder,
        env=environment(source, folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert not shown.returncode, shown.stderr
    return shown.stdout.splitlines()


class Shape:
    """The fields of some JSON values, by path, each with the types that it has had."""

    def __init__(self) -> None:
        self._types: dict[str, set[str]] = defaultdict(set)

    def add(self, value: Any, path: str = "") -> None:
        if isinstance(value, dict) and value:
            for name, each in value.items():
                self.add(each, f"{path}.{neutral(name)}")
        elif isinstance(value, list) and value:
            for each in value:
                self.add(each, f"{path}[]")
        else:
            kinds = {float: "number", int: "number", str: "text", type(None): "null"}
            self._types[path].add(kinds.get(type(value), type(value).__name__))

    def lines(self, prefix: str) -> Iterator[str]:
        for path, kinds in sorted(self._types.items()):
            yield f"{prefix} {path.lstrip('.') or '(whole)'}: {' or '.join(sorted(kinds))}"


def neutral(text: str) -> str:
    """Text without what differs between two runs: numbers and hashes."""
    text = re.sub(r"(?<![0-9a-f])(?=[0-9a-f]*\d)[0-9a-f]{8,}(?![0-9a-f])", "HASH", text)
    return re.sub(r"\d+(?:[.,]\d+)*", "N", text)


def text_lines(prefix: str, text: str) -> Iterator[str]:
    """Lines of JSON as the fields of each event; others as they are, without their numbers."""
    events: dict[str, Shape] = defaultdict(Shape)
    others = set()
    for line in text.splitlines():
        try:
            value, end = json.JSONDecoder().raw_decode(line)
        except ValueError:
            value, end = None, 0
        if isinstance(value, dict):
            rest = neutral(line[end:].strip())
            # `at` is the name of a moment in some files, and a time in others.
            kind = next((value[k] for k in ("event", "at") if isinstance(value.get(k), str)), "")
            events[f"{neutral(kind)} {rest}".strip()].add(value)
        else:
            others.add(f"{prefix}| {neutral(line)}".rstrip())
    for kind, shape in sorted(events.items()):
        yield from shape.lines(f"{prefix} {kind}".rstrip())
    yield from sorted(others)


def file_lines(prefix: str, path: Path) -> Iterator[str]:
    """What a file holds: its tables, its fields, its text, or its size if it is none of these."""
    data = path.read_bytes()
    if data.startswith(b"SQLite format 3"):
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        for (statement,) in database.execute("SELECT sql FROM sqlite_master WHERE sql <> ''"):
            yield f"{prefix}: {' '.join(statement.split())}"
        database.close()
        return
    if b"\0" in data:
        yield f"{prefix}: {len(data)} bytes, begins {data[:8]!r}"
        return
    try:
        value = json.loads(data)
    except ValueError:
        yield from text_lines(f"{prefix}:", data.decode())
        return
    shape = Shape()
    shape.add(value)
    yield from shape.lines(f"{prefix}:")


def job_lines(source: Path, folder: Path, name: str, url: str) -> Iterator[str]:
    """What the commands of a job print and leave."""
    home = folder / name
    home.mkdir()
    for path, text in INPUTS.items():
        (home / path).write_text(text)
    for at, arguments in enumerate(JOBS[name], 1):
        is_asking = arguments[0] not in ("verify", "repair") and "--base-url" not in arguments
        done = redline(source, home, [*arguments, *(["--base-url", url] * is_asking)])
        yield f"job {name} {at}: status {done.returncode}"
        for stream, said in (("stdout", done.stdout), ("stderr", done.stderr)):
            text = said.replace(url, "URL").replace(urlsplit(url).netloc, "HOST")
            # Which of several notices is on the way just then is chance.
            text = re.sub(r'"notices":\{[^}]*\}', '"notices":{}', text)
            if name != "down":
                # How long it took decides whether a line of progress is printed.
                text = re.sub(r"(?m)^.*(?:rows/s,|\"event\":\"progress\").*\n", "", text)
            yield from text_lines(f"job {name} {at} {stream}", text.replace(str(home), "HERE"))
    for path in sorted(home.rglob("*")):
        shown = path.relative_to(home).as_posix()
        if path.is_file() and shown not in INPUTS:
            yield from file_lines(f"file {name} {neutral(shown)}", path)


def asked(url: str, method: str, path: str, body: Any = None) -> tuple[int, str, bytes]:
    """Status, content type and body of one request."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        connection.request(method, path, data, headers)
        reply = connection.getresponse()
        kind = (reply.getheader("content-type") or "").partition(";")[0]
        return reply.status, kind, reply.read()
    finally:
        connection.close()


def endpoint_lines(name: str, url: str, paths: Iterable[str]) -> Iterator[str]:
    """Which of the paths a server knows, by which methods, and what it answers."""
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        for path in sorted(paths):
            body = BODIES.get(path) if method == "POST" else None
            status, kind, data = asked(url, method, path, body)
            if status != 404:
                prefix = f"http {name} {method} {path}: {status} {kind}"
                yield from reply_lines(prefix, kind if status != 405 else "", data)
            if method == "POST" and body is not None and status == 200 and "embed" not in path:
                _, kind, data = asked(url, method, path, body | {"stream": True})
                yield from reply_lines(f"http {name} {method} {path} streamed: {kind}", kind, data)


def reply_lines(prefix: str, kind: str, data: bytes) -> Iterator[str]:
    yield prefix
    if kind == "application/json" and data:
        shape = Shape()
        shape.add(json.loads(data))
        yield from shape.lines(prefix)
    elif kind == "text/event-stream":
        shape = Shape()
        for line in data.decode().splitlines():
            if line.startswith("data: {"):
                shape.add(json.loads(line.removeprefix("data: ")))
            elif line:
                yield f"{prefix}| {neutral(line.partition('{')[0])}"
        yield from shape.lines(prefix)
    elif kind == "text/plain":
        yield from sorted({f"{prefix}| {re.split(r'[{ ]', text)[0]}" for text in _metrics(data)})


def _metrics(data: bytes) -> list[str]:
    return [line for line in data.decode().splitlines() if line and not line.startswith("#")]


def sim_lines(source: Path, folder: Path, paths: Iterable[str]) -> Iterator[str]:
    """The jobs against simulated providers, and then the endpoints of these."""
    jobs = {name: SERVERS.get(name, []) for name in JOBS}
    for flags in [[], *SERVERS.values()]:
        with serving(source, folder, ["sim", *flags]) as url:
            for name in [name for name in jobs if jobs[name] == flags]:
                yield from job_lines(source, folder, name, url)
            ids = [
                f"{path}/{each['id']}"
                for path in ("/v1/files", "/v1/batches")
                for each in json.loads(asked(url, "GET", path)[2])["data"]
            ]
            deeper = [f"{path}{verb}" for path in ids for verb in ("", "/content", "/cancel")]
            for line in endpoint_lines("sim", url, {*paths, *deeper}):
                yield re.sub(r"sim\d+", "ID", line)


def engine_lines(source: Path, folder: Path, paths: Iterable[str]) -> Iterator[str]:
    """The endpoints of the local engine, with a model made on the spot."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        yield "http engine: not asked, the extra `engine` is not installed"
        return
    model = folder / "m"
    if not model.exists():
        subprocess.run([sys.executable, "-c", MODEL, model], check=True, capture_output=True)
    with serving(source, folder, ["engine", "m"]) as url:
        yield from sorted(set(endpoint_lines("engine", url, {*paths, "/v1/models/m"})))


@cache
def nodes(source: Path) -> list[ast.AST]:
    """All that the modules of a checkout are made of."""
    paths = sorted((source / "redline").rglob("*.py"))
    return [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]


def paths_in(source: Path) -> set[str]:
    """Text in the source that may be the path of an endpoint."""
    texts = {node.value for node in nodes(source) if isinstance(node, ast.Constant)}
    texts = {text for text in texts if isinstance(text, str)}
    paths = {text for text in texts if re.fullmatch(r"(/[a-z][a-z0-9_]*){1,4}", text)}
    return paths | {f"/v1{path}" for path in paths if not path.startswith("/v1")}


def error_lines(source: Path) -> Iterator[str]:
    """The kinds of error in result files and on stderr, with the class each one is."""
    bases = {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for node in nodes(source)
        if isinstance(node, ast.ClassDef)
    }
    known = {"RedlineError"}
    while more := {name for name in bases.keys() - known if known & {*bases[name]}}:
        known |= more
    for name in sorted(known):
        kind = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
        yield f"error kind {kind}: {name}({', '.join(bases[name])})"


def environment_lines(source: Path) -> Iterator[str]:
    """The environment variables that the source names where it looks into the environment."""
    constants = {
        target.id: node.value.value
        for node in nodes(source)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    }
    for node in nodes(source):
        for key in _looked_up(node):
            parts = key.values if isinstance(key, ast.JoinedStr) else [key]
            if all(isinstance(part, ast.Name) for part in parts):
                known = [constants.get(part.id) for part in parts]
            else:
                known = [getattr(part, "value", None) for part in parts]
                known = [text if isinstance(text, str) else "*" for text in known]
            if all(known):
                yield f"environment variable {''.join(map(str, known))}"


def _looked_up(node: ast.AST) -> Iterator[ast.expr]:
    """The names that an expression takes from the environment, or gives to a child's."""
    match node:
        case ast.Subscript(value=value, slice=key) if _is_environment(value):
            yield key
        case ast.Call(func=ast.Attribute(attr="get" | "setdefault" | "pop", value=value)):
            yield from node.args[:1] if _is_environment(value) else []
        case ast.Call(func=ast.Attribute(attr="getenv") | ast.Name(id="getenv")):
            yield from node.args[:1]
        case ast.Dict(keys=keys, values=values) if None in keys:
            # Of `{**os.environ, ...}`.
            if any(map(_is_environment, values)):
                yield from (key for key in keys if key is not None)
        case ast.Name(id="getproxies" | "getproxies_environment" | "proxy_bypass" as name):
            yield ast.Constant(f"by urllib's {name}")


def _is_environment(node: ast.expr) -> bool:
    """`os.environ`, or what has its name."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return bool(name.endswith("environ"))


def package_lines(source: Path) -> Iterator[str]:
    """What an installer sees."""
    project = tomllib.loads((source.parent / "pyproject.toml").read_text())["project"]
    for name, target in project["scripts"].items():
        yield f"package script {name} = {target}"
    yield from (f"package extra {name}" for name in project["optional-dependencies"])
    yield f"package requires python {project['requires-python']}"


def source_lines(source: Path) -> Iterator[str]:
    """What can only be read from the source, or most easily."""
    yield from error_lines(source)
    yield from environment_lines(source)
    yield from package_lines(source)


def inventory(source: Path, folder: Path, paths: set[str], parts: Iterable[str]) -> list[str]:
    """The lines of the redline in `source`. paths: of endpoints, to be tried."""
    folder.mkdir()
    lines: list[str] = []
    for part in parts:
        match part:
            case "surface" | "refusals":
                lines += surface(source, folder, part)
            case "jobs":
                lines += sorted({*sim_lines(source, folder, paths)})
            case "engine":
                lines += engine_lines(source, folder, paths)
            case "source":
                lines += sorted({*source_lines(source)})
    return lines


def differences(old: list[str], new: list[str]) -> list[str]:
    """The lines that only one of the two has, and where they are; none for the same surface."""
    return [*difflib.unified_diff(old, new, "old", "new", n=0, lineterm="")]


def main() -> int:
    parser = argparse.ArgumentParser(description="The public surface of redline.")
    parser.add_argument("commits", nargs="*", default=["."], help="`.` is this checkout")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    given = parser.parse_args()
    if len(given.commits) > 2:
        parser.error("at most two commits can be compared")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sources = [
            record.ROOT / "src"
            if commit == "."
            else stack.enter_context(checked_out(commit, folder / f"commit-{at}"))
            for at, commit in enumerate(given.commits)
        ]
        asks = {"jobs", "engine"} & {*given.parts}
        paths = {*PATHS}.union(*map(paths_in, sources)) if asks else set()
        found = [
            inventory(source, folder / f"{at}", paths, given.parts)
            for at, source in enumerate(sources)
        ]
    if len(found) == 1:
        print("\n".join(found[0]))
        return 0
    changes = differences(*found)
    print("\n".join(changes or [f"{len(found[0]):,} lines, no difference"]))
    return 1 if changes else 0


if __name__ == "__main__":
    raise SystemExit(main())
