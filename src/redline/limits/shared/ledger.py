"""Opens the ledger through which processes share limits: a file on one machine, or Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from redline.clock import SYSTEM, Clock
from redline.errors import ConfigError
from redline.limits.rule import Limits
from redline.limits.shared.file_ledger import FileLedger, check_path
from redline.limits.shared.schedule import Lease, LeaseRequest, described


class Ledger(Protocol):
    """Keeps the state of limits/shared/schedule.py. Ledger times are of the ledger's own clock."""

    @property
    def lead_s(self) -> float:
        """The usual time in seconds until the ledger's answer arrives."""

    @property
    def unsure_s(self) -> float:
        """The difference in seconds between the two times that `local_s` returns."""

    def local_s(self, ledger_s: float) -> tuple[float, float]:
        """Returns the earliest and the latest local time that a ledger time can mean."""

    def stamp_s(self, local_s: float) -> float:
        """Returns the ledger time of a local time, or a later one."""

    async def transact(self, request: LeaseRequest) -> Lease:
        """Returns the lease. Raises NoEndpoint if the ledger does not answer."""

    async def aclose(self) -> None: ...


def open_ledger(target: str, limits: Limits, name: str, clock: Clock = SYSTEM) -> Ledger:
    """Opens the ledger at `target`: the path of a file, or a redis:// or rediss:// URL.

    name: what is limited, such as a base URL, with a digest of the key if limits apply per key.
    Blocks for at most a few seconds. Raises ConfigError if the ledger cannot be used, or is in use
    for other limits.
    """
    limits.check_shared()
    if "://" not in target:
        return FileLedger(Path(target), name, described(limits), clock)
    _check_url(target)
    # redis-py is an extra, and is imported only when it is used.
    from redline.limits.shared.redis_ledger import RedisLedger

    return RedisLedger(target, name, described(limits), clock)


def check_ledger(limits: Limits) -> None:
    """Raises ConfigError if `limits` certainly cannot be shared.

    Makes no connection, creates no file, and does not read an existing one.
    """
    limits.check_shared()
    if "://" in limits.share:
        _check_url(limits.share)
    else:
        check_path(Path(limits.share))


def _check_url(url: str) -> None:
    """Raises ConfigError unless the URL is a Redis URL; the error shows no part of the URL."""
    what, hint = "the URL of the shared limits is not valid", "for example redis://host:6379/0"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(what, hint=hint) from None
    if parts.scheme not in ("redis", "rediss"):
        raise ConfigError("the URL of the shared limits is not a Redis URL", hint=hint)
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ConfigError(
            f"{what}: an @ after the host",
            hint="in a password, write / as %2F, ? as %3F, # as %23 and @ as %40",
        )
