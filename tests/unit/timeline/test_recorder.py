"""Calls through a recorder: each is in the trace once, whatever became of it, and no text is."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from redline.calls import Call, Reply, Request, Retry
from redline.errors import Rejected, ServerFailed
from redline.testing import ScriptedBackend, VirtualClock, virtual_run
from redline.timeline import (
    VERSION,
    CallEnded,
    RecordedRun,
    Recorder,
    RunBegan,
    TraceFile,
    read_trace,
)
from redline.timeline.records import Record
from redline.waist import Backend, Outcome

SECRET = "the text of a row " * 100
BEGAN = RunBegan(v=VERSION, at=1.0)
OK = Reply(output=SECRET, input_tokens=400, output_tokens=3)


def request(text: str = SECRET) -> Request:
    return Request(body={"messages": [{"role": "user", "content": text}], "model": "m"})


def recorded(path: Path, backend: Backend, calls: int, gap_s: float = 0.0) -> RecordedRun:
    """What a trace holds of these calls, made one after another."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        file = TraceFile(path)
        recorder = Recorder(backend, file, BEGAN, clock=VirtualClock(loop))
        for number in range(calls):
            await recorder.send(request(), Call(priority=number))
            await asyncio.sleep(gap_s)
        await recorder.aclose()
        file.close()

    virtual_run(main(), start_s=50.0)
    (run,) = read_trace(path, 10_000).runs
    return run


def test_a_call_with_its_retry(tmp_path: Path) -> None:
    script = [ServerFailed("HTTP 500", status=500), OK]
    run = recorded(tmp_path / "t", Retry(ScriptedBackend(script, latency_s=2.0), seed=1), 1)
    (call,) = run.calls
    assert (call.outcome, call.input_tokens, call.output_tokens) == ("succeeded", 400, 3)
    first, second = call.tried
    assert (first.error, second.error) == ("server_failed", "")
    assert (call.arrived_s, first.sent_s, first.done_s) == (0.0, 0.0, 2.0)
    assert second.sent_s is not None
    assert 2.0 <= second.sent_s < second.done_s == call.done_s
    assert len(call.blocks) == 7


def test_every_call_is_there_once_in_groups_or_not(tmp_path: Path) -> None:
    run = recorded(tmp_path / "t", ScriptedBackend([OK], latency_s=0.01), 1000)
    assert [call.priority for call in run.calls] == list(range(1000))


def test_failures_and_cancelled_calls_are_there(tmp_path: Path) -> None:
    async def main() -> None:
        file = TraceFile(tmp_path / "t")
        backend = ScriptedBackend([Rejected("no", status=400), OK], latency_s=5.0)
        clock = VirtualClock(asyncio.get_running_loop())
        recorder = Recorder(backend, file, BEGAN, clock=clock)
        await recorder.send(request(), Call())
        task = asyncio.create_task(recorder.send(request(), Call()))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait([task])
        await recorder.aclose()
        file.close()

    virtual_run(main())
    (run,) = read_trace(tmp_path / "t", 10).runs
    assert [call.outcome for call in run.calls] == ["rejected", "cancelled"]
    assert [call.done_s for call in run.calls] == [5.0, 6.0]


def test_no_text_is_written(tmp_path: Path) -> None:
    script = [ServerFailed(f"HTTP 500: {SECRET}", status=500), OK, Rejected(SECRET, status=400)]
    recorded(tmp_path / "t", Retry(ScriptedBackend(script), seed=1), 3)
    assert b"text" not in (tmp_path / "t").read_bytes()


def test_records_are_on_disk_within_seconds(tmp_path: Path) -> None:
    """A death loses a second of calls, and not all of them."""

    async def main() -> int:
        path = tmp_path / "t"
        clock = VirtualClock(asyncio.get_running_loop())
        recorder = Recorder(ScriptedBackend([OK]), TraceFile(path), BEGAN, clock=clock)
        for _ in range(20):
            await recorder.send(request(), Call())
            await asyncio.sleep(0.25)
        return read_trace(path, 100).total

    assert virtual_run(main()) >= 15


class Stuck(TraceFile):
    """A disk that takes nothing for a while."""

    def write(self, records: object) -> None:
        time.sleep(0.2)
        super().write(records)  # type: ignore[arg-type]


def test_a_disk_that_is_behind_loses_records_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.timeline.recorder._MOST", 300)

    async def main() -> None:
        file = Stuck(tmp_path / "t")
        recorder = Recorder(ScriptedBackend([OK]), file, BEGAN)
        for _ in range(1000):
            await recorder.send(request("short"), Call())
        await recorder.aclose()
        file.close()

    asyncio.run(main())
    (run,) = read_trace(tmp_path / "t", 10_000).runs
    assert run.dropped > 300
    assert len(run.calls) + run.dropped == 1000


class Watched(Stuck):
    """A slow disk that notes when it is asked, and when it is done."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.seen: list[str] = []
        self.is_asked = threading.Event()

    def write(self, records: object) -> None:
        self.seen.append("write")
        self.is_asked.set()
        super().write(records)
        self.seen.append("written")


def test_no_write_outlasts_the_recorder_if_all_tasks_are_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.timeline.recorder._GROUP_S", 0.01)

    async def main() -> list[str]:
        file = Watched(tmp_path / "t")
        recorder = Recorder(ScriptedBackend([OK]), file, BEGAN)
        await recorder.send(request(), Call())
        await asyncio.to_thread(file.is_asked.wait)
        await recorder.send(request(), Call())
        # As `asyncio.run` does before it ends asynchronous generators.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await recorder.aclose()
        file.close()
        return file.seen

    assert asyncio.run(main()) == ["write", "written"] * 2
    assert read_trace(tmp_path / "t", 10).total == 2


class Full(TraceFile):
    """A disk that is full from the second group on."""

    groups = 0

    def write(self, records: list[Record]) -> None:  # type: ignore[override]
        self.groups += 1
        if self.groups > 1:
            raise OSError(28, "No space left on device")
        super().write(records)


def test_a_full_disk_ends_the_trace_and_not_the_calls(tmp_path: Path) -> None:
    async def main() -> tuple[list[Outcome], OSError | None]:
        file = Full(tmp_path / "t")
        recorder = Recorder(ScriptedBackend([OK]), file, BEGAN)
        outcomes = []
        for _ in range(1000):
            outcomes.append(await recorder.send(request(), Call()))
            await asyncio.sleep(0)
        await recorder.aclose()
        file.close()
        return outcomes, recorder.failure

    outcomes, failure = asyncio.run(main())
    assert all(outcome.is_success for outcome in outcomes)
    assert failure is not None
    assert 256 <= read_trace(tmp_path / "t", 10_000).total < 1000


def test_a_call_takes_some_hundred_bytes(tmp_path: Path) -> None:
    recorded(tmp_path / "t", ScriptedBackend([OK], latency_s=0.0123), 1000, gap_s=0.0071)
    assert (tmp_path / "t").stat().st_size < 500 * 1000


def test_the_records_are_plain_json(tmp_path: Path) -> None:
    run = recorded(tmp_path / "t", ScriptedBackend([OK]), 1)
    assert isinstance(run.calls[0], CallEnded)
    first, second = (tmp_path / "t").read_text().splitlines()
    assert first.startswith('{"kind":"run","v":1,')
    assert second.startswith('{"kind":"call","arrived_s":0.0,')
