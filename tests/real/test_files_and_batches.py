"""Files and batches behind a relay, with the openai SDK as the client and `sim` as the endpoint."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from redline.calls import Endpoint, HttpBackend, RetryPolicy
from redline.errors import JournalError
from redline.limits import Limits
from redline.serve.batches import Batches, BatchSettings, life, shelf
from redline.serve.http import Relay
from redline.sim import Constant, SimSettings, parse_faults
from redline.sim.server import Sim
from support.batch_files import (
    CHAT,
    QUICK,
    Counted,
    begun,
    client_of,
    line,
    lines,
    named,
    over,
    publishing,
    results,
)
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120), pytest.mark.usefixtures("no_proxy")]


class World:
    """A sim, an endpoint of it, and what is published."""

    def __init__(self, sim: Sim, backend: Counted, relay: Relay, batches: Batches) -> None:
        self.sim = sim
        self.backend = backend
        self.relay = relay
        self.batches = batches


@asynccontextmanager
async def world(
    state: Path, settings: BatchSettings = QUICK, *, slots: int = 16, **sim_settings: Any
) -> AsyncIterator[World]:
    async with Sim(SimSettings(**sim_settings)) as sim:
        endpoint = Endpoint(base_url=sim.base_url, limits=Limits(concurrency=slots))
        backend = Counted(HttpBackend(endpoint))
        async with publishing(state, backend, settings) as (relay, batches):
            yield World(sim, backend, relay, batches)
        await backend.aclose()


async def test_a_batch_goes_from_its_upload_to_its_results(tmp_path: Path) -> None:
    async with world(tmp_path) as there, client_of(there.relay) as client:
        data = lines(100)
        file = await client.files.create(
            file=named(data, 'na"me \u00fc.jsonl'),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 7200},
        )
        assert (file.bytes, file.purpose, file.status) == (len(data), "batch", "processed")
        assert file.expires_at == file.created_at + 7200
        assert (await client.files.content(file.id)).content == data
        made = await client.batches.create(
            input_file_id=file.id,
            endpoint=CHAT,
            completion_window="24h",
            metadata={"run": "x"},
        )
        assert (made.status, made.metadata) == ("validating", {"run": "x"})
        assert made.expires_at == made.created_at + 24 * 3600
        # The batch has its lines by now, whatever becomes of the file.
        assert (await client.files.delete(file.id)).deleted
        done = await over(client, made.id)
        assert done.status == "completed", done
        counts = done.request_counts
        assert (counts.total, counts.completed, counts.failed) == (100, 100, 0)
        times = (done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at)
        assert list(times) == sorted(times)
        assert done.error_file_id is None
        found = await results(client, done.output_file_id)
        assert {one["custom_id"] for one in found} == {f"r{n}" for n in range(100)}
        assert {(*one,) for one in found} == {("id", "custom_id", "response", "error")}
        assert len({one["id"] for one in found}) == 100
        tokens = 0
        for one in found:
            assert one["error"] is None
            assert one["response"]["status_code"] == 200
            body = one["response"]["body"]
            assert body["choices"][0]["message"]["content"]
            tokens += body["usage"]["total_tokens"]
        assert done.usage is not None
        assert done.usage.total_tokens == tokens
        output = await client.files.retrieve(done.output_file_id)
        assert (output.purpose, output.filename) == ("batch_output", f"{made.id}_output.jsonl")
        assert there.backend.calls == 100
        assert there.backend.priorities == {20}
        assert set(there.backend.tenants) == {"a"}
        assert there.batches.unfinished() == []


async def test_lines_that_fail_are_in_the_error_file(tmp_path: Path) -> None:
    asked = [line(f"r{n}") for n in range(5)]
    asked[1]["body"] = {"model": "m"}
    asked[3]["body"]["stream"] = True
    data = b"\n".join(json.dumps(one).encode() for one in asked)
    async with world(tmp_path) as there, client_of(there.relay) as client:
        done = await over(client, (await begun(client, data)).id)
        assert done.status == "completed"
        counts = done.request_counts
        assert (counts.total, counts.completed, counts.failed) == (5, 3, 2)
        found = await results(client, done.output_file_id)
        assert {one["custom_id"] for one in found} == {"r0", "r2", "r4"}
        wrong = {one["custom_id"]: one for one in await results(client, done.error_file_id)}
        # The endpoint's own answer; and a line that is not sent.
        assert wrong["r1"]["response"]["status_code"] == 400
        assert "messages" in wrong["r1"]["response"]["body"]["error"]["message"]
        assert wrong["r1"]["error"] is None
        assert wrong["r3"]["response"] is None
        assert "stream" in wrong["r3"]["error"]["message"]


async def test_a_batch_whose_lines_all_fail_is_completed_without_a_pause(tmp_path: Path) -> None:
    asked = [line(f"r{n}", body={"model": "m"}) for n in range(600)]
    data = b"\n".join(json.dumps(one).encode() for one in asked)
    async with world(tmp_path) as there, client_of(there.relay) as client:
        # A run that ends at each hundred failures would pause for 31 s in all.
        done = await over(client, (await begun(client, data)).id, within_s=15)
        assert (done.status, done.request_counts.failed) == ("completed", 600)
        assert there.backend.calls == 600


async def test_lines_whose_endpoint_fails_are_tried_again(tmp_path: Path) -> None:
    faults = parse_faults(["503=0.2", "429=0.1"])
    settings = msgspec.structs.replace(QUICK, retry=RetryPolicy(base_s=0.01, cap_s=0.02))
    async with world(tmp_path, settings, faults=faults) as there, client_of(there.relay) as client:
        done = await over(client, (await begun(client, lines(60))).id)
        assert (done.status, done.request_counts.completed) == ("completed", 60)
        assert there.backend.calls > 60


BAD = {
    "bad JSON": (b'{"custom_id": \n', "invalid_json_line", 2),
    "no object": (b"[1]\n", "invalid_type", 2),
    "no body": (b'{"custom_id":"b","method":"POST","url":"/v1/chat/completions"}\n',
                "missing_required_parameter", 2),
    "twice": (json.dumps(line("r0")).encode(), "duplicate_custom_id", 2),
    "another url": (json.dumps(line("b", url="/v1/embeddings")).encode(), "invalid_url", 2),
    "no name": (json.dumps(line("")).encode(), "missing_required_parameter", 2),
    "body of text": (json.dumps(line("b", body="x")).encode(), "invalid_type", 2),
    "not UTF-8": (b'{"custom_id": "\xff"}', "invalid_json_line", 2),
    "too many": (lines(9)[len(lines(1)):], "too_many_requests", None),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_a_wrong_file_fails_its_batch_with_the_line(tmp_path: Path, case: str) -> None:
    data, code, number = BAD[case]
    settings = msgspec.structs.replace(QUICK, most_lines=8)
    async with world(tmp_path, settings) as there, client_of(there.relay) as client:
        done = await over(client, (await begun(client, lines(1) + data)).id)
        assert done.status == "failed"
        assert done.failed_at is not None
        assert [(one.code, one.line) for one in done.errors.data] == [(code, number)]
        assert there.backend.calls == 0


async def test_a_line_about_as_deep_as_python_can_read_is_not_lost(tmp_path: Path) -> None:
    async with world(tmp_path) as there, client_of(there.relay) as client:
        for depth in range(980, 995):
            text = json.dumps(line("b", body={"model": "m", "x": "@"}))
            data = text.replace('"@"', "[" * depth + "]" * depth).encode()
            done = await over(client, (await begun(client, lines(1) + data)).id)
            counts = done.request_counts
            assert done.status == "failed" or counts.completed + counts.failed == 2


async def test_nothing_of_what_a_full_disk_refused_stays_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise JournalError(f"cannot write {path}: No space left on device")

    async with world(tmp_path) as there, client_of(there.relay) as client:
        kept = await client.files.create(file=named(lines(1)), purpose="batch")
        with monkeypatch.context() as patch:
            patch.setattr(shelf, "write_file", full)
            for asked in (
                client.files.create(file=named(lines(2)), purpose="batch"),
                client.batches.create(
                    input_file_id=kept.id, endpoint=CHAT, completion_window="24h"
                ),
            ):
                with pytest.raises(
                    openai.InternalServerError, match="cannot read or write"
                ) as caught:
                    await asked
                assert caught.value.status_code == 507
        files = tmp_path / "files"
        await until(lambda: sorted(files.iterdir()) == [files / kept.id, files / f"{kept.id}.json"])
        await until(lambda: list((tmp_path / "batches").iterdir()) == [])
        done = await over(client, (await begun(client, lines(3))).id)
        assert done.request_counts.completed == 3


async def test_a_cancelled_batch_keeps_what_it_has_answered(tmp_path: Path) -> None:
    async with (
        world(tmp_path, slots=4, latency=Constant(0.05)) as there,
        client_of(there.relay) as client,
    ):
        made = await begun(client, lines(400))
        await until(lambda: there.backend.calls > 40)
        cancelling = await client.batches.cancel(made.id)
        assert cancelling.status == "cancelling"
        assert cancelling.cancelling_at is not None
        done = await over(client, made.id)
        assert done.status == "cancelled"
        found = await results(client, done.output_file_id)
        late = await results(client, done.error_file_id)
        names = [one["custom_id"] for one in (*found, *late)]
        assert sorted(names) == sorted(f"r{n}" for n in range(400))
        assert found
        assert {one["error"]["code"] for one in late} == {"batch_cancelled"}
        counts = done.request_counts
        assert (counts.completed, counts.failed) == (len(found), len(late))
        calls = there.backend.calls
        text = "Cannot cancel a batch with status 'cancelled'."
        with pytest.raises(openai.ConflictError, match=text):
            await client.batches.cancel(made.id)
        await asyncio.sleep(0.2)
        assert there.backend.calls == calls


async def test_a_batch_whose_window_is_over_expires_with_what_it_has(tmp_path: Path) -> None:
    async with (
        world(tmp_path, slots=4, latency=Constant(0.05)) as there,
        client_of(there.relay) as client,
    ):
        made = await begun(client, lines(2000), completion_window="2s")
        done = await over(client, made.id)
        assert done.status == "expired"
        assert done.expired_at >= done.expires_at
        found = await results(client, done.output_file_id)
        late = await results(client, done.error_file_id)
        assert found
        assert {one["error"]["code"] for one in late} == {"batch_expired"}
        assert len(found) + len(late) == 2000


async def test_batches_wait_for_their_turn_and_run_side_by_side(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(QUICK, tenant_running=2, running=3)
    async with (
        world(tmp_path, settings) as there,
        client_of(there.relay, "a") as one,
        client_of(there.relay, "b") as other,
    ):
        there.backend.go.clear()
        mine = [await begun(one, lines(20)) for _ in range(4)]
        yours = [await begun(other, lines(20)) for _ in range(2)]

        def running() -> list[str]:
            return [b.tenant for b in there.batches.unfinished() if b.state == "in_progress"]

        await until(lambda: sorted(running()) == ["a", "a", "b"])
        states = [b.state for b in there.batches.unfinished()]
        assert sorted(states) == ["in_progress"] * 3 + ["validating"] * 3
        there.backend.go.set()
        for client, made in ((one, mine), (other, yours)):
            for batch in made:
                assert (await over(client, batch.id)).status == "completed"
        # Of each tenant a few more than the endpoint has slots.
        assert there.backend.most <= 2 * (16 + 16)
        assert there.backend.calls == 120


async def test_an_endpoint_that_is_down_holds_a_batch_up_and_does_not_end_it(
    tmp_path: Path,
) -> None:
    settings = SimSettings()
    async with Sim(settings) as sim:
        url = sim.base_url
    backend = Counted(HttpBackend(Endpoint(base_url=url)))
    port = int(url.removesuffix("/v1").rpartition(":")[2])
    async with publishing(tmp_path, backend) as (relay, _), client_of(relay) as client:
        made = await begun(client, lines(10))
        await until(lambda: backend.calls > 0)
        await asyncio.sleep(0.5)
        assert (await client.batches.retrieve(made.id)).status == "in_progress"
        async with Sim(msgspec.structs.replace(settings, port=port)):
            assert (await over(client, made.id)).status == "completed"
    await backend.aclose()


async def test_lists_come_in_pages(tmp_path: Path) -> None:
    async with world(tmp_path) as there, client_of(there.relay) as client:
        made = [await begun(client, lines(1)) for _ in range(5)]
        for batch in made:
            await over(client, batch.id)
        newest = [batch.id for batch in reversed(made)]
        assert [batch.id async for batch in client.batches.list(limit=2)] == newest
        page = await client.batches.list(limit=2)
        assert [batch.id for batch in page.data] == newest[:2]
        assert page.has_more
        inputs = [file.id async for file in client.files.list(purpose="batch", limit=2)]
        assert inputs == [batch.input_file_id for batch in reversed(made)]
        outputs = [file async for file in client.files.list(purpose="batch_output", order="asc")]
        assert len(outputs) == 5
        everything = [file.id async for file in client.files.list(limit=3)]
        assert everything == sorted(everything, reverse=True)
        assert len(everything) == 10
        # A client that deletes what it has seen still sees all that follows.
        seen = 0
        async for file in client.files.list(limit=3):
            await client.files.delete(file.id)
            seen += 1
        assert seen == 10
        assert [file.id async for file in client.files.list()] == []
        for query in ({"limit": 0}, {"limit": 101}, {"limit": "x"}):
            with pytest.raises(openai.BadRequestError, match="limit"):
                await client.batches.list(extra_query=query)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no file": ({"input_file_id": "file-none"}, "No such File"),
    "another path": ({"input_file_id": "../lock"}, "No such File"),
    "an endpoint that is none": ({"endpoint": "/v1/files"}, "endpoint must be"),
    "no window": ({"completion_window": "soon"}, "completion window"),
    "too long a window": ({"completion_window": "800h"}, "completion window"),
    "much metadata": ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    "long metadata": ({"metadata": {"a": "x" * 513}}, "characters"),
    "metadata of numbers": ({"metadata": {"a": 1}}, "not valid"),
    "no endpoint": ({"endpoint": None}, "not valid"),
    "another anchor": ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "anchor"),
    "too short": ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "seconds"),
}


async def test_a_batch_that_is_asked_for_wrongly_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as there, client_of(there.relay) as client:
        file = await client.files.create(file=named(lines(1)), purpose="batch")
        right = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        for wrong, words in REFUSED.values():
            with pytest.raises(openai.APIStatusError, match=words) as caught:
                await client.batches.create(**right, extra_body=wrong)
            assert caught.value.status_code in (400, 404)
        with pytest.raises(openai.NotFoundError):
            await client.batches.retrieve("batch_none")
        with pytest.raises(openai.NotFoundError):
            await client.batches.cancel("batch_none")
        assert [batch.id async for batch in client.batches.list()] == []


async def test_no_tenant_gets_at_what_another_has(tmp_path: Path) -> None:
    async with (
        world(tmp_path) as there,
        client_of(there.relay, "a") as owner,
        client_of(there.relay, "b") as other,
    ):
        done = await over(owner, (await begun(owner, lines(3))).id)
        there.backend.go.clear()
        going = await begun(owner, lines(3))
        files = [done.input_file_id, done.output_file_id]
        tries = [
            *(other.files.retrieve(one) for one in files),
            *(other.files.content(one) for one in files),
            *(other.files.delete(one) for one in files),
            *(other.batches.retrieve(one.id) for one in (done, going)),
            *(other.batches.cancel(one.id) for one in (done, going)),
            *(
                other.batches.create(input_file_id=one, endpoint=CHAT, completion_window="24h")
                for one in files
            ),
        ]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        assert len(answers) == 12
        for answer in answers:
            assert isinstance(answer, openai.NotFoundError)
        # As if it did not exist: the words are those of an id that never was.
        told = str(answers[0]).replace(files[0], "file-none")
        with pytest.raises(openai.NotFoundError) as never:
            await other.files.retrieve("file-none")
        assert str(never.value) == told
        assert [one.id async for one in other.files.list()] == []
        assert [one.id async for one in other.batches.list()] == []
        # Another's id is a place in the order, and tells nothing of what is there.
        page = await other.files.list(after=files[0])
        assert (page.data, page.has_more) == ([], False)
        assert (await owner.batches.retrieve(going.id)).status != "cancelling"
        assert len([one.id async for one in owner.files.list()]) == 3
        there.backend.go.set()
        assert (await over(owner, going.id)).status == "completed"
        with pytest.raises(openai.AuthenticationError):
            await other.files.list(extra_headers={"authorization": "none"})


async def test_a_server_that_is_stopped_goes_on_at_its_next_start(tmp_path: Path) -> None:
    async with Sim(SimSettings(latency=Constant(0.02))) as sim:
        limits = Limits(concurrency=8)
        backend = Counted(HttpBackend(Endpoint(base_url=sim.base_url, limits=limits)))
        async with publishing(tmp_path, backend) as (relay, _), client_of(relay) as client:
            cancelled = await begun(client, lines(300))
            await client.batches.cancel(cancelled.id)
            cancelled = await over(client, cancelled.id)
            made = await begun(client, lines(300))
            await until(lambda: sim.stats()["answered"] > 50)
        before = sim.stats()["received"]
        assert before < 300
        async with publishing(tmp_path, backend) as (relay, batches), client_of(relay) as client:
            assert [one.id for one in batches.unfinished()] == [made.id]
            assert (await client.batches.retrieve(made.id)).status == "in_progress"
            done = await over(client, made.id)
            assert done.status == "completed"
            found = await results(client, done.output_file_id)
            assert sorted(one["custom_id"] for one in found) == sorted(f"r{n}" for n in range(300))
            assert (await client.batches.retrieve(cancelled.id)).status == "cancelled"
            assert len([one async for one in client.batches.list()]) == 2
        await backend.aclose()
        # What was in flight has ended in time, so that nothing was asked twice.
        assert sim.stats()["received"] == 300 + cancelled.request_counts.completed


@asynccontextmanager
async def half_done(state: Path) -> AsyncIterator[tuple[Sim, Counted, Path]]:
    """A batch of 100 lines that a server has begun; the folder of the batch."""
    async with Sim(SimSettings(latency=Constant(0.02))) as sim:
        limits = Limits(concurrency=8)
        backend = Counted(HttpBackend(Endpoint(base_url=sim.base_url, limits=limits)))
        async with publishing(state, backend) as (relay, _), client_of(relay) as client:
            made = await begun(client, lines(100))
            await until(lambda: sim.stats()["answered"] > 20)
        yield sim, backend, state / "batches" / made.id
        await backend.aclose()


# What none of the files can be: a folder, a file that should be one, and a link to itself.
OBSTACLES = {
    "results.jsonl": Path.mkdir,
    "results.redline": Path.touch,
    "input.jsonl": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("name", OBSTACLES)
async def test_files_that_fail_for_a_while_hold_a_batch_up_and_lose_no_answer(
    tmp_path: Path, name: str
) -> None:
    async with half_done(tmp_path) as (sim, backend, folder):
        path, away = folder / name, tmp_path / "away"
        path.rename(away)
        OBSTACLES[name](path)
        async with publishing(tmp_path, backend) as (relay, batches), client_of(relay) as client:
            await until(lambda: batches.unfinished()[0].state != "in_progress")
            (path.rmdir if path.is_dir() else path.unlink)()
            away.rename(path)
            done = await over(client, folder.name)
            assert (done.status, done.request_counts.completed) == ("completed", 100)
        assert sim.stats()["received"] == 100


async def test_a_batch_that_cannot_continue_keeps_its_answers(tmp_path: Path) -> None:
    async with half_done(tmp_path) as (sim, backend, folder):
        (folder / "input.jsonl").unlink()
        async with publishing(tmp_path, backend) as (relay, _), client_of(relay) as client:
            done = await over(client, folder.name)
            assert (done.status, done.errors.data[0].code) == ("failed", "internal_error")
            assert done.failed_at is not None
            assert len(await results(client, done.output_file_id)) == sim.stats()["answered"]
            assert done.error_file_id is None
        assert not folder.exists()


async def test_a_file_that_cannot_be_read_now_is_checked_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_file, failures = life.check_file, [errno.EMFILE]

    def checked(*of: Any) -> Any:
        if failures:
            raise OSError(failures.pop(), "Too many open files")
        return check_file(*of)

    monkeypatch.setattr(life, "check_file", checked)
    async with world(tmp_path) as there, client_of(there.relay) as client:
        done = await over(client, (await begun(client, lines(3))).id)
        assert (done.status, done.request_counts.completed) == ("completed", 3)
