"""Measures the throughput of anything that answers requests, from Python: `ThroughputMetrics`."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import cycle
from typing import Any, Self, TypedDict, Unpack

import msgspec

from redline.errors import ConfigError, check_known
from redline.measure.callers import caller_of
from redline.measure.figures import Figures
from redline.measure.load import Plan
from redline.measure.measuring import Interrupts, Measuring, in_own_loop, measured
from redline.measure.schedule import constant, poisson
from redline.measure.slo import parse_objectives
from redline.process import DaemonThreads, is_in_loop
from redline.structs import check_number

ARRIVALS = ("constant", "poisson")
MOST_CONCURRENCY = 100_000
# The default of similar tools: enough to keep a small server busy without flooding it.
USUAL_CONCURRENCY = 16
# The default maximum of calls in flight on a schedule; further calls wait.
SCHEDULE_CONCURRENCY = 1000
_LONGEST_S = 31 * 86_400.0
_COUNTS = ("concurrency", "batch_size", "limit")
_NUMBERS = ("rate_per_s", "warm_up_s", "think_time_s")
_OTHERS: dict[str, tuple[type, str]] = {
    "seed": (int, "a whole number"),
    "stream": (bool, "True or False"),
    "slo": (str, "a text"),
}


class LoadOptions(TypedDict, total=False):
    """The options of a load.

    concurrency: the number of concurrent calls, 1 to 100,000, by default 16, or 1 for functions of
    lists; with a rate, maximum calls in flight, by default 1,000. rate_per_s: the rate at which
    requests are due, regardless of earlier requests, above 0 and at most 1,000,000; a list is due
    with its last request. arrivals: "constant" (the default) or "poisson"; needs a rate. seed: the
    seed of Poisson arrivals, 0 by default. warm_up_s: the first part of the duration, in seconds,
    which is not measured; 0 by default, and below the duration. limit: maximum requests, at least
    1; by default, only the duration limits them. batch_size: maximum requests in a list, for a
    handler that takes lists. stream: True (the default) requests streams from an endpoint whose API
    has them, False whole answers. slo: objectives such as "ttft<500ms,latency<3s". think_time_s: a
    user's pause in seconds between two requests, for `concurrent_users` only, 0 by default.
    """

    concurrency: int
    rate_per_s: float
    arrivals: str
    seed: int
    warm_up_s: float
    limit: int
    batch_size: int
    stream: bool
    slo: str
    think_time_s: float


class ThroughputMetrics(Figures, frozen=True, kw_only=True):
    """The figures of a load; see Figures for the fields.

    metrics = redline.ThroughputMetrics.measure(handler, requests, duration_s=60)
    print(metrics.requests_per_s, metrics.tokens_per_s)
    """

    @classmethod
    def measure(
        cls,
        handler: Any,
        requests: Iterable[Any],
        duration_s: float = 60.0,
        **options: Unpack[LoadOptions],
    ) -> Self:
        """Measures the throughput of `handler` over duration_s seconds, above 0, at most 31 days.

        handler: a Backend, a Client, or a function of one request, async or plain; with
        `batch_size`, of a list of requests, which returns a list of the same length. The items of
        an async generator are the pieces of a streamed answer. A plain function runs in threads.
        requests: a list is repeated from its beginning; the load ends with the end of any other
        iterable. For a backend: Requests, bodies of chat completions, or strings.
        options: see LoadOptions. Works in a script and in a notebook; in other code with a running
        event loop, use `await ThroughputMetrics.ameasure(...)`. Ctrl-C ends the load and returns
        the figures so far. Failed calls are counted in the figures. Raises ConfigError for invalid
        options or requests, and RedlineError if an error that every call would meet, such as a
        refused key, ended the load before any success.
        """
        interrupts = Interrupts()

        def work() -> Coroutine[Any, Any, Self]:
            return cls._measured(handler, requests, duration_s, options, interrupts)

        if not is_in_loop():
            return in_own_loop(work, interrupts)
        _refuse_to_block()
        thread = DaemonThreads(1, "redline-measure")
        ending: Future[Self] = thread.submit(lambda: in_own_loop(work, interrupts))
        thread.shutdown(wait=False)
        while True:
            try:
                return ending.result()
            except KeyboardInterrupt:
                # A notebook's stop button reaches this thread; the load has its own.
                interrupts.interrupt()

    @classmethod
    async def ameasure(
        cls,
        handler: Any,
        requests: Iterable[Any],
        duration_s: float = 60.0,
        **options: Unpack[LoadOptions],
    ) -> Self:
        """Measures as `measure` does, in the running event loop. Does not handle signals."""
        return await cls._measured(handler, requests, duration_s, options, None)

    @classmethod
    async def _measured(
        cls,
        handler: Any,
        requests: Iterable[Any],
        duration_s: float,
        options: LoadOptions,
        interrupts: Interrupts | None,
    ) -> Self:
        _check(options, duration_s)
        plan = _plan(options, duration_s)
        caller = caller_of(
            handler,
            batch_size=options.get("batch_size"),
            threads=plan.concurrency,
            is_streamed=options.get("stream", True),
        )
        what = Measuring(
            caller=caller,
            target=caller.label,
            words=load_words(plan, options.get("rate_per_s"), options.get("arrivals")),
            objectives=parse_objectives(options["slo"]) if "slo" in options else (),
            on_start=None if interrupts is None else interrupts.watch,
        )
        try:
            figures = await measured(what, plan, _endless(requests))
        finally:
            caller.close()
        found = cls(**{name: getattr(figures, name) for name in figures.__struct_fields__})
        if found.concurrent_users is None:
            return found
        users = found.concurrent_users + found.requests_per_s * options.get("think_time_s", 0.0)
        return msgspec.structs.replace(found, concurrent_users=users)


def load_words(plan: Plan, rate_per_s: float | None, arrivals: str | None) -> str:
    """Describes the load in words."""
    if rate_per_s is not None:
        kind = "Poisson arrivals" if arrivals == "poisson" else "constant rate"
        return f"{rate_per_s:g} requests/s, {kind}, at most {plan.concurrency:,} in flight"
    if plan.schedule is not None:
        return f"recorded arrivals, at most {plan.concurrency:,} in flight"
    return f"closed loop of {plan.concurrency:,}"


def checked_plan(plan: Plan) -> Plan:
    """Returns the plan unchanged. Raises ConfigError if it is invalid."""
    duration_s, warm_up_s = plan.duration_s, plan.warm_up_s
    if not 0 < duration_s <= _LONGEST_S:
        raise ConfigError(
            f"the duration must be above 0 s and at most 31 days, not {duration_s:g} s"
        )
    if warm_up_s < 0:
        raise ConfigError(f"the warm-up must be 0 s or more, not {warm_up_s:g} s")
    if warm_up_s >= duration_s:
        raise ConfigError(
            f"the warm-up of {warm_up_s:g} s leaves none of the {duration_s:g} s duration to "
            "measure",
            hint="the warm-up is part of the duration: make the duration longer",
        )
    if not 1 <= plan.concurrency <= MOST_CONCURRENCY:
        raise ConfigError(f"concurrency must be 1 to {MOST_CONCURRENCY:,}, not {plan.concurrency}")
    if plan.most is not None and plan.most < 1:
        raise ConfigError(f"limit must be at least 1 request, not {plan.most}")
    return plan


def schedule_of(rate_per_s: float, arrivals: str, seed: int) -> Iterator[float]:
    """Returns the times when requests are due. Raises ConfigError for an invalid rate or arrivals.

    rate_per_s: above 0, at most 1,000,000. arrivals: one of ARRIVALS. seed: used by `poisson`.
    """
    if not 0 < rate_per_s <= 1e6:
        raise ConfigError(
            f"a rate must be above 0 and at most 1,000,000 requests/s, not {rate_per_s:g}",
            hint="leave it out for a closed loop, in which each user waits for the answer",
        )
    if arrivals not in ARRIVALS:
        raise ConfigError(f"arrivals must be one of {', '.join(ARRIVALS)}, not {arrivals}")
    return poisson(rate_per_s, seed) if arrivals == "poisson" else constant(rate_per_s)


def _plan(options: LoadOptions, duration_s: float) -> Plan:
    rate_per_s, schedule = options.get("rate_per_s"), None
    usual = USUAL_CONCURRENCY if options.get("batch_size") is None else 1
    if rate_per_s is not None:
        usual = SCHEDULE_CONCURRENCY
        arrivals = options.get("arrivals", ARRIVALS[0])
        schedule = schedule_of(rate_per_s, arrivals, options.get("seed", 0))
    elif "arrivals" in options:
        raise ConfigError("arrivals need a rate", hint="rate_per_s=10")
    return checked_plan(
        Plan(
            concurrency=options.get("concurrency", usual),
            duration_s=duration_s,
            warm_up_s=options.get("warm_up_s", 0.0),
            most=options.get("limit"),
            schedule=schedule,
        )
    )


def _check(options: LoadOptions, duration_s: float) -> None:
    """Raises ConfigError for an unknown option or an invalid value."""
    known = LoadOptions.__annotations__
    for name, value in options.items():
        check_known("option", name, known)
        if name in _COUNTS and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
        if name in _NUMBERS:
            check_number(name, value)
        kind, words = _OTHERS.get(name, (object, ""))
        if not isinstance(value, kind):
            raise ConfigError(f"{name} must be {words}, not {value!r}")
    check_number("duration_s", duration_s)
    if (think_s := options.get("think_time_s", 0.0)) < 0:
        raise ConfigError(f"think_time_s must be 0 s or more, not {think_s:g} s")


def _endless(requests: Iterable[Any]) -> Iterator[Any]:
    """Returns an iterator that repeats a list endlessly, and reads any other iterable once.

    Raises ConfigError for an empty list, and for anything but an iterable of requests.
    """
    is_one = isinstance(requests, str | bytes | dict | msgspec.Struct)
    if is_one or not isinstance(requests, Iterable):
        raise ConfigError("requests must be a list or another iterable of requests")
    if not isinstance(requests, Sequence):
        return iter(requests)
    if not requests:
        raise ConfigError("there are no requests", hint="pass at least one")
    return cycle(requests)


def _refuse_to_block() -> None:
    """Raises ConfigError in code with a running event loop, except in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if shell is None or shell() is None:
        raise ConfigError(
            "ThroughputMetrics.measure would block the running event loop",
            hint="await redline.ThroughputMetrics.ameasure(...), with the same arguments",
        )
