"""Raises the limit on open files, because each connection in use is an open file."""

from __future__ import annotations

import os
import resource

from redline.errors import ConfigError

# Room for other files: results, failures, lock, input, event loop, standard streams, and a margin.
_OTHER_FILES = 64
# Of this room, the part for files that a run itself has yet to open, and for the margin.
_OWN_FILES = 48
# More than any process needs: used if the system has no limit, or a far higher one.
_MOST_FILES = 1 << 20


def raise_limit(connections: int) -> None:
    """Raises the soft limit on open files to the hard limit, at most to 1,048,576 if that suffices.

    connections: how many may be in use at once, without idle ones. Raises ConfigError if the hard
    limit is too low for them.
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
    """Counts the open files of this process; a user's program may have many."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0


def raise_limit_fully() -> None:
    """Raises the soft limit on open files to the hard limit, for a server's connections.

    Raises it to at most 1,048,576 files.
    """
    _raise(0)


def _raise(needed: int) -> None:
    """Raises the soft limit to the hard limit, at most _MOST_FILES, but at least to `needed`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(needed, _MOST_FILES)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        # macOS has a further limit, which may be lower than the hard limit.
        if soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
