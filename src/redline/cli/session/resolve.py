"""Turns flags and redline.toml into options, and the options into a job."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redline.calls import Endpoint
from redline.cli.session.configuration import Configuration
from redline.errors import ConfigError, nearest
from redline.job.settings import (
    KEY_VARIABLE,
    OF_ENDPOINT,
    OPENAI,
    SIM,
    URL_VARIABLE,
    Embedded,
    Flags,
    Job,
    Options,
    embedded_in,
    endpoint_of,
    flag_of,
    job_of,
    key_in,
    no_embedded,
    options_in,
    output_at,
)
from redline.journal import Output
from redline.sources import open_source, opened, stream_of
from redline.store import local_path, url_of

_ENGINE = "engine:"
# If one flag of a pair is on the command line, redline.toml's setting for the other is ignored.
_RIVALS = (
    *(("endpoint", "base_url"), ("body", "prompt"), ("body", "system")),
    *(("cache", "no_cache"), ("cache_dir", "no_cache")),
)
_NEED_OUTPUT = ("ordered", "retry_failed", "restart", "force")
# Each of these flags on the command line requires a cache.
_NEED_CACHE = ("cache_size", "cache_sampled")


class Resolved(msgspec.Struct):
    """Holds the job that flags and settings describe.

    lines: the contents of a result line, even if results go to stdout.
    """

    job: Job
    lines: Output


class _Server(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a server that --endpoint or --base-url selects, or the default one.

    base_url: None for the default and for a built-in server. origin: where the URL was set, for
    errors. name, table: the endpoint's name and settings in redline.toml, if any. embedded: the
    built-in server that is started for the run, if any.
    """

    base_url: str | None = None
    origin: str = ""
    name: str | None = None
    table: dict[str, Any] = {}
    embedded: Embedded | str | None = None


def resolve_run(
    rows: object, given: Flags, configuration: Configuration, *, is_sending: bool = True
) -> Resolved:
    """Returns the job of `redline run`.

    rows: as `open_source` takes them. given: the flags on the command line. They take precedence
    over an endpoint's own settings, which override redline.toml's [run]. is_sending: False for a
    dry run, which needs no key. Raises a ConfigError that names the flag, and the table of
    redline.toml if it is set there.
    """
    settings = _Settings(given, configuration, is_sending=is_sending)
    # A wrong path is more common than a missing key, so it is reported first.
    found: object = rows
    if stream_of(rows) is None:
        follows = "follow" in settings.stated
        found = rows if follows else opened(rows)
        if found is rows:
            open_source(rows, is_followed=follows).close()
    with settings.located(_Server()):
        servers = _servers(settings.flags({}), configuration)
    flags = settings.flags(servers[0].table if len(servers) == 1 else {})
    with settings.located(servers[0]):
        _check_needs(flags, settings.stated)
        if len(servers) == 1:
            # Resolved first: a missing key is reported before other missing settings.
            options, _ = settings.of_server(flags, servers[0])
        else:
            options = settings.of_several(flags, servers)
        options = dataclasses.replace(
            options,
            prices=configuration.prices,
            alerts=configuration.alerts,
            otel=configuration.otel,
        )
        if options.output is None:
            # Without an output file, these settings do not apply.
            options = dataclasses.replace(options, retry_failed=None, restart=None, force=None)
        job = job_of(found, options, configuration.environment)
        return Resolved(job, job.output or output_at("-", options))


def resolve_endpoints(
    given: Flags, configuration: Configuration
) -> tuple[tuple[Endpoint, ...], Embedded | None]:
    """Returns the endpoints of a gateway, and the built-in server if one is the only endpoint.

    The endpoints are those that --endpoint names, otherwise all in the file. given: the flags on
    the command line; `configuration.run` holds the flags in the gateway's table. Raises ConfigError
    as `resolve_run` does.
    """
    settings = _Settings(given, configuration)
    chosen = settings.flags({})
    if "endpoint" not in chosen and configuration.endpoints:
        chosen["endpoint"] = [*configuration.endpoints]
    if not chosen.get("endpoint"):
        raise ConfigError(
            "a gateway needs an endpoint",
            hint="--endpoint http://10.0.0.5:8000/v1, or [endpoints.NAME] in "
            f"{configuration.file}; to try things out, --endpoint sim",
        )
    with settings.located(_Server()):
        servers = _servers(chosen, configuration)
    endpoints = tuple(settings.one_of_several(server)[1] for server in servers)
    return endpoints, embedded_in(servers[0].embedded)


class _Settings:
    """Merges a command's flags with redline.toml, and builds options and endpoints from both.

    stated: the flags on the command line. is_sending: whether the endpoints' keys are needed.
    """

    def __init__(
        self, given: Flags, configuration: Configuration, *, is_sending: bool = True
    ) -> None:
        self.stated = {
            name: value for name, value in given.items() if value not in (None, [], False)
        }
        self._configuration = configuration
        self._is_sending = is_sending

    def flags(self, table: Flags) -> dict[str, Any]:
        """Merges flags: the command line overrides an endpoint's table, which overrides [run].

        Leaves out settings of [run] that are false, or that conflict with a flag on the command
        line (see `_RIVALS`).
        """
        run = self._configuration.run
        defaults = {name: value for name, value in run.items() if value is not False}
        for pair in _RIVALS:
            for mine, rival in (pair, pair[::-1]):
                if mine in self.stated:
                    defaults.pop(rival, None)
        return {**defaults, **table, **self.stated}

    def of_server(self, flags: Flags, server: _Server) -> tuple[Options, Endpoint]:
        """Returns the options, completed from the table and the environment, and their endpoint."""
        configuration, options = self._configuration, options_in(flags)
        options = dataclasses.replace(
            options,
            endpoint=server.embedded,
            base_url=server.base_url,
            name=server.name,
            headers=self._headers(options.headers or {}, server.table),
            api_key=_api_key(options.api_key, configuration) if self._is_sending else "",
            tariff=configuration.tariffs.get(server.name or ""),
        )
        endpoint = endpoint_of(options, configuration.environment)
        if self._is_sending:
            _check_key(endpoint)
        return options, endpoint

    def _headers(self, flagged: Mapping[str, str], table: Flags) -> dict[str, str]:
        """Merges headers: the command line overrides the endpoint's table, which overrides [run].

        flagged: those of --header, or of [run] if the command line has none.
        """
        own = table.get("headers", {})
        if "header" in self.stated:
            return {**own, **flagged}
        replaced = {name.lower() for name in own}
        if "api_key_env" in table:
            replaced.add("authorization")
        return {
            **{name: value for name, value in flagged.items() if name.lower() not in replaced},
            **own,
        }

    def one_of_several(self, server: _Server) -> tuple[Options, Endpoint]:
        """Returns the options of one of several endpoints, and the endpoint."""
        # On the command line, --concurrency bounds the calls to all endpoints together.
        flags = self.flags(server.table)
        if "concurrency" in server.table:
            flags["concurrency"] = server.table["concurrency"]
        with self.located(server):
            return self.of_server(flags, server)

    def of_several(self, flags: Flags, servers: list[_Server]) -> Options:
        """Returns the options of a run with several endpoints.

        Raises ConfigError if their models differ.
        """
        made = [self.one_of_several(server) for server in servers]
        (of_first, first), *others = made
        for options, endpoint in others:
            if options.model != of_first.model:
                one, two = of_first.model or "no model", options.model or "no model"
                names = map(self._configuration.where_endpoint, (first.name, endpoint.name))
                raise ConfigError(
                    f"the endpoints {first.label} and {endpoint.label} use different models: "
                    f"{one} and {two}",
                    where=f"{' and '.join(names)}, model",
                    hint="choose one with --model, and set each endpoint's name for it in "
                    "[endpoints.NAME.models]",
                )
        endpoints = tuple(endpoint for _, endpoint in made)
        return dataclasses.replace(options_in(flags), endpoint=endpoints, model=of_first.model)

    @contextmanager
    def located(self, server: _Server) -> Iterator[None]:
        """Adds to a ConfigError the flag or table that set the setting in its message."""
        try:
            yield
        except ConfigError as error:
            error.where = error.where or self._origin(error.what, server)
            raise

    def _origin(self, what: str, server: _Server) -> str:
        """Returns the flag or table in which an error's setting was set; empty if unknown."""
        flag = ""
        if what.startswith(("a base URL", "not a base URL")):
            flag = server.origin
        elif what.startswith("the proxy"):
            flag = "--proxy"
        configuration, words = self._configuration, (flag or what).split()
        where_server = configuration.where_endpoint(server.name or "")
        if words[0] in OF_ENDPOINT and words[0] in server.table:
            return where_server
        for word in words:
            name = word.removeprefix("--").replace("-", "_")
            if not word.startswith("--") or name in self.stated:
                continue
            if name in server.table:
                return where_server
            if name in configuration.run:
                return configuration.where_defaults()
        return flag


def _check_needs(flags: Flags, stated: Flags) -> None:
    """Raises ConfigError for a flag that requires another one, or conflicts with one.

    Also raises it if the output's folder does not exist.
    """
    place = flags.get("output", "-")
    for name in _NEED_OUTPUT:
        if name in stated and place == "-":
            raise ConfigError(
                f"{flag_of(name)} needs an output file", hint="set it with -o labels.jsonl"
            )
    if place != "-" and url_of(place) is None:
        _check_output_path(place)
    if "no_cache" in stated and ("cache" in stated or "cache_dir" in stated):
        raise ConfigError("--cache and --no-cache cannot be combined", hint="leave one out")
    if not {"no_cache", "cache", "cache_dir"} & flags.keys():
        for name in _NEED_CACHE:
            if name in stated:
                raise ConfigError(f"{flag_of(name)} needs --cache", hint="add --cache")


def _check_output_path(text: str) -> None:
    """Raises ConfigError if the folder of this path does not exist; see also `output_at`."""
    if not (folder := local_path(os.path.expanduser(text)).parent).is_dir():
        what = f"the folder {folder} does not exist"
        hint = f"mkdir -p {shlex.quote(str(folder))}, or "
        if folder.exists():
            what, hint = f"{folder} is a file, not a folder", ""
        raise ConfigError(what, where=f"--output {text}", hint=f"{hint}choose another -o")


def _servers(chosen: Flags, configuration: Configuration) -> list[_Server]:
    """Returns the servers that --endpoint or --base-url names, or the default one.

    Raises ConfigError if both are given, or if several servers cannot be combined.
    """
    names, base_url = chosen.get("endpoint"), chosen.get("base_url")
    if not names:
        origin = URL_VARIABLE if base_url is None else "--base-url"
        return [_Server(base_url=base_url, origin=origin)]
    if base_url is not None:
        raise ConfigError("--endpoint and --base-url cannot be combined", hint="leave one out")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--endpoint names {name} twice", hint="leave one out")
        if len(names) > 1 and (name == SIM or name.startswith(_ENGINE)):
            error = no_embedded(name)
            error.where = f"--endpoint {name}"
            raise error
    return [_server(name, configuration) for name in names]


def _server(name: str, configuration: Configuration) -> _Server:
    """Returns the server that --endpoint names. Raises ConfigError if no server has this name."""
    if name == SIM:
        return _Server(origin="--endpoint", embedded=SIM)
    if name.startswith(_ENGINE):
        # Imported here: only a run with a local model needs it.
        from redline.cli.flags import settings_in
        from redline.serve import LocalEngine

        engine = LocalEngine(settings_in(name.removeprefix(_ENGINE)))
        return _Server(origin="--endpoint", embedded=engine)
    if urlsplit(name).scheme in ("http", "https"):
        return _Server(base_url=name, origin="--endpoint")
    table = configuration.endpoints.get(name)
    if table is None:
        raise ConfigError(
            f"unknown endpoint: {name}",
            hint=nearest(name, (*configuration.endpoints, SIM))
            or f"use a URL such as http://127.0.0.1:8000/v1, a name from {configuration.file}, "
            "sim, or engine:MODEL",
        )
    origin = configuration.where_endpoint(name)
    return _Server(base_url=table["base_url"], origin=origin, name=name, table=table)


def _api_key(variable: str | None, configuration: Configuration) -> str | None:
    """Returns the key in the variable that --api-key-env names; None without the flag.

    Raises ConfigError if the variable is empty or not set.
    """
    if variable is None:
        return None
    return key_in(
        variable, "--api-key-env", configuration.environ, ", or write it into a .env file"
    )


def _check_key(endpoint: Endpoint) -> None:
    """Raises ConfigError if OpenAI would be called without a key."""
    if endpoint.base_url == OPENAI and endpoint.api_key is None:
        raise ConfigError(
            f"there is no API key for {OPENAI}",
            hint=f"set {KEY_VARIABLE} or --api-key-env, choose another --endpoint, or "
            "try things out with --endpoint sim",
        )
