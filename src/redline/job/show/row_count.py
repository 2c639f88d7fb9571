"""Counts the rows of the whole input: in total, done, failed and left."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

from redline.errors import RedlineError
from redline.process import counted

# The pause after each stretch of about a millisecond, so that the event loop is not kept waiting.
_PAUSE_S = 0.001
_LAST_READ_S = 1.0


class InputCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The whole input, by this run and earlier ones: rows = done + failed + left + untried.

    rows: a lower bound if `is_exact` is False, such as for a pipe; `left` likewise.
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
    """Counts the rows of an input in a thread of its own, beside the run that reads them.

    known_rows: from the input's metadata, None if it has to be counted. counts: yields numbers of
    rows that add up to all; None for an input that can only be read once. limit: rows after the
    first N do not count. samples: each row counts that many times.
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
        """All rows if `is_exact`, otherwise those counted so far."""
        rows = self._rows if self._limit is None else min(self._rows, self._limit)
        return rows * self._samples

    @property
    def is_exact(self) -> bool:
        """Whether the end of the input, or its limit, has been counted."""
        return self._is_whole or (self._limit is not None and self._rows >= self._limit)

    @property
    def is_counting(self) -> bool:
        """Whether more rows may be counted."""
        return self._counts is not None and not (self._is_over or self.is_exact)

    def start(self) -> None:
        """Begins to count."""
        if self._counts is not None:
            self._thread = threading.Thread(
                target=self._count, args=(self._counts,), name="redline-rows", daemon=True
            )
            self._thread.start()

    def finish(self, wait_s: float) -> None:
        """Waits up to `wait_s` for the rest of the count, then ends it. Blocks."""
        if self._thread is not None:
            self._thread.join(wait_s)
            self._is_closed.set()
            # The counting closes the input, unless a read of it hangs.
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
