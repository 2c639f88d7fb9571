"""Paths beside those of calls: each a method and a pattern, some of whose segments are ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from redline.errors import RedlineError
from redline.httpserver import Exchange
from redline.serve.http.refusals import Refusal, shortened

# Gets the exchange, its tenant, and the ids of its path; raises Refusal before it has answered.
Answer = Callable[..., Awaitable[None]]
TenantOf = Callable[[Exchange], str]


class Route(msgspec.Struct, frozen=True):
    """A method and a path, and their handler.

    pattern: a path such as `/v1/files/{file_id}/content`; a segment in braces matches an id.

    answer: gets the exchange, the tenant and each id, in the order of the pattern.
    most_body_bytes: of a request to a pattern without ids; 0 for the bound of the server.
    """

    method: str
    pattern: str
    answer: Answer
    most_body_bytes: int = 0


class Found(NamedTuple):
    """The answer to a request, and the ids in its path."""

    answer: Answer
    ids: tuple[str, ...]


def one_tenant(exchange: Exchange) -> str:
    """`default` for every request."""
    return "default"


class Routes:
    """A table of routes. tenant_of: in whose name a request comes; may raise Refusal."""

    def __init__(self, table: Sequence[Route] = (), tenant_of: TenantOf = one_tenant) -> None:
        self.tenant_of = tenant_of
        # By the number of segments; an id is None.
        self._table: dict[int, list[tuple[tuple[str | None, ...], dict[str, Answer]]]] = {}
        for route in table:
            self._add(route)
        # Paths without ids, for hints.
        self.paths = tuple(dict.fromkeys(r.pattern for r in table if "{" not in r.pattern))
        self.bodies_by_path: Mapping[str, int] = {
            route.pattern: route.most_body_bytes for route in table if route.most_body_bytes
        }

    def find(self, exchange: Exchange) -> Found | None:
        """The route of the request; None for an unknown path.

        Raises Refusal for a method that the path does not take.
        """
        segments = exchange.path.split("/")
        for pattern, methods in self._table.get(len(segments), ()):
            pairs = list(zip(pattern, segments, strict=True))
            if not all(own == found if own is not None else found for own, found in pairs):
                continue
            answer = methods.get(exchange.method)
            if answer is None:
                raise wrong_method(exchange, ", ".join(methods))
            return Found(answer, tuple(found for own, found in pairs if own is None))
        return None

    def _add(self, route: Route) -> None:
        if route.most_body_bytes and "{" in route.pattern:
            raise RedlineError(f"a path with ids has the bodies of the server: {route.pattern}")
        pattern = tuple(
            None if segment.startswith("{") else segment for segment in route.pattern.split("/")
        )
        alike = self._table.setdefault(len(pattern), [])
        for known, methods in alike:
            if known == pattern:
                methods[route.method] = route.answer
                return
        alike.append((pattern, {route.method: route.answer}))


def wrong_method(exchange: Exchange, right: str) -> Refusal:
    """Refuses a method. right: those that the path takes."""
    message = f"{shortened(exchange.path)} takes {right}, not {exchange.method}."
    return Refusal(message, status=405, code="method_not_allowed", headers={"allow": right})
