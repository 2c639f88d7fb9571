"""Reads the metrics page and the health page of one server, for a pool."""

from __future__ import annotations

from urllib.parse import urlsplit

from redline.calls import Call, Endpoint, HttpBackend, Request, Timeouts
from redline.clock import SYSTEM, Clock
from redline.errors import BadReply, CallError, NoEndpoint
from redline.route.metrics_page import ServerFigures, read_metrics

METRICS = "/metrics"
HEALTH = "/health"
# This page is read if the server has no health page.
MODELS = "/v1/models"
# A page takes milliseconds; a server that is too busy to respond in time is asked again soon.
TIMEOUT_S = 2.0
# vLLM's page has about 50 kB for each of its engines.
MOST_BYTES = 4 * 2**20
_NO_PAGE = frozenset({404, 405, 501})


class Pages:
    """Reads the endpoint's `metrics` and `probe` pages, on separate connections.

    The requests count against none of the endpoint's configured limits. Its key is sent only to its
    own host and port.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock = SYSTEM) -> None:
        self._metrics = _Page(endpoint, endpoint.metrics, METRICS, clock)
        self._health = _Page(endpoint, endpoint.probe, HEALTH, clock)
        self.has_metrics = bool(endpoint.metrics)
        self.has_health = bool(endpoint.probe)
        # A configured health page is never replaced by another page.
        self._may_lack = endpoint.probe is True

    async def figures(self) -> ServerFigures | None:
        """Returns the figures that the server reports; None if unavailable. Raises nothing."""
        try:
            return read_metrics(await self._metrics.read())
        except (CallError, NoEndpoint):
            return None

    async def is_well(self) -> bool:
        """Returns whether the server responds with a status below 500. Raises nothing.

        If the usual health page does not exist, the page MODELS is read from then on.
        """
        try:
            await self._health.read()
        except (CallError, NoEndpoint) as error:
            status = getattr(error, "status", None)
            if self._may_lack and status in _NO_PAGE:
                self._may_lack = False
                self._health.path = MODELS
                return await self.is_well()
            return status is not None and status < 500
        return True

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._metrics.aclose()
        await self._health.aclose()


class _Page:
    """A page of an endpoint, at its usual path or at a configured URL or path."""

    def __init__(self, endpoint: Endpoint, stated: bool | str, usual: str, clock: Clock) -> None:
        self.path, base_url, is_own = usual, endpoint.base_url, True
        if isinstance(stated, str):
            parts, base = urlsplit(stated), urlsplit(base_url)
            origin = f"{parts.scheme}://{parts.netloc}" if parts.scheme else ""
            self.path = stated[len(origin) :] or "/"
            is_own = not origin or (parts.scheme, parts.netloc) == (base.scheme, base.netloc)
            if origin:
                # Otherwise the /v1 of the page's own path would be dropped.
                base_url = f"{origin}/v1"
        self._backend = HttpBackend(
            Endpoint(
                base_url=base_url,
                api_key=endpoint.api_key if is_own else None,
                headers=endpoint.headers if is_own else {},
                proxy=endpoint.proxy,
                timeouts=Timeouts(connect_s=TIMEOUT_S, first_byte_s=TIMEOUT_S, attempt_s=TIMEOUT_S),
                max_reply_bytes=MOST_BYTES,
            ),
            clock=clock,
        )

    async def read(self) -> bytes:
        """Returns the page's bytes. Raises CallError or NoEndpoint if the request fails."""
        found = bytearray()

        async def take(chunk: bytes) -> None:
            found.extend(chunk)
            if len(found) > MOST_BYTES:
                raise BadReply(f"a page of more than {MOST_BYTES:,} bytes")

        await self._backend.download(
            Request(method="GET", url=self.path, body=None, headers={"Accept": "text/plain"}),
            Call(),
            take,
        )
        return bytes(found)

    async def aclose(self) -> None:
        await self._backend.aclose()
