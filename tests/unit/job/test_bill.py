"""What a run says that it costs."""

from __future__ import annotations

from typing import Any

import pytest

from redline.calls import Endpoint, Reply
from redline.calls.cost import DOLLAR, NOTHING, Allowance, Amount, Spending, parse_price
from redline.errors import ConfigError
from redline.job.settings import EmbeddedSim, Job, Prompting
from redline.job.work import Bill, Spent

PRICES = {"m": parse_price("m", {"input": 1, "output": 2})}


def job(model: str | None = "m", **more: Any) -> Job:
    endpoint = Endpoint(base_url="http://127.0.0.1:1/v1")
    prompting = Prompting(model=model)
    return Job(rows=[], endpoints=(endpoint,), prompting=prompting, prices=PRICES, **more)


def reply(model: str | None, prompt_tokens: int = 100_000) -> Reply:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 50_000}
    return Reply(usage=usage, model=model)


def test_replies_are_added_up_by_the_model_that_answered() -> None:
    bill = Bill(job("other"), None)
    assert bill.reads_replies
    for model in ("m", "m-2030-01-01"):
        bill.add(reply(model))
    found = bill.read()
    assert (found.usd, found.tokens, found.text) == (0.4, None, "$0.4000")


def test_a_reply_that_names_no_known_model_is_that_of_the_model_asked() -> None:
    bill = Bill(job(), None)
    bill.add(reply("/weights/x"))
    bill.add(reply(None))
    assert bill.read().usd == 0.4


@pytest.mark.parametrize("unknown", [reply("foo"), Reply(model="m")])
def test_one_reply_of_unknown_cost_makes_the_sum_unknown(unknown: Reply) -> None:
    bill = Bill(job(None), None)
    bill.add(reply("m"))
    bill.add(unknown)
    bill.add(reply("m"))
    assert bill.read() == Spent(allowance=Allowance())
    assert bill.read().text == ""


def test_the_embedded_server_is_free() -> None:
    bill = Bill(job(embedded=EmbeddedSim()), None)
    assert not bill.reads_replies
    assert bill.read().text == ""


def test_nothing_is_said_before_the_first_reply() -> None:
    assert Bill(job(), None).read().text == ""


def test_a_budget_keeps_its_own_books() -> None:
    allowance = Allowance(picodollars=5 * DOLLAR, tokens=1000)
    spending = Spending(allowance, Amount(DOLLAR, 100))
    bill = Bill(job(allowance=allowance), spending)
    assert not bill.reads_replies
    spending.settle(NOTHING, Amount(DOLLAR // 2, 50))
    found = bill.read()
    assert (found.usd, found.tokens) == (1.5, 150)
    assert found.text == "$1.50 of $5.00, 150 of 1,000 tokens"
    # Three rows for half a dollar, so nine more for one and a half.
    assert found.expected(3, 9) == 3 * DOLLAR


def test_a_budget_in_tokens_leaves_the_money_to_the_replies() -> None:
    allowance = Allowance(tokens=10**6)
    bill = Bill(job(allowance=allowance), Spending(allowance))
    assert bill.reads_replies
    bill.add(reply("m"))
    assert bill.read().text == "$0.2000, 0 of 1,000,000 tokens"


@pytest.mark.parametrize(("done", "left"), [(0, 5), (5, None)])
def test_the_end_is_not_guessed_from_nothing(done: int, left: int | None) -> None:
    spent = Spent(allowance=Allowance(), picodollars=5, here=5)
    assert spent.expected(done, left) is None


def test_a_budget_in_money_needs_a_price_before_anything_is_sent() -> None:
    wide = Allowance(picodollars=DOLLAR)
    job("m", allowance=wide)
    job(None, allowance=wide)
    job("foo", allowance=Allowance(tokens=1))
    with pytest.raises(ConfigError, match="needs the price of foo"):
        job("foo", allowance=wide)


def test_a_budget_cannot_be_kept_for_a_function() -> None:
    async def call(row: Any) -> Any:
        return row

    with pytest.raises(ConfigError, match="a function of your own"):
        Job(rows=[], call=call, allowance=Allowance(tokens=1))
