"""Every error says what, where and what next, and survives a trip to another process."""

from __future__ import annotations

import copy
import pickle
import time

import pytest

from redline import errors
from redline.errors import (
    BadReply,
    BudgetSpent,
    CallError,
    ConfigError,
    Disconnected,
    Final,
    JournalError,
    NoEndpoint,
    OverLimit,
    RateLimited,
    RedlineError,
    Refused,
    Rejected,
    Retryable,
    ServerFailed,
    TimedOut,
    TooManyFailures,
    Unpaid,
    Unpriced,
    nearest,
)

KINDS = {
    ConfigError: "config_error",
    JournalError: "journal_error",
    TooManyFailures: "too_many_failures",
    NoEndpoint: "no_endpoint",
    RateLimited: "rate_limited",
    ServerFailed: "server_failed",
    Disconnected: "disconnected",
    BadReply: "bad_reply",
    Rejected: "rejected",
    OverLimit: "over_limit",
    Refused: "refused",
    Unpaid: "unpaid",
    BudgetSpent: "budget_spent",
    Unpriced: "unpriced",
}


@pytest.mark.parametrize(("error", "kind"), KINDS.items())
def test_each_error_has_its_name_in_result_files(error: type[RedlineError], kind: str) -> None:
    assert error("x").kind == kind


def test_the_tree_is_the_one_drawn_at_the_top_of_the_file() -> None:
    drawn: list[tuple[int, str]] = []
    for line in str(errors.__doc__).splitlines():
        name = line.split()[0] if line.split() else ""
        if isinstance(getattr(errors, name, None), type):
            drawn.append(((len(line) - len(line.lstrip())) // 2, name))
    for index, (depth, name) in enumerate(drawn[1:], 1):
        parent = next(above for level, above in reversed(drawn[:index]) if level < depth)
        assert getattr(errors, name).__base__ is getattr(errors, parent), name
    public = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert public - {"Callable", "ClassVar", "Iterable"} == {name for _, name in drawn}


@pytest.mark.parametrize("error", [NoEndpoint, Refused, Unpaid])
def test_what_no_other_row_can_pass_stops_the_run(error: type[RedlineError]) -> None:
    assert error("x").stops_run


@pytest.mark.parametrize("error", [Retryable, Final, Rejected, OverLimit, ConfigError, CallError])
def test_the_others_do_not(error: type[RedlineError]) -> None:
    assert not error("x").stops_run


@pytest.mark.parametrize(
    ("where", "hint", "text"),
    [
        ("", "", "it broke"),
        ("row 3", "", "it broke (row 3)"),
        ("", "mend it", "it broke: mend it"),
        ("row 3", "mend it", "it broke (row 3): mend it"),
    ],
)
def test_on_one_line(where: str, hint: str, text: str) -> None:
    assert str(RedlineError("it broke", where=where, hint=hint)) == text


def test_a_body_that_is_slow_to_read_is_read_once_and_before_pickling() -> None:
    read = []
    error = Rejected("no", status=400)
    assert error.body == b""
    error.keep_body(lambda: read.append(1) or b"why")  # type: ignore[func-returns-value]
    assert pickle.loads(pickle.dumps(error)).body == error.body == b"why"
    assert read == [1]


@pytest.mark.parametrize(
    ("phase", "after_s", "what"),
    [
        ("connect", 10.0, "no connection within 10 s (connect timeout)"),
        ("first_byte", 0.5, "no first byte within 0.5 s (first_byte timeout)"),
        ("attempt", 600.0, "no complete answer within 600 s (attempt timeout)"),
        ("row", None, "no success in time (row timeout)"),
        ("run", 3600.0, "the run did not end within 3600 s (run timeout)"),
    ],
)
def test_a_timeout_names_its_clock(phase: str, after_s: float | None, what: str) -> None:
    error = TimedOut(phase, after_s)
    assert error.what == what
    assert (error.phase, error.after_s, error.kind) == (phase, after_s, "timed_out")


@pytest.mark.parametrize(
    "error",
    [
        RateLimited("full", where="endpoint a", hint="wait", status=429, retry_after_s=2.5),
        TimedOut("connect", 10.0, where="endpoint a"),
        ConfigError("bad", hint="mend"),
        NoEndpoint("down"),
    ],
)
@pytest.mark.parametrize("trip", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_survive_pickling_and_copying(error: RedlineError, trip: object) -> None:
    assert callable(trip)
    other = trip(error)
    assert type(other) is type(error)
    assert vars(other) == vars(error)
    assert str(other) == str(error)


def test_a_disconnection_remembers_whether_anything_was_sent() -> None:
    error = Disconnected("no connection")
    error.was_sent = False
    assert not copy.copy(error).was_sent
    assert Disconnected("x").was_sent


def test_the_nearest_known_name() -> None:
    assert nearest("conccurency", ["concurrency", "model"]) == "did you mean concurrency?"
    assert nearest("zzz", ["concurrency", "model"]) == ""


def test_a_long_name_costs_no_more_than_a_short_one() -> None:
    def cpu_s(name: str) -> float:
        begun_s = time.process_time()
        for _ in range(20):
            assert nearest(name, ["/v1/chat/completions", "/v1/embeddings"]) == ""
        return time.process_time() - begun_s

    short, long = ([cpu_s("x" * length) for _ in range(5)] for length in (20, 50_000))
    # Compared, it would cost 2,500 times as much.
    assert min(long) < 10 * min(short)
