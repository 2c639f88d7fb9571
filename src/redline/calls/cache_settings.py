"""What a user states about a cache."""

from __future__ import annotations

import os

import msgspec

from redline.errors import ConfigError

DEFAULT_BYTES = 1_000_000_000
# SQLite's own pages and indices take some; below this there is no room for answers.
LEAST_BYTES = 1_000_000


class Cache(msgspec.Struct, frozen=True):
    """Where answers are kept, and which.

    folder: None for the user's own. max_bytes: of the file in it; what was not used for longest
    goes. includes_sampled: answers that are drawn by lot are kept, too: equal requests then have
    one answer.
    """

    folder: str | os.PathLike[str] | None = None
    max_bytes: int = DEFAULT_BYTES
    includes_sampled: bool = False

    def __post_init__(self) -> None:
        if self.max_bytes < LEAST_BYTES:
            raise ConfigError(
                f"a cache needs at least {LEAST_BYTES:,} bytes, not {self.max_bytes:,}",
                hint="leave its size out for 1 GB",
            )
