"""When a run is not worth going on with: its first rows have all failed, or it is strict."""

from __future__ import annotations

from redline.errors import CallError, ConfigError, NoEndpoint, RedlineError

# A run whose first rows are all rejected is set up wrongly; a million more would be, too.
HOPELESS_ROWS = 100


class Hope:
    """is_strict: the first failure ends the run. is_again: its rows have failed before."""

    def __init__(self, *, is_strict: bool, is_again: bool) -> None:
        self.has_succeeded = False
        self._is_strict = is_strict
        self._is_again = is_again
        self._rejected = 0

    def lost_by(self, error: CallError | NoEndpoint) -> RedlineError | None:
        """Why the run is to end with this row's error; None where it goes on."""
        if self._is_strict:
            error.hint = error.hint or "leave out --strict to go on past rows that fail"
            return error
        if self.has_succeeded or self._is_again or not isinstance(error, CallError):
            return None
        self._rejected += 1
        if self._rejected < HOPELESS_ROWS:
            return None
        return ConfigError(
            f"the first {HOPELESS_ROWS} rows all failed, the last with: {error.what}",
            where=error.where,
            hint=error.hint
            or "try a few rows with --limit 5 until they succeed, then start over with --restart",
        )
