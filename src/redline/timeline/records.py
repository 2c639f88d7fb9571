"""The records of a trace: one JSON object per line, whose `kind` names what it is.

kind     is
run      a run has begun; the records that follow belong to it, with times in seconds since then
call     a call is over
dropped  calls that were not recorded, because the disk did not keep up

Readers skip kinds that they do not know, so that kinds can be added. VERSION changes when the
meaning of a known kind changes.
"""

from __future__ import annotations

import msgspec

VERSION = 1


class EndpointFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one endpoint.

    weight: its capacity relative to the other endpoints. slots: maximum calls in flight, 0 if not
    configured. requests, tokens, input_tokens, output_tokens: its rate limits, such as 500/60s;
    profile: how it counts them. input_price, output_price: dollars per million tokens of the run's
    model, None if unknown.
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

    v: VERSION. at: seconds since 1970-01-01 UTC. balance: the balancing strategy.

    workers: concurrent calls of a job that makes its next call when one ends (closed loop); 0 for
    calls that arrive independently of earlier ones (open loop).
    """

    v: int
    at: float
    workers: int = 0
    balance: str = ""
    endpoints: tuple[EndpointFacts, ...] = ()


class Tried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt. error: its kind, empty for the answer.

    queued_s: when it began to wait at the endpoint, None if it did not wait. sent_s: when it was
    written, None if it was not. first_byte_s: of the answer. done_s: when it ended.
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
    """One call, with its retries. outcome: `succeeded`, the kind of its error, or `cancelled`.

    arrived_s: when it was made. input_tokens, output_tokens: from the answer's usage, None if
    unknown. blocks: hashes of the prefixes of its prompt, see `prefixes_of`. tried: its attempts,
    oldest first, at most 32.
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
    """Calls that could not be recorded.

    calls: how many.
    """

    calls: int


Record = RunBegan | CallEnded | CallsDropped
