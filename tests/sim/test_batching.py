"""Dynamic batching in virtual time: when batches are sent, and what becomes of their members."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

import redline
from redline.calls import (
    Backend,
    BatchBounds,
    Call,
    DynamicBatcher,
    Health,
    Outcome,
    Reply,
    Request,
    Retry,
)
from redline.calls.batching import Item
from redline.errors import (
    BadReply,
    CallError,
    ConfigError,
    Disconnected,
    Final,
    OverLimit,
    RateLimited,
    Refused,
    Rejected,
    ServerFailed,
    TimedOut,
)
from redline.testing import ScriptedBackend, VirtualClock, virtual_run
from support.batching import (
    EACH_S,
    FIXED_S,
    ListServer,
    batcher_of,
    request_of,
    vector_of,
)


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def ask(batcher: Backend, *texts: str, **call: Any) -> list[Outcome]:
    """The outcomes of requests that come at the same time."""
    return await asyncio.gather(*(batcher.send(request_of(text), Call(**call)) for text in texts))


def names(count: int) -> list[str]:
    return [f"text-{number}" for number in range(count)]


def test_requests_of_one_moment_share_a_call() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server, max_batch_size=4)
        outcomes = await ask(batcher, *names(8))
        assert [outcome.output for outcome in outcomes] == [*map(vector_of, names(8))]
        assert [len(seen.texts) for seen in server.seen] == [4, 4]
        # Full batches leave without a wait.
        assert {seen.begun_s for seen in server.seen} == {0.0}
        figures = batcher.figures()
        assert figures.sizes == {4: 2}
        assert figures.closed == {"full": 2, "waited": 0, "idle": 0}
        assert (figures.batch_efficiency, figures.mean_size, figures.mean_wait_s) == (1.0, 4.0, 0.0)

    virtual_run(main())


def test_a_batch_waits_no_longer_than_it_may_and_a_tenth_of_what_a_deadline_leaves() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server, max_wait_s=0.01)
        await ask(batcher, "one", "two")
        assert server.seen[0].begun_s == pytest.approx(0.01)
        began_s = now_s()
        await ask(batcher, "three", "four", deadline_s=began_s + 0.08)
        assert server.seen[1].begun_s - began_s == pytest.approx(0.008)

    virtual_run(main())


def test_other_fields_headers_and_kinds_of_input_make_other_batches() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server)
        plain = request_of("a")
        others = [
            request_of("b"),
            request_of("c", model="n"),
            Request(url=plain.url, body={"model": "m", "input": "d", "dimensions": 3}),
            msgspec.structs.replace(request_of("e"), headers={"X-Team": "1"}),
            msgspec.structs.replace(request_of("f"), url="/v1/openai/embeddings"),
        ]
        await asyncio.gather(*(batcher.send(one, Call()) for one in [plain, *others]))
        assert sorted(seen.texts for seen in server.seen) == [
            ["a", "b"],
            ["c"],
            ["d"],
            ["e"],
            ["f"],
        ]

    virtual_run(main())


def test_a_list_counts_with_its_length_and_a_longer_one_goes_alone() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server, max_batch_size=4)
        lists = [["a", "b", "c"], ["d", "e"], ["f"], ["g"] * 9]
        requests = [Request(url="/v1/embeddings", body={"model": "m", "input": i}) for i in lists]
        outcomes = await asyncio.gather(*(batcher.send(one, Call()) for one in requests))
        assert [seen.texts for seen in server.seen] == [["a", "b", "c"], ["d", "e", "f"], ["g"] * 9]
        assert outcomes[1].output == [vector_of("d"), vector_of("e")]
        assert outcomes[2].output == vector_of("f")
        assert outcomes[3].output == [vector_of("g")] * 9
        assert batcher.figures().sizes == {3: 2, 4: 1}
        assert batcher.figures().batch_efficiency == pytest.approx(15 / 17)

    virtual_run(main())


@pytest.mark.parametrize("bad", [0, 13, 31])
def test_one_bad_input_of_32_is_one_error_and_31_answers(bad: int) -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server, max_batch_size=32)
        texts = names(32)
        texts[bad] = "bad"
        outcomes = await ask(batcher, *texts)
        for text, outcome in zip(texts, outcomes, strict=True):
            if text == "bad":
                assert isinstance(outcome.error, Rejected)
                assert outcome.status == "rejected"
                assert outcome.error.status == 400
            else:
                assert outcome.output == vector_of(text)
        # The whole, and two halves on each of five levels.
        assert len(server.seen) == 11
        assert batcher.figures().divided == 10
        assert server.most_in_flight == 1

    virtual_run(main())


def test_a_batch_that_is_bad_throughout_makes_at_most_two_calls_for_each_member() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server, max_batch_size=32)
        outcomes = await ask(batcher, *[f"bad-{number}" for number in range(32)])
        assert all(isinstance(outcome.error, Rejected) for outcome in outcomes)
        assert len({id(outcome.error) for outcome in outcomes}) == 32
        assert len(server.seen) == 63

    virtual_run(main())


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (RateLimited("slow down", status=429, retry_after_s=3.0), 1),
        (ServerFailed("HTTP 503", status=503), 1),
        (Disconnected("reset"), 1),
        (Rejected("no such model", status=404), 1),
        (Refused("not this key"), 1),
        (Rejected("this is too large", status=413), 7),
        (OverLimit("more tokens than the limit ever grants"), 7),
    ],
)
def test_what_says_nothing_of_one_item_is_every_members_error(error: CallError, calls: int) -> None:
    async def main() -> None:
        backend = ScriptedBackend([error])
        batcher = batcher_of(backend)
        outcomes = await ask(batcher, "a", "b", "c", "d")
        assert [type(outcome.error) for outcome in outcomes] == [type(error)] * 4
        assert [str(outcome.error) for outcome in outcomes] == [str(error)] * 4
        assert len({id(outcome.error) for outcome in outcomes}) == 4
        assert len(backend.sends) == calls

    virtual_run(main())


def test_a_retry_around_it_asks_again_in_new_batches() -> None:
    async def main() -> None:
        server = ListServer({1: "429"})
        clock = VirtualClock(asyncio.get_running_loop())
        retry = Retry(batcher_of(server), clock=clock)
        outcomes = await ask(retry, *names(5))
        assert [outcome.output for outcome in outcomes] == [*map(vector_of, names(5))]
        assert [len(seen.texts) for seen in server.seen] == [5, 5]
        assert {outcome.attempts for outcome in outcomes} == {2}
        assert server.seen[1].begun_s >= 2.0

    virtual_run(main())


def test_tenants_do_not_read_what_an_error_quotes_of_each_other() -> None:
    async def main() -> None:
        server = ListServer({1: "503", 2: "503"})
        batcher = batcher_of(server)
        mixed = await asyncio.gather(
            *(
                batcher.send(request_of(text), Call(tenant=tenant))
                for tenant, text in (("one", "secret"), ("two", "mine"))
            )
        )
        for outcome in mixed:
            assert isinstance(outcome.error, ServerFailed)
            assert outcome.error.status == 503
            assert "secret" not in str(outcome.error)
        assert server.calls[0].tenant == ""
        alike = await ask(batcher, "secret", "other", tenant="one")
        assert all("secret" in str(outcome.error) for outcome in alike)
        assert server.calls[1].tenant == "one"

    virtual_run(main())


def test_a_cancelled_member_is_taken_out_and_the_others_are_answered() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server)
        tasks = [asyncio.create_task(ask(batcher, text)) for text in ("a", "b", "c")]
        await asyncio.sleep(0.005)
        tasks[1].cancel()
        await asyncio.sleep(0.02)
        tasks[2].cancel()
        (outcome,) = await tasks[0]
        assert outcome.output == vector_of("a")
        # One left before the batch was sent, and one while it was in flight.
        assert [seen.texts for seen in server.seen] == [["a", "c"]]
        assert [task.cancelled() for task in tasks] == [False, True, True]

    virtual_run(main())


def test_a_call_whose_members_have_all_left_is_cancelled() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server)
        tasks = [asyncio.create_task(ask(batcher, text)) for text in ("a", "b")]
        await asyncio.sleep(0.03)
        assert server.in_flight == 1
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0)
        assert server.in_flight == 0
        assert server.seen[0].is_cancelled
        assert batcher.figures().in_flight == 0

    virtual_run(main())


def test_a_deadline_is_its_members_own() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server, max_in_flight=1)
        first = asyncio.create_task(ask(batcher, "first"))
        await asyncio.sleep(0.015)
        hasty, patient, late = await asyncio.gather(
            batcher.send(request_of("hasty"), Call(deadline_s=now_s() + 0.02)),
            batcher.send(request_of("patient"), Call(deadline_s=now_s() + 5)),
            batcher.send(request_of("late"), Call(deadline_s=now_s() - 1)),
        )
        assert isinstance(hasty.error, TimedOut)
        assert isinstance(late.error, TimedOut)
        assert patient.output == vector_of("patient")
        assert (await first)[0].is_success
        assert [seen.texts for seen in server.seen] == [["first"], ["patient"]]
        assert server.calls[1].deadline_s > now_s() + 3

    virtual_run(main())


def test_the_queue_is_bounded_in_items_and_in_bytes() -> None:
    async def main() -> None:
        for bounds in (
            BatchBounds(max_waiting=4),
            BatchBounds(max_waiting_bytes=4 * len(msgspec.json.encode(request_of("a").body))),
        ):
            server = ListServer()
            batcher = batcher_of(server, bounds=bounds)
            outcomes = await ask(batcher, *"abcdef")
            errors = [outcome.error for outcome in outcomes]
            assert errors[:4] == [None] * 4
            assert all(isinstance(error, RateLimited) for error in errors[4:])
            assert batcher.figures().refused == 2
        batcher = batcher_of(ListServer(), bounds=BatchBounds(max_waiting=1))
        error = (await ask(batcher, *"ab"))[1].error
        assert str(error).startswith("the queue of the batcher is full: 1 item to be sent")

    virtual_run(main())


def test_a_batch_is_bounded_in_bytes() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server, bounds=BatchBounds(max_batch_bytes=2500))
        await ask(batcher, *[letter * 1000 for letter in "abcd"])
        assert [len(seen.texts) for seen in server.seen] == [2, 2]

    virtual_run(main())


def test_urgent_requests_leave_first() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server, max_batch_size=2, max_in_flight=1)
        low = asyncio.create_task(ask(batcher, *names(6), priority=20))
        await asyncio.sleep(0.001)
        await ask(batcher, "urgent", "too", priority=0)
        await low
        assert server.seen[1].texts == ["urgent", "too"]
        assert [call.priority for call in server.calls] == [20, 0, 20, 20]

    virtual_run(main())


def test_load_says_what_waits_and_what_is_in_flight() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server, max_batch_size=2, max_in_flight=2)
        assert batcher.load(now_s()).room_s == 0
        task = asyncio.create_task(ask(batcher, *names(7)))
        await asyncio.sleep(0.001)
        load = batcher.load(now_s())
        assert (load.in_flight, load.waiting, load.slots) == (4, 3, 4)
        assert load.room_s > 0
        assert load.binds == "2 batches in flight"
        assert batcher.figures().waiting == 3
        await task
        load = batcher.load(now_s())
        assert (load.in_flight, load.waiting, load.room_s) == (0, 0, 0.0)
        assert server.most_in_flight == 2

    virtual_run(main())


def test_closing_ends_what_waits_and_what_is_in_flight() -> None:
    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server, max_batch_size=2, max_in_flight=1)
        task = asyncio.create_task(ask(batcher, *names(5)))
        await asyncio.sleep(0.02)
        await batcher.aclose()
        outcomes = await task
        assert all(isinstance(outcome.error, Rejected) for outcome in outcomes)
        assert server.is_closed
        assert server.seen[0].is_cancelled
        assert batcher.load(now_s()).state is Health.GONE
        (outcome,) = await ask(batcher, "late")
        assert isinstance(outcome.error, Rejected)
        assert len(server.seen) == 1

    virtual_run(main())


def test_a_defect_of_the_backend_is_its_callers_to_see() -> None:
    class Broken(ListServer):
        async def send(self, *asked: Any) -> Outcome:
            raise ZeroDivisionError("a defect")

    async def main() -> None:
        batcher = batcher_of(Broken())
        with pytest.raises(ZeroDivisionError):
            await ask(batcher, "a")
        assert batcher.figures().in_flight == 0

    virtual_run(main())


def test_a_member_that_may_not_be_written_does_not_hold_back_the_others() -> None:
    def refuse() -> None:
        raise Rejected("not this one")

    async def main() -> None:
        server = ListServer()
        batcher = batcher_of(server)
        written: list[str] = []
        calls = [
            Call(on_write=lambda: written.append("a")),
            Call(on_write=refuse),
            Call(on_write=lambda: written.append("c")),
        ]
        outcomes = await asyncio.gather(
            *(batcher.send(request_of(t), c) for t, c in zip("abc", calls, strict=True))
        )
        assert [outcome.is_success for outcome in outcomes] == [True, False, True]
        assert str(outcomes[1].error) == "not this one"
        assert [seen.texts for seen in server.seen] == [["a", "c"]]
        assert {"a", "c"} == set(written)
        assert [call.requests for call in calls] == [1, 0, 1]

    virtual_run(main())


class Room:
    """What an answer takes of the room for answers."""

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


class Holding(ListServer):
    """Its answers take room, each its own. The first ones, as many as are `broken`, are useless."""

    def __init__(self, *, broken: int = 0) -> None:
        super().__init__()
        self.rooms: list[Room] = []
        self._broken = broken

    async def send(self, request: Request, call: Call, sink: Any = None) -> Outcome:
        outcome = await super().send(request, call, sink)
        call.held = room = Room()
        self.rooms.append(room)
        if len(self.rooms) <= self._broken:
            outcome.reply = Reply(output=[1.0], body=b'{"data":{}}')
        return outcome

    @property
    def released(self) -> list[int]:
        return [room.released for room in self.rooms]


def test_the_room_of_an_answer_is_free_when_its_last_reader_lets_go() -> None:
    async def main() -> None:
        server = Holding()
        batcher = batcher_of(server)
        calls = [Call() for _ in range(3)]
        await asyncio.gather(*(batcher.send(request_of("a"), call) for call in calls))
        for call in calls[:2]:
            call.let_go()
            call.let_go()
        assert server.released == [0]
        calls[2].let_go()
        assert server.released == [1]

    virtual_run(main())


def test_the_room_of_an_answer_is_free_when_a_batcher_called_as_a_function_returns() -> None:
    async def main() -> None:
        server = Holding()
        await asyncio.gather(*map(batcher_of(server), map(request_of, "abc")))
        assert server.released == [1]

    virtual_run(main())


def test_a_retry_frees_the_room_of_the_answer_before() -> None:
    async def main() -> None:
        server = Holding(broken=1)
        clock = VirtualClock(asyncio.get_running_loop())
        retry = Retry(batcher_of(server), clock=clock)
        calls = [Call() for _ in range(3)]
        outcomes = await asyncio.gather(*(retry.send(request_of("a"), call) for call in calls))
        assert all(outcome.is_success for outcome in outcomes)
        assert server.released == [1, *[0] * (len(server.rooms) - 1)]
        for call in calls:
            call.let_go()
        assert all(server.released)

    virtual_run(main())


def test_an_answer_of_the_wrong_length_is_shifted_to_nobody() -> None:
    async def main() -> None:
        for answer in (
            Reply(output=[[1.0]] * 2, body=b'{"data":[{"embedding":[1.0]},{"embedding":[1.0]}]}'),
            Reply(output=[[1.0]] * 2),
            Reply(output=[1.0], body=b'{"data":{}}'),
            Reply(
                output=[[1.0]] * 3,
                body=b'{"data":[%s]}' % b",".join([b'{"embedding":[1.0],"index":1}'] * 3),
            ),
        ):
            outcomes = await ask(batcher_of(ScriptedBackend([answer])), "a", "b", "c")
            assert all(isinstance(outcome.error, BadReply) for outcome in outcomes)
            assert {outcome.status for outcome in outcomes} == {"exhausted"}

    virtual_run(main())


def test_streams_and_other_apis_are_passed_on() -> None:
    class Kept:
        relays = False

        async def begin(self, status: int, headers: Any) -> None: ...

        async def put(self, chunk: Any) -> None: ...

    async def main() -> None:
        backend = ScriptedBackend([Reply(output="hello")])
        batcher = batcher_of(backend)
        chat = Request(body={"messages": []})
        prompt = Request(url="/v1/completions", body={"prompt": "a"})
        await asyncio.gather(
            batcher.send(chat, Call()),
            batcher.send(prompt, Call(), Kept()),
            batcher.send(
                Request(url="/v1/completions", body={"prompt": "a", "stream": True}), Call()
            ),
            batcher.send(Request(method="GET", url="/v1/embeddings"), Call()),
        )
        assert {send.at_s for send in backend.sends} == {0.0}
        assert len(backend.sends) == 4
        assert backend.sends[1].request is prompt
        assert batcher.figures().alone == 4

    virtual_run(main())


# Functions of lists.


def doubled(items: list[int]) -> list[int]:
    return [2 * item for item in items]


def test_functions_of_both_kinds_answer_lists() -> None:
    async def asynchronous(items: list[int]) -> list[int]:
        await asyncio.sleep(0.1)
        return doubled(items)

    async def main() -> None:
        for function in (doubled, asynchronous, lambda items: asynchronous(items)):
            batcher = batcher_of(function)
            assert await asyncio.gather(*map(batcher, range(40))) == [*range(0, 80, 2)]
            figures = batcher.figures()
            assert (figures.batches, figures.items) == (2, 40)
            await batcher.aclose()

    virtual_run(main())


def test_an_exception_in_a_place_is_that_items_error() -> None:
    async def picky(items: list[int]) -> list[Any]:
        errors = {1: ValueError("not one"), 2: TimeoutError(), 3: RateLimited("later")}
        return [errors.get(item, item) for item in items]

    async def main() -> None:
        batcher = batcher_of(picky)
        outcomes = await asyncio.gather(
            *(batcher.send(Request(body=item), Call()) for item in range(5))
        )
        kinds = [None if one.error is None else one.error.kind for one in outcomes]
        assert kinds == [None, "rejected", "timed_out", "rate_limited", None]
        assert "picky returned ValueError: not one" in str(outcomes[1].error)
        assert batcher.figures().divided == 0
        with pytest.raises(Rejected):
            await batcher(1)

    virtual_run(main())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("five"), "strict raised ValueError: five"),
        (Final("five"), "five"),
        (CallError("five"), "five"),
    ],
)
def test_a_function_that_raises_for_one_item_fails_that_item_alone(
    error: Exception, said: str
) -> None:
    sizes: list[int] = []

    def strict(items: list[int]) -> list[int]:
        sizes.append(len(items))
        if 5 in items:
            raise error
        return items

    async def main() -> None:
        batcher = batcher_of(strict, max_batch_size=8)
        answers = await asyncio.gather(*map(batcher, range(8)), return_exceptions=True)
        assert [one for one in answers if not isinstance(one, CallError)] == [0, 1, 2, 3, 4, 6, 7]
        assert str(answers[5]) == said
        assert sizes == [8, 4, 4, 2, 1, 1, 2]
        await batcher.aclose()

    virtual_run(main())


def test_a_function_that_raises_what_no_future_takes_fails_that_item_alone() -> None:
    def first_of(items: list[list[int]]) -> list[int]:
        return [next(iter(item)) for item in map(list, items)] if all(items) else next(iter(()))

    async def main() -> None:
        batcher = batcher_of(first_of)
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*map(batcher, [[1], [], [3]]), return_exceptions=True)
        assert [answers[0], answers[2]] == [1, 3]
        assert str(answers[1]) == "first_of raised StopIteration: "
        await batcher.aclose()

    virtual_run(main())


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1, 2], "returned 2 answers for 3 items"),
        ([1], "returned 1 answer for 3 items"),
        (None, "returned NoneType, not a list"),
        ("abc", "returned str, not a list"),
        ({"a": 1, "b": 2, "c": 3}, "returned dict, not a list"),
    ],
)
def test_a_function_that_returns_no_list_as_long_fails_all(returned: Any, said: str) -> None:
    async def short(items: list[int]) -> Any:
        return returned

    async def main() -> None:
        batcher = batcher_of(short)
        answers = await asyncio.gather(*map(batcher, range(3)), return_exceptions=True)
        assert all(isinstance(answer, BadReply) and said in str(answer) for answer in answers)
        assert batcher.figures().divided == 0

    virtual_run(main())


def test_what_a_function_does_to_its_items_stays_in_it() -> None:
    async def greedy(items: list[dict[str, int]]) -> list[int]:
        return [item.pop("n") for item in items]

    async def main() -> None:
        batcher = batcher_of(greedy)
        row = {"n": 1}
        assert await asyncio.gather(batcher(row), batcher(row)) == [1, 1]
        assert row == {"n": 1}

    virtual_run(main())


def test_a_function_that_takes_too_long_times_out() -> None:
    async def slow(items: list[int]) -> list[int]:
        await asyncio.sleep(100)
        return items

    async def main() -> None:
        batcher = batcher_of(slow, bounds=BatchBounds(call_s=5.0))
        with pytest.raises(TimedOut, match="within 5 s"):
            await batcher(1)
        assert now_s() == pytest.approx(5, abs=0.1)

    virtual_run(main())


@pytest.mark.parametrize(
    ("answers", "settings"),
    [
        (3, {}),
        (ListServer, {}),
        (doubled, {"max_batch_size": 0}),
        (doubled, {"max_wait_s": -1.0}),
        (doubled, {"max_in_flight": 0}),
    ],
)
def test_settings_that_cannot_work_are_refused(answers: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DynamicBatcher(answers, **settings)
    with pytest.raises(ConfigError):
        BatchBounds(max_waiting=0)


def test_an_option_that_cannot_be_compared_fails_its_own_item() -> None:
    async def main() -> None:
        batcher = DynamicBatcher(doubled)
        item = Item(1, {"unit": object()})
        outcome = await batcher.send(Request(body=item), Call())
        assert outcome.status == "rejected"
        assert "an option of the item cannot be written as JSON" in str(outcome.error)
        await batcher.aclose()

    asyncio.run(main())


def test_a_run_calls_a_function_of_lists_through_it() -> None:
    def sized(rows: list[dict[str, str]]) -> list[int]:
        return [len(row["text"]) for row in rows]

    batcher = DynamicBatcher(sized, max_batch_size=16)
    for _ in range(2):
        # Each run has an event loop of its own.
        report = redline.run(
            [{"text": "x" * n} for n in range(100)], call=batcher, concurrency=32, progress=False
        )
        assert [outcome.output for outcome in report.outcomes] == [*range(100)]
    assert batcher.figures().items == 200
    assert batcher.figures().batches < 100
    asyncio.run(batcher.aclose())


# What it is worth, on a server with a fixed cost a call and one for each item.


async def closed_loop(
    make: Callable[[Backend], Backend], users: int, jitter_s: float
) -> tuple[float, float]:
    """Answers a second, and the mean seconds to one, of users who ask again when answered."""
    backend = make(ListServer())
    rng = random.Random(1)
    took: list[float] = []

    async def user() -> None:
        while now_s() < 20:
            await asyncio.sleep(rng.uniform(0, jitter_s))
            began_s = now_s()
            outcome = await backend.send(request_of("text"), Call())
            assert outcome.is_success
            took.append(now_s() - began_s)

    await asyncio.gather(*(user() for _ in range(users)))
    return len(took) / now_s(), statistics.mean(took)


def serial(backend: Backend) -> Backend:
    """One call at a time, each with one item."""
    return batcher_of(backend, max_batch_size=1, max_in_flight=1)


def measured(run: Coroutine[Any, Any, tuple[float, float]]) -> tuple[float, float]:
    return virtual_run(run)


def test_throughput_rises_with_the_batch() -> None:
    one, _ = measured(closed_loop(serial, 64, 0.005))
    assert one == pytest.approx(1 / (FIXED_S + EACH_S), rel=0.05)
    batched, _ = measured(
        closed_loop(lambda server: batcher_of(server, max_in_flight=1), 64, 0.005)
    )
    # 32 items in 82 ms instead of 51 ms each.
    assert batched / one > 0.95 * 32 * (FIXED_S + EACH_S) / (FIXED_S + 32 * EACH_S)


def test_users_who_ask_again_one_after_another_share_their_batches() -> None:
    batchers: list[DynamicBatcher] = []

    def make(server: Backend) -> Backend:
        batchers.append(batcher_of(server, max_in_flight=1))
        return batchers[-1]

    measured(closed_loop(make, 32, 0.005))
    assert (batchers[0].figures().batch_efficiency or 0) > 0.95


def test_a_single_user_is_not_kept_waiting_for_others() -> None:
    _, took_s = measured(closed_loop(lambda server: batcher_of(server), 1, 0.005))
    assert took_s < FIXED_S + EACH_S + 0.001
