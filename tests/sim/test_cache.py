"""The cache in virtual time: what it gives again, what it never keeps, and who asks for whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from redline.apis import replies as apis
from redline.calls import Call, Chunk, Outcome, Reply, Request, Retry, RetryPolicy, Sink
from redline.calls.cache import AnswerStore, Cached
from redline.errors import BadReply, Disconnected, Refused, Rejected, ServerFailed, TimedOut
from redline.serve.admission import Overloaded
from redline.testing import ScriptedBackend, Step, VirtualClock, virtual_run
from redline.waist import CacheUse


def body_of(text: str, reason: str | None = "stop", **fields: Any) -> bytes:
    message = {"role": "assistant", "content": text}
    return json.dumps(
        {
            "choices": [{"message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2},
            "model": "m-1",
            **fields,
        }
    ).encode()


def answer(text: str = "yes", reason: str | None = "stop", **fields: Any) -> Reply:
    return apis.read("/v1/chat/completions", body_of(text, reason, **fields))


def ask(text: str = "a", **fields: Any) -> Request:
    body = {"temperature": 0, "messages": [{"role": "user", "content": text}], **fields}
    return Request(body={name: value for name, value in body.items() if value is not None})


class World:
    """A cache over a real store, in front of a backend with a script."""

    def __init__(self, folder: Path, script: Any, **settings: Any) -> None:
        self.clock = VirtualClock(asyncio.get_running_loop())
        latency_s = settings.pop("latency_s", 1.0)
        self.backend = ScriptedBackend(script, latency_s=latency_s, label="here")
        self.store = AnswerStore(folder, 10_000_000, clock=self.clock)
        self.store.open()
        self.use = CacheUse()
        self.cached = Cached(
            self.backend, self.store, "here", clock=self.clock, use=self.use, **settings
        )

    async def send(self, request: Request | None = None, **fields: Any) -> Outcome:
        outcome: Outcome = await self.cached.send(request or ask(), Call(**fields))
        return outcome

    @property
    def sends(self) -> int:
        return len(self.backend.sends)


Story = Callable[[World], Coroutine[Any, Any, None]]


def play(tmp_path: Path, script: Any, story: Story, **settings: Any) -> None:
    async def main() -> None:
        world = World(tmp_path, script, **settings)
        try:
            await story(world)
        finally:
            await world.cached.aclose()
        assert world.backend.is_closed
        assert world.store.notes == []

    virtual_run(main())


def test_a_hit_is_the_answer_as_it_was_without_an_attempt(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        first, again = await world.send(), await world.send()
        assert (first.attempts, first.is_cached, again.is_cached) == (1, False, True)
        assert (again.attempts, again.latency_s, again.endpoint) == (0, 0.0, "here")
        assert again.reply == first.reply
        assert again.reply is not None
        assert (again.reply.input_tokens, again.reply.output_tokens) == (3, 2)
        assert world.use == CacheUse(misses=1, hits=1)
        assert world.sends == 1

    play(tmp_path, [answer()], story)


def test_answers_outlive_the_process(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        await world.send()

    async def second(world: World) -> None:
        assert (await world.send()).output == "yes"
        assert world.sends == 0

    play(tmp_path, [answer()], first)
    play(tmp_path, [answer("no")], second)


def test_nobody_changes_anybody_elses_answer(tmp_path: Path) -> None:
    request = Request(url="/ask", body={"seed": 1})
    reply = apis.read("/ask", b'{"list": [1]}')

    async def story(world: World) -> None:
        outcomes = await asyncio.gather(*(world.send(request) for _ in range(3)))
        for outcome in outcomes:
            outcome.output["list"].append(2)
        assert (await world.send(request)).output == {"list": [1]}
        assert all(outcome.output == {"list": [1, 2]} for outcome in outcomes)

    play(tmp_path, [reply], story)


def test_sampled_answers_are_asked_each_time(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        request = ask(temperature=None)
        outcomes = [*await asyncio.gather(*(world.send(request) for _ in range(3)))]
        outcomes.append(await world.send(request))
        assert world.sends == 4
        assert [outcome.output for outcome in outcomes] == ["1", "2", "3", "4"]
        assert world.use == CacheUse(passed=4)

    play(tmp_path, lambda send: answer(str(send.number)), story)


def test_sampled_answers_are_kept_where_that_is_wanted(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        request = ask(temperature=None)
        outcomes = await asyncio.gather(*(world.send(request) for _ in range(3)))
        assert [outcome.output for outcome in outcomes] == ["1"] * 3
        assert world.sends == 1
        put = Request(method="PUT", url="/ask", body={})
        assert [(await world.send(put)).output for _ in range(2)] == ["2", "3"]

    play(tmp_path, lambda send: answer(str(send.number)), story, includes_sampled=True)


def two_choices(reason: str) -> Reply:
    choices = [{"message": {"content": "a"}, "finish_reason": end} for end in ("stop", reason)]
    return apis.read("/v1/chat/completions", json.dumps({"choices": choices}).encode())


def plain(value: object) -> Reply:
    return apis.read("/ask", json.dumps(value).encode())


def other_than(text: str) -> Reply:
    """A reply whose output was changed after it had been read."""
    reply = answer()
    reply.output = text
    return reply


def answer_of_status(status: int) -> Reply:
    reply = answer()
    reply.status = status
    return reply


def cut_response() -> Reply:
    """Of the Responses API, whose choices have no reasons."""
    response = {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{"type": "message", "content": [{"type": "text", "text": "a"}]}],
    }
    return apis.read("/v1/responses", json.dumps(response).encode())


UNKEPT: dict[str, Step] = {
    "a response that is cut": cut_response(),
    "cut": answer(reason="length"),
    "filtered": answer(reason="content_filter"),
    "ended in a way of its own": answer(reason="sensitive"),
    "no reason": answer(reason=None),
    "empty": answer(""),
    "an error inside": plain({"result": 1, "error": {"message": "overloaded"}}),
    "the second of two is cut": two_choices("length"),
    "another status": answer_of_status(206),
    "nothing to read again": Reply(output="yes"),
    "not what was read": other_than("no"),
    "rejected": Rejected("no", status=400),
    "failed": ServerFailed("no", status=500),
    "unreadable": BadReply("no"),
    "refused": Refused("no", status=401),
    "a failure with an answer": Outcome(
        status="rejected", reply=answer(), error=Rejected("too late")
    ),
}


REQUESTS = {
    "a response that is cut": Request(url="/v1/responses", body={"temperature": 0}),
    "an error inside": Request(url="/ask", body={"temperature": 0}),
    "the second of two is cut": ask(n=2),
}


@pytest.mark.parametrize("name", UNKEPT)
def test_only_whole_successes_are_kept(tmp_path: Path, name: str) -> None:
    step, request = UNKEPT[name], REQUESTS.get(name, ask())

    async def story(world: World) -> None:
        outcomes = [await world.send(request) for _ in range(2)]
        assert world.sends == 2
        assert not any(outcome.is_cached for outcome in outcomes)

    play(tmp_path, [step], story)


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "function_call", "eos", "eos_token"])
def test_whole_answers_are_kept_however_they_are_called(tmp_path: Path, reason: str) -> None:
    async def story(world: World) -> None:
        await world.send()
        assert (await world.send()).is_cached

    play(tmp_path, [answer(reason=reason)], story)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (
            "/v1/embeddings",
            b'{"data": [{"embedding": [0.5, 1e-3]}], "usage": {"prompt_tokens": 1}}',
        ),
        ("/ask", b'"a text"'),
        ("/ask", b'{"choices": "of another kind"}'),
        ("/ask", b'{"result": null, "error": null}'),
        ("/v1/responses", b'{"output": [{"type": "message", "content": [{"text": "a"}]}]}'),
    ],
)
def test_answers_of_other_apis_are_kept(tmp_path: Path, url: str, body: bytes) -> None:
    reply = apis.read(url, body)

    async def story(world: World) -> None:
        request = Request(url=url, body={"input": "a", "seed": 1})
        assert (await world.send(request)).output == (await world.send(request)).output
        assert world.sends == 1

    play(tmp_path, [reply], story)


def test_an_output_path_does_not_hide_that_an_answer_was_cut(tmp_path: Path) -> None:
    path = ("choices", 0, "message", "content")
    reply = apis.read("/v1/chat/completions", body_of("yes", "length"), path)
    request = Request(body={"temperature": 0}, output_path=path)

    async def story(world: World) -> None:
        await world.send(request)
        await world.send(request)
        assert world.sends == 2

    play(tmp_path, [reply], story)


def test_equal_calls_in_flight_are_asked_once(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        outcomes = await asyncio.gather(*(world.send(ask(text)) for text in "abab" * 10))
        assert [outcome.output for outcome in outcomes] == ["a", "b"] * 20
        assert world.sends == 2
        assert world.backend.most_in_flight == 2
        assert [outcome.attempts for outcome in outcomes] == [1, 1] + [0] * 38
        assert world.use == CacheUse(misses=2, shared=38)

    play(tmp_path, lambda send: answer(send.request.body["messages"][0]["content"]), story)


def test_those_who_wait_for_a_lookup_have_what_it_finds(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        await world.send()

    async def second(world: World) -> None:
        outcomes = await asyncio.gather(*(world.send() for _ in range(3)))
        assert [outcome.is_cached for outcome in outcomes] == [True] * 3
        assert world.use == CacheUse(hits=3)
        assert world.sends == 0

    play(tmp_path, [answer()], first)
    play(tmp_path, [answer()], second)


def test_a_failure_is_its_own_and_the_next_one_asks(tmp_path: Path) -> None:
    """Three fail in turn, each asked by another of those who wait; the fourth has the answer."""
    steps: list[Step] = [Rejected("1"), Rejected("2"), Rejected("3"), answer()]

    async def story(world: World) -> None:
        outcomes = await asyncio.gather(*(world.send() for _ in range(6)))
        assert [outcome.status for outcome in outcomes] == ["rejected"] * 3 + ["succeeded"] * 3
        assert [str(outcome.error) for outcome in outcomes[:3]] == ["1", "2", "3"]
        assert [outcome.is_cached for outcome in outcomes[3:]] == [False, True, True]
        assert world.backend.most_in_flight == 1
        assert world.sends == 4

    play(tmp_path, steps, story)


def test_the_lead_is_handed_on_where_its_call_is_given_up(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        calls = [asyncio.ensure_future(world.send()) for _ in range(4)]
        await asyncio.sleep(0.5)
        calls[0].cancel()
        calls[2].cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError)
        assert isinstance(ended[2], asyncio.CancelledError)
        assert isinstance(ended[1], Outcome)
        assert isinstance(ended[3], Outcome)
        assert (ended[1].is_cached, ended[3].is_cached) == (False, True)
        assert (world.sends, world.backend.cancelled) == (2, 1)

    play(tmp_path, [answer()], story)


def test_one_who_waits_and_is_given_up_disturbs_nobody(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        calls = [asyncio.ensure_future(world.send()) for _ in range(3)]
        await asyncio.sleep(0.5)
        calls[1].cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(ended[1], asyncio.CancelledError)
        assert [getattr(ended[at], "output", None) for at in (0, 2)] == ["yes", "yes"]
        assert world.sends == 1

    play(tmp_path, [answer()], story)


def test_each_waits_by_its_own_deadline(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        now_s = world.clock.now_s()
        leader = asyncio.ensure_future(world.send())
        await asyncio.sleep(0.1)
        short = asyncio.ensure_future(world.send(deadline_s=now_s + 0.5))
        long = asyncio.ensure_future(world.send(deadline_s=now_s + 5))
        late = await short
        assert world.clock.now_s() == pytest.approx(now_s + 0.5)
        assert (late.status, late.attempts) == ("exhausted", 0)
        assert isinstance(late.error, TimedOut)
        assert late.error.phase == "row"
        assert ((await leader).output, (await long).output) == ("yes", "yes")

    play(tmp_path, [answer()], story)


def test_it_stands_outside_the_retry(tmp_path: Path) -> None:
    """Those who wait for a call have the answer of its last attempt; no hit is tried again."""

    async def main() -> None:
        world = World(tmp_path, [Disconnected("1"), Disconnected("2"), answer()])
        retry = Retry(world.backend, RetryPolicy(), clock=world.clock, seed=1)
        cached = Cached(retry, world.store, "here", clock=world.clock)
        outcomes = await asyncio.gather(*(cached.send(ask(), Call()) for _ in range(3)))
        assert [outcome.output for outcome in outcomes] == ["yes"] * 3
        assert [outcome.attempts for outcome in outcomes] == [3, 0, 0]
        assert world.sends == 3
        await cached.aclose()

    virtual_run(main())


class Chunks(Sink):
    async def put(self, chunk: Chunk) -> None:
        pass


def test_streams_are_neither_answered_from_the_store_nor_kept(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        for _ in range(2):
            assert not (await world.cached.send(ask(), Call(), Chunks())).is_cached
        assert not (await world.send()).is_cached
        assert not (await world.cached.send(ask(), Call(), Chunks())).is_cached
        assert (world.sends, world.use) == (4, CacheUse(misses=1, passed=3))

    play(tmp_path, [answer()], story)


def test_a_body_that_is_no_json_is_passed_on(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        for _ in range(2):
            await world.send(Request(body={"temperature": 0, "x": object()}))
        assert world.sends == 2

    play(tmp_path, [answer()], story)


def test_its_load_is_that_of_the_backend(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.backend.room_s = 7.0
        assert world.cached.load(0.0).room_s == 7.0

    play(tmp_path, [answer()], story)


def test_a_call_does_not_wait_for_one_of_another_priority(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        low = asyncio.ensure_future(world.send(priority=20))
        await asyncio.sleep(0.5)
        began_s = world.clock.now_s()
        high = await asyncio.gather(*(world.send(priority=0) for _ in range(2)))
        assert world.clock.now_s() == pytest.approx(began_s + 1.0)
        assert [outcome.is_cached for outcome in high] == [False, True]
        assert not (await low).is_cached
        # They have one answer in the store.
        assert (await world.send(priority=10)).is_cached

    play(tmp_path, [answer()], story)


def test_those_who_wait_for_a_call_that_is_not_admitted_go_on_at_once(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        began_s = world.clock.now_s()
        outcomes = await asyncio.gather(*(world.send() for _ in range(4)))
        assert world.clock.now_s() == pytest.approx(began_s + 2.0)
        assert [outcome.is_success for outcome in outcomes] == [False, True, True, True]
        assert (await world.send()).is_cached

    refused = Overloaded("busy", retry_after_s=1.0)
    play(tmp_path, [refused, answer()], story)
