"""Acts as one consumer of a consumer group of a Redis stream, in steps that are atomic in Redis.

The states of a message in Redis:

  new        no consumer of the group has it
  pending    it was delivered to a consumer, which keeps it from becoming idle while it is alive
  marked     pending, and its consumer has begun to write its outcome. No other consumer may claim
             it, except with `orphans=claim`: the outcome may be on that consumer's disk, and only
             the file there can show it
  gone       acknowledged: its outcome is durable

A step, called a turn, is one call of a Lua script (group.lua), so no message changes its consumer
between the check of its consumer and the action. A turn may be repeated with the same effect,
except that messages that it delivers again count as delivered once more.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from redline.clock import SYSTEM
from redline.errors import ConfigError, JournalError
from redline.process import write_file
from redline.sources.stream_url import MOST_IDLE_S, StreamUrl
from redline.sources.text import extra

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")

PATIENCE_S = 60.0
_SCRIPT = Path(__file__).with_suffix(".lua").read_text("utf-8")
# Redis names scripts by their SHA-1, which protects nothing here.
_SHA = sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
_TIMEOUT_S = 5.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
# Lua cannot take much more than 8,000 arguments at a time.
_MOST_IDS = 1000


class Away(ConfigError):
    """Raised if Redis does not answer."""


class Entry(NamedTuple):
    """One message of the stream.

    deliveries: how many times it was delivered, including this time. fields: its names and values,
    alternating.
    """

    id: bytes
    deliveries: int
    fields: list[bytes]


class Left(NamedTuple):
    """The unfinished messages of a group.

    pending: the number of messages without an acknowledgement. orphans: how many of them were
    marked by a consumer that has gone silent. whose: the name of one such consumer.
    """

    pending: int
    orphans: int
    whose: bytes


class Group:
    """Makes the turns of one consumer. Call `open` first, and `aclose` last.

    Methods raise ConfigError if Redis refuses, or is unreachable for 60 s.
    """

    def __init__(self, url: StreamUrl) -> None:
        self._url = url
        self._consumer = b""
        self._client: Redis | None = None

    async def open(self, consumer: bytes) -> None:
        """Connects as `consumer`, and creates the stream and the group if they do not exist.

        Raises ConfigError at once if that fails, or if redis-py is not installed.
        """
        extra("redis", "redis", f"reading {self._url.name}")
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._consumer = consumer
        try:
            self._client = Redis.from_url(
                self._url.server,
                # So that responses have the same form with every version of redis-py.
                protocol=2,
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
            )
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self._url.name}: {_said(error)}") from None
        self._client.response_callbacks.pop("XREADGROUP", None)
        try:
            await self._asked(self._make, patience_s=0.0)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Closes the connections. May be called repeatedly."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def new(self, count: int, wait_s: float) -> list[Entry]:
        """Returns up to `count` messages that were never delivered, at once if there are any.

        wait_s: how long to wait for the first message, below 5 s. Raises Away if Redis does not
        answer. Messages whose delivery was lost on the way belong to this consumer: `own` returns
        them.
        """
        url = self._url
        words: list[Any] = ["XREADGROUP", "GROUP", url.group, self._consumer, "COUNT", count]
        words += ["BLOCK", max(1, round(1000 * wait_s)), "STREAMS", url.stream, ">"]
        answer = await self._asked(lambda: self._once(words), patience_s=0.0)
        entries = answer[0][1] if answer else []
        # A message that was deleted in the meantime has no fields.
        return [Entry(id, 1, fields) for id, fields in entries if fields]

    async def own(self, count: int, held: Sequence[bytes]) -> list[Entry]:
        """Returns up to `count` messages of this consumer, except the ids in `held`."""
        return await self._messages("own", count, *held)

    async def idle(self, count: int) -> list[Entry]:
        """Claims up to `count` messages of silent consumers for this consumer, and returns them."""
        url = self._url
        idle_ms = round(1000 * url.idle_s)
        return await self._messages("claim", count, idle_ms, int(url.claims_orphans))

    async def mark(self, ids: Sequence[bytes]) -> list[bool]:
        """Marks messages as being written; returns for each whether it is still this consumer's.

        Only the outcomes of messages that are still this consumer's may be written.
        """
        return [bool(one) for found in await self._turns("mark", ids) for one in found]

    async def acknowledge(self, ids: Sequence[bytes]) -> None:
        """Acknowledges the messages."""
        await self._turns("ack", ids)

    async def keep(self, ids: Sequence[bytes]) -> None:
        """Resets the idle time of the messages, so that other consumers do not claim them."""
        await self._turns("keep", ids)

    async def release(self) -> None:
        """Releases the unmarked messages, so that other consumers can claim them at once."""
        start: bytes | None = b"-"
        while start is not None:
            start = await self._turn("release", round(1000 * MOST_IDLE_S), start)

    async def left(self) -> Left:
        """Counts the unfinished messages.

        An orphan is a marked message whose consumer has been silent for ten times `idle_s`.
        """
        return Left(*await self._turn("left", round(10_000 * self._url.idle_s)))

    async def _make(self) -> None:
        from redis.exceptions import ResponseError

        url = self._url
        try:
            await self._once(["XGROUP", "CREATE", url.stream, url.group, "0", "MKSTREAM"])
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _turns(self, name: str, ids: Sequence[bytes]) -> list[Any]:
        """Makes a turn for these messages, at most 1,000 at a time; returns the answers."""
        starts = range(0, len(ids), _MOST_IDS)
        return [await self._turn(name, *ids[start : start + _MOST_IDS]) for start in starts]

    async def _messages(self, name: str, *arguments: Any) -> list[Entry]:
        return [Entry(*entry) for entry in await self._turn(name, *arguments)]

    async def _turn(self, name: str, *arguments: Any) -> Any:
        from redis.exceptions import NoScriptError

        url = self._url
        words = [2, url.stream, url.marks, name, url.group, self._consumer, *arguments]

        async def ask() -> Any:
            try:
                return await self._once(["EVALSHA", _SHA, *words])
            except NoScriptError:
                # Redis does not have the script yet, or lost it in a restart. SCRIPT LOAD would be
                # another command, which this Redis user may not be permitted to use.
                return await self._once(["EVAL", _SCRIPT, *words])

        return await self._asked(ask)

    async def _once(self, words: Sequence[Any]) -> Any:
        # redis-py has no type annotations for this method.
        client: Any = self._client
        return await client.execute_command(*words)

    async def _asked(self, ask: Callable[[], Awaitable[T]], *, patience_s: float = PATIENCE_S) -> T:
        """Returns the answer of `ask`; retries while Redis is unreachable, for up to patience_s.

        Raises Away after that, and ConfigError if Redis refuses.
        """
        from redis.exceptions import AuthenticationError, ReadOnlyError, RedisError
        from redis.exceptions import ConnectionError as Unreachable
        from redis.exceptions import TimeoutError as Late

        ends_s = SYSTEM.now_s() + patience_s
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return await ask()
            except (RedisError, OSError) as error:
                is_away = isinstance(error, (Unreachable, Late, ReadOnlyError, OSError))
                if not is_away or isinstance(error, AuthenticationError):
                    raise ConfigError(f"{self._url.name} refuses: {_said(error)}") from error
                if SYSTEM.now_s() + wait_s > ends_s:
                    raise Away(
                        f"{self._url.name} does not answer: {_said(error)}",
                        hint="check the URL, and that Redis is running there",
                    ) from error
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def consumer_of(path: Path) -> bytes:
    """Returns the consumer's name stored at `path`; makes and stores one if there is none. Blocks.

    The name is `HOST-PROCESS-RANDOM`, of the process that made it. The caller holds the output's
    lock. Raises JournalError if the name cannot be read or stored.
    """
    try:
        kept = path.read_bytes().strip()
    except FileNotFoundError:
        kept = b""
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    if kept:
        return kept
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}".encode()
    write_file(path, name + b"\n")
    return name
