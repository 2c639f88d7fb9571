"""Keeps a ledger in Redis, for the processes of several machines.

A turn is one Lua script (redis_ledger.lua), which uses Redis's own TIME, so the clocks of the
machines need not agree. The key expires when nothing in it counts any more.

A time of Redis corresponds to an interval of local time, because Redis read its clock at some
moment between the start of a request and the end of its answer. A slot may be used from the latest
local time of its start to the earliest local time of its end, so the uncertainty costs time but
never breaks a limit. Every turn narrows the interval; between turns it grows by the drift that two
clocks may have.

If Redis's clock is set back, the ledger notices this, and calls wait longer. If it is set forward
while calls are made, a window's worth of calls may be admitted again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable
from hashlib import sha1, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from redline.clock import SYSTEM, Clock
from redline.errors import ConfigError, NoEndpoint
from redline.limits.shared.schedule import STALE_S, Lease, LeaseRequest

if TYPE_CHECKING:
    from redis.asyncio import Redis

SCRIPT = Path(__file__).with_suffix(".lua").read_text("utf-8")
# Redis identifies a script by its SHA-1, which protects nothing here.
_SHA = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
_TIMEOUTS: dict[str, Any] = {"socket_timeout": 2.0, "socket_connect_timeout": 2.0}
# Two clocks drift apart by at most this share: NTP slews each by at most 500 ppm (RFC 5905, 11.3).
_DRIFT = 1e-3
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Lease)


class _Head(msgspec.Struct, array_like=True):
    """The first fields of a State."""

    limits: str
    touched_s: float


class RedisLedger:
    """Keeps the state under `name` in the Redis at `url`.

    limits: the shared limits, in words. Blocks for at most a few seconds. Raises ConfigError if
    redis-py is not installed, or if Redis does not answer, refuses, or is in use for other limits.
    """

    def __init__(self, url: str, name: str, limits: str, clock: Clock = SYSTEM) -> None:
        self._url = url
        self._where = _shown(url)
        self._key = f"redline:{{{sha256(name.encode()).hexdigest()[:24]}}}"
        self._clock = clock
        self._offset = Offset()
        # A high estimate of the time until an answer arrives; slots that begin earlier would have
        # passed by then.
        self.lead_s = 0.0
        self._check(limits)
        self._client = self._connected()

    @property
    def unsure_s(self) -> float:
        """The length in seconds of the interval of local time; 0 before the first turn."""
        low_s, high_s = self._offset.bounds_s(self._clock.now_s())
        return high_s - low_s if low_s > -math.inf else 0.0

    def local_s(self, ledger_s: float) -> tuple[float, float]:
        """Returns the earliest and the latest local time that a ledger time can mean."""
        low_s, high_s = self._offset.bounds_s(self._clock.now_s())
        return ledger_s + low_s, ledger_s + high_s

    def stamp_s(self, local_s: float) -> float:
        """Returns the ledger time of a local time, or a later one."""
        return local_s - self._offset.bounds_s(self._clock.now_s())[0]

    async def transact(self, request: LeaseRequest) -> Lease:
        """Returns the lease. Raises NoEndpoint if Redis does not answer in time, or refuses."""
        from redis.exceptions import NoScriptError, RedisError

        blob = _ENCODER.encode(request)
        began_s = self._clock.now_s()
        try:
            try:
                answer = await _reply(self._client.evalsha(_SHA, 1, self._key, blob))
            except NoScriptError:
                # A Redis that was restarted has forgotten the script.
                answer = await _reply(self._client.eval(SCRIPT, 1, self._key, blob))
        except (RedisError, OSError, TimeoutError) as error:
            raise NoEndpoint(
                f"the Redis server of the shared limits, {self._where}, cannot be used: "
                f"{_said(error)}",
                hint="check that Redis is running and can be reached from here",
            ) from error
        lease = _DECODER.decode(answer)
        ended_s = self._clock.now_s()
        self._offset.saw(lease.now_s, began_s, ended_s)
        # Falls slowly but rises at once, so that the estimate is rarely too low.
        self.lead_s = max(ended_s - began_s, self.lead_s * 0.9)
        return lease

    async def aclose(self) -> None:
        """Closes the connection. May be called again."""
        await self._client.aclose()

    def _connected(self) -> Redis:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        # If the client repeated a turn by itself, the slots would be booked twice.
        return Redis.from_url(self._url, retry=Retry(NoBackoff(), 0), **_TIMEOUTS)

    def _check(self, limits: str) -> None:
        try:
            from redis import Redis
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
            from redis.retry import Retry
        except ImportError as error:
            raise ConfigError(
                "limits shared through Redis need redis-py, which is not installed",
                hint="pip install 'redline[redis]'",
            ) from error
        try:
            with Redis.from_url(self._url, retry=Retry(NoBackoff(), 0), **_TIMEOUTS) as client:
                client.script_load(SCRIPT)
                blob = cast("bytes | None", client.get(self._key))
                seconds, micros = cast("tuple[int, int]", client.time())
        except (RedisError, OSError, ValueError) as error:
            raise ConfigError(
                f"limits cannot be shared through {self._where}: {_said(error)}",
                hint="check that the URL has the form redis://host:6379/0, and that Redis is "
                "running there",
            ) from error
        if blob is None:
            return
        try:
            state = msgspec.msgpack.decode(blob, type=_Head)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"the key {self._key} in {self._where} does not hold shared limits",
                hint="delete this key, or share through another database",
            ) from error
        if state.limits != limits and seconds + micros / 1e6 - state.touched_s < STALE_S:
            raise ConfigError(
                f"{self._where} is in use for {state.limits}, not for {limits}",
                hint="set the same limits in every process, or share through another database",
            )


class Offset(msgspec.Struct):
    """The interval of the seconds that must be added to a ledger time to get the local time."""

    _low_s: float = -math.inf
    _high_s: float = math.inf
    _seen_s: float = 0.0

    def bounds_s(self, now_s: float) -> tuple[float, float]:
        """Returns the ends of the interval at the local time `now_s`."""
        drift_s = max(0.0, now_s - self._seen_s) * _DRIFT
        return self._low_s - drift_s, self._high_s + drift_s

    def saw(self, ledger_s: float, began_s: float, ended_s: float) -> None:
        """Records that the ledger's clock read `ledger_s` at some time between two local times."""
        low_s, high_s = self.bounds_s(ended_s)
        drift_s = (ended_s - began_s) * _DRIFT
        least_s, most_s = began_s - ledger_s - drift_s, ended_s - ledger_s + drift_s
        if low_s > most_s or high_s < least_s:
            # One of the clocks was set: earlier knowledge is invalid.
            low_s, high_s = least_s, most_s
        self._low_s, self._high_s = max(low_s, least_s), min(high_s, most_s)
        self._seen_s = ended_s


async def _reply(command: Any) -> bytes:
    # redis-py's type of a result covers both of its clients, the async and the blocking one.
    return cast(bytes, await cast("Awaitable[Any]", command))


def _shown(url: str) -> str:
    """Returns the URL without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
