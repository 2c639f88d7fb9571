"""When a run ends because it is of no use to go on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from redline.calls import Call
from redline.errors import ConfigError, RedlineError, Rejected, TooManyFailures
from redline.job.settings import Job
from redline.job.work import HOPELESS_ROWS, LEAST_ROWS, WINDOW_ROWS, Failures, longest_wait
from redline.waist import Load
from support.catching import assert_caught


async def unused(row: object) -> None:
    """Stands for the job's call."""


def job(**settings: Any) -> Job:
    return Job(rows=[], call=unused, **settings)


def ended_at(failures: Any, rows: Iterable[bool]) -> tuple[int, RedlineError | None]:
    """After how many rows the run ended, and why; True is a row that succeeds."""
    succeeded = number = 0
    for number, is_success in enumerate(rows, 1):
        if is_success:
            succeeded += 1
        elif (why := failures.failed(Rejected("400"), succeeded)) is not None:
            return number, why
    return number, None


def in_turn(share: float, rows: int) -> Iterator[bool]:
    """Failures at this share, as evenly as whole rows allow."""
    return (math.floor(row * share) == math.floor((row - 1) * share) for row in range(1, rows + 1))


def goods(rows: int) -> Iterator[bool]:
    return itertools.repeat(True, rows)


class SinceTheBeginning:
    """Counts all failures of the run."""

    def __init__(self, job: Job) -> None:
        self.failures, self.most = 0, job.stop_at_error_rate or 1.0

    def failed(self, error: Rejected, succeeded: int) -> RedlineError | None:
        self.failures += 1
        ended = succeeded + self.failures
        if ended < LEAST_ROWS or self.failures < self.most * ended:
            return None
        return TooManyFailures("")


def test_a_long_run_that_begins_to_fail_is_ended_within_a_window() -> None:
    def check(kind: Any) -> None:
        rows = itertools.chain(goods(100_000), itertools.repeat(False, 10_000))
        at, why = ended_at(kind(job(stop_at_error_rate=0.2)), rows)
        assert at == 100_000 + WINDOW_ROWS // 5
        assert isinstance(why, TooManyFailures)

    assert_caught(check, Failures, SinceTheBeginning)


def test_what_failed_before_the_window_is_forgotten() -> None:
    burst = [*goods(700), *itertools.repeat(False, 150), *goods(1000)]
    rows = itertools.chain.from_iterable(itertools.repeat(burst, 20))
    assert ended_at(Failures(job(stop_at_error_rate=0.2)), rows) == (37_000, None)


@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
def test_the_share_itself_ends_the_run_and_less_does_not(share: float) -> None:
    most = {"stop_at_error_rate": share, "retry_failed": False}
    # The first row succeeds: otherwise the rule of the first hundred comes first.
    rows = [True, *in_turn(share, 10_000)]
    at, why = ended_at(Failures(job(**most)), rows)
    assert LEAST_ROWS <= at <= WINDOW_ROWS + LEAST_ROWS
    assert isinstance(why, TooManyFailures)
    fewer = [True, *in_turn(share * 0.9, 10_000)]
    assert ended_at(Failures(job(**most)), fewer)[1] is None


def test_a_few_rows_are_no_rate() -> None:
    rows = [True, *itertools.repeat(False, LEAST_ROWS - 2)]
    assert ended_at(Failures(job(stop_at_error_rate=0.01)), rows)[1] is None
    assert ended_at(Failures(job(stop_at_error_rate=0.01)), [*rows, False])[0] == LEAST_ROWS


def test_without_a_rate_only_the_first_hundred_end_a_run() -> None:
    at, why = ended_at(Failures(job()), itertools.repeat(False, 1000))
    assert (at, type(why)) == (HOPELESS_ROWS, ConfigError)
    rows = [True, *itertools.repeat(False, 5000)]
    assert ended_at(Failures(job()), rows)[1] is None


def test_a_job_may_go_on_after_the_first_hundred() -> None:
    failures = Failures(job(ends_if_hopeless=False))
    assert ended_at(failures, itertools.repeat(False, 1000))[1] is None


def test_with_a_rate_the_first_hundred_end_a_run_as_before() -> None:
    at, why = ended_at(Failures(job(stop_at_error_rate=0.5)), itertools.repeat(False, 1000))
    assert (at, type(why)) == (HOPELESS_ROWS, ConfigError)


def test_the_message_has_the_numbers() -> None:
    _, why = ended_at(Failures(job(stop_at_error_rate=0.2)), [*goods(900), *[False] * 400])
    assert why is not None
    assert why.what == (
        "200 of the last 1,000 rows failed, and --stop-at-error-rate is 20 %; the last with: 400"
    )


def wait(next_s: float, *again_s: float, most_s: float = 600.0) -> float | None:
    """For how long the run would have waited, at 1,000 s; None if it goes on."""
    in_hand = [Call(again_s=each) for each in again_s]
    found = longest_wait(Load(next_s=next_s), in_hand, most_s, 1000.0)
    return None if found is None else found.wait_s


NEVER = -math.inf


@pytest.mark.parametrize(
    ("next_s", "again_s", "expected"),
    [
        (NEVER, [NEVER], None),
        (1000.0 + 600.0, [NEVER], None),
        (1000.0 + 601.0, [NEVER], 601.0),
        # A row that was asked to wait for longer than another one.
        (NEVER, [5000.0, NEVER], None),
        (NEVER, [5000.0, 4000.0], 3000.0),
        # It is tried again soon, and then waits for the endpoint.
        (9000.0, [1001.0], 8000.0),
        (math.inf, [NEVER], None),
    ],
)
def test_the_run_waits_for_what_comes_first(
    next_s: float, again_s: list[float], expected: float | None
) -> None:
    assert wait(next_s, *again_s) == expected
