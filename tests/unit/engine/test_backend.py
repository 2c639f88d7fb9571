"""Requests are read in a thread of their own, which is in nobody's way."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import vocabularies
from redline.calls import Request
from redline.engine.backend import EngineBackend, Speaker, _Reader
from redline.engine.text import Pieces
from redline.engine.thread import EngineFailed
from redline.errors import Rejected

LIMIT_S = 60.0
ENDS = """
import threading
from redline.calls import Request
from redline.engine.backend import _Reader

begun = threading.Event()
reader = _Reader(lambda request: begun.set() or threading.Event().wait())
reader.read(Request(url="/v1/completions", body={}))
assert begun.wait(60)
reader.close()
print("the end", flush=True)
"""


def test_a_long_reading_does_not_hold_the_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")


def test_what_was_given_up_is_not_read_and_a_failure_is_its_callers() -> None:
    go, seen = threading.Event(), []

    def read(request: Request) -> None:
        seen.append(request.url)
        assert go.wait(LIMIT_S)
        if request.url == "bad":
            raise KeyError(request.url)

    reader = _Reader(read)  # type: ignore[arg-type]
    one, gone, bad, last = (reader.read(Request(url=u)) for u in ("one", "gone", "bad", "last"))
    assert gone.cancel()
    go.set()
    with pytest.raises(KeyError):
        bad.result(LIMIT_S)
    with pytest.raises(CancelledError):
        gone.result(LIMIT_S)
    assert (one.result(LIMIT_S), last.result(LIMIT_S)) == (None, None)
    assert seen == ["one", "bad", "last"]
    reader.close()


def test_too_many_answers_are_refused_before_the_event_loop_makes_any() -> None:
    tokenizer, nothing = vocabularies.byte_level(), cast("Any", None)
    speaker = Speaker(tokenizer, Pieces(tokenizer), nothing, 420, 100, frozenset())
    backend = EngineBackend(nothing, speaker, name="m", most_sequences=1024)
    body = {"prompt": [[5]] * 2048, "n": 128}
    read = backend._reader.read(Request(url="/v1/completions", body=body))
    with pytest.raises(Rejected, match="asks for 262,144 answers"):
        read.result(LIMIT_S)
    backend._reader.close()


def test_who_comes_after_the_end_is_told_so() -> None:
    reader = _Reader(lambda _: None)  # type: ignore[arg-type, return-value]
    before = reader.read(Request(url="/v1/completions", body={}))
    reader.close()
    assert before.result(LIMIT_S) is None
    with pytest.raises(EngineFailed, match="closed"):
        reader.read(Request(url="/v1/completions", body={}))
