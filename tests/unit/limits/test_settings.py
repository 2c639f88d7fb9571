"""What an endpoint allows, as the user states it."""

from __future__ import annotations

from typing import Any

import pytest
from rich.pretty import pretty_repr

from redline.errors import ConfigError
from redline.limits import PROFILES, Limits, Rate
from redline.limits.rule import CERTAIN, KINDS, Cost, Spread, stated_cost


@pytest.mark.parametrize(
    "value",
    [Rate(2, 1.0), "2/1s", (Rate(2, 1.0),), ["2/1s"], ("2/s",)],
)
def test_one_rate_may_be_written_in_any_form(value: object) -> None:
    limits = Limits(requests=value, tokens=value)  # type: ignore[arg-type]
    assert limits.request_rates() == limits.rates("tokens") == (Rate(2, 1.0),)


def test_several_rates_hold_at_once() -> None:
    assert Limits(requests=["2/1s", Rate(500, 60.0)]).request_rates() == (
        Rate(2, 1.0),
        Rate(500, 60.0),
    )


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        ("redis://:pass-4711@host:6379/0", "redis://...@host:6379/0"),
        ("redis://me@work:pass-4711@host/0?password=pass-4711", "redis://...@host/0?..."),
        ("rediss://host/0", "rediss://host/0"),
        ("limits.json", "limits.json"),
    ],
)
def test_limits_are_shown_without_the_password_of_what_they_are_shared_through(
    share: str, shown: str
) -> None:
    limits = Limits(requests="5/1s", share=share)
    assert repr(limits) == repr(Limits(requests="5/1s", share=shown))
    assert repr(limits) == pretty_repr(limits, max_width=1000)
    assert eval(repr(limits), {"Limits": Limits}).share == shown


def test_headroom_keeps_a_share_free_and_less_than_one_takes_longer() -> None:
    limits = Limits(requests=("2/1s", "1/60s", "3/31d"), tokens="1000/60s", headroom=0.8)
    assert limits.request_rates() == (Rate(1, 1.0), Rate(1, 75.0), Rate(2, 31 * 86400.0))
    assert limits.rates("tokens") == (Rate(800, 60.0),)
    least = Limits(requests=("2/1s", "1/31d"), headroom=0.1)
    assert least.request_rates() == (Rate(1, 5.0), Rate(1, 31 * 86400.0))


@pytest.mark.parametrize(
    ("requests", "concurrency", "slots"),
    [
        ((), None, 64),
        ("1/1s", None, 64),
        ("10/1s", None, 300),
        ("100k/1s", None, 1000),
        (("10/1s", "120/60s"), None, 64),
        ("100k/1s", 7, 7),
    ],
)
def test_concurrency_follows_the_request_rate(
    requests: tuple[str, ...] | str, concurrency: int | None, slots: int
) -> None:
    assert Limits(requests=requests, concurrency=concurrency).slots() == slots


def test_each_kind_of_token_has_its_own_limits() -> None:
    limits = Limits(input_tokens="30k/60s", output_tokens=("8k/60s", "1/1s"), headroom=0.5)
    assert limits.rates("input_tokens") == (Rate(15_000, 60.0),)
    assert limits.rates("output_tokens") == (Rate(4000, 60.0), Rate(1, 2.0))
    assert limits.request_rates() == limits.rates("tokens") == ()
    assert limits.counts_tokens
    assert not Limits(requests="2/1s").counts_tokens


@pytest.mark.parametrize(
    ("settings", "is_adaptive", "slots"),
    [
        ({}, False, 64),
        ({"rate": "auto"}, True, 1000),
        ({"rate": "auto", "concurrency": 5}, False, 5),
        ({"concurrency": "auto", "requests": "1/1s"}, True, 1000),
    ],
)
def test_what_is_found_and_not_stated(
    settings: dict[str, object], is_adaptive: bool, slots: int
) -> None:
    limits = Limits(**settings)  # type: ignore[arg-type]
    assert limits.is_adaptive == is_adaptive
    assert limits.slots() == slots


def refused(**settings: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        Limits(**settings)  # type: ignore[arg-type]
    return caught.value


def test_an_unknown_profile_names_the_nearest() -> None:
    assert refused(profile="movin").hint == "did you mean moving?"
    assert refused(profile="movin").what == "unknown limit profile: movin"
    assert refused(profile="zzz").hint == f"one of {', '.join(PROFILES)}"


@pytest.mark.parametrize("headroom", [0, -0.1, 1.01, float("nan")])
def test_headroom_has_bounds(headroom: float) -> None:
    assert refused(headroom=headroom).hint.startswith("0.8 uses 80 %")


@pytest.mark.parametrize("guard_s", [-0.001, 10.1, float("nan")])
def test_the_guard_has_bounds(guard_s: float) -> None:
    assert "guard must be 0 to 10 s" in refused(guard_s=guard_s).what


@pytest.mark.parametrize("concurrency", [0, -1, 100_001])
def test_concurrency_has_bounds(concurrency: int) -> None:
    assert refused(concurrency=concurrency).what == (
        f"concurrency must be 1 to 100,000, not {concurrency}"
    )


def test_a_bad_rate_says_which_limit() -> None:
    assert refused(requests="2").what == "the request limit is not a rate: 2"
    assert refused(tokens=["200k"]).what == "the token limit is not a rate: 200k"
    assert refused(input_tokens="x/1s").what == "the input token limit is not a number above 0: x"
    assert refused(output_tokens="2").what == "the output token limit is not a rate: 2"
    assert refused(tokens=[200_000]).what == "the token limit must be Rate or str, not int"


def test_limits_that_are_searched_for_cannot_be_shared() -> None:
    error = refused(rate="auto", share="team.limits")
    assert error.what == "limits that are searched for cannot be shared"
    assert "leave out --share" in error.hint


@pytest.mark.parametrize(
    ("name", "value", "what", "hint"),
    [
        ("charge", "actuall", "unknown charge: actuall", "did you mean actual?"),
        ("rate", "states", "unknown rate: states", "did you mean stated?"),
        ("concurrency", "auot", "unknown concurrency: auot", "did you mean auto?"),
    ],
)
def test_an_unknown_word_names_the_nearest(name: str, value: str, what: str, hint: str) -> None:
    error = refused(**{name: value})
    assert (error.what, error.hint) == (what, hint)


@pytest.mark.parametrize(
    ("requests", "profile", "ahead"),
    [
        ((), "any", 64),
        ("5/1s", "any", 5),
        ("30/60s", "any", 1),
        ("1000/60s", "any", 17),
        ("1000/60s", "counter", 17),
        ("1000/60s", "fixed", 1000),
        ("1000/60s", "moving", 1000),
        ("1000/60s", "bucket", 1000),
        (("100/1s", "1200/60s"), "any", 20),
        (("100/1s", "1200/60s"), "moving", 100),
    ],
)
def test_as_many_calls_hold_a_connection_as_a_second_or_a_burst_may_send(
    requests: tuple[str, ...] | str, profile: str, ahead: int
) -> None:
    assert Limits(requests=requests, profile=profile).ahead() == ahead


@pytest.mark.parametrize(("lead_s", "even", "burst"), [(4.0, 2, 30), (120.0, 60, 60)])
def test_more_calls_hold_a_connection_if_connections_take_long(
    lead_s: float, even: int, burst: int
) -> None:
    assert Limits(requests="30/60s").ahead(lead_s=lead_s) == even
    assert Limits(requests="30/60s", profile="fixed").ahead(lead_s=lead_s) == burst


def test_only_amounts_with_output_are_uncertain() -> None:
    spread = Spread(variance=9.0, third=1.0, most=20.0)
    cost = Cost(100, 50, spread)
    assert {kind: cost.spread_of(kind) for kind in KINDS} == {
        "requests": CERTAIN,
        "tokens": spread,
        "input_tokens": CERTAIN,
        "output_tokens": spread,
    }


@pytest.mark.parametrize(("stated", "name"), [((True, 1), "tokens"), ((1, "1"), "output_tokens")])
def test_a_stated_cost_is_two_numbers(stated: tuple[Any, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} "):
        stated_cost(*stated)
