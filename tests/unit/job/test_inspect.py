"""What is in an output: each row once, by its current line, and in bounded memory."""

from __future__ import annotations

import random
import threading
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.calls.cost import parse_price
from redline.errors import ConfigError
from redline.job.inspect import (
    Figures,
    Sample,
    Selection,
    Tariff,
    compare_outputs,
    figures_of,
    opened,
    read_line,
    select,
)
from redline.journal import Output
from support.output_files import USAGE, failure, key_of, result, sealed, write_output

PRICES = Tariff(own={"m": parse_price("m", {"input": 1, "output": 2})})


def figures(output: Output, tariff: Tariff | None = None) -> Figures:
    with opened(output) as found:
        return figures_of(found, tariff or Tariff())


def rows(output: Output, **wanted: Any) -> list[int]:
    with opened(output) as found:
        lines = [row.line for row in select(found, Selection(**wanted))]
    return [line.row for line in lines if line is not None]


def test_a_row_that_failed_and_was_tried_again_counts_once(tmp_path: Path) -> None:
    output = write_output(
        tmp_path / "labels.jsonl",
        [result(1), result(2)],
        [failure(2), failure(3, "timed_out"), failure(3, "rejected"), failure(4)],
    )
    found = figures(output)
    assert (found.succeeded, found.failed) == (2, 2)
    # Of two failures of a row, the later one.
    assert [kind for kind, _ in found.errors] == ["rejected", "server_failed"]
    assert rows(output, failed=True) == [3, 4]


def test_of_a_changed_row_the_later_line_counts_and_of_a_repeated_one_the_first(
    tmp_path: Path,
) -> None:
    results = [
        result(1, "old", mark=7),
        result(2, "first", mark=9, usage=None),
        result(1, "new", mark=8),
        result(2, "second", mark=9),
        result(3, "only"),
    ]
    output = write_output(tmp_path / "labels.jsonl", results)
    with opened(output) as found:
        lines = [read_line(row.data) for row in select(found, Selection())]
        assert found.lines.results.repeated == 1
        assert found.lines.results.outdated == 1
    assert [line.text() for line in lines if line is not None] == ["first", "new", "only"]
    assert figures(output).unstated == 1


def test_an_answer_and_a_failure_of_other_content_are_told(tmp_path: Path) -> None:
    output = write_output(tmp_path / "labels.jsonl", [result(1, mark=7)], [failure(1, mark=8)])
    with opened(output) as found:
        assert (found.lines.succeeded, found.lines.failed) == (1, 0)
        assert found.lines.failures.contested == 1


def test_what_is_written_while_it_is_read_does_not_disturb_it(tmp_path: Path) -> None:
    torn = result(3)
    output = write_output(
        tmp_path / "labels.jsonl", [result(1), torn[:20]], [failure(2), failure(4)]
    )
    with opened(output) as found:
        with output.path.open("ab") as file:
            file.write(torn[20:] + result(2) + result(5))
        output.failed_path.unlink()
        read = figures_of(found, Tariff())
        assert (read.succeeded, read.failed, found.lines.is_torn) == (1, 2, True)
    assert (figures(output).succeeded, figures(output).failed) == (4, 0)


def test_a_running_job_never_shows_a_row_twice_or_loses_one(tmp_path: Path) -> None:
    """Half of the rows fail first; then all are tried again, and their failures are taken out."""
    path = tmp_path / "labels.jsonl"
    asked: set[str] = set()

    async def call(row: dict[str, Any]) -> str:
        name = row["custom_id"]
        is_new = name not in asked
        asked.add(name)
        if is_new and int(name) % 2:
            raise redline.errors.Rejected("told to fail")
        return "yes"

    todo = [{"custom_id": f"{number}"} for number in range(400)]

    def work() -> None:
        for retry_failed in (False, True):
            redline.run(
                todo, call=call, output=path, rps=800, retry_failed=retry_failed, progress=False
            )

    thread = threading.Thread(target=work)
    thread.start()
    seen: list[tuple[int, int]] = []
    while thread.is_alive():
        if path.exists() and path.stat().st_size:
            read = figures(Output(path=path))
            seen.append((read.rows, read.succeeded))
        time.sleep(0.01)
    thread.join()
    read = figures(Output(path=path))
    assert (read.succeeded, read.failed) == (400, 0)
    assert len(seen) > 5
    for (rows_before, good_before), (rows_now, good_now) in pairwise(seen):
        assert rows_before <= rows_now <= 400
        assert good_before <= good_now


def test_cost_is_by_model_halved_in_a_batch_and_nothing_from_the_cache(tmp_path: Path) -> None:
    results = [
        result(1, endpoint="simple"),
        result(2, batched=True, latency_s=0.0),
        result(3, cached=True, attempts=0),
        result(4, model="other"),
        result(5, usage=None),
        result(6, endpoint="sim"),
        result(7, endpoint="engine:models/tiny"),
    ]
    found = figures(write_output(tmp_path / "labels.jsonl", results), PRICES)
    one = 7 * 10**6 + 5 * 2 * 10**6
    # Of other, the model that was asked for has a price.
    assert (found.cost.picodollars, found.cost.priced) == (2 * one + one // 2, 3)
    assert found.cost.unstated == 1
    # Answers from the cache have no tokens, and neither they nor batches a latency.
    assert found.input_tokens == 5 * USAGE["prompt_tokens"]
    assert found.latencies.count == 5
    unknown = figures(Output(path=tmp_path / "labels.jsonl"))
    assert (unknown.cost.priced, unknown.cost.unpriced) == (0, {"m": 3, "other": 1})


def test_the_tokens_of_a_judge_cost_what_its_own_model_does(tmp_path: Path) -> None:
    judged = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    results = [result(1, judge_usage=judged), result(2, judge_usage={}), result(3)]
    output = write_output(tmp_path / "novels.jsonl", results, judge={"model": "j"})
    tariff = Tariff(own={**PRICES.own, "j": parse_price("j", {"input": 10, "output": 20})})
    cost = figures(output, tariff).cost
    of_judge, rest, whole = 4 * 10 + 2 * 20, 3 + 3 * 2, 7 + 5 * 2
    assert cost.picodollars == (of_judge + rest + whole) * 10**6
    # Of the last, an older redline wrote the usage of both alone.
    assert (cost.priced, cost.unstated) == (2, 1)
    cost = figures(output, PRICES).cost
    assert (cost.priced, cost.unpriced) == (1, {"j": 2})
    output = write_output(tmp_path / "novels.jsonl", results, judge={"model": "m"})
    assert figures(output, PRICES).cost.picodollars == 3 * whole * 10**6


def test_endpoints_with_prices_and_names_of_their_own_are_billed_by_them(tmp_path: Path) -> None:
    price = parse_price("m-large", {"input": 3, "output": 3})
    tariff = Tariff(
        own=PRICES.own, models={"dear": {"m": "m-large"}}, tariffs={"dear": {"m-large": price}}
    )
    found = figures(
        write_output(tmp_path / "labels.jsonl", [result(1), result(2, endpoint="dear")]), tariff
    )
    assert found.cost.picodollars == 17 * 10**6 + 12 * 3 * 10**6


def test_each_answer_is_billed_by_its_own_model_however_many_endpoints_there_are(
    tmp_path: Path,
) -> None:
    tariff = Tariff(own={**PRICES.own, "x": parse_price("x", {"input": 3, "output": 3})})
    results = [result(row, model="x", endpoint=f"e{row}") for row in range(150)]
    found = figures(write_output(tmp_path / "labels.jsonl", results), tariff)
    assert (found.cost.picodollars, found.cost.priced) == (150 * 12 * 3 * 10**6, 150)


def test_names_that_a_server_makes_up_are_bounded(tmp_path: Path) -> None:
    results = [
        result(row, finish_reason=f"reason {row}", model=f"model {row}", endpoint=f"e{row}")
        for row in range(500)
    ]
    failures = [
        failure(row, error={"kind": f"kind {row}", "message": "no"}) for row in range(500, 1000)
    ]
    found = figures(write_output(tmp_path / "labels.jsonl", results, failures))
    for counts in (found.models, found.endpoints):
        assert len(counts) == 101
        assert sum(counts.values()) == 500
    for endings in (found.reasons, found.errors):
        assert len(endings) == 101
        assert sum(one.rows for one in endings.values()) == 500


def test_several_choices_have_the_worst_reason_first(tmp_path: Path) -> None:
    results = [
        result(1, ["a", "b"], finish_reason=["stop", "stop"]),
        result(2, ["a", "b"], finish_reason=["stop", "length"]),
        result(3, ["a", "b"], finish_reason=["stop", None]),
        result(4, [0.125] * 1536, finish_reason=None),
    ]
    output = write_output(tmp_path / "labels.jsonl", results)
    found = figures(output)
    assert [*found.reasons] == ["stop", "length and stop", "none and stop", None]
    assert found.cut == 1
    assert rows(output, cut=True) == [2]


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("text", "text"),
        (None, ""),
        (["one", "two"], "[1] one\n[2] two"),
        ({"topic": "bug"}, '{"topic": "bug"}'),
        ([0.123456] * 1536, "[0.1235, 0.1235, 0.1235, 0.1235, ...] 1,536 numbers"),
        (
            [[0.5] * 8] * 2,
            "[1] [0.5, 0.5, 0.5, 0.5, ...] 8 numbers\n[2] [0.5, 0.5, 0.5, 0.5, ...] 8 numbers",
        ),
        ([1, 2], "[1, 2]"),
    ],
)
def test_any_output_is_shown_as_text(output: Any, shown: str) -> None:
    line = read_line(result(1, output))
    assert line is not None
    assert line.text() == shown


def test_a_batch_line_is_read_like_any_other() -> None:
    message = {"role": "assistant", "content": "yes"}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    body = {"object": "chat.completion", "model": "m", "choices": [choice], "usage": USAGE}
    fields = {
        "id": "redline_01",
        "custom_id": "row-1",
        "response": {"status_code": 200, "body": body},
    }
    line = read_line(sealed({**fields, "hash": "01", "row": 1, "latency_s": 0.5}))
    assert line is not None
    assert (line.text(), line.finish_reason, line.model) == ("yes", "length", "m")
    plain = read_line(result(1, "yes"))
    assert plain is not None
    assert line.output_hash() == plain.output_hash()
    odd = read_line(sealed({**fields, "response": {"body": 5}, "hash": "01"}))
    assert odd is not None
    assert odd.text() == "5"


def test_equal_outputs_have_equal_hashes() -> None:
    def hashed(output: Any, calls: Any = None) -> int:
        line = read_line(result(1, output, tool_calls=calls))
        assert line is not None
        return line.output_hash()

    def call(name: str, number: int) -> list[Any]:
        return [{"id": f"call_{number}", "function": {"name": name, "arguments": "{}"}}]

    assert hashed({"a": 1, "b": [2]}) == hashed({"b": [2], "a": 1})
    assert hashed(["x", {"a": 1, "b": 2}]) == hashed(["x", {"b": 2, "a": 1}])
    assert hashed("", call("look", 1)) == hashed("", call("look", 2))
    assert (
        len({hashed("", call("look", 1)), hashed("", call("see", 1)), hashed(""), hashed(None)})
        == 4
    )


def test_a_line_of_another_version_is_counted_as_one_that_cannot_be_read(tmp_path: Path) -> None:
    strange = result(2, usage="many")
    found = figures(write_output(tmp_path / "labels.jsonl", [result(1), strange]))
    assert (found.succeeded, found.unreadable) == (2, 1)


def test_a_sample_is_even_and_the_same_in_any_order() -> None:
    rng = random.Random(1)
    keys = [rng.getrandbits(64) for _ in range(2000)]

    def drawn(order: list[int], seed: int) -> set[int]:
        sample: Sample[int] = Sample(200, seed)
        for key in order:
            sample.offer(key, key)
        return set(sample.items())

    assert drawn(keys, 0) == drawn(keys[::-1], 0)
    assert drawn(keys, 0) != drawn(keys, 1)
    # Over many seeds each key is drawn about as often, also if keys are close together.
    near = list(range(100))
    counts = [0] * 100
    for seed in range(400):
        sample: Sample[int] = Sample(20, seed)
        for key in near:
            sample.offer(key, key)
        for key in sample.items():
            counts[key] += 1
    # 80 on average, with a standard deviation of 8.
    assert all(40 < count < 120 for count in counts)


def pair(tmp_path: Path, first: list[bytes], second: list[bytes], **more: list[bytes]) -> Any:
    one = write_output(tmp_path / "a.jsonl", first, more.get("first_failures", ()))
    two = write_output(tmp_path / "b.jsonl", second, more.get("second_failures", ()), prompt="b")
    with opened(one) as left, opened(two) as right:
        found = compare_outputs(left, right, PRICES, sample=3)
        lines = {kind: [one.lines() for one in each] for kind, each in found.samples.items()}
        return found, lines


def test_rows_in_common_are_compared_and_others_counted(tmp_path: Path) -> None:
    found, shown = pair(
        tmp_path,
        [result(1), result(2, "old", mark=5), result(3), result(9)],
        [result(1, latency_s=2.0), result(2, "new", mark=6), result(4, model=None), result(8)],
        first_failures=[failure(4), failure(5), failure(1)],
        second_failures=[failure(3), failure(5), failure(7)],
    )
    assert found.pairs == {"equal": 1, "different": 1, "lost": 1, "gained": 1, "failed": 1}
    assert (found.common, found.only_first, found.only_second) == (5, 1, 2)
    assert (found.equal, found.different, found.changed) == (1, 1, 1)
    assert (found.first.rows, found.second.rows) == (5, 5)
    assert found.second.latencies.quantile(1) == 2.0
    assert [one.row for one in found.examples["lost"]] == [3]
    assert [(each.name, each.first, each.second) for each in found.settings] == [
        ("prompt", "", '"b"')
    ]
    [(first, second)] = shown["different"]
    assert (first.text(), second.text()) == ("old", "new")
    [(first, second)] = shown["gained"]
    assert (first.error.kind, second.text()) == ("server_failed", "yes")


def test_grades_are_paired(tmp_path: Path) -> None:
    grades = [(True, True), (True, False), (False, True), (False, True), (False, False)]
    found, _ = pair(
        tmp_path,
        [result(row, correct=one) for row, (one, _) in enumerate(grades)],
        [result(row, correct=two) for row, (_, two) in enumerate(grades)],
    )
    assert found.grades == {pair: grades.count(pair) for pair in grades}
    assert (found.pairs["worse"], found.pairs["better"]) == (1, 2)
    assert [one.row for one in found.examples["better"]] == [2, 3]


def test_a_long_setting_is_shown_from_where_it_differs(tmp_path: Path) -> None:
    one = write_output(tmp_path / "a.jsonl", [result(1)], prompt="x" * 500 + "one")
    two = write_output(tmp_path / "b.jsonl", [result(1)], prompt="x" * 500 + "two")
    with opened(one) as left, opened(two) as right:
        [difference] = compare_outputs(left, right, Tariff()).settings
    assert difference.first.endswith('xone"')
    assert difference.second.endswith('xtwo"')
    assert len(difference.first) < 60


def test_files_without_a_common_row_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no row in common"):
        pair(tmp_path, [result(1)], [result(2)])


@pytest.mark.slow
def test_memory_is_bounded_by_rows_and_not_by_texts(tmp_path: Path) -> None:
    """At most 150 bytes a row of both outputs together, as 1,000,000 rows in 150 MB."""
    count = 3000
    for name in "ab":
        text = name * 4000
        write_output(
            tmp_path / f"{name}.jsonl",
            (result(row, text, mark=row + 1) for row in range(count)),
        )
    tracemalloc.start()
    try:
        with (
            opened(Output(path=tmp_path / "a.jsonl")) as one,
            opened(Output(path=tmp_path / "b.jsonl")) as two,
        ):
            figures_of(one, PRICES)
            compare_outputs(one, two, PRICES, sample=5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The texts are 24 MB. A block of lines and what was read of it are in memory as well.
    assert peak < 150 * count + 2_000_000


def test_a_cut_answer_of_the_responses_api_is_found_in_a_batch_line(tmp_path: Path) -> None:
    part = {"type": "output_text", "text": "ye"}
    body = {
        "object": "response",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "model": "m",
        "output": [{"type": "message", "content": [part]}],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    response = {"status_code": 200, "body": body}
    fields = {"id": f"redline_{key_of(1)}", "custom_id": "row-1", "response": response}
    line = sealed({**fields, "error": None, "hash": key_of(1), "row": 1, "latency_s": 0.5})
    output = write_output(tmp_path / "labels.jsonl", [line])
    assert figures(output).cut == 1
    assert rows(output, cut=True) == [1]
