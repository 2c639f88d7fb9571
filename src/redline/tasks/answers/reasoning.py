"""Removes reasoning, later turns and further questions from a model's answer.

| in the answer                                    | what is kept                                  |
|--------------------------------------------------|-----------------------------------------------|
| `<think>...</think>` and similar tags            | the text outside                              |
| an end without a beginning (it is in the prompt) | the text after it                             |
| a beginning without an end (reasoning was cut)   | the text before it                            |
| `<|im_end|>`, `</s>`, `<end_of_turn>` ...        | the text before it                            |
| `<|begin_of_box|>` (GLM) and similar marks       | the text inside and outside the marks         |
| `Question:`, `Q:`, `User:` after an answer       | the text before it, see `without_run_on`      |
"""

from __future__ import annotations

import re

from redline.tasks.answers.markup import BOLD, BOX, HASHES

# Some models put a prefix before the first of these: `<seed:think>`.
_NAMES = (
    r"(?:\w{1,16}[:_])?think|thinking|thought|thoughts|reasoning|scratchpad|analysis|reflection|"
    r"rationale"
)
# The format of a message of gpt-oss, such as JSON.
_FORM = r"(?:<\|constrain\|>[^<\n]{0,40})?"
# `<|channel>` and `<channel|>` are Gemma 4's, `<unused94>` and `<unused95>` are MedGemma's.
_REASONING = re.compile(
    rf"(?i)(?P<open><(?:{_NAMES})>|\[THINK\]|◁think▷|<\|(?:begin_of_thought|START_THINKING)\|>"
    rf"|<\|channel\|>(?:analysis|commentary)[^<\n]{{0,80}}{_FORM}<\|message\|>"
    r"|<\|channel>|<unused94>)"
    rf"|</(?:{_NAMES})>|\[/THINK\]|◁/think▷|<\|(?:end_of_thought|END_THINKING)\|>"
    rf"|<\|channel\|>final ?{_FORM}<\|message\|>|<channel\|>|<unused95>",
)
_TURN_ENDS = re.compile(
    r"<\|(?:im_end|im_start|eot_id|eom_id|endoftext|end_of_text|end|return|start|start_header_id|"
    r"user|system|assistant|end_of_turn|eos)\|>|<(?:end_of_turn|start_of_turn|eos|EOT|turn\|)>|"
    r"</s>|\[/?INST\]|<｜end▁of▁sentence｜>|<｜User｜>"
)
# Marks around an answer: GLM's, and those of Cohere's reasoning models.
_AROUND_ANSWER = re.compile(r"<\|(?:(?:begin|end)_of_box|(?:START|END)_RESPONSE)\|>")

_RUN_ON = re.compile(
    rf"(?im)^[ {BOLD}{HASHES}]*(?:Q|(?:Next |New |Another |Example )?(?:Question|Problem|Exercise)|"
    r"Human|User|Instruction|Student|Frage|Pregunta|Pergunta|Domanda|Вопрос|问题|問題|질문|문제)"
    rf"[ ]?#?(?P<number>\d{{0,4}})[ {BOLD}]*:",
)
_FIRST_OF_SERIES = re.compile(r"(?i)\b(?:Q|Question|Problem|Exercise)[ ]?#?1\b")
ANSWERED = re.compile(
    rf"(?im)^[^\w\n]{{0,8}}\d[\d.,]{{0,16}}[^\w\n]{{0,4}}$|[{HASHES}{BOX}]\D{{0,8}}\d|"
    rf"=[ ]?[$€£]?\d|^[ {BOLD}]*(?:A|Answer|Final answer)[ {BOLD}]*:[^\n]{{0,80}}\d|"
    r"\banswer\b[^.\n]{0,40}\d|\b(?:therefore|thus|hence|so)\b[^.\n]{0,120}\d",
)


def spoken(answer: str) -> str:
    """Returns the answer without its reasoning and without what follows the end of its turn."""
    parts: list[str] = []
    at, is_inside = 0, False
    for found in _REASONING.finditer(answer):
        if found["open"] is None:
            if not is_inside:
                parts.clear()
            at, is_inside = found.end(), False
        elif not is_inside:
            parts.append(answer[at : found.start()])
            is_inside = True
    if not is_inside:
        parts.append(answer[at:])
    return _own_turn(_AROUND_ANSWER.sub("", "".join(parts)))


def names_reasoning(text: str) -> bool:
    """Returns whether the text contains a reasoning tag, for example to ask for reasoning."""
    return _REASONING.search(text) is not None


def _own_turn(text: str) -> str:
    return next((part for part in _TURN_ENDS.split(text) if part.strip()), "")


def without_run_on(text: str, answered: re.Pattern[str] = ANSWERED) -> str:
    """Returns plain text up to the first question that the model asks itself after its answer.

    A question before any answer repeats the prompt, and stays. A series that begins with
    `Question 1` is the model's way to the answer, and stays. answered: what an answer looks like,
    numbers by default.
    """
    answer = answered.search(text)
    if answer is None:
        return text
    for question in _RUN_ON.finditer(text, answer.end()):
        is_series = question["number"] and _FIRST_OF_SERIES.search(text, 0, question.start())
        return text if is_series else text[: question.start()]
    return text
