"""What a run would do: the rows add up, and the times follow the limits' own formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redline.cli.session import plan_text
from redline.errors import ConfigError, JournalError
from redline.job import Plan, Report, plan, run
from redline.job.settings import make_job
from redline.limits import Limits
from redline.limits.rule import FIRST_GUARD_S

GUARD_S = FIRST_GUARD_S
ROWS = [{"prompt": f"row {number}"} for number in range(10)]


def planned(rows: object = ROWS, **options: Any) -> Plan:
    return plan(make_job(rows, {"endpoint": "sim", "model": "m", **options}, {}))  # type: ignore[typeddict-item]


def done(rows: object, **options: Any) -> Report:
    return run(rows, endpoint="sim", model="m", **options)  # type: ignore[typeddict-item]


def test_rows_are_counted_by_what_becomes_of_them() -> None:
    rows = [{"prompt": "a", "custom_id": 1}, {"text": "b"}, {"prompt": "c", "custom_id": 1}]
    made = planned(rows)
    assert (made.rows, made.done_rows, made.sent_rows, made.bad_rows) == (3, 0, 1, 2)
    assert made.first_problem is not None
    assert made.first_problem.startswith("<iterable>:2: the row has no `messages`")
    assert made.first_request == {
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    }


def test_only_the_first_rows_where_there_is_a_limit() -> None:
    assert planned(limit=3).rows == 3


def test_nothing_binds_without_a_limit() -> None:
    made = planned()
    assert (made.limit_s, made.bound) == (0.0, None)


def test_limits_do_not_bind_batches_that_rows_go_into_until_a_deadline(tmp_path: Path) -> None:
    made = planned(via="auto", deadline_s=60, output=tmp_path / "out.jsonl", rps=1)
    assert (made.limit_s, made.bound) == (0.0, None)
    assert "the provider determines how long batches take" in plan_text(made, has_output=True)


def test_limits_do_not_bind_batches_and_refuse_none_of_their_rows(tmp_path: Path) -> None:
    limits = Limits(requests="1/1s", tokens="1/60s")
    made = planned(via="batch", output=tmp_path / "out.jsonl", limits=limits)
    assert (made.sent_rows, made.limit_s, made.bound) == (10, 0.0, None)
    assert "the provider determines how long batches take" in plan_text(made, has_output=True)


@pytest.mark.parametrize(
    ("limits", "limit_s", "bound"),
    [
        (Limits(requests="2/1s"), 9 * (1 + GUARD_S) / 2, "2/1s requests"),
        (Limits(requests="2/1s", profile="fixed"), 4 * (1 + GUARD_S), "2/1s requests"),
        (Limits(requests=("2/1s", "3/60s")), 9 * (60 + GUARD_S) / 3, "3/60s requests"),
        (Limits(requests="20/1s", headroom=0.5), 9 * (1 + GUARD_S) / 10, "10/1s requests"),
    ],
)
def test_the_time_that_the_limits_ask_for(limits: Limits, limit_s: float, bound: str) -> None:
    made = planned(limits=limits)
    assert made.limit_s == pytest.approx(limit_s)
    assert made.bound == bound


def test_the_time_that_tokens_ask_for() -> None:
    made = planned(limits=Limits(tokens="1k/60s"), params={"max_tokens": 100})
    tokens = made.input_tokens + made.output_tokens
    assert made.output_tokens == 1000
    assert made.bound == "1000/60s tokens"
    assert made.limit_s == pytest.approx(tokens * 9 / 10 * (60 + GUARD_S) / 1000)


def test_the_length_of_answers_is_a_maximum_and_so_is_the_time_that_they_take() -> None:
    made = planned(limits=Limits(tokens="100/6s"), params={"max_tokens": 100})
    assert made.least_s == pytest.approx(made.input_tokens * 9 / 10 * (6 + GUARD_S) / 100)
    text = plan_text(made, has_output=False)
    assert (
        "at least 3.8 s, and 58 s if every answer has the maximum length; bound by 100/6s tokens"
        in text
    )
    made = planned(limits=Limits(requests="1/1s", tokens="100k/6s"), params={"max_tokens": 100})
    assert "at least 9.5 s, bound by 1/1s requests" in plan_text(made, has_output=False)


def test_one_row_waits_for_no_limit() -> None:
    made = planned(ROWS[:1], limits=Limits(requests="1/60s"))
    assert (made.limit_s, made.bound) == (0.0, "1/60s requests")


def test_a_row_above_the_token_limit_cannot_be_sent() -> None:
    made = planned([{"prompt": "word " * 3000}, ROWS[0]], limits=Limits(tokens="1k/60s"))
    assert (made.sent_rows, made.bad_rows) == (1, 1)
    assert "more than the limit of 1000/60s ever allows" in (made.first_problem or "")


def test_a_row_that_names_another_server_cannot_be_sent() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    urls = ("/v1/chat/completions", "https://api.example/v1/chat/completions", "chat")
    made = planned([{"url": url, "body": body} for url in urls])
    assert (made.sent_rows, made.bad_rows) == (1, 2)
    assert made.first_problem == "<iterable>:2: not a path: https://api.example/v1/chat/completions"


def test_rows_that_the_output_has_are_done(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    rows = [*ROWS, {"text": "bad"}]
    assert planned(rows, output=output).done_rows == 0
    assert not list(tmp_path.iterdir())
    done(rows[2:5], output=output)
    made = planned(rows, output=output, limits=Limits(requests="1/60s"))
    assert (made.rows, made.done_rows, made.sent_rows, made.bad_rows) == (11, 3, 7, 1)
    assert made.limit_s == pytest.approx(6 * (60 + GUARD_S))
    assert made.first_request is not None
    assert made.first_request["body"]["messages"][0]["content"] == "row 0"
    assert planned(rows, output=output, restart=True).done_rows == 0


def test_a_plan_agrees_with_the_run_on_failures(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    rows = [*ROWS, {"text": "bad"}]
    assert done(rows, output=output).failed == 1
    rows.append({"prompt": "new"})
    for options in ({"retry_failed": True}, {}):
        made = planned(rows, output=output, **options)
        report = done(rows, output=output, **options)
        assert (made.done_rows, made.untried_rows) == (report.skipped, report.untried)
        assert made.sent_rows + made.bad_rows == report.offered
    # --retry-failed tries the failed row again, and nothing else.
    assert planned(rows, output=output, retry_failed=True).bad_rows == 1


def test_a_torn_last_line_is_not_done(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done(ROWS, output=output)
    output.write_bytes(output.read_bytes()[:-1])
    before = output.read_bytes()
    assert planned(ROWS, output=output).done_rows == 9
    assert output.read_bytes() == before


def test_other_settings_are_refused_as_the_run_would(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done(ROWS, output=output)
    with pytest.raises(ConfigError, match="was begun with different settings: model was"):
        planned(ROWS, output=output, model="other")
    assert planned(ROWS, output=output, model="other", force=True).done_rows == 10


def test_damaged_settings_are_refused_and_overruled_as_in_the_run(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done(ROWS, output=output)
    (tmp_path / "out.redline/manifest.json").write_bytes(b"damaged")
    with pytest.raises(JournalError, match=r"manifest.json is damaged"):
        planned(ROWS, output=output)
    assert planned(ROWS, output=output, force=True).done_rows == 10


def test_what_cannot_be_planned() -> None:
    async def rows() -> Any:
        yield {}

    with pytest.raises(ConfigError, match="a dry run cannot read an async iterable"):
        planned(rows())
    with pytest.raises(ConfigError, match="no rows in"):
        planned([])
