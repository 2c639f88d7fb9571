"""Estimates of tokens: a first guess, what is learned of each model, and the error it states."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redline.calls import Cost, Reply, Request, TokenEstimator
from redline.calls.tokens import Tokenizer, Tokenizers, Weights
from redline.limits.rule import CERTAIN

DATA = Path(__file__).parents[4] / "shared" / "data"
TEMPLATE = 7  # tokens of the chat format around one message


def asking(text: Any, *, model: Any = "m", **body: Any) -> Request:
    return Request(body={"model": model, "messages": [{"role": "user", "content": text}], **body})


def used(tokens: int | None, output: int | None = None) -> Reply:
    return Reply(input_tokens=tokens, output_tokens=output)


def teach(estimator: Any, request: Request, reply: Reply | None, took_s: float = 1.0) -> None:
    """One call from its write to its end."""
    estimator.end(estimator.begin(request), reply, took_s)


# The first guess.


def test_english_is_four_characters_to_a_token() -> None:
    cost = TokenEstimator().estimate(asking("x" * 400))
    assert 100 <= cost.input_tokens <= 110
    assert cost.tokens == cost.input_tokens + cost.output_tokens


def test_a_chinese_character_is_about_a_token() -> None:
    assert 95 <= TokenEstimator().estimate(asking("字" * 100)).input_tokens <= 110
    assert 25 <= TokenEstimator().estimate(asking("é" * 100)).input_tokens <= 55


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_the_first_output_is_the_requests_own_maximum(name: str) -> None:
    assert TokenEstimator().estimate(asking("a", **{name: 77})).output_tokens == 77
    assert TokenEstimator().estimate(asking("a", n=3, **{name: 77})).output_tokens == 231


@pytest.mark.parametrize("most", [None, -1, "-1", "nine", True, [9]])
def test_without_a_maximum_the_first_output_is_256(most: Any) -> None:
    assert TokenEstimator().estimate(asking("a", max_tokens=most)).output_tokens == 256


@pytest.mark.parametrize("most", [9, "9", 9.0, 8.5])
@pytest.mark.parametrize("copies", [{"n": 4}, {"n": "4"}, {"n": 4.0}, {"n": 2, "best_of": "4"}])
def test_numbers_count_as_lenient_servers_read_them(most: Any, copies: dict[str, Any]) -> None:
    request = asking("a", max_tokens=most, **copies)
    assert TokenEstimator().estimate(request).output_tokens == 36
    assert TokenEstimator().most(request).output_tokens == 36


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/embeddings/", "/e/embeddings?version=1"])
def test_embeddings_have_no_output(path: str) -> None:
    request = Request(url=path, body={"model": "m", "input": ["a" * 40, "b" * 40]})
    estimator = TokenEstimator()
    assert estimator.estimate(request) == Cost(20, 0)
    assert estimator.most(request) == Cost(20, 0)
    for _ in range(20):
        teach(estimator, request, used(20, 5))
    assert estimator.estimate(request) == Cost(20, 0)


def test_token_ids_count_one_each() -> None:
    ids = Request(url="/v1/embeddings", body={"input": [[1, 2, 3], [4] * 97]})
    assert TokenEstimator().estimate(ids) == Cost(100, 0)
    assert TokenEstimator().least(ids) == 100
    flat = Request(url="/v1/completions", body={"prompt": [7] * 50, "max_tokens": 5})
    assert TokenEstimator().estimate(flat) == Cost(50, 5)


def test_each_of_several_prompts_has_its_answers() -> None:
    body = {"prompt": ["a", "b", "c"], "max_tokens": 10, "n": 2}
    request = Request(url="/v1/completions", body=body)
    assert TokenEstimator().estimate(request).output_tokens == 60


@pytest.mark.parametrize("body", [None, "text", ["a"], 3])
def test_a_body_that_is_no_object_costs_the_least(body: object) -> None:
    estimator, request = TokenEstimator(), Request(body=body)
    teach(estimator, request, used(50, 50))
    assert estimator.estimate(request) == estimator.most(request) == Cost(1, 1)
    assert estimator.least(request) == 1


@pytest.mark.parametrize("url", ["data:image/png;base64," + "A" * 10**6, "https://x.test/a.png"])
def test_an_image_is_not_counted_by_its_text(url: str) -> None:
    image = {"type": "image_url", "image_url": {"url": url}}
    cost = TokenEstimator().estimate(asking([{"type": "text", "text": "what?"}, image]))
    assert 765 <= cost.input_tokens <= 800


def test_tools_and_a_schema_count_with_their_names() -> None:
    schema = {"type": "object", "properties": {"temperature": {"type": "number"}}}
    plain = TokenEstimator().estimate(asking("a")).input_tokens
    for name in ("tools", "functions", "response_format"):
        assert TokenEstimator().estimate(asking("a", **{name: schema})).input_tokens > plain + 15
    assert TokenEstimator().estimate(asking("a", tools=None)).input_tokens == plain


# What a request surely costs, and what it costs at most.


def test_the_least_is_well_below_the_estimate_and_grows_with_the_text() -> None:
    estimator = TokenEstimator()
    text = "The quick brown fox jumps over the lazy dog. " * 100
    guess = estimator.estimate(asking(text)).input_tokens
    assert guess / 3 < estimator.least(asking(text)) < guess * 0.6
    # A run of marks or spaces may be a single token.
    assert estimator.least(asking("-" * 10_000 + " " * 10_000)) == 1


def test_the_least_knows_nothing_of_what_was_learned() -> None:
    estimator = TokenEstimator()
    before = estimator.least(asking("word " * 100))
    for _ in range(100):
        teach(estimator, asking("word " * 100), used(2000))
    assert estimator.least(asking("word " * 100)) == before


def in_json(**body: Any) -> Request:
    chat = {"model": "m", "messages": [{"role": "user", "content": "word " * 50}], **body}
    return Request(raw=json.dumps(chat).encode())


def settled() -> TokenEstimator:
    estimator = TokenEstimator()
    for _ in range(300):
        teach(estimator, in_json(), used(60, 5))
    return estimator


def test_a_bound_is_the_bytes_and_little_more() -> None:
    estimator = settled()
    request = in_json()
    bound = estimator.bound(request, 10**6)
    assert bound is not None
    assert len(request.raw or b"") < bound.input_tokens < len(request.raw or b"") + 80
    assert bound.is_bound
    assert not estimator.estimate(request).is_bound


@pytest.mark.parametrize(
    "body",
    [
        {"tools": []},
        {"previous_response_id": "r"},
        {"response_format": {"type": "json_object"}},
        {"n": 2},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"messages": [{"role": "user", "content": "data:image/png;base64,a"}]},
        {"messages": [{"role": "user", "content": "a", "name": "b"}]},
    ],
)
def test_what_its_bytes_do_not_bound_is_estimated(body: dict[str, Any]) -> None:
    assert settled().bound(in_json(**body), 10**6) is None


def test_only_a_known_model_that_tells_its_usage_is_bounded() -> None:
    estimator = TokenEstimator()
    for _ in range(250):
        teach(estimator, in_json(), used(60, 5))
    assert estimator.bound(in_json(), 10**6) is None
    estimator = settled()
    assert estimator.bound(in_json(model="other"), 10**6) is None
    teach(estimator, in_json(), used(None, None))
    assert estimator.bound(in_json(), 10**6) is None


def test_the_most_is_the_whole_maximum_whatever_was_learned() -> None:
    estimator = TokenEstimator()
    for _ in range(50):
        teach(estimator, asking("a"), used(None, 10))
    request = asking("a", max_tokens=500, n=2)
    assert estimator.estimate(request).output_tokens == 20
    assert estimator.most(request) == Cost(estimator.estimate(request).input_tokens, 1000)
    assert estimator.most(asking("a")) == estimator.estimate(asking("a"))


# Learning the input.

WORDS = "the of a house river standing between every morning although people quickly"


def prose(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS.split()) for _ in range(rng.randint(10, 400))) + "."


def wide(rng: random.Random) -> str:
    return "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(rng.randint(20, 800)))


def code(rng: random.Random) -> str:
    line = "if (x[%d] != y.z) { call(a, b_%d); }\n"
    return "".join(line % (rng.randrange(99), i) for i in range(rng.randint(1, 60)))


def mixed(rng: random.Random) -> str:
    return "".join(kind(rng) for kind in rng.choices([prose, wide, code], k=2))


def true_tokens(text: str) -> int:
    """4.2 Latin characters to a token, 1.6 tokens to a CJK one, 2.8 characters of code to one."""
    lines = re.findall(r"if \(.*?\n", text)
    rest = re.sub(r"if \(.*?\n", "", text)
    cjk = sum(char >= "\u2e80" for char in rest)
    return round(sum(map(len, lines)) / 2.8 + cjk * 1.6 + (len(rest) - cjk) / 4.2) + TEMPLATE


def late_error(
    texts: Iterator[str],
    tokens_of: Callable[[str], int],
    noise: Any = None,
    calls: int = 400,
) -> float:
    """The mean absolute error of the last 200 calls, relative to what was used."""
    estimator, errors = TokenEstimator(), []
    for _ in range(calls):
        request = asking(text := next(texts))
        true = tokens_of(text)
        errors.append(abs(estimator.estimate(request).input_tokens - true) / true)
        teach(estimator, request, used(true if noise is None else noise(true)))
    return sum(errors[-200:]) / 200


def endless(kind: Callable[[random.Random], str], seed: int = 1) -> Iterator[str]:
    rng = random.Random(seed)
    while True:
        yield kind(rng)


@pytest.mark.parametrize("kind", [prose, wide, code, mixed])
def test_after_200_calls_the_error_is_below_5_percent(kind: Callable[[Any], str]) -> None:
    assert late_error(endless(kind), true_tokens) < 0.05


def word_tokens(text: str) -> int:
    """One token for a word's first six letters and each six more, a digit triple, and a mark."""
    pieces = re.findall(r"[^\W\d_]{1,6}|\d{1,3}|[^\w\s]|_", text)
    return len(pieces) + TEMPLATE


def real_texts(name: str) -> list[str]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the data set {name} is not on this machine")
    with path.open(encoding="utf-8") as lines:
        if path.suffix == ".csv":
            return [row["text"] for row in csv.DictReader(lines)]
        return [json.loads(line)[key] for line in lines for key in ("question", "answer")]


@pytest.mark.parametrize("name", ["gsm8k/test.jsonl", "banking77/test.csv"])
def test_real_text_under_another_tokenizer_is_learned(name: str) -> None:
    assert late_error(iter(real_texts(name)), word_tokens) < 0.05


def test_a_prompt_that_the_server_adds_is_learned() -> None:
    tokens_of = lambda text: true_tokens(text) + 600  # noqa: E731
    assert late_error(endless(prose), tokens_of) < 0.05


@pytest.mark.parametrize("tokens", [8_000, 45_000, 150_000])
def test_what_a_pdf_or_the_server_adds_is_learned_however_long(tokens: int) -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "A" * 2000}
    pdf = [{"type": "document", "source": source}, {"type": "text", "text": "Sum it up."}]
    for asked in (asking(pdf), asking("Go on.")):
        estimator = TokenEstimator()
        for _ in range(20):
            teach(estimator, asked, used(tokens))
        assert estimator.estimate(asked).input_tokens == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize("before", [100, 900])
def test_another_tokenizer_in_mid_run_is_followed(before: int) -> None:
    calls = iter(range(1200))
    tokens_of = lambda text: true_tokens(text) * (2 if next(calls) >= before else 1)  # noqa: E731
    assert late_error(endless(prose), tokens_of, calls=before + 300) < 0.05


def test_rows_of_two_kinds_in_turn_are_both_learned() -> None:
    """The second kind comes only once the first has been learned."""
    estimator, rng = TokenEstimator(), random.Random(8)
    for call in range(1000):
        text = wide(rng) if call >= 400 and call % 2 else prose(rng)
        teach(estimator, asking(text), used(true_tokens(text)))
    text = wide(rng)
    cost = estimator.estimate(asking(text))
    assert cost.input_tokens == pytest.approx(true_tokens(text), rel=0.02)


def test_most_replies_cost_no_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = 0
    learn = Weights.learn

    def counted(self: Weights, amounts: Any, value: float) -> None:
        nonlocal learned
        learned += 1
        learn(self, amounts, value)

    monkeypatch.setattr(Weights, "learn", counted)
    estimator = TokenEstimator()
    for _ in range(256):
        teach(estimator, asking("a"), used(8))
    first = learned
    for _ in range(800):
        teach(estimator, asking("a"), used(8))
    # Each of the first replies, and one in eight of the later ones.
    assert learned - first == pytest.approx(first / 256 * 100, rel=0.03)


def test_one_call_in_32_that_take_a_bound_is_followed_and_teaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimator = settled()
    learned: list[float] = []
    monkeypatch.setattr(Weights, "learn", lambda self, amounts, value: learned.append(value))
    for _ in range(640):
        estimator.end(estimator.begin_bound(in_json()), used(60, 5), 1.0)
    assert len(learned) == pytest.approx(20, abs=1)


HOSTILE: list[Any] = [0, -5, 1, 10**9, 10**400, None, "12", 3.5, float("nan"), True, [], {}]


def hostile(seed: int) -> Callable[[int], Any]:
    rng = random.Random(seed)
    return lambda true: rng.choice([*HOSTILE, true * 10]) if rng.random() < 0.1 else true


def test_one_false_usage_in_ten_does_little_harm() -> None:
    assert late_error(endless(prose), true_tokens, hostile(7)) < 0.05


def test_outliers_are_not_believed() -> None:
    rng = random.Random(3)
    noise = lambda true: true * (30 if rng.random() < 0.1 else 1)  # noqa: E731
    assert late_error(endless(prose), true_tokens, noise) < 0.05


@pytest.mark.parametrize("usage", HOSTILE)
def test_a_server_that_sends_only_nonsense_breaks_nothing(usage: Any) -> None:
    estimator = TokenEstimator()
    for _ in range(300):
        teach(estimator, asking("word " * 20, n=10**400), Reply(input_tokens=usage))
        teach(estimator, asking("word " * 20), Reply(output_tokens=usage))
    for request in (asking("word " * 20), asking("word " * 20, n=10**400, max_tokens=10**400)):
        cost = estimator.estimate(request)
        assert 1 <= cost.input_tokens < 10**6
        assert cost.output_tokens >= 1


def test_a_reply_without_usage_teaches_nothing() -> None:
    estimator = TokenEstimator()
    before = estimator.estimate(asking("a"))
    teach(estimator, asking("a"), Reply())
    assert estimator.estimate(asking("a")) == before


# Models.


def test_each_model_is_learned_by_itself() -> None:
    estimator = TokenEstimator()
    first = estimator.estimate(asking("word " * 100)).input_tokens
    for _ in range(100):
        teach(estimator, asking("word " * 100), used(first * 3, 40))
    other = asking("word " * 100, model="other")
    assert estimator.estimate(asking("word " * 100)).input_tokens == pytest.approx(
        3 * first, rel=0.05
    )
    assert estimator.estimate(other) == Cost(first, 256)


@pytest.mark.parametrize("model", [None, 5, ["a"], {}, "x" * 10**6])
def test_what_names_no_model_is_learned_together(model: Any) -> None:
    estimator = TokenEstimator()
    for _ in range(20):
        teach(estimator, asking("a", model=model), used(None, 40))
    assert estimator.estimate(Request(body={"prompt": "a"})).output_tokens == 40


def test_the_models_kept_are_few_and_the_latest() -> None:
    estimator = TokenEstimator()
    names = [f"m{number}" for number in range(36)]
    for name in ["often", *names]:
        for _ in range(20):
            teach(estimator, asking("a", model=name), used(None, 40))
        teach(estimator, asking("a", model="often"), used(None, 40))
    # The least recently used go first.
    known = [
        name
        for name in ["often", *names]
        if estimator.estimate(asking("a", model=name)).output_tokens == 40
    ]
    assert known == ["often", *names[-31:]]


# The output.


def test_before_twenty_replies_the_maximum_holds() -> None:
    estimator = TokenEstimator()
    for _ in range(19):
        teach(estimator, asking("a"), used(None, 20))
    assert estimator.estimate(asking("a", max_tokens=100)).output_tokens == 100
    assert estimator.estimate(asking("a")).output_tokens == 256
    teach(estimator, asking("b", model="b"), used(None, 700))
    assert estimator.estimate(asking("a", model="b")).output_tokens == 700
    assert estimator.estimate(asking("a", model="b")).spread == CERTAIN
    teach(estimator, asking("a"), used(None, 20))
    assert estimator.estimate(asking("a", max_tokens=100)).output_tokens == 20


def test_several_answers_are_learned_by_the_one() -> None:
    estimator = TokenEstimator()
    for _ in range(20):
        teach(estimator, asking("a", n=4), used(None, 400))
    assert estimator.estimate(asking("a", n=2)).output_tokens == 200


def taught_by(outputs: list[int]) -> TokenEstimator:
    estimator = TokenEstimator()
    for tokens in outputs:
        teach(estimator, asking("a"), used(None, tokens))
    return estimator


def test_the_output_is_the_mean_with_its_spread() -> None:
    rng = random.Random(6)
    estimator = taught_by([1 + int(rng.expovariate(1 / 100)) for _ in range(300)])
    cost = estimator.estimate(asking("a", max_tokens=5000))
    # The mean, and 2 standard errors: 100 * (1 + 2 / sqrt(300)).
    assert 95 <= cost.output_tokens <= 130
    assert 60**2 < cost.spread.variance < 140**2
    assert cost.spread.third > 0
    assert cost.spread.most == pytest.approx(5000 - cost.output_tokens, abs=1)
    twice = estimator.estimate(asking("a", max_tokens=5000, n=2))
    assert twice.output_tokens == pytest.approx(2 * cost.output_tokens, abs=1)
    assert twice.spread.variance == pytest.approx(2 * cost.spread.variance)


def test_a_learned_output_stays_within_the_requests_maximum() -> None:
    estimator = taught_by([900, 10] * 50)
    cost = estimator.estimate(asking("a", max_tokens=100))
    assert cost.output_tokens + cost.spread.most <= 101


def test_a_maximum_leaves_little_doubt() -> None:
    """What lies in 0 to 100 with a mean m has a variance of m (100 - m) at most."""
    spread = taught_by([99, 1] * 50).estimate(asking("a", max_tokens=60)).spread
    # The mean is 50 and 2 standard errors.
    assert spread.variance <= 60 * 60 / 4
    assert spread.third <= spread.variance * 60


def test_outputs_are_learned_in_the_order_of_sending() -> None:
    """A call is given up without a reply, one is never over, and the others still teach."""
    estimator = TokenEstimator()
    request = asking("a")
    estimator.begin(request)
    for _ in range(30):
        teach(estimator, request, used(None, 20))
    # The first call may yet turn out to be a long one.
    assert estimator.estimate(request).output_tokens == 256
    lost = TokenEstimator()
    lost.end(lost.begin(request), None, 600.0)
    for _ in range(20):
        teach(lost, request, used(None, 20))
    assert lost.estimate(request).output_tokens == 20


# With an exact tokenizer.


class Exact(Tokenizers):
    """Every model's tokenizer is `word_tokens` without the template."""

    def find(self, model: str, *, may_block: bool = False) -> Tokenizer:
        return Tokenizer(lambda text: range(word_tokens(text) - TEMPLATE))


def test_a_tokenizer_leaves_only_the_template_to_learn() -> None:
    estimator, texts = TokenEstimator(Exact()), endless(mixed)
    errors = []
    for _ in range(100):
        request = asking(text := next(texts)[:4000])
        errors.append(abs(estimator.estimate(request).input_tokens - word_tokens(text)))
        teach(estimator, request, used(word_tokens(text)))
    # At first the template is a guess; then nothing is left but rounding.
    assert errors[0] <= TEMPLATE
    assert max(errors[20:]) <= 1
