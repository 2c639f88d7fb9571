"""Open files: one per connection, so the process's limit must allow for the concurrency."""

from __future__ import annotations

import resource

from redline.errors import ConfigError

# Results, failures, lock, input, event loop, standard streams, and a margin.
_OTHER_FILES = 64


def raise_limit(connections: int) -> None:
    """Makes room for this many connections; the soft limit is raised as far as is needed.

    Raises ConfigError where the hard limit does not allow it.
    """
    needed = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"concurrency {connections:,} needs {needed:,} open files, and this process may have "
            f"{hard:,}",
            hint=f"lower --concurrency to {max(1, hard - _OTHER_FILES):,}, or raise `ulimit -Hn`",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
