"""The interface through which calls to an endpoint use a limiter and report to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from redline.limits.rule import Cost, Kind, Rate
from redline.limits.server import Stated
from redline.limits.wait.grant import Grant


class RateLimiter(Protocol):
    """The rate limits of one endpoint: when a call may go, and what the endpoint's answers change.

    `Limiter` keeps the limits of this process: headers and 429s change them, and a search finds
    them. `SharedLimiter` keeps those of several processes: only their ledger changes them, so it
    ignores what headers state.
    """

    @property
    def is_unlimited(self) -> bool:
        """Whether no limit is set, and no answer can set one: answers need not be reported."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes keep the same limits, so that it may be parked by their calls."""

    @property
    def counts_tokens(self) -> bool:
        """A token limit is set, so estimates matter."""

    @property
    def easy_tokens(self) -> int:
        """While limits are free, a call may take this much by a bound (`Cost.is_bound`); 0 if none.

        If they are not, `acquire_now` gives nothing for a bound: the call must be estimated.
        """

    @property
    def waiting(self) -> int:
        """Callers in the queue."""

    @property
    def guard_s(self) -> float:
        """Seconds added to each window now."""

    def most(self, kind: Kind) -> float:
        """The largest amount that one call could ever be granted; inf if nothing limits it."""

    def check(self, cost: Cost) -> None:
        """Raises OverLimit when `cost` could never be granted."""

    def room_s(self, cost: Cost, now_s: float) -> float:
        """Seconds until `cost` could be granted after the callers in the queue; books nothing.

        Estimated as if each of them cost the same.
        """

    def binds(self, cost: Cost, now_s: float) -> str:
        """The limit that holds a call of `cost`, in words; empty if none does."""

    def holding(self, now_s: float) -> list[tuple[Kind, Rate | None]]:
        """The limits that hold the head of the queue, the strictest first; empty if none does.

        A rate is None while it is searched for, or if it is not known here.
        """

    def used(self, now_s: float) -> list[tuple[Kind, Rate, int]]:
        """Each limit, and what counts against it now, as far as this process knows."""

    @property
    def parked_until_s(self) -> float:
        """No grants are given before this time (monotonic); -inf if it was never parked."""

    @property
    def next_s(self) -> float:
        """When the next grant may be given (monotonic) to a present waiter; -inf if none waits."""

    def acquire_now(self, cost: Cost) -> Grant | None:
        """A grant if `cost`, which must have been checked, may be sent without waiting."""

    async def acquire(self, cost: Cost | int = ..., priority: int = 0) -> Grant:
        """A grant for one request of `cost`; waits for its turn. priority: lower goes first.

        Raises OverLimit at once when it could never be granted.
        """

    def park(self, until_s: float) -> bool:
        """Gives no grants before `until_s` (monotonic). True if that is later than before."""

    def shook_hands(self, took_s: float) -> None:
        """Records that a connection to the endpoint was made in `took_s`."""

    def heard(self, stated: Sequence[Stated], grant: Grant) -> None:
        """Adjusts to the limits that the answer to the grant's call states."""

    def accepted(self, now_s: float) -> bool:
        """Counts an answer other than a 429; False if `answered` must be called for it instead."""

    def answered(self, now_s: float, *, is_limited: bool) -> None:
        """Counts the answer to a call. is_limited: it was a 429."""

    @property
    def is_searched(self) -> bool:
        """A request rate is searched for, until a header states one."""

    def search(self, rates: Sequence[Rate]) -> None:
        """Sets request rates that hold besides the user's own, while a search continues."""

    def found_rates(self) -> list[tuple[Kind, Rate]]:
        """The limits in force that the user did not state."""

    def keep_sends(self, folder: Path, name: str, old_name: str = "") -> None:
        """Counts the sends that an earlier process kept in `folder`, and keeps its own there.

        name: of the endpoint, as a part of file names. old_name: read if `name` has no files.
        """

    async def aclose(self) -> None:
        """Closes files and connections. May be repeated."""
