"""Retry-After in all its forms."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.limits.headers import retry_after_s

NOW_S = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT, the date of RFC 9110's examples


def read(**headers: str) -> float | None:
    return retry_after_s({name.replace("_", "-"): text for name, text in headers.items()}, NOW_S)


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("0", 0.0),
        ("3", 3.0),
        ("1.5", 1.5),
        (" 2 ", 2.0),
        ("86400", 86_400.0),
        ("86401", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10.0),
        ("Sun Nov  6 08:49:47 1994", 10.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        ("Sun, 06 Nov 2094 08:49:37 GMT", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
    ],
)
def test_retry_after(text: str, wait_s: float | None) -> None:
    assert read(retry_after=text) == wait_s


def test_milliseconds_go_before_seconds() -> None:
    assert read(retry_after_ms="250") == 0.25
    assert read(retry_after_ms="250", retry_after="3") == 0.25
    assert read(retry_after_ms="soon", retry_after="3") == 3.0
    assert read(retry_after_ms="-1", retry_after="3") == 3.0


def test_no_header_is_no_wish() -> None:
    assert read() is None


@settings(deadline=None)
@given(st.integers(0, 86_400))
def test_every_date_within_a_day_is_read(ahead_s: int) -> None:
    assert read(retry_after=formatdate(NOW_S + ahead_s, usegmt=True)) == ahead_s


@settings(deadline=None)
@given(st.text(max_size=40))
def test_nonsense_never_raises(text: str) -> None:
    wait_s = read(retry_after=text, retry_after_ms=text)
    assert wait_s is None or 0 <= wait_s <= 86_400


@settings(deadline=None)
@given(st.from_regex(r"[A-Za-z]{0,4},? ?\d{0,3}[ -][A-Za-z]{3}[ -]\d{0,6} [\d:]{0,9} ?[A-Z+\d-]{0,5}"))  # fmt: skip  # noqa: E501
def test_what_looks_like_a_date_never_raises(text: str) -> None:
    wait_s = read(retry_after=text)
    assert wait_s is None or 0 <= wait_s <= 86_400
