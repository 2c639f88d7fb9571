"""Settings that cannot work are refused, and good ones tell what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redline.cli.commands.sim import PARAMS
from redline.errors import ConfigError
from redline.limits.rule import Rate
from redline.sim import SimSettings, Uniform, parse_faults


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"algorithm": "fixd"}, "did you mean fixed?"),
        ({"headers": "opnai"}, "did you mean openai?"),
        ({"charge": "actuel"}, "did you mean actual?"),
        ({"jitter_s": -0.1}, "0.05 is a slow network"),
        ({"jitter_s": float("nan")}, "0.05 is a slow network"),
        ({"port": 65536}, "0 picks one"),
        ({"port": -1}, "0 picks one"),
        ({"concurrency": 0}, "leave it out for no limit"),
        ({"per_token_s": -0.1}, "0.02 is 50 tokens a second"),
        ({"per_token_s": float("nan")}, "0.02 is 50 tokens a second"),
        ({"api_key": " "}, "leave it out to require none"),
        ({"batch_window_s": 0.0}, "24h, the default, is OpenAI's"),
        ({"batch_tokens": 0}, "leave it out for no limit"),
        ({"stories": True, "replay": Path("a.jsonl")}, "leave one out"),
        ({"stories": True, "near_duplicates": 1.5}, "0.1 is one story in ten"),
        ({"near_duplicates": 0.1}, "turn on stories, too"),
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SimSettings(**wrong)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "wrong", [{"latency": 0.1}, {"faults": ["0.05"]}, {"requests": [2]}, {"concurrency": "3"}]
)
def test_a_setting_of_the_wrong_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} must be"):
        SimSettings(**wrong)


def test_rates_are_written_as_in_limits() -> None:
    rates = SimSettings(requests="2/1s", input_tokens=["9k/1min", Rate(5, 1.0)]).rates
    assert rates["requests"] == (Rate(2, 1.0),)
    assert rates["input-tokens"] == (Rate(9_000, 60.0), Rate(5, 1.0))


def test_a_batch_has_the_same_longest_window_in_python_and_as_a_flag() -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 30 days, not 31 days"):
        SimSettings(batch_window_s=31 * 86_400.0)
    (window,) = [option for option in PARAMS if option.key == "batch_window"]
    with pytest.raises(ConfigError, match="above 0 s and at most 30 days, not 31d"):
        window.read("31d", "--batch-window")


def test_settings_tell_what_they_simulate_but_not_the_key() -> None:
    assert str(SimSettings()) == "no rate limit; latency 0 s; seed 0"
    told = str(
        SimSettings(
            requests=(Rate(2, 1.0), Rate(500, 60.0)),
            tokens=(Rate(200_000, 60.0),),
            input_tokens=(Rate(50_000, 60.0),),
            output_tokens=(Rate(10_000, 60.0),),
            charge="reserved",
            jitter_s=0.05,
            algorithm="moving",
            concurrency=8,
            latency=Uniform(2, 5),
            per_token_s=0.02,
            faults=parse_faults(["0.05"]),
            replay=Path("gsm8k.jsonl"),
            seed=7,
            batch_latency=Uniform(1, 2),
            batch_window_s=60.0,
            batch_tokens=500,
            api_key="sk-secret",
        )
    )
    assert told == (
        "requests 2/1s, requests 500/60s, tokens 200000/60s, input-tokens 50000/60s, "
        "output-tokens 10000/60s (moving); tokens as reserved; jitter 0-0.05 s; 8 at once; "
        "latency 2-5 s; 0.02 s per token; faults 5 %; answers from gsm8k.jsonl; "
        "batches 1-2 s, expiring after 60 s; at most 500 tokens in batches; seed 7"
    )


def test_stories_and_their_near_duplicates_are_told() -> None:
    told = str(SimSettings(stories=True, near_duplicates=0.1))
    assert told == "no rate limit; latency 0 s; stories; 10 % near-duplicates; seed 0"
