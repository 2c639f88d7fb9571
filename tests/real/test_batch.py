"""`--via batch` and `auto` against a simulated provider: every row once, whatever happens."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import redline
from crash.killing import LIMIT_S, sealed_lines
from redline.apis import Batch
from redline.calls import RetryPolicy
from redline.calls.client import BatchApi
from redline.job.batch import Collector, Ledger, Note, PartStore
from redline.job.batch import plan as batch_plan
from redline.job.batch import runner as batch_module
from redline.job.outputs import verify
from redline.journal import Output
from support.catching import assert_caught
from support.forked import Command
from support.simulated import Simulated, simulated

pytestmark = [pytest.mark.real, pytest.mark.timeout(90)]

MODEL = "gpt-4o-mini"


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_proxy: None) -> None:
    """A folder of its own; looks and retries that do not become rare while a test waits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batch_plan, "FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(batch_plan, "MOST_MAKING_S", 0.5)
    monkeypatch.setattr(batch_plan, "MOST_LOOK_S", 0.1)
    monkeypatch.setattr(batch_module, "MOST_LOST_S", 0.2)
    monkeypatch.setattr(RetryPolicy, "pause_s", lambda *_: 0.05)


@pytest.fixture(scope="module")
def plain() -> Iterator[Simulated]:
    """A provider without any setting, for tests that look at what they add to its counts."""
    with simulated() as sim:
        yield sim


def write_rows(count: int, **more: Any) -> None:
    with Path("rows.jsonl").open("w") as file:
        for number in range(count):
            row = {"custom_id": f"r{number:03}", "prompt": f"say {number}", **more}
            file.write(json.dumps(row) + "\n")


def run(sim: Simulated, **options: Any) -> redline.Report:
    given = {"via": "batch", "model": MODEL, "output": "out.jsonl", "progress": False, **options}
    return redline.run("rows.jsonl", endpoint=sim.base_url, **given)


def assert_once(count: int, failed: int = 0) -> list[dict[str, Any]]:
    """Each row stands once, in the results or in the failures; the results' lines."""
    results = sealed_lines(Path("out.jsonl"))
    failures = sealed_lines(Path("out.failed.jsonl"))
    names = Counter(line["custom_id"] for line in results + failures)
    assert names == Counter(f"r{number:03}" for number in range(count))
    assert len(failures) == failed
    for line in results:
        assert line["output"] == f"You said: say {int(line['custom_id'][1:])}"
    return results


def files(sim: Simulated) -> list[Any]:
    found: list[Any] = sim.get("/v1/files")["data"]
    return found


def left() -> list[str]:
    return [path.name for path in Path("out.redline/batches").iterdir()]


class Died(Exception):
    """The process is no more, as far as the run is concerned."""


@contextmanager
def dying(at: str, place: str) -> Iterator[None]:
    """The first note of this kind ends the run, `before` it is written or `after`."""
    write = Ledger.write

    def die(self: Ledger, note: Note) -> None:
        if note.at != at:
            write(self, note)
            return
        if place == "after":
            write(self, note)
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "write", die)
        with pytest.raises(Died):
            yield


def test_all_rows_come_back_once_and_nothing_stays_behind() -> None:
    with simulated("--batch-latency", "0.3") as sim:
        write_rows(60)
        with Path("rows.jsonl").open("a") as file:
            row = {"custom_id": "r060", "prompt": "say 60", "model": "other"}
            file.write(json.dumps(row) + "\n")
        report = run(sim)
        assert (report.offered, report.succeeded, report.is_complete) == (61, 61, True)
        lines = assert_once(61)
        assert all(line["batched"] and line["attempts"] == 1 for line in lines)
        stats = sim.stats()
        # A file has one model.
        assert stats["batches"]["created"] == 2
        assert stats["batches"]["lines"] == stats["batches"]["answered"] == 61
        assert stats["received"] == 0
        assert files(sim) == []
        assert left() == []
        assert report.input_tokens == sum(line["usage"]["prompt_tokens"] for line in lines)
        again = run(sim)
        assert (again.offered, again.skipped) == (0, 61)
        assert sim.stats()["batches"]["created"] == 2


def test_what_may_pass_is_sent_again_and_what_may_not_is_a_failure() -> None:
    faults = ("--faults", "429=0.1", "--faults", "500=0.1", "--seed", "3")
    with simulated(*faults) as sim:
        write_rows(80)
        with Path("rows.jsonl").open("a") as file:
            file.write(
                '{"custom_id": "r080", "body": {"input": 1}, "url": "/v1/chat/completions"}\n'
            )
        report = run(sim)
        assert (report.succeeded, report.failed) == (80, 1)
        lines = assert_once(81, failed=1)
        assert Counter(line["attempts"] for line in lines)[1] < 80
        assert max(line["attempts"] for line in lines) > 1
        stats = sim.stats()["batches"]
        assert stats["answered"] == 80
        assert stats["lines"] == sum(stats[name] for name in ("answered", "failed"))
        assert report.batches is not None
        assert report.batches.again == stats["lines"] - 81
    failure = sealed_lines(Path("out.failed.jsonl"))[0]
    assert failure["error"]["status"] == 400


def test_what_expires_is_sent_again_until_its_retries_are_spent() -> None:
    with simulated("--batch-latency", "0-0.65", "--batch-window", "0.5") as sim:
        write_rows(50)
        report = run(sim)
        assert report.succeeded == 50
        lines = assert_once(50)
        assert max(line["attempts"] for line in lines) > 1
        stats = sim.stats()["batches"]
        assert stats["unfinished"] > 0
        assert stats["answered"] == 50
    Path("out.jsonl").unlink()
    with simulated("--batch-latency", "60", "--batch-window", "0.2") as sim:
        report = run(sim, max_retries=1)
        assert report.failed == 50
        assert sim.stats()["batches"]["created"] == 2
    failures = sealed_lines(Path("out.failed.jsonl"))
    assert {line["attempts"] for line in failures} == {2}
    assert "batch_expired" in failures[0]["error"]["message"]


def test_a_lost_answer_to_the_making_makes_no_second_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    make, lost = BatchApi.make, []

    async def losing(self: BatchApi, *given: Any) -> Batch:
        batch = await make(self, *given)
        if not lost:
            lost.append(batch.id)
            raise redline.errors.Disconnected("the connection broke")
        return batch

    monkeypatch.setattr(BatchApi, "make", losing)
    with simulated() as sim:
        write_rows(5)
        run(sim)
        assert_once(5)
        stats = sim.stats()["batches"]
        assert (stats["created"], stats["answered"]) == (1, 5)
    assert lost


def test_lines_that_the_provider_refuses_are_failures_and_the_others_go_on() -> None:
    with simulated() as sim:
        write_rows(5)
        with Path("rows.jsonl").open("a") as file:
            for number in (5, 6):
                file.write(f'{{"custom_id": "r{number:03}", "prompt": "x", "model": ""}}\n')
        report = run(sim)
        assert (report.succeeded, report.failed) == (5, 2)
        assert_once(7, failed=2)
    message = sealed_lines(Path("out.failed.jsonl"))[0]["error"]["message"]
    assert "missing_required_parameter" in message


def test_a_batch_that_finds_no_room_goes_in_halves_that_wait_for_each_other() -> None:
    with simulated("--batch-latency", "0.3", "--batch-tokens", "600") as sim:
        write_rows(40)
        report = run(sim)
        assert report.succeeded == 40
        assert {line["attempts"] for line in assert_once(40)} == {1}
        stats = sim.stats()["batches"]
        assert stats["created"] > 2
        assert stats["lines"] == 40


def write_models(count: int) -> None:
    """Writes rows that each need a batch of their own, because each has another model."""
    rows = [{"prompt": "say", "model": f"m{number}"} for number in range(count)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("dies", [False, True])
def test_a_batch_without_room_is_made_again_if_the_others_have_ended_meanwhile(
    monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    async def die(*_: object) -> None:
        raise Died

    monkeypatch.setattr(batch_plan, "FIRST_LOOK_S", 0.5)
    with simulated("--batch-latency", "0.1", "--batch-tokens", "25") as sim:
        write_models(2)
        if dies:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(BatchApi, "look", die)
                with pytest.raises(Died):
                    run(sim, model=None)
        assert run(sim, model=None).succeeded == 2
        assert sim.stats()["batches"]["created"] == 3


def test_waiting_batches_are_not_all_made_again_each_time_that_one_ends() -> None:
    with simulated("--batch-latency", "0.2", "--batch-tokens", "50") as sim:
        write_models(24)
        assert run(sim, model=None).succeeded == 24
        # Each is made once at the start; then each batch that ends lets at most one be refused.
        assert sim.stats()["batches"]["created"] <= 3 * 24


def test_batches_that_an_earlier_run_saw_refused_for_another_reason_are_all_made_at_once(
    plain: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def created() -> int:
        count: int = plain.stats()["batches"]["created"]
        return count

    async def failed(api: BatchApi, batch_id: str) -> Batch:
        return Batch(id=batch_id, status="failed")

    look, counts = BatchApi.look, list[int]()

    async def seen(api: BatchApi, batch_id: str) -> Batch:
        counts.append(created())
        return await look(api, batch_id)

    write_models(3)
    monkeypatch.setattr(BatchApi, "look", failed)
    assert run(plain, model=None).unfinished == 3
    before = created()
    monkeypatch.setattr(BatchApi, "look", seen)
    assert run(plain, model=None).succeeded == 3
    assert counts[0] == before + 3


def test_a_batch_holds_no_more_inputs_of_embeddings_than_requests(
    plain: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_plan, "MOST_ROWS", 6)
    rows = [{"input": [f"{row} {n}" for n in range(3)]} for row in range(5)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = run(plain, url="/v1/embeddings")
    assert (report.succeeded, report.batches.made) == (5, 3)


def test_a_path_that_is_none_for_batches_ends_the_run() -> None:
    with simulated() as sim:
        write_rows(2)
        body = '{"model": "m"}'
        report = run(sim, url="/v1/other", body=body, model=None, constant_prompt=True)
        assert report.stopped is not None
        assert "do not support this endpoint" in report.stopped.what
        assert report.unfinished == 2


DEATHS = [
    ("run", "after"),
    ("part", "before"),
    ("part", "after"),
    ("file", "before"),
    ("file", "after"),
    ("making", "before"),
    ("making", "after"),
    ("batch", "before"),
    ("batch", "after"),
    ("done", "before"),
    ("done", "after"),
]


def dies_and_goes_on(sim: Simulated, at: str, place: str) -> None:
    """A run dies at a note, a second one finishes: one batch, and each row once."""
    before = sim.stats()["batches"]
    write_rows(12)
    with dying(at, place):
        run(sim)
    report = run(sim)
    assert report.is_complete
    assert_once(12)
    after = sim.stats()["batches"]
    assert [after[name] - before[name] for name in ("created", "lines", "answered")] == [1, 12, 12]
    assert left() == []


@pytest.mark.parametrize(("at", "place"), DEATHS)
def test_a_death_at_any_note_asks_no_row_twice_and_loses_none(
    plain: Simulated, at: str, place: str
) -> None:
    dies_and_goes_on(plain, at, place)


def test_a_file_of_a_run_that_died_before_its_note_is_removed_by_any_run(plain: Simulated) -> None:
    write_rows(3)
    with dying("part", "before"):
        run(plain)
    assert left() == ["part-1.jsonl"]
    assert run(plain, via=None).is_complete
    assert left() == []


class FindsNothing(PartStore):
    async def find(self, part: Any) -> None:
        return None


def test_a_batch_that_is_made_twice_is_noticed(
    plain: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(store: type[PartStore]) -> None:
        monkeypatch.setattr(batch_module, "PartStore", store)
        for path in Path().glob("out*"):
            path.rename(path.with_name(f"old-{time.monotonic_ns()}"))
        dies_and_goes_on(plain, "batch", "before")

    assert_caught(check, PartStore, FindsNothing)


class KnowsNoLine(Collector):
    def has_result(self, key: int, mark: int) -> bool:
        return False


def test_results_that_are_saved_twice_are_noticed(
    plain: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(collector: type[Collector]) -> None:
        monkeypatch.setattr(batch_module, "Collector", collector)
        for path in Path().glob("out*"):
            path.rename(path.with_name(f"old-{time.monotonic_ns()}"))
        dies_and_goes_on(plain, "done", "before")

    assert_caught(check, Collector, KnowsNoLine)


def test_rows_that_were_being_sent_again_at_a_death_are_in_one_batch_only() -> None:
    with simulated("--batch-latency", "0-0.65", "--batch-window", "0.5") as sim:
        write_rows(40)
        # The rest stands in a new part, and the old one is not done yet.
        with dying("done", "before"):
            run(sim)
        run(sim)
        assert_once(40)
        stats = sim.stats()["batches"]
        assert stats["answered"] == 40


def await_note(at: str, process: Command) -> None:
    """Waits until the ledger has a note of this kind."""
    ends_s = time.monotonic() + LIMIT_S
    path = Path("out.redline/batches.jsonl")
    while not path.exists() or f'"at":"{at}"' not in path.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def words(sim: Simulated) -> list[str]:
    """Of the command line that does the rows by batches."""
    flags = ["run", "rows.jsonl", "--model", MODEL, "-o", "out.jsonl", "--quiet", "--via", "batch"]
    return [*flags, "--base-url", sim.base_url]


def test_a_run_that_is_interrupted_and_killed_while_it_waits_goes_on_with_its_batch() -> None:
    with simulated("--batch-latency", "2.5") as sim:
        write_rows(30)
        for number in (signal.SIGINT, signal.SIGKILL):
            process = Command(words(sim))
            await_note("batch", process)
            time.sleep(0.3)
            process.send_signal(number)
            _, err = process.communicate(timeout=LIMIT_S)
            if number == signal.SIGINT:
                assert process.returncode == 130
                assert "30 rows = 0 succeeded + 0 failed + 30 unfinished" in err
                assert "still at the provider: 1 batch, 30 rows in all" in err
        done = Command(words(sim))
        _, err = done.communicate(timeout=LIMIT_S)
        assert done.returncode == 0, err
        assert "batches: 0 made, 30 rows answered" in err
        assert_once(30)
        stats = sim.stats()["batches"]
        assert (stats["created"], stats["answered"]) == (1, 30)


# The command, which kills itself just before it writes this note.
KILLED = """
import os, signal, sys
from redline.job.batch.ledger import Ledger
at, write = sys.argv.pop(1), Ledger.write
def die(self, note):
    if note.at == at:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, note)
Ledger.write = die
from redline.cli import main
sys.exit(main())
"""


def test_kill_9_between_the_making_and_its_note_and_between_the_results_and_theirs(
    plain: Simulated,
) -> None:
    before = plain.stats()["batches"]
    write_rows(15)
    for at in ("batch", "done"):
        killed = subprocess.run([sys.executable, "-c", KILLED, at, *words(plain)], timeout=LIMIT_S)
        assert killed.returncode == -signal.SIGKILL
    assert len(sealed_lines(Path("out.jsonl"))) == 15
    assert run(plain).is_complete
    assert_once(15)
    after = plain.stats()["batches"]
    assert [after[name] - before[name] for name in ("created", "lines")] == [1, 15]


def test_batches_that_are_left_are_gone_on_with_or_cancelled_but_not_forgotten() -> None:
    with simulated("--batch-latency", "0-3600", "--seed", "1") as sim:
        write_rows(20)
        with dying("batch", "after"):
            run(sim)
        with pytest.raises(redline.ConfigError, match=r"1 batch of .* is still at the provider"):
            run(sim, via=None)
        with pytest.raises(redline.ConfigError, match="would be lost"):
            run(sim, restart=True)
        with pytest.raises(redline.ConfigError, match="model was"):
            run(sim, model="another")
        report = run(sim, via="live")
        assert (report.offered, report.succeeded) == (20, 20)
        assert_once(20)
        stats = sim.stats()
        assert stats["batches"]["cancels"] == 1
        assert stats["batches"]["answered"] + stats["answered"] == 20
        assert files(sim) == []
        # Nothing is left, so nothing need be said.
        assert run(sim, via=None).skipped == 20


def test_force_continues_batches_although_the_settings_are_damaged(plain: Simulated) -> None:
    write_rows(5)
    with dying("batch", "after"):
        run(plain)
    Path("out.redline/manifest.json").write_bytes(b"damaged")
    with pytest.raises(redline.errors.JournalError, match=r"manifest.json is damaged"):
        run(plain)
    assert run(plain, force=True).succeeded == 5
    assert_once(5)


@pytest.mark.parametrize("data", [None, b"", b"damaged\n"])
def test_rows_of_a_batch_that_are_lost_end_the_run(plain: Simulated, data: bytes | None) -> None:
    write_rows(5)
    with dying("batch", "after"):
        run(plain)
    part = Path("out.redline/batches/part-1.jsonl")
    whole = part.read_bytes()
    if data is None:
        part.unlink()
    else:
        part.write_bytes(data)
    created = plain.stats()["batches"]["created"]
    for via in ("batch", "live"):
        with pytest.raises(redline.errors.JournalError, match=r"part-1.jsonl is (missing|damaged)"):
            run(plain, via=via)
    part.write_bytes(whole)
    assert run(plain).succeeded == 5
    assert plain.stats()["batches"]["created"] == created
    assert_once(5)


def test_auto_waits_for_batches_while_time_allows_and_does_the_rest_live() -> None:
    with simulated("--batch-latency", "0-20", "--seed", "2") as sim:
        write_rows(60)
        report = run(sim, via="auto", deadline_s=6)
        assert report.stopped is None
        assert report.succeeded == 60
        lines = assert_once(60)
        batched = [line for line in lines if line.get("batched")]
        stats = sim.stats()
        assert stats["batches"]["answered"] == len(batched) > 0
        assert stats["answered"] == 60 - len(batched)
        assert stats["answered"] > batch_plan.PROBE_ROWS
        assert stats["batches"]["cancels"] == 1


def test_answers_of_a_batch_are_saved_while_the_input_takes_long() -> None:
    saved = []

    def rows() -> Iterator[dict[str, str]]:
        # A file has one model, and 100 files are open: another model closes one of them.
        for number in range(101):
            yield {"prompt": f"say {number}", "model": f"m{number}"}
        ends_s = time.monotonic() + 20
        while not saved and time.monotonic() < ends_s:
            time.sleep(0.05)
            saved.extend(sealed_lines(Path("out.jsonl")))

    with simulated("--batch-latency", "0.3") as sim:
        report = redline.run(
            rows(), endpoint=sim.base_url, via="batch", output="out.jsonl", progress=False
        )
    assert len(saved) == 1
    assert report.succeeded == 101


def test_auto_takes_the_batch_where_it_is_over_in_time() -> None:
    with simulated() as sim:
        write_rows(60)
        report = run(sim, via="auto", deadline_s=3600)
        assert report.succeeded == 60
        assert_once(60)
        stats = sim.stats()
        assert (stats["answered"], stats["batches"]["answered"]) == (batch_plan.PROBE_ROWS, 40)
        assert stats["batches"]["cancels"] == 0


@pytest.mark.parametrize(
    ("latency", "deadline_s", "cancels"), [("3600", 6, 1), ("0.3", 60, 0)], ids=["late", "early"]
)
def test_auto_knows_when_to_give_up_on_batches_that_hold_all_rows(
    latency: str, deadline_s: float, cancels: int
) -> None:
    with simulated("--batch-latency", latency) as sim:
        write_rows(20)
        with dying("batch", "after"):
            run(sim)
        # One after the other, the rows may take longer than the deadline, as far as is known.
        report = run(sim, via="auto", deadline_s=deadline_s, concurrency=1)
        assert report.succeeded == 20
        assert_once(20)
        stats = sim.stats()
        assert stats["batches"]["cancels"] == cancels
        assert stats["answered"] == 20 * cancels


def test_a_budget_counts_batches_at_half_the_price_over_a_death() -> None:
    with simulated() as sim:
        write_rows(30)
        options = {"params": {"max_tokens": 5}, "prices": {MODEL: {"input": 3, "output": 15}}}
        with dying("done", "before"):
            run(sim, budget="1usd", **options)
        report = run(sim, budget="1usd", **options)
        lines = assert_once_cut(30)
        full = sum(
            3 * line["usage"]["prompt_tokens"] + 15 * line["usage"]["completion_tokens"]
            for line in lines
        )
        assert report.spent_usd == pytest.approx(full / 2 / 10**6, rel=0.01)
        # A row may cost at most 165 bytes and 5 answered tokens: room for three at half the price.
        report = run(sim, budget="0.0011usd", output="small.jsonl", **options)
        assert report.spent_usd is not None
        assert report.spent_usd <= 0.0011
        assert report.succeeded > 3
        assert report.batches is not None
        assert report.batches.made > 1


def test_later_batches_reserve_outputs_like_those_of_earlier_ones() -> None:
    with simulated() as sim:
        write_rows(100)
        prices = {MODEL: {"input": 3, "output": 15}}
        # At 256 tokens an answer, there is room for about 25 rows.
        report = run(sim, budget="0.056usd", prices=prices)
    assert report.batches is not None
    assert (report.succeeded, report.batches.made) == (100, 2)


def assert_once_cut(count: int) -> list[dict[str, Any]]:
    lines = sealed_lines(Path("out.jsonl"))
    assert sorted(line["custom_id"] for line in lines) == [f"r{n:03}" for n in range(count)]
    return lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": None}, "batches need an output file"),
        ({"via": "auto"}, "via auto needs a deadline"),
        ({"via": "btch"}, "unknown way to send rows: btch"),
        ({"cache": "answers"}, "batches and a cache of answers cannot be combined"),
        ({"row_deadline_s": 5}, "batches and a deadline for each row cannot be combined"),
    ],
)
def test_what_batches_cannot_do_is_told(options: dict[str, Any], message: str) -> None:
    write_rows(1)
    with pytest.raises(redline.ConfigError, match=message):
        run(Simulated("http://127.0.0.1:9/v1"), **options)


def test_the_ledger_of_a_finished_run_is_empty() -> None:
    with simulated() as sim:
        write_rows(3)
        run(sim)
    ledger = Ledger(Output(path=Path("out.jsonl")))
    assert ledger.parts == {}
    assert ledger.run


def test_a_batch_that_the_provider_forgot_is_told_and_done_live_when_that_is_said() -> None:
    write_rows(4)
    # The embedded server ends with its run, and its batches with it.
    embedded = Simulated("sim")
    options = {"budget_tokens": "1m", "params": {"max_tokens": 5}}
    with dying("batch", "after"):
        run(embedded, **options)
    report = run(embedded, **options)
    assert report.stopped is not None
    assert "no longer knows the batch" in report.stopped.what
    assert report.unfinished == 4
    reserved = Ledger(Output(path=Path("out.jsonl"))).reserved
    report = run(embedded, **{**options, "via": "live"})
    lines = assert_once_cut(4)
    assert not any(line.get("batched") for line in lines)
    # Nobody can say that it was not paid for.
    used = sum(line["usage"]["total_tokens"] for line in lines)
    assert report.spent_tokens == reserved.tokens + used


def test_a_batch_without_its_note_is_found_behind_newer_ones(
    plain: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.calls.client.batch_api._PAGE", 1)
    before = plain.stats()["batches"]["created"]
    write_rows(3)
    with dying("batch", "before"):
        run(plain)
    for number in range(2):
        run(plain, output=f"other{number}.jsonl")
    assert run(plain).is_complete
    assert_once(3)
    assert plain.stats()["batches"]["created"] - before == 3


def test_a_list_of_batches_without_an_end_is_given_up(
    plain: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def same(self: BatchApi, after: str | None = None) -> tuple[list[Batch], bool]:
        asked.append(after)
        return [Batch("other", "completed", created_at=4e9)], True

    write_rows(3)
    with dying("batch", "before"):
        run(plain)
    monkeypatch.setattr(batch_plan, "MOST_MAKING_S", 0.0)
    monkeypatch.setattr(BatchApi, "page", same)
    assert run(plain).is_complete
    assert_once(3)
    assert asked == [None, "other"]


@pytest.mark.parametrize(
    ("via", "at", "place"),
    [("batch", "batch", "after"), ("live", "batch", "after"), ("batch", "done", "before")],
)
def test_a_row_that_changes_while_it_is_with_a_batch_gets_the_answer_of_what_it_is_now(
    via: str, at: str, place: str
) -> None:
    with simulated("--batch-latency", "0.2", "--batch-window", "60") as sim:
        write_rows(4)
        with dying(at, place):
            run(sim)
        text = Path("rows.jsonl").read_text().replace("say 2", "a whole other question")
        Path("rows.jsonl").write_text(text)
        report = run(sim, via=via)
        assert report.is_complete
        assert report.offered == report.succeeded + report.failed
        found = {line["custom_id"]: line["output"] for line in sealed_lines(Path("out.jsonl"))}
        assert len(found) == 4
        assert found["r002"] == "You said: a whole other question"
        assert found["r001"] == "You said: say 1"
        assert str(verify(Output(path=Path("out.jsonl")))) == "verify: 4 of 4, each once"
