"""The waist of redline: a call goes in, an outcome comes out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypedDict, TypeVar

import msgspec
from msgspec.structs import force_setattr

from redline.clock import Clock
from redline.errors import TimedOut
from redline.waist.load import Load
from redline.waist.outcome import Outcome

T = TypeVar("T")


class _Counts(TypedDict, total=False):
    """Fields of a body by which answers are counted; all others are passed over."""

    n: Any
    prompt: Any
    input: Any


# By these fields of a body its answers are counted.
COUNTED = frozenset(_Counts.__annotations__)

_COUNTS = msgspec.json.Decoder(_Counts)


class _Named(TypedDict, total=False):
    """The same of the model."""

    model: str


_NAMED = msgspec.json.Decoder(_Named)
# The values of an object as the bytes that they were written with.
_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a Request is constructed with."""

    body: Any = msgspec.UNSET
    raw: bytes | None = None
    method: str = "POST"
    url: str = "/v1/chat/completions"
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    output_path: tuple[str | int, ...] = ()


_body_of: Callable[[_Given], Any] = _Given.__dict__["body"].__get__


class Request(_Given, frozen=True, kw_only=True, dict=True):
    """One call in the endpoint's own terms.

    url: a path such as `/v1/chat/completions`, joined to the endpoint's base URL.
    body: any value that can be encoded as JSON, None for no body; what a user's own coroutine is
    called with. Bytes are sent as they are, and want their Content-Type in `headers`. It is not to
    be changed in place: `with_fields` makes another request.
    raw: given instead of `body`, the JSON that is sent, byte for byte; `body` is then decoded from
    it when it is first read. None if `body` is given, which takes precedence.
    output_path: keys and indices that pick the answer from a plain JSON reply, outermost first.
    """

    def __post_init__(self) -> None:
        # After `msgspec.structs.replace(request, body=...)`, the old bytes must not be sent.
        if self.raw is not None and _body_of(self) is not msgspec.UNSET:
            force_setattr(self, "raw", None)

    @property  # type: ignore[misc]  # mypy knows no field that is read in another way
    def body(self) -> Any:
        """What is asked; `raw` itself if it is not JSON."""
        raw = self.raw
        if raw is None:
            body = _body_of(self)
            return None if body is msgspec.UNSET else body
        read = self.__dict__
        if "body" not in read:
            try:
                read["body"] = msgspec.json.decode(raw)
            except (ValueError, RecursionError):
                read["body"] = raw
        return read["body"]

    @property
    def asked(self) -> Any:
        """The body, or of JSON at least the fields that say how many answers are wanted."""
        raw, read = self.raw, self.__dict__
        if "asked" in read:
            return read["asked"]
        if raw is None or "body" in read:
            return self.body
        try:
            return _COUNTS.decode(raw)
        except (ValueError, RecursionError):
            return self.body

    @property
    def model(self) -> str | None:
        """The model that the body names; None if it names none."""
        read = self.__dict__
        if "model" not in read:
            read["model"] = self._named()
        model: str | None = read["model"]
        return model

    @classmethod
    def read(cls, raw: bytes, url: str, model: str | None) -> Request:
        """A request with this body, of which its model is known already."""
        request = cls(raw=raw, url=url)
        request.__dict__["model"] = model
        return request

    def carrying(self, raw: bytes, asked: Mapping[str, Any] | None) -> Request:
        """The request with this JSON as its body. asked: see there; None if it is to be decoded."""
        # Half the cost of a new one; a Struct does not declare it.
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
            return _NAMED.decode(raw).get("model")
        except (ValueError, RecursionError):
            return None

    def with_fields(self, **fields: Any) -> Request:
        """The request with these fields of its JSON object replaced or added.

        With `raw`, all other values keep their bytes; of a name that occurs twice, the last value
        is kept. A body that is not an object is left as it is.
        """
        if self.raw is None:
            body = _body_of(self)
            if not isinstance(body, dict):
                return self
            return msgspec.structs.replace(self, body={**body, **fields})
        try:
            values = _RAW_FIELDS.decode(self.raw)
        except (ValueError, RecursionError):
            return self
        return msgspec.structs.replace(self, raw=msgspec.json.encode({**values, **fields}))

    def __eq__(self, other: object) -> bool:
        """It is the same call, whether its body was given as a value or as JSON."""
        if not isinstance(other, Request):
            return NotImplemented
        has_same_bytes = self.raw is not None and self.raw == other.raw
        names = ("method", "url", "headers", "output_path")
        return (has_same_bytes or self.body == other.body) and all(
            getattr(self, name) == getattr(other, name) for name in names
        )

    def __repr__(self) -> str:
        """As it was constructed."""
        names = ["body" if self.raw is None else "raw", "method", "url", "headers", "output_path"]
        return f"Request({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class Held(Protocol):
    """Room that is taken until it is released."""

    def release(self) -> None:
        """May be called again."""


class Call(msgspec.Struct, kw_only=True):
    """What belongs to one call on its way through the backends, and what became of it so far.

    deadline_s: monotonic time after which no attempt starts or continues.
    priority: lower goes first. tenant: whose budget pays. avoid: endpoints not to use. unfit: those
    whose limits are too small for it.
    committed: the first chunk of the answer has been passed on, so nothing may be retried.
    attempts: attempts started. requests: written for what is asked now. sent_s: when the one in
    flight was written, None between attempts. refused: requests of this attempt that cost nothing,
    because an endpoint refused its key; another one takes the call.
    held: the memory that a long answer holds of the room for answers, until the caller releases it.
    once: it is never written twice, even if the connection that it was written on fails.
    on_write: called just before a request is written; a CallError that it raises ends the attempt,
    and nothing is written. on_wait: called when the call begins to wait for its next attempt: its
    slot is free until then. again_s: the server asked not to be sent it again before, by the
    monotonic clock; -inf if it did not, or the call does not wait for that.
    """

    deadline_s: float = math.inf
    priority: int = 0
    tenant: str = ""
    avoid: frozenset[str] = frozenset()
    unfit: frozenset[str] = frozenset()
    committed: bool = False
    attempts: int = 0
    requests: int = 0
    refused: int = 0
    sent_s: float | None = None
    held: Held | None = None
    once: bool = False
    on_write: Callable[[], None] | None = None
    on_wait: Callable[[], None] | None = None
    again_s: float = -math.inf

    async def in_time(self, waiting: Awaitable[T], clock: Clock, hint: str = "") -> T:
        """The result of `waiting`. Raises TimedOut at the deadline."""
        if self.deadline_s == math.inf:
            return await waiting
        try:
            async with asyncio.timeout(self.deadline_s - clock.now_s()):
                return await waiting
        except TimeoutError:
            raise TimedOut("row", hint=hint) from None

    def let_go(self) -> None:
        """The answer is not kept any more, or is its reader's own matter from here on."""
        if self.held is not None:
            self.held.release()
            self.held = None


class Chunk(msgspec.Struct, frozen=True):
    """One piece of a streamed answer.

    text: what is new of its first choice. data: the JSON of its event. raw: the bytes of the event
    as the endpoint sent them, with the blank line that ends it; the whole body of an endpoint that
    does not stream; b"" if the answer came from no endpoint.

    For a sink that relays: no text, no data, and in `raw` all that has come since the last chunk,
    comments and `[DONE]` included. All of `raw` is then what the endpoint sent, byte for byte, but
    for an event that is an error, which ends the call instead.
    """

    text: str
    data: Any
    raw: bytes = b""


class Outlet(Protocol):
    """A connection to the client of a stream whose body is sent in chunks (RFC 9112, 7.1).

    write: sends bytes as they are; None while the client has no room, or has left.
    """

    @property
    def write(self) -> Callable[[bytes], None] | None: ...


class Sink(Protocol):
    """Takes a streamed answer in order. Awaited, so a slow reader slows the connection down.

    relays: it wants the bytes alone. Of most events nothing is then decoded, and the reply has its
    usage and finish reason, but of chat and completions no output.
    """

    relays: bool = False

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The first chunk follows, of an answer with this HTTP status and these headers.

        headers: by their names in lower case; empty if the answer came from no endpoint.
        """
        return

    async def put(self, chunk: Chunk) -> None: ...

    def put_now(self, raw: bytes) -> bool:
        """Takes the bytes of an event that has nothing but text, and waits for nothing.

        False if it has not taken them: they are for `put`. Asked of sinks that relay, after the
        first chunk.
        """
        return False

    def outlet(self) -> Outlet | None:
        """What chunks can be written to as they came, in place of `put_now` with what they hold.

        None, the default, if there is nothing. Asked of sinks that relay, after the first chunk;
        used until the call is over.
        """
        return None


class Backend(Protocol):
    """One HTTP endpoint, a retry around one, a user's own coroutine: all are backends."""

    def load(self, now_s: float, request: Request | None = None) -> Load:
        """How it is now, and when this request could start; by default, the smallest one.

        now_s: by the monotonic clock. Never waits and books nothing.
        """

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        """Exactly one outcome. Raises nothing but CancelledError."""

    async def aclose(self) -> None:
        """Ends connections and tasks. The backend cannot be used afterwards."""


class Member(Backend, Protocol):
    """A backend that a pool holds.

    on_room: called when it may be able to take another call, unless that is plain to its holder: a
    call of its is over, or the time has come until which `load` said that it is parked. None if
    there is nothing to call.
    """

    on_room: Callable[[], None] | None

    def has_room(self, now_s: float, coming: int = 0) -> bool:
        """Whether it could take a call now, beside `coming` calls that are about to reach it.

        A slot and a place among those that wait for its limits are free, and it is not parked.
        """

    def withdraw(self, call: Call | None = None) -> int:
        """Takes back a call that waits: for a slot, a place ahead, a connection or its grant.

        None for all that wait. How many were taken back: their outcomes will be `Withdrawn`, their
        requests are not written, and what they held is free again. A call that has been written,
        or is about to be in this turn of the loop without having waited, or is not here, is not
        touched.
        """
