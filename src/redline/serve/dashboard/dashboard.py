"""Serves the dashboard: a page that receives the state of its gateway twice a second.

path       response
/          the complete page, which loads nothing else
/status    the state as JSON
/events    the state as server-sent events, two per second, until the client leaves or its key is
           no longer accepted
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.resources import files

import msgspec

from redline.apis import event_bytes
from redline.httpserver import ClientGoneError, Exchange, header_lines
from redline.serve.dashboard.snapshot import Snapshot
from redline.serve.http import STREAM_HEADERS, busy, wrong_method

# Any change must appear within 2 s, even if another worker publishes it a second late.
_EVERY_S = 0.5
# Each stream costs two snapshots per second.
_MOST_WATCHERS = 64
_PAGE = header_lines(
    {
        "content-type": "text/html; charset=utf-8",
        "cache-control": "no-cache",
        # Whatever an error's text contains, the browser must load and send nothing else: the page
        # is complete.
        "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
)
_STATUS = header_lines({"content-type": "application/json", "cache-control": "no-cache"})


class Dashboard:
    """Serves the page and the gateway's state.

    read: returns the current state. check: raises Refusal for a request that may not see the state;
    called for every path but `/`, because the page itself contains no state. An open page does not
    delay the end of a gateway.
    """

    paths = frozenset({"/", "/status", "/events"})

    def __init__(self, read: Callable[[], Snapshot], check: Callable[[Exchange], object]) -> None:
        self._read = read
        self._check = check
        self._watchers = 0
        self._page = files(__package__).joinpath("page.html").read_bytes()

    async def answer(self, exchange: Exchange) -> None:
        """Answers a request for one of `paths`.

        Raises Refusal for a method other than GET and HEAD, for a request that `check` refuses, and
        for too many open streams.
        """
        if exchange.method not in ("GET", "HEAD"):
            raise wrong_method(exchange, "GET, HEAD")
        if exchange.path == "/":
            exchange.respond(200, self._page, _PAGE)
            return
        self._check(exchange)
        if exchange.path == "/status" or exchange.method == "HEAD":
            exchange.respond(200, msgspec.json.encode(self._read()), _STATUS)
            return
        if self._watchers >= _MOST_WATCHERS:
            raise busy("Too many dashboards are open.", "overloaded")
        self._watchers += 1
        try:
            await exchange.begin(200, STREAM_HEADERS, event_bytes(self._read()))
            while True:
                await asyncio.sleep(_EVERY_S)
                # The key may have expired or been revoked; a refusal then ends the stream.
                self._check(exchange)
                await exchange.write(event_bytes(self._read()))
        except ClientGoneError:
            pass
        finally:
            self._watchers -= 1
