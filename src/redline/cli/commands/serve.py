"""`redline serve`: serves every endpoint behind one address."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click import Context
from msgspec.structs import replace

from redline.calls import Cache
from redline.calls.wire import do_nothing
from redline.cli.flags import flag, job_flags, stated, switch, time, whole
from redline.cli.session import (
    Configuration,
    load,
    resolve_endpoints,
    say_line,
    say_lines,
    tell_line,
)
from redline.errors import ConfigError
from redline.job.settings import FLAGS, Flags, flag_of, kinds_of, read, settings_in, values
from redline.process import counted

if TYPE_CHECKING:
    from redline.serve.gateway import Certificate, FunctionSettings, GatewaySettings

_FILE = "redline.toml"
_MOST_DRAIN_S = 86_400.0
# Flags that apply to all endpoints.
_CALLING = (
    *("endpoint", "balance", "concurrency", "api_key", "headers", "proxy", "requests"),
    *("tokens", "input_tokens", "output_tokens", "rps", "rpm", "tpm", "profile", "headroom"),
    *("guard_s", "charge", "timeout_s", "connect_timeout_s", "first_byte_timeout_s"),
)
_HELP = {
    "endpoint": "A URL, a name from the settings file, or a server that the gateway starts: sim or "
    "engine:MODEL. "
    "Repeatable: several URLs or names share the calls. Default: all [endpoints.NAME] of the file.",
    "balance": "Which endpoint gets a call: p2c (the default: the one that should answer first), "
    "least_tokens, room, prefix, cheapest, round_robin, weighted_score or normalized_score.",
    "concurrency": "Maximum calls in flight, at all endpoints of a model together; auto searches "
    "for the best number for each server. Default: what the endpoints allow.",
}
_OWN = (
    flag(
        "config",
        "FILE",
        f"Settings file. Default: {_FILE} in this folder, if it exists.",
        section="Address",
    ),
    flag("host", "HOST", "Address to listen on. Default: 127.0.0.1 (this machine only)."),
    whole("port", "Port to listen on. Default: 8080; 0 for a free one.", least=0, most=65_535),
    whole("workers", "Processes that serve the address, at most 64. Default: 1."),
    flag(
        "tls_cert",
        "FILE",
        "Serve HTTPS with this certificate and its chain, in PEM form.",
        field="chain",
        read=values.path,
    ),
    flag(
        "tls_key",
        "FILE",
        "The certificate's private key, in PEM form.",
        field="key",
        read=values.path,
    ),
    flag(
        "keys",
        "FILE",
        "Require a key from this file, which `redline keys add` writes.",
        read=values.path,
    ),
    time(
        "drain",
        "How long calls in flight may take at shutdown. Default: 60s.",
        most_s=_MOST_DRAIN_S,
    ),
    flag(
        "body_size",
        "SIZE",
        "Maximum size of a request's body. Default: 32m.",
        field="most_body_bytes",
        read=values.size,
    ),
    flag(
        "state",
        "DIR",
        "Folder for files, batches, the cache and, without --keys, the record of spending. "
        "Default: redline.serve.",
    ),
    switch(
        "cache",
        "Cache answers, except streams, and reuse them for identical calls by the same tenant. "
        "Without --cache-sampled, only deterministic answers are cached: those with temperature 0 "
        "or a seed, and embeddings.",
    ),
    time("cache_ttl", "How long an answer is kept, at most 31d. Default: while there is room."),
    flag(
        "cache_size",
        "SIZE",
        "Maximum size of the cache. Default: 1g.",
        field="max_bytes",
        read=values.size,
    ),
    switch("cache_sampled", "Also cache sampled answers.", field="includes_sampled"),
    switch("check", "Check the settings, print what would be served, and exit."),
    switch("schema", "Print the JSON Schema of the settings file, for editors."),
    flag(
        "function",
        "MODULE:NAME",
        "Instead of endpoints, serve a Python function that takes a list; calls are batched.",
        section="A function of your own",
    ),
    whole("max_batch_size", "Maximum items in one call of the function. Default: 32."),
    time("max_wait", "Longest time that a call waits for a batch to fill. Default: 10ms."),
)
_ENDPOINT, *_OTHERS = job_flags(_CALLING, _HELP)
PARAMS = (*_OWN, replace(_ENDPOINT, section="Endpoints"), *_OTHERS)
# The tables in [serve]; its other keys are those of flags.
_TABLES = ("classes", "batches")
_ONLY_FLAGS = ("config", "check", "schema")
# Fields of the gateway's settings that take the value of a flag unchanged.
_FIELDS = (
    *("host", "port", "workers", "balance", "drain_s", "most_body_bytes"),
    *("keys", "cache_ttl_s"),
)


def serve(ctx: Context) -> int:
    r"""Serve many endpoints behind one OpenAI-compatible address.

    By default, each call goes to the endpoint that should answer it first, within each endpoint's
    limits. If a server dies, calls that it had not begun to answer usually go to another with the
    same model, if there is one. The base URL is the first line on stdout. Ctrl-C or SIGTERM lets
    the calls in flight finish within --drain, and a second signal stops everything immediately;
    SIGHUP reads the settings again.

        redline serve --endpoint http://10.0.0.5:8000/v1 \
            --endpoint http://10.0.0.6:8000/v1

    With a file, whose table [serve] takes the same settings as the flags:

        redline serve --config redline.toml --check
        redline serve --config redline.toml

    docs/serve.md explains the file.

    Exit status: 0 ended by a signal, or --check found no error; 2 bad usage or settings; 3 a defect
    in redline; 130 ended by a second Ctrl-C, 143 by a second SIGTERM.
    """
    # Imported here, because the flags need no server.
    from redline.serve.gateway import serve_gateway, serve_workers
    from redline.serve.workers import this_worker

    worker = this_worker()
    flags = stated(ctx) if worker is None else worker.flags
    if "schema" in flags:
        # Imported here: only editors request the schema.
        from redline.cli.commands.toml_schema import toml_schema

        of_serve = (option for option in PARAMS if option.key not in _ONLY_FLAGS)
        say_line(json.dumps(toml_schema(of_serve), indent=2))
        return 0
    # All workers read the same settings: at the start, their parent prints the notes.
    settings = _settings(flags, tell_line if worker is None else do_nothing)
    if "check" in flags:
        settings.check()
        say_lines(_summary(settings))
        return 0
    if worker is None and settings.workers > 1:
        return serve_workers(settings, flags, on_url=say_line, on_note=tell_line)
    on_note = tell_line if worker is None or worker.is_first else do_nothing
    serve_gateway(
        settings,
        reread=lambda: _settings(flags, on_note),
        on_url=say_line,
        on_note=tell_line,
        worker=worker,
    )
    return 0


def _settings(given: Flags, on_note: Callable[[str], None]) -> GatewaySettings:
    """Reads the settings from the flags and the file.

    on_note: called with each note about the file and `.env`. Raises a ConfigError that names the
    flag or table at fault.
    """
    from redline.serve.batches import parse_batches
    from redline.serve.gateway import GatewaySettings, parse_classes
    from redline.serve.keys import parse_tenants

    configuration = _configuration(given)
    for note in configuration.notes:
        on_note(f"note: {note}")
    flags, file = {**configuration.run, **given}, configuration.file
    classes = parse_classes(configuration.serve.get("classes", {}), file)
    batches = parse_batches(configuration.serve.get("batches", {}), file)
    state = Path(flags.get("state") or "redline.serve")
    with configuration.located(given):
        own = read((*_OWN, FLAGS["balance"], FLAGS["concurrency"]), flags)
        cache = _cache(flags, own, state)
        certificate = _certificate(own)
        function = _function(flags, own)
    tenants = parse_tenants(configuration.tenants, file, [one.name for one in classes])
    if "keys" not in own:
        _refuse_unreachable(tenants, file)
    most = own.get("concurrency")
    if function is None:
        calling = [FLAGS[name].key for name in _CALLING]
        run = _among(configuration.run, calling)
        of_calls = replace(configuration, run=run)
        endpoints, embedded = resolve_endpoints(_among(given, calling), of_calls)
    else:
        endpoints, embedded = (), None
    return GatewaySettings(
        endpoints=endpoints,
        embedded=embedded,
        function=function,
        most=most if isinstance(most, int) else None,
        certificate=certificate,
        cache=cache,
        state=state,
        classes=classes,
        batches=batches,
        tenants=tenants,
        prices=configuration.prices,
        **_among(own, _FIELDS),
    )


def _configuration(given: Flags) -> Configuration:
    """Reads the file's configuration, with the flags in its [serve] as defaults.

    Raises ConfigError if the --config file does not exist or is not valid.
    """
    path = Path(given.get("config") or _FILE)
    if "config" in given and not path.is_file():
        raise ConfigError(
            f"there is no file {path}", where="--config", hint="docs/serve.md shows an example"
        )
    configuration = load(path.parent, file=path.name)
    kinds = kinds_of(option for option in PARAMS if option.key not in _ONLY_FLAGS)
    stated = {key: value for key, value in configuration.serve.items() if key not in _TABLES}
    run = settings_in(stated, kinds, f"{path.name}, [serve]")
    return replace(configuration, run=run, defaults="serve")


def _function(flags: Flags, own: Flags) -> FunctionSettings | None:
    from redline.serve.gateway import FunctionSettings

    if "function" not in own:
        _refuse("--function", flags, ("max_batch_size", "max_wait"))
        return None
    # None of these flags applies to a function.
    for name in ("cache", *(FLAGS[field].key for field in _CALLING)):
        if flags.get(name):
            raise ConfigError(
                f"--function and {flag_of(name)} cannot be combined", hint="leave one out"
            )
    return FunctionSettings(spec=own["function"], **_among(own, ("max_batch_size", "max_wait_s")))


def _cache(flags: Flags, own: Flags, state: Path) -> Cache | None:
    if not own.get("cache"):
        _refuse("--cache", flags, ("cache_ttl", "cache_size", "cache_sampled"))
        return None
    return Cache(state / "answers", **_among(own, ("max_bytes", "includes_sampled")))


def _refuse(missing: str, given: Flags, names: Collection[str]) -> None:
    """Raises ConfigError if one of these flags is given: each needs the missing flag."""
    for name in names:
        if given.get(name):
            raise ConfigError(f"{flag_of(name)} needs {missing}", hint=f"add {missing}")


def _refuse_unreachable(tenants: Collection[str], file: str) -> None:
    """Raises ConfigError for a tenant that no call can belong to, because there are no keys."""
    # Imported here, as in `serve`.
    from redline.serve.keys import DEFAULT_TENANT

    for name in tenants:
        if name != DEFAULT_TENANT:
            raise ConfigError(
                f"the limits of tenant {name} apply to no call: no key file is set",
                where=f"{file}, [tenants.{name}]",
                hint='set keys = "keys.jsonl" under [serve], or rename the tenant to default',
            )


def _certificate(own: Flags) -> Certificate | None:
    from redline.serve.gateway import Certificate

    found = _among(own, ("chain", "key"))
    if len(found) == 1:
        missing = "--tls-cert" if "key" in found else "--tls-key"
        raise ConfigError(f"HTTPS needs {missing}, too", hint="both are files in PEM form")
    return Certificate(**found) if found else None


def _among(own: Flags, names: Collection[str]) -> dict[str, Any]:
    return {name: own[name] for name in names if name in own}


def _summary(settings: GatewaySettings) -> Iterator[str]:
    """Yields a summary of the gateway's settings, one line each."""
    if settings.function is not None:
        yield f"function: {settings.function.spec}"
    else:
        yield f"{counted(len(settings.endpoints), 'endpoint')}:"
    for endpoint in settings.endpoints:
        models = f", models {', '.join(endpoint.models)}" if endpoint.models else ""
        place = endpoint.base_url if settings.embedded is None else "starts with the gateway"
        yield f"  {endpoint.label}: {place}{models}"
    scheme = "http" if settings.certificate is None else "https"
    workers = f", {settings.workers} workers" if settings.workers > 1 else ""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    yield f"address: {scheme}://{host}:{settings.port}/v1{workers}"
