"""Text of flags becomes values, or an error that names the flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.job.settings import Option, read, values
from redline.limits import Rate, rate_per


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30.0), ("1.5s", 1.5), ("500ms", 0.5), (" 5m ", 300.0), ("6 h", 21_600.0), (".5", 0.5),
     ("2d", 172_800.0)],
)  # fmt: skip
def test_times(text: str, seconds: float) -> None:
    assert values.duration(text, "--t") == seconds


@pytest.mark.parametrize("text", ["", "abc", "-1", "5 minutes", "1e3", "0", "0ms", "32d", "inf"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--row-deadline ") as caught:
        values.duration(text, "--row-deadline")
    assert caught.value.hint == "for example 30, 500ms, 5m or 6h"


def test_the_bounds_of_a_time_are_told_in_its_units() -> None:
    assert values.duration("0", "--t", 60.0, may_be_0=True) == 0.0
    assert values.duration("1m", "--t", 60.0, may_be_0=True) == 60.0
    with pytest.raises(ConfigError, match=r"^--t must be 0 s or more and at most 60 s, not 90s: "):
        values.duration("90s", "--t", 60.0, may_be_0=True)
    with pytest.raises(ConfigError, match=r"^--t must be above 0 s and at most 2 h, not 0: "):
        values.duration("0", "--t", 7200.0)


def test_only_what_is_given_is_read_by_its_field_and_errors_name_it() -> None:
    options = (
        Option(key="n", field="number", read=values.number),
        Option(key="row_deadline", read=values.duration),
    )
    assert read(options, {}) == {}
    assert read(options, {"n": "2", "other": "x"}) == {"number": 2.0}
    with pytest.raises(ConfigError, match=r"^--row-deadline is not a time"):
        read(options, {"row_deadline": "x"})
    with pytest.raises(ConfigError, match=r"^row_deadline is not a time"):
        read(options, {"row_deadline": "x"}, shown=str)


def test_whole_numbers_and_their_bounds() -> None:
    assert values.whole(" 8 ", "--n", 1, 8) == 8
    for text, problem in {
        "9": "--n must be 1 to 8, not 9",
        "0": "--n must be 1 to 8, not 0",
        "1.5": "--n is not a whole number: 1.5",
        "": "--n is not a whole number: ",
    }.items():
        with pytest.raises(ConfigError) as caught:
            values.whole(text, "--n", 1, 8)
        assert caught.value.what == problem
    with pytest.raises(ConfigError, match="--n must be at least 1, not 0"):
        values.whole("0", "--n", 1)


@pytest.mark.parametrize("text", ["hot", "nan", "inf", "-inf", ""])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ConfigError, match="--temperature is not a number"):
        values.number(text, "--temperature")


def test_numbers() -> None:
    assert values.number("-0.5", "--n") == -0.5


def test_rates() -> None:
    assert values.rates(["2/1s", "10k/1d"], "--r") == (Rate(2, 1.0), Rate(10_000, 86_400.0))
    assert rate_per("2", 1.0, "--rps") == Rate(2, 1.0)
    assert rate_per("1.5m", 60.0, "--tpm") == Rate(1_500_000, 60.0)
    assert rate_per("0.25", 1.0, "--rps") == Rate(1, 4.0)
    assert rate_per("2.5", 1.0, "--rps") == Rate(3, 1.2)
    for text in ("0", "-1", "abc", "nan", "inf"):
        with pytest.raises(ConfigError, match=r"^--rps "):
            rate_per(text, 1.0, "--rps")


def test_words_and_choices() -> None:
    texts = ["empty, length", "", "refusal,"]
    assert values.words(texts) == ("empty", "length", "refusal")
    with pytest.raises(ConfigError) as caught:
        values.choices(texts, "--fail-on", ["empty", "refusals"])
    assert caught.value.what == "--fail-on must be one of empty, refusals, not length"
    assert caught.value.hint == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [("k=7", 7), ("k=0.5", 0.5), ("k=true", True), ('k="7"', "7"), ("k=bob", "bob"), ("k=", ""),
     ("k=a=b", "a=b"), ('k=["a"]', ["a"]), ("k={broken", "{broken"),
     (f"k={'[' * 100_000}", "[" * 100_000)],
)  # fmt: skip
def test_parameters_are_json_where_they_can_be(text: str, value: Any) -> None:
    assert values.pairs([text], "--param") == {"k": value}


@pytest.mark.parametrize("text", ["seed", "=7", ""])
def test_what_is_no_parameter(text: str) -> None:
    with pytest.raises(ConfigError, match="--param is not NAME=VALUE"):
        values.pairs([text], "--param")


def test_headers_and_a_wrong_one_that_is_not_repeated() -> None:
    assert values.headers(["A: b:c", "D:e"], "--header") == {"A": "b:c", "D": "e"}
    for text in ("secret", ": secret"):
        with pytest.raises(ConfigError) as caught:
            values.headers([text], "--header")
        assert "secret" not in str(caught.value)


def test_text_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("caf\u00e9\n", "utf-8")
    assert values.text_or_file(f"@{path}", "--prompt") == "caf\u00e9\n"
    assert values.text_or_file("a@b", "--prompt") == "a@b"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"--prompt cannot read .*: it is not UTF-8"):
        values.text_or_file(f"@{path}", "--prompt")
    with pytest.raises(ConfigError, match="Is a directory"):
        values.text_or_file(f"@{tmp_path}", "--prompt")
