"""Defines the records of a trace: JSON objects, one per line, each with its `kind`.

kind     meaning
run      a run has begun; later records belong to it, with times in seconds since it began
call     a call has ended
dropped  some calls were not recorded, because the disk did not keep up

Readers skip kinds that they do not know, so that kinds can be added. VERSION changes when the
meaning of a known kind changes.
"""

from __future__ import annotations

import msgspec

VERSION = 1


class EndpointFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one endpoint.

    weight: its capacity relative to the other endpoints. slots: its maximum calls in flight; 0 if
    it is searched for. requests, tokens, input_tokens, output_tokens: its rate limits after
    headroom, such as 500/60s. profile: the algorithm that enforces them, as in `Limits`.
    input_price, output_price: dollars per million tokens of the run's model; None if unknown.
    """

    name: str
    weight: float = 1.0
    slots: int = 0
    requests: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    input_tokens: tuple[str, ...] = ()
    output_tokens: tuple[str, ...] = ()
    input_price: float | None = None
    output_price: float | None = None
    profile: str = "any"


class RunBegan(msgspec.Struct, frozen=True, kw_only=True, tag="run", tag_field="kind"):
    """The first record of a run.

    v: VERSION. at: when the run began, in seconds since 1970-01-01 UTC. balance: the balancing
    strategy; "" with one endpoint.

    workers: the number of concurrent calls of a job, which makes its next call when one ends
    (closed loop); 0 for calls that arrive independently of earlier ones (open loop).
    """

    v: int
    at: float
    workers: int = 0
    balance: str = ""
    endpoints: tuple[EndpointFacts, ...] = ()


class Tried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt, with times in seconds since the run began.

    queued_s: when it began to wait for a slot or a connection; None if it did not wait. sent_s:
    when the request was written; None if it was not. first_byte_s: when the response began. done_s:
    when the attempt ended. error: the kind of its error; "" if it was answered.
    """

    endpoint: str
    done_s: float
    queued_s: float | None = None
    sent_s: float | None = None
    first_byte_s: float | None = None
    error: str = ""


class CallEnded(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="call", tag_field="kind"
):
    """One call, with its retries, and with times in seconds since the run began.

    arrived_s: when the call was made. done_s: when it ended. outcome: `succeeded`, the kind of its
    error, or `cancelled`. priority: calls with a lower number were sent first. input_tokens,
    output_tokens: from the answer's usage; None if unknown.
    blocks: hashes of the prefixes of its prompt, see `prefixes_of`. tried: at most its 32 latest
    attempts, oldest first; empty if it was cancelled.
    """

    arrived_s: float
    done_s: float
    outcome: str
    priority: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    blocks: tuple[int, ...] = ()
    tried: tuple[Tried, ...] = ()


class CallsDropped(msgspec.Struct, frozen=True, tag="dropped", tag_field="kind"):
    """Calls that could not be recorded. calls: their number."""

    calls: int


Record = RunBegan | CallEnded | CallsDropped
