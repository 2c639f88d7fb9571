"""`redline eval`: scores and comparisons that say no more than the answers prove."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Cli, Told
from support.scripted import USAGE, Asked, Text, chat, model, said, scripted

Rows = Callable[..., str]
# The simulated model repeats its prompt, so a task is right where its column holds the gold answer.
TASK = """prompt = "Say {{{{ {column} }}}}"
gold = "gold"
metric = "regex"
pattern = 'Say (\\w+)'
[params]
max_tokens = 50
"""
# Right in both, in the first alone, in the second alone, in neither.
COUNTS = (2, 1, 7, 2)


@pytest.fixture
def data(rows: Rows, tmp_path: Path) -> str:
    """Twelve questions of which `one` and `two` have some right."""
    for column in ("one", "two"):
        (tmp_path / f"{column}.toml").write_text(TASK.format(column=column))
    pairs = [(True, True), (True, False), (False, True), (False, False)]
    rights = [pair for pair, count in zip(pairs, COUNTS, strict=True) for _ in range(count)]
    return rows(
        *(
            {"q": at, "gold": f"yes{at}"}
            | {
                name: f"{'yes' if is_right else 'no'}{at}"
                for name, is_right in zip(("one", "two"), pair, strict=True)
            }
            for at, pair in enumerate(rights)
        ),
        name="data.jsonl",
    )


def evaluated(cli: Cli, task: str, data: str, samples: int, *flags: str) -> Told:
    output = f"{task}-{samples}.jsonl"
    given = ("--task", f"{task}.toml", "--data", data, "--endpoint", "sim", "-o", output)
    sampling = ("--samples", str(samples), "--temperature", "1") if samples > 1 else ()
    told = cli("eval", *given, *sampling, *flags)
    assert told.status == 0, told.err
    return told


def interval(told: Told, name: str) -> str:
    found = re.search(rf"^{name} .*?\((95 %: .*?)\)$", told.out, re.M)
    assert found, told.out
    return found[1]


def test_redline_toml_changes_no_rule_of_an_evaluation(cli: Cli, data: str) -> None:
    plain = evaluated(cli, "two", data, 1, "--max-tokens", "2")
    Path("two-1.jsonl").unlink()
    shutil.rmtree("two-1.redline")
    run = '[run]\nformat = "batch"\nordered = true\nfail_on = ["length"]\n'
    Path("redline.toml").write_text(run)
    assert evaluated(cli, "two", data, 1, "--max-tokens", "2").out == plain.out


def test_equal_samples_prove_no_more_than_one(cli: Cli, data: str) -> None:
    once, often = (evaluated(cli, "two", data, samples) for samples in (1, 8))
    assert interval(often, "accuracy") == interval(once, "accuracy")
    assert interval(often, "strict") == interval(once, "strict")
    assert "72 of 96 answers to 12 questions" in often.out
    assert often.out.splitlines()[-1] == "accuracy: 72/96"


@pytest.mark.parametrize("samples", [(1, 1), (8, 8), (1, 8), (8, 2)])
def test_a_comparison_is_over_questions(cli: Cli, data: str, samples: tuple[int, int]) -> None:
    for task, count in zip(("one", "two"), samples, strict=True):
        evaluated(cli, task, data, count)
    first, second = (f"{t}-{n}.jsonl" for t, n in zip(("one", "two"), samples, strict=True))
    told = cli("eval", "compare", first, second)
    assert told.status == 0, told.err
    # Two-sided binomial test of 1 against 7.
    assert "p: 0.0703125\n" in told.out
    assert "difference: +0.500000\n" in told.out
    assert (told.out.count("only_first: 1\n"), told.out.count("only_second: 7\n")) == (1, 1)
    assert "no significant difference" in told.out


def test_only_results_files_are_compared(cli: Cli, data: str) -> None:
    evaluated(cli, "one", data, 1)
    told = cli("eval", "compare", "one-1.jsonl", data)
    assert (told.status, told.out) == (2, "")
    assert f"error: {data} is not a results file of redline\n" in told.err
    assert (
        "hint: did you mean one-1.jsonl?"
        in cli("eval", "compare", "one-1.jsonl", "one-2.jsonl").err
    )


@pytest.mark.parametrize("name", ["q{}", "q#{}"])
def test_named_questions_are_paired_whatever_the_number_of_samples(
    cli: Cli, rows: Rows, data: str, tmp_path: Path, name: str
) -> None:
    lines = (tmp_path / data).read_text().splitlines()
    named = [
        line.replace("{", f'{{"custom_id": "{name.format(at)}", ', 1) + "\n"
        for at, line in enumerate(lines)
    ]
    rows(*named, name=data)
    evaluated(cli, "one", data, 1)
    rows(*named[::-1], name=data)
    evaluated(cli, "two", data, 3)
    told = cli("eval", "compare", "one-1.jsonl", "two-3.jsonl")
    assert "p: 0.0703125\n" in told.out, told.out + told.err
    assert "left out" not in told.out
    # Of twelve questions in reverse order, the third is right in the first alone.
    assert "the first is better in rows such as 10\n" in told.out


def test_samples_of_questions_without_names_count_beside_named_ones(
    cli: Cli, rows: Rows, tmp_path: Path
) -> None:
    """A table with ids for some rows has null for the others, and floats for whole numbers."""
    (tmp_path / "one.toml").write_text(TASK.format(column="one"))
    ids = (None, None, "", 7.0)
    made = [{"custom_id": id, "gold": f"yes{at}", "one": f"yes{at}"} for at, id in enumerate(ids)]
    data = rows(*made, name="data.jsonl")
    once, often = (evaluated(cli, "one", data, samples) for samples in (1, 3))
    assert once.out.splitlines()[-1] == "accuracy: 4/4"
    assert often.out.splitlines()[-1] == "accuracy: 12/12"
    told = cli("eval", "compare", "one-1.jsonl", "one-3.jsonl")
    assert (told.status, "left out" in told.out) == (0, False), told.out + told.err
    assert "mean of 4 questions, 12 answers" in told.out


def test_questions_are_paired_if_their_first_sample_failed(
    cli: Cli, rows: Rows, tmp_path: Path
) -> None:
    """Without names, the first sample alone has the question's own hash."""
    task(tmp_path, gold="gold", metric="exact")
    data = rows(*({"q": at, "gold": "a"} for at in range(4)))
    seen: list[str] = []

    def say(body: dict[str, Any]) -> Text:
        text = body["messages"][-1]["content"]
        seen.append(text)
        fails = text == "Say 0" or (text == "Say 1" and seen.count(text) == 1)
        if fails and is_failing:
            return 400, {"error": {"message": f"no, request {len(seen)}"}}
        return "a"

    with scripted(model(say)) as server:
        to = ("--base-url", server.base_url, "--model", "m")
        given = ("--task", "task.toml", "--data", data, *to)
        is_failing = True
        often = ("--samples", "3", "--temperature", "1", "-c", "1", "-o", "often.jsonl")
        told = cli("eval", *given, *often)
        assert "of those   2 questions whose samples are all answered:" in told.out
        is_failing = False
        cli("eval", *given, "-o", "once.jsonl")
    assert any('"row":2' in line for line in Path("often.failed.jsonl").read_text().splitlines())
    for pair in (("often.jsonl", "once.jsonl"), ("once.jsonl", "often.jsonl")):
        told = cli("eval", "compare", *pair)
        assert "mean of 3 questions, 8 answers" in told.out
        assert "1 question is only in once.jsonl, and not compared" in told.out
        assert "often.jsonl alone" not in told.out


def test_three_equal_questions_do_not_prove_that_two_models_are_equal(cli: Cli, data: str) -> None:
    for task in ("one", "two"):
        evaluated(cli, task, data, 1, "--limit", "2")
    told = cli("eval", "compare", "one-1.jsonl", "two-1.jsonl")
    found = re.search(r"difference \+0\.0 points \(95 %: (\S+) to (\S+)\)", told.out)
    assert found, told.out
    assert float(found[1]) < -20 < 20 < float(found[2])


def lines(path: str) -> list[dict[str, Any]]:
    return sorted(
        map(json.loads, Path(path).read_text().splitlines()), key=lambda line: line["row"]
    )


def task(tmp_path: Path, **settings: object) -> str:
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (tmp_path / "task.toml").write_text('prompt = "Say {{ q }}"\n' + text)
    return "task.toml"


def test_a_tied_vote_does_not_depend_on_the_order_of_the_lines(
    cli: Cli, rows: Rows, tmp_path: Path
) -> None:
    task(tmp_path, gold="gold", metric="exact")
    data = rows(*({"q": at, "gold": "a"} for at in range(8)))
    seen: list[str] = []

    def say(body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"]
        seen.append(text)
        return "ab"[seen.count(text) - 1]

    with scripted(model(say)) as server:
        given = ("--task", "task.toml", "--data", data, "--base-url", server.base_url)
        sampling = ("--samples", "2", "--temperature", "1", "-c", "1", "-o", "out.jsonl")
        command = ("eval", *given, "--model", "m", *sampling)
        first = cli(*command)
        results = Path("out.jsonl")
        results.write_text("".join(reversed(results.read_text().splitlines(keepends=True))))
        again = cli(*command)
    assert re.search(r"^majority .* of 8$", first.out, re.M)
    assert again.out == first.out


def judged(tmp_path: Path, judge: str = "") -> None:
    task(tmp_path, metric="judge", gold="gold")
    with (tmp_path / "task.toml").open("a") as file:
        file.write(f'[judge]\nmodel = "large"\n{judge}')


def test_a_judges_words_and_tokens_are_in_the_line(cli: Cli, rows: Rows, tmp_path: Path) -> None:
    judged(tmp_path)

    def say(body: dict[str, Any]) -> str:
        return "Fine.\nVERDICT: CORRECT" if body["model"] == "large" else "a"

    with scripted(model(say)) as server:
        given = ("--task", "task.toml", "--data", rows({"q": "a", "gold": "a"}))
        told = cli("eval", *given, "--base-url", server.base_url, "--model", "m", "-o", "out.jsonl")
    assert told.out.splitlines()[-1] == "accuracy: 1/1", told.err
    (line,) = lines("out.jsonl")
    assert line["judgement"] == "Fine.\nVERDICT: CORRECT"
    assert line["usage"] == {name: 2 * count for name, count in USAGE.items()}


def test_a_judge_costs_what_its_own_model_costs(cli: Cli, rows: Rows, tmp_path: Path) -> None:
    judged(tmp_path)
    (tmp_path / "redline.toml").write_text("[prices.m]\ninput = 1\noutput = 1\n")

    def script(request: Asked) -> Any:
        return chat(said("VERDICT: CORRECT"), usage=USAGE, model=request.body["model"])

    with scripted(script) as server:
        given = ("--task", "task.toml", "--data", rows({"q": "a", "gold": "a"}))
        command = ("eval", *given, "--base-url", server.base_url, "--model", "m", "-o", "out.jsonl")
        refused = cli(*command, "--budget", "1usd")
        assert (refused.status, server.asked) == (2, [])
        assert "needs the price of large, which is not known" in refused.err
        told = cli(*command, "--log", "json")
    assert told.status == 0, told.err
    assert json.loads(told.err.splitlines()[-1])["spent_usd"] is None


def test_a_dry_run_counts_the_requests_to_a_judge(cli: Cli, rows: Rows, tmp_path: Path) -> None:
    given = rows(*({"q": "x", "gold": "y"},) * 3)
    command = ("eval", "--task", "task.toml", "--data", given, "--model", "m", "--endpoint", "sim",
               "--max-tokens", "100", "--dry-run")  # fmt: skip
    judged(tmp_path, 'prompt = "{{ reply }} word word"\nparams = {max_tokens = 10}')
    # The prompts of a question and its judge have 13 tokens, and an answer at most 100.
    assert cli(*command, "--rpm", "2").out.splitlines()[:5] == [
        "3 rows = 0 done already + 3 to send + 0 that cannot be sent",
        "6 requests: 3 for the rows, and 3 to judge their answers",
        "about 669 tokens: up to 339 in (±20 %), and up to 330 out",
        "at least 2 m 30 s, bound by 2/60s requests",
        "not counted: re-asks after an answer that is not accepted, at most 1 time per row",
    ]
    # Before the last request: 5/6 of 39 tokens, or of 669 if all answers have the maximum length.
    times = cli(*command, "--tokens", "150/1s").out.splitlines()[3]
    assert times.startswith("at least 0.2 s, and 3.9 s if every answer has the maximum length")


def test_a_dry_run_of_several_samples_shows_what_a_table_sends(cli: Cli, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"q": "x", "gold": "y", "body": {"seed": seed}} for seed in (None, 1)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), "in.parquet")
    judged(tmp_path)
    told = cli("eval", "--task", "task.toml", "--data", "in.parquet", "--samples", "2",
               "--model", "m", "--endpoint", "sim", "--dry-run")  # fmt: skip
    assert (told.status, "seed" in told.out) == (0, False), told.out


def test_a_dry_run_finds_rows_that_the_judges_prompt_does_not_fit(
    cli: Cli, rows: Rows, tmp_path: Path
) -> None:
    judged(tmp_path, 'prompt = "{{ repl }}"')
    told = cli("eval", "--task", "task.toml", "--data", rows({"q": "x", "gold": "y"}),
               "--model", "m", "--endpoint", "sim", "--dry-run")  # fmt: skip
    assert told.status == 1
    assert "in.jsonl:1: the prompt template does not fit the row: 'repl' is undefined" in told.out


def test_the_time_of_a_judge_is_the_endpoints_and_not_the_clients(
    cli: Cli, rows: Rows, tmp_path: Path
) -> None:
    judged(tmp_path)

    def say(body: dict[str, Any]) -> str:
        time.sleep(0.5 if body["model"] == "large" else 0)
        return "VERDICT: CORRECT"

    with scripted(model(say)) as server:
        given = ("--task", "task.toml", "--data", rows({"q": "a", "gold": "a"}))
        cli("eval", *given, "--base-url", server.base_url, "--model", "m", "-o", "out.jsonl")
    phases = json.loads(cli("status", "out.jsonl", "--json").out)["phases"]
    assert phases["first_byte"] + phases["answer"] >= 0.5, phases
    assert max(phases["client"], phases["durable"]) < 0.4, phases


@pytest.mark.parametrize(
    ("settings", "gold", "correct"),
    [
        ({"metric": "exact"}, ["NYC", "New York"], [True, True, False]),
        ({"metric": "regex", "pattern": "(.+)"}, ["NYC", "New York"], [True, True, False]),
        ({"metric": "number"}, [3, "#### 4"], [True, True, False]),
        ({"metric": "choice"}, 1, [False, True, False]),
        ({"metric": "choice"}, "2", [False, False, True]),
        ({"metric": "choice"}, [0, 1], [True, True, False]),
    ],
)
def test_gold_may_be_a_list_or_a_letters_place(
    cli: Cli, rows: Rows, tmp_path: Path, settings: dict[str, Any], gold: Any, correct: list[bool]
) -> None:
    answers = {
        "exact": ("nyc", "New York.", "Boston"),
        "regex": ("NYC", "New York", "Boston"),
        "number": ("3", "It is 4.", "5"),
        "choice": ("A", "(B)", "C"),
    }[settings["metric"]]
    task(tmp_path, gold="gold", **settings)
    data = rows(*({"q": at, "gold": gold} for at in range(3)))
    with scripted(model(lambda body: answers[int(body["messages"][-1]["content"][-1])])) as server:
        given = ("--task", "task.toml", "--data", data, "--base-url", server.base_url)
        told = cli("eval", *given, "--model", "m", "-o", "out.jsonl")
    assert told.status == 0, told.err
    assert [line["correct"] for line in lines("out.jsonl")] == correct


@pytest.mark.parametrize(
    ("metric", "gold", "answers"),
    [
        ("exact", '["NYC", "New York"]', {"nyc": True, "New York.": True, "Boston": False}),
        ("exact", "['NYC', 'New York']", {"nyc": True, '["NYC", "New York"]': False}),
        ("exact", '["NYC"]', {"nyc": True, '["NYC"]': True}),
        ("exact", "[1, 2]", {"1": False, "[1, 2]": True}),
        ("number", "[3, 4.5]", {"3": True, "It is 4.5.": True, "5": False}),
        ("choice", "[0, 1]", {"A": True, "(B)": True, "C": False}),
        ("choice", "1.0", {"A": False, "(B)": True}),
    ],
)
def test_a_list_in_a_csv_file_holds_several_right_answers(
    cli: Cli, tmp_path: Path, metric: str, gold: str, answers: dict[str, bool]
) -> None:
    said = list(answers)
    task(tmp_path, gold="gold", metric=metric)
    with (tmp_path / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["q", "gold"], *([at, gold] for at in range(len(said)))])
    with scripted(model(lambda body: said[int(body["messages"][-1]["content"][-1])])) as server:
        given = ("--task", "task.toml", "--data", "data.csv", "--base-url", server.base_url)
        told = cli("eval", *given, "--model", "m", "-o", "out.jsonl")
    assert told.status == 0, told.err
    assert [line["correct"] for line in lines("out.jsonl")] == list(answers.values())


@pytest.mark.parametrize("gold", [None, [], ["a", None], [["a"]]])
def test_a_gold_answer_that_nothing_equals_is_no_wrong_answer(
    cli: Cli, rows: Rows, tmp_path: Path, gold: Any
) -> None:
    task(tmp_path, gold="gold", metric="exact")
    given = ("--task", "task.toml", "--data", rows({"q": 1, "gold": gold}), "--endpoint", "sim")
    told = cli("eval", *given, "-o", "out.jsonl")
    assert told.status == 1
    assert "accuracy" not in told.out
    assert "gold answer" in lines("out.failed.jsonl")[0]["error"]["message"]


def test_a_place_beyond_the_letters_is_named(cli: Cli, rows: Rows, tmp_path: Path) -> None:
    task(tmp_path, gold="gold", metric="choice")
    given = ("--task", "task.toml", "--data", rows({"q": 1, "gold": 4}), "--endpoint", "sim")
    told = cli("eval", *given, "-o", "out.jsonl")
    assert told.status == 1
    failure = lines("out.failed.jsonl")[0]["error"]
    assert "none of ABCD: 4" in failure["message"]
    assert "its index, 0 for A" in json.dumps(failure)


def test_where_no_question_was_answered_there_is_no_accuracy(cli: Cli, rows: Rows) -> None:
    """Such as a file whose rows have no right answer."""
    data = rows({"question": "1 + 1?"}, {"question": "2 + 2?"})
    told = cli("eval", "gsm8k", "--data", data, "--endpoint", "sim", "-o", "out.jsonl")
    assert told.status == 1
    assert "no question was answered, so there is no score: 2 failed" in told.out
    assert "accuracy" not in told.out


def test_an_empty_file_has_no_accuracy(cli: Cli, rows: Rows) -> None:
    told = cli("eval", "gsm8k", "--data", rows(), "--endpoint", "sim", "-o", "out.jsonl")
    assert (told.status, told.err.count("no rows in")) == (2, 1)
    assert "no question was answered, so there is no score: 0 failed" in told.out
    assert "accuracy" not in told.out


def test_a_file_without_the_question_has_no_accuracy(cli: Cli, rows: Rows) -> None:
    data = rows({"q": "1 + 1?", "answer": "2"}, {"q": "2 + 2?", "answer": "4"})
    told = cli("eval", "gsm8k", "--data", data, "--endpoint", "sim", "-o", "out.jsonl")
    assert told.status != 0
    assert "accuracy" not in told.out


ANSWERS = {
    "There is not enough information. There are 30 students and 2 teachers.": None,
    "The answer is 20. Edit: 22.": "22",
    "My first answer was 45. That is wrong; the right one is 54.": "54",
    "She ate 5 of her 5 apples. There are no apples left.": "0",
    "The answer is 20. A common mistake is to say 22.": "20",
    "There is no way to know. There are 30 students and 2 teachers.": None,
    "Janet makes $18 a day. No further information is needed.": "18",
    "The answer is 20. Hmm, let me recheck. 11 * 2 = 22. So it's 22.": "22",
    "She gave away all 12 cookies, so she has none left.": "0",
}


def test_refusals_corrections_and_none_are_read_as_they_are_meant(cli: Cli, rows: Rows) -> None:
    said = list(ANSWERS)
    data = rows(*({"question": str(at), "answer": "22"} for at in range(len(said))))
    with scripted(
        model(lambda body: said[int(body["messages"][-1]["content"].split()[0])])
    ) as server:
        given = ("--data", data, "--base-url", server.base_url, "--model", "m", "-o", "out.jsonl")
        told = cli("eval", "gsm8k", *given)
    assert told.out.splitlines()[-1] == "accuracy: 2/9", told.err
    assert [line["extracted"] for line in lines("out.jsonl")] == list(ANSWERS.values())
    assert lines("out.jsonl")[0]["verdict"] == "invalid"


def test_json_that_a_results_file_cannot_hold_is_graded_and_kept_as_text(
    cli: Cli, rows: Rows, tmp_path: Path
) -> None:
    task(tmp_path, gold="gold", metric="json", fields=["b"])
    said = r'{"a": "\ud83d", "b": 1}'
    data = rows({"q": 1, "gold": {"b": 1}}, {"q": 2, "gold": {"b": 2}})
    with scripted(model(lambda body: said)) as server:
        given = ("--task", "task.toml", "--data", data, "--base-url", server.base_url)
        told = cli("eval", *given, "--model", "m", "-o", "out.jsonl")
    assert told.status == 0, told.err
    assert told.out.splitlines()[-1] == "accuracy: 1/2"
    assert [line["verdict"] for line in lines("out.jsonl")] == ["correct", "wrong"]
    for line in lines("out.jsonl"):
        assert json.loads(line["extracted"]) == json.loads(said)


def test_a_task_without_questions_is_hinted_at_by_its_file(cli: Cli) -> None:
    Path("mine.toml").write_text('prompt = "{{ question }}"\nmetric = "exact"\n')
    for named in (("--task", "mine.toml"), ("gsm8k",)):
        told = cli("eval", *named)
        assert (told.status, told.out) == (2, "")
        assert f"hint: redline eval {' '.join(named)} --data FILE\n" in told.err


@pytest.mark.parametrize("samples", [1, 2])
def test_rows_that_are_added_before_others_keep_their_questions_apart(
    cli: Cli, data: str, samples: int
) -> None:
    lines = Path(data).read_text().splitlines(keepends=True)
    Path(data).write_text("".join(lines[2:]))
    evaluated(cli, "two", data, samples)
    Path(data).write_text("".join(lines))
    added = evaluated(cli, "two", data, samples)
    Path(f"two-{samples}.jsonl").rename("added.jsonl")
    shutil.move(f"two-{samples}.redline", "added.redline")
    whole = evaluated(cli, "two", data, samples)
    assert added.out == whole.out
    told = cli("eval", "compare", "added.jsonl", f"two-{samples}.jsonl")
    assert told.status == 0, told.err
    assert "12 equal" in told.out or "9 of 12" in told.out
    assert "left out" not in told.out
    assert "won" not in told.out


def test_samples_from_before_and_after_a_new_order_keep_their_questions_apart(
    cli: Cli, rows: Rows, tmp_path: Path
) -> None:
    task(tmp_path, gold="gold", metric="exact")
    questions = [{"q": "right", "gold": "a"}, {"q": "wrong", "gold": "a"}]
    seen: list[str] = []

    def say(body: dict[str, Any]) -> Text:
        text = body["messages"][-1]["content"]
        seen.append(text)
        if seen.count(text) == 2:
            return 400, {"error": {"message": "not now"}}
        return "a" if text == "Say right" else "b"

    with scripted(model(say)) as server:
        given = ("eval", "--task", "task.toml", "--base-url", server.base_url, "--model", "m")
        sampling = ("--samples", "2", "--temperature", "1", "-c", "1")
        command = (*given, *sampling, "--data", rows(*questions, name="data.jsonl"), "-o")
        cli(*command, "out.jsonl")
        rows(*questions[::-1], name="data.jsonl")
        resumed = cli(*command, "out.jsonl", "--retry-failed")
        fresh = cli(*command, "fresh.jsonl")
    assert re.search(r"^pass@2 +50.0%\nmajority +50.0%  1 of 2$", resumed.out, re.M)
    assert resumed.out == fresh.out
    told = cli("eval", "compare", "out.jsonl", "fresh.jsonl")
    assert "in the first, 0 in the second; 2 equal" in told.out


def test_the_score_reads_the_data_only_up_to_the_last_question_asked(cli: Cli, data: str) -> None:
    """The end of the data is cut off, so reading it would fail."""
    lines = Path(data).read_text().splitlines(keepends=True)
    cut = Path("cut.jsonl.gz")
    for first, limit in ((lines[:2], "1"), (lines[1::-1], "2")):
        tail = [json.dumps({"q": os.urandom(500_000).hex()}) + "\n" for _ in range(9)]
        cut.write_bytes(gzip.compress("".join([*first, *tail]).encode(), 1)[:-1000])
        told = evaluated(cli, "two", str(cut), 2, "--limit", limit)
    assert "row number" not in told.out


def test_samples_without_names_that_share_a_row_number_are_pointed_out(cli: Cli, data: str) -> None:
    """The rows of a pipe cannot be read again for the score."""
    flags = ("--task", "two.toml", "--data", "-", "--samples", "2", "--temperature", "1")
    command = ("eval", *flags, "--endpoint", "sim", "-o", "out.jsonl")
    lines = Path(data).read_text().splitlines(keepends=True)
    cli(*command, stdin="".join(lines[2:]))
    told = cli(*command, stdin="".join(lines))
    assert "2 row numbers have more than 2 answers" in told.out


def test_an_answer_whose_row_was_changed_is_pointed_out(cli: Cli, data: str) -> None:
    before = evaluated(cli, "two", data, 1)
    assert "did not read" not in before.out
    text = Path(data).read_text()
    Path(data).write_text(text.replace('"gold": "yes0"', '"gold": "yes00"', 1))
    after = evaluated(cli, "two", data, 1)
    assert (
        "1 answer in this score is from a row that the last run did not read: changed," in after.out
    )
    assert after.out.splitlines()[-1] == "accuracy: 9/13"


def test_samples_of_one_cached_answer_are_refused(cli: Cli, data: str) -> None:
    flags = ("--samples", "4", "--temperature", "1", "--cache", "--cache-sampled", "-o", "o.jsonl")
    told = cli("eval", "--task", "one.toml", "--data", data, "--endpoint", "sim", *flags)
    assert told.status == 2
    assert "would give all samples of a question the same answer" in told.err


def test_shots_of_which_there_are_none_are_pointed_out(cli: Cli, data: str, tmp_path: Path) -> None:
    flags = ["eval", "--data", data, "--endpoint", "sim", "-o", "o.jsonl"]
    told = cli(*flags, "--task", "one.toml", "--shots-file", data)
    assert told.status == 2
    assert f"the number of shots from {data} is not set" in told.err
    assert "set it: --shots N" in told.err
    path = tmp_path / "few.toml"
    path.write_text(f'shots_file = "{data}"\n{TASK.format(column="one")}')
    assert "the number of shots from" in cli(*flags, "--task", "few.toml").err
    assert cli(*flags, "--task", "few.toml", "--shots", "0").status == 0
