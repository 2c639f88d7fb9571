"""Latencies from words, and their draws."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest

from redline.errors import ConfigError
from redline.sim import Constant, Latency, Lognormal, Uniform, parse_latency


@pytest.mark.parametrize(
    ("text", "latency"),
    [
        ("0", Constant(0.0)),
        ("0.2", Constant(0.2)),
        (" .5 ", Constant(0.5)),
        ("2-5", Uniform(2.0, 5.0)),
        ("0.5 - 1.5", Uniform(0.5, 1.5)),
        ("lognormal:1.2,0.4", Lognormal(1.2, 0.4)),
        ("lognormal: -1, 0", Lognormal(-1.0, 0.0)),
    ],
)
def test_words_become_latencies(text: str, latency: Latency) -> None:
    assert parse_latency(text) == latency


@pytest.mark.parametrize(
    "text",
    ["", "fast", "-1", "5-2", "1-2-3", "3601", "0-9999", "lognormal:1", "lognormal:99,1", "nan"],
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_latency(text)


def test_draws_have_the_right_shape() -> None:
    rng = Random(1)
    assert {Constant(0.2).draw_s(rng) for _ in range(10)} == {0.2}
    uniform = [Uniform(2.0, 5.0).draw_s(rng) for _ in range(2000)]
    assert 2 <= min(uniform) < 2.1
    assert 4.9 < max(uniform) <= 5
    logs = [Lognormal(1.2, 0.4).draw_s(rng) for _ in range(2000)]
    assert median(logs) == pytest.approx(3.32, rel=0.05)
    assert max(Lognormal(8.0, 5.0).draw_s(rng) for _ in range(500)) == 3600


@pytest.mark.parametrize("latency", [Constant(0.2), Uniform(2, 5), Lognormal(1.2, 0.4)])
def test_a_seed_fixes_the_draws(latency: Latency) -> None:
    assert [latency.draw_s(r) for r in [Random(7)] for _ in range(9)] == [
        latency.draw_s(r) for r in [Random(7)] for _ in range(9)
    ]


def test_latencies_tell_what_they_are() -> None:
    assert str(Constant(0.2)) == "0.2 s"
    assert str(Uniform(2, 5)) == "2-5 s"
    assert str(Lognormal(1.2, 0.4)) == "lognormal with median 3.32 s and sigma 0.4"
