"""Groups the endpoints of a gateway into pools, and finds the pool for the model of a call.

An endpoint whose settings have `models` has only these models. A call may use either name of each:
the one for clients, or the endpoint's own. An endpoint without `models` has every model that no
endpoint names. Endpoints that share a model form one pool, so a call goes to the endpoint that can
take it first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from functools import partial
from itertools import chain, count
from typing import Any, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from redline.calls import Backend, Call, Endpoint, Outcome, Request, Shared, Stores
from redline.calls.cache import Cached, identity
from redline.calls.http import account_of
from redline.calls.wire import Outbox, do_nothing
from redline.clock import SYSTEM
from redline.errors import ConfigError
from redline.limits import Slots, open_limiter
from redline.limits.shared import Demand
from redline.process import end_tasks
from redline.route import (
    Pool,
    PoolMember,
    Seat,
    check_distinct,
    intake_of,
    seat_of,
    strategy_of,
)
from redline.serve.admission import ClassLoad, Gate
from redline.serve.functions import ServedFunction
from redline.serve.gateway.failover import Failover
from redline.serve.gateway.gates import Gates
from redline.serve.http import CALLS
from redline.serve.workers import Worker, slots_of
from redline.waist import Attempts, CacheUse, Sink

# Seconds between two attempts to add an endpoint.
_AGAIN_S = 0.5

Send = Callable[[Request, Call, Sink | None], Awaitable[Outcome]]
# Sends a request to one particular endpoint.
Ask = Callable[[Request, Call], Awaitable[Outcome]]


class Target(msgspec.Struct, frozen=True):
    """The backends that answer calls for a model.

    lines: takes lines of batches, and leaves retries to their job. send: sends an interactive call;
    anew: does so without the cache; renew: does not read the cache, but stores the answer. barred:
    names of the pool's endpoints that do not have the model. waits_for_slots: returns whether a
    call is waiting for a slot of the pool. is_down: returns whether no endpoint with the model
    works.
    """

    lines: Backend
    send: Send
    anew: Send
    renew: Send
    barred: frozenset[str] = frozenset()
    waits_for_slots: Callable[[], bool] = bool
    is_down: Callable[[], bool] = bool


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoints that form a pool.

    barred: by model name, the names of endpoints that do not have the model. is_open: the group
    serves every model that no other group names. name: unique among groups, the same in all
    workers, and kept while endpoints join and leave.
    """

    endpoints: tuple[Endpoint, ...]
    barred: dict[str, frozenset[str]]
    is_open: bool = False
    name: str = ""

    @property
    def labels(self) -> set[str]:
        """The names of its endpoints."""
        return {one.label for one in self.endpoints}


class Way(NamedTuple):
    """A group, its pool, the gate in front of the pool, and the backend that retries calls."""

    group: Group
    pool: Pool
    gate: Gate
    failover: Failover


def grouped(endpoints: Sequence[Endpoint]) -> list[Group]:
    """Groups endpoints that share a model. Raises ConfigError if two endpoints are alike."""
    check_distinct(endpoints)
    groups: list[list[Endpoint]] = []
    for endpoint in endpoints:
        names = _names(endpoint)
        alike = [group for group in groups if any(_shares(names, _names(other)) for other in group)]
        groups = [group for group in groups if group not in alike]
        groups.append([*(one for group in alike for one in group), endpoint])
    return [_group(group) for group in groups]


def _names(endpoint: Endpoint) -> frozenset[str]:
    return frozenset((*endpoint.models, *endpoint.models.values()))


def _shares(some: frozenset[str], others: frozenset[str]) -> bool:
    return bool(some & others) or not (some or others)


def _group(endpoints: Sequence[Endpoint]) -> Group:
    known = {one.label: _names(one) for one in endpoints}
    barred = {
        name: frozenset(label for label, names in known.items() if name not in names)
        for name in frozenset[str]().union(*known.values())
    }
    name = min(barred, default="")
    return Group(endpoints=tuple(endpoints), barred=barred, is_open=not barred, name=name)


class Lineup:
    """The pools of a gateway, and the mapping from model names to them.

    gates: makes the gates, which decide when calls start. balance: how a pool chooses among its
    endpoints. most: the most calls in flight at all endpoints of a pool together; None for the sum
    of the endpoints' bounds. worker: this process, if it is one of several workers, which share
    slots and `most`. stores: keep the state of limits for later processes. remembered: puts the
    cache of interactive calls in front of a backend; None for no cache. cache_use: counts lookups
    in the cache. paths: the URL paths of calls.
    """

    paths: Sequence[str] = CALLS

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        gates: Gates,
        *,
        balance: str = "p2c",
        most: int | None = None,
        worker: Worker | None = None,
        stores: Stores | None = None,
        remembered: partial[Cached] | None = None,
    ) -> None:
        self.gates = gates
        self._balance = balance
        self.most = most
        self._sharer = None if worker is None else worker.sharer(self._demand)
        self._shared = Shared(
            stores=stores or Stores(),
            intake=intake_of(endpoints) if endpoints else None,
            outbox=Outbox(do_nothing),
        )
        self.remembered = remembered
        self.cache_use = CacheUse()
        self._ending = dict[Pool, Way]()
        # These two are totals of the ways that have ended.
        self._failovers = 0
        self._classes: dict[str, ClassLoad] = {}
        # Incomplete changes, each with the `_keys` of its endpoint.
        self._changes: dict[asyncio.Task[None], frozenset[tuple[str, str]]] = {}
        self.attempts: dict[str, Attempts] = {}
        self._gate_of: dict[str, Gate] = {}
        self._slots: dict[str, Slots] = {}
        self._targets: dict[str, Target] = {}
        self._open: Target | None = None
        self.ways: list[Way] = []
        self._on_note: Callable[[str], None] = do_nothing
        self.change(endpoints, most)

    @property
    def pools(self) -> list[Pool]:
        """The pools, in the order of their first endpoints."""
        return [way.pool for way in self.ways]

    @property
    def failovers(self) -> int:
        """How many times calls were sent to another endpoint after a failure, since the start."""
        ways = chain(self.ways, self._ending.values())
        return self._failovers + sum(way.failover.failovers for way in ways)

    def classes(self) -> list[ClassLoad]:
        """Returns the state of each class in each way, and the totals of ways that have ended."""
        ways = chain(self.ways, self._ending.values())
        return [*(one for way in ways for one in way.gate.classes()), *self._classes.values()]

    @property
    def members(self) -> list[PoolMember]:
        """The endpoints in the pools, including those that are lost or leaving."""
        return [member for pool in self.pools for member in pool.members]

    @property
    def lost(self) -> list[str]:
        """The names of endpoints that refused their key, or whose account has no credit.

        An endpoint that is leaving, to be tried again once its calls have ended, is not included.
        """
        lost = (one for one in self.members if one.error is not None and not one.is_leaving)
        return [one.name for one in lost]

    @property
    def names(self) -> list[str]:
        """Every name that a call may use for a model in the settings."""
        return [*self._targets]

    def has(self, model: str | None) -> TypeGuard[str]:
        """Whether the settings of an endpoint name the model."""
        return model in self._targets

    @property
    def aliases(self) -> list[str]:
        """The names on the left side of the endpoints' `models` tables, or the function's name."""
        named = dict.fromkeys(name for one in self.endpoints for name in one.models)
        return [*named] if self.ways else self.names

    def unnamed(self) -> list[Ask]:
        """Returns one sending function for each endpoint whose settings name no model."""
        return [
            partial(way.pool.ask, member)
            for way in self.ways
            if way.group.is_open
            for member in way.pool.members
            if not member.is_out
        ]

    @property
    def endpoints(self) -> Iterator[Endpoint]:
        """The endpoints, as configured."""
        return (one for way in self.ways for one in way.group.endpoints)

    def target(self, model: str | None) -> Target | None:
        """Returns the target for this model; None if no endpoint has it."""
        return self._targets.get(model or "", self._open)

    def change(self, endpoints: Sequence[Endpoint], most: int | None) -> None:
        """Replaces the endpoints and `most`. Calls in flight finish at the endpoint where they are.

        An unchanged endpoint keeps its place, limits and calls, unless workers share its slots and
        `most` changes. A lost one is tried again, since its key may be valid by now, or its account
        may have credit. Raises ConfigError, and changes nothing, if the endpoints are not valid.
        Shared limits are checked by `check_shares`.
        """
        renewed = self.lost
        if self._sharer is not None and most != self.most:
            # The slots that an endpoint shares with other workers depend on `most`.
            renewed = [one.label for one in self.endpoints]
        before, followed = self.ways, _followed(grouped(endpoints), self.ways)
        self.most = most
        self.ways = [
            self._way(group) if old is None else old._replace(group=group)
            for group, old in followed
        ]
        for way in self.ways:
            way.pool.most = most
        new_of = {way.pool: way.group for way in self.ways}
        for way in before:
            new = new_of.get(way.pool)
            # Calls that wait may be able to use only the endpoint that is leaving.
            if new is None or new.barred != way.group.barred or way.group.labels - new.labels:
                way.gate.move()
                way.pool.move()
        self._aim()
        # All removals come first, since an endpoint may leave one pool and join another.
        for way in before:
            new, pool = new_of.get(way.pool), way.pool
            removals = [
                self._in_turn(one, partial(_remove, pool, one.label))
                for one in way.group.endpoints
                if new is None or one not in new.endpoints or one.label in renewed
            ]
            if new is None:
                self._ending[pool] = way
                self._later(partial(self._end, way, removals))
        for way, (group, old) in zip(self.ways, followed, strict=True):
            for one in group.endpoints:
                if old is None or one not in old.group.endpoints or one.label in renewed:
                    self._join(way.pool, one, group, is_first=not before)

    def report_to(self, on_note: Callable[[str], None]) -> None:
        """Sets the function that is called with each notice, a text of one line."""
        self._on_note = on_note

    async def aclose(self) -> None:
        """Ends all calls and connections."""
        await end_tasks(*self._changes)
        for pool in [*self._ending, *self.pools]:
            await pool.aclose()

    def _way(self, group: Group) -> Way:
        """Makes an empty pool, with a gate and failover in front of it."""
        pool = Pool([], strategy_of(self._balance, random.Random()), may_be_empty=True)
        gate = self.gates.gate(pool, group.name, lambda: self._want(pool, gate))
        return Way(group, pool, gate, Failover(pool))

    def _seat(self, endpoint: Endpoint, group: Group) -> Seat:
        """Makes the seat of an endpoint in the pool of `group`."""
        attempts = self.attempts.setdefault(endpoint.label, Attempts())
        shared = replace(
            self._shared,
            slots=None if self._sharer is None else partial(self._shared_slots, group.name),
        )
        return seat_of(endpoint, shared=shared, attempts=attempts)

    def _shared_slots(self, pool: str, endpoint: Endpoint, count: int) -> Slots:
        assert self._sharer is not None
        made = slots_of(self._sharer, endpoint, count, pool=pool, most=self.most)
        self._slots[endpoint.label] = made
        return made

    def _demand(self, label: str) -> Demand:
        """Returns this worker's demand for slots of an endpoint."""
        gate = self._gate_of.get(label)
        return Demand() if gate is None else gate.demand(label)

    def _aim(self) -> None:
        """Maps model names to targets, and endpoint names to gates."""
        self._targets, self._open, self._gate_of = {}, None, {}
        for group, pool, gate, failover in self.ways:
            self._gate_of.update((one.label, gate) for one in group.endpoints)
            lines = self.gates.gated(pool, gate)
            anew = self.gates.gated(failover, gate)
            send = renew = anew.send
            if self.remembered is not None:
                use = self.cache_use
                cached = self.remembered(anew, identity=identity(*group.endpoints), use=use)
                send, renew = cached.send, cached.renew
            target = Target(
                lines, send, anew=anew.send, renew=renew, waits_for_slots=gate.waits_for_slots
            )
            for name, barred in group.barred.items():
                is_down = partial(_is_down, pool, barred)
                self._targets[name] = replace(target, barred=barred, is_down=is_down)
            if group.is_open:
                self._open = replace(target, is_down=partial(_is_down, pool))
        self._slots = {name: one for name, one in self._slots.items() if name in self._gate_of}

    def _want(self, pool: Pool, gate: Gate) -> None:
        """Asks other workers for slots of endpoints that waiting calls could use."""
        for member in pool.members:
            slots = self._slots.get(member.name)
            is_usable = not member.is_out and member.breaker.is_working
            if slots is not None and is_usable and gate.waits_for(member.name):
                slots.want()

    async def check_shares(self, endpoints: Sequence[Endpoint]) -> None:
        """Raises ConfigError if shared limits of new endpoints cannot be opened.

        Limits already shared by an endpoint of this lineup are not checked: they may be in use with
        other rates until that endpoint has left. At the start, `_join` raises the error instead.
        """
        known = {one.limits.share for one in self.endpoints}
        for one in endpoints:
            if one.limits.share and one.limits.share not in known:
                await asyncio.to_thread(_open_limits, one)

    def _join(self, pool: Pool, endpoint: Endpoint, group: Group, *, is_first: bool) -> None:
        """Adds an endpoint to a pool: at once, or after the changes for which it must wait.

        If the endpoint has shared limits, these are opened in a thread first, except at the start.
        is_first: the lineup had no endpoint before; ConfigError is raised only then. Otherwise, an
        endpoint whose limits cannot be opened is tried again every _AGAIN_S seconds: the limits may
        still be in use with old rates.
        """

        async def join() -> None:
            said = ""
            while any(way.pool is pool and endpoint in way.group.endpoints for way in self.ways):
                try:
                    if endpoint.limits.share:
                        await asyncio.to_thread(_open_limits, endpoint)
                    pool.add(self._seat(endpoint, group))
                except ConfigError as error:
                    if error.what != said:
                        said = error.what
                        self._on_note(f"{endpoint.label} cannot be used yet: {said}")
                    await asyncio.sleep(_AGAIN_S)
                else:
                    return

        if is_first or not (endpoint.limits.share or self._before(endpoint)):
            try:
                pool.add(self._seat(endpoint, group))
            except ConfigError:
                if is_first:
                    raise
            else:
                return
        self._in_turn(endpoint, join)

    def _before(self, endpoint: Endpoint) -> set[asyncio.Task[None]]:
        """Returns the incomplete changes for which a change of this endpoint must wait."""
        keys = _keys(endpoint)
        return {task for task, held in self._changes.items() if held & keys}

    def _in_turn(
        self, endpoint: Endpoint, change: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        """Starts a change of an endpoint as a task, which first waits for earlier changes of it."""
        before = self._before(endpoint)

        async def make() -> None:
            if before:
                await asyncio.wait(before)
            await change()

        return self._later(make, _keys(endpoint))

    async def _end(self, way: Way, removals: Collection[asyncio.Task[None]]) -> None:
        """Closes a pool that serves no model any more, once its endpoints have left."""
        if removals:
            await asyncio.wait(removals)
        await way.pool.aclose()
        del self._ending[way.pool]
        self._failovers += way.failover.failovers
        for one in way.gate.classes():
            old = self._classes.get(one.name)
            self._classes[one.name] = one if old is None else old.with_counts(one)

    def _later(
        self,
        change: Callable[[], Coroutine[Any, Any, None]],
        keys: frozenset[tuple[str, str]] = frozenset(),
    ) -> asyncio.Task[None]:
        """Starts a change as a task; `aclose` cancels it if it is still incomplete."""
        task = asyncio.get_running_loop().create_task(change())
        self._changes[task] = keys
        task.add_done_callback(self._changes.pop)
        return task


class FunctionLineup(Lineup):
    """A lineup of one function instead of endpoints; `aclose` also closes the function."""

    def __init__(self, function: ServedFunction, gates: Gates) -> None:
        self.function = function
        self.paths = function.paths
        super().__init__([], gates)

    async def aclose(self) -> None:
        await super().aclose()
        await self.function.aclose()

    def _aim(self) -> None:
        function = self.function
        send = function.send
        self._open = Target(function, send, anew=send, renew=send)
        self._targets = {function.name: self._open}


def _followed(groups: Sequence[Group], ways: Sequence[Way]) -> list[tuple[Group, Way | None]]:
    """Returns each group with the existing way that it continues, or None.

    A group that continues a way keeps the name of that way; a new group gets an unused name.
    """
    left, followed = [*ways], list[tuple[Group, Way | None]]()
    for group in groups:
        old = _predecessor(group, left)
        if old is not None:
            left.remove(old)
        followed.append((group, old))
    taken = {old.group.name for _, old in followed if old is not None}
    named = list[tuple[Group, Way | None]]()
    for group, old in followed:
        if old is None:
            others = (f"{group.name} {number}" for number in count(2))
            names = chain([group.name], sorted(group.barred), others)
            name = next(name for name in names if name not in taken)
            taken.add(name)
        else:
            name = old.group.name
        named.append((replace(group, name=name), old))
    return named


def _predecessor(group: Group, ways: Sequence[Way]) -> Way | None:
    """Returns the way that a group continues, with its calls; None if there is none.

    This is a way with a common model or, if no way has one, with a common endpoint.
    """
    models = set(group.barred)
    for way in ways:
        if models & set(way.group.barred) or (group.is_open and way.group.is_open):
            return way
    for way in ways:
        if group.labels & way.group.labels:
            return way
    return None


def _is_down(pool: Pool, barred: Collection[str] = ()) -> bool:
    """Whether none of the pool's endpoints works; barred ones are ignored."""
    members = (one for one in pool.members if one.name not in barred)
    return not any(one.breaker.is_working and not one.is_out for one in members)


def _open_limits(endpoint: Endpoint) -> None:
    """Opens the limits of an endpoint. Raises ConfigError if that fails. May block for seconds."""
    open_limiter(endpoint.limits, account_of(endpoint), SYSTEM)


async def _remove(pool: Pool, name: str) -> None:
    """Removes an endpoint from a pool, if it has joined the pool."""
    if any(member.name == name for member in pool.members):
        await pool.remove(name)


def _keys(endpoint: Endpoint) -> frozenset[tuple[str, str]]:
    """Returns what no two endpoints may have in common: the name, and the server with its key."""
    return frozenset({("name", endpoint.label), ("account", account_of(endpoint))})
