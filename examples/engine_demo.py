"""Trains, serves and calls a model, all on this machine: `make engine-demo`.

The model is trained once, which takes minutes, and kept in build/tiny-model. Exit status 0 only if
every row was answered.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = Path("build") / "tiny-model"
ROWS = 96
TOLD = ("batch_size_mean", "tokens_per_step_mean", "draft_acceptance", "generation_tokens_total")


def show(*words: str) -> list[str]:
    """Prints a command as a user types it; returns the words that run it with this Python."""
    print(f"$ {shlex.join(words)}", flush=True)
    own = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "redline"]
    return [*own, *words[1:]]


@contextmanager
def served() -> Iterator[str]:
    """Starts the engine and yields its base URL; kills the engine at the end."""
    target, draft = FOLDER / "target", FOLDER / "draft"
    command = show("redline", "engine", str(target), "--draft-model", str(draft))
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        base_url = process.stdout.readline().strip()
        if not base_url:
            raise SystemExit("the engine did not start")
        yield base_url
    finally:
        process.kill()
        process.wait()


def write_questions(path: Path) -> None:
    """Writes at most ROWS questions, from text that the model has not seen, to `path`."""
    texts = (ROOT / FOLDER / "held-out.txt").read_text("utf-8").splitlines()
    asked = [text.partition("<|end|>")[0].removeprefix("<|user|>") for text in texts]
    rows = [{"question": question} for question in asked[:ROWS]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def main() -> int:
    if not (ROOT / FOLDER / "training.json").exists():
        subprocess.run(show("python", "examples/tiny-model/train.py", str(FOLDER)), check=True)
    questions, answers = FOLDER / "questions.jsonl", FOLDER / "answers.jsonl"
    write_questions(ROOT / questions)
    with served() as base_url:
        command = show(
            *("redline", "run", str(questions), "--prompt", "{{ question }}"),
            *("--base-url", base_url, "--model", "target", "--temperature", "0"),
            *("-o", str(answers), "--restart"),
        )
        subprocess.run(command, cwd=ROOT, check=True)
        for line in (ROOT / answers).read_text("utf-8").splitlines()[:5]:
            print("  ", json.loads(line)["output"])
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{base_url.removesuffix('/v1')}/metrics", timeout=10) as reply:
            for line in reply.read().decode().splitlines():
                if any(f":{name}{{" in line for name in TOLD):
                    print("  ", line)
    return subprocess.run(show("redline", "verify", str(answers)), cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
