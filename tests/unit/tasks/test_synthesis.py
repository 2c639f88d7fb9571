"""One text at a time: what is asked, what is kept, and what becomes of a row without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from redline.calls import Call, Endpoint, Outcome, Reply, Request
from redline.calls.cost import parse_price
from redline.errors import ServerFailed
from redline.job.settings import Ask, Job, Prompting
from redline.job.work import Backpressure, Bill, Feed, Renderer, Runner
from redline.journal import NotKept, Output, Result, failure_writer, line_writer
from redline.sources import Row, open_source
from redline.tasks.synth import Filters, Synthesis, Variations
from redline.tasks.tag import Schema
from redline.testing import ScriptedBackend, Send, Step

STORY = "the old lighthouse keeper found a brass key under the stairs one rainy morning"
OTHER = "nobody at the market could say why the painted kettle had begun to sing again"
ASKED = [{"role": "user", "content": "Tell a story."}]
REQUEST = Request(body={"messages": ASKED, "temperature": 0.2})
Made = tuple[Outcome, list[dict[str, Any]]]


def synthesis(**given: Any) -> Synthesis:
    filters = {name: given.pop(name) for name in list(given) if name in Filters.__struct_fields__}
    settings = {"tries": 3, "similarity": 0.8, **given}
    variations = settings.pop("variations", Variations(10))
    return Synthesis(variations, Filters(**filters), **settings)


async def made(
    task: Any, script: Sequence[Step] | Callable[[Send], Step], row: dict[str, Any] | None = None
) -> Made:
    """The outcome of a row, and the bodies that were sent for it."""
    backend = ScriptedBackend(script)
    row = {"n": 1, "seed": 1} if row is None else row
    outcome = await task.do(row, REQUEST, Ask(backend, Call()))
    return outcome, [send.request.body for send in backend.sends]


def replies(*outputs: Any, finish_reason: str = "stop") -> list[Reply]:
    return [Reply(output=output, finish_reason=finish_reason) for output in outputs]


async def test_a_text_is_asked_for_with_its_own_seed_and_sampling() -> None:
    task = synthesis(variations=Variations(9, vary={"temperature": [0.9]}))
    outcome, sent = await made(task, replies(STORY), {"n": 3, "seed": 43, "temperature": 0.9})
    assert sent == [{"messages": ASKED, "temperature": 0.9, "seed": 43}]
    assert (outcome.status, outcome.output) == ("succeeded", STORY)
    assert outcome.fields == {"seed": 43}
    without = synthesis(variations=Variations(9, first_seed=None))
    outcome, sent = await made(without, replies(STORY), {"n": 3, "temperature": "22 degrees"})
    assert sent == [REQUEST.body]
    assert outcome.fields == {}


async def test_a_near_duplicate_is_made_anew_with_another_seed() -> None:
    task = synthesis()
    await made(task, replies(STORY))
    outcome, sent = await made(task, replies(STORY + " too", OTHER), {"n": 2, "seed": 2})
    assert (outcome.status, outcome.output) == ("succeeded", OTHER)
    assert [body["seed"] for body in sent] == [2, 10_000_021]
    assert outcome.fields == {"seed": 10_000_021, "dropped": ["near_duplicate"]}
    outcome, _ = await made(task, replies(OTHER), {"n": 3, "seed": 3})
    assert outcome.status == "rejected"


async def test_seeds_of_all_tries_differ_and_fit_31_bits() -> None:
    rows = [{"n": n, "seed": n} for n in (1, 2, 9_999_999, 10_000_000)]
    rows += [{"n": 5, "seed": 2_000_000_000 + 10_000_000}]
    seeds = []
    for row in rows:
        _, sent = await made(synthesis(tries=200), replies(""), row)
        seeds += [body["seed"] for body in sent]
    assert len(set(seeds)) == len(seeds) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize(
    ("reply", "filters", "kind"),
    [
        (Reply(output=STORY, finish_reason="length"), {}, "cut"),
        (Reply(output=STORY, finish_reason="content_filter"), {}, "filtered"),
        (Reply(output=None, finish_reason="refusal"), {}, "filtered"),
        (Reply(output=" \n", finish_reason="stop"), {}, "too_short"),
        (Reply(output=None, finish_reason="empty"), {}, "too_short"),
        (Reply(output=STORY), {"least_chars": 100}, "too_short"),
        (Reply(output=STORY), {"most_chars": 20}, "too_long"),
    ],
)
async def test_what_is_not_to_be_kept_is_dropped_with_its_reason(
    reply: Reply, filters: dict[str, int], kind: str
) -> None:
    outcome, sent = await made(synthesis(tries=2, **filters), [reply])
    assert (len(sent), outcome.status) == (2, "rejected")
    assert outcome.fields == {"dropped": [kind, kind]}
    assert outcome.error is not None
    assert outcome.error.kind == "not_kept"
    assert outcome.error.what.startswith("no text was accepted in 2 tries; reason for the last: ")
    assert outcome.error.hint


async def test_texts_of_just_the_length_are_kept() -> None:
    size = len(STORY)
    outcome, _ = await made(synthesis(least_chars=size, most_chars=size), replies(f" {STORY}\n"))
    assert outcome.status == "succeeded"


async def test_reasoning_is_no_part_of_a_text_unless_the_prompt_asks_for_it() -> None:
    thought = f"<think>A story.</think>\n\n{STORY}"
    outcome, _ = await made(synthesis(), replies(thought))
    assert outcome.output == STORY
    outcome, _ = await made(synthesis(tries=1), replies("<think>A sto"))
    assert outcome.fields == {"dropped": ["too_short"]}
    asked = Request(body={"messages": [{"role": "user", "content": "Reason in <think> tags."}]})
    backend = ScriptedBackend(replies(thought))
    outcome = await synthesis().do({"n": 1}, asked, Ask(backend, Call()))
    assert outcome.output == thought
    task = synthesis(schema=Schema({"type": "object", "properties": {"q": {"type": "string"}}}))
    outcome, _ = await made(task, replies(f'<think>It is {{}}.</think>{{"q": "<think>{STORY}"}}'))
    assert outcome.output == {"q": f"<think>{STORY}"}


async def test_json_is_kept_where_it_is_valid_and_compared_by_its_values() -> None:
    schema = Schema({"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})
    task = synthesis(schema=schema, tries=4)
    answers = ["no JSON", '{"a": 1}', f'```json\n{{"q": "{STORY}"}}\n```']
    outcome, _ = await made(task, replies(*answers))
    assert outcome.output == {"q": STORY}
    assert outcome.fields == {"seed": 20_000_039, "dropped": ["invalid", "invalid"]}
    outcome, _ = await made(task, replies(f'{{"q": "{STORY}!"}}'), {"n": 2, "seed": 2})
    assert outcome.fields == {"dropped": ["near_duplicate"] * 4}


async def test_json_that_no_results_file_can_hold_is_made_anew_and_is_no_duplicate() -> None:
    schema = Schema({"type": "object", "properties": {"q": {"type": "string"}}})
    task = synthesis(schema=schema)
    answers = [f'{{"q": "{STORY} \\ud83d"}}', f'{{"q": "{STORY}"}}']
    outcome, _ = await made(task, replies(*answers))
    assert outcome.output == {"q": STORY}
    assert outcome.fields == {"seed": 10_000_020, "dropped": ["invalid"]}


async def test_all_are_kept_where_similarity_is_off() -> None:
    task = synthesis(similarity=None)
    for n in (1, 2):
        outcome, sent = await made(task, replies(STORY), {"n": n, "seed": n})
        assert (outcome.status, len(sent)) == ("succeeded", 1)


async def test_a_call_that_fails_ends_the_row_and_tells_what_was_dropped_before() -> None:
    script = [Reply(output=""), ServerFailed("503", status=503)]
    outcome, _ = await made(synthesis(), script)
    assert (outcome.status, outcome.fields) == ("exhausted", {"dropped": ["too_short"]})


async def test_the_usage_of_a_row_is_that_of_all_its_tries() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3}
    answers = [Reply(output=text, usage=usage) for text in ("", "", STORY)]
    outcome, _ = await made(synthesis(), answers)
    assert outcome.reply is not None
    assert outcome.reply.usage == {"prompt_tokens": 6, "completion_tokens": 9}


def left(folder: Path, outcomes: dict[int, Outcome]) -> Output:
    """An output that an earlier run has left: these outcomes, by row."""
    output = Output(path=folder / "out.jsonl", keep_input=True)
    with output.path.open("wb") as results, output.failed_path.open("wb") as failures:
        for n, outcome in outcomes.items():
            row = Row(n, n, {"n": n, "seed": n}, b"{}")
            result = Result(row=row, key=n, custom_id=None, outcome=outcome)
            if outcome.is_success:
                results.write(line_writer(output)(result))
            else:
                failures.write(failure_writer(output)(result))
    return output


async def test_a_later_run_knows_the_texts_and_goes_on_with_other_seeds(tmp_path: Path) -> None:
    first = synthesis()
    outcomes = {
        1: (await made(first, replies(STORY)))[0],
        2: (await made(first, replies(STORY), {"n": 2, "seed": 2}))[0],
    }
    output = left(tmp_path, outcomes)
    again = synthesis()
    again.recall(output.path, output.failed_path)
    outcome, sent = await made(again, replies(STORY, OTHER), {"n": 2, "seed": 2})
    assert [body["seed"] for body in sent] == [2 + 3 * 10_000_019, 2 + 4 * 10_000_019]
    assert outcome.output == OTHER
    assert outcome.fields is not None
    assert outcome.fields["dropped"] == ["near_duplicate"] * 4


async def test_a_text_that_a_row_has_used_all_tries_for_is_tried_as_often_again(
    tmp_path: Path,
) -> None:
    outcome, _ = await made(synthesis(), replies(""))
    output = left(tmp_path, {1: outcome})
    again = synthesis()
    again.recall(output.path, output.failed_path)
    outcome, sent = await made(again, replies(""))
    assert len(sent) == 3
    assert outcome.fields == {"dropped": ["too_short"] * 6}


def test_what_decides_a_text_is_in_the_settings() -> None:
    usual = synthesis().settings()
    assert json.dumps(usual)
    assert synthesis(tries=9).settings() == usual
    assert synthesis(variations=Variations(99)).settings() == usual
    changed: list[dict[str, Any]] = [
        {"least_chars": 5},
        {"most_chars": 500},
        {"schema": Schema({"type": "object"})},
        {"similarity": 0.7},
        {"similarity": None},
        {"variations": Variations(10, first_seed=5)},
    ]
    assert all(synthesis(**given).settings() != usual for given in changed)


async def test_every_answer_is_on_the_bill_and_not_only_those_that_are_kept() -> None:
    price = parse_price("m", {"input": 1.0, "output": 1.0}, where="here")
    rows = [{"n": 1, "seed": 1}]
    job = Job(
        rows=rows,
        endpoints=(Endpoint(base_url="http://127.0.0.1:9/v1"),),
        prompting=Prompting(prompt="Write {{ n }}."),
        prices={"m": price},
        task=synthesis(),
    )
    usage = {"prompt_tokens": 500_000, "completion_tokens": 500_000}
    answers = [Reply(output=text, model="m", usage=usage) for text in ("", "", STORY)]
    feed = Feed(open_source(rows), lambda keys, undone, marks: undone, None)
    bill = Bill(job, None)
    kept: list[Result] = []
    runner = Runner(
        job=job,
        backend=ScriptedBackend(answers),
        slots=1,
        supply=feed,
        source_name="rows",
        renderer=Renderer(job.prompting),
        results=NotKept(kept.extend),
        load=Backpressure(),
        bill=bill,
    )
    await runner.run()
    await feed.aclose()
    assert (len(kept), bill.read().usd) == (1, pytest.approx(3.0))
