"""Who an output is to the group that reads a stream: the same consumer after every restart.

Only its files can tell which of a dead process's messages have their outcome, so what that process
was handed must come back to whoever continues them.
"""

from __future__ import annotations

import os
import secrets
import socket

from redline.errors import JournalError
from redline.run.results_file import replace_file, write_all
from redline.run.settings import Output


def consumer_of(output: Output) -> bytes:
    """The output's consumer: `HOST-PROCESS-RANDOM` of whoever was first, kept beside it. Blocks.

    The caller holds the lock. Raises JournalError where it cannot be kept.
    """
    path = output.state_path / "consumer"
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
