"""Selects one page of a list by `limit`, `after` and `order`, as in the OpenAI API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from redline.httpserver import BodyError, Exchange
from redline.serve.http import Refusal


class Page(NamedTuple):
    """One page of a list.

    ids: the ids on this page. has_more: further ids follow.
    """

    ids: list[str]
    has_more: bool


def query_of(exchange: Exchange) -> Mapping[str, str]:
    """Returns the query fields of a request. Raises Refusal if there are too many."""
    try:
        return exchange.query
    except BodyError as error:
        raise Refusal(f"{error.reason}.", status=error.status) from None


def page_of(ids: Iterable[str], query: Mapping[str, str], *, most: int, usual: int) -> Page:
    """Returns the page that the query selects. Raises Refusal if the query is not valid.

    ids: all ids, in any order; sorting them gives the order of creation. most: the largest limit.
    usual: the limit if the query has none. `after` in the query is the last id of the previous
    page, whose entry may have been deleted since.
    """
    limit = _limit(query.get("limit", ""), usual, most)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Refusal(f"The order must be asc or desc, not '{order[:20]}'.", param="order")
    is_ascending = order == "asc"
    left = sorted(ids, reverse=not is_ascending)
    if after := query.get("after"):
        left = [one for one in left if (one > after if is_ascending else one < after)]
    return Page(left[:limit], len(left) > limit)


def _limit(text: str, usual: int, most: int) -> int:
    if not text:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise Refusal(f"The limit must be 1 to {most:,}, not '{text[:20]}'.", param="limit")
    return int(text)
