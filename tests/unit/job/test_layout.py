"""The lines of the live view: what they say at each width, and that they stay where they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redline.job.show import Bound, InputCounts, Snapshot, screen, text_of
from redline.job.show.layout import cells
from redline.job.work import BatchUse
from redline.timeline import LimitUse
from redline.waist import CacheUse

LABELS = ("input", "rows", "speed", "limits", "binds", "batch", "usage", "errors")
WIDTHS = (60, 80, 120, 200)
TOKENS = LimitUse("200k tokens/min", 9, 178_432, 200_000, 60.0)
REQUESTS = LimitUse("1.5k requests/min", 1, 1_338, 1_500, 60.0)
USUAL = Snapshot(
    elapsed_s=192.0,
    done=8_412,
    failed=12,
    skipped=0,
    in_flight=62,
    retrying=4,
    left=11_576,
    input=InputCounts(rows=20_000, done=8_412, failed=12),
    rows_per_s=44.13,
    tokens_per_s=9312.0,
    rate_limited=3,
    parked_s=0.0,
    eta_s=260.0,
    fraction=0.4212,
    is_draining=False,
    slots=64,
    latency_p50_s=1.234,
    latency_p95_s=3.45,
    tokens_per_row=211.3,
    limits=(TOKENS, REQUESTS),
    bound=Bound(cause="limit", what="200k tokens/min", evidence="", for_s=130.0),
    errors={"server_failed": 9, "rate_limited": 3},
    last_error="the server failed: HTTP 503: overloaded",
    flawed={"length": 31},
    spent="$1.32 of $5.00",
    spent_usd=1.32,
    usd_per_min=0.41,
    expected_usd=3.10,
)
NAME = "tickets.jsonl"


def lines(width: int, snapshot: Snapshot = USUAL, name: str = NAME, **changes: Any) -> list[str]:
    snapshot = msgspec.structs.replace(snapshot, **changes)
    return [text_of(line) for line in screen(snapshot, name, width)]


def test_the_lines_at_80_columns() -> None:
    assert lines(80) == [
        "input   tickets.jsonl  ━━━━━━────────   42.1 %   3 m 12 s  ETA 4 m 20 s",
        "rows     8,412 of 20,000 done     12 failed     4 retrying  11,576 left  31 cut",
        "speed     44.1 rows/s  62/64 in flight  p50 1.23 s  p95 3.45 s   9,312 tokens/s",
        "limits  178k/200k tpm <- binds, for 2 m 10 s  1,338/1,500 rpm",
        "usage   $1.32 of $5.00  $0.4100/min  about $3.10 in all  211 tokens/row",
        "errors  9 server_failed, 3 rate_limited; last: the server failed: HTTP 503: ove…",
    ]


def test_the_lines_at_60_columns() -> None:
    assert lines(60) == [
        "input   tickets.jsonl   42.1 %   3 m 12 s  ETA 4 m 20 s",
        "rows     8,412 of 20,000 done     12 failed  11,576 left",
        "speed     44.1 rows/s  62/64 in flight  p50 1.23 s",
        "limits  178k/200k tpm <- binds, for 2 m 10 s",
        "usage   $1.32 of $5.00  $0.4100/min  about $3.10 in all",
        "errors  9 server_failed, 3 rate_limited; last: the server f…",
    ]


def test_the_lines_at_120_columns() -> None:
    found = lines(120)
    assert found[2] == (
        "speed     44.1 rows/s  62/64 in flight  p50 1.23 s  p95 3.45 s   9,312 tokens/s  3 x 429"
    )
    assert found[5].endswith("3 rate_limited; last: the server failed: HTTP 503: overloaded")
    assert "━━━" in found[0]


@pytest.mark.parametrize("width", [*WIDTHS, 20, 33, 47])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"input": InputCounts(rows=1_000_000, done=999_999, failed=1), "fraction": 1.0},
        {"input": InputCounts(rows=12, done=3, failed=0, is_exact=False), "fraction": None},
        {"eta_s": None, "limits": (), "bound": None, "errors": {}, "spent": ""},
        {"notices": {"outage": "endpoint lab has refused connections for 12 s; retrying " * 3}},
        {"is_on_hold": True, "eta_s": 300_000.0, "elapsed_s": 90_000.0},
        {"cache": CacheUse(hits=1_000, misses=3), "is_adaptive": True, "are_found": True},
        {"limits": tuple(msgspec.structs.replace(TOKENS, name=f"x at {n}") for n in range(12))},
        {"last_error": "日本語のとても長いエラーメッセージ" * 4},
    ],
)
def test_no_line_is_too_wide_and_there_are_few(width: int, changes: dict[str, Any]) -> None:
    found = lines(width, **changes)
    assert all(cells(line) <= width for line in found)
    labels = [line[:8].strip() for line in found]
    fixed = [label for label in labels if label in LABELS]
    assert len(fixed) == (6 if changes.get("errors", True) else 4)
    # What goes wrong comes below them, on as many lines as it needs.
    assert labels[: len(fixed)] == fixed
    assert len(found) == len(fixed) or "notices" in changes


@pytest.mark.parametrize("width", WIDTHS)
def test_a_notice_is_shown_whole(width: int) -> None:
    notice = f"endpoint a is out: {'您的账户余额不足请前往控制台充值后再试' * 5}; 1 of 2 left"
    shown = lines(width, notices={"outage": notice})[6:]
    assert "".join(shown).replace(" ", "") == notice.replace(" ", "")
    assert all(cells(line) <= width for line in shown)
    # Words stay whole.
    assert lines(60, notices={"a": "word " * 30})[6:] == [("word " * 12).strip()] * 2 + [
        ("word " * 6).strip()
    ]


def test_fields_stay_where_they_are_while_numbers_grow() -> None:
    ends = set[tuple[int, ...]]()
    for done in (0, 9, 87, 999, 8_412, 19_999):
        counts = InputCounts(rows=20_000, done=done, failed=done // 100)
        grown = lines(120, input=counts, done=done, fraction=done / 20_000, in_flight=done % 64)
        words = ("of 20,000", "failed", "retrying", "left")
        ends.add((*(grown[1].index(word) for word in words), grown[2].index("in flight")))
        assert grown[0].index("%") == lines(120)[0].index("%")
    assert len(ends) == 1


def test_what_binds_is_said_if_it_is_no_limit() -> None:
    bound = Bound(cause="concurrency", what="64 calls in flight", evidence="", for_s=9.0)
    assert lines(80, bound=bound)[3] == (
        "limits  binds: 64 calls in flight, for 9.0 s  178k/200k tpm  1,338/1,500 rpm"
    )
    assert lines(80, bound=bound, limits=())[3] == "binds   64 calls in flight, for 9.0 s"


def test_how_long_an_endpoint_is_to_be_waited_for_is_said() -> None:
    bound = Bound(cause="down", what="the endpoint's request to wait", evidence="", for_s=4.0)
    assert lines(80, bound=bound, parked_s=75.0)[3] == (
        "limits  binds: the endpoint's request to wait, for 4.0 s  1 m 15 s to wait"
    )


def test_a_limit_that_is_searched_for_is_told_from_what_was_found() -> None:
    use = LimitUse("21/1s requests", 4, 20, 21, 1.0)
    bound = Bound(cause="limit", what="a rate limit", evidence="", for_s=9.0)
    found = lines(120, limits=(use,), are_found=True, bound=bound)[3]
    assert found == "limits  20/21 rps (auto) <- binds, for 9.0 s"
    known = ("20/1s requests", "12 in flight")
    found = lines(120, limits=(use,), are_found=True, bound=bound, found_limits=known)[3]
    assert found == "limits  20/21 rps (auto) <- binds, for 9.0 s  found: 20/1s requests"


def test_slow_rates_and_short_latencies_keep_three_digits() -> None:
    found = lines(120, rows_per_s=0.1234, latency_p50_s=0.00345, latency_p95_s=0.9996)[2]
    assert found.startswith("speed    0.123 rows/s")
    assert "p50 3.45 ms  p95 1.00 s" in found


def test_two_limits_may_bind_together() -> None:
    both = Bound(cause="limit", what="200k tokens/min and 1.5k requests/min", evidence="", for_s=60)
    assert lines(80, bound=both)[3] == (
        "limits  178k/200k tpm <- binds, for 1 m 00 s  1,338/1,500 rpm <- binds"
    )


def test_batches_take_the_place_of_what_is_sent() -> None:
    use = BatchUse(made=4, running=3, rows=12_000, states={"in_progress": 2, "sent": 1})
    use.finished = 8_100
    found = lines(80, batches=use, look_in_s=12.0, in_flight=0, limits=(), bound=None)
    assert found[2] == (
        "batch   2 in_progress, 1 sent  12,000 rows submitted  8,100 of them finished"
    )
    assert "next check in 12 s" in lines(120, batches=use, look_in_s=12.0, in_flight=0)[3]


def test_nothing_in_a_name_or_an_error_moves_the_cursor() -> None:
    found = lines(80, name="in\x1b[2J\r.jsonl", last_error="a\x1b]0;title\x07b\nc")
    assert not any(character in line for line in found for character in "\x1b\r\n\x07")


def test_a_terminal_without_unicode_gets_ascii() -> None:
    found = [text_of(line) for line in screen(USUAL, "données.jsonl", 80, is_plain=True)]
    assert all(line.isascii() for line in found)
    assert "###" in found[0]
    marked = msgspec.structs.replace(USUAL, last_error="e\u0301" * 200, notices={"a": "語" * 99})
    found = [text_of(line) for line in screen(marked, "e\u0301" * 40, 80, is_plain=True)]
    assert all(line.isascii() and len(line) <= 80 for line in found)
