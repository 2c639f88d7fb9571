"""What tokens cost: prices, usages, and exact sums of both."""

from __future__ import annotations

import json
from calendar import month_name
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.apis import MOST_TOKENS, Usage, read_usage
from redline.calls.cost import (
    DOLLAR,
    NOTHING,
    PRICE_KEYS,
    Allowance,
    Amount,
    Price,
    Prices,
    Spending,
    dollars_text,
    parse_money,
    parse_price,
    prices,
)
from redline.errors import ConfigError

MINI = {"input": "0.15", "cached_input": "0.075", "output": "0.60"}


def price(**dollars: Any) -> Price:
    return parse_price("m", {"input": 1, "output": 2, **dollars})


def test_a_price_is_dollars_for_a_million_tokens() -> None:
    found = parse_price("m", MINI)
    assert (found.input, found.cached_input, found.output) == (150_000, 75_000, 600_000)
    assert found.of(Usage(input=1_000_000)) * 100 == 15 * DOLLAR


@pytest.mark.parametrize("number", [0.1, 0.15, 0.6, 1.1, 2.5, "0.000001", 15, 75.0])
def test_a_price_is_what_is_written_and_not_the_float_beside_it(number: float | str) -> None:
    assert price(input=number).input == round(float(number) * 10**6)


def test_cached_tokens_cost_what_others_do_where_nothing_is_said() -> None:
    assert price(input=3).cached_input == 3_000_000


@pytest.mark.parametrize(
    ("model", "same_as"),
    [
        ("gpt-4o-mini", "gpt-4o-mini"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("claude-sonnet-4@20250514", "claude-sonnet-4"),
    ],
)
def test_a_dated_model_has_the_price_of_its_name(model: str, same_as: str) -> None:
    assert Prices().find(model) == Prices().find(same_as) is not None


def test_a_dated_model_with_a_price_of_its_own_has_that() -> None:
    own = {"gpt-4o": price()}
    for known in (Prices(), Prices(own), Prices(own, {"lab": {"fast": "qwen"}})):
        found = known.find("gpt-4o-2024-05-13")
        assert found is not None
        assert (found.input, found.output) == (5_000_000, 15_000_000)
    assert Prices({"gpt-4o-2024-05-13": price()}).find("gpt-4o-2024-05-13") == price()


@pytest.mark.parametrize(
    "model", ["gpt-4o-mini-audio", "gpt-4", "gpt-4o-mini-2024", "x-gpt-4o", "gpt-4o-0613", "", None]
)
def test_a_model_that_is_only_named_alike_has_no_price(model: str | None) -> None:
    assert Prices().find(model) is None


def test_own_prices_come_first_for_dated_names_too() -> None:
    own = Prices({"gpt-4o": price(), "mine": price(input=7)})
    assert own.find("gpt-4o-2024-08-06") == price()
    assert own.find("mine-2030-01-01") == price(input=7)
    assert own.find("gpt-4o-mini") == Prices().find("gpt-4o-mini")
    renamed = Prices({"mine": price(input=7)}, {"lab": {"mine-2030-01-01": "qwen"}})
    assert renamed.find("mine-2030-01-01") == renamed.at("lab", "qwen") == price(input=7)


def test_the_page_says_how_old_the_table_is() -> None:
    table = json.loads(Path(prices.__file__).with_name("prices.json").read_text("utf-8"))
    year, month = map(int, table["as_of"].split("-"))
    page = Path(__file__).parents[3] / "docs" / "budget.md"
    assert f"as of {month_name[month]} {year}" in page.read_text("utf-8")


def test_every_price_that_comes_along_can_be_read() -> None:
    table = json.loads(Path(prices.__file__).with_name("prices.json").read_text("utf-8"))
    for model, listed in table["dollars_per_million_tokens"].items():
        found = Prices().checked(model)
        assert found.cached_input <= found.input
        assert found.input == round(listed["input"] * 10**6)


def test_a_model_without_a_price_is_told_what_to_write() -> None:
    with pytest.raises(ConfigError) as caught:
        Prices().checked("foo")
    assert 'write [prices."foo"] into redline.toml' in caught.value.hint


@pytest.mark.parametrize(
    ("table", "what", "hint"),
    [
        ({"inptu": 1, "output": 1}, "unknown setting: inptu", "did you mean input?"),
        ({"nope": 1}, "unknown setting: nope", f"known settings: {', '.join(PRICE_KEYS)}"),
        ({"input": 1}, "the price of m has no output", "output = 0.5"),
        ({"output": 1}, "the price of m has no input", "input = 0.5"),
        ({"input": "a", "output": 1}, "input is not a price: a", "such as 0.15"),
        ({"input": True, "output": 1}, "input is not a price: True", "such as 0.15"),
        ({"input": -1, "output": 1}, "input is not a price: -1", "such as 0.15"),
        ({"input": "nan", "output": 1}, "input is not a price: nan", "such as 0.15"),
        ({"input": 1e9, "output": 1}, "input is not a price", "such as 0.15"),
        ({"input": "0.0000001", "output": 1}, "more than six decimals", "round it up"),
    ],
)
def test_a_table_that_is_no_price_is_refused(table: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_price("m", table, "there")
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert caught.value.where == "there"


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2}, Usage(10, 0, 0, 2)),
        # OpenAI: chat, and responses.
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
            Usage(2, 8, 0, 2),
        ),
        (
            {
                "input_tokens": 10,
                "output_tokens": 2,
                "input_tokens_details": {"cached_tokens": 8},
                "output_tokens_details": {"reasoning_tokens": 2},
                "total_tokens": 12,
            },
            Usage(2, 8, 0, 2),
        ),
        # OpenAI and OpenRouter count what is put into the cache, too.
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 70},
            },
            Usage(10, 20, 70, 2),
        ),
        (
            {
                "input_tokens": 100,
                "output_tokens": 2,
                "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 90},
            },
            Usage(0, 20, 80, 2),
        ),
        # Anthropic: beside the input.
        (
            {
                "input_tokens": 10,
                "cache_read_input_tokens": 80,
                "cache_creation_input_tokens": 5,
                "output_tokens": 2,
            },
            Usage(10, 80, 5, 2),
        ),
        # LiteLLM: Anthropic's names, but a part of the input.
        (
            {
                "prompt_tokens": 10_000,
                "completion_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 9_900},
                "cache_read_input_tokens": 9_900,
                "cache_creation_input_tokens": 0,
            },
            Usage(100, 9_900, 0, 10),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 10,
                "cache_read_input_tokens": 60,
                "cache_creation_input_tokens": 30,
            },
            Usage(10, 60, 30, 10),
        ),
        # More than the input cannot be a part of it.
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 10,
                "cache_read_input_tokens": 9_900,
                "cache_creation_input_tokens": 0,
            },
            Usage(100, 9_900, 0, 10),
        ),
        # DeepSeek.
        (
            {"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 4},
            Usage(6, 4, 0, 2),
        ),
        # Moonshot.
        ({"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 4}, Usage(6, 4, 0, 2)),
        # Gemini: thoughts are in the total alone.
        ({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 112}, Usage(10, 0, 0, 102)),
        # More cached than there were.
        (
            {
                "prompt_tokens": 1,
                "completion_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
            Usage(0, 1, 0, 0),
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": 3},
            Usage(10, output=2),
        ),
        ({"prompt_tokens": 10}, None),
        ({"completion_tokens": 10}, None),
        ({"prompt_tokens": "10", "completion_tokens": 2}, None),
        ({"prompt_tokens": -1, "completion_tokens": 2}, None),
        ({"prompt_tokens": True, "completion_tokens": 2}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({}, None),
        (None, None),
    ],
)
def test_usages_of_all_shapes(usage: dict[str, Any] | None, read: Usage | None) -> None:
    assert read_usage(usage) == read


def test_embeddings_have_no_output() -> None:
    assert read_usage({"prompt_tokens": 5, "total_tokens": 5}, has_output=False) == Usage(5)
    assert read_usage({"prompt_tokens": 5, "total_tokens": 5}) is None


def test_each_kind_of_token_has_its_price() -> None:
    found = parse_price("m", {"input": 2, "cached_input": 0.5, "output": 8})
    assert found.of(Usage(input=1)) == 2_000_000
    assert found.of(Usage(cached=1)) == 500_000
    assert found.of(Usage(written=1)) == 4_000_000
    assert found.of(Usage(output=1)) == 8_000_000
    assert found.most(10, 10, may_write=False) == 100_000_000
    assert found.most(10, 10, may_write=True) == 120_000_000


def test_the_worst_case_is_the_dearest_kind_of_input() -> None:
    assert price(input=1, cached_input=3).most(1, 0, may_write=False) == 3_000_000


@pytest.mark.parametrize(
    ("text", "picodollars"),
    [
        ("5usd", 5 * DOLLAR),
        ("0.50usd", DOLLAR // 2),
        (" 5 USD ", 5 * DOLLAR),
        ("$5", 5 * DOLLAR),
        (".1usd", DOLLAR // 10),
        ("0.000000000001usd", 1),
    ],
)
def test_money(text: str, picodollars: int) -> None:
    assert parse_money(text) == picodollars


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "",
        "usd",
        "$",
        "$5usd",
        "-1usd",
        "0usd",
        "1e3usd",
        "5eur",
        "1,5usd",
        "0.0000000000001usd",
        "9999999999usd",
        "nan usd",
    ],
)
def test_what_is_no_money(text: str) -> None:
    with pytest.raises(ConfigError, match="for example 5usd"):
        parse_money(text, "--budget")


@pytest.mark.parametrize(
    ("picodollars", "text"),
    [
        (0, "$0.00"),
        (DOLLAR, "$1.00"),
        (1234567 * DOLLAR // 100, "$12,345.67"),
        (DOLLAR // 2, "$0.5000"),
        (DOLLAR // 1000, "$0.001000"),
    ],
)
def test_dollars_as_text(picodollars: int, text: str) -> None:
    assert dollars_text(picodollars) == text


def test_a_budget_in_money_and_one_in_tokens_both_hold() -> None:
    spending = Spending(Allowance(picodollars=100, tokens=10))
    assert spending.reserve(Amount(60, 4))
    assert not spending.reserve(Amount(41, 1))
    assert not spending.reserve(Amount(1, 7))
    assert spending.reserve(Amount(40, 6))
    assert (spending.spent, spending.reserved) == (NOTHING, Amount(100, 10))
    spending.settle(Amount(60, 4), Amount(10, 1))
    assert (spending.spent, spending.reserved) == (Amount(10, 1), Amount(40, 6))
    assert spending.committed == Amount(50, 7)
    assert spending.reserve(Amount(50, 3))
    assert not spending.reserve(Amount(1, 0))
    assert not spending.reserve(Amount(0, 1))


def test_only_what_is_stated_binds() -> None:
    assert Spending(Allowance(tokens=1)).reserve(Amount(10**30, 1))
    assert Spending(Allowance(picodollars=1)).reserve(Amount(1, 10**30))


def test_sums_do_not_drift() -> None:
    cent = parse_money("0.01usd")
    spending = Spending(Allowance(picodollars=parse_money("1usd")))
    for _ in range(100):
        assert spending.reserve(Amount(cent))
        spending.settle(Amount(cent), Amount(cent))
    assert spending.spent.picodollars == DOLLAR
    assert not spending.reserve(Amount(1))


@pytest.mark.parametrize("name", ["picodollars", "tokens"])
def test_no_budget_is_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Allowance(**{name: 0})


ODD = st.sampled_from([0, 1, 7, 12, 10**30, -1, 12.0, 1e300, "7", "", None, True, [], {}, [3]])
DETAILS = ODD | st.fixed_dictionaries(
    {}, optional={"cached_tokens": ODD, "cache_write_tokens": ODD, "audio_tokens": ODD}
)
USAGES = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": st.integers(0, 9) | ODD,
        "completion_tokens": st.integers(0, 9) | ODD,
        "total_tokens": st.integers(0, 20) | ODD,
        "prompt_tokens_details": DETAILS,
        "completion_tokens_details": DETAILS,
        "prompt_cache_hit_tokens": ODD,
        "cache_read_input_tokens": ODD,
        "cache_creation_input_tokens": ODD,
        "cost": ODD,
    },
)


@settings(max_examples=200)
@given(USAGES, st.booleans())
def test_an_odd_field_of_a_usage_changes_no_other(usage: dict[str, Any], has_output: bool) -> None:
    found = read_usage(usage, has_output=has_output)
    # A null where responses have their details says nothing, but is not usual for a chat.
    assert read_usage(usage | {"input_tokens_details": None}, has_output=has_output) == found
    assert found is None or min(found) >= 0
    counts = {key: usage.get(key) for key in ("prompt_tokens", "completion_tokens")}
    if all(type(count) is int and 0 <= count <= MOST_TOKENS for count in counts.values()):
        assert (found is None) == (sum(filter(None, counts.values())) == 0)


def test_a_name_of_several_models_costs_the_most_and_settles_by_who_answered() -> None:
    own = {
        "a": price(input=1, cached_input=1, output=9),
        "b": price(input=2, cached_input=0.5, output=3),
    }
    models = {"x": {"fast": "a"}, "y": {"fast": "b"}, "z": {}}
    prices = Prices(own, models)
    assert prices.find("fast") == price(input=2, cached_input=1, output=9)
    assert [prices.at(name, "fast") for name in "xy"] == [own["a"], own["b"]]
    assert (prices.find("a"), prices.at("x", "a")) == (own["a"], own["a"])
    # One that nobody knows: no budget can be kept.
    assert Prices(own, {**models, "y": {"fast": "c"}}).find("fast") is None
    stated = price(input=5, output=5)
    known = Prices({**own, "fast": stated}, models)
    assert known.find("fast") == known.at("x", "fast") == stated
    # Answers bear the endpoint's name of the model, and cost what a budget settles for them.
    assert known.at("x", "a") == stated
    assert Prices({"fast": stated}, models).at("y", "b") == stated
    # Which of two names was asked for is unknown.
    shared = {"x": {"fast": "c", "big": "c"}}
    assert Prices({"fast": stated, "big": own["a"]}, shared).at("x", "c") is None
