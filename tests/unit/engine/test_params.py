"""What a request may ask for, and how it is told that it may not."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from redline.engine.sample import SamplingParams
from redline.errors import Rejected

VOCABULARY = 100


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 2.0, "top_p": 0.0, "min_p": 1.0, "top_k": -1},
        {"top_k": 10**6},  # more than there are tokens: all of them
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 0.5},
        {"logit_bias": {0: -100.0, 99: 100}},
        {"seed": -(2**63), "n": 128, "logprobs": 20, "max_tokens": 1},
        {"stop": ("\n", "END"), "stop_token_ids": (0, 99)},
    ],
)
def test_what_openai_and_vllm_take_is_taken(given: dict[str, Any]) -> None:
    SamplingParams(**given).check(VOCABULARY)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"temperature": -0.1}, "`temperature` is -0.1"),
        ({"temperature": 2.1}, "`temperature` is 2.1"),
        ({"temperature": math.nan}, "`temperature` is nan"),
        ({"top_p": 1.5}, "`top_p` is 1.5"),
        ({"min_p": -0.5}, "`min_p` is -0.5"),
        ({"top_k": -2}, "`top_k` is -2"),
        ({"presence_penalty": 3.0}, "`presence_penalty` is 3.0"),
        ({"frequency_penalty": -math.inf}, "`frequency_penalty` is -inf"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` is 0.0"),
        ({"n": 0}, "`n` is 0"),
        ({"logprobs": 21}, "`logprobs` is 21"),
        ({"max_tokens": 0}, "`max_tokens` is 0"),
        ({"seed": 2**64}, f"`seed` is {2**64}"),
        ({"logit_bias": {100: 1.0}}, "`logit_bias` names token 100, but the model has 100 tokens"),
        ({"logit_bias": {5: 101.0}}, "`logit_bias.5` is 101.0"),
        (
            {"stop_token_ids": (-1,)},
            "`stop_token_ids` names token -1, but the model has 100 tokens",
        ),
        ({"stop": ("a", "")}, "`stop` has an empty string"),
    ],
)
def test_what_cannot_be_is_rejected_by_name(given: dict[str, Any], what: str) -> None:
    with pytest.raises(Rejected) as caught:
        SamplingParams(**given).check(VOCABULARY)
    assert caught.value.what == what
    assert caught.value.hint


def test_greedy_is_a_temperature_too_small_to_divide_by() -> None:
    assert SamplingParams(temperature=0.0).is_greedy
    assert SamplingParams(temperature=9e-6).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy


@pytest.mark.parametrize(
    ("given", "is_adjusted"),
    [
        ({"temperature": 0.3, "top_k": 3, "seed": 1}, False),
        ({"logit_bias": {1: 0.0}}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
    ],
)
def test_only_biases_and_penalties_change_logits(given: dict[str, Any], is_adjusted: bool) -> None:
    assert SamplingParams(**given).is_adjusted is is_adjusted


def test_the_part_can_be_imported_without_torch() -> None:
    probe = "import sys, redline.engine; print('torch' in sys.modules)"
    reply = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    assert reply.stdout == "False\n"
