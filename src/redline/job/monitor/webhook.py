"""Sends alerts to a webhook, one after another, each with up to six retries.

A body is `{"event": "alert", "id": ..., "state": "firing" or "ended", "text": ..., ...}`. If the
server accepts a notification but the response is lost, the same body is sent again, so receivers
can recognize the repetition by its `id`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from redline.calls import Call, Endpoint, HttpBackend, Request, Timeouts
from redline.calls.http import Mask
from redline.clock import SYSTEM, Clock
from redline.errors import BadReply, CallError, ConfigError, NoEndpoint, TimedOut
from redline.process import counted

TIMEOUT_S = 10.0
# The pauses between seven attempts, a little more than a minute in all.
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
MOST_WAITING = 100
# How long the end of a job waits for notifications that are not yet sent. Short, because the
# caller of the job waits as well.
LAST_S = 3.0
_AGAIN = frozenset({408, 425, 429})


class Webhook:
    """Sends alerts to a URL, from a task of its own: `put` neither waits nor fails.

    The caller ends with `aclose`. waited_s: how many seconds the end of the job has waited for the
    webhook.
    """

    def __init__(self, url: str, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        parts = urlsplit(url)
        self._host = parts.netloc
        self._origin = f"{parts.scheme}://{parts.netloc}"
        rest = url[len(self._origin) :]
        self._path = rest if rest.startswith("/") else f"/{rest}"
        # The path is often a secret.
        self._mask = Mask([self._path])
        self._waiting: deque[dict[str, Any]] = deque()
        self._backend: HttpBackend | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = 0
        self._reason = ""
        self.waited_s = 0.0

    @property
    def failure(self) -> str | None:
        """How many notifications were lost, and why the latest one was, in words.

        None if none was lost.
        """
        if not self._lost:
            return None
        # Not the whole URL: its path is often a secret.
        lost = counted(self._lost, "notification")
        return f"{lost} did not reach the webhook at {self._host}: {self._reason}"

    def put(self, body: dict[str, Any]) -> None:
        """Queues a notification. If MOST_WAITING are queued already, drops the second of them.

        The first may be in transit.
        """
        if len(self._waiting) >= MOST_WAITING:
            del self._waiting[1]
            self._lose("too many were waiting")
        self._waiting.append(body)
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name="redline webhook")

    async def aclose(self) -> None:
        """Waits up to LAST_S seconds for all notifications to be sent; then drops the rest."""
        if (task := self._task) is not None:
            begun_s = self._clock.now_s()
            await asyncio.wait([task], timeout=LAST_S)
            task.cancel()
            await asyncio.wait([task])
            self.waited_s = self._clock.now_s() - begun_s
        while self._waiting:
            self._waiting.popleft()
            self._lose(self._reason or "the job has ended")
        if self._backend is not None:
            await self._backend.aclose()

    def _lose(self, reason: str) -> None:
        self._lost += 1
        self._reason = reason

    async def _send_all(self) -> None:
        try:
            if self._backend is None:
                timeouts = Timeouts(
                    connect_s=TIMEOUT_S, first_byte_s=TIMEOUT_S, attempt_s=TIMEOUT_S
                )
                endpoint = Endpoint(base_url=f"{self._origin}/v1", timeouts=timeouts)
                self._backend = HttpBackend(endpoint, clock=self._clock)
            while self._waiting:
                reason = await self._send(self._backend, self._waiting[0])
                self._waiting.popleft()
                if reason is not None:
                    self._lose(reason)
        except ConfigError as error:
            # The settings of a proxy in the environment may be invalid.
            self._reason = error.what
        finally:
            self._task = None

    async def _send(self, backend: HttpBackend, body: dict[str, Any]) -> str | None:
        """Sends a notification, with retries; returns why it was not accepted, None if it was."""
        for pause_s in (*PAUSES_S, None):
            error = await _posted(backend, self._path, body)
            if error is None:
                return None
            status = getattr(error, "status", None)
            is_final = status is not None and status < 500 and status not in _AGAIN
            # An error may quote the path, or a part of it, or an escaped form.
            self._reason = self._mask.text(error.what).replace(self._path, "/...")
            if is_final or pause_s is None:
                break
            await asyncio.sleep(pause_s)
        return self._reason


async def _posted(
    backend: HttpBackend, path: str, body: dict[str, Any]
) -> CallError | NoEndpoint | None:
    """Makes one attempt; returns its error, or None if the notification was accepted."""

    async def drop(chunk: bytes) -> None:
        pass

    try:
        # Longer than the attempt, which first waits if an earlier response asked for a pause.
        async with asyncio.timeout(3 * TIMEOUT_S):
            await backend.download(Request(url=path, body=body), Call(), drop)
    except TimeoutError:
        return TimedOut("attempt", 3 * TIMEOUT_S)
    except BadReply:
        # The status is a success, but no answer could be read, for example with HTTP 204.
        return None
    except (CallError, NoEndpoint) as error:
        return error
    return None
