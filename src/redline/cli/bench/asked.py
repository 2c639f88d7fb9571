"""Makes the requests of a load: rows of a file in turn, or synthetic prompts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, cycle, islice
from typing import Any

import msgspec

from redline.apis import api_of, chat
from redline.cli.bench.target import Target
from redline.errors import BadRow, BadTemplate, ConfigError
from redline.job.settings import Flags
from redline.job.work import Renderer, renderer_of
from redline.measure import Prompts
from redline.process import counted
from redline.sources import opened_source
from redline.store import local_path
from redline.timeline import CallEnded, read_trace

_PROMPT_TOKENS, _MAX_TOKENS = 128, 128
# The maximum number of rows kept in memory and sent in turn, and their maximum total size.
_MOST_ROWS, _MOST_ROW_BYTES = 10_000, 64 * 1024 * 1024
_MOST_RECORDED = 100_000


class Asked(msgspec.Struct, frozen=True):
    """Holds the requests of a load, and describes them.

    requests: endless; rows instead of requests if the target takes rows. words: the description for
    the user. input_tokens: tokens per request. output_tokens: maximum tokens per answer. Both
    counts are None if unknown.
    """

    requests: Iterator[Any]
    words: str
    input_tokens: int | None = None
    output_tokens: int | None = None


def recorded_calls(text: str) -> list[CallEnded]:
    """Returns the calls of a trace's last run that made any, in order of arrival.

    If the run had a fixed number of workers, a call's arrival is its first send, because before
    then it waited for the limits of that run. Only the latest 100,000 calls are read. Raises
    ConfigError if the trace holds no calls.
    """
    path = local_path(text)
    runs = [run for run in read_trace(path, _MOST_RECORDED).runs if run.calls]
    if not runs:
        raise ConfigError(
            f"{path} holds no calls", hint="record some: redline run ... --trace FILE"
        )
    calls = runs[-1].calls
    if runs[-1].began.workers:
        calls = [msgspec.structs.replace(call, arrived_s=_first_sent_s(call)) for call in calls]
    return sorted(calls, key=lambda call: call.arrived_s)


def _first_sent_s(call: CallEnded) -> float:
    return next((one.sent_s for one in call.tried if one.sent_s is not None), call.arrived_s)


def asked_of(
    target: Target, options: Flags, flags: Flags, seed: int, calls: list[CallEnded] | None
) -> Asked:
    """Returns the requests of a load: rows of a file in turn, or synthetic prompts.

    calls: recorded calls, whose lengths the synthetic prompts and answers copy; None without a
    trace. Raises ConfigError if flags cannot be combined, or if no request can be made.
    """
    if "rows" in options:
        if "prompt_tokens" in options:
            raise ConfigError(
                "--rows and --prompt-tokens cannot be combined", hint="leave one of them out"
            )
        return _of_rows(target, options["rows"])
    for name in ("prompt", "body"):
        if name in flags:
            raise ConfigError(
                f"--{name} is filled from rows, but there are none",
                hint="add --rows FILE, or leave the template out to send synthetic prompts",
            )
    tokens = options.get("prompt_tokens", _PROMPT_TOKENS)
    sizes = None if calls is None else [(call.input_tokens, call.output_tokens) for call in calls]
    return _synthetic(target, tokens, seed, sizes)


def _of_rows(target: Target, place: str) -> Asked:
    kept, size_bytes, problem, bad = list[Any](), 0, "", 0
    with opened_source(place) as source:
        render = None if target.takes_rows else renderer_of(target.job.prompting, source).request
        for row in islice(chain.from_iterable(source.batches()), _MOST_ROWS):
            size_bytes += len(row.content)
            if size_bytes > _MOST_ROW_BYTES and kept:
                break
            try:
                if row.data is None:
                    raise BadRow(row.problem or "it cannot be read")
                kept.append(row.data if render is None else render(row.data))
            except (BadRow, BadTemplate) as error:
                bad += 1
                problem = problem or f"row {row.number}: {error}"
    if not kept:
        raise ConfigError(f"no row of {place} can be sent", where=problem)
    left_out = f", without {bad:,} that cannot be sent" if bad else ""
    return Asked(cycle(kept), f"{counted(len(kept), 'row')} of {place} in turn{left_out}")


def _synthetic(
    target: Target, tokens: int, seed: int, sizes: list[tuple[int | None, int | None]] | None
) -> Asked:
    """Returns requests with synthetic prompts of `tokens` tokens or, if given, of recorded sizes.

    sizes: the input and output tokens of recorded calls, each None if unknown. Raises ConfigError
    if no request can be made from a synthetic prompt.
    """
    bound, prompts = _Bound(target), Prompts(seed)
    renderer = Renderer(bound.prompting)

    def one(input_tokens: int, output_tokens: int) -> Any:
        row = {"prompt": prompts.next(input_tokens)}
        if target.takes_rows:
            return row
        request = renderer.request(row)
        if bound.is_own and output_tokens != bound.tokens:
            return request.with_fields(**{bound.field: output_tokens})
        return request

    def requests() -> Iterator[Any]:
        for read, written in cycle(sizes or [(tokens, bound.tokens)]):
            yield one(max(1, read or tokens), max(1, written or bound.tokens))

    try:
        one(1, bound.tokens)
    except (BadRow, BadTemplate) as error:
        raise ConfigError(f"no request can be made from a synthetic prompt: {error}") from None
    if sizes is not None:
        return Asked(requests(), "synthetic prompts and answers as long as those recorded")
    words = f"synthetic prompts of about {counted(tokens, 'token')}"
    if target.takes_rows or not bound.field:
        return Asked(requests(), words, tokens)
    words += f", answers of at most {bound.tokens:,}"
    return Asked(requests(), words, tokens, bound.tokens)


class _Bound:
    """Determines the maximum tokens of an answer to a synthetic prompt.

    field: the field of the body that sets the bound; empty if the API has none. tokens: the bound.
    is_own: whether it is redline's default, because the user set none. prompting: the target's,
    with the bound among its parameters if `is_own`.
    """

    def __init__(self, target: Target) -> None:
        stated = target.job.prompting
        api = api_of(stated.url or chat.API.path)
        self.field = api.output_limits[0] if api.output_limits else ""
        given = [stated.params[name] for name in api.output_limits if name in stated.params]
        self.is_own = bool(self.field) and not given
        self.tokens = given[0] if given and isinstance(given[0], int) else _MAX_TOKENS
        params = {**stated.params, **({self.field: self.tokens} if self.is_own else {})}
        self.prompting = msgspec.structs.replace(stated, params=params)
