"""Defines `Job`, the settings of one run, and checks that they are valid together."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec

from redline.calls import Cache, Endpoint, RetryPolicy
from redline.calls.cost import Allowance, Price, Prices
from redline.errors import ConfigError, check_known, nearest
from redline.job.settings.embedded import Embedded
from redline.job.settings.otel_settings import OtelSettings
from redline.job.settings.task import Task
from redline.journal import FAIL_ON, Manifest, Output, is_state
from redline.journal import manifest as manifests
from redline.limits import Limits
from redline.observe import BUILT_IN, OF_A_MODEL, AlertSettings
from redline.route import check_balance, check_endpoints
from redline.sources import stream_of
from redline.store import local_path, url_of

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
VIAS = ("live", "batch", "auto")
# The values of `via` that send rows through the Batch API.
BATCHING = ("batch", "auto")
# What a file with this suffix is expected to be, whereas results are always JSON Lines.
_OTHER_KINDS = {
    **dict.fromkeys((".csv", ".tsv"), "a table"),
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".avro", ".orc"), "a table"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "a spreadsheet"),
    **dict.fromkeys((".gz", ".zst", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz"), "compressed"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3", ".duckdb"), "a database"),
    **dict.fromkeys(
        (".html", ".xml", ".yaml", ".yml", ".md", ".pdf", ".pkl"), "a file of that kind"
    ),
}
# Methods whose requests have no body.
BODILESS = ("GET", "HEAD")


class Prompting(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that decide how a row becomes a request.

    prompt, system, body, url: Jinja templates, filled from the row's columns; `body` renders the
    whole JSON body. params: fields added to every body that lacks them.
    output_path: dotted keys and indices that lead to the output in the answer, such as
    `result.items.0.text`. shots: pairs of a question and its answer, put before each row's prompt
    as examples for the model. constant_prompt: allows a prompt or body that is the same for every
    row, which is otherwise refused. Raises ConfigError for settings that are invalid or cannot be
    combined.
    """

    prompt: str | None = None
    system: str | None = None
    body: str | None = None
    url: str | None = None
    method: str = "POST"
    model: str | None = None
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    output_path: str | None = None
    shots: list[tuple[str, str]] = msgspec.field(default_factory=list)
    constant_prompt: bool = False

    def __post_init__(self) -> None:
        if self.body is not None and (self.prompt is not None or self.system is not None):
            raise ConfigError(
                "a body template and a prompt cannot be combined",
                hint="put the prompt into the body template",
            )
        method = self.method.upper()
        check_known("HTTP method", method, METHODS)
        if method in BODILESS:
            for name in ("prompt", "system", "body", "model", "params"):
                if getattr(self, name):
                    raise ConfigError(
                        f"a {method} request has no body, so {name} would not be sent",
                        hint="leave it out; put columns in --url '/chat?q={{ text | urlencode }}'",
                    )
        if self.url is not None and not self.url.startswith(("/", "{")):
            raise ConfigError(
                f"not a path: {self.url}",
                hint="a path begins with /, as in /v1/embeddings; the base URL selects the server",
            )


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """The user's functions, run in `executor` (None: a thread pool) to keep the event loop free.

    before: takes the row and returns the row to send. after: takes the output and returns the
    output to keep. An exception in either function fails its row.
    """

    before: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    after: Callable[[Any], Any] | None = None
    executor: Executor | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one run. Durations are in seconds; None means no bound, or not used.

    Raises ConfigError for settings that are invalid or cannot be combined.

    rows: any input that `open_source` accepts, or a stream; unused if `execute` gets a source.
    limit: process only the first N rows. follow: also process rows that are appended to the file
    later. until_empty: read a stream until all of its messages are acknowledged. samples: the
    number of answers per row, each a result of its own. task: processes each row; None if a row is
    simply one request.

    endpoints, call: the servers that answer, or a coroutine function that takes a row and returns
    the answer; neither if `execute` gets a backend. embedded: a server that is started for the run;
    its base URL replaces the endpoint's. balance: the strategy that chooses among several
    endpoints, one of STRATEGIES. limits: the limits of a job without endpoints; with endpoints,
    which have their own, only its concurrency is used, to bound the calls at all of them together.
    memory: the file that stores the limits found by rate "auto". cache: the settings of the answer
    cache. via: one of VIAS; empty for live, but then the run is refused while batches are open.

    timeout_s: the longest time for one attempt without an endpoint; an endpoint has its own
    timeouts. row_deadline_s: the longest time for a row with all its retries. deadline_s: the
    longest time for the run; rows unfinished by then are left for the next run. longest_wait_s: end
    the run if no call is in flight and none can be sent for longer. stop_at_error_rate: end the run
    once at least this share of the last 1,000 rows has failed, checked from row 100 on; above 0, at
    most 1. strict: end the run at the first row that fails. ends_if_hopeless: end the run if its
    first 100 rows all fail, except with retry_failed.

    retry_failed: process only the rows that failed in earlier runs; retries_failures: process these
    as well as new rows. restart: start the output over; its old files are renamed. force: continue
    the output even if it was begun with other settings. fail_on: the flaws, keys of FAIL_ON, that
    make an answer a failure. allowance: the budget of all runs of the output that have one. prices:
    the user's prices by model, which override those that redline knows.

    trace: the file in which calls are recorded. metrics_port: host and port of the metrics page.
    alerts: the alert rules to check. otel: how telemetry is exported; None to export none.
    priority: the priority of the job's calls if jobs share a backend; the lowest number goes first.
    tenant: the tenant for whom the calls are made; may be empty.
    """

    rows: object = ()
    endpoints: tuple[Endpoint, ...] = ()
    balance: str = "p2c"
    call: Callable[[Any], Awaitable[Any]] | None = None
    embedded: Embedded | None = None
    limits: Limits = Limits()
    memory: Path | None = None
    cache: Cache | None = None
    prompting: Prompting = Prompting()
    output: Output | None = None
    hooks: Hooks = Hooks()
    task: Task | None = None
    retry: RetryPolicy = RetryPolicy()
    timeout_s: float = 600.0
    row_deadline_s: float | None = None
    deadline_s: float | None = None
    limit: int | None = None
    follow: bool = False
    until_empty: bool = False
    samples: int = 1
    via: str = ""
    allowance: Allowance | None = None
    prices: dict[str, Price] = {}
    fail_on: tuple[str, ...] = ()
    retry_failed: bool = False
    retries_failures: bool = False
    restart: bool = False
    force: bool = False
    strict: bool = False
    ends_if_hopeless: bool = True
    stop_at_error_rate: float | None = None
    longest_wait_s: float | None = None
    trace: Path | None = None
    metrics_port: tuple[str, int] | None = None
    alerts: AlertSettings = AlertSettings(rules=BUILT_IN)
    otel: OtelSettings | None = None
    priority: int = 0
    tenant: str = ""

    def __post_init__(self) -> None:
        if self.endpoints and self.call is not None:
            raise ConfigError(
                "an endpoint and a function to call cannot be combined",
                hint="leave one of them out",
            )
        check_balance(self.balance)
        check_endpoints(self.endpoints)
        self._check_model()
        if self.call is not None and self.cache is not None:
            raise ConfigError(
                "answers of a function of your own are not cached: they depend on its code, too",
                hint="leave the cache out, or cache inside the function",
            )
        if self.samples > 1 and self.cache is not None and self.cache.includes_sampled:
            raise ConfigError(
                "a cache of sampled answers would give all samples of a question the same answer",
                hint="leave out --cache-sampled, or pass --no-cache if redline.toml has it",
            )
        for reason in self.fail_on:
            check_known("reason to fail on", reason, FAIL_ON)
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit must be at least 1 row, not {self.limit}")
        if self.retry_failed and self.output is None:
            raise ConfigError(
                "there are no failed rows to retry without an output file: name it with -o"
            )
        self._check_output()
        self._check_trace()
        self._check_continuous()
        self._check_budget()
        self._check_via()
        if self.embedded is None or self.embedded.use() is None:
            self.alerts.refuse_without_figures(OF_A_MODEL)
        if self.restart and (self.force or self.retry_failed):
            other = "--force" if self.force else "--retry-failed"
            raise ConfigError(f"--restart and {other} cannot be combined", hint="leave one out")

    @property
    def endpoint(self) -> Endpoint | None:
        """The job's only endpoint; None if it has none or several."""
        return self.endpoints[0] if len(self.endpoints) == 1 else None

    @property
    def call_limits(self) -> tuple[Limits, ...]:
        """The limits of each endpoint; for a job without endpoints, its own limits alone."""
        return tuple(one.limits for one in self.endpoints) or (self.limits,)

    @property
    def most_together(self) -> int | None:
        """The most calls in flight at all endpoints together; None if no number is set."""
        stated = self.limits.concurrency
        return stated if isinstance(stated, int) else None

    @property
    def slots(self) -> int:
        """The most calls that may be in flight at once."""
        slots = sum(limits.slots() for limits in self.call_limits)
        most = self.most_together
        return slots if most is None else min(slots, most)

    @property
    def attempt_s(self) -> float:
        """The longest timeout of an attempt at any endpoint, in seconds."""
        return max((one.timeouts.attempt_s for one in self.endpoints), default=self.timeout_s)

    def price_table(self) -> Prices:
        """Returns the job's prices, with each endpoint's own model names and prices."""
        models = {one.label: one.models for one in self.endpoints}
        return Prices(self.prices, models, {one.label: one.tariff for one in self.endpoints})

    def price_at(self, endpoint: Endpoint) -> Price | None:
        """Returns the price of the job's model at one of its endpoints; None if unknown."""
        return self.price_table().at(endpoint.label, self.prompting.model)

    def manifest(self) -> Manifest:
        """Returns the manifest to save beside the results: settings that later runs must share."""
        assert self.output is not None
        call = getattr(self.call, "__qualname__", type(self.call).__name__) if self.call else None
        settings = {
            "call": call,
            **msgspec.to_builtins(self.prompting),
            # Left out, because it only permits a constant prompt, and changes no request.
            "constant_prompt": None,
            "format": self.output.format,
            "raw": self.output.raw,
            "keep_input": self.output.keep_input,
            "samples": self.samples if self.samples > 1 else None,
            **(self.task.settings() if self.task is not None else {}),
        }
        return manifests.make(self.rows, settings)

    def _check_budget(self) -> None:
        """Refuses a budget for a function, and one in dollars if the job's model has no price."""
        if self.allowance is None:
            return
        if self.call is not None:
            raise ConfigError(
                "a budget cannot be enforced for a function of your own",
                hint="use an endpoint instead, or limit the number of rows",
            )
        if self.allowance.picodollars is None:
            return
        judge = self.task.settings().get("judge", {}) if self.task is not None else {}
        for model in (self.prompting.params.get("model", self.prompting.model), judge.get("model")):
            if isinstance(model, str):
                self.price_table().checked(model)

    def _check_model(self) -> None:
        """Refuses a model that no endpoint has, if all endpoints list their models."""
        known = {name for one in self.endpoints for pair in one.models.items() for name in pair}
        model = self.prompting.model
        if model is None or not known or model in known:
            return
        if all(one.models for one in self.endpoints):
            raise ConfigError(
                f"no endpoint has a model {model}",
                where=f"the models of {', '.join(one.label for one in self.endpoints)}",
                hint=nearest(model, tuple(known)) or f"they have: {', '.join(sorted(known))}",
            )

    def _check_via(self) -> None:
        """Refuses settings that do not work with batches."""
        if self.via:
            check_known("way to send rows", self.via, VIAS)
        if self.via not in BATCHING:
            return
        if self.output is None:
            raise ConfigError("batches need an output file", hint="set it with -o labels.jsonl")
        if self.via == "auto" and self.deadline_s is None:
            raise ConfigError(
                "via auto needs a deadline: shortly before it, the rest is sent live",
                hint="set one: --deadline 6h",
            )
        if self.task is not None and not getattr(self.task, "asks_once", False):
            raise ConfigError(
                "a task that may send a row more than once cannot use batches",
                hint="leave out --via",
            )
        for what, stated in (
            ("a function of your own", self.call is not None),
            ("several endpoints", len(self.endpoints) > 1),
            ("an endpoint's own names for models", any(one.models for one in self.endpoints)),
            ("a cache of answers", self.cache),
            ("a deadline for each row", self.row_deadline_s),
            ("an endless input", self.follow or stream_of(self.rows)),
            ("a trace of calls", self.trace),
        ):
            if stated:
                raise ConfigError(
                    f"batches and {what} cannot be combined", hint="leave one of them out"
                )

    def _check_continuous(self) -> None:
        """Refuses settings that do not work with an endless input, or work only with a stream."""
        stream, output = stream_of(self.rows), self.output
        if stream is None and self.until_empty:
            raise ConfigError(
                "only a stream is read until it is empty",
                hint="other inputs are read to their end: leave out --until-empty",
            )
        if output is not None and output.ordered and (stream is not None or self.follow):
            raise ConfigError(
                "--ordered needs an input with an end, not a stream or --follow",
                hint="leave out --ordered",
            )
        if stream is None:
            return
        if output is None:
            raise ConfigError(
                "a stream needs an output file: its messages are acknowledged once their outcomes "
                "are on disk",
                hint="set it with -o labels.jsonl",
            )
        if output.url is not None:
            raise ConfigError(
                f"{output.name} would be uploaded when the stream ends, after its messages are "
                "acknowledged",
                hint="write to a file on this machine",
            )
        if self.retry_failed:
            raise ConfigError(
                "messages that failed are acknowledged, and not read again",
                hint=f"their rows are in {output.failed_path}, each as the `input` of its line",
            )
        if self.samples > 1:
            raise ConfigError("messages of a stream are sent once each", hint="leave out samples")

    def _check_trace(self) -> None:
        """Refuses to write a trace into another file of the run."""
        if self.trace is None:
            return
        taken = {_place_of(self.rows): "input"}
        if self.output is not None:
            taken[_real(self.output.path)] = "output"
            taken[_real(self.output.failed_path)] = "file of failures"
        if (what := taken.get(_real(self.trace))) is not None:
            raise ConfigError(
                f"the trace {self.trace} is the run's {what}",
                hint="choose another file: --trace calls.trace",
            )

    def _check_output(self) -> None:
        """Refuses to write to the input, or to a new file whose suffix implies another format."""
        output = self.output
        if output is None:
            return
        _check_suffix(output)
        source = _place_of(self.rows)
        if source is None:
            return
        again = (
            f"failures go there when results go to {output.name}: to try them again, run the first "
            "command with --retry-failed"
        )
        for path, name, hint in (
            (output.path, output.name, "choose another output"),
            (output.failed_path, output.failed_name, again),
        ):
            if source in (_real(path), name):
                raise ConfigError(f"{name} is the input, and would be written to", hint=hint)


def _check_suffix(output: Output) -> None:
    """Refuses to create a file whose suffix implies a format other than JSON Lines."""
    suffix, path = output.path.suffix.lower(), output.path
    is_begun = is_state(output.state_path) or (path.exists() and path.stat().st_size)
    if suffix not in _OTHER_KINDS or is_begun:
        return
    stem = output.name.removesuffix(output.path.suffix).removesuffix(".jsonl")
    raise ConfigError(
        f"results are JSON lines, so {output.name} would not be {_OTHER_KINDS[suffix]}",
        hint=f"name it {stem}.jsonl; it can be converted when the run is done",
    )


def _place_of(rows: object) -> str | None:
    """Returns the URL of the input, or its path with links resolved; None if it has neither."""
    url = url_of(rows)
    if url is not None:
        return url.name
    return _real(local_path(rows)) if isinstance(rows, (str, os.PathLike)) else None


def _real(path: Path) -> str:
    """Returns the path with links resolved.

    Raises ConfigError for a relative path if the current folder has been removed.
    """
    try:
        return os.path.realpath(path)
    except OSError as error:
        raise ConfigError(
            f"the current folder cannot be used: {error.strerror}",
            hint="change to a folder that exists, or use absolute paths",
        ) from error
