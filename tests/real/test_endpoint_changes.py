"""New endpoints for a gateway with calls in flight: bounds hold, and each call finds its model."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import openai
import pytest

from redline.calls import Endpoint
from redline.calls.cache import Cache
from redline.calls.cost import Price
from redline.errors import ConfigError
from redline.limits import Limits, Rate
from redline.serve.gateway import GatewaySettings, Served, gateway_of
from redline.serve.keys import DEFAULT_TENANT, TenantSettings
from support.raw_server import RawServer, Seen, answer, chat
from support.until import until

SLOTS = 2
LATENCY_S = 0.15
FIXED = ("cache_ttl", "drain", "body_size")


@dataclass
class Server:
    """A server that has some models, and answers 404 for any other.

    statuses: of its first answers, 0 for none; 200 afterwards. reason: why its answers end.
    latency_s: of its answers.
    """

    models: tuple[str, ...]
    statuses: list[int] = field(default_factory=list)
    reason: str = "stop"
    latency_s: float = LATENCY_S
    in_flight: int = 0
    most_in_flight: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    url: str = ""

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        model = json.loads(seen.body)["model"]
        if model not in self.models:
            writer.write(answer(b'{"error":{"message":"no such model here"}}', status=404))
            return
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(self.latency_s)
        self.in_flight -= 1
        if self.statuses:
            if status := self.statuses.pop(0):
                writer.write(answer(b"{}", status=status))
            else:
                writer.close()
            return
        self.answered[model] += 1
        writer.write(answer(chat("hi", reason=self.reason)))

    def named(self, name: str, *models: str) -> Endpoint:
        """The endpoint with this server and SLOTS slots, which is said to have these models."""
        return Endpoint(
            base_url=self.url,
            name=name,
            models={model: model for model in models},
            limits=Limits(concurrency=SLOTS),
        )


@dataclass
class Gateway:
    """A gateway and a client of it."""

    served: Served
    client: openai.AsyncOpenAI
    settings: GatewaySettings

    async def change(self, *endpoints: Endpoint) -> None:
        await self.served.change(msgspec.structs.replace(self.settings, endpoints=endpoints))

    async def ask(self, model: str) -> int:
        """The status of a call. All calls of a model ask the same, and for a determined answer."""
        try:
            await self.client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "x"}], temperature=0
            )
        except openai.APIStatusError as error:
            return error.status_code
        return 200

    def begin(self, model: str, calls: int) -> list[asyncio.Task[int]]:
        return [asyncio.create_task(self.ask(model)) for _ in range(calls)]


@asynccontextmanager
async def listening(*servers: Server) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for server in servers:
            server.url = (await stack.enter_async_context(RawServer(server.handle))).base_url
        yield


@asynccontextmanager
async def gateway(
    *endpoints: Endpoint,
    state: Path | None = None,
    cache: Cache | None = None,
    tenant: TenantSettings | None = None,
    most: int | None = None,
) -> AsyncIterator[Gateway]:
    settings = GatewaySettings(
        endpoints=endpoints,
        port=0,
        state=state,
        cache=cache,
        most=most,
        tenants={} if tenant is None else {DEFAULT_TENANT: tenant},
    )
    async with (
        gateway_of(settings) as served,
        openai.AsyncOpenAI(
            base_url=served.gateway.base_url, api_key="none", max_retries=0, timeout=20
        ) as client,
    ):
        yield Gateway(served, client, settings)


async def begin_batch(front: Gateway, model: str, lines: int) -> str:
    """The id of a new batch of that many calls."""
    body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
    fixed = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    text = "".join(json.dumps({"custom_id": str(number)} | fixed) + "\n" for number in range(lines))
    file = await front.client.files.create(file=("lines.jsonl", text.encode()), purpose="batch")
    batch = await front.client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    return batch.id


async def completed(front: Gateway, batch: str) -> int:
    """The number of answers of a batch, once it has ended. No line waits for a time-out."""
    async with asyncio.timeout(15):
        found = await front.client.batches.retrieve(batch)
        while found.status != "completed":
            await asyncio.sleep(0.05)
            found = await front.client.batches.retrieve(batch)
    assert found.request_counts is not None
    return found.request_counts.completed


async def statuses(calls: Sequence[asyncio.Task[int]]) -> Counter[int]:
    """How often each status came. The calls do not wait for a time-out: it takes a minute."""
    async with asyncio.timeout(15):
        return Counter(await asyncio.gather(*calls))


def test_a_name_that_moves_to_another_server_waits_for_its_slots() -> None:
    async def main() -> None:
        one, two = Server(("m",)), Server(("m",))
        async with listening(one, two), gateway(one.named("A"), two.named("B")) as front:
            calls = front.begin("m", 8)
            await until(lambda: two.in_flight == SLOTS)
            await front.change(two.named("A"))
            calls += front.begin("m", 8)
            assert await statuses(calls) == {200: 16}
            assert two.most_in_flight == SLOTS

    asyncio.run(main())


def test_calls_follow_their_model_into_the_pool_of_another() -> None:
    async def main() -> None:
        one, two = Server(("m1",)), Server(("m1", "m2"))
        async with (
            listening(one, two),
            gateway(one.named("A", "m1"), two.named("B", "m2")) as front,
        ):
            calls = front.begin("m1", 4) + front.begin("m2", 8)
            await until(lambda: two.in_flight == SLOTS)
            await front.change(one.named("A", "m1"), two.named("B", "m1", "m2"))
            calls += front.begin("m1", 4) + front.begin("m2", 2)
            assert await statuses(calls) == {200: 18}
            assert two.most_in_flight == SLOTS
            assert two.answered["m2"] == 10

    asyncio.run(main())


def test_calls_follow_their_model_out_of_the_pool_of_another() -> None:
    async def main() -> None:
        one, two = Server(("m1",)), Server(("m1", "m2"))
        async with (
            listening(one, two),
            gateway(one.named("A", "m1"), two.named("B", "m1", "m2")) as front,
        ):
            calls = front.begin("m2", 6)
            await until(lambda: two.in_flight == SLOTS)
            await front.change(one.named("A", "m1"), two.named("B", "m2"))
            calls += front.begin("m2", 4)
            assert await statuses(calls) == {200: 10}
            assert two.most_in_flight == SLOTS

    asyncio.run(main())


def test_waiting_calls_of_a_model_that_is_gone_end_at_once() -> None:
    async def main() -> None:
        one, two = Server(("m1",)), Server(("m2",))
        async with (
            listening(one, two),
            gateway(one.named("A", "m1"), two.named("B", "m2")) as front,
        ):
            calls = front.begin("m2", 8)
            await until(lambda: two.in_flight == SLOTS)
            await front.change(one.named("A", "m1"))
            # Those in flight end where they are.
            assert await statuses(calls) == {200: SLOTS, 404: 8 - SLOTS}
            assert await front.ask("m1") == 200

    asyncio.run(main())


def test_waiting_calls_pass_over_an_endpoint_that_joins_without_their_model() -> None:
    async def main() -> None:
        one, two, three = Server(("m1",)), Server(("m1", "m2")), Server(("m2",))
        async with (
            listening(one, two, three),
            gateway(one.named("A", "m1"), two.named("B", "m1", "m2")) as front,
        ):
            calls = front.begin("m1", 12)
            await until(lambda: one.in_flight + two.in_flight == 2 * SLOTS)
            await front.change(
                one.named("A", "m1"), two.named("B", "m1", "m2"), three.named("C", "m2")
            )
            calls += front.begin("m2", 2)
            assert await statuses(calls) == {200: 14}

    asyncio.run(main())


def test_a_call_that_has_failed_is_not_sent_to_an_endpoint_that_has_lost_its_model() -> None:
    async def main() -> None:
        one, two = Server(("m1", "m2"), [500]), Server(("m2",))
        async with (
            listening(one, two),
            gateway(one.named("A", "m1", "m2")) as front,
        ):
            calls = front.begin("m1", 1)
            await until(lambda: one.in_flight == 1)
            await front.change(one.named("A", "m1", "m2"), two.named("B", "m1", "m2"))
            await front.change(one.named("A", "m1", "m2"), two.named("B", "m2"))
            assert await statuses(calls) == {200: 1}

    asyncio.run(main())


def test_a_call_that_an_endpoint_refuses_does_not_go_to_one_that_has_lost_its_model() -> None:
    async def main() -> None:
        one, two = Server(("m1", "m2"), [401]), Server(("m2",))
        async with (
            listening(one, two),
            gateway(one.named("A", "m1", "m2")) as front,
        ):
            calls = front.begin("m1", 1)
            await until(lambda: one.in_flight == 1)
            await front.change(one.named("A", "m1", "m2"), two.named("B", "m1", "m2"))
            await front.change(one.named("A", "m1", "m2"), two.named("B", "m2"))
            # No other endpoint has its model.
            assert await statuses(calls) == {502: 1}

    asyncio.run(main())


def test_calls_that_an_endpoint_had_not_written_follow_their_model_when_it_leaves() -> None:
    async def main() -> None:
        one, two, three = Server(("m1",)), Server(("m1", "m2")), Server(("m2",))
        async with listening(one, two, three):
            slow = msgspec.structs.replace(
                one.named("A", "m1"), limits=Limits(concurrency=4, requests="1/10s")
            )
            both = two.named("B", "m1", "m2")
            async with gateway(slow, both) as front:
                calls = front.begin("m1", 5)
                await until(lambda: one.in_flight + two.in_flight >= 3)
                await front.change(both, three.named("C", "m2"))
                assert await statuses(calls) == {200: 5}

    asyncio.run(main())


def test_a_call_that_was_sent_counts_although_its_model_is_gone() -> None:
    async def main() -> None:
        one, two = Server(("m1", "m2"), [0]), Server(("m1", "m2"), [0])
        tenant = TenantSettings(tokens=(Rate(400, 3600.0),))
        async with (
            listening(one, two),
            gateway(one.named("A", "m1", "m2"), two.named("B", "m1", "m2"), tenant=tenant) as front,
        ):
            calls = front.begin("m1", 1)
            await until(lambda: one.in_flight + two.in_flight == 1)
            await front.change(one.named("A", "m2"), two.named("B", "m2"))
            assert await statuses(calls) == {404: 1}
            # The endpoint may have answered, and its tokens are not known.
            assert await front.ask("m2") == 429

    asyncio.run(main())


def test_calls_that_wait_for_an_answer_to_share_follow_their_model(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = Server(("m1", "m2"), reason="length"), Server(("m2",))
        async with (
            listening(one, two),
            gateway(
                two.named("A", "m2"), one.named("B", "m1"), cache=Cache(folder=tmp_path)
            ) as front,
        ):
            calls = front.begin("m1", 4)
            await until(lambda: one.in_flight == 1)
            await front.change(one.named("B", "m1", "m2"))
            # Its answer is cut, so they do not share it.
            assert await statuses(calls) == {200: 4}
            assert one.answered["m1"] == 4

    asyncio.run(main())


def test_a_call_is_not_sent_to_an_endpoint_without_its_model_when_the_other_is_lost() -> None:
    async def main() -> None:
        one, two = Server(("m1", "m2")), Server(("m1", "m2"), [401, 401])
        async with (
            listening(one, two),
            gateway(one.named("A", "m1"), two.named("B", "m1", "m2")) as front,
        ):
            calls = front.begin("m2", 4)
            assert await statuses(calls) == {502: 4}
            assert await front.ask("m2") == 502
            assert await front.ask("m1") == 200
            assert not one.answered["m2"]

    asyncio.run(main())


def test_a_lost_endpoint_is_tried_again_when_the_settings_are_read() -> None:
    async def main() -> None:
        one = Server(("m",), [401])
        async with listening(one), gateway(one.named("A")) as front:
            assert [await front.ask("m") for _ in range(2)] == [502, 502]
            assert await front.served.change(front.settings) == ["trying again: A"]
            assert await front.ask("m") == 200
            assert await front.served.change(front.settings) == ["nothing has changed"]

    asyncio.run(main())


def test_a_lost_endpoint_that_still_has_a_call_is_tried_again_once() -> None:
    async def main() -> None:
        one = Server(("m",), [401])
        async with listening(one), gateway(one.named("A")) as front:
            lost = front.begin("m", 1)
            await until(lambda: one.in_flight == 1)
            one.latency_s = 1.0
            long = front.begin("m", 1)
            assert await asyncio.gather(*lost) == [502]
            assert await front.served.change(front.settings) == ["trying again: A"]
            await asyncio.sleep(0.1)
            assert await front.served.change(front.settings) == ["nothing has changed"]
            assert await asyncio.gather(*long) == [200]
            assert await front.ask("m") == 200

    asyncio.run(main())


def test_a_lost_endpoint_is_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.serve.gateway.service._RENEW_S", 0.5)

    async def main() -> None:
        one = Server(("m",), [0, 401, 402])
        async with listening(one), gateway(one.named("A"), state=tmp_path) as front:
            batch = await begin_batch(front, "m", 8)
            await until(lambda: not one.statuses)
            assert await completed(front, batch) == 8
            assert await front.ask("m") == 200

    asyncio.run(main())


def test_waiting_lines_of_a_batch_follow_their_model(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = Server(("m1",)), Server(("m1", "m2"))
        async with (
            listening(one, two),
            gateway(one.named("A", "m1"), two.named("B", "m2"), state=tmp_path) as front,
        ):
            batch = await begin_batch(front, "m2", 12)
            calls = front.begin("m2", 4)
            await until(lambda: two.answered["m2"] > 1)
            await front.change(one.named("A", "m1"), two.named("B", "m1", "m2"))
            assert await statuses(calls) == {200: 4}

            assert await completed(front, batch) == 12
            assert two.answered["m2"] == 16
            assert two.most_in_flight == SLOTS

    asyncio.run(main())


def test_lines_that_wait_for_an_endpoint_that_leaves_go_to_the_one_that_failed(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        one, two = Server(("m",), [500, 500, 500]), Server(("m",), latency_s=4.0)
        async with (
            listening(one, two),
            gateway(one.named("A", "m"), two.named("B", "m"), state=tmp_path) as front,
        ):
            batch = await begin_batch(front, "m", 8)
            await until(lambda: not one.statuses and two.in_flight == SLOTS)
            # The lines that have failed wait for the other endpoint.
            await asyncio.sleep(2.0)
            assert two.in_flight == SLOTS
            await front.change(one.named("A", "m"))
            assert await completed(front, batch) == 8

    asyncio.run(main())


def test_an_endpoint_with_another_shared_rate_joins_once_the_old_one_is_out_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("file_ledger", "schedule"):
        monkeypatch.setattr(f"redline.limits.shared.{module}.STALE_S", 0.7)
    share = str(tmp_path / "team.limits")

    async def main() -> None:
        one = Server(("m",))
        async with listening(one):

            def limited(requests: str) -> Endpoint:
                return msgspec.structs.replace(
                    one.named("A", "m"), limits=Limits(requests=requests, share=share)
                )

            async with gateway(limited("50/1s")) as front:
                assert await front.ask("m") == 200
                await front.change(limited("100/1s"))
                assert await front.ask("m") == 200
                notes = [event.what for event in front.served.gateway.watch.snapshot().changes]
                assert [note for note in notes if "A cannot be used yet" in note]
                # One that still waits may be replaced, too.
                await front.change(limited("70/1s"))
                await front.change(limited("60/1s"))
                assert await front.ask("m") == 200
                members = front.served.gateway.lineup.members
                assert [member.name for member in members] == ["A"]

    asyncio.run(main())


def test_a_silent_redis_holds_up_no_call_while_settings_change() -> None:
    """The server can refuse the connection only while the event loop is free."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"-ERR closed for today\r\n")
        writer.close()

    async def main() -> None:
        redis = await asyncio.start_server(refuse, "127.0.0.1", 0)
        share = f"redis://127.0.0.1:{redis.sockets[0].getsockname()[1]}/0"
        one = Server(("m",))
        async with redis, listening(one), gateway(one.named("A", "m")) as front:
            limits = Limits(requests="50/1s", share=share)
            with pytest.raises(ConfigError, match="closed for today"):
                await front.change(msgspec.structs.replace(one.named("B", "m"), limits=limits))
            assert await front.ask("m") == 200

    asyncio.run(main())


def test_nothing_changes_if_the_limits_of_a_new_endpoint_cannot_be_opened(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = Server(("m",)), Server(("m",))
        async with listening(one, two), gateway(one.named("A")) as front:
            limits = Limits(requests="50/1s", share=str(tmp_path / "none" / "team.limits"))
            new = msgspec.structs.replace(two.named("B"), limits=limits)
            with pytest.raises(ConfigError, match="cannot be saved"):
                await front.change(new)
            assert await front.ask("m") == 200
            assert one.answered["m"] == 1
            (tmp_path / "none").mkdir()
            await front.change(new)
            assert await front.ask("m") == 200
            assert two.answered["m"] == 1

    asyncio.run(main())


def test_settings_that_need_a_restart_are_named_and_so_are_other_prices() -> None:
    async def main() -> None:
        one = Server(("m",))
        async with listening(one), gateway(one.named("A")) as front:
            other = msgspec.structs.replace(
                front.settings,
                drain_s=1.0,
                most_body_bytes=1000,
                cache_ttl_s=5.0,
                prices={"m": Price(input=1, cached_input=1, output=2)},
            )
            for notes in (await front.served.change(other), await front.served.change(other)):
                fixed = [f"{name}: a change needs a restart" for name in FIXED]
                assert [note for note in notes if "restart" in note] == fixed
            assert "prices changed" not in notes
            await front.served.change(front.settings)
            assert "prices changed" in await front.served.change(other)

    asyncio.run(main())


def test_another_bound_of_all_calls_applies_at_once() -> None:
    async def main() -> None:
        one, two = Server(("m",)), Server(("m",))
        async with (
            listening(one, two),
            gateway(one.named("A", "m"), two.named("B", "m"), most=3) as front,
        ):
            asked = front.begin("m", 8)
            await until(lambda: one.in_flight + two.in_flight == 3)
            narrow = msgspec.structs.replace(front.settings, most=1)
            assert await front.served.change(narrow) == ["concurrency changed"]
            await until(lambda: one.in_flight + two.in_flight == 0)
            one.most_in_flight = two.most_in_flight = 0
            assert await statuses(asked) == {200: 8}
            assert one.most_in_flight + two.most_in_flight <= 2
            await front.served.change(msgspec.structs.replace(front.settings, most=None))
            asked = front.begin("m", 8)
            await until(lambda: one.in_flight + two.in_flight == 2 * SLOTS)
            assert await statuses(asked) == {200: 8}

    asyncio.run(main())


def test_counters_do_not_fall_when_a_pool_ends() -> None:
    async def main() -> None:
        one = Server(("m",), statuses=[500], latency_s=0.01)
        two = Server(("m",), latency_s=0.01)
        other = Server(("n",), latency_s=0.3)
        async with (
            listening(one, two, other),
            gateway(one.named("A", "m"), two.named("B", "m"), other.named("C", "n")) as front,
        ):
            lineup = front.served.gateway.lineup
            while not lineup.failovers:
                assert await front.ask("m") == 200
            calls = front.begin("n", 1)
            await until(lambda: other.in_flight == 1)

            def counts() -> dict[str, int]:
                shown = front.served.gateway.watch.snapshot().classes
                return {one.name: one.admitted for one in shown}

            before = counts()
            assert before["normal"] >= 2
            third = Server(("o",))
            async with listening(third):
                await front.change(third.named("D", "o"))
                # One of the ways has a call in flight, and the other is about to end.
                assert (lineup.failovers, counts()) == (1, before)
                assert await statuses(calls) == {200: 1}
                await until(lambda: not any(one.in_flight for one in lineup.classes()))
                assert await front.ask("o") == 200
                assert counts()["normal"] == before["normal"] + 1
                assert lineup.failovers == 1

    asyncio.run(main())


def test_a_pool_that_is_full_of_calls_of_an_endpoint_that_leaves_ends_no_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redline.serve.gateway.watch._EVERY_S", 0.05)

    async def main() -> None:
        one, two = Server(("a",), latency_s=0.5), Server(("b",))
        async with (
            listening(one, two),
            gateway(one.named("A", "a"), two.named("B", "b"), most=1) as front,
        ):
            calls = front.begin("a", 2)
            await until(lambda: one.in_flight == 1)
            leaving = msgspec.structs.replace(one.named("A", "a"), weight=2.0)
            await front.change(leaving, two.named("B", "b"))
            snapshot = front.served.gateway.watch.snapshot
            assert snapshot().binding.cause == "concurrency"
            before = len(snapshot().history)
            await until(lambda: len(snapshot().history) > before + 2)
            assert await statuses(calls) == {200: 2}

    asyncio.run(main())
