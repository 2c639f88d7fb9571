"""Defines the bounds on files and batches, and how long a server keeps them."""

from __future__ import annotations

import re
from functools import partial

import msgspec

from redline.apis import APIS, MOST_FILE_BYTES, MOST_LINES
from redline.calls import RetryPolicy
from redline.errors import ConfigError
from redline.job.settings import Option, fields_in, values

DAY_S = 86_400.0
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WINDOW = re.compile(r"([0-9]{1,6})([smhd])")


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and times of files and batches; all are above 0, except `priority`.

    endpoints: the paths of the APIs that a batch may use. most_file_bytes: the largest upload.
    most_lines: the most lines in a batch. tenant_files, tenant_bytes: the most files and bytes
    stored for a tenant, outputs included; uploads beyond them are refused. tenant_batches: the most
    unfinished batches of a tenant. tenant_uploads: the most concurrent uploads of a tenant.
    kept_s: the age at which files expire, unless the client requests a lower one, and how long
    after the end of its window a batch is forgotten. most_window_s: the longest completion window.

    running: the most batches that run at once, with at most `tenant_running` of one tenant. Further
    batches wait, but the first batch of a tenant never does.

    in_flight: the most calls of one tenant to one model that the backend gets at once; fewer if the
    backend has few slots. priority: the priority of these calls; a gateway sets that of its class
    for batches. retry: how failed lines are retried. cancel_s: how long calls in flight may still
    take if their batch is cancelled or expires; grace_s: the same at a shutdown.
    """

    endpoints: tuple[str, ...] = tuple(api.path for api in APIS)
    most_file_bytes: int = MOST_FILE_BYTES
    most_lines: int = MOST_LINES
    tenant_files: int = 10_000
    tenant_bytes: int = 20 * 2**30
    tenant_batches: int = 100
    tenant_uploads: int = 4
    kept_s: float = 30 * DAY_S
    most_window_s: float = 7 * DAY_S
    running: int = 8
    tenant_running: int = 4
    in_flight: int = 512
    priority: int = 20
    retry: RetryPolicy = RetryPolicy()
    cancel_s: float = 60.0
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and name != "priority" and value <= 0:
                raise ConfigError(f"{name} of batches must be above 0, not {value:g}")

    def window_s(self, text: str) -> float | None:
        """Returns a completion window such as `24h`, in seconds.

        Returns None if the text is not a window, or if the window is 0 or too long.
        """
        found = _WINDOW.fullmatch(text)
        window_s = float(int(found[1]) * _SECONDS[found[2]]) if found else 0.0
        return window_s if 0 < window_s <= self.most_window_s else None


_MOST_KEPT_S = 3650 * DAY_S
_MOST_NUMBER = 1_000_000


def parse_batches(table: object, file: str) -> BatchSettings:
    """Returns the default bounds of batches, overridden by the table [serve.batches].

    file: the file's name, for errors. Raises ConfigError, which names the file and the table.
    """
    return BatchSettings(**fields_in(table, "serve.batches", file, BATCH_OPTIONS))


def _size(text: str, name: str) -> int:
    size = values.size(text, name)
    if size == 0:
        raise ConfigError(f"{name} must be above 0", hint="for example 500m or 2g")
    return size


_number = partial(values.whole, least=1, most=_MOST_NUMBER)
_time = partial(values.duration, most_s=_MOST_KEPT_S)
BATCH_OPTIONS = tuple(
    Option(key=key, field=field, read=read)
    for key, field, read in (
        ("file_size", "most_file_bytes", _size),
        ("stored", "tenant_bytes", _size),
        ("lines", "most_lines", _number),
        ("files", "tenant_files", _number),
        ("queued", "tenant_batches", _number),
        ("uploads", "tenant_uploads", _number),
        ("running", "running", _number),
        ("running_each", "tenant_running", _number),
        ("kept", "kept_s", _time),
        ("longest_window", "most_window_s", _time),
    )
)
