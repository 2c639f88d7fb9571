"""Rates in words and in numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.errors import ConfigError
from redline.limits import Rate, parse_count, parse_rate, rate_per
from redline.limits.rule import MAX_COUNT, limit_text


@pytest.mark.parametrize(
    ("text", "count", "window_s"),
    [
        ("2/1s", 2, 1.0),
        ("500/60s", 500, 60.0),
        ("200k/60s", 200_000, 60.0),
        ("200K/min", 200_000, 60.0),
        ("5/s", 5, 1.0),
        ("5/sec", 5, 1.0),
        (" 5 / 2 s ", 5, 2.0),
        ("1.5m/h", 1_500_000, 3600.0),
        ("3/hour", 3, 3600.0),
        ("10/d", 10, 86400.0),
        ("10/day", 10, 86400.0),
        ("1/250ms", 1, 0.25),
        ("1/.5s", 1, 0.5),
        ("9/1.5m", 9, 90.0),
    ],
)
def test_a_rate_is_read(text: str, count: int, window_s: float) -> None:
    assert parse_rate(text) == Rate(count, window_s)


@pytest.mark.parametrize("text", ["", "2", "2/", "/s", "2/1", "2/1x", "2 per s", "2/-1s", "2//s"])
def test_what_is_no_rate_shows_the_right_form(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rate(text, "--requests")
    assert caught.value.what == f"--requests is not a rate: {text}"
    assert caught.value.hint == "write a count and a window, like 2/1s, 500/60s or 200k/60s"


@pytest.mark.parametrize("text", ["2/0s", "2/32d", "2/" + "9" * 400 + "s"])
def test_a_window_has_bounds(text: str) -> None:
    with pytest.raises(ConfigError, match=f"longer than 0 s and at most 31 days: {text}"):
        parse_rate(text)


def test_a_fraction_of_a_request_is_no_count() -> None:
    with pytest.raises(ConfigError, match=r"whole requests or tokens, not 2\.5") as caught:
        Rate(2.5, 1.0)  # type: ignore[arg-type]
    assert (
        caught.value.hint
        == "pass an int; for a fraction, widen the window: Rate(5, 2.0) is 2.5 a second"
    )


@pytest.mark.parametrize("count", [0, -1, MAX_COUNT + 1])
def test_a_count_has_bounds(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"from 1 to 10\^12 per window, not {count}") as caught:
        Rate(count, 1.0)
    assert caught.value.hint == "for example 2/1s or 500/60s"


def test_the_largest_count_and_the_longest_window_are_a_rate() -> None:
    assert str(Rate(MAX_COUNT, 31 * 86_400.0)) == f"{MAX_COUNT}/2678400s"
    assert parse_count("1000000m") == MAX_COUNT


@pytest.mark.parametrize("window_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_window_is_a_finite_positive_number(window_s: float) -> None:
    with pytest.raises(ConfigError) as caught:
        Rate(1, window_s)
    assert caught.value.hint == "for example 2/1s or 500/60s"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("500", 500),
        (" 7 ", 7),
        ("200k", 200_000),
        ("1.5m", 1_500_000),
        (".5k", 500),
        ("2M", 2_000_000),
    ],
)
def test_a_count_is_read(text: str, count: int) -> None:
    assert parse_count(text) == count


@settings(deadline=None)
@given(st.integers(1, 10**6), st.sampled_from([("k", 1000), ("m", 10**6)]))
def test_three_decimals_are_exact(thousandths: int, suffix: tuple[str, int]) -> None:
    text = f"{thousandths // 1000}.{thousandths % 1000:03}{suffix[0]}"
    assert parse_count(text) == thousandths * suffix[1] // 1000


@pytest.mark.parametrize("text", ["abc", "", "-1", "1e3", "5x", "1 k", "k"])
def test_what_is_no_number_is_named(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_count(text, "--rpm")
    assert caught.value.what == f"--rpm is not a number above 0: {text}"
    assert caught.value.hint == "for example 500, 200k or 1.5m"


@pytest.mark.parametrize("text", ["0", "0.5", "1.5", "0.0001k", "9" * 400, "2000000m"])
def test_a_number_that_cannot_be_a_count_is_named(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_count(text, "--rpm")
    assert caught.value.what == f"--rpm must be a whole number from 1 to 10^12, not {text}"
    assert caught.value.hint == "give a whole number, or leave it out for no limit"


def test_a_rate_in_a_rate_text_has_the_same_errors() -> None:
    with pytest.raises(ConfigError, match="--requests must be a whole number"):
        parse_rate("0/1s", "--requests")
    with pytest.raises(ConfigError, match="--requests is not a number above 0: abc"):
        parse_rate("abc/1s", "--requests")


@settings(deadline=None)
@given(st.integers(1, MAX_COUNT), st.integers(1, 7 * 86400))
def test_a_rate_prints_as_it_is_written(count: int, window_s: int) -> None:
    rate = Rate(count, float(window_s))
    assert parse_rate(str(rate)) == rate


@pytest.mark.parametrize(
    ("value", "rate"),
    [
        (500, Rate(500, 60.0)),
        ("2k", Rate(2000, 60.0)),
        (2.0, Rate(2, 60.0)),
        (2.5, Rate(3, 72.0)),
        ("0.5", Rate(1, 120.0)),
        ("1.0005k", Rate(1001, 60.0 * 1001 / 1000.5)),
    ],
)
def test_a_fraction_stretches_the_window(value: str | float, rate: Rate) -> None:
    assert rate_per(value, 60.0) == rate


@pytest.mark.parametrize("value", [0, 0.0, "0", "0.0k"])
def test_no_rate_is_written_by_leaving_it_out(value: str | float) -> None:
    with pytest.raises(ConfigError) as caught:
        rate_per(value, 60.0, "--rpm")
    assert caught.value.what == f"--rpm must be above 0, not {value}"
    assert caught.value.hint == "leave it out for no limit"


@pytest.mark.parametrize("value", ["x", "", "-1", -1, "1 k k"])
def test_what_is_no_number_is_refused_by_name(value: str | float) -> None:
    with pytest.raises(ConfigError) as caught:
        rate_per(value, 60.0, "--rpm")
    assert caught.value.what == f"--rpm is not a number above 0: {value}"


def test_a_text_of_unknown_origin_is_called_what_it_should_be() -> None:
    for read, what in (
        (lambda: parse_rate("x"), "rate is not a rate: x"),
        (lambda: parse_count("x"), "count is not a number above 0: x"),
        (lambda: rate_per("x", 1.0), "rate is not a number above 0: x"),
    ):
        with pytest.raises(ConfigError) as caught:
            read()
        assert caught.value.what == what


@pytest.mark.parametrize(
    ("kind", "rate", "text"),
    [
        ("tokens", Rate(200_000, 60.0), "200k tokens/min"),
        ("tokens", Rate(10_000, 1.0), "10k tokens/s"),
        ("tokens", Rate(9_000, 1.0), "9,000 tokens/s"),
        ("tokens", Rate(10_500, 1.0), "10,500 tokens/s"),
        ("input_tokens", Rate(30_000_000, 86400.0), "30m input tokens/day"),
        ("input_tokens", Rate(9_000_000, 3600.0), "9,000k input tokens/h"),
        ("requests", Rate(500, 60.0), "500 requests/min"),
        ("requests", Rate(5, 2.5), "5 requests/2.5 s"),
        ("requests", Rate(1, 60.0), "1 request/min"),
        ("output_tokens", Rate(1000, 31 * 86400.0), "1,000 output tokens/31 days"),
        ("requests", None, "the rate of requests being searched for"),
    ],
)
def test_a_limit_reads_as_people_write_it(kind: str, rate: Rate | None, text: str) -> None:
    assert limit_text(kind, rate) == text
