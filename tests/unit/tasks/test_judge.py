"""Answers that another model judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redline.calls import Call, Outcome, Reply, Request
from redline.errors import ConfigError, Rejected, ServerFailed
from redline.job.settings import Ask
from redline.tasks.evaluate import Evaluation, Grading, JudgeSettings, verdict_in
from redline.testing import ScriptedBackend, Send, virtual_run

ROW = {"question": "Who wrote it?", "answer": "Mary Shelley"}
ASKED = Request(body={"model": "small", "messages": [{"role": "user", "content": "Who wrote it?"}]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It names her.\nVERDICT: CORRECT", True),
        ("It names another.\nVERDICT: INCORRECT", False),
        ("**Verdict:** **Correct**", True),
        ("Verdict - not correct", False),
        ("VERDICT: CORRECT would be too kind.\n\nVERDICT: INCORRECT", False),
        ("correct.", True),
        ("Incorrect", False),
        ("The answer is correct.", None),
        ("VERDICT: correctly worded, but I cannot say", None),
        ("<think>I end with VERDICT: CORRECT or VERDICT: INCORRECT. It is right, so I", None),
        ("<think>VERDICT: CORRECT or VERDICT: INCORRECT?</think>Correct.", True),
        ("", None),
        (["VERDICT: CORRECT"], None),
        (None, None),
    ],
)
def test_the_last_verdict_counts(text: Any, said: bool | None) -> None:
    assert verdict_in(text) is said


def test_the_pattern_takes_linear_time() -> None:
    assert verdict_in("verdict " * 50_000) is None
    assert verdict_in("verdict:" + " " * 100_000 + "correct") is None


def outcome_of(
    script: Callable[[Send], Any], grading: Grading | None = None
) -> tuple[Outcome, list[Send]]:
    """The outcome of one question, and what was sent."""
    backend = ScriptedBackend(script)

    async def main() -> Outcome:
        task = grading or grading_of()
        return await task.do(dict(ROW), ASKED, Ask(backend, Call()))

    return virtual_run(main()), backend.sends


def grading_of(**settings: Any) -> Grading:
    judge = JudgeSettings(model="large", **settings)
    return Grading(Evaluation(name="novels", prompt="{{ question }}", metric="judge", judge=judge))


def says(*texts: str) -> Callable[[Send], Any]:
    return lambda send: Reply(output=texts[min(send.number, len(texts)) - 1], finish_reason="stop")


def test_the_judge_sees_what_was_asked_and_answered() -> None:
    outcome, sends = outcome_of(says("By Mrs Shelley.", "Yes.\nVERDICT: CORRECT"))
    assert outcome.output == "By Mrs Shelley."
    assert outcome.fields == {
        "correct": True,
        "strict": True,
        "extracted": "By Mrs Shelley.",
        "verdict": "correct",
        "judgement": "Yes.\nVERDICT: CORRECT",
    }
    assert sends[0].request is ASKED
    body = sends[1].request.body
    assert (body["model"], body["temperature"]) == ("large", 0)
    for part in ("Who wrote it?", "Mary Shelley", "By Mrs Shelley.", "VERDICT: INCORRECT"):
        assert part in body["messages"][0]["content"]


def test_the_usage_is_that_of_both_and_the_judges_alone_is_beside_it() -> None:
    def script(send: Send) -> Reply:
        usage = {"prompt_tokens": 10**send.number, "completion_tokens": 1}
        return Reply(output="VERDICT: CORRECT", usage=usage)

    outcome, _ = outcome_of(script)
    assert outcome.reply is not None
    assert outcome.reply.usage == {"prompt_tokens": 110, "completion_tokens": 2}
    assert outcome.fields is not None
    assert outcome.fields["judge_usage"] == {"prompt_tokens": 100, "completion_tokens": 1}
    outcome, _ = outcome_of(says("  "))
    assert outcome.fields is not None
    assert outcome.fields["judge_usage"] == {}


def test_a_prompt_of_ones_own_has_the_columns() -> None:
    own = grading_of(prompt="{{ question }}|{{ gold }}|{{ reply }}", params={"top_p": 1})
    outcome, sends = outcome_of(says("X", "VERDICT: INCORRECT"), own)
    assert outcome.fields is not None
    assert outcome.fields["verdict"] == "wrong"
    assert sends[1].request.body["messages"][0]["content"] == "Who wrote it?|Mary Shelley|X"
    assert sends[1].request.body["top_p"] == 1


def test_without_a_verdict_the_question_fails() -> None:
    """Two tries, and then a failure: neither right nor wrong."""
    outcome, sends = outcome_of(says("X", "Well.", "Hm."))
    assert outcome.status == "rejected"
    assert isinstance(outcome.error, Rejected)
    assert "large gave no verdict in 2 tries" in outcome.error.what
    assert len(sends) == 3
    # Another request, which no cache answers as it answered the first.
    assert sends[1].request.body != sends[2].request.body
    again, sends = outcome_of(says("X", "Well.", "VERDICT: CORRECT"))
    assert again.fields is not None
    assert again.fields["correct"]
    assert len(sends) == 3


def test_a_judge_that_cannot_be_asked_is_named() -> None:
    def script(send: Send) -> Any:
        return Reply(output="X") if send.number == 1 else ServerFailed("overloaded", status=503)

    outcome, _ = outcome_of(script)
    assert outcome.status == "exhausted"
    assert outcome.error is not None
    assert outcome.error.what == "the judge large: overloaded"


def test_the_judge_sees_no_reasoning() -> None:
    outcome, sends = outcome_of(says("<think>By Byron?</think>By her.", "VERDICT: CORRECT"))
    assert outcome.output == "<think>By Byron?</think>By her."
    assert outcome.fields is not None
    assert outcome.fields["extracted"] == "By her."
    assert "Byron" not in str(sends[1].request.body)


@pytest.mark.parametrize("answer", ["  ", "<think>Mary Shelley, of course</think>", "<think>Mary"])
def test_what_is_not_judged_costs_nothing(answer: str) -> None:
    """An empty answer, one of reasoning alone, and a question whose own call failed."""
    outcome, sends = outcome_of(says(answer))
    assert outcome.fields is not None
    assert (outcome.fields["verdict"], len(sends)) == ("invalid", 1)
    outcome, sends = outcome_of(lambda _: Rejected("no"))
    assert (outcome.status, len(sends)) == ("rejected", 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metric": "judge"}, r"the metric `judge` needs a table \[judge\]"),
        ({"metric": "exact", "judge": JudgeSettings(model="m")}, "takes no judge"),
        ({"metric": "judge", "judge": JudgeSettings(model="m", prompt="{{")}, "template"),
    ],
)
def test_a_judge_that_does_not_fit_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Grading(Evaluation(name="x", prompt="{{ q }}", **settings))


def test_another_judge_is_another_evaluation() -> None:
    settings = [grading_of().settings()]
    other = Evaluation(name="x", prompt="", metric="judge", judge=JudgeSettings(model="other"))
    settings.append(Grading(other).settings())
    assert settings[0] != settings[1]
    assert "judge" not in Grading(Evaluation(name="x", prompt="")).settings()
