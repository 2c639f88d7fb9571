"""`redline keys add`: creates a key and prints it once."""

from __future__ import annotations

from click import Context

from redline.cli.flags import Word, flag, read_flags, time
from redline.cli.keys.file_flag import FILE, path_of
from redline.cli.session import say, tell

_LONGEST_S = 3_650 * 86_400.0
PARAMS = (
    Word(
        "tenant",
        "TENANT",
        "Owner of the key, such as team-a; [tenants.team-a] in redline.toml sets its limits.",
    ),
    FILE,
    time(
        "expires",
        "Refuse the key after this time, such as 90d or 12h; at most 3650d. Default: never.",
        most_s=_LONGEST_S,
    ),
    flag("note", "TEXT", "What the key is for, shown by redline keys list."),
)


def add_key(ctx: Context, tenant: str) -> None:
    """Make a key for a tenant, and print it once.

    The key is the only line on stdout. The file keeps only its hash and its first characters, so
    the key cannot be shown again. Clients send it the way the OpenAI and Anthropic SDKs send their
    keys.

        redline keys add team-a > team-a.key
        redline keys add team-a --expires 90d --note 'nightly jobs'

    Exit status: 0 the key is in the file; 2 bad usage, or the file cannot be used; 3 a defect in
    redline.
    """
    # Imported here, because the flags do not need it.
    from redline.serve import keys

    given, path = read_flags(ctx, PARAMS), path_of(ctx)
    note, lasts_s = given.get("note", ""), given.get("expires_s")
    key, secret = keys.add_key(path, tenant, lasts_s=lasts_s, note=note)
    until = f", until {key.expires:%Y-%m-%d %H:%M} UTC" if key.expires is not None else ""
    what = f"key {key.id} of tenant {key.tenant}{until}"
    tell(f"{what}: copy it now, because {path} does not contain it\n")
    say(f"{secret}\n")
