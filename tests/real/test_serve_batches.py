"""Batches through `redline serve`: any model server has OpenAI's Batch API."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from redline.calls import Endpoint, RetryPolicy, Timeouts
from redline.calls.cost import Price
from redline.limits import Limits, Rate
from redline.serve.admission import CLASSES, ClassSettings
from redline.serve.batches import BatchSettings
from redline.serve.gateway import GatewaySettings, Served, gateway_of
from redline.serve.keys import DEFAULT_TENANT, TenantSettings
from redline.sim import Constant, SimSettings
from redline.sim.server import Sim
from support import batch_files
from support.raw_server import RawServer, Seen
from support.serve_process import Serve, keys_of
from support.sim_process import SimProcess, fleet_of
from support.until import until
from support.worker_lines import close_lines, lines_on_one, workers_of

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]


def lines_of(count: int, model: str = "m") -> bytes:
    return b"".join(
        json.dumps(
            {
                "custom_id": f"line {number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": model, "messages": [{"role": "user", "content": str(number)}]},
            }
        ).encode()
        + b"\n"
        for number in range(count)
    )


def begun(client: openai.OpenAI, lines: bytes) -> Any:
    file = client.files.create(file=("in.jsonl", lines), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


def ended(client: openai.OpenAI, batch_id: str, within_s: float = 60.0) -> Any:
    until_s = time.monotonic() + within_s
    while (batch := client.batches.retrieve(batch_id)).status not in ("completed", "failed"):
        assert time.monotonic() < until_s, batch
        time.sleep(0.1)
    return batch


def output_of(client: openai.OpenAI, file_id: str) -> dict[str, Any]:
    found = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


@pytest.mark.timeout(300)
def test_a_batch_survives_kill_9_of_the_gateway_and_every_line_has_one_answer(
    tmp_path: Path,
) -> None:
    count, in_flight = 5_000, 64
    with fleet_of(2, "--latency", "0.05") as sims:
        flags = [word for sim in sims for word in ("--endpoint", sim.base_url)]
        flags += ["-c", str(in_flight)]
        with Serve(tmp_path, *flags) as serve:
            client = serve.client()
            batch = begun(client, lines_of(count))
            until_s = time.monotonic() + 60
            while sum(sim.stats()["answered"] for sim in sims) < count // 2:
                assert time.monotonic() < until_s
                time.sleep(0.02)
            serve.end(signal.SIGKILL)
        assert sum(sim.stats()["answered"] for sim in sims) < count
        with Serve(tmp_path, *flags) as serve:
            client = serve.client()
            batch = ended(client, batch.id, within_s=120)
            assert batch.request_counts.completed == count
            answers = output_of(client, batch.output_file_id)
        assert answers.keys() == {f"line {number}" for number in range(count)}
        for number in range(count):
            body = answers[f"line {number}"]["response"]["body"]
            assert body["choices"][0]["message"]["content"] == f"You said: {number}"
        # What was in flight at the moment of death is asked again.
        received = [sim.stats()["received"] for sim in sims]
        assert sum(received) <= count + in_flight
        # Both have had a large part of it.
        assert min(received) > count // 4


def test_sigterm_stops_a_batch_which_the_next_gateway_ends(tmp_path: Path) -> None:
    with SimProcess("--latency", "0.05") as sim:
        flags = ("--endpoint", sim.base_url, "-c", "8")
        with Serve(tmp_path, *flags) as serve:
            client = serve.client()
            batch = begun(client, lines_of(400))
            until_s = time.monotonic() + 30
            while sim.stats()["answered"] < 100:
                assert time.monotonic() < until_s
                time.sleep(0.02)
            assert serve.end()[0] == 0
        assert sim.stats()["answered"] < 400
        with Serve(tmp_path, *flags) as serve:
            client = serve.client()
            assert ended(client, batch.id).request_counts.completed == 400
        assert sim.stats()["received"] == 400


def test_other_users_of_the_machine_cannot_read_files_and_answers(tmp_path: Path) -> None:
    with SimProcess() as sim, Serve(tmp_path, "--endpoint", sim.base_url) as serve:
        client = serve.client()
        ended(client, begun(client, lines_of(1)).id)
    assert (tmp_path / "redline.serve" / "batches").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_no_tenant_gets_at_files_and_batches_of_another_through_any_worker(
    tmp_path: Path, workers: int
) -> None:
    keys = keys_of(tmp_path, "owner", "other") | {"nobody": "rl-none"}
    with (
        SimProcess() as sim,
        Serve(
            tmp_path,
            *("--endpoint", sim.base_url, "--keys", "keys.jsonl", "--workers", str(workers)),
        ) as serve,
    ):
        owner = serve.client(keys["owner"])
        done = ended(owner, begun(owner, lines_of(3)).id)
        sim.stop()
        going = begun(owner, lines_of(3))

        def tries(file: str, batch: str) -> list[tuple[str, str, Any]]:
            create = {
                "input_file_id": file,
                "endpoint": batch_files.CHAT,
                "completion_window": "24h",
            }
            return [
                ("GET", f"/v1/files/{file}", None),
                ("GET", f"/v1/files/{file}/content", None),
                ("DELETE", f"/v1/files/{file}", None),
                ("POST", "/v1/batches", create),
                ("GET", f"/v1/batches/{batch}", None),
                ("POST", f"/v1/batches/{batch}/cancel", {}),
            ]

        for name in workers_of(serve.url, workers):
            lines = {who: lines_on_one(serve.url, 1, name, key)[0] for who, key in keys.items()}
            # The second is still in flight.
            ids = [(done.input_file_id, done.id), (done.output_file_id, going.id)]
            for file, batch in ids:
                never = tries("file-none", "batch-none")
                for asked, unknown in zip(tries(file, batch), never, strict=True):
                    assert lines["nobody"].request(*asked)[0] == 401, asked
                    status, told = lines["other"].request(*asked)
                    assert status == 404, asked
                    # As if it did not exist: in the words for an id that never was.
                    told = told.replace(file.encode(), b"file-none")
                    told = told.replace(batch.encode(), b"batch-none")
                    assert told == lines["other"].request(*unknown)[1]
                for path in ("files", "batches", f"files?after={file}", f"batches?after={batch}"):
                    assert lines["nobody"].request("GET", f"/v1/{path}")[0] == 401
                    assert lines["other"].get(f"/v1/{path}")["data"] == []
            assert len(lines["owner"].get("/v1/files")["data"]) == 3
            assert len(lines["owner"].get("/v1/batches")["data"]) == 2
        close_lines()
        sim.go_on()
        assert ended(owner, going.id).request_counts.completed == 3
        assert output_of(owner, done.output_file_id).keys() == {f"line {n}" for n in range(3)}
        assert sim.stats()["received"] == 6


# A tenant that may use one of two models; its limits may follow.
TWO_MODELS = """\
[serve]
keys = "keys.jsonl"
[endpoints.one]
base_url = "{url}"
models = {{ fast = "m", other = "n" }}
[tenants.{tenant}]
models = ["fast"]
"""


def test_a_line_cannot_name_a_model_that_its_tenant_may_not_use_beside_one_that_it_may(
    tmp_path: Path,
) -> None:
    """As in a call: some servers read `Model` as well, or the first of two equal keys."""
    with SimProcess() as sim:
        toml = TWO_MODELS.format(url=sim.base_url, tenant="team")
        key = keys_of(tmp_path, "team")["team"]
        bodies = {
            "allowed": '{"model": "fast", "messages": []}',
            "upper": '{"model": "fast", "MODEL": "other", "messages": []}',
            "own name": '{"model": "n", "messages": []}',
            "none": '{"messages": []}',
            "ill-typed": '{"model": "other", "max_tokens": 0.5, "messages": []}',
            "ill-typed, allowed": '{"model": "fast", "max_tokens": 0.5, "messages": []}',
            "twice": '{"model": "fast", "model": "other", "messages": []}',
        }
        rows = "".join(
            f'{{"custom_id": "{name}", "method": "POST", "url": "/v1/chat/completions",'
            f' "body": {body}}}\n'
            for name, body in bodies.items()
        )
        with Serve(tmp_path, toml=toml) as serve:
            client = serve.client(key)
            batch = ended(client, begun(client, rows.encode()).id)
            errors = output_of(client, batch.error_file_id)
        refused = {name for name, line in errors.items() if "model" in json.dumps(line)}
        assert refused == {"upper", "own name", "none", "ill-typed", "twice"}
        # The two that name an allowed model alone: its answer is the server's.
        assert sim.stats()["received"] == 2


def test_a_batch_waits_for_its_tenants_limits_and_refuses_models_that_it_may_not_use(
    tmp_path: Path,
) -> None:
    with SimProcess() as sim:
        toml = TWO_MODELS.format(url=sim.base_url, tenant="slow") + 'requests = ["20/2s"]\n'
        key = keys_of(tmp_path, "slow")["slow"]
        with Serve(tmp_path, toml=toml) as serve:
            client = serve.client(key)
            began_s = time.monotonic()
            lines = lines_of(50, "fast") + lines_of(1, "other").replace(b"line 0", b"wrong")
            batch = ended(client, begun(client, lines).id)
            took_s = time.monotonic() - began_s
            counts = batch.request_counts
            assert (counts.completed, counts.failed) == (50, 1)
            errors = output_of(client, batch.error_file_id)
            refused = errors["wrong"]["response"]
            assert refused["status_code"] == 404
            assert refused["body"]["error"]["code"] == "model_not_found"
        # 50 of 20 in 2 s: two whole windows pass.
        assert took_s >= 4
        assert sim.stats()["received"] == 50


def test_bounds_of_batches_are_those_of_the_settings(tmp_path: Path) -> None:
    with SimProcess("--latency", "5") as sim:
        toml = f"""
            [endpoints.one]
            base_url = "{sim.base_url}"
            [serve.batches]
            file_size = "2k"
            lines = 3
            queued = 2
            kept = "2h"
            longest_window = "24h"
        """
        with Serve(tmp_path, toml=toml) as serve:
            client = serve.client()
            with pytest.raises(openai.APIStatusError) as caught:
                client.files.create(file=("in.jsonl", lines_of(30)), purpose="batch")
            assert caught.value.status_code == 413
            failed = ended(client, begun(client, lines_of(4)).id)
            assert (failed.status, failed.errors.data[0].code) == ("failed", "too_many_requests")
            file = client.files.create(file=("in.jsonl", lines_of(3)), purpose="batch")
            assert file.expires_at - file.created_at == 7200
            facts: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions"}
            with pytest.raises(openai.BadRequestError):
                client.batches.create(completion_window="25h", **facts)
            # Two batches of one file, and no third one.
            for _ in range(2):
                client.batches.create(completion_window="24h", **facts)
            with pytest.raises(openai.RateLimitError) as over:
                client.batches.create(completion_window="24h", **facts)
            assert over.value.code == "too_many_batches"


@asynccontextmanager
async def gateway(
    state: Path, sim: Sim, slots: int, **settings: Any
) -> AsyncIterator[tuple[Served, openai.AsyncOpenAI]]:
    endpoint = Endpoint(base_url=sim.base_url, limits=Limits(concurrency=slots))
    made = GatewaySettings(endpoints=(endpoint,), port=0, state=state, **settings)
    async with gateway_of(made) as served, client_of(served) as client:
        yield served, client


def client_of(served: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=served.gateway.base_url, api_key="none", max_retries=0)


async def test_at_the_end_the_calls_of_a_batch_have_as_long_as_other_calls(tmp_path: Path) -> None:
    async with Sim(SimSettings(latency=Constant(1.0))) as sim:
        bounds = BatchSettings(grace_s=0.1)
        async with gateway(tmp_path, sim, 4, batches=bounds, drain_s=20.0) as (_, client):
            batch = await batch_files.begun(client, batch_files.lines(4))
            await until(lambda: sim.stats()["received"] == 4)
        async with gateway(tmp_path, sim, 4) as (_, client):
            done = await batch_files.over(client, batch.id)
            assert done.request_counts.completed == 4
        assert sim.stats()["received"] == 4


async def test_calls_in_flight_when_the_window_of_a_batch_is_over_are_in_its_output(
    tmp_path: Path,
) -> None:
    """They are paid for; no other line is begun."""
    async with (
        Sim(SimSettings(latency=Constant(5.0))) as sim,
        gateway(tmp_path, sim, 4) as (_, client),
    ):
        batch = await batch_files.begun(client, batch_files.lines(9), completion_window="4s")
        done = await batch_files.over(client, batch.id)
        assert (done.status, sim.stats()["received"]) == ("expired", 4)
        assert done.request_counts.completed == 4
        late = await batch_files.results(client, done.error_file_id)
        assert [one["error"]["code"] for one in late] == ["batch_expired"] * 5


async def test_lines_of_a_model_that_is_down_leave_room_for_those_of_others(tmp_path: Path) -> None:
    async def hang(_: Seen, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)

    async with Sim(SimSettings()) as sim, RawServer(hang) as server:
        late = Timeouts(first_byte_s=1.0)
        endpoints = (
            Endpoint(name="up", base_url=sim.base_url, models={"up": "m"}),
            Endpoint(name="down", base_url=server.base_url, models={"down": "n"}, timeouts=late),
        )
        settings = GatewaySettings(
            endpoints=endpoints,
            port=0,
            state=tmp_path,
            tenants={DEFAULT_TENANT: TenantSettings(concurrency=10)},
        )
        async with gateway_of(settings) as served, client_of(served) as client:
            await batch_files.begun(client, lines_of(40, "down"))
            limits = served.gateway.gates.tenants.of(DEFAULT_TENANT).limits
            await until(lambda: len(server.seen) > 10 and limits.in_flight == 1)
            batch = await batch_files.begun(client, lines_of(40, "up"))
            done = await batch_files.over(client, batch.id)
            assert done.request_counts.completed == 40
            assert limits.in_flight <= 1, "one line finds out whether the model works again"


async def test_lines_that_the_gateway_itself_refuses_are_tried_until_there_is_room(
    tmp_path: Path,
) -> None:
    classes = (*CLASSES[:2], ClassSettings(name="low", priority=20, longest_wait_s=0.2))
    bounds = BatchSettings(retry=RetryPolicy(max_retries=1, base_s=0.01, cap_s=0.02))
    async with (
        Sim(SimSettings(latency=Constant(0.1))) as sim,
        gateway(tmp_path, sim, 1, classes=classes, batches=bounds) as (_, client),
    ):
        batch = await batch_files.begun(client, batch_files.lines(15))
        done = await batch_files.over(client, batch.id)
        assert (done.request_counts.completed, done.request_counts.failed) == (15, 0)


async def test_lines_that_were_not_sent_cost_nothing(tmp_path: Path) -> None:
    tenants = {DEFAULT_TENANT: TenantSettings(requests=(Rate(12, 3600.0),))}
    async with (
        Sim(SimSettings(latency=Constant(0.3))) as sim,
        gateway(tmp_path, sim, 1, tenants=tenants) as (served, client),
    ):
        limits = served.gateway.gates.tenants.of(DEFAULT_TENANT).limits
        batch = await batch_files.begun(client, batch_files.lines(10))
        # One is in flight, and the others wait for their turn.
        await until(lambda: limits.in_flight == 10)
        await client.batches.cancel(batch.id)
        done = await batch_files.over(client, batch.id)
        for _ in range(12 - done.request_counts.completed):
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hello"}]
            )


async def test_a_line_that_may_exceed_a_limit_of_its_tenant_is_answered(tmp_path: Path) -> None:
    tenants = {DEFAULT_TENANT: TenantSettings(tokens=(Rate(4_000, 0.5),))}
    async with (
        Sim(SimSettings()) as sim,
        gateway(tmp_path, sim, 1, tenants=tenants) as (_, client),
    ):
        # By their bytes 5,000 tokens and 10,000; surely 2,400 and 4,800.
        lines = [
            {
                "custom_id": str(letters),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "messages": [{"role": "user", "content": "x" * letters}]},
            }
            for letters in (20_000, 40_000)
        ]
        batch = await batch_files.begun(
            client, b"\n".join(json.dumps(one).encode() for one in lines)
        )
        done = await batch_files.over(client, batch.id)
        assert (done.request_counts.completed, done.request_counts.failed) == (1, 1)


async def test_a_line_that_no_endpoint_takes_costs_nothing(tmp_path: Path) -> None:
    tenants = {DEFAULT_TENANT: TenantSettings(requests=(Rate(2, 3600.0),))}
    async with Sim(SimSettings()) as sim:
        endpoint = Endpoint(base_url=sim.base_url, limits=Limits(tokens=Rate(1_000, 0.1)))
        settings = GatewaySettings(endpoints=(endpoint,), port=0, state=tmp_path, tenants=tenants)
        async with (
            gateway_of(settings) as served,
            openai.AsyncOpenAI(
                base_url=served.gateway.base_url, api_key="none", max_retries=0
            ) as client,
        ):
            line = lines_of(1).replace(b'"content": "0"', b'"content": "%b"' % (b"x" * 20_000))
            batch = await batch_files.begun(client, line)
            done = await batch_files.over(client, batch.id)
            assert done.request_counts.failed == 1
            assert [await ask(client) for _ in range(3)] == [200, 200, 429]


async def ask(client: openai.AsyncOpenAI) -> int:
    """The status of an interactive call."""
    try:
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], max_tokens=4
        )
    except openai.APIStatusError as error:
        return error.status_code
    return 200


@pytest.mark.parametrize(
    "limits", [TenantSettings(concurrency=4), TenantSettings(requests=(Rate(40, 1.0),))]
)
async def test_a_batch_leaves_room_for_interactive_calls_of_its_tenant(
    tmp_path: Path, limits: TenantSettings
) -> None:
    async with (
        Sim(SimSettings(latency=Constant(0.05))) as sim,
        gateway(tmp_path, sim, 16, tenants={DEFAULT_TENANT: limits}) as (_, client),
    ):
        batch = await batch_files.begun(client, batch_files.lines(2_000))
        await until(lambda: sim.stats()["received"] > 20)
        statuses = []
        for _ in range(10):
            statuses.append(await ask(client))
            await asyncio.sleep(0.3)
        assert statuses == [200] * 10
        await client.batches.cancel(batch.id)
        await batch_files.over(client, batch.id)


async def test_batches_run_in_the_class_low_whatever_its_priority(tmp_path: Path) -> None:
    classes = tuple(
        ClassSettings(name=name, priority=priority)
        for name, priority in (("high", 20), ("normal", 200), ("low", 300))
    )
    async with (
        Sim(SimSettings()) as sim,
        gateway(tmp_path, sim, 4, classes=classes) as (served, client),
    ):
        batch = await batch_files.begun(client, batch_files.lines(5))
        await batch_files.over(client, batch.id)
        shown = served.gateway.watch.snapshot().classes
        assert {one.name: one.admitted for one in shown} == {"high": 0, "normal": 0, "low": 5}


async def test_lines_count_as_calls_of_their_tenant_and_in_the_rate(tmp_path: Path) -> None:
    async with (
        Sim(SimSettings(latency=Constant(0.05))) as sim,
        gateway(tmp_path, sim, 4) as (served, client),
    ):
        batch = await batch_files.begun(client, batch_files.lines(200))
        snapshot = served.gateway.watch.snapshot
        await until(lambda: snapshot().answers_per_s > 10)
        await batch_files.over(client, batch.id)
        (tenant,) = snapshot().tenants
        assert (tenant.name, tenant.calls, tenant.refused) == (DEFAULT_TENANT, 200, 0)
        assert tenant.tokens > 400
        assert served.gateway.totals.answers == {("other", "low", "200"): 200}


async def test_calls_that_are_told_to_come_back_later_are_not_in_the_rate(tmp_path: Path) -> None:
    tenants = {DEFAULT_TENANT: TenantSettings(requests=(Rate(1, 3600.0),))}
    async with (
        Sim(SimSettings()) as sim,
        gateway(tmp_path, sim, 4, tenants=tenants) as (served, client),
    ):
        statuses = [await ask(client) for _ in range(5)]
        assert statuses == [200, *[429] * 4]
        snapshot = served.gateway.watch.snapshot
        await until(lambda: len(snapshot().history) >= 2)
        # One answer in the first second.
        assert 0.5 < sum(one.answers for one in snapshot().history) < 2


async def test_without_keys_what_was_spent_today_survives_a_restart(tmp_path: Path) -> None:
    # An answer of 4 tokens costs 0.004 dollars.
    facts: Any = {
        "prices": {"m": Price(input=1_000, cached_input=1_000, output=10**9)},
        "tenants": {DEFAULT_TENANT: TenantSettings(picodollars_per_day=6_000_000_000)},
    }
    async with Sim(SimSettings()) as sim:
        for expected in ([200, 429], [429]):
            async with gateway(tmp_path / "state", sim, 4, **facts) as (_, client):
                assert [await ask(client) for _ in expected] == expected
