"""Counts the rows of the whole input: in total, done, failed and left."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

from redline.errors import RedlineError
from redline.process import counted

# The pause after counting for about a millisecond, so that the event loop is not kept waiting.
_PAUSE_S = 0.001
_LAST_READ_S = 1.0


class InputCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the rows of the whole input, over all runs: rows = done + failed + left + untried.

    rows, left: lower bounds if `is_exact` is False, such as for a pipe.
    untried: rows without an outcome that `retry_failed` leaves out.
    """

    rows: int
    done: int
    failed: int
    is_exact: bool = True
    untried: int = 0

    @property
    def left(self) -> int:
        """Rows that this command would still send."""
        return max(0, self.rows - self.done - self.failed - self.untried)

    def text(self, here: int | None = None) -> str:
        """Returns a text like `200,000 rows: 279 done, 42 failed, 199,679 left`.

        here: rows done by this run, to show how many were done before; None to leave that out.
        """
        least = "" if self.is_exact else "at least "
        done_before = 0 if here is None else self.done - here
        before = f" ({done_before:,} before)" if done_before > 0 else ""
        parts = [f"{self.done:,} done{before}", f"{self.failed:,} failed"]
        if self.is_exact or self.left:
            parts[0] = f"{least}{counted(self.rows, 'row')}: {parts[0]}"
            parts.append(f"{least}{self.left:,} left")
        if self.untried:
            parts.append(f"{self.untried:,} untried")
        return ", ".join(parts)


class RowCount:
    """Counts the rows of an input in a thread of its own, while the run reads them.

    known_rows: the number of rows in the input's metadata; None if the rows have to be counted.
    counts: yields the number of rows in each part of the input in turn; None for an input that is
    not read a second time, such as a pipe. limit: the maximum number of rows that count. samples:
    how many times each of these rows counts.
    """

    def __init__(
        self,
        known_rows: int | None,
        counts: Iterator[int] | None,
        *,
        limit: int | None = None,
        samples: int = 1,
    ) -> None:
        self._counts = counts if known_rows is None else None
        self._rows = known_rows or 0
        self._is_whole = known_rows is not None
        self._limit = limit
        self._samples = samples
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._is_over = False

    @property
    def rows(self) -> int:
        """The number of all rows if `is_exact`, otherwise of those counted so far."""
        rows = self._rows if self._limit is None else min(self._rows, self._limit)
        return rows * self._samples

    @property
    def is_exact(self) -> bool:
        """Whether the count has reached the end of the input or the limit."""
        return self._is_whole or (self._limit is not None and self._rows >= self._limit)

    @property
    def is_counting(self) -> bool:
        """Whether more rows may be counted."""
        return self._counts is not None and not (self._is_over or self.is_exact)

    def start(self) -> None:
        """Starts the counting thread, unless the number of rows is known or cannot be counted."""
        if self._counts is not None:
            self._thread = threading.Thread(
                target=self._count, args=(self._counts,), name="redline-rows", daemon=True
            )
            self._thread.start()

    def finish(self, wait_s: float) -> None:
        """Waits up to `wait_s` seconds for the count to be complete, then ends it. Blocks."""
        if self._thread is not None:
            self._thread.join(wait_s)
            self._is_closed.set()
            # The counting thread closes the input, unless a read of the input hangs.
            self._thread.join(_LAST_READ_S)

    def _count(self, counts: Iterator[int]) -> None:
        try:
            for rows in counts:
                self._rows += rows
                if self.is_exact or self._is_closed.wait(_PAUSE_S):
                    return
            self._is_whole = True
        except (RedlineError, OSError):
            # The run reads the same input, and reports its errors.
            return
        finally:
            self._is_over = True
            close = getattr(counts, "close", None)
            if close is not None:
                close()
