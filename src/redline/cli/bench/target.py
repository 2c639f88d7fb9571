"""Resolves the target of `redline bench`: an endpoint, a pool, or the object `module:name`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from redline.apis import read_usage
from redline.calls import Backend, Endpoint, HttpBackend
from redline.calls.cost import Metered, Price, Spending
from redline.cli.flags import job_flags
from redline.cli.session import Configuration, resolve_run
from redline.errors import ConfigError, nearest
from redline.job.settings import FLAGS, SIM, Flags, Job, Option, flag_of, job_of, options_in
from redline.measure import Answer, Caller, caller_of, takes_requests
from redline.process import load_object, raise_limit
from redline.route import EndpointPool

_HANDLER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_HOST = re.compile(r"[\w.-]+:\d+(/.*)?")
_FORM = "a target is a URL, a name from redline.toml, sim, engine:MODEL or module:name"
# Flags that set how rows become requests. They do not apply to a function, which gets the rows.
_PROMPTING = (
    *("prompt", "system", "model", "temperature", "max_tokens", "params", "url", "method"),
    *("body", "output_path", "constant_prompt"),
)
_OF_ROWS = ("prompt", "system", "body", "url", "method", "output_path", "constant_prompt")
# Flags that apply to an endpoint.
_CALLING = (
    *("endpoint", "balance", "api_key", "headers", "proxy", "requests", "tokens"),
    *("input_tokens", "output_tokens", "rps", "rpm", "tpm", "profile", "headroom", "guard_s"),
    *("charge", "budget", "budget_tokens", "timeout_s"),
    *("connect_timeout_s", "first_byte_timeout_s"),
)
# Help texts that differ from those of `redline run`.
_HELP = {
    "constant_prompt": "Allow a prompt or body that uses no column.",
    "endpoint": "Another endpoint of the pool: a URL or a name, as in TARGET. Repeatable.",
    "balance": "Which endpoint of a pool gets a request: p2c (the default), least_tokens, room, "
    "prefix, cheapest, round_robin, weighted_score or normalized_score.",
    "budget": "The most that this command may spend, such as 5usd. With --max-tokens, no "
    "call is sent that could exceed it.",
    "budget_tokens": "The most input and output tokens that this command may use, such as 2m.",
}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what `redline bench` measures.

    label: the target's name in figures. job: a job with its endpoints, limits, budget and
    templates. handler: the object `module:name`; None for endpoints. takes_rows: whether the
    handler is called with rows.
    """

    label: str
    job: Job
    handler: Any = None
    takes_rows: bool = False

    @property
    def price(self) -> Price | None:
        """The highest price of the job's model at its endpoints; None if free or unknown."""
        return None if self._is_free else self.job.price_table().find(self.job.prompting.model)

    @property
    def _is_free(self) -> bool:
        return not self.job.endpoints or self.job.embedded is not None

    def cost(self, answer: Answer) -> int | None:
        """Returns the cost of an answer in picodollars; None if it is free or unknown."""
        job, reply = self.job, answer.reply
        usage = None if reply is None else read_usage(reply.usage, has_output=False)
        if reply is None or usage is None or self._is_free:
            return None
        prices = job.price_table()
        price = prices.at(answer.endpoint, reply.model)
        price = price or prices.at(answer.endpoint, job.prompting.model)
        return None if price is None else price.of(usage)


def target_of(
    names: Sequence[str], rows: object, given: Flags, configuration: Configuration
) -> Target:
    """Returns the target that these names denote.

    rows: as for `resolve_run`. given: the flags of a run that apply to a benchmark, by key.
    Raises a ConfigError that names the mistake.
    """
    if not names:
        raise ConfigError(
            "TARGET is missing", where="redline bench", hint=f"redline bench sim; {_FORM}"
        )
    handlers = [name for name in names if _is_handler(name, configuration)]
    if handlers:
        if len(names) > 1:
            raise ConfigError(
                f"{handlers[0]} cannot be combined with other targets",
                hint="pass it alone; only endpoints can form a pool",
            )
        return _handler_target(handlers[0], rows, given, configuration)
    for name in names:
        _check_name(name, configuration)
    flags = {**given, "endpoint": list(names)}
    known = {"concurrency", *_keys(_PROMPTING), *_keys(_CALLING)}
    if not isinstance(rows, str):
        # A project's settings for rows do not apply to synthetic prompts.
        known -= {*_keys(_OF_ROWS)}
    run = {name: value for name, value in configuration.run.items() if name in known}
    configuration = replace(configuration, run=run)
    job = resolve_run(rows, flags, configuration).job
    for endpoint in job.endpoints:
        if endpoint.limits.is_adaptive:
            raise ConfigError(
                "a load has a fixed concurrency, which auto would change",
                hint="replace auto in redline.toml with a number, or remove it and pass -c 16 or "
                "--find-concurrency",
            )
    label = job.embedded.place if job.embedded is not None else ""
    return Target(label=label or ", ".join(one.label for one in job.endpoints), job=job)


def _check_name(name: str, configuration: Configuration) -> None:
    """Raises ConfigError for an unknown endpoint, with a hint such as the nearest name."""
    known = (*configuration.endpoints, SIM)
    if name in known or name.startswith(("http://", "https://", "engine:")):
        return
    path, colon, found = name.partition(":")
    hint = nearest(name, known) or _FORM
    if _HOST.fullmatch(name):
        hint = f"did you mean http://{name.partition('/')[0]}/v1? {_FORM}"
    elif path.endswith(".py"):
        hint = f"write the module's name, as in {Path(path).stem}:{found or 'FUNCTION'}"
    elif not colon and _MODULE.fullmatch(name):
        module, _, last = name.rpartition(".")
        hint = f"a function is named with a colon, as in {module}:{last}"
    raise ConfigError(f"unknown target: {name}", hint=hint)


def _is_handler(name: str, configuration: Configuration) -> bool:
    is_embedded = name.startswith("engine:")
    is_module = not is_embedded and _HANDLER.fullmatch(name) is not None
    return is_module and name not in configuration.endpoints


def _handler_target(name: str, rows: object, given: Flags, configuration: Configuration) -> Target:
    for key in _keys(_CALLING):
        if key in given:
            raise ConfigError(
                f"{flag_of(key)} applies to endpoints, but {name} is code of your own",
                hint="leave it out; to set a rate of requests, use --constant or --poisson",
            )
    handler = load_object(name, _FORM)
    options = dataclasses.replace(options_in(given), call=_never, concurrency=None)
    job = job_of(rows, options, configuration.environment)
    caller_of(handler)
    takes_rows = not takes_requests(handler)
    for key in _keys(_PROMPTING):
        if takes_rows and key in given:
            raise ConfigError(
                f"{flag_of(key)} builds requests for an endpoint, but {name} receives the rows "
                "themselves",
                hint="leave it out, and let the function build its own request",
            )
    return Target(label=name, job=job, handler=handler, takes_rows=takes_rows)


async def _never(row: object) -> None:
    """Takes the place of a user's function in the job, so that the job needs no endpoint."""


@asynccontextmanager
async def answering(
    target: Target, concurrency: int, *, batch_size: int | None, is_streamed: bool
) -> AsyncIterator[Caller]:
    """Opens the target, and its built-in server if it has one, and yields its caller.

    At the end of the `with` block, closes what it has opened; a handler that is a Backend, a Client
    or a Pool stays open. concurrency: maximum calls in flight at endpoints that do not set their
    own; for a plain function, the number of threads that call it. batch_size: maximum rows in one
    call of a function; None for a function of one row. is_streamed: whether to request streams.
    Raises ConfigError if the handler cannot be called that way.
    """
    job = target.job
    if target.handler is not None:
        caller = caller_of(
            target.handler, batch_size=batch_size, threads=concurrency, is_streamed=is_streamed
        )
        try:
            yield caller
        finally:
            caller.close()
        return
    endpoints = [_with_slots(one, concurrency) for one in job.endpoints]
    raise_limit(concurrency)
    async with AsyncExitStack() as stack:
        if job.embedded is not None:
            base_url = await stack.enter_async_context(job.embedded.open())
            endpoints = [replace(endpoints[0], base_url=base_url, proxy="")]
        backend = await stack.enter_async_context(_calls(job, endpoints))
        yield caller_of(backend, batch_size=batch_size, is_streamed=is_streamed)


def _with_slots(endpoint: Endpoint, concurrency: int) -> Endpoint:
    """Returns the endpoint with room for all calls, unless it sets its own concurrency."""
    if endpoint.limits.concurrency is not None:
        return endpoint
    limits = replace(endpoint.limits, concurrency=concurrency)
    return replace(endpoint, limits=limits)


@asynccontextmanager
async def _calls(job: Job, endpoints: Sequence[Endpoint]) -> AsyncIterator[Backend]:
    """Opens a backend that calls the endpoints within their limits and the job's budget.

    Nothing is retried.
    """
    backend: Backend
    if len(endpoints) == 1:
        backend = HttpBackend(endpoints[0])
    else:
        backend = EndpointPool(endpoints, balance=job.balance)
    if job.allowance is not None:
        backend = Metered(backend, Spending(job.allowance), job.price_table())
    try:
        yield backend
    finally:
        await backend.aclose()


def run_options() -> list[Option]:
    """Returns the options of `redline run` that apply to a load."""
    return job_flags((*_PROMPTING, *_CALLING), _HELP)


def _keys(names: Collection[str]) -> list[str]:
    """Returns the keys of the flags with these names."""
    return [FLAGS[name].key for name in names]
