"""`redline keys revoke`: refuses a key from now on."""

from __future__ import annotations

from click import Context

from redline.cli.flags import Word
from redline.cli.keys.file_flag import FILE, path_of
from redline.cli.session import say

PARAMS = (
    Word("key_id", "ID", "ID of the key, as `redline keys list` shows it, such as k-7f3a9c1d."),
    FILE,
)


def revoke_key(ctx: Context, key_id: str) -> None:
    """Refuse a key from now on. Its line stays in the file, so `redline keys list` shows it.

    A running gateway refuses the key within about a second, or at once after SIGHUP.

        redline keys revoke k-7f3a9c1d

    Exit status: 0 the key is revoked; 2 there is no such key, bad usage, or the file cannot be
    used; 3 a defect in redline.
    """
    # Imported here, because the flags do not need it.
    from redline.serve import keys

    path = path_of(ctx)
    key, is_new = keys.revoke_key(path, key_id)
    if is_new:
        say(f"key {key.id} of tenant {key.tenant} is revoked\n")
    else:
        say(f"key {key.id} of tenant {key.tenant} was revoked on {key.revoked:%Y-%m-%d}\n")
