"""Requests joined to lists, and answers taken apart: bytes, order and usage."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.calls import Call, DynamicBatcher, Outcome, Reply, Request
from redline.calls.batching import BatchFigures
from redline.testing import ScriptedBackend, Send, virtual_run


def batched(
    answer: Any, *requests: Request, **settings: Any
) -> tuple[list[Outcome], list[Request]]:
    """The outcomes of requests that come together, and what the backend was asked."""

    async def main() -> tuple[list[Outcome], list[Request]]:
        backend = ScriptedBackend([answer] if isinstance(answer, Reply) else answer)
        batcher = DynamicBatcher(backend, max_wait_s=0.0, **settings)
        outcomes = await asyncio.gather(*(batcher.send(one, Call()) for one in requests))
        return list(outcomes), [send.request for send in backend.sends]

    return virtual_run(main())


def raw(url: str, body: bytes) -> Request:
    return Request(url=url, raw=body)


def test_values_keep_their_bytes_on_both_ways() -> None:
    answer = (
        b'{"object":"list", "own": [1.50,  2], "data":['
        b'{"index":1,"embedding":[2.50, 3e2],"x":"\\u00e9"},{"embedding":[1.10],"index":0}],'
        b'"usage":null}'
    )
    outcomes, asked = batched(
        Reply(body=answer),
        raw("/v1/embeddings", b'{"input":"caf\\u00e9", "model":"m", "own":{"a": 1.10}}'),
        raw("/v1/embeddings", b'{"model":"m","own":{"a": 1.10},"input":["b"]}'),
    )
    assert asked[0].raw == b'{"input":["caf\\u00e9","b"],"model":"m","own":{"a": 1.10}}'
    bodies = [one.reply.body for one in outcomes if one.reply]
    assert bodies == [
        b'{"object":"list","own":[1.50,  2],"data":[{"embedding":[1.10],"index":0}],"usage":null}',
        b'{"object":"list","own":[1.50,  2],"data":'
        b'[{"index":0,"embedding":[2.50, 3e2],"x":"\\u00e9"}],"usage":null}',
    ]
    assert [one.output for one in outcomes] == [[1.1], [2.5, 300.0]]


def test_a_request_that_is_alone_is_sent_and_answered_as_it_is() -> None:
    request = raw("/v1/embeddings", b'{ "input" : "a" }')
    answer = Reply(output=[1.0], body=b'{ "data": [{"embedding": [1.0]}] }')
    (outcome,), asked = batched(answer, request)
    assert asked == [request]
    assert outcome.reply is not None
    assert outcome.reply.body == answer.body


def test_completions_have_n_answers_to_each_prompt() -> None:
    choices = [
        {"index": i, "text": f"text {i}", "finish_reason": "stop" if i % 2 else "length"}
        for i in range(6)
    ]
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 60,
        "total_tokens": 69,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    body = {"id": "cmpl-1", "choices": choices[::-1], "usage": usage}
    outcomes, asked = batched(
        Reply(body=msgspec.json.encode(body)),
        Request(url="/v1/completions", body={"prompt": "abc", "n": 2}),
        Request(url="/v1/completions", body={"prompt": ["def", "ghi"], "n": 2}),
    )
    assert asked[0].body == {"prompt": ["abc", "def", "ghi"], "n": 2}
    assert outcomes[0].output == ["text 0", "text 1"]
    assert outcomes[1].output == ["text 2", "text 3", "text 4", "text 5"]
    replies = [one.reply for one in outcomes if one.reply is not None]
    assert replies[0].finish_reason == ["length", "stop"]
    # A third of what was read, and of what was written.
    assert [reply.usage for reply in replies] == [
        {
            "prompt_tokens": 3,
            "completion_tokens": 20,
            "total_tokens": 23,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        {
            "prompt_tokens": 6,
            "completion_tokens": 40,
            "total_tokens": 46,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    ]
    assert [reply.output_tokens for reply in replies] == [20, 40]


def test_usage_that_is_stated_for_each_item_is_added_up() -> None:
    def answer(send: Send) -> Reply:
        data = [
            {"index": i, "embedding": [1.0], "usage": {"prompt_tokens": 10**i}} for i in range(3)
        ]
        body = {"data": data, "usage": {"prompt_tokens": 999}}
        return Reply(body=msgspec.json.encode(body))

    outcomes, _ = batched(
        answer,
        Request(url="/v1/embeddings", body={"input": "the longest by far of them all"}),
        Request(url="/v1/embeddings", body={"input": ["a", "b"]}),
    )
    assert [one.reply.input_tokens for one in outcomes if one.reply] == [1, 110]


@given(
    texts=st.lists(st.text(max_size=30), min_size=2, max_size=9),
    read=st.integers(0, 10**6),
    cost=st.floats(0, 10),
)
def test_shares_of_usage_sum_to_the_whole(texts: list[str], read: int, cost: float) -> None:
    data = [{"index": i, "embedding": [1.0]} for i in range(len(texts))]
    usage = {"prompt_tokens": read, "total_tokens": read, "cost": cost, "note": "eu"}
    outcomes, _ = batched(
        Reply(body=msgspec.json.encode({"data": data, "usage": usage})),
        *(Request(url="/v1/embeddings", body={"input": text}) for text in texts),
    )
    shares = [one.reply.usage for one in outcomes if one.reply is not None and one.reply.usage]
    assert sum(share["prompt_tokens"] for share in shares) == read
    assert all(share["total_tokens"] == share["prompt_tokens"] for share in shares)
    assert sum(share["cost"] for share in shares) == pytest.approx(cost)
    assert {share["note"] for share in shares} == {"eu"}


def test_an_index_of_0_may_be_missing_as_in_geminis_answers() -> None:
    body = b'{"data":[{"embedding":[1.0]},{"embedding":[2.0],"index":1}]}'
    requests = [Request(url="/v1/embeddings", body={"input": text}) for text in ("a", "b")]
    outcomes, _ = batched(Reply(body=body), *requests)
    assert [one.output for one in outcomes] == [[1.0], [2.0]]


@pytest.mark.parametrize("digits", [309, 400])
def test_a_count_beyond_what_a_float_holds_fails_no_member_of_a_batch(digits: int) -> None:
    count = 10 ** (digits - 1) + 1
    body = b'{"data":[{"embedding":[1.0]},{"embedding":[2.0]}],"usage":{"prompt_tokens":%d}}'
    requests = [Request(url="/v1/embeddings", body={"input": text}) for text in ("a", "bcd")]
    outcomes, _ = batched(Reply(body=body % count), *requests)
    assert [one.output for one in outcomes] == [[1.0], [2.0]]
    shares = [one.reply.usage["prompt_tokens"] for one in outcomes if one.reply and one.reply.usage]
    assert sum(shares) == count
    assert abs(shares[1] - 3 * shares[0]) <= 3
    # No call uses that: no count is read from it.
    assert [one.reply.input_tokens for one in outcomes if one.reply] == [None, None]


@pytest.mark.parametrize(
    ("cost", "read"),
    [(b"1" + b"0" * 309, [2, 1]), (b"1" * 5_000, [None, None]), (b"1e400", [None, None])],
    ids=["310 digits", "5,000 digits", "no float"],
)
def test_an_item_whose_usage_is_beyond_all_bounds_fails_no_member(
    cost: bytes, read: list[int | None]
) -> None:
    item = b'{"embedding":[1.0],"usage":{"prompt_tokens":1,"cost":%b}}'
    body = b'{"data":[%b]}' % b",".join(item % each for each in (b"0.5", cost, b"0.25"))
    requests = [Request(url="/v1/embeddings", body={"input": texts}) for texts in (["a", "b"], "c")]
    outcomes, _ = batched(Reply(body=body), *requests)
    assert [one.output for one in outcomes] == [[[1.0], [1.0]], [1.0]]
    assert [one.reply.input_tokens for one in outcomes if one.reply] == read


def test_classifiers_and_moderations_are_lists_too() -> None:
    results = [{"flagged": True}, {"flagged": False}]
    outcomes, asked = batched(
        Reply(body=msgspec.json.encode({"id": "modr-1", "results": results})),
        *(Request(url="/v1/moderations", body={"input": text}) for text in "ab"),
    )
    assert asked[0].body == {"input": ["a", "b"]}
    assert [one.output["results"] for one in outcomes] == [[results[0]], [results[1]]]
    data = [{"index": i, "label": label} for i, label in enumerate(("spam", "ham"))]
    outcomes, _ = batched(
        Reply(body=msgspec.json.encode({"data": data})),
        *(
            Request(url="/classify", body={"input": text}, output_path=("data", 0, "label"))
            for text in "ab"
        ),
    )
    assert [one.output for one in outcomes] == ["spam", "ham"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2, 3], "text"),
        ([[1], [2]], ["text"]),
    ],
)
def test_tokens_and_texts_are_not_mixed(one: Any, other: Any) -> None:
    requests = [Request(url="/v1/embeddings", body={"input": i}) for i in (one, other)]
    answer = Reply(output=[[1.0], [2.0]] if one == [[1], [2]] else [1.0])
    _, asked = batched(answer, *requests)
    assert asked == requests


def test_token_lists_are_items() -> None:
    outcomes, asked = batched(
        Reply(output=[[1.0], [2.0], [3.0]], usage={"prompt_tokens": 6}, finish_reason=None),
        Request(url="/v1/embeddings", body={"input": [7, 8, 9]}),
        Request(url="/v1/embeddings", body={"input": [[1], [2, 3]]}),
    )
    assert asked[0].body == {"input": [[7, 8, 9], [1], [2, 3]]}
    # From a backend without a body, such as a function, the output is taken apart.
    assert [one.output for one in outcomes] == [[1.0], [[2.0], [3.0]]]
    assert [one.reply.input_tokens for one in outcomes if one.reply] == [3, 3]


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/moderations", {"input": [{"type": "text", "text": "a"}]}),
        ("/v1/embeddings", {"input": []}),
        ("/v1/embeddings", {"input": ["a", 3]}),
        ("/v1/embeddings", {"model": "m"}),
        ("/v1/embeddings", "no object"),
        ("/v1/completions", {"prompt": "a", "n": "many"}),
        ("/v1/chat/completions", {"prompt": "a", "messages": []}),
        ("/v1/other", {"input": "a"}),
    ],
)
def test_other_requests_are_sent_as_they_are(url: str, body: Any) -> None:
    requests = [Request(url=url, body=body) for _ in range(2)]
    _, asked = batched(Reply(output="ok"), *requests)
    assert [one is other for one, other in zip(requests, asked, strict=True)] == [True, True]


def test_figures_of_nothing_are_none() -> None:
    figures: BatchFigures = DynamicBatcher(sorted).figures()
    assert (figures.batch_efficiency, figures.mean_size, figures.mean_wait_s) == (None,) * 3
