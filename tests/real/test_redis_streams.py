"""Redis streams: every message has one outcome, and is acknowledged when that is durable."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import redline
from crash.killing import await_lines, ended, sealed_lines, serving, started
from crash.killing import redline as command
from crash.streaming import SMALL, consume_until_empty, consumer_flags, outcomes
from redline.errors import Rejected
from redline.sources import stream_of
from redline.sources.stream import Group
from redline.sources.stream import rows as source_stream
from support.catching import assert_caught
from support.redis_server import RedisServer, needs_redis, redis_server

pytestmark = [pytest.mark.real, needs_redis]
WORKER = Path(__file__).parents[1] / "support" / "stream_worker.py"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


class World:
    """A stream in an empty Redis, and a folder for outputs."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        from redis import Redis

        self.folder = folder
        self.redis = Redis.from_url(server.url)
        self.redis.flushall()
        self._base = f"{server.url}/tickets?group=labels"

    def url(self, **options: str) -> str:
        return self._base + "".join(f"&{name}={value}" for name, value in options.items())

    def fill(self, count: int) -> list[str]:
        return [
            self.redis.xadd("tickets", {"text": f"message {number}"}).decode()  # type: ignore[union-attr]
            for number in range(count)
        ]

    def run(self, call: Any, name: str = "a", *, url: str = "", **options: Any) -> redline.Report:
        options = {"concurrency": 4, "until_empty": True, **options}
        output = self.folder / f"{name}.jsonl"
        return redline.run(url or self.url(), call=call, output=output, progress=False, **options)

    def pending(self) -> int:
        found: dict[str, int] = self.redis.xpending("tickets", "labels")  # type: ignore[assignment]
        return found["pending"]

    def outcomes(self) -> Counter[str]:
        return outcomes(self.folder)

    def dead_consumer_takes(self, count: int, *, name: str = "dead") -> list[str]:
        """Messages that a consumer was handed which is not heard of again."""
        self.redis.xgroup_create("tickets", "labels", "0", mkstream=True)
        return self.handed(count, name)

    def handed(self, count: int, name: str) -> list[str]:
        found: Any = self.redis.xreadgroup("labels", name, {"tickets": ">"}, count)
        return [message_id.decode() for message_id, _ in found[0][1]]


@pytest.fixture
def world(server: RedisServer, tmp_path: Path) -> World:
    return World(server, tmp_path)


async def answer(row: dict[str, Any]) -> str:
    await asyncio.sleep(0.005)
    return str(row["text"]).upper()


@pytest.mark.slow
@pytest.mark.crash
def test_two_consumers_of_which_one_is_killed_twice_give_each_message_one_outcome(
    server: RedisServer, world: World
) -> None:
    figures = consume_until_empty(SMALL, world.folder, server.url)
    assert (figures.kills, figures.outcomes, figures.repeated) == (2, SMALL.messages, 0)
    assert min(figures.by_consumer) > 0
    # A killed consumer's reading ahead is done by it when it is back, and asked once.
    assert figures.received <= figures.allowed, figures


def test_a_message_is_a_row_by_its_columns_or_its_json(world: World) -> None:
    first = world.redis.xadd("tickets", {"text": "one", "note": "n"}).decode()
    second = world.redis.xadd("tickets", {"json": '{"text": "two", "custom_id": "mine"}'}).decode()
    third = world.redis.xadd("tickets", {"json": '{"text": "three"}', "text": "four"}).decode()
    report = world.run(answer)
    assert (report.offered, report.succeeded, report.is_complete) == (3, 3, True)
    lines = sorted(sealed_lines(world.folder / "a.jsonl"), key=lambda line: line["row"])
    assert [(line["message"], line["custom_id"], line["output"]) for line in lines] == [
        (first, first, "ONE"),
        (second, "mine", "TWO"),
        (third, third, "FOUR"),
    ]
    assert world.pending() == 0


def test_failures_stay_when_a_wrong_setting_is_corrected(world: World) -> None:
    async def refuse(row: dict[str, Any]) -> str:
        raise Rejected("no such model")

    world.fill(2)
    assert world.run(refuse).failed == 2
    world.fill(1)
    report = world.run(answer)
    assert (report.offered, report.succeeded) == (1, 1)
    # They are acknowledged, so nothing would bring them again.
    assert len(failures(world)) == 2


def test_the_summary_says_how_failed_messages_are_tried_again(world: World) -> None:
    world.redis.xadd("tickets", {"json": "{broken}"})
    flags = ("--endpoint", "sim", "--until-empty", "-o", "a.jsonl")
    done = command("run", world.url(), *flags, cwd=world.folder)
    assert done.returncode == 1
    assert "1 row = 0 succeeded + 1 failed" in done.stderr
    assert (
        "failures: a.failed.jsonl (to try them again, run the rows in their `input` with another "
        "-o)\n"
    ) in done.stderr
    # The flag that tries failed rows of a file again is refused.
    assert "--retry-failed" not in done.stderr
    refused = command("run", world.url(), *flags, "--retry-failed", cwd=world.folder)
    assert refused.returncode == 2


def test_another_field_may_hold_the_row(world: World) -> None:
    world.redis.xadd("tickets", {"payload": '{"text": "one"}'})
    world.run(answer, url=world.url(field="payload"))
    assert sealed_lines(world.folder / "a.jsonl")[0]["output"] == "ONE"


def test_what_cannot_be_done_fails_with_its_reason_and_is_acknowledged(world: World) -> None:
    bad = [
        world.redis.xadd("tickets", fields).decode()
        for fields in ({"json": "{broken"}, {"json": "[1]"}, {"text": b"\xff"})
    ]
    poison = world.fill(1)
    world.dead_consumer_takes(4)
    for name in ("killed-2", "killed-3"):
        world.redis.xclaim("tickets", "labels", name, 0, poison)
    time.sleep(0.15)
    report = world.run(answer, url=world.url(idle="100ms", deliveries="3"))
    assert (report.offered, report.failed) == (4, 4)
    reasons = {line["message"]: line["error"]["message"] for line in failures(world)}
    assert reasons[bad[0]].startswith("the row cannot be read: field json is not JSON")
    assert reasons[bad[1]] == "the row cannot be read: not an object but a list"
    assert reasons[bad[2]] == "the row cannot be read: field text is not UTF-8"
    assert reasons[poison[0]] == (
        "the message was delivered 3 times, but no consumer reached an outcome"
    )
    # Its row is kept, so that it can be looked into.
    assert failures(world)[-1]["input"]["text"] == "message 0"
    assert world.pending() == 0


def failures(world: World) -> list[dict[str, Any]]:
    return sorted(sealed_lines(world.folder / "a.failed.jsonl"), key=lambda line: line["row"])


def test_a_dead_consumers_messages_are_claimed_once_they_are_idle(world: World) -> None:
    sent = world.fill(20)
    world.dead_consumer_takes(5)
    report = world.run(answer, url=world.url(idle="200ms"))
    assert (report.succeeded, report.is_complete) == (20, True)
    assert world.outcomes() == Counter(sent)
    assert world.pending() == 0


def test_what_a_dead_consumer_may_have_written_is_left_to_it_or_claimed_by_wish(
    world: World,
) -> None:
    sent = world.fill(20)
    marked = world.dead_consumer_takes(5)[:2]
    world.redis.hset("redline:{tickets}:labels", mapping=dict.fromkeys(marked, "dead"))
    report = world.run(answer, url=world.url(idle="100ms"))
    assert report.stopped is not None
    assert report.stopped.what.startswith("2 messages of redis://127.0.0.1")
    assert "are held by the consumer dead, which ended after it began" in report.stopped.what
    assert world.outcomes() == Counter(set(sent) - set(marked))
    report = world.run(answer, url=world.url(idle="100ms", orphans="claim"))
    assert (report.succeeded, report.is_complete) == (2, True)
    assert world.outcomes() == Counter(sent)
    assert (world.pending(), world.redis.hlen("redline:{tickets}:labels")) == (0, 0)


def check_a_slow_consumer_keeps_its_messages(world: World, group: type[Group]) -> None:
    """Its calls take three times as long as a message may be idle, and another one waits."""
    world.redis.flushall()
    for path in world.folder.glob("*.jsonl"):
        path.unlink()
    sent = world.fill(3)
    asked: Counter[str] = Counter()

    async def slow(row: dict[str, Any]) -> str:
        asked[row["custom_id"]] += 1
        await asyncio.sleep(0.9)
        return "done"

    url = world.url(idle="300ms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_stream, "Group", group)
        first = threading.Thread(target=lambda: world.run(slow, "a", url=url))
        first.start()
        while not asked:
            time.sleep(0.01)
        world.run(slow, "b", url=url)
        first.join()
    assert world.outcomes() == Counter(sent)
    assert asked == Counter(sent)


def test_a_slow_consumer_that_lives_keeps_its_messages(world: World) -> None:
    class Silent(Group):
        async def keep(self, ids: Sequence[bytes]) -> None:
            return

    assert_caught(
        lambda group: check_a_slow_consumer_keeps_its_messages(world, group), Group, Silent
    )


def check_a_message_that_was_claimed_has_its_claimers_outcome_only(
    world: World, group: type[Group]
) -> None:
    world.redis.flushall()
    for path in world.folder.glob("*.jsonl"):
        path.unlink()
    sent = world.fill(6)

    async def losing(row: dict[str, Any]) -> str:
        if row["custom_id"] == sent[2]:
            world.redis.xclaim("tickets", "labels", "other", 0, [sent[2]])
        return "done"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_stream, "Group", group)
        report = world.run(losing, limit=6, until_empty=False)
    assert world.outcomes() == Counter(set(sent) - {sent[2]})
    assert (report.offered, report.succeeded, world.pending()) == (5, 5, 1)


def test_a_message_that_was_claimed_has_its_claimers_outcome_only(world: World) -> None:
    class Permitting(Group):
        async def mark(self, ids: Sequence[bytes]) -> list[bool]:
            await super().mark(ids)
            return [True] * len(ids)

    assert_caught(
        lambda group: check_a_message_that_was_claimed_has_its_claimers_outcome_only(world, group),
        Group,
        Permitting,
    )


def worker(world: World, number: int, *changes: str) -> int:
    words = [sys.executable, str(WORKER), world.url(), str(world.folder / "a.jsonl"), str(number)]
    done = subprocess.run(
        [*words, *changes],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow
@pytest.mark.crash
def test_a_message_is_acknowledged_after_its_outcome_is_durable_and_never_before(
    world: World,
) -> None:
    """The power goes between writing and fsync, and takes with it what was not synced."""

    def check(changes: tuple[str, ...]) -> None:
        world.redis.flushall()
        for path in world.folder.glob("*.jsonl"):
            path.unlink()
        sent = world.fill(40)
        assert worker(world, 4, *changes) == -signal.SIGKILL
        assert 0 < len(sealed_lines(world.folder / "a.jsonl")) < 40
        assert worker(world, 0) == 0
        assert world.outcomes() == Counter(sent)
        assert world.pending() == 0

    assert_caught(check, (), ("early",))


def test_a_line_that_is_there_is_acknowledged_and_not_asked_again(world: World) -> None:
    """As after a death between the fsync and the acknowledgement."""
    sent = world.fill(6)
    world.run(answer, limit=4, until_empty=False)
    kept = (world.folder / "a.jsonl").read_bytes()
    consumer = (world.folder / "a.redline" / "consumer").read_text().strip()
    # Back to where it was pending: a group that begins anew hands all of them to the same consumer.
    world.redis.xgroup_setid("tickets", "labels", "0")
    assert world.handed(4, consumer) == sent[:4]
    world.redis.hset("redline:{tickets}:labels", mapping=dict.fromkeys(sent[:4], consumer))
    report = world.run(answer)
    assert (report.offered, report.skipped, report.succeeded) == (2, 4, 2)
    assert (world.folder / "a.jsonl").read_bytes().startswith(kept)
    assert world.outcomes() == Counter(sent)
    assert (world.pending(), world.redis.hlen("redline:{tickets}:labels")) == (0, 0)


def test_no_more_is_read_than_there_is_room_for(world: World) -> None:
    world.fill(100)
    seen: list[int] = []

    async def looking(row: dict[str, Any]) -> str:
        await asyncio.sleep(0.002)
        info: Any = world.redis.xinfo_groups("tickets")
        seen.append(info[0]["entries-read"] - len(seen))
        return "done"

    report = world.run(looking, concurrency=3)
    assert report.succeeded == 100
    # Twice as many as calls in flight, without an outcome.
    assert max(seen) <= 2 * 3 + 1


def test_a_limit_takes_so_many_messages_and_leaves_the_others(world: World) -> None:
    sent = world.fill(10)
    report = world.run(answer, limit=4, until_empty=False)
    assert (report.succeeded, report.is_complete) == (4, True)
    assert world.outcomes() == Counter(sent[:4])
    assert world.handed(10, "other") == sent[4:]


def test_connections_that_break_lose_and_repeat_nothing(world: World) -> None:
    sent = world.fill(60)
    asked = 0

    async def breaking(row: dict[str, Any]) -> str:
        nonlocal asked
        asked += 1
        if asked % 15 == 0:
            world.redis.client_kill_filter(_type="normal", skipme=True)
        await asyncio.sleep(0.005)
        return "done"

    report = world.run(breaking)
    assert (report.succeeded, report.is_complete) == (60, True)
    assert world.outcomes() == Counter(sent)
    assert world.pending() == 0


def test_a_run_that_is_asked_to_end_hands_back_what_it_has_not_begun(world: World) -> None:
    sent = world.fill(30)
    output = world.folder / "a.jsonl"
    with serving("--latency", "0.2-0.3") as sim:
        with started(consumer_flags(world.url(), output, sim, "-c", "2")) as process:
            await_lines(output, 4, process)
            process.send_signal(signal.SIGTERM)
            status, _, err = ended(process)
        assert status == 130, err
        done = len(sealed_lines(output))
        assert 4 <= done < 30
        # All that is durable is acknowledged.
        assert set(pending_ids(world)).isdisjoint(world.outcomes())
        assert len(sent) - done == 30 - len(world.outcomes())
    # Idle for 60 s would be too long for this test: they are anybody's at once.
    world.run(answer, "b")
    assert world.outcomes() == Counter(sent)
    assert world.pending() == 0


def test_a_consumer_that_ends_hands_back_all_that_it_holds(world: World) -> None:
    """A turn of Redis takes 5,000 of them; what is being written stays with its consumer."""
    pipeline = world.redis.pipeline()
    for number in range(10_002):
        pipeline.xadd("tickets", {"text": str(number)})
    sent = [message_id.decode() for message_id in pipeline.execute()]

    async def take_and_release() -> None:
        url = stream_of(world.url())
        assert url is not None
        group = Group(url)
        await group.open(b"a")
        assert len(await group.new(len(sent), 0.1)) == len(sent)
        assert await group.mark([sent[0].encode(), sent[-1].encode()]) == [True, True]
        await group.release()
        await group.aclose()

    asyncio.run(take_and_release())
    idle: Any = world.redis.xpending_range("tickets", "labels", "-", "+", len(sent), idle=60_000)
    assert [each["message_id"].decode() for each in idle] == sent[1:-1]


def test_a_user_of_redis_need_not_be_allowed_to_load_scripts(world: World) -> None:
    """To evaluate them is enough."""
    world.redis.execute_command("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all", "-script")
    world.redis.script_flush()
    world.fill(3)

    async def take_and_mark() -> list[bool]:
        url = stream_of(world.url().replace("redis://", "redis://bob:pw@"))
        assert url is not None
        group = Group(url)
        await group.open(b"a")
        try:
            return await group.mark([entry.id for entry in await group.new(3, 0.1)])
        finally:
            await group.aclose()

    assert asyncio.run(take_and_mark()) == [True] * 3


def test_an_answer_that_waits_for_redis_as_its_run_is_given_up_is_saved(
    server: RedisServer, world: World
) -> None:
    """Redis is stopped until the run's deadline, and goes on as the calls are cancelled."""
    assert server.process is not None
    sent, process = world.fill(2), server.process
    has_second = asyncio.Event()

    async def call(row: dict[str, Any]) -> str:
        if row["custom_id"] == sent[0]:
            await has_second.wait()
            process.send_signal(signal.SIGSTOP)
            return "done"
        has_second.set()
        try:
            await asyncio.sleep(1000)
        finally:
            process.send_signal(signal.SIGCONT)
        return "never"

    report = world.run(call, deadline_s=0.5)
    assert (report.succeeded, report.unfinished) == (1, 1)
    assert world.outcomes() == Counter(sent[:1])


def pending_ids(world: World) -> list[str]:
    found: Any = world.redis.xpending_range("tickets", "labels", "-", "+", 1000)
    return [entry["message_id"].decode() for entry in found]


def test_messages_that_come_later_are_done_as_they_come(world: World) -> None:
    async def main() -> list[Any]:
        found = []
        stream = redline.stream(world.url(), call=answer, output=world.folder / "a.jsonl")
        for number in range(3):
            world.redis.xadd("tickets", {"text": f"message {number}"})
            found.append((await anext(stream)).output)
        await stream.aclose()
        return found

    assert asyncio.run(main()) == ["MESSAGE 0", "MESSAGE 1", "MESSAGE 2"]


def test_a_password_is_in_no_file_and_on_no_terminal(world: World) -> None:
    world.redis.execute_command("ACL", "SETUSER", "bob", "on", ">s3cret", "~*", "+@all")
    world.fill(3)
    flags = ["--prompt", "{{ text }}", "--endpoint", "sim", "-o", "out.jsonl"]
    for name, password, status in (("bob", "s3cret", 0), ("bob", "wr0ng", 2), ("eve", "s3cret", 2)):
        url = world.url().replace("redis://", f"redis://{name}:{password}@")
        told = command("run", url, *flags, "--until-empty", cwd=world.folder)
        assert told.returncode == status, told.stderr
        assert password not in told.stderr + told.stdout
        assert told.stderr
    for path in world.folder.rglob("*"):
        if path.is_file():
            assert b"s3cret" not in path.read_bytes(), path


def test_a_redis_that_is_not_there_or_holds_something_else_is_told(world: World) -> None:
    with pytest.raises(redline.ConfigError, match="does not answer: "):
        world.run(answer, url="redis://127.0.0.1:1/0/tickets?group=g")
    world.redis.set("tickets", "text")
    with pytest.raises(redline.ConfigError, match="refuses: WRONGTYPE"):
        world.run(answer)


def test_a_stream_is_not_planned(world: World) -> None:
    world.fill(1)
    flags = ["--endpoint", "sim", "--dry-run", "-o", "a.jsonl"]
    told = command("run", world.url(), *flags, cwd=world.folder)
    assert told.returncode == 2
    assert "which only a run can read, because each message goes to one run" in told.stderr
    assert world.redis.xinfo_groups("tickets") == []


def test_a_stream_that_is_filled_again_with_the_same_ids_is_asked_again(world: World) -> None:
    async def echo(row: dict[str, Any]) -> str:
        return str(row["text"])

    def fill(word: str) -> None:
        for number in range(1, 4):
            world.redis.xadd("tickets", {"text": f"{word} {number}"}, id=f"{number}-1")

    fill("old")
    assert world.run(echo).succeeded == 3
    world.redis.delete("tickets")
    fill("new")
    report = world.run(echo)
    assert (report.succeeded, report.skipped, world.pending()) == (3, 0, 0)
    lines = (world.folder / "a.jsonl").read_text("utf-8").splitlines()
    answers = {json.loads(line)["output"] for line in lines}
    assert answers == {f"{word} {number}" for word in ("old", "new") for number in range(1, 4)}
    # What is left of an earlier run is still known: it needs an acknowledgement only.
    assert world.run(echo).offered == 0
