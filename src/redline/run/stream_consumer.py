"""Who an output is to the group that reads a stream: the same consumer after every restart.

Only its files can tell which of a dead process's messages have their outcome, so what that process
was handed must come back to whoever continues them.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from redline.errors import JournalError
from redline.run.files import replace_file, write_all


def consumer_of(path: Path) -> bytes:
    """The consumer's name that `path` keeps: `HOST-PROCESS-RANDOM` of its first process. Blocks.

    The caller holds the lock. Raises JournalError where it cannot be kept.
    """
    try:
        kept = path.read_bytes().strip()
    except FileNotFoundError:
        kept = b""
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    if not kept:
        kept = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}".encode()
        name = kept
        replace_file(path, lambda fd: write_all(fd, [name, b"\n"]))
    return kept
