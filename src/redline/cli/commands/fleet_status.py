"""`redline fleet status`: shows the state that a running fleet reports."""

from __future__ import annotations

from pathlib import Path

import msgspec
from click import Context

from redline.calls import is_http_url
from redline.cli.flags import Word, stated, switch
from redline.cli.session import aligned, say_json, say_lines, without_secret
from redline.errors import ConfigError, RedlineError

PARAMS = (
    Word(
        "where",
        "URL|FILE",
        "The URL that `redline fleet up` printed, or the file that it was given.",
    ),
    switch("json", "Print the state as JSON."),
)
_TIMEOUT_S = 10.0
_HINT = "start it with redline fleet up FILE; its first line is the URL"


def fleet_status(ctx: Context, where: str) -> None:
    """Show a running fleet: its replicas, its latest changes with their reasons, and its failures.

        redline fleet status fleet.toml
        redline fleet status http://127.0.0.1:8080/v1 --json

    Exit status: 0 the fleet is running; 2 it is not, or bad usage; 3 a defect in redline.
    """
    page = _page(where)
    if "json" in stated(ctx):
        say_json(page.encode())
        return
    # Imported here, because the flags do not need it.
    from redline.serve.fleet import FleetStatus

    try:
        status = msgspec.json.decode(page, type=FleetStatus)
    except msgspec.DecodeError as error:
        raise RedlineError(
            f"this is not a redline fleet: {error}", where=without_secret(where), hint=_HINT
        ) from None
    rows = [("replica", "state", "in flight", "answered", "latency")]
    for one in status.replicas:
        latency = f"{one.latency_s:.2f} s" if one.latency_s else "-"
        rows.append((one.name, one.state, f"{one.in_flight:,}", f"{one.answered:,}", latency))
    say_lines([f"{status.model}: {status}", "", *aligned(rows)])
    for title, events in (("changes", status.changes), ("failures", status.failures)):
        if events:
            say_lines(["", f"{title}:", *(f"{one.at}  {one.what}" for one in events)])


def _page(where: str) -> str:
    """Fetches a fleet's status as JSON. Raises RedlineError if no fleet is running there."""
    # Imported here: the import takes longer than the rest of the command.
    import http.client
    from urllib.parse import urlsplit

    shown = without_secret(where)
    connect: type[http.client.HTTPConnection] = http.client.HTTPConnection
    if where.startswith(("http://", "https://")):
        if not is_http_url(where):
            raise ConfigError("the URL of the fleet is not valid", where=shown, hint=_HINT)
        parts = urlsplit(where)
        if parts.scheme == "https":
            connect = http.client.HTTPSConnection
        host, port = parts.hostname or "", parts.port or connect.default_port
    else:
        from redline.serve.fleet import front_of

        front = front_of(Path(where))
        host, port = front.host, front.port
        if not port:
            raise ConfigError(f"{where} sets no port", hint="pass the fleet's URL instead")
    connection = connect(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/fleet")
        answer = connection.getresponse()
        raw = answer.read()
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or error
        what = f"no fleet answers at {host}:{port}: {why}"
        raise RedlineError(what, where=shown, hint=_HINT) from None
    finally:
        connection.close()
    why = f"HTTP {answer.status}"
    if answer.status == http.HTTPStatus.OK:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            why = "its page is not UTF-8"
    raise RedlineError(f"this is not a redline fleet: {why}", where=shown, hint=_HINT)
