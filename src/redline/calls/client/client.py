"""Makes single calls and streams through one endpoint, for your own code."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping
from types import NoneType
from typing import Any

from redline.calls.client.retry import Retry, RetryPolicy
from redline.calls.http import HttpBackend, refuse_partial
from redline.calls.wire import Endpoint
from redline.clock import SYSTEM
from redline.errors import ConfigError, Rejected
from redline.limits.wait import sole_loop
from redline.process import end_tasks
from redline.structs import check_number, check_type, check_types
from redline.waist import Backend, Call, Chunk, Outcome, Request, Sink, is_backend

# The most chunks read ahead of a slow reader; then reading from the connection pauses.
_CHUNKS_AHEAD = 64


class Client:
    """Calls one endpoint within its limits, for any number of tasks of one event loop.

    endpoint: an Endpoint or its base URL; or a backend, such as a Pool of several endpoints, which
    is closed with the client. retry: None for the default policy. Raises ConfigError for any other
    object as `endpoint` or `retry`.
    Use the client in `async with`, or close it with `aclose`. As in a run, each call waits for the
    limits, has timeouts and is retried.
    """

    def __init__(
        self, endpoint: Endpoint | str | Backend, *, retry: RetryPolicy | None = None
    ) -> None:
        if isinstance(endpoint, str):
            endpoint = Endpoint(base_url=endpoint)
        check_type("retry", retry, (RetryPolicy, NoneType))
        backend = HttpBackend(endpoint) if isinstance(endpoint, Endpoint) else endpoint
        if not is_backend(backend):
            raise ConfigError(
                f"a client needs an Endpoint, a URL or a backend, not {type(endpoint).__name__}",
                hint="for several endpoints: Client(Pool([...]))",
            )
        self._backend: Backend = Retry(backend, retry)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def backend(self) -> Backend:
        """The backend that calls go through, retries included; closed with the client."""
        return self._backend

    async def call(
        self, request: Request | Mapping[str, Any], *, deadline_s: float | None = None
    ) -> Outcome:
        """Makes one call and returns its outcome; a failed call does not raise.

        request: a Request, or the body of a chat completion. deadline_s: seconds for the call and
        its retries, from now on; None for no deadline. Raises ConfigError for any other argument,
        and while another event loop uses the client.
        """
        self._loop = sole_loop(self._loop, "Client")
        call, request = _call(deadline_s), _request(request)
        try:
            refuse_partial(request)
        except Rejected as error:
            return Outcome(status="rejected", error=error, attempts=0)
        outcome = await self._backend.send(request, call)
        call.let_go()
        return outcome

    def stream(
        self, request: Request | Mapping[str, Any], *, deadline_s: float | None = None
    ) -> ChunkStream:
        """Returns an async iterator over the answer's chunks. Arguments: as for `call`.

        The first `anext` begins the call, from which `deadline_s` counts, and raises ConfigError as
        `call` does. A failed call is retried only before its first chunk. Its error is raised, even
        after some chunks, so that an incomplete answer is never mistaken for a complete one.
        Leaving an `async for` loop early ends the call if nothing else refers to the stream;
        otherwise call the stream's `aclose`.
        """
        return ChunkStream(self._chunks(request, deadline_s))

    async def _chunks(
        self, request: Request | Mapping[str, Any], deadline_s: float | None
    ) -> AsyncGenerator[Chunk, None]:
        self._loop = sole_loop(self._loop, "Client")
        sink = _QueueSink()
        send = self._backend.send(_request(request), _call(deadline_s), sink)
        task = asyncio.create_task(send, name="redline stream")
        task.add_done_callback(sink.end)
        try:
            while (chunk := await sink.next()) is not None:
                yield chunk
            outcome = await task
            if outcome.error is not None:
                raise outcome.error
        finally:
            await end_tasks(task)

    async def aclose(self) -> None:
        await self._backend.aclose()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class ChunkStream:
    """An async iterator over the chunks of one answer. Its call begins with the first `anext`.

    Cancelling a wait for a chunk, as `asyncio.wait_for` does at its timeout, ends the call; the
    next wait raises Rejected.
    """

    def __init__(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        self._chunks = chunks
        self._is_cut = False

    def __aiter__(self) -> ChunkStream:
        return self

    async def __anext__(self) -> Chunk:
        if self._is_cut:
            # After a cancellation, the generator looks exhausted.
            raise Rejected(
                "the call ended when a wait for its next chunk was cancelled",
                hint="make anext() a task and pass it to asyncio.wait, which does not cancel it",
            )
        try:
            return await anext(self._chunks)
        except asyncio.CancelledError:
            self._is_cut = True
            raise

    async def aclose(self) -> None:
        """Ends the call."""
        await self._chunks.aclose()


class _QueueSink(Sink):
    """A sink from which another task reads. None in the queue marks the end."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(_CHUNKS_AHEAD)

    async def put(self, chunk: Chunk) -> None:
        await self._room.acquire()
        self._chunks.put_nowait(chunk)

    def end(self, task: asyncio.Task[Outcome]) -> None:
        """Marks the end of the stream; never blocks."""
        self._chunks.put_nowait(None)

    async def next(self) -> Chunk | None:
        """Returns the next chunk; None after the last one."""
        chunk = await self._chunks.get()
        self._room.release()
        return chunk


def _request(request: Request | Mapping[str, Any]) -> Request:
    if isinstance(request, Request):
        check_types(request)
        return request
    if not isinstance(request, Mapping):
        raise ConfigError(
            f"a call needs a dict or a Request, not {type(request).__name__}",
            hint='{"model": "m", "messages": [{"role": "user", "content": "hello"}]}',
        )
    return Request(body=dict(request))


def _call(deadline_s: float | None) -> Call:
    if deadline_s is None or deadline_s == math.inf:
        return Call()
    check_number("deadline_s", deadline_s)
    return Call(deadline_s=SYSTEM.now_s() + deadline_s)
