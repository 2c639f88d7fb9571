"""`redline keys list`: lists the keys in a file, without their secrets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from click import Context

from redline.cli.flags import stated, switch
from redline.cli.keys.file_flag import FILE, path_of
from redline.cli.session import aligned, say, say_json, say_lines
from redline.process import counted, printable

if TYPE_CHECKING:
    from redline.serve.keys import Key

PARAMS = (
    FILE,
    switch("json", "Print the keys as JSON."),
)


def list_keys(ctx: Context) -> None:
    """Show the keys in a file: id, tenant, first characters, dates, state and note, but no secret.

        redline keys list
        redline keys list --json

    Exit status: 0 keys shown; 2 bad usage, or the file cannot be used; 3 a defect in redline.
    """
    # Imported here, because the flags do not need it.
    from redline.serve import keys

    path, now = path_of(ctx), datetime.now(UTC)
    found = keys.read_keys(path)
    if "json" in stated(ctx):
        shown = [_facts(key, now) for key in found]
        say_json(msgspec.json.format(msgspec.json.encode(shown)))
        return
    if not found:
        say(f"{printable(str(path))} holds no keys\n")
        return
    rows = [("id", "tenant", "key", "created", "expires", "state", "note")]
    for key in found:
        dates = (f"{key.created:%Y-%m-%d}", f"{key.expires:%Y-%m-%d}" if key.expires else "never")
        start = f"{key.starts}..."
        note = printable(" ".join(key.note.split()))
        rows.append((key.id, key.tenant, start, *dates, key.state(now), note))
    say_lines([*aligned(rows), "", f"{counted(len(found), 'key')} in {printable(str(path))}"])


def _facts(key: Key, now: datetime) -> dict[str, object]:
    return {
        "id": key.id,
        "tenant": key.tenant,
        "starts": key.starts,
        "created": key.created,
        "expires": key.expires,
        "revoked": key.revoked,
        "state": key.state(now),
        "note": key.note,
    }
