"""Counts the simulated provider's requests. Every request ends in exactly one class.

| class        | the request                                                             |
|--------------|-------------------------------------------------------------------------|
| `answered`   | received its whole reply: 200                                           |
| `rejected`   | was over a rate limit, or its key was parked: 429                       |
| `faults`     | received an injected fault                                              |
| `refused`    | was itself invalid: 400, 401, 404, 405, 408, 413                        |
| `overloaded` | found the queue for a free slot full: 503                               |
| `abandoned`  | had no whole reply when its client left or the server closed            |
| `in_flight`  | has not ended yet                                                       |

`received` is the sum of all classes at every moment. It excludes all requests for /sim/limits,
/sim/faults, /v1/files and /v1/batches; GET and HEAD requests for /health, /healthz, /metrics,
/sim/stats, /sim/requests, /sim/gaps and /v1/models; and anything that is not HTTP.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from typing import Any

import msgspec

CLASSES = ("answered", "rejected", "faults", "refused", "overloaded", "abandoned")
KEPT_REQUESTS = 100_000


class Ticket(msgspec.Struct, gc=False):
    """One request, in flight or ended.

    number: from 1, in order of arrival.
    arrival_s: monotonic; when the request had been read and the limits were checked.
    latency_s: the latency drawn according to the settings, with the time for the answer's tokens;
    0 until it is drawn.
    first_token_s: monotonic; when the first text of a stream was written, 0 for an answer that
    was sent at once.
    prompt_tokens, completion_tokens: 0 unless the request was answered.
    ended_s: monotonic; 0 until the request ends. status: the HTTP status; None if none was sent.
    outcome: the request's class; "" until it ends. detail: the kind of fault, the limit that
    refused the request, or `parked`.
    """

    number: int
    arrival_s: float
    latency_s: float = 0.0
    first_token_s: float = 0.0
    ended_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    status: int | None = None
    outcome: str = ""
    detail: str = ""


class Stats:
    """Keeps counters, and the last 100,000 requests in the order in which they ended."""

    def __init__(self) -> None:
        self._received = 0
        self._in_flight = 0
        self._most_in_flight = 0
        self.serving = 0
        self._most_serving = 0
        self._first_received_s: float | None = None
        self._last_received_s: float | None = None
        self._by_class = dict.fromkeys(CLASSES, 0)
        self._by_limit: Counter[str] = Counter()
        self._by_fault: Counter[str] = Counter()
        self._by_status: Counter[int | None] = Counter()
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._records: deque[Ticket] = deque(maxlen=KEPT_REQUESTS)
        self._gaps_s: deque[float] = deque(maxlen=KEPT_REQUESTS)

    def receive(self, now_s: float) -> Ticket:
        """Returns the ticket of a request that has just arrived; it is in flight from now on."""
        self._received += 1
        self._in_flight += 1
        if self._in_flight > self._most_in_flight:
            self._most_in_flight = self._in_flight
        if self._first_received_s is None:
            self._first_received_s = now_s
        self._last_received_s = now_s
        return Ticket(self._received, now_s)

    def settle(
        self, ticket: Ticket, outcome: str, status: int | None, now_s: float, detail: str = ""
    ) -> None:
        """Puts the request into its class; a second call has no effect.

        detail: the limit's name for `rejected`, the kind for `faults`. For an answered request,
        call `answer` instead.
        """
        if ticket.outcome:
            return
        ticket.outcome = outcome
        ticket.status = status
        ticket.ended_s = now_s
        self._in_flight -= 1
        self._by_class[outcome] += 1
        self._by_status[status] += 1
        if detail:
            ticket.detail = detail
        if outcome == "rejected":
            self._by_limit[detail] += 1
        elif outcome == "faults":
            self._by_fault[detail] += 1
        self._records.append(ticket)

    def answer(
        self, ticket: Ticket, prompt_tokens: int, completion_tokens: int, now_s: float
    ) -> None:
        """Settles an answered request, and counts its tokens."""
        self._prompt_tokens += prompt_tokens
        self._completion_tokens += completion_tokens
        ticket.prompt_tokens, ticket.completion_tokens = prompt_tokens, completion_tokens
        self.settle(ticket, "answered", 200, now_s)

    def wrote_text(self, ticket: Ticket, before_s: float, now_s: float) -> None:
        """Records a piece of a stream's text. before_s: the previous piece's time; 0 if none."""
        if before_s:
            self._gaps_s.append(now_s - before_s)
        else:
            ticket.first_token_s = now_s

    def last_gaps_s(self, limit: int) -> list[float]:
        """Returns the last `limit` intervals between two pieces of a stream's text, in seconds."""
        return list(islice(reversed(self._gaps_s), max(0, limit)))

    def begin_serving(self) -> None:
        """Records that a request has received its slot."""
        self.serving += 1
        self._most_serving = max(self._most_serving, self.serving)

    def serve_at_once(self) -> None:
        """Records that a request received a slot and released it at once."""
        if self.serving >= self._most_serving:
            self._most_serving = self.serving + 1

    def end_serving(self) -> None:
        """Records that a request has released its slot."""
        self.serving -= 1

    def as_dict(self) -> dict[str, Any]:
        """Returns the counters that `GET /sim/stats` shows. Times are monotonic seconds.

        `rejected` and `faults` are totals; `rejected_by_limit` and `faults_by_kind` split them.
        `serving`: the number of requests that hold a slot. `tokens`: those of answered requests.
        """
        return {
            "received": self._received,
            **self._by_class,
            "in_flight": self._in_flight,
            "most_in_flight": self._most_in_flight,
            "serving": self.serving,
            "most_serving": self._most_serving,
            "rejected_by_limit": dict(self._by_limit),
            "faults_by_kind": dict(self._by_fault),
            "by_status": {
                "none" if status is None else str(status): count
                for status, count in self._by_status.items()
            },
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "tokens": self._prompt_tokens + self._completion_tokens,
            "first_received_s": self._first_received_s,
            "last_received_s": self._last_received_s,
        }

    def last(self, limit: int) -> list[Ticket]:
        """Returns the last `limit` requests to end, ordered by number."""
        newest = islice(reversed(self._records), max(0, limit))
        return sorted(newest, key=lambda ticket: ticket.number)

    def __str__(self) -> str:
        """Returns `received` and its classes in one line, as printed when the server ends."""
        classes = {**self._by_class, "in flight": self._in_flight}
        told = [f"{count} {name}" for name, count in classes.items() if count]
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self._by_fault.items()))
        return (
            f"received {self._received} = {' + '.join(told) or '0'}"
            f"{f'; faults: {faults}' if faults else ''}; at most {self._most_in_flight} in flight"
        )
