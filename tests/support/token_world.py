"""redline's own backend in virtual time, against a server that counts tokens.

All that decides is real: HttpBackend with its estimator, its settling and its limiter, and the
simulated provider's way of counting. Only the bytes in between are not written to a socket.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from redline.calls import Call, Endpoint, HttpBackend, Request
from redline.calls.wire import Answer, Exchange, Stops, TaskTimeout, Transport
from redline.limits import Limits, Rate
from redline.sim import Admission, Charge
from redline.testing import VirtualClock, virtual_run
from support.swapping import Swap

ALGORITHMS = ("fixed", "moving", "counter", "bucket")
_WORDS = ("the", "of", "a", "house", "river", "standing", "between", "every", "morning", "people")
# The tokenizer of this world: one token for so many characters, and some for the chat format.
_CHARS_PER_TOKEN, _TEMPLATE = 4.2, 7
_START_S = 1000.0


@dataclass(frozen=True)
class Traffic:
    """What the calls are like.

    prompt_tokens: each number between these is as likely. output_tokens: the mean of a lognormal
    of this shape, cut at most_tokens, which each request states; None for a request that states no
    maximum. latency_s: from and to; per_token_s comes on top for each token of the answer.
    """

    prompt_tokens: tuple[int, int] = (50, 400)
    output_tokens: float = 200.0
    shape: float = 0.6
    most_tokens: int | None = 1024
    latency_s: tuple[float, float] = (0.5, 3.0)
    per_token_s: float = 0.0


@dataclass(frozen=True)
class Setting:
    """A server and what is asked of it.

    rates: by kind, as in Limits, and the same for both sides. charge: when the server counts
    tokens, as `redline sim --charge` has it. phase: the server's clock at the first send, in
    windows. jitter_s: each call comes by 0 to so much late to the server's limiter.
    """

    algorithm: str
    rates: Mapping[str, Rate]
    profile: str = "any"
    charge: str = "actual"
    traffic: Traffic = Traffic()
    concurrency: int = 64
    windows: float = 4.2
    phase: float = 0.0
    jitter_s: float = 0.05
    seed: int = 1

    @property
    def window_s(self) -> float:
        return max(rate.window_s for rate in self.rates.values())


@dataclass
class Sent:
    """One call as it was written: when, what it used, and what became of it.

    most_tokens: input and the most that the request allows of output. arrived_s: when it came to
    the server's limiter; is_admitted: what that said. ended_s: of its answer. Each None where the
    world had ended before.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    most_tokens: int
    arrived_s: float | None = None
    is_admitted: bool | None = None
    ended_s: float | None = None

    def amount(self, kind: str) -> int:
        if kind == "tokens":
            return self.input_tokens + self.output_tokens
        return {"requests": 1}.get(kind) or int(getattr(self, kind))


@dataclass
class Found:
    """What came of it: the calls in the order of their writes."""

    setting: Setting
    calls: list[Sent] = field(default_factory=list)
    backend: HttpBackend | None = None
    _counted: dict[str, list[tuple[float, int, bool]]] = field(default_factory=dict)

    @property
    def rejected(self) -> int:
        return sum(call.is_admitted is False for call in self.calls)

    def rejections(self, server: Any, charge: str, phase: float = 0.0) -> int:
        """How many of these calls another server would reject that limits tokens.

        server: a window of its own. charge: when it counts, as in Setting. phase: its clock at the
        first send, in windows. Exact as long as nobody was rejected, since calls differ by that
        alone.
        """
        since_s = phase * self.setting.window_s
        rejected = 0
        if charge not in self._counted:
            self._counted[charge] = self._events(charge)
        for at_s, amount, is_asked in self._counted[charge]:
            now_s = at_s + since_s
            if is_asked and server.wait_s(amount, now_s) > 1e-6:
                rejected += 1
            else:
                server.take(amount, now_s)
        return rejected

    def _events(self, charge: str) -> list[tuple[float, int, bool]]:
        """What a server that charges so counts: when, how much, and whether it may reject it."""
        (kind,) = self.setting.rates
        events: list[tuple[float, int, bool]] = []
        for call in self.calls:
            if call.arrived_s is None:
                continue
            if charge == "answered":
                events.append((call.arrived_s, call.input_tokens, True))
                if call.ended_s is not None:
                    events.append((call.ended_s, call.output_tokens, False))
            else:
                amount = call.most_tokens if charge == "reserved" else call.amount(kind)
                events.append((call.arrived_s, amount, True))
        return sorted(events)

    def used(self, kind: str = "tokens", *, after_windows: float = 0.0) -> float:
        """The share of what the server would have let in of `kind`, by the actual usage.

        From the first call, or so many windows after it, to the last one. What the last one paid
        for comes after it, so it counts in neither.
        """
        rate = self.setting.rates[kind]
        since_s = self.calls[0].at_s + after_windows * rate.window_s
        sends = [call for call in self.calls if call.at_s >= since_s]
        lasted_s = sends[-1].at_s - sends[0].at_s
        used = sum(call.amount(kind) for call in sends[:-1] if call.is_admitted is not False)
        return used / self.allowed(rate, lasted_s, is_first=after_windows == 0)

    def allowed(self, rate: Rate, lasted_s: float, *, is_first: bool) -> float:
        """What the server lets in within lasted_s. A burst counts where the profile makes one.

        is_first: it has seen nothing before.
        """
        steady = rate.count * lasted_s / rate.window_s
        if self.setting.profile in ("fixed", "moving"):
            return rate.count * (math.floor(lasted_s / rate.window_s) + 1)
        if self.setting.profile == "bucket" and is_first:
            return rate.count + steady
        return steady


class _Requests:
    """Draws calls one after the other, and knows what each will use."""

    def __init__(self, traffic: Traffic, chance: random.Random) -> None:
        self._traffic = traffic
        self._chance = chance
        self._numbers = itertools.count()
        self.usage: dict[int, tuple[int, int]] = {}

    def next(self) -> Request:
        traffic, chance = self._traffic, self._chance
        number = next(self._numbers)
        prompt_tokens = chance.randint(*traffic.prompt_tokens)
        text = _text(chance, (prompt_tokens - _TEMPLATE) * _CHARS_PER_TOKEN)
        prompt_tokens = round(len(text) / _CHARS_PER_TOKEN) + _TEMPLATE
        mu = math.log(traffic.output_tokens) - traffic.shape**2 / 2
        output = max(1, round(chance.lognormvariate(mu, traffic.shape)))
        if traffic.most_tokens is not None:
            output = min(output, traffic.most_tokens)
        self.usage[number] = (prompt_tokens, output)
        message = {"role": "user", "content": text}
        body: dict[str, Any] = {"model": "m", "messages": [message], "user": str(number)}
        if traffic.most_tokens is not None:
            body["max_tokens"] = traffic.most_tokens
        return Request(raw=msgspec.json.encode(body))


def _text(chance: random.Random, length: float) -> str:
    words: list[str] = []
    while length > 0:
        # What chance.choice draws, in half the time.
        while (number := chance.getrandbits(4)) >= len(_WORDS):
            pass
        words.append(_WORDS[number])
        length -= len(words[-1]) + 1
    return " ".join(words)


class _Server(Transport):
    """Takes each call at the gate of its exchange, as a connection would, and answers it."""

    def __init__(self, endpoint: Endpoint, found: Found, requests: _Requests) -> None:
        super().__init__(endpoint, VirtualClock(asyncio.get_running_loop()), lambda took_s: None)
        setting = found.setting
        rates = {kind.replace("_", "-"): [rate] for kind, rate in setting.rates.items()}
        self._admission = Admission(rates, setting.algorithm)
        self._found = found
        self._requests = requests
        self._chance = random.Random(f"{setting.seed} server")
        self._phase_s = setting.phase * setting.window_s

    async def exchange(self, exchange: Exchange, *_: object) -> Answer:
        setting = self._found.setting
        chance, traffic, loop = self._chance, setting.traffic, asyncio.get_running_loop()
        body = msgspec.json.decode(exchange.body)
        usage = self._requests.usage.pop(int(body["user"]))
        async with TaskTimeout(Stops(VirtualClock(loop))) as alarm:
            exchange.follow(alarm)
            await exchange.get_ready()
            await exchange.wait_for_grant()
            exchange.leave(alarm)
            most = body.get("max_tokens", usage[1])
            call = Sent(loop.time(), *usage, usage[0] + most)
            self._found.calls.append(call)
            if setting.jitter_s:
                await asyncio.sleep(chance.uniform(0, setting.jitter_s))
            call.arrived_s = loop.time()
            charge = self._charge(usage, body)
            call.is_admitted = self._admission.ask(charge, self._now_s()) is None
            if not call.is_admitted:
                exchange.headers_came()
                return Answer(429, {}, b"{}")
            await asyncio.sleep(chance.uniform(*traffic.latency_s) + traffic.per_token_s * usage[1])
            if setting.charge == "answered":
                self._admission.count(Charge(output_tokens=usage[1], requests=0), self._now_s())
            call.ended_s = loop.time()
            exchange.headers_came()
            return Answer(200, {}, _reply(usage))

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() + self._phase_s

    def _charge(self, usage: tuple[int, int], body: dict[str, Any]) -> Charge:
        prompt_tokens, output = usage
        if self._found.setting.charge == "answered":
            output = 0
        elif self._found.setting.charge == "reserved":
            output = body.get("max_tokens", output)
        return Charge(prompt_tokens, output)


def _reply(usage: tuple[int, int]) -> bytes:
    message = {"message": {"content": "yes"}, "finish_reason": "stop"}
    tokens = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return json.dumps({"choices": [message], "usage": tokens}).encode()


def drive(setting: Setting, backend_class: type[HttpBackend] = HttpBackend) -> Found:
    """`setting.windows` windows with calls always waiting, from scratch, in virtual time."""
    return virtual_run(_drive(setting, backend_class), start_s=_START_S)


async def _drive(setting: Setting, backend_class: type[HttpBackend]) -> Found:
    found = Found(setting)
    charge = "reserved" if setting.charge == "reserved" else "actual"
    limits = Limits(
        **setting.rates,
        profile=setting.profile,
        concurrency=setting.concurrency,
        charge=charge,
    )
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", limits=limits, proxy="")
    requests = _Requests(setting.traffic, random.Random(f"{setting.seed} calls"))
    server = _Server(endpoint, found, requests)
    clock = VirtualClock(asyncio.get_running_loop())
    with Swap((Transport, lambda *_, **__: server)):
        backend = backend_class(endpoint, clock=clock)

    async def work() -> None:
        while True:
            await backend.send(requests.next(), Call())

    workers = [asyncio.create_task(work()) for _ in range(setting.concurrency)]
    await asyncio.sleep(setting.windows * setting.window_s)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    await backend.aclose()
    found.backend = backend
    return found
