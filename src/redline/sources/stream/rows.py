"""Reads rows from a Redis stream, and acknowledges a message only once its outcome is durable.

The states of a message in one process, which is one consumer of the group:

  new, or idle       it is read if there is room: for twice as many messages as slots
  held               a heartbeat keeps it from becoming idle, so no other consumer claims it
  permitted          it has its outcome, is still this consumer's, and is marked: now its line may
                     be written, and no other consumer claims it any more
  durable            the journal has synced its line: it is acknowledged

If a process dies while it holds a message that is not acknowledged, the message stays pending.
Before the mark, another consumer claims it once it has been idle for long enough. After the mark,
the next run with the same output gets it first: that run finds the message's line in the file, or
processes the message. With `orphans=claim`, other consumers also claim idle messages with a mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from redline.calls import Outcome
from redline.clock import SYSTEM
from redline.errors import ConfigError
from redline.process import counted, in_thread
from redline.sources.iterable import AsyncRows
from redline.sources.row import (
    BATCH_ROWS,
    MAX_ROW_BYTES,
    Row,
    custom_id,
    digest,
    long_row,
    not_an_object,
)
from redline.sources.stream.group import Away, Entry, Group, consumer_of
from redline.sources.stream_url import StreamUrl, message_key

# How long a read waits for the next message; the short wait is for `until_empty`, because an empty
# stream is noticed only when the wait ends.
_WAIT_S, _SHORT_WAIT_S = 1.0, 0.1
# A process that ends has this long for its last acknowledgements; the next run with the same output
# makes the rest.
_LAST_S = 10.0
_ASK_AGAIN_S = 0.1
_decode = msgspec.json.Decoder().decode


class StreamRows(AsyncRows):
    """The messages of a stream as rows. Call `open` first, and `aclose` last.

    consumer_path: the file that stores the consumer's name. most: the maximum number of messages
    without an outcome at a time. limit: read at most this many messages. until_empty: end when the
    group has acknowledged all messages.
    """

    def __init__(
        self,
        url: StreamUrl,
        consumer_path: Path,
        *,
        most: int,
        limit: int | None,
        until_empty: bool,
    ) -> None:
        self.name = url.name
        self.total_rows = None
        self.url = url
        self._consumer_path = consumer_path
        self._limit = limit
        self._until_empty = until_empty
        self._most = most
        self._group = Group(url)
        # Messages that have become rows but are not acknowledged: their ids, by their rows' keys.
        self._held: dict[int, bytes] = {}
        self._without_outcome = 0
        self._has_room = asyncio.Event()
        self._to_mark: list[tuple[bytes, asyncio.Future[bool]]] = []
        self._marking = asyncio.Event()
        self._durable: list[int] = []
        self._acknowledging = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: ConfigError | None = None
        self._number = 0
        self._is_closed = False

    async def open(self) -> None:
        """Joins the group.

        Raises ConfigError if Redis does not answer or refuses the request, and JournalError if the
        consumer's name cannot be read or stored.
        """
        consumer = await in_thread(consumer_of, self._consumer_path)
        await self._group.open(consumer)
        works = (self._mark, self._acknowledge, self._keep)
        self._tasks = [asyncio.create_task(self._watched(work())) for work in works]

    async def batches(self) -> AsyncIterator[list[Row]]:
        """Yields lists of 1 to 256 rows; first those delivered to an earlier run of this output.

        Ends at the limit and, with `until_empty`, when all messages are acknowledged. Raises
        ConfigError if Redis refuses, or is unreachable for 60 s, and, with `until_empty`, if only
        orphans are left.
        """
        async for rows in self._own():
            yield rows
        claims_s = SYSTEM.now_s()
        while count := await self._room():
            messages: list[Entry] = []
            if SYSTEM.now_s() >= claims_s:
                messages = await self._group.idle(count)
                if len(messages) < count:
                    claims_s = SYSTEM.now_s() + self.url.idle_s / 2
            if not messages:
                try:
                    messages = await self._group.new(count, self._wait_s)
                except Away:
                    # Messages may have been delivered, but the response was lost.
                    async for rows in self._own():
                        yield rows
                    continue
            if rows := self._rows(messages):
                yield rows
            elif self._until_empty and not messages and await self._is_empty():
                return

    def close(self) -> None:
        """Stops reading."""
        self._is_closed = True
        self._has_room.set()

    def skip(self, key: int) -> None:
        """Skips a row whose outcome the output already has; only acknowledges its message."""
        self._settle()
        self._durable.append(key)
        self._acknowledging.set()

    async def permit(self, key: int, outcome: Outcome) -> bool:
        """Marks the row's message; returns whether the row's outcome may be written.

        Returns False if another consumer has claimed the message: that consumer's outcome will
        count. Adds the message's id to the fields of the outcome. Raises ConfigError if Redis
        refuses, or is unreachable for too long.
        """
        if self._failure is not None:
            raise self._failure
        message_id = self._held[key]
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._to_mark.append((message_id, answer))
        self._marking.set()
        is_permitted = await answer
        self._settle()
        if is_permitted:
            outcome.fields = {**(outcome.fields or {}), "message": message_id.decode()}
        else:
            del self._held[key]
        return is_permitted

    def acknowledge(self, keys: Iterable[int]) -> None:
        """Acknowledges the messages of these keys, whose outcomes are durable."""
        self._durable += keys
        self._acknowledging.set()

    async def aclose(self) -> None:
        """Acknowledges messages with durable outcomes, and releases those without an outcome."""
        pending = set(self._tasks)
        while pending:
            for task in pending:
                task.cancel()
            # Cancelled in a loop: redis-py may lose a cancellation that coincides with a response.
            _, pending = await asyncio.wait(pending, timeout=_ASK_AGAIN_S)
        if not self._tasks:
            # This consumer has not joined the group.
            return
        try:
            async with asyncio.timeout(_LAST_S):
                await self._acknowledge_durable()
                await self._group.release()
        except (TimeoutError, ConfigError):
            # Nothing is lost: messages stay pending, and the next run of this output handles them.
            pass
        finally:
            await self._group.aclose()

    @property
    def _wait_s(self) -> float:
        longest_s = _SHORT_WAIT_S if self._until_empty else _WAIT_S
        return min(longest_s, self.url.idle_s / 2)

    def _settle(self) -> None:
        """Records that one more row has its outcome, or needs none."""
        self._without_outcome -= 1
        self._has_room.set()

    async def _room(self) -> int:
        """Waits until messages may be read; returns how many. 0 at the limit and once closed."""
        while self._without_outcome >= self._most and not self._is_closed:
            self._has_room.clear()
            await self._has_room.wait()
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            return 0
        room = min(BATCH_ROWS, self._most - self._without_outcome)
        return room if self._limit is None else min(room, self._limit - self._number)

    async def _own(self) -> AsyncIterator[list[Row]]:
        """Yields messages of this consumer that are not held, such as those of a dead process."""
        while count := await self._room():
            messages = await self._group.own(count, list(self._held.values()))
            if not messages:
                return
            yield self._rows(messages)

    async def _is_empty(self) -> bool:
        """Whether all messages are acknowledged. Raises ConfigError if only orphans are left."""
        left = await self._group.left()
        if left.pending and left.pending == left.orphans:
            whose = left.whose.decode("utf-8", "replace")
            name = self.name
            are = counted(left.orphans, f"message of {name} is", f"messages of {name} are")
            raise ConfigError(
                f"{are} held by the consumer {whose}, which ended after it began to write their "
                "outcomes",
                hint="run its command again, with its own -o: it acknowledges the messages in its "
                "file. If that file is lost, add orphans=claim to the URL to request them again",
            )
        return not left.pending

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`; an error that ends it also ends reading and all waits for a mark."""
        try:
            await work
        except ConfigError as error:
            self._failure = error
            self._has_room.set()
            for _, answer in self._to_mark:
                if not answer.done():
                    answer.set_exception(error)

    async def _mark(self) -> None:
        while True:
            await self._marking.wait()
            self._marking.clear()
            asked = list(self._to_mark)
            found = await self._group.mark([message_id for message_id, _ in asked])
            del self._to_mark[: len(asked)]
            for (_, answer), is_permitted in zip(asked, found, strict=True):
                if not answer.done():
                    answer.set_result(is_permitted)

    async def _acknowledge(self) -> None:
        while True:
            await self._acknowledging.wait()
            self._acknowledging.clear()
            await self._acknowledge_durable()

    async def _acknowledge_durable(self) -> None:
        durable = list(self._durable)
        if durable:
            await self._group.acknowledge([self._held[key] for key in durable])
            # Removed only now, so that an acknowledgement that is interrupted is made again.
            del self._durable[: len(durable)]
            for key in durable:
                del self._held[key]

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self.url.idle_s / 4)
            await self._group.keep(list(self._held.values()))

    def _rows(self, messages: Sequence[Entry]) -> list[Row]:
        rows = []
        for message in messages:
            content = _content(message)
            key = message_key(self.url.stream, content)
            # The message came back from another consumer while its row is still in progress here.
            if key in self._held:
                continue
            self._held[key] = message.id
            self._without_outcome += 1
            self._number += 1
            rows.append(self._row(message, content))
        return rows

    def _row(self, message: Entry, content: bytes) -> Row:
        number = self._number
        size_bytes = sum(map(len, message.fields)) + len(message.fields) - 1
        if size_bytes > MAX_ROW_BYTES:
            return long_row(number, number, content, size_bytes, MAX_ROW_BYTES)
        data, problem = _columns(message.fields, self.url.field.encode())
        row = Row(number, number, data, content, problem)
        if data is not None and custom_id(row) is None:
            data["custom_id"] = message.id.decode()
        if message.deliveries > self.url.most_deliveries:
            row.problem = (
                f"the message was delivered {counted(message.deliveries - 1, 'time')}, but no "
                "consumer reached an outcome"
            )
        return row


def _content(message: Entry) -> bytes:
    """Returns the bytes that identify a message: its id, then its fields or a digest of them."""
    fields = b" ".join(message.fields)
    return message.id + b" " + (fields if len(fields) <= MAX_ROW_BYTES else digest(fields))


def _columns(fields: list[bytes], json_field: bytes) -> tuple[dict[str, object] | None, str | None]:
    """Returns the data of a message's row and None, or None and what is wrong with the message.

    fields: names and values, alternating. json_field: if it is the only field, it holds the row.
    """
    names, texts = fields[::2], fields[1::2]
    if names == [json_field]:
        try:
            data = _decode(texts[0])
        except (ValueError, RecursionError) as error:
            return None, f"field {json_field.decode()} is not JSON: {error}"
        return (data, None) if type(data) is dict else (None, not_an_object(data))
    columns: dict[str, object] = {}
    for name, text in zip(names, texts, strict=True):
        try:
            columns[name.decode()] = text.decode()
        except UnicodeDecodeError:
            return None, f"field {name.decode('utf-8', 'replace')} is not UTF-8"
    return columns, None
