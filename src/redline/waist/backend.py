"""Defines the protocol of backends, each of which turns a call into an outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypedDict, TypeVar

import msgspec
from msgspec.structs import force_setattr

from redline.clock import Clock
from redline.errors import TimedOut
from redline.structs import mutable
from redline.waist.load import Load
from redline.waist.outcome import Outcome
from redline.waist.surrogates import replacing_halves

T = TypeVar("T")

# What to do if a row of a run, or a single call, has run out of time.
MORE_TIME = "raise --row-deadline, or in Python row_deadline_s or the call's deadline_s"


class _Counts(TypedDict, total=False):
    """The fields of a body that determine how many answers it requests; all others are ignored."""

    n: Any
    prompt: Any
    input: Any


# The names of the fields that determine how many answers a body requests.
COUNTED = frozenset(_Counts.__annotations__)

_decode_counts = msgspec.json.Decoder(_Counts).decode


class _Named(TypedDict, total=False):
    """The field of a body that names its model."""

    model: str


_NAMED = msgspec.json.Decoder(_Named)
# The values of an object as their original bytes.
_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _merged(values: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    merged = {**values, **fields}
    return {name: value for name, value in merged.items() if value is not msgspec.UNSET}


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a Request is constructed with."""

    body: Any = msgspec.UNSET
    raw: bytes | None = None
    method: str = "POST"
    url: str = "/v1/chat/completions"
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    output_path: tuple[str | int, ...] = ()


class Request(_Given, frozen=True, kw_only=True, dict=True):
    """One request, in the format of the endpoint's API.

    url: a path such as `/v1/embeddings`, joined to the endpoint's base URL. method: the HTTP
    method. headers: HTTP headers, which take precedence over those of the endpoint. Without these
    fields, the request is a POST for a chat completion.
    body: any value that can be encoded as JSON, or None for no body. A user's own coroutine gets
    a copy of the body as its argument. Bytes are sent unchanged, and need a Content-Type in
    `headers` unless they are JSON. Do not change the body in place: `with_fields` returns a changed
    request.
    raw: the JSON to send, given instead of `body`; it is sent byte for byte unless redline has to
    change a field, such as the model's name. `body` is then decoded from `raw` when it is first
    read. If both are given, `body` takes precedence and `raw` is None.
    output_path: keys and indices that select the answer in the reply's JSON, outermost first; empty
    for the answer as the API defines it.
    """

    # The descriptor of the field `body`, which the property `body` hides.
    _given: ClassVar[Any] = _Given.__dict__["body"]

    def __post_init__(self) -> None:
        # After `msgspec.structs.replace(request, body=...)`, the old bytes must not be sent.
        if self.raw is not None and self._given is not msgspec.UNSET:
            force_setattr(self, "raw", None)

    @property  # type: ignore[misc]  # mypy does not support a property that overrides a field
    def body(self) -> Any:
        """The request's body; `raw` itself if it is not JSON."""
        raw = self.raw
        if raw is None:
            body = self._given
            return None if body is msgspec.UNSET else body
        read = self.__dict__
        if "body" not in read:
            try:
                read["body"] = replacing_halves(msgspec.json.decode, raw)
            except (ValueError, RecursionError):
                read["body"] = raw
        return read["body"]

    @property
    def asked(self) -> Any:
        """The body; if it is undecoded, only its fields that say how many answers it requests.

        None if the number of answers must not be checked.
        """
        read = self.__dict__
        if "asked" in read:
            return read["asked"]
        raw = self.raw
        if raw is None or "body" in read:
            return self.body
        try:
            return replacing_halves(_decode_counts, raw)
        except (ValueError, RecursionError):
            return self.body

    @property
    def model(self) -> str | None:
        """The `model` of the body; None if the body has none."""
        read = self.__dict__
        if "model" not in read:
            read["model"] = self._named()
        model: str | None = read["model"]
        return model

    @classmethod
    def read(cls, raw: bytes, url: str, model: str | None) -> Request:
        """Returns a request with this JSON as its body; the number of its answers is not checked.

        Not every server returns as many answers as the client requests. model: the `model` of the
        JSON, or None.
        """
        request = cls(raw=raw, url=url)
        request.__dict__.update(model=model, asked=None)
        return request

    def carrying(self, raw: bytes, asked: Mapping[str, Any] | None) -> Request:
        """Returns a copy with this JSON as its body.

        asked: the copy's `asked`; None to read it from `raw`.
        """
        # `__copy__`, which Struct does not declare, costs half as much as a new request.
        request: Request = self.__copy__()  # type: ignore[attr-defined]
        force_setattr(request, "raw", raw)
        if asked is not None:
            request.__dict__["asked"] = asked
        return request

    def _named(self) -> str | None:
        raw = self.raw
        if raw is None or "body" in self.__dict__:
            body = self.body
            found = body.get("model") if isinstance(body, dict) else None
            return found if isinstance(found, str) else None
        try:
            return replacing_halves(_NAMED.decode, raw).get("model")
        except (ValueError, RecursionError):
            return None

    def with_fields(self, **fields: Any) -> Request:
        """Returns a copy of the request with these fields of its JSON object replaced or added.

        A value of `msgspec.UNSET` removes the field. With `raw`, all other values keep their bytes,
        except halves of surrogate pairs, which become U+FFFD; if a name occurs twice, its last
        value is kept. If the body is not an object, the request is returned unchanged.
        """
        if self.raw is None:
            body = self._given
            if not isinstance(body, dict):
                return self
            return msgspec.structs.replace(self, body=_merged(body, fields))
        try:
            values = replacing_halves(_RAW_FIELDS.decode, self.raw)
        except (ValueError, RecursionError):
            return self
        changed = msgspec.structs.replace(self, raw=msgspec.json.encode(_merged(values, fields)))
        if "asked" in self.__dict__ and self.asked is None:
            changed.__dict__["asked"] = None
        return changed

    def __eq__(self, other: object) -> bool:
        """Whether both make the same call, even if only one was constructed with `raw`."""
        if not isinstance(other, Request):
            return NotImplemented
        has_same_bytes = self.raw is not None and self.raw == other.raw
        names = ("method", "url", "headers", "output_path")
        return (has_same_bytes or self.body == other.body) and all(
            getattr(self, name) == getattr(other, name) for name in names
        )

    def __repr__(self) -> str:
        """Returns the expression that constructs the request."""
        names = ["body" if self.raw is None else "raw", "method", "url", "headers", "output_path"]
        return f"Request({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class Held(Protocol):
    """Memory or another resource that is held until it is released."""

    @property
    def is_wanted(self) -> bool:
        """Whether other calls wait for the resource."""

    def release(self) -> None:
        """Releases the resource; further calls do nothing."""


@mutable
class Call(msgspec.Struct, kw_only=True):
    """The state of one call on its way through the backends.

    deadline_s: monotonic time after which no attempt starts or continues.
    priority: calls with a lower number are sent first. tenant: the tenant that the call is for;
    empty for none. avoid: endpoints that the call must not use now.
    unfit: endpoints whose limits are too small for the call, or that do not serve it. barred:
    endpoints that the call must never use, such as those without its model; `avoid` includes them.
    committed: True once the first chunk of the answer has been passed on: no retry may follow.
    is_last: whether a failure of the next attempt, after earlier ones, will end the call.
    attempts: the number of attempts started. faults: how many of them failed at an endpoint of a
    pool, not counting 429s, failed connections and requests that another endpoint may accept.
    requests: how many times the current request was written. sent_s: the monotonic time when the
    request in flight was written; None between attempts. refused: the number of requests of this
    attempt that cost nothing, because an endpoint refused them; the call is sent again. billed_at:
    the endpoint whose failed attempt may have been billed, until another endpoint has the request.
    held: a long answer's share of the memory for answers, until the caller releases it.
    once: True if the request must never be written twice, even if its connection fails.
    on_write: called just before a request is written; a CallError that it raises ends the attempt,
    and nothing is written. on_wait: called when the call begins to wait for its next attempt;
    it holds no slot while it waits. again_s: the monotonic time before which no endpoint takes the
    call again. A pool sets it after a failure at a parked endpoint, and Retry while the call waits
    for the end of a Retry-After; otherwise it is -inf.
    silent_s: the monotonic time when the request was written, if the call was then cancelled before
    a byte of the response arrived; otherwise None.
    """

    deadline_s: float = math.inf
    priority: int = 0
    tenant: str = ""
    avoid: frozenset[str] = frozenset()
    unfit: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()
    committed: bool = False
    is_last: bool = False
    attempts: int = 0
    faults: int = 0
    requests: int = 0
    refused: int = 0
    billed_at: str = ""
    sent_s: float | None = None
    held: Held | None = None
    once: bool = False
    on_write: Callable[[], None] | None = None
    on_wait: Callable[[], None] | None = None
    again_s: float = -math.inf
    silent_s: float | None = None

    def bar(self, barred: frozenset[str]) -> None:
        """Bars the call from these endpoints for good, and lets it use all others again."""
        self.avoid = self.barred = barred
        self.unfit = frozenset()

    async def in_time(self, waiting: Awaitable[T], clock: Clock, hint: str = "") -> T:
        """Awaits `waiting` and returns its result. Raises TimedOut at the deadline."""
        if self.deadline_s == math.inf:
            return await waiting
        try:
            async with asyncio.timeout(self.deadline_s - clock.now_s()):
                return await waiting
        except TimeoutError:
            raise TimedOut("row", hint=hint) from None

    def let_go(self) -> None:
        """Releases `held`, once the long answer is dropped or has been passed on to its reader."""
        if self.held is not None:
            self.held.release()
            self.held = None


class Chunk(msgspec.Struct, frozen=True):
    """One piece of a streamed answer.

    text: the new text of the first choice. data: the decoded JSON of the event. raw: the bytes of
    the event as the endpoint sent them, with the blank line that ends the event; the whole body if
    the endpoint does not stream; b"" if the answer came from no endpoint.

    A sink that relays gets neither text nor data; `raw` then has all bytes since the last chunk,
    including comments and `[DONE]`, except those that `put_now` or an outlet has taken. Together,
    these are what the endpoint sent, byte for byte, except that an event with an error ends the
    call and is not passed on.
    """

    text: str
    data: Any
    raw: bytes = b""


class Outlet(Protocol):
    """A connection to the client of a stream whose body is sent in chunks (RFC 9112, 7.1).

    write: a function that sends bytes unchanged; None while the client has no room for more, or
    after the client has disconnected.
    """

    @property
    def write(self) -> Callable[[bytes], None] | None: ...


class Sink(Protocol):
    """Receives a streamed answer in order, and is awaited: a slow sink slows the connection.

    relays: True if the sink wants only the bytes. Most events are then not decoded: a reply of chat
    or completions has its usage and finish reason, but no output.
    """

    relays: bool = False

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Receives the response's HTTP status and headers before the first chunk.

        headers: keyed by lower-case name; empty if the answer came from no endpoint.
        """
        return

    async def put(self, chunk: Chunk) -> None: ...

    def put_now(self, raw: bytes) -> bool:
        """Takes the bytes of an event that contains only text, without waiting.

        Returns False if the sink cannot take them now: they are then passed to `put`. Called only
        for sinks that relay, after the first chunk.
        """
        return False

    def outlet(self) -> Outlet | None:
        """Returns an outlet that takes the HTTP chunks as received; None to use `put_now` instead.

        Called only for sinks that relay, after the first chunk; the outlet is used until the call
        is over.
        """
        return None


class Backend(Protocol):
    """Answers calls: an HTTP endpoint, a retry around another backend, or a user's coroutine."""

    def load(self, now_s: float, request: Request | None = None) -> Load:
        """Returns the current load, including when the request could start.

        now_s: monotonic time. request: None for the smallest possible request. Never waits, and
        reserves nothing.
        """

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        """Sends the request and returns its outcome. Raises nothing but CancelledError."""

    async def aclose(self) -> None:
        """Closes connections and ends tasks. The backend cannot be used afterwards."""


@dataclass(eq=False, repr=False)
class Around:
    """Base of backends that wrap another backend: passes `load` and `aclose` on to it."""

    _inner: Backend

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return self._inner.load(now_s, request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def is_backend(thing: object) -> bool:
    """Whether `thing` is a Backend, rather than a function or a class."""
    parts = (getattr(thing, name, None) for name in ("send", "load", "aclose"))
    return not isinstance(thing, type) and all(map(callable, parts))


class Member(Backend, Protocol):
    """A backend that a pool holds.

    on_room: called when the backend may be able to take another call; None for no callback. It need
    not be called when one of the backend's calls ends, nor once `parked_until_s` or `opens_s` of
    the last load has passed: the pool notices both by itself.
    """

    on_room: Callable[[], None] | None

    def has_room(self, now_s: float, coming: int = 0) -> bool:
        """Whether the backend could take a call now, besides `coming` calls about to reach it.

        That is: the backend is not parked, it has a free slot and a free place to wait for its
        limits, and its limits will admit the call soon.
        """

    def withdraw(self, call: Call | None = None) -> int:
        """Withdraws a call that waits for a slot, a connection or a grant.

        call: None for all waiting calls. Returns the number of withdrawn calls. Their outcomes will
        have the error `Withdrawn`, their requests will not be written (again), and the slots and
        grants that they held will be free again. A call is not withdrawn if it is not at this
        backend, if it has been written and does not wait to be written again, or if it is about to
        be written in this turn of the event loop without having waited.
        """
