"""One row's way to its tag: what is taken, what is asked again and how often, and what it costs."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from redline.calls import Call, Outcome, Reply, Request
from redline.errors import CallError, Rejected, ServerFailed, TimedOut
from redline.job.settings import Ask
from redline.tasks.evaluate import UsageSum
from redline.tasks.tag import Schema, Structured, Tagging, as_json_schema
from redline.testing import ScriptedBackend, Send

LABELS = Schema(as_json_schema(["card_arrival", "top_up"]))
TWO = Schema(as_json_schema({"label": ["a", "b"], "urgency": ["low", "high"]}))
GOOD = '{"label": "top_up"}'
TAG = {"label": "top_up"}
USED = {"prompt_tokens": 10, "completion_tokens": 2}
ASKED = Request(body={"model": "m", "messages": [{"role": "user", "content": "Where is it?"}]})
Step = Outcome | Reply | CallError


def said(text: Any, finish_reason: str | None = "stop", **usage: Any) -> Reply:
    return Reply(output=text, finish_reason=finish_reason, usage=usage or USED, model="m")


def tagged(
    script: Sequence[Step] | Callable[[Send], Step],
    *,
    schema: Schema = LABELS,
    request: Request = ASKED,
    **settings: Any,
) -> tuple[Outcome, list[Send]]:
    """The outcome of one row, and what was sent for it."""
    backend = ScriptedBackend(script)
    task = Tagging(schema, **{"reasks": 2, "response_format": "never", **settings})
    outcome = asyncio.run(task.do({}, request, Ask(backend, Call())))
    return outcome, backend.sends


TAKEN = [
    GOOD,
    f"```json\n{GOOD}\n```",
    f"Sure! Here it is:\n\n{GOOD}\n\nAnything else?",
    '<think>{"label": "card_arrival"}</think>\n' + GOOD,
    '{"label": " Top_Up "}',
    "top_up",
    '"TOP_UP".',
]


@pytest.mark.parametrize("text", TAKEN)
def test_a_tag_is_found_in_fences_and_prose(text: str) -> None:
    outcome, sends = tagged([said(text)])
    assert (outcome.status, outcome.output, outcome.fields) == ("succeeded", TAG, {"reasks": 0})
    assert len(sends) == 1


WRONG: list[tuple[Any, str]] = [
    (None, "the answer is empty"),
    ("  \n", "the answer is empty"),
    ("I do not know.", "the answer holds no JSON"),
    ('{"label": "top_up"', "its JSON is broken: Expecting ',' delimiter: line 1 column 19 "
     "(char 18)"),
    ("{'label': 'top_up'}", "its JSON is broken: Expecting property name enclosed in double "
     "quotes: line 1 column 2 (char 1)"),
    ('["top_up"]', "the answer holds no JSON"),
    ('{"label": NaN}', "the answer holds no JSON of the form that was asked for"),
    ('{"label": "lost"}', 'label is "lost", which is not one of "card_arrival", "top_up"'),
    ('{"tag": "top_up"}', "'label' is a required property; "
     "Additional properties are not allowed ('tag' was unexpected)"),
]  # fmt: skip


def test_an_answer_that_is_not_valid_never_gets_through() -> None:
    """No answer that is not valid gets through, and the last of its tries says what is wrong."""
    for text, problem in WRONG:
        outcome, sends = tagged([said(text)])
        assert outcome.status == "rejected", text
        assert outcome.error is not None
        assert outcome.error.what == f"no valid answer in 3 tries; the last: {problem}"
        assert (outcome.output, outcome.fields) == (text, {"reasks": 2})
        assert len(sends) == 3


def test_an_answer_is_asked_for_again_at_most_so_often() -> None:
    """k re-asks are k + 1 calls, and the last of them still counts."""
    for reasks in range(4):
        script = [said("no")] * reasks + [said(GOOD)]
        outcome, sends = tagged(script, reasks=reasks)
        assert (outcome.output, outcome.fields) == (TAG, {"reasks": reasks})
        assert len(sends) == reasks + 1
        outcome, sends = tagged([said("no")], reasks=reasks)
        assert (outcome.status, outcome.fields) == ("rejected", {"reasks": reasks})
        assert len(sends) == reasks + 1


def test_the_model_is_shown_its_last_answer_and_what_is_wrong_with_it() -> None:
    answers = [said('{"label": "lost"}'), said(""), said(GOOD)]
    _, sends = tagged(answers)
    first, second, third = (send.request.body["messages"] for send in sends)
    assert [message["role"] for message in first] == ["system", "user"]
    assert second[:2] == third[:2] == first
    assert second[2:] == [
        {"role": "assistant", "content": '{"label": "lost"}'},
        {
            "role": "user",
            "content": 'That is not valid: label is "lost", which is not one of "card_arrival", '
            '"top_up". Answer again, with the corrected JSON and nothing else.',
        },
    ]
    assert third[2]["content"] == "(an empty answer)"
    assert "the answer is empty" in third[3]["content"]
    # What the row itself asks for is the same each time.
    assert {send.request.body["model"] for send in sends} == {"m"}


def test_a_long_answer_is_read_whole_and_quoted_in_part() -> None:
    outcome, sends = tagged([said("no " * 40_000), said("so " * 40_000 + GOOD)])
    assert outcome.output == TAG
    assert len(sends[1].request.body["messages"][2]["content"]) == 4_000


def test_an_answer_that_was_cut_is_told_so() -> None:
    outcome, sends = tagged([said('{"label": "top', "length")], reasks=1)
    what = "the answer was cut at the token limit before its JSON was whole"
    assert f"That is not valid: {what}." in sends[1].request.body["messages"][3]["content"]
    assert isinstance(outcome.error, Rejected)
    assert outcome.error.what == f"no valid answer in 2 tries; the last: {what}"
    assert outcome.error.hint == "raise --max-tokens"
    # Cut behind its JSON, it is as good as whole.
    assert tagged([said(GOOD + " I ch", "length")])[0].output == TAG


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("refusal", "the model refused to answer"),
        ("content_filter", "the answer was cut by a content filter"),
    ],
)
def test_a_refusal_is_not_asked_again(reason: str, what: str) -> None:
    outcome, sends = tagged([said("I cannot help with that.", reason)])
    assert (outcome.status, outcome.fields, len(sends)) == ("rejected", {"reasks": 0}, 1)
    assert outcome.error is not None
    assert outcome.error.what == what


def test_of_several_choices_the_first_is_the_answer() -> None:
    assert tagged([said([GOOD, "no"])])[0].output == TAG
    assert tagged([said(["no", GOOD])], reasks=0)[0].status == "rejected"


def test_a_tag_that_could_not_be_kept_is_asked_for_again() -> None:
    schema = Schema({"type": "object", "properties": {"s": {"type": "string"}}})
    # Half of a surrogate pair, which UTF-8 has no bytes for.
    outcome, _ = tagged([said(r'{"s": "\ud800"}'), said('{"s": "x"}')], schema=schema)
    assert (outcome.output, outcome.fields) == ({"s": "x"}, {"reasks": 1})


# What the endpoint is told.


def formats(sends: list[Send]) -> list[bool]:
    return ["response_format" in send.request.body for send in sends]


def test_the_schema_goes_along_and_stands_in_the_prompt() -> None:
    _, sends = tagged(
        [said('{"label": "a", "urgency": "low"}')], schema=TWO, response_format="auto"
    )
    body = sends[0].request.body
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "tag", "schema": TWO.json_schema, "strict": True},
    }
    shown = body["messages"][0]["content"].partition("\n")[2]
    assert json.loads(shown) == TWO.json_schema
    free = Schema({"type": "object", "properties": {"n": {"type": "integer"}}}, name="My[int]")
    _, sends = tagged([said('{"n": 1}')], schema=free, response_format="always")
    assert sends[0].request.body["response_format"]["json_schema"] == {
        "name": "My_int_",
        "schema": free.json_schema,
    }


REFUSED = Rejected("HTTP 400: Unrecognized request argument: response_format", status=400)
UNNAMED = Rejected("HTTP 404: No endpoints found that can handle the parameters", status=404)


@pytest.mark.parametrize("error", [REFUSED, UNNAMED])
def test_an_endpoint_that_refuses_the_format_is_asked_without_it(error: Rejected) -> None:
    def answer(send: Send) -> Step:
        return error if "response_format" in send.request.body else said(GOOD)

    backend = ScriptedBackend(answer)
    task = Tagging(LABELS, reasks=2)
    for _ in range(3):
        outcome = asyncio.run(task.do({}, ASKED, Ask(backend, Call())))
        assert (outcome.output, outcome.fields) == (TAG, {"reasks": 0})
    assert formats(backend.sends) == [True, False, False, False]
    assert task.is_format_refused


def test_a_row_that_is_bad_itself_does_not_cost_the_others_the_format() -> None:
    too_long = Rejected("HTTP 400: maximum context length", status=400)
    outcome, sends = tagged([too_long], response_format="auto")
    assert (outcome.status, formats(sends)) == ("rejected", [True, False])
    backend = ScriptedBackend([said(GOOD), too_long, said(GOOD)])
    task = Tagging(LABELS, reasks=2)
    for _ in range(3):
        asyncio.run(task.do({}, ASKED, Ask(backend, Call())))
    # Known to be taken, so the row alone is at fault and is not sent twice.
    assert formats(backend.sends) == [True, True, True]
    assert not task.is_format_refused


@pytest.mark.parametrize(
    ("mode", "sent"), [("always", [True]), ("never", [False]), ("auto", [True, False])]
)
def test_whether_the_format_is_sent_can_be_said(mode: str, sent: list[bool]) -> None:
    assert formats(tagged([REFUSED], response_format=mode)[1]) == sent


def test_other_failures_are_the_retrys_business() -> None:
    outcome, sends = tagged([ServerFailed("HTTP 500", status=500)], response_format="auto")
    assert (outcome.status, outcome.fields, len(sends)) == ("exhausted", {"reasks": 0}, 1)


def test_a_rows_own_response_format_stays() -> None:
    own = Request(body={**ASKED.body, "response_format": {"type": "json_object"}})
    _, sends = tagged([said("no"), said(GOOD)], request=own, response_format="auto")
    assert [send.request.body["response_format"]["type"] for send in sends] == ["json_object"] * 2


def systems(content: Any, role: str = "system") -> list[Any]:
    """The first message that goes out for a request with this one in front."""
    messages = [{"role": role, "content": content}, *ASKED.body["messages"]]
    _, sends = tagged([said(GOOD)], request=Request(body={"messages": messages}))
    sent = sends[0].request.body["messages"]
    assert sent[-1] == ASKED.body["messages"][0]
    return [len(sent), sent[0]["role"], sent[0]["content"]]


def test_a_system_message_of_the_rows_own_is_kept() -> None:
    wanted = Structured(LABELS).instructions
    assert systems("Be brief.") == [2, "system", f"Be brief.\n\n{wanted}"]
    assert systems("Be brief.", "developer") == [2, "developer", f"Be brief.\n\n{wanted}"]
    assert systems(f"Be brief.\n\n{wanted}") == [2, "system", f"Be brief.\n\n{wanted}"]
    parts = [{"type": "text", "text": "Be brief."}]
    assert systems(parts)[2] == [*parts, {"type": "text", "text": wanted}]
    assert systems("Hello.", "user")[:2] == [3, "system"]


@pytest.mark.parametrize("body", [None, "text", {"input": "x"}, {"messages": []}])
def test_only_chat_can_be_tagged(body: Any) -> None:
    with pytest.raises(Rejected, match="only chat completions can follow a schema"):
        tagged([said(GOOD)], request=Request(body=body, url="/v1/embeddings"))


# What a row costs.


def test_a_rows_usage_is_that_of_all_its_answers() -> None:
    """All answers of a row are in its usage; of those that the cache gave, none is paid again."""

    def used(*outcomes: Outcome) -> tuple[Any, bool, int]:
        total = UsageSum()
        for outcome in outcomes:
            total.add(outcome)
        total.put_into(outcomes[-1])
        reply = outcomes[-1].reply
        return None if reply is None else reply.usage, outcomes[-1].is_cached, outcomes[-1].attempts

    def paid(attempts: int = 1, **usage: Any) -> Outcome:
        reply = said("no", **{"prompt_tokens": 10, **usage})
        return Outcome(status="succeeded", reply=reply, attempts=attempts)

    def given() -> Outcome:
        reply = said("no", prompt_tokens=1000)
        return Outcome(status="succeeded", reply=reply, attempts=0, is_cached=True)

    details = {"prompt_tokens_details": {"cached_tokens": 3, "audio": None}, "tier": "flex"}
    assert used(paid(**details)) == ({"prompt_tokens": 10, **details}, False, 1)
    assert used(paid(**details), paid(2, **details)) == (
        {
            "prompt_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 6, "audio": None},
            "tier": "flex",
        },
        False,
        2,
    )
    assert used(given(), given()) == ({"prompt_tokens": 2000}, True, 0)
    assert used(given(), paid()) == ({"prompt_tokens": 10}, False, 1)
    assert used(paid(), given()) == ({"prompt_tokens": 10}, False, 1)
    unknown = paid()
    assert unknown.reply is not None
    unknown.reply.usage = None
    assert used(unknown, paid(2)) == (None, False, 2)
    failed = Outcome(status="exhausted", error=ServerFailed("HTTP 500"), attempts=5)
    assert used(paid(), failed) == ({"prompt_tokens": 10}, False, 5)
    assert failed.output == "no"
    alone = Outcome(status="exhausted", error=ServerFailed("HTTP 500"), attempts=5)
    assert used(alone) == (None, False, 5)


def test_what_is_asked_again_is_charged_to_its_row() -> None:
    outcome, _ = tagged([said("no"), said("no"), said(GOOD)])
    assert outcome.reply is not None
    assert outcome.reply.usage == {"prompt_tokens": 30, "completion_tokens": 6}
    outcome, _ = tagged([said("no"), ServerFailed("HTTP 500")])
    assert (outcome.status, outcome.output, outcome.fields) == ("exhausted", "no", {"reasks": 1})


def test_a_resume_goes_on_with_another_number_of_reasks() -> None:
    settings = [dict(Tagging(LABELS, reasks=n).settings()) for n in (1, 5)]
    assert settings[0] == settings[1] == {"schema": LABELS.json_schema}


def test_a_run_that_is_ending_asks_no_more() -> None:
    call = Call()

    def answer(send: Send) -> Step:
        # As the runner says it to the calls that are on the wire.
        call.deadline_s = -math.inf
        return said("no")

    backend = ScriptedBackend(answer)
    task = Tagging(LABELS, reasks=2, response_format="never")
    outcome = asyncio.run(task.do({}, ASKED, Ask(backend, call)))
    assert isinstance(outcome.error, TimedOut)
    assert (outcome.error.phase, len(backend.sends)) == ("row", 1)
