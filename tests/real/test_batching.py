"""Dynamic batching over real sockets: in front of a server, and behind one, with the openai SDK."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import openai
import pytest

import redline
from redline.calls import Call, DynamicBatcher, Endpoint, HttpBackend, Reply, Request, Retry
from redline.errors import BudgetSpent, Rejected
from redline.route import EndpointPool
from redline.serve.functions import ServedFunction
from redline.serve.http import Front, Relay
from redline.sim import SimSettings
from redline.sim.server import Sim
from redline.testing import ScriptedBackend, Send
from support.fronting import ask, serving
from support.scripted import Asked, scripted

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

Run = Callable[[Coroutine[Any, Any, None]], None]
URL = "/v1/embeddings"


def embedding_of(text: str) -> Request:
    return Request(url=URL, raw=msgspec.json.encode({"model": "m", "input": text}))


def embedded(asked: Asked) -> Any:
    """The answer to a list of texts."""
    data = [{"index": n, "embedding": [1.0]} for n, _ in enumerate(asked.body["input"])]
    return {"object": "list", "data": data, "model": "m"}


def sdk(front: Front) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=front.base_url, api_key="none", max_retries=0)


def test_a_server_of_embeddings_gives_the_same_answers_in_fewer_calls(run: Run) -> None:
    async def main() -> None:
        texts = [f"text {number}" * (number % 7 + 1) for number in range(100)]
        async with Sim(SimSettings()) as sim:
            single = HttpBackend(Endpoint(base_url=sim.base_url))
            alone = [await single.send(embedding_of(text), Call()) for text in texts]
            await single.aclose()
            batcher = DynamicBatcher(sim.base_url)
            together = await asyncio.gather(
                *(Retry(batcher).send(embedding_of(text), Call()) for text in texts)
            )
            assert [one.output for one in together] == [one.output for one in alone]
            assert all(one.reply and one.reply.model == "m" for one in together)
            tokens = [
                sum(one.reply.input_tokens or 0 for one in some if one.reply)
                for some in (alone, together)
            ]
            figures = batcher.figures()
            # Estimated for each text, and exact in all but the rounding of each.
            assert abs(tokens[0] - tokens[1]) <= len(texts)
            assert figures.items == 100
            assert figures.batches < 10
            assert {one.tried[0].was_sent for one in together} == {True}
            await batcher.aclose()

    run(main())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_each_run_may_have_an_event_loop_of_its_own(run: Run) -> None:
    async def main() -> None:
        texts = map(embedding_of, "ab")
        assert await asyncio.gather(*map(batcher, texts)) == [[1.0], [1.0]]

    with scripted(embedded) as server:
        batcher = DynamicBatcher(server.base_url)
        for _ in range(3):
            run(main())
        run(batcher.aclose())
        assert len(server.asked) == 3
    # asyncio's transports outlive their loop; they are freed while their warning is ignored.
    gc.collect()


def test_a_member_that_may_not_be_written_is_asked_once_in_front_of_a_pool(run: Run) -> None:
    refusals = 0

    def refuse() -> None:
        nonlocal refusals
        refusals += 1
        assert refusals == 1
        raise BudgetSpent("the budget is spent")

    async def main(url: str) -> None:
        endpoints = [Endpoint(base_url=url, name=name, api_key=name) for name in "ab"]
        batcher = DynamicBatcher(EndpointPool(endpoints))
        calls = [Call(), Call(on_write=refuse), Call()]
        outcomes = await asyncio.gather(*(batcher.send(embedding_of("x"), one) for one in calls))
        assert [outcome.is_success for outcome in outcomes] == [True, False, True]
        assert isinstance(outcomes[1].error, BudgetSpent)
        assert str(outcomes[1].error) == "the budget is spent"
        await batcher.aclose()

    with scripted(embedded) as server:
        run(main(server.base_url))
        assert len(server.asked) == 1


def test_a_batch_that_fills_up_is_sent_before_its_wait_is_over(run: Run) -> None:
    async def doubled(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    async def main() -> None:
        batcher = DynamicBatcher(doubled, max_batch_size=4, max_wait_s=60.0)
        first = asyncio.create_task(batcher(0))
        # The first one waits for others, by a timer.
        await asyncio.sleep(0.01)
        assert batcher.figures().waiting == 1
        async with asyncio.timeout(30):
            answers = await asyncio.gather(first, *(batcher(item) for item in (1, 2, 3)))
        assert answers == [0, 2, 4, 6]
        assert batcher.figures().closed == {"full": 1, "waited": 0, "idle": 0}
        await batcher.aclose()

    run(main())


def test_one_bad_input_of_32_over_http_is_one_error(run: Run) -> None:
    calls: list[int] = []

    def embed(send: Send) -> Any:
        value = send.request.body["input"]
        texts = [value] if isinstance(value, str) else value
        calls.append(len(texts))
        if "bad" in texts:
            return Rejected("an input is empty", status=400)
        data = [
            {"object": "embedding", "index": i, "embedding": [*map(float, text.encode())]}
            for i, text in enumerate(texts)
        ]
        return Reply(body=msgspec.json.encode({"object": "list", "data": data, "model": "m"}))

    async def main() -> None:
        async with serving(ScriptedBackend(embed)) as (front, _):
            batcher = DynamicBatcher(Endpoint(base_url=front.base_url))
            texts = [f"t{number}" for number in range(32)]
            texts[21] = "bad"
            async with redline.Client(batcher) as client:
                outcomes = await asyncio.gather(*(client.call(embedding_of(t)) for t in texts))
            for text, outcome in zip(texts, outcomes, strict=True):
                if text == "bad":
                    assert isinstance(outcome.error, Rejected)
                    assert b"an input is empty" in outcome.error.body
                else:
                    assert outcome.output == [*map(float, text.encode())]
            assert max(calls) == 32
            assert len(calls) == 11

    run(main())


def test_the_openai_sdk_talks_to_a_function_of_lists(run: Run) -> None:
    threads: set[int] = set()

    def embed(texts: list[str], dimensions: int = 2) -> list[list[float]]:
        threads.add(threading.get_ident())
        if "bad" in texts:
            raise ValueError("bad is no text")
        return [[float(len(text))] * dimensions for text in texts]

    async def main() -> None:
        served = ServedFunction(embed, "embed")
        async with serving(served, models=["embed"]) as (front, _), sdk(front) as client:
            # The SDK asks for base64 unless told otherwise.
            done = await client.embeddings.create(model="embed", input=["a", "bcd"])
            assert [one.embedding for one in done.data] == [[1.0, 1.0], [3.0, 3.0]]
            many = await asyncio.gather(
                *(
                    client.embeddings.create(model="embed", input="x" * n, dimensions=3)
                    for n in range(1, 33)
                )
            )
            assert [one.data[0].embedding for one in many] == [[float(n)] * 3 for n in range(1, 33)]
            with pytest.raises(openai.BadRequestError, match=r"input\[1\]: .* bad is no text"):
                await client.embeddings.create(model="embed", input=["a", "bad", "c"])
            with pytest.raises(openai.BadRequestError, match="does not take `colour`"):
                await client.embeddings.create(
                    model="embed", input="a", extra_body={"colour": "red"}
                )
            assert served.figures().batches < 20
        await served.aclose()
        assert len(threads) == 1
        assert threading.get_ident() not in threads

    run(main())


def test_a_generator_of_texts_answers_chats_and_completions(run: Run) -> None:
    async def generate(prompts: list[Any], max_tokens: int = 5) -> list[Any]:
        said = [one if isinstance(one, str) else one[-1]["content"] for one in prompts]
        return [
            Reply(
                output=text.upper()[:max_tokens],
                finish_reason="length" if len(text) > max_tokens else "stop",
                input_tokens=len(text),
                output_tokens=min(max_tokens, len(text)),
            )
            for text in said
        ]

    async def main() -> None:
        served = ServedFunction(generate, "generate")
        messages: Any = [{"role": "user", "content": "hello there"}]
        for kind in (Front, Relay):
            async with kind(served) as front, sdk(front) as client:  # type: ignore[operator]
                chat = await client.chat.completions.create(
                    model="generate", messages=messages, max_tokens=4
                )
                assert chat.choices[0].message.content == "HELL"
                assert chat.choices[0].finish_reason == "length"
                assert chat.usage is not None
                assert chat.usage.total_tokens == 15
                done = await client.completions.create(model="generate", prompt=["a", "bc"])
                assert [choice.text for choice in done.choices] == ["A", "BC"]
                stream = await client.chat.completions.create(
                    model="generate", messages=messages, stream=True
                )
                chunks = [chunk async for chunk in stream]
                assert [chunk.choices[0].delta.content for chunk in chunks] == ["HELLO"]
        await served.aclose()

    run(main())


def test_a_defect_of_a_function_is_a_500_and_a_wrong_path_a_404(run: Run) -> None:
    async def broken(items: list[str]) -> list[str]:
        raise KeyError("defect")

    async def main() -> None:
        served = ServedFunction(broken, "broken")
        async with serving(served) as (front, session):
            body = {"input": "a"}
            status, told, headers = await ask(front, session, body, "/embeddings")
            assert status == 500
            assert "broken raised KeyError" in told["error"]["message"]
            assert headers["x-should-retry"] == "false"
            status, told, _ = await ask(front, session, body, "/responses")
            assert status == 404
            assert "/v1/broken" in told["error"]["message"]
        await served.aclose()

    run(main())
