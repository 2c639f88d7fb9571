"""Reads and writes the key file of `redline serve`: one JSON object per line, one line per key.

Of each secret, the file holds only the first characters and the SHA-256 hash. A secret has 256
random bits, so it cannot be guessed, however fast the hash is. Slow hashes such as scrypt protect
passwords, which people choose; here, they would only make each request slower.

Lines may be edited by hand. `redline keys` adds or changes one line and keeps the others byte for
byte. It locks the file and replaces it in one step, so a reader sees either the old file or the new
one.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from redline.errors import ConfigError, nearest
from redline.process import printable, replace_file, write_all
from redline.serve.keys.file_lock import locked

_PREFIX = "rl-"
_SECRET_BYTES = 32
# The number of characters of a secret that lists show: 24 of its 256 bits.
_SHOWN = len(_PREFIX) + 4
_MOST_BYTES = 256 * 2**20
_LONGEST_NOTE = 200
_LONGEST_LIFE_S = 3_650 * 86_400.0
_TENANT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OWNER, _OWNER_AND_GROUP = 0o600, 0o640

_Time = Annotated[datetime, Meta(tz=True)]


class Key(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One line of the file. starts: the secret's first characters. sha256: its hash, in hex."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
    tenant: Annotated[str, Meta(pattern=rf"^{_TENANT}\Z")]
    starts: Annotated[str, Meta(pattern=r"^[!-~]{1,16}\Z")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: _Time
    expires: _Time | None = None
    revoked: _Time | None = None
    note: Annotated[str, Meta(max_length=_LONGEST_NOTE)] = ""

    def state(self, now: datetime) -> str:
        """Returns the key's state: `active`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


_DECODER = msgspec.json.Decoder(Key)


def digest_of(secret: bytes) -> bytes:
    """Returns the SHA-256 digest that identifies a secret."""
    return hashlib.sha256(secret).digest()


def check_tenant(name: str, where: str = "") -> None:
    """Raises ConfigError for a text that is not a valid tenant name."""
    if re.fullmatch(_TENANT, name) is None:
        raise ConfigError(
            f"not a tenant's name: {printable(name)[:100]}",
            where=where,
            hint="use up to 64 letters, digits, '.', '-' and '_', with a letter or digit first",
        )


def read_keys(path: Path) -> list[Key]:
    """Returns the keys of a file. Raises ConfigError, which names the file and any wrong line."""
    return [*_read(path)[1].values()]


def add_key(
    path: Path, tenant: str, *, lasts_s: float | None = None, note: str = ""
) -> tuple[Key, str]:
    """Adds a key to the file, which is created if it is missing; returns the key and its secret.

    The secret is not stored. lasts_s: seconds until the key expires, above 0 and at most 3,650
    days; None for never. Raises ConfigError for an invalid argument or file, and JournalError if
    the file cannot be written.
    """
    check_tenant(tenant)
    if len(note) > _LONGEST_NOTE or not note.isprintable():
        raise ConfigError(f"a note is one line of at most {_LONGEST_NOTE} characters")
    if lasts_s is not None and not 0 < lasts_s <= _LONGEST_LIFE_S:
        raise ConfigError(
            f"a key must expire after more than 0 and at most 3,650 days, not {lasts_s / 86_400:g}"
        )
    secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    now = _now()
    with locked(path):
        lines, keys = _read(path)
        key = Key(
            id=_free_id({key.id for key in keys.values()}),
            tenant=tenant,
            starts=secret[:_SHOWN],
            sha256=digest_of(secret.encode()).hex(),
            created=now,
            expires=None if lasts_s is None else now + timedelta(seconds=lasts_s),
            note=note,
        )
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        _write(path, [*lines, _line(key)])
    return key, secret


def revoke_key(path: Path, key_id: str) -> tuple[Key, bool]:
    """Revokes a key; returns the key, and False if it was already revoked.

    The key's line stays, so that lists show it. Raises ConfigError if no key has the id or the file
    is not valid, and JournalError if the file cannot be written.
    """
    # Checked first, because the lock would create a missing file.
    _check_exists(path)
    with locked(path):
        lines, keys = _read(path)
        for number, key in keys.items():
            if key.id != key_id:
                continue
            if key.revoked is not None:
                return key, False
            key = msgspec.structs.replace(key, revoked=_now())
            lines[number - 1] = _line(key)
            _write(path, lines)
            return key, True
    raise _no_key(path, key_id, keys.values())


def _no_key(path: Path, key_id: str, keys: Iterable[Key]) -> ConfigError:
    """Returns the error for an id that no key has; it repeats no text that may be a secret."""
    if key_id.startswith(_PREFIX):
        digest = digest_of(key_id.encode("utf-8", "surrogateescape")).hex()
        ids = [key.id for key in keys if key.sha256 == digest]
        return ConfigError(
            "the given text is a key, not the id of a key",
            where=str(path),
            hint=f"its id is {ids[0]}" if ids else "redline keys list shows the ids",
        )
    return ConfigError(
        f"no key has the id {printable(key_id)[:100]}",
        where=str(path),
        hint=nearest(key_id, [key.id for key in keys]) or "redline keys list shows the ids",
    )


def _check_exists(path: Path) -> None:
    if not os.path.lexists(path):
        raise ConfigError(f"there is no file {path}", hint="redline keys add TENANT creates it")


def _read(path: Path) -> tuple[list[bytes], dict[int, Key]]:
    """Returns the lines of a file with their line ends, and the keys by line number, from 1."""
    _check_exists(path)
    try:
        # If the path is a named pipe, opening it must not block.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check_file(path, os.fstat(fd))
            with os.fdopen(fd, "rb", closefd=False) as file:
                data = file.read()
        finally:
            os.close(fd)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}",
            hint="make it readable to the user who runs redline",
        ) from error
    lines = data.splitlines(keepends=True)
    numbered = enumerate(lines, 1)
    keys = {number: _parsed(path, number, line) for number, line in numbered if line.strip()}
    _check_unique(path, keys)
    return lines, keys


def _check_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is not a file")
    if found.st_size > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES // 2**20} MiB")
    if found.st_mode & _OTHERS_WRITE:
        raise ConfigError(
            f"other users can write {path}, and so add keys of their own", hint=f"chmod 600 {path}"
        )


def _parsed(path: Path, number: int, line: bytes) -> Key:
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        is_json = isinstance(error, msgspec.ValidationError)
        # msgspec's message says that `Object` contains, or is missing, a field.
        reason = str(error).replace("Object missing", "it is missing", 1)
        reason = reason.replace("Object", "it", 1) if is_json else "it is not JSON"
        raise ConfigError(
            f"line {number} is not a key: {reason}",
            where=str(path),
            hint="fix or delete that line; redline keys add TENANT writes valid ones",
        ) from None


def _check_unique(path: Path, keys: dict[int, Key]) -> None:
    for name in ("id", "sha256"):
        lines: dict[str, int] = {}
        for number, key in keys.items():
            first = lines.setdefault(getattr(key, name), number)
            if first != number:
                what = f"the id {key.id}" if name == "id" else "the same key"
                raise ConfigError(
                    f"lines {first} and {number} have {what}",
                    where=str(path),
                    hint="delete one of them",
                )


def _write(path: Path, lines: list[bytes]) -> None:
    before = path.stat()

    def write(fd: int) -> None:
        # Before anything is written: no other user may read the new file.
        os.fchmod(fd, _OWNER)
        mode = stat.S_IMODE(before.st_mode) & _OWNER_AND_GROUP | _OWNER
        try:
            # If root adds a key, the gateway's user and group must still be able to read the file.
            os.fchown(fd, before.st_uid, before.st_gid)
        except PermissionError:
            mode = _OWNER
        os.fchmod(fd, mode)
        write_all(fd, lines)

    replace_file(path, write)


def _line(key: Key) -> bytes:
    return msgspec.json.encode(key) + b"\n"


def _free_id(taken: set[str]) -> str:
    while (key_id := f"k-{secrets.token_hex(4)}") in taken:
        pass
    return key_id


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
