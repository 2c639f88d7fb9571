"""A user's function by its name, and HTTP bodies as the items of its list."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redline.calls import Call, Outcome, Request
from redline.errors import BadReply, ConfigError, RateLimited, Rejected
from redline.serve.functions import FunctionSettings, ServedFunction, function_backend
from redline.testing import virtual_run

MODULE = """
import asyncio

def embed(texts, scale=1):
    return [[float(len(text)) * scale] for text in texts]

async def classify(items):
    return [{"label": "long" if len(item) > 3 else "short"} for item in items]

class Model:
    def __call__(self, items):
        return items
    def method(self, items):
        return items

model = Model()
number = 5

def nothing(): ...
def needs(items, key): ...
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "served_mine.py").write_text(MODULE)
    (tmp_path / "served_broken.py").write_text("x = 1\ny = x.nothing\n")
    (tmp_path / "served_syntax.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "served_needs.py").write_text("import json\n\nimport no_such_library_at_all\n")
    (tmp_path / "served_exits.py").write_text("import json\njson.loads('{')\n")
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("served_mine", r"'served_mine' is not module:name"),
        (":embed", "not module:name"),
        ("served_gone:embed", "there is no module served_gone"),
        ("served_mine:emded", "served_mine has no emded .*did you mean embed"),
        ("served_mine:number", "cannot be called: its type is int"),
        ("served_mine:Model", r"is a class, not a function: .*`answer = Model\(\)`"),
        ("served_mine:nothing", "nothing takes no list"),
        ("served_mine:needs", "needs `key`, .*give `key` a default"),
        ("served_broken:f", r"AttributeError.*see served_broken.py:2: y = x.nothing"),
        ("served_syntax:f", r"SyntaxError.*see served_syntax.py:2: def f\(:"),
        ("served_needs:f", "no_such_library_at_all.*see served_needs.py:3: import no_such"),
        # The user's own line, and not the library's in which it fails.
        ("served_exits:f", r"JSONDecodeError.*see served_exits.py:2: json.loads\('\{'\)"),
    ],
)
def test_what_cannot_be_served_says_why(spec: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        function_backend(FunctionSettings(spec=spec))
    assert re.search(said, str(caught.value)), str(caught.value)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["embed", "classify", "model", "model.method"])
def test_functions_objects_and_methods_are_served_under_their_name(name: str) -> None:
    served = function_backend(FunctionSettings(spec=f"served_mine:{name}"))
    assert served.name == name.rpartition(".")[2]
    assert served.paths[-1] == f"/v1/{served.name}"


async def embed(texts: list[Any], scale: int = 1) -> list[Any]:
    return [[float(len(text) * scale)] for text in texts]


def asked(
    function: Callable[..., Any], *bodies: Any, path: str | None = None, **settings: Any
) -> tuple[list[Outcome], ServedFunction]:
    """The outcomes of requests that come together."""
    served = ServedFunction(function, function.__name__, **settings)

    async def main() -> list[Outcome]:
        url = path or served.paths[-1]
        requests = [Request(url=url, raw=msgspec.json.encode(body)) for body in bodies]
        return await asyncio.gather(*(served.send(one, Call()) for one in requests))

    return virtual_run(main()), served


def body_of(outcome: Outcome) -> Any:
    assert outcome.reply is not None, outcome
    return msgspec.json.decode(outcome.reply.body)


def test_items_of_several_requests_share_batches_of_the_stated_size() -> None:
    sizes: list[int] = []

    async def counted(items: list[str]) -> list[str]:
        sizes.append(len(items))
        return [item.upper() for item in items]

    (one, other), served = asked(
        counted, {"input": [*"abcde"]}, {"input": [*"fgh"]}, max_batch_size=4
    )
    assert sizes == [4, 4]
    assert one.output == [*"ABCDE"]
    assert body_of(other)["data"] == [
        {"index": index, "output": letter} for index, letter in enumerate("FGH")
    ]
    assert served.figures().batch_efficiency == 1.0


def test_fields_named_as_parameters_are_arguments_and_split_batches() -> None:
    seen: list[tuple[list[str], int]] = []

    async def scaled(items: list[str], scale: int = 1, **more: Any) -> list[int]:
        seen.append((items, scale))
        return [len(item) * scale for item in items]

    outcomes, _ = asked(
        scaled,
        {"input": "a"},
        {"input": "b", "scale": 3},
        {"input": ["c"], "scale": 3, "user": "me", "model": "scaled"},
        {"input": "d", "scale": None},
    )
    assert [outcome.output for outcome in outcomes] == [1, 3, 3, 1]
    assert seen == [(["a", "d"], 1), (["b", "c"], 3)]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ([], 400, "not a JSON object"),
        ({}, 400, "`input` is missing"),
        ({"input": []}, 400, "`input` is empty"),
        ({"input": ["a"] * 2049}, 400, "2,049 items; at most 2,048"),
        ({"input": "a", "colour": 1}, 400, "embed does not take `colour`: it takes scale"),
    ],
)
def test_a_body_that_cannot_be_asked_is_refused(body: Any, status: int, said: str) -> None:
    (outcome,), _ = asked(embed, body)
    assert isinstance(outcome.error, Rejected)
    assert outcome.error.status == status
    assert said in str(outcome.error)


def test_tokens_are_one_input_and_lists_of_them_several() -> None:
    (one, several, plain), _ = (
        asked(embed, {"input": [5, 6, 7]}, path="/v1/embeddings")[0]
        + asked(embed, {"input": [[5, 6], [7]]}, path="/v1/embeddings")[0]
        + asked(embed, {"input": "text", "encoding_format": "base64"}, path="/v1/embeddings")[0],
        None,
    )
    assert one.output == [3.0]
    assert several.output == [[2.0], [1.0]]
    # 4.0 as a 32-bit float, the lowest byte first.
    assert body_of(plain)["data"][0]["embedding"] == "AACAQA=="
    assert "usage" not in body_of(plain)


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/v1/embeddings", "text", "is str, not a vector"),
        ("/v1/embeddings", [], "not a vector"),
        ("/v1/embeddings", [float("nan")], "infinite value or a NaN"),
        ("/v1/completions", [1.0], "is list, not a string"),
        ("/v1/answer", object(), "not JSON"),
    ],
)
def test_an_answer_of_another_form_is_a_bad_reply(path: str, answer: Any, said: str) -> None:
    async def answered(items: list[Any]) -> list[Any]:
        return [answer for _ in items]

    answered.__name__ = "answer"
    field = "prompt" if path == "/v1/completions" else "input"
    (outcome,), _ = asked(answered, {field: "a"}, path=path)
    assert isinstance(outcome.error, BadReply)
    assert said in str(outcome.error)


def test_numbers_of_numpy_are_plain_ones_wherever_an_answer_holds_them() -> None:
    np = pytest.importorskip("numpy")

    def answer(items: list[Any]) -> list[Any]:
        return [[np.mean([1, 2]), np.float32(0.5), np.int64(3)] for _ in items]

    (vector,), _ = asked(answer, {"input": "a"}, path="/v1/embeddings")
    (packed,), _ = asked(answer, {"input": "a", "encoding_format": "base64"}, path="/v1/embeddings")
    assert body_of(vector)["data"][0]["embedding"] == [1.5, 0.5, 3]
    assert body_of(packed)["data"][0]["embedding"] == "AADAPwAAAD8AAEBA"

    def classify(items: list[Any]) -> list[Any]:
        return [{"label": "a", "score": np.float32(0.5)} for _ in items]

    (labelled,), _ = asked(classify, {"input": "a"}, path="/v1/classify")
    assert body_of(labelled)["data"][0]["output"] == {"label": "a", "score": 0.5}


def test_an_exit_is_an_error_of_its_item() -> None:
    """Out of a task it would end the event loop, and so the server."""

    def leaves(items: list[str]) -> list[str]:
        if "bad" in items:
            sys.exit(3)
        return items

    async def leaves_later(items: list[str]) -> list[str]:
        return leaves(items)

    for function in (leaves, leaves_later):
        outcomes, _ = asked(function, {"input": "a"}, {"input": "bad"}, {"input": "b"})
        assert [outcome.output for outcome in outcomes] == ["a", None, "b"]
        error = outcomes[1].error
        assert isinstance(error, Rejected)
        assert error.status == 500
        assert str(error) == f"{function.__name__} raised RuntimeError: SystemExit: 3"


def test_a_panic_of_a_library_is_not_the_fault_of_the_request() -> None:
    """Libraries in Rust raise a BaseException when they panic."""

    def panics(items: list[str]) -> list[str]:
        raise BaseException("a panic")

    (outcome,), _ = asked(panics, {"input": "a"})
    assert isinstance(outcome.error, Rejected)
    assert outcome.error.status == 500


def test_errors_name_their_item_and_keep_their_kind() -> None:
    async def picky(items: list[str]) -> list[Any]:
        errors = {"bad": ValueError("no"), "full": RateLimited("later"), "x": KeyError("x")}
        return [errors.get(item, item) for item in items]

    outcomes, _ = asked(
        picky, {"input": ["a", "bad"]}, {"input": "full"}, {"input": "x"}, {"input": "fine"}
    )
    kinds = [type(outcome.error) for outcome in outcomes]
    assert kinds == [Rejected, RateLimited, Rejected, type(None)]
    assert str(outcomes[0].error) == "input[1]: picky returned ValueError: no"
    statuses = [getattr(outcome.error, "status", None) for outcome in outcomes]
    assert statuses == [400, None, 500, None]


def test_a_list_is_queued_whole_or_not_at_all() -> None:
    seen: list[str] = []

    async def slow(items: list[str]) -> list[str]:
        seen.extend(items)
        await asyncio.sleep(1)
        return items

    # No batch leaves before all three have come, and the queue has 4,096 places.
    lists = [[f"{letter}{number}" for number in range(2000)] for letter in "abc"]
    outcomes, _ = asked(slow, *({"input": items} for items in lists), max_in_flight=1)
    assert [outcome.output for outcome in outcomes[:2]] == lists[:2]
    error = outcomes[2].error
    assert isinstance(error, RateLimited)
    assert str(error).startswith("the queue of the batcher is full: 4,000 items to be sent")
    assert seen == lists[0] + lists[1]


def test_the_rest_of_a_list_is_not_computed_once_an_item_has_failed() -> None:
    seen: list[str] = []

    async def picky(items: list[str]) -> list[Any]:
        seen.extend(items)
        await asyncio.sleep(1)
        return [ValueError("no") if item == "b" else item for item in items]

    outcomes, served = asked(
        picky, {"input": [*"abcdef"]}, {"input": [*"gh"]}, max_batch_size=2, max_in_flight=1
    )
    assert str(outcomes[0].error) == "input[1]: picky returned ValueError: no"
    assert outcomes[1].output == [*"gh"]
    assert seen == [*"abgh"]
    assert served.figures().waiting == 0


def test_cancelling_a_request_takes_its_items_back() -> None:
    seen: list[str] = []

    async def slow(items: list[str]) -> list[str]:
        seen.extend(items)
        await asyncio.sleep(1)
        return items

    async def main() -> None:
        served = ServedFunction(slow, "slow", max_batch_size=2, max_in_flight=1)
        request = Request(url="/v1/slow", body={"input": [*"abcdef"]})
        task: asyncio.Task[Outcome] = asyncio.create_task(served.send(request, Call()))
        await asyncio.sleep(1.5)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(5)
        assert seen == [*"abcd"]
        figures = served.figures()
        assert (figures.waiting, figures.in_flight) == (0, 0)
        await served.aclose()

    coroutine: Coroutine[Any, Any, None] = main()
    virtual_run(coroutine)
