"""Faults from words, and their draws."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from redline.errors import ConfigError
from redline.sim import KINDS, Faults, parse_faults


def test_one_share_is_spread_over_all_kinds() -> None:
    faults = parse_faults(["0.07"])
    assert [kind for kind, _ in faults.shares] == list(KINDS)
    assert {round(share, 12) for _, share in faults.shares} == {0.01}
    assert faults.total == pytest.approx(0.07)


def test_shares_by_kind() -> None:
    assert parse_faults(["429=0.02", "stall=0.01"]) == Faults((("429", 0.02), ("stall", 0.01)))
    assert parse_faults([]) == parse_faults(["0"]) == Faults()


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (["much"], "not a number"),
        (["1.5"], "0 to 1"),
        (["nan"], "0 to 1"),
        (["-0.1"], "0 to 1"),
        (["429=x"], "not a number"),
        (["429=0.1", "0.2"], "needs a kind"),
        (["429=0.1", "429=0.2"], "twice"),
        (["429=0.6", "500=0.6"], "above 1"),
    ],
)
def test_other_words_are_refused(texts: list[str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_faults(texts)


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_faults(["stal=0.1"])
    assert caught.value.hint == "did you mean stall?"


def test_draws_keep_the_shares() -> None:
    faults = parse_faults(["0.07"])
    rng = Random(3)
    drawn = Counter(faults.draw(rng) for _ in range(100_000))
    assert set(drawn) == {None, *KINDS}
    for kind in KINDS:
        assert drawn[kind] == pytest.approx(1000, rel=0.15)


def test_a_certain_fault_always_happens() -> None:
    rng = Random(0)
    assert {parse_faults(["reset=1"]).draw(rng) for _ in range(1000)} == {"reset"}
    assert {Faults().draw(rng) for _ in range(1000)} == {None}


def test_the_shares_do_not_change_how_much_is_drawn() -> None:
    one, other = Random(5), Random(5)
    for _ in range(50):
        parse_faults(["0.5"]).draw(one)
        Faults().draw(other)
    assert one.random() == other.random()
