"""Limits of open files: each connection is one, so the limit must allow for the concurrency."""

from __future__ import annotations

import os
import resource

from redline.errors import ConfigError

# Results, failures, lock, input, event loop, standard streams, and a margin.
_OTHER_FILES = 64
# Of these, the files that a run itself opens, with the margin.
_OWN_FILES = 48


def raise_limit(connections: int) -> None:
    """Raises the soft limit as far as this many connections need.

    Raises ConfigError if the hard limit does not allow it.
    """
    others = max(_OTHER_FILES, _open_files() + _OWN_FILES)
    needed = connections + others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"concurrency {connections:,} needs {needed:,} open files, and this process may have "
            f"{hard:,}",
            hint=f"lower --concurrency to {max(1, hard - others):,}, or raise `ulimit -Hn`",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _open_files() -> int:
    """Counts the open files of this process, of which a user's program may have many."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0


def raise_limit_fully() -> None:
    """Raises the soft limit to the hard one: each connection of a server is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
