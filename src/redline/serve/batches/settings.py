"""How much of files and batches a server takes, and how long it keeps them."""

from __future__ import annotations

import re

import msgspec

from redline.apis import APIS, MOST_FILE_BYTES, MOST_LINES
from redline.calls import RetryPolicy
from redline.errors import ConfigError

DAY_S = 86_400.0
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WINDOW = re.compile(r"([0-9]{1,6})([smhd])")


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and times; all above 0.

    endpoints: the urls that a batch may ask. most_file_bytes: of an upload. most_lines: of a batch.
    tenant_files, tenant_bytes: stored for a tenant, output included; beyond that, nothing is
    uploaded. tenant_batches: of a tenant that are not over. tenant_uploads: at once. kept_s: after
    it, files expire and batches that are over are forgotten. most_window_s: the longest completion
    window.
    running: batches that run at once, tenant_running of one tenant; others wait. in_flight: calls
    that the backend gets at once of one tenant to one model; fewer if it has fewer slots. priority:
    of these calls. retry: of a line. cancel_s: for the calls in flight of a cancelled batch;
    grace_s: when the server ends.
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
        """A completion window such as `24h`, in seconds; None for what is none."""
        found = _WINDOW.fullmatch(text)
        window_s = float(int(found[1]) * _SECONDS[found[2]]) if found else 0.0
        return window_s if 0 < window_s <= self.most_window_s else None
