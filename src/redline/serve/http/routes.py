"""Finds the handlers of requests other than calls, by method and path; segments may be ids."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from redline.httpserver import Exchange
from redline.serve.http.refusals import Refusal, shortened

# Gets the exchange, its tenant, and the ids in its path; may raise Refusal before it responds.
Answer = Callable[..., Awaitable[None]]
TenantOf = Callable[[Exchange], str]
_ID = re.compile(r"\{\w+\}")


class Route(msgspec.Struct, frozen=True):
    """A method and a path, and their handler.

    pattern: a path such as `/v1/files/{file_id}/content`; a segment in braces matches an id.
    answer: gets the exchange, the tenant and each id, in the order of the pattern.
    most_body_bytes: the largest body, for a pattern without ids; 0 for the server's bound. A
    pattern with ids always has the server's bound.
    """

    method: str
    pattern: str
    answer: Answer
    most_body_bytes: int = 0


def one_tenant(exchange: Exchange) -> str:
    """Returns `default` for every request."""
    return "default"


class Routes:
    """A table of routes. tenant_of: returns the tenant of a request; may raise Refusal."""

    def __init__(self, table: Sequence[Route] = (), tenant_of: TenantOf = one_tenant) -> None:
        self.tenant_of = tenant_of
        # Handlers by the regular expression of a path, whose groups are the ids, and by method.
        self._table: dict[re.Pattern[str], dict[str, Answer]] = {}
        for route in table:
            path = re.compile(_ID.sub("([^/]+)", route.pattern))
            self._table.setdefault(path, {})[route.method] = route.answer
        # Paths without ids, for hints.
        self.paths = tuple(dict.fromkeys(r.pattern for r in table if "{" not in r.pattern))
        self.bodies_by_path: Mapping[str, int] = {
            route.pattern: route.most_body_bytes for route in table if route.most_body_bytes
        }

    def find(self, exchange: Exchange) -> tuple[Answer, tuple[str, ...]] | None:
        """Returns the handler of a request, and the ids in its path; None for an unknown path.

        Raises Refusal for a method that the path does not support.
        """
        for path, methods in self._table.items():
            if match := path.fullmatch(exchange.path):
                answer = methods.get(exchange.method)
                if answer is None:
                    raise wrong_method(exchange, ", ".join(methods))
                return answer, match.groups()
        return None


def wrong_method(exchange: Exchange, right: str) -> Refusal:
    """Returns a refusal with 405. right: the methods that the path supports, comma-separated."""
    return Refusal(
        f"{shortened(exchange.path)} takes {right}, not {exchange.method}.",
        status=405,
        code="method_not_allowed",
        headers={"allow": right},
    )
