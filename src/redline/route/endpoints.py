"""Makes a pool of configured HTTP endpoints."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redline.calls import Endpoint, HttpBackend, Shared
from redline.calls.http import account_of
from redline.calls.wire import Outbox, ReplyMemory, do_nothing
from redline.clock import SYSTEM
from redline.errors import ConfigError, check_known
from redline.route.balance import STRATEGIES, strategy_of
from redline.route.member import Seat
from redline.route.pages import Pages
from redline.route.pool import Pool
from redline.structs import check_type


class EndpointPool(Pool):
    """Several endpoints as one backend: each call goes to an endpoint that can take it.

    endpoints: Endpoints or base URLs, at least one. balance: p2c, least_tokens, room, prefix,
    cheapest, round_robin, weighted_score or normalized_score; see docs/fleet.md. Close the pool
    with `aclose`, or pass it to a Client, which closes it. Raises ConfigError for an unknown
    `balance`, for anything but a sequence of endpoints, for an empty one, for two endpoints with
    the same name or the same server and key, and for a model name that only some endpoints have in
    `models`.
    """

    def __init__(self, endpoints: Sequence[Endpoint | str], *, balance: str = "p2c") -> None:
        if isinstance(endpoints, str) or not isinstance(endpoints, Sequence):
            raise ConfigError(
                f"a pool needs a list of URLs and Endpoints, not {type(endpoints).__name__}",
                hint='for example Pool(["http://10.0.0.5:8000/v1", "http://10.0.0.6:8000/v1"])',
            )
        for one in endpoints:
            check_type("an endpoint of a pool", one, (Endpoint, str))
        stated = [Endpoint(base_url=one) if isinstance(one, str) else one for one in endpoints]
        check_balance(balance)
        check_endpoints(stated)
        shared = Shared(intake=intake_of(stated) if stated else None, outbox=Outbox(do_nothing))
        super().__init__(
            [seat_of(one, shared=shared) for one in stated], strategy_of(balance, random.Random())
        )


def seat_of(endpoint: Endpoint, *, price: float | None = None, **parts: Any) -> Seat:
    """Returns the settings of the endpoint as a member of a pool.

    price: see Figures; None for the input price plus the output price of the endpoint's most
    expensive model. parts: passed to its HttpBackend.
    """

    def make(on_room: Callable[[], None]) -> HttpBackend:
        return HttpBackend(endpoint, on_room=on_room, **parts)

    if price is None:
        tariff = endpoint.tariff.values()
        price = float(max((one.input + one.output for one in tariff), default=0))
    pages = None
    if endpoint.metrics or endpoint.probe:
        pages = Pages(endpoint, parts.get("clock", SYSTEM))
    return Seat(name=endpoint.label, make=make, weight=endpoint.weight, price=price, pages=pages)


def intake_of(endpoints: Sequence[Endpoint]) -> ReplyMemory:
    """Returns the memory bound for the answers of all endpoints together."""
    return ReplyMemory(max(endpoint.max_reply_bytes for endpoint in endpoints))


def check_balance(name: str) -> None:
    """Raises ConfigError for an unknown strategy."""
    check_known("way to balance", str(name), STRATEGIES)


def check_endpoints(endpoints: Sequence[Endpoint]) -> None:
    """Raises ConfigError for indistinguishable endpoints, or a model name that only some map."""
    check_distinct(endpoints)
    _check_models(endpoints)


def check_distinct(endpoints: Sequence[Endpoint]) -> None:
    """Raises ConfigError if two endpoints have the same name, or the same server and key."""
    names, accounts = dict[str, Endpoint](), dict[str, str]()
    for endpoint in endpoints:
        name, account = endpoint.label, account_of(endpoint)
        if account in accounts:
            raise ConfigError(
                f"the endpoints {accounts[account]} and {name} are the same server with the "
                "same key",
                hint="remove one: each would use the limits of the account in full",
            )
        if name in names:
            raise ConfigError(
                f"two endpoints are named {name}",
                where=f"the endpoints at {names[name].base_url} and {endpoint.base_url}",
                hint="give each its own name: [endpoints.NAME] in redline.toml, or "
                "Endpoint(name=...)",
            )
        names[name], accounts[account] = endpoint, name


def _check_models(endpoints: Sequence[Endpoint]) -> None:
    """Raises ConfigError for a model name that only some endpoints have in `models`."""
    known: Mapping[str, str] = {
        name: endpoint.label for endpoint in endpoints for name in endpoint.models
    }
    for endpoint in endpoints:
        for name, other in known.items():
            if name not in endpoint.models:
                raise ConfigError(
                    f"endpoint {other} has a name for the model {name}, but {endpoint.label} "
                    "does not",
                    where=f"the models of {endpoint.label}",
                    hint=f"set the model's name at {endpoint.label}, even if it is also {name}: "
                    f'models = {{ {name} = "..." }}',
                )
