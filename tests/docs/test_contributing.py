"""CONTRIBUTING.md names files that exist, and changes made by its steps stay small.

The patches in tests/patches are what a newcomer writes by these steps. Each is applied to a copy of
src, in which a check then finds the new behaviour; on the source as it is the same check fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.architecture_rules import RULES, Package

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PATCHES = ROOT / "tests" / "patches"
MOST_FILES = 3

LIMIT_HEADER = """
from redline.limits.server import HeaderReader

(limit,) = HeaderReader().read({"x-rpm-limit": "300", "x-rpm-remaining": "299"}, 0.0)
assert (limit.kind, limit.limit, limit.remaining) == ("requests", 300, 299)
assert limit.window_s == 60
"""

PROVIDER_STATUS = """
from redline.apis import judge

spent = judge(429, {}, b'{"error": {"code": "SPEND_LIMIT_EXCEEDED"}}', 0.0)
assert spent.kind == "unpaid", spent
assert judge(429, {}, b"{}", 0.0).kind == "rate_limited"
"""

INPUT_FORMAT = """
import json
from pathlib import Path

import redline

Path("poems.prompts").write_text("Write a poem.\\n\\nAnd another one.\\n")
report = redline.run("poems.prompts", model="m", endpoint="sim", output="poems.jsonl")
assert (report.succeeded, report.is_complete) == (2, True)
results = [json.loads(line) for line in Path("poems.jsonl").read_text().splitlines()]
assert {result["output"] for result in results} == {
    "You said: Write a poem.", "You said: And another one.",
}
"""

RESULT_FIELD = """
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import redline


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice], "service_tier": "flex"}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    redline.run([{"prompt": "Is it?"}], model="m", endpoint=url, output="answers.jsonl")
    server.shutdown()
result = json.loads(Path("answers.jsonl").read_text())
assert (result["output"], result["service_tier"]) == ("yes", "flex")
"""

CHECKS = {
    "limit-header": LIMIT_HEADER,
    "provider-status": PROVIDER_STATUS,
    "input-format": INPUT_FORMAT,
    "result-field": RESULT_FIELD,
}


def patched(folder: Path, *names: str) -> Path:
    """A copy of src with the patches of these names applied."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    for name in names:
        patch = PATCHES / f"{name}.patch"
        command = ["git", "apply", "--directory=src", "-p2", str(patch)]
        # A folder of its own, which is no part of any repository.
        env = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
        applied = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        hint = "make the change again by the steps of CONTRIBUTING.md, with git diff -U1 -- src"
        assert applied.returncode == 0, f"{patch.name}: {applied.stderr}{hint}"
    return folder / "src"


def check(name: str, source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a check in a process that imports redline from `source`."""
    folder.mkdir()
    private = ("OPENAI_", "HTTP_PROXY", "http_proxy")
    env = {key: value for key, value in os.environ.items() if not key.startswith(private)}
    proves_source = "import redline; assert redline.__file__.startswith({!r}), redline.__file__\n"
    return subprocess.run(
        [sys.executable, "-c", proves_source.format(str(source)) + CHECKS[name]],
        cwd=folder,
        env=env | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def all_patched(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return Package(patched(tmp_path_factory.mktemp("all"), *CHECKS) / "redline")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_a_newcomers_patch_does_what_it_is_for(tmp_path: Path, name: str) -> None:
    source = patched(tmp_path, name)
    found = check(name, source, tmp_path / "new")
    assert found.returncode == 0, found.stderr
    found = check(name, ROOT / "src", tmp_path / "old")
    assert found.returncode == 1, "the check does not notice the change"


def test_each_patch_is_small_and_named_in_the_page() -> None:
    assert {path.stem for path in PATCHES.glob("*")} == CHECKS.keys()
    for name in CHECKS:
        text = (PATCHES / f"{name}.patch").read_text("utf-8")
        files = re.findall(r"^\+\+\+ b/(.*)$", text, re.M)
        assert 1 <= len(files) <= MOST_FILES
        assert all(file.startswith("src/redline/") for file in files)
        assert f"(tests/patches/{name}.patch)" in PAGE
        existing = [file for file in files if (ROOT / file).exists()]
        assert all(f"`{file.removeprefix('src/redline/')}`" in PAGE for file in existing)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["known_parts", "layers", "doors", "cycles", "folder_sizes"])
def test_all_patches_together_keep_the_structure(all_patched: Package, rule: str) -> None:
    assert [*RULES[rule](all_patched)] == []


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`((?:[\w.-]+/)*[\w.-]+(?:\.(?:py|md|toml)|/))`", PAGE))
    named -= {"__init__.py", "redline.toml"}
    missing = [
        name
        for name in sorted(named)
        if not any((ROOT / base / name).exists() for base in ("", "src/redline"))
    ]
    assert missing == []
