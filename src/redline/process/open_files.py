"""Open files: one per connection, so the process's limit must allow for the concurrency."""

from __future__ import annotations

import os
import resource

from redline.errors import ConfigError

# Results, failures, lock, input, event loop, standard streams, and a margin.
_OTHER_FILES = 64
# Of these, what a run opens itself beside its connections, with the margin.
_OWN_FILES = 48


def raise_limit(connections: int) -> None:
    """Makes room for this many connections; the soft limit is raised as far as is needed.

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
    """How many this process has open: in a program of the user's it may be many."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0


def raise_limit_fully() -> None:
    """Allows as many open files as the system does: each connection of a server is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
