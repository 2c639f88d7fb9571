"""`--budget` and `--budget-tokens`: what is refused, what is told, and how a run goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from support.simulated import simulated

Cli = Callable[..., Any]
Rows = Callable[..., str]

SIM = ("--endpoint", "sim", "--prompt", "{{ text }}", "--max-tokens", "10")
MINI = (*SIM, "--model", "gpt-4o-mini")
BODY = '{"model":"gpt-4o-mini","max_tokens":10,"messages":[{"role":"user","content":"a"}]}'
WORST_TOKENS = 64 + len(BODY) + 10


def spent(err: str) -> str:
    return next(line for line in err.splitlines() if line.startswith("spent: "))


def numbered(rows: Rows, count: int) -> str:
    return rows(*({"custom_id": str(number), "text": "a"} for number in range(count)))


@pytest.mark.parametrize(
    ("flags", "what", "hint"),
    [
        (("--budget", "5"), "--budget is not an amount of money: 5", "5usd or 0.50usd"),
        (("--budget", "0usd"), "--budget is zero, too large or too precise: 0usd",
         "5usd or 0.50usd"),
        (("--budget-tokens", "x"), "--budget-tokens is not a number above 0: x", "1.5m"),
        (("--budget-tokens", "0"), "--budget-tokens must be a whole number", "leave it out"),
        (("--budget", "1usd", "--model", "foo"), "a budget in dollars needs the price of foo",
         'write [prices."foo"] into redline.toml'),
        (("--budget", "1usd", "--param", "model=foo"), "a budget in dollars needs the price of foo",
         'write [prices."foo"]'),
    ],
)  # fmt: skip
def test_a_budget_that_cannot_be_kept_is_refused_before_anything_is_sent(
    cli: Cli, rows: Rows, flags: tuple[str, ...], what: str, hint: str
) -> None:
    told = cli("run", rows({"text": "a"}), *SIM, *flags, "-o", "out.jsonl")
    assert told.status == 2
    assert f"error: {what}" in told.err
    assert hint in told.err
    assert not Path("out.jsonl").exists()


def test_a_run_ends_where_its_budget_does_and_a_higher_one_goes_on(cli: Cli, rows: Rows) -> None:
    command = ("run", numbered(rows, 30), *MINI, "-o", "out.jsonl", "--budget-tokens")
    told = cli(*command, str(WORST_TOKENS + 40))
    assert told.status == 2
    assert (
        f"error: the budget does not allow the next call: it may cost {WORST_TOKENS} tokens, with "
        in told.err
    )
    assert "hint: raise --budget-tokens, then run the same command again" in told.err
    assert re.search(r"^saved: \d+ of 30 results", told.err, re.M)
    assert "continue with: redline run" in told.err
    first = len(Path("out.jsonl").read_text().splitlines())
    assert 0 < first < 30
    # Four tokens a row: one in, three out. The sum goes on, over a lower budget, too.
    assert spent(told.err) == f"spent: {4 * first} of {WORST_TOKENS + 40} tokens"
    lower = cli(*command, str(WORST_TOKENS))
    assert (lower.status, spent(lower.err)) == (2, f"spent: {4 * first} of {WORST_TOKENS} tokens")
    higher = cli(*command, "10k")
    assert (higher.status, spent(higher.err)) == (0, "spent: 120 of 10,000 tokens")


def test_a_row_too_dear_for_all_of_it_is_not_sent(cli: Cli, rows: Rows) -> None:
    told = cli("run", rows({"text": "a"}), *MINI, "-o", "o.jsonl", "--budget", "0.000001usd")
    assert told.status == 2
    assert "1 row = 0 succeeded + 0 failed + 1 unfinished" in told.err
    assert "spent: $0.00 of $0.000001\n" in told.err
    flags = ("--budget", "1usd", "--budget-tokens", "30")
    told = cli("run", rows({"text": "a"}), *MINI, "-o", "t.jsonl", *flags)
    assert re.search(
        r"error: the budget does not allow the next call: it may cost \$0\.\d+ and "
        r"\d+ tokens, with \$0\.00 of \$1\.00 and 0 of 30 tokens spent\n",
        told.err,
    )


def test_what_all_rows_will_have_cost(cli: Cli, rows: Rows) -> None:
    run = ("run", numbered(rows, 30), *MINI, "-o")
    told = cli(*run, "out.jsonl", "--budget", "0.000043usd")
    assert told.status == 2
    # 1.95 millionths of a dollar a row.
    assert spent(told.err).endswith("of $0.000043; about $0.000058 with the rows left")
    # A run without a budget does not count: 20 rows are left for the budget.
    cli(*run, "other.jsonl", "--limit", "10")
    told = cli(*run, "other.jsonl", "--budget", "0.000030usd")
    assert spent(told.err).endswith("of $0.000030; about $0.000039 with the rows left")


def test_restart_begins_anew_and_so_does_another_output(cli: Cli, rows: Rows) -> None:
    flags = (*MINI, "-o", "out.jsonl", "--budget", "1usd", "--budget-tokens", "1m")
    command = ("run", numbered(rows, 3), *flags)
    assert spent(cli(*command).err) == "spent: $0.000006 of $1.00, 12 of 1,000,000 tokens"
    more = ("run", numbered(rows, 5), *flags)
    assert spent(cli(*more).err) == "spent: $0.000010 of $1.00, 20 of 1,000,000 tokens"
    assert spent(cli(*command, "--restart").err).endswith(" 20 of 1,000,000 tokens")
    Path("out.jsonl").unlink()
    assert spent(cli(*command).err).endswith(" 20 of 1,000,000 tokens")
    # Also if the run that restarts has no budget.
    cli("run", numbered(rows, 3), *MINI, "-o", "out.jsonl", "--restart")
    numbered(rows, 5)
    assert spent(cli(*more).err).endswith(" 8 of 1,000,000 tokens")


def test_a_damaged_sum_is_an_error_and_no_new_beginning(cli: Cli, rows: Rows) -> None:
    command = ("run", numbered(rows, 3), *MINI, "-o", "out.jsonl")
    cli(*command, "--budget", "1usd")
    place = Path("out.redline/spent")
    place.write_bytes(place.read_bytes().replace(b'"tokens":12', b'"tokens":11'))
    told = cli(*command, "--budget", "1usd")
    assert told.status == 2
    assert "error: out.redline/spent is damaged" in told.err
    assert cli(*command).status == 0
    assert cli(*command, "--budget", "1usd", "--restart").status == 0


def test_prices_stand_in_redline_toml(cli: Cli, rows: Rows) -> None:
    Path("redline.toml").write_text(
        '[run]\nbudget = "5usd"\n[prices."my/model"]\ninput = 1_000\noutput = "2000"\n'
    )
    told = cli("run", numbered(rows, 2), *SIM, "--model", "my/model", "-o", "out.jsonl")
    # One token in and three out.
    assert (told.status, spent(told.err)) == (0, "spent: $0.0140 of $5.00")


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("[prices.m]\ninptu = 1\n", "unknown setting: inptu", 'redline.toml, [prices."m"]'),
        ("[prices.m]\ninput = 1\n", "the price of m has no output", 'redline.toml, [prices."m"]'),
        ("[prices]\nm = 1\n", 'prices."m" must be a table', "redline.toml"),
        ("prices = 1\n", "prices must be a table", "redline.toml"),
    ],
)
def test_a_table_of_prices_that_is_none_is_refused_by_name(
    cli: Cli, rows: Rows, text: str, what: str, where: str
) -> None:
    Path("redline.toml").write_text(text)
    told = cli("run", rows({"text": "a"}), *SIM)
    assert told.status == 2
    assert f"error: {what}\nwhere: {where}\n" in told.err


def test_a_row_that_names_a_model_without_a_price_stops_the_run(cli: Cli, rows: Rows) -> None:
    given = rows({"prompt": "a", "model": "foo"})
    told = cli("run", given, "--endpoint", "sim", "--model", "gpt-4o", "--budget", "1usd")
    assert told.status == 2
    assert "1 row = 0 succeeded + 0 failed + 1 unfinished" in told.err
    assert "error: a budget in dollars needs the price of foo, which is not known" in told.err


def test_the_summary_for_programs(cli: Cli, rows: Rows) -> None:
    told = cli("run", numbered(rows, 2), *MINI, "--budget", "1usd", "--log", "json")
    fields = json.loads(told.err.splitlines()[-1])
    assert (fields["spent_usd"], fields["spent_tokens"]) == (3.9e-06, None)
    assert fields["expected_usd"] == 3.9e-06
    told = cli("run", numbered(rows, 2), *SIM, "--log", "json")
    fields = json.loads(told.err.splitlines()[-1])
    assert (fields["spent_usd"], fields["spent_tokens"]) == (None, None)


def test_the_cost_is_told_without_a_budget_where_the_price_is_known(
    cli: Cli, rows: Rows, odd: Any
) -> None:
    Path("redline.toml").write_text('[prices."m"]\ninput = 1\noutput = 1\n')
    with simulated() as sim:
        base = ("--base-url", sim.base_url, *SIM[2:])
        told = cli("run", numbered(rows, 5), *base, "--model", "m-2030-01-01")
        assert (told.status, spent(told.err)) == (0, "spent: $0.000020")
        told = cli("run", numbered(rows, 5), *base, "--model", "foo")
        assert (told.status, "spent" in told.err) == (0, False)
    # This server tells no usage, so nobody knows what it costs.
    told = cli("run", rows({"text": "a"}), "--base-url", odd.url, *SIM[2:], "--model", "m")
    assert (told.status, "spent" in told.err) == (0, False)


def test_a_report_has_the_cost_of_all_runs_whatever_their_budget(cli: Cli, rows: Rows) -> None:
    Path("redline.toml").write_text('[prices."m"]\ninput = 1000\noutput = 1000\n')
    name = numbered(rows, 12)
    with simulated() as sim:
        command = ("run", name, "--base-url", sim.base_url, *SIM[2:], "--model", "m")
        # Four tokens a row, at a thousandth of a dollar.
        for output, flags, in_status in [
            ("tokens.jsonl", ("--budget-tokens", "1m"), "$0.0360 by this run"),
            ("money.jsonl", ("--budget", "50usd"), "$0.0480"),
        ]:
            for limit in ("--limit", "3"), ():
                assert cli(*command, *flags, *limit, "-o", output).status == 0
            assert r"| cost | \$0.0480 |" in cli("report", output).out
            assert f"spent    {in_status}\n" in cli("status", output).out


def test_the_same_in_python() -> None:
    prices = {"mine": {"input": 1, "output": 2}}
    report = redline.run(
        [{"text": "a"}], prompt="{{ text }}", model="mine", endpoint="sim", prices=prices,
        params={"max_tokens": 10}, budget="1usd", budget_tokens=1000,
    )  # fmt: skip
    assert (report.spent_usd, report.spent_tokens) == (7e-06, 4)
    with pytest.raises(redline.ConfigError, match="budget is not an amount"):
        redline.run([], model="mine", endpoint="sim", budget="1")
    with pytest.raises(redline.ConfigError, match="budget_tokens is not a number"):
        redline.run([], model="mine", endpoint="sim", budget_tokens="x")
    with pytest.raises(redline.ConfigError, match="must be a dict"):
        redline.run([], model="mine", endpoint="sim", prices={"mine": 3})  # type: ignore[dict-item]


def test_a_stopped_run_says_so_in_python() -> None:
    report = redline.run(
        [{"prompt": "a"}] * 3, model="m", endpoint="sim", budget_tokens=10, params={"max_tokens": 5}
    )
    assert isinstance(report.stopped, redline.errors.BudgetSpent)
    assert (report.succeeded, report.unfinished) == (0, report.offered)
