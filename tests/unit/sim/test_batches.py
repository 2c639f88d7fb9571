"""Files and batches in virtual time: what becomes of each line, whenever somebody looks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redline.sim import Constant, SimSettings, Uniform, parse_faults
from redline.sim.answers import Answers, BadCall
from redline.sim.batches import Batches
from support.held import held

WALL_S = 1_700_000_000.0
CHAT = "/v1/chat/completions"


def line(name: str, model: str = "m", **more: Any) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": f"say {name}"}]}
    return json.dumps({"custom_id": name, "method": "POST", "url": CHAT, "body": body, **more})


def lines(count: int) -> str:
    return "\n".join(line(f"r{number}") for number in range(count)) + "\n"


class World:
    """Batches of some settings, and a clock that the test turns."""

    def __init__(self, **settings: Any) -> None:
        self.batches = Batches(SimSettings(**settings), Answers())
        self.now_s = 0.0

    def times(self) -> tuple[float, float]:
        return self.now_s, WALL_S + self.now_s

    def create(self, text: str, endpoint: str = CHAT, **more: Any) -> dict[str, Any]:
        file = self.batches.upload("in.jsonl", "batch", text.encode(), WALL_S)
        body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"}
        return self.batches.create(json.dumps({**body, **more}).encode(), *self.times())

    def look(self, batch: dict[str, Any], at_s: float) -> dict[str, Any]:
        self.now_s = at_s
        return self.batches.look(batch["id"], *self.times())

    def results(self, batch: dict[str, Any], what: str = "output") -> list[dict[str, Any]]:
        file_id = batch[f"{what}_file_id"]
        data = self.batches.file(file_id).data if file_id else b""
        return [json.loads(raw) for raw in data.splitlines()]

    def counts(self) -> dict[str, int]:
        return self.batches.as_dict(*self.times())


def test_a_batch_is_answered_line_by_line_in_any_order() -> None:
    world = World(batch_latency=Constant(5.0))
    made = world.create(lines(30), metadata={"part": "7"})
    assert (made["status"], made["metadata"]) == ("validating", {"part": "7"})
    assert world.look(made, 4.9)["status"] == "in_progress"
    assert world.counts()["waiting"] == 30
    done = world.look(made, 5.0)
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    assert done["error_file_id"] is None
    found = world.results(done)
    names = [result["custom_id"] for result in found]
    assert sorted(names) == sorted(f"r{number}" for number in range(30))
    assert names != sorted(names, key=lambda name: int(name[1:]))
    for result in found:
        said = result["response"]["body"]["choices"][0]["message"]["content"]
        assert said == f"You said: say {result['custom_id']}"
        assert (result["response"]["status_code"], result["error"]) == (200, None)
    total = sum(result["response"]["body"]["usage"]["total_tokens"] for result in found)
    assert done["usage"]["total_tokens"] == total
    counts = world.counts()
    assert (counts["answered"], counts["waiting"]) == (30, 0)


def test_a_batch_that_runs_says_how_far_it_is() -> None:
    world = World(batch_latency=Uniform(0, 10), faults=parse_faults(["500=0.2"]), seed=3)
    made = world.create(lines(200))
    counts = [world.look(made, at_s)["request_counts"] for at_s in (0.0, 2.0, 5.0, 8.0, 11.0)]
    over = [one["completed"] + one["failed"] for one in counts]
    assert over == sorted(over)
    assert (over[0], over[-1]) == (0, 200)
    assert 0.4 < over[2] / 200 < 0.6
    assert 0 < counts[2]["failed"] < counts[-1]["failed"] < 60


def test_what_is_not_answered_within_the_window_expires() -> None:
    world = World(batch_latency=Uniform(0, 10), batch_window_s=5.0)
    made = world.create(lines(100))
    done = world.look(made, 60.0)
    assert done["status"] == "expired"
    answered, late = world.results(done), world.results(done, "error")
    assert len(answered) + len(late) == 100
    assert 20 < len(late) < 80
    assert {result["error"]["code"] for result in late} == {"batch_expired"}
    assert {result["response"] for result in late} == {None}
    counts = world.counts()
    assert (counts["answered"], counts["unfinished"]) == (len(answered), len(late))


def test_a_batch_that_is_over_stays_as_it_is_and_holds_little() -> None:
    world = World(batch_latency=Constant(1.0))
    made = world.create(lines(300))
    before = held(world.batches)
    world.look(made, 2.0)
    assert world.look(made, 3.0)["request_counts"]["total"] == 300
    assert world.counts()["answered"] == 300
    # Only the files are kept.
    assert held(world.batches) < before / 2


def test_a_line_that_stalls_keeps_its_batch_until_the_window_is_over() -> None:
    world = World(batch_window_s=9.0, faults=parse_faults(["stall=0.2"]), seed=3)
    made = world.create(lines(50))
    assert world.look(made, 8.0)["status"] == "in_progress"
    done = world.look(made, 9.0)
    assert done["status"] == "expired"
    assert 0 < done["request_counts"]["failed"] < 25


def test_faults_and_bad_requests_are_errors_of_their_lines() -> None:
    world = World(faults=parse_faults(["429=0.2", "500=0.2", "half=0.2"]), seed=1)
    bad = {"custom_id": "bad", "method": "POST", "url": CHAT, "body": {"model": "m"}}
    done = world.look(world.create(lines(60) + json.dumps(bad) + "\n"), 0.0)
    assert done["status"] == "completed"
    errors = world.results(done, "error")
    statuses = {result["response"]["status_code"] for result in errors}
    assert statuses >= {429, 500}
    assert len(world.results(done)) + len(errors) == 61


def test_a_cancelled_batch_keeps_what_it_has_answered() -> None:
    world = World(batch_latency=Uniform(0, 10))
    made = world.create(lines(100))
    world.now_s = 5.0
    assert world.batches.cancel(made["id"], *world.times())["status"] == "cancelling"
    done = world.look(made, 5.1)
    assert done["status"] == "cancelled"
    late = world.results(done, "error")
    assert {result["error"]["code"] for result in late} == {"batch_cancelled"}
    answered = len(world.results(done))
    assert answered + len(late) == 100
    assert done["request_counts"] == {"total": 100, "completed": answered, "failed": len(late)}
    assert world.look(made, 60.0) == done
    assert world.counts()["cancels"] == 1
    with pytest.raises(BadCall, match="Cannot cancel a batch with status 'cancelled'") as caught:
        world.batches.cancel(made["id"], *world.times())
    assert caught.value.status == 409


@pytest.mark.parametrize(
    ("text", "code", "number"),
    [
        (line("a") + "\nnot json\n", "invalid_json_line", 2),
        (line("a") + "\n" + line("a") + "\n", "duplicate_custom_id", 2),
        (line("a") + "\n" + line("b", model="n") + "\n", "mismatched_model", 2),
        (line("a", url="/v1/embeddings") + "\n", "invalid_url", 1),
        ('{"custom_id": "a"}\n', "missing_required_parameter", 1),
        (line("") + "\n", "missing_required_parameter", 1),
        (line("a").replace("{", '{"prompt": 1, ', 1) + "\n", "unknown_parameter", 1),
        (line("a").replace('"POST"', "7") + "\n", "invalid_type", 1),
    ],
)
def test_a_bad_file_fails_its_batch_with_the_line(text: str, code: str, number: int) -> None:
    world = World()
    made = world.create(text)
    assert made["errors"] is None
    failed = world.look(made, 0.0)
    assert failed["status"] == "failed"
    assert [(e["code"], e["line"]) for e in failed["errors"]["data"]] == [(code, number)]
    assert world.counts()["lines"] == 0


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_batch_fails_with_the_reason_if_its_results_have_no_room(is_cancelled: bool) -> None:
    world = World(batch_latency=Constant(5.0))
    made = world.create(lines(10))
    world.look(made, 1.0)
    # Together 1 GiB, but for less than the input. Untouched zeros take no memory.
    for size in (*[200] * 5, 23):
        big = world.batches.upload("big", "batch", bytes(size * 1024**2), WALL_S)
    world.batches.upload("rest", "batch", bytes(1024**2 - 2_000), WALL_S)
    if is_cancelled:
        world.batches.cancel(made["id"], *world.times())
    failed = world.look(made, 5.0)
    assert (failed["status"], failed["output_file_id"]) == ("failed", None)
    assert [error["code"] for error in failed["errors"]["data"]] == ["storage_limit_exceeded"]
    assert failed["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    counts = world.counts()
    assert [counts[name] for name in ("lines", "answered", "unfinished", "waiting")] == [0] * 4
    world.batches.delete(big["id"])
    assert world.look(world.create(lines(10)), 10.0)["status"] == "completed"
    assert world.look(made, 10.0) == failed


def test_batches_beyond_the_tokens_fail_until_others_are_over() -> None:
    world = World(batch_latency=Constant(5.0), batch_tokens=100)
    first, second = world.create(lines(5)), world.create(lines(5))
    assert world.look(second, 1.0)["errors"]["data"][0]["code"] == "token_limit_exceeded"
    assert world.look(first, 5.0)["status"] == "completed"
    assert world.look(world.create(lines(5)), 5.0)["status"] == "in_progress"


def test_batches_are_listed_page_by_page_the_newest_first() -> None:
    world = World()
    ids = [world.create(lines(1))["id"] for _ in range(5)]
    first = world.batches.listed({"limit": "2"}, *world.times())
    assert [batch["id"] for batch in first["data"]] == ids[:2:-1]
    assert first["has_more"]
    rest = world.batches.listed({"limit": "9", "after": first["last_id"]}, *world.times())
    assert [batch["id"] for batch in rest["data"]] == ids[2::-1]
    assert not rest["has_more"]


def test_files_are_deleted_and_what_is_not_there_is_told() -> None:
    world = World()
    done = world.look(world.create(lines(1)), 0.0)
    assert world.batches.delete(done["output_file_id"])["deleted"]
    calls: list[Any] = [
        lambda: world.batches.file(done["output_file_id"]),
        lambda: world.batches.delete("file-x"),
        lambda: world.batches.look("batch-x", *world.times()),
        lambda: world.batches.listed({"after": "batch-x"}, *world.times()),
        lambda: world.create(lines(1), endpoint="/v1/other"),
        lambda: world.create(lines(1), completion_window="1h"),
        lambda: world.batches.listed({"limit": "0"}, *world.times()),
        lambda: world.batches.listed({"limit": "9" * 5000}, *world.times()),
        lambda: world.batches.upload("a", "vision", b"x", WALL_S),
        lambda: world.batches.upload("a", "batch", b"", WALL_S),
    ]
    for call in calls:
        with pytest.raises(BadCall):
            call()
