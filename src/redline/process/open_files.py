"""Limits of open files: each connection is one, so the limit must allow for the concurrency."""

from __future__ import annotations

import os
import resource

from redline.errors import ConfigError

# Results, failures, lock, input, event loop, standard streams, and a margin.
_OTHER_FILES = 64
# Of these, the files that a run itself opens, with the margin.
_OWN_FILES = 48
# More than any process needs: used if the system states no limit, or a far higher one.
_MOST_FILES = 1 << 20


def raise_limit(connections: int) -> None:
    """Raises the soft limit as far as the hard one allows.

    connections: the number that may be in use at once; idle ones come on top of these. Raises
    ConfigError if the hard limit is too low for those in use.
    """
    others = max(_OTHER_FILES, _open_files() + _OWN_FILES)
    needed = connections + others
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        lower = f"lower --concurrency to {hard - others:,}, or " if hard > others else ""
        raise ConfigError(
            f"concurrency {connections:,} needs {needed:,} open files, but this process may "
            f"open only {hard:,}",
            hint=f"{lower}raise `ulimit -Hn`",
        )
    _raise(needed)


def _open_files() -> int:
    """Counts the open files of this process, of which a user's program may have many."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0


def raise_limit_fully() -> None:
    """Raises the soft limit to the hard one: each connection of a server is an open file."""
    _raise(0)


def _raise(needed: int) -> None:
    """Raises the soft limit to the hard one, within bounds, but to `needed` in any case."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(needed, _MOST_FILES)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        # macOS also has a limit of its own, which may be lower.
        if soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
