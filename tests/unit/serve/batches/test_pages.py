"""Pages of a list, windows, and ids."""

from __future__ import annotations

import pytest

from redline.errors import ConfigError
from redline.serve.batches import BatchSettings
from redline.serve.batches.pages import page_of
from redline.serve.batches.shelf import new_id
from redline.serve.http import Refusal

IDS = ["b", "d", "a", "c"]


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ({}, "dcba", False),
        ({"limit": "3"}, "dcb", True),
        ({"limit": "4"}, "dcba", False),
        ({"limit": "", "after": ""}, "dcba", False),
        ({"after": "c"}, "ba", False),
        ({"after": "c", "limit": "1"}, "b", True),
        ({"after": "bb"}, "ba", False),
        ({"after": "a"}, "", False),
        ({"order": "asc"}, "abcd", False),
        ({"order": "asc", "after": "b", "limit": "1"}, "c", True),
        ({"order": "asc", "after": "bb"}, "cd", False),
    ],
)
def test_a_page_follows_the_one_before(query: dict[str, str], ids: str, has_more: bool) -> None:
    assert page_of(IDS, query, most=10, usual=10) == ([*ids], has_more)


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": text}, "limit") for text in ("0", "11", "-1", "x", "1.5", "9" * 5000, "\u0661")]
    + [({"order": "up"}, "order")],
)
def test_a_wrong_query_is_refused(query: dict[str, str], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        page_of(IDS, query, most=10, usual=10)
    assert caught.value.body["error"]["param"] == param


def test_all_pages_together_are_the_list() -> None:
    ids = [new_id("file-") for _ in range(100)]
    for order in ("asc", "desc"):
        found: list[str] = []
        while True:
            query = {"limit": "7", "order": order, **({"after": found[-1]} if found else {})}
            page = page_of(ids, query, most=10, usual=10)
            found += page.ids
            if not page.has_more:
                break
        assert found == sorted(ids, reverse=order == "desc")


def test_ids_are_in_the_order_of_their_making() -> None:
    ids = [new_id("batch_") for _ in range(1000)]
    assert ids == sorted(set(ids))


def test_windows_are_times() -> None:
    settings = BatchSettings()
    assert settings.window_s("24h") == 86_400
    assert settings.window_s("90s") == 90
    assert settings.window_s("30m") == 1800
    assert settings.window_s("7d") == 7 * 86_400
    for text in ("", "0h", "8d", "h", "24", "24 h", "-1h", "1.5h", "24H", "999999999d", "\u0661h"):
        assert settings.window_s(text) is None


def test_settings_that_take_nothing_are_refused() -> None:
    for name in ("running", "kept_s", "most_lines", "in_flight"):
        with pytest.raises(ConfigError, match=f"{name} of batches must be above 0"):
            BatchSettings(**{name: 0})
    assert BatchSettings(priority=0).priority == 0
