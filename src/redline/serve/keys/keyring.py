"""Finds the tenant of a request by its key."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from redline.clock import SYSTEM, Clock
from redline.errors import ConfigError
from redline.serve.http import Refusal
from redline.serve.keys.key_file import Key, digest_of, read_keys
from redline.serve.keys.tenants import Tenant, Tenants

DEFAULT_TENANT = "default"
# A longer text cannot be a key, and is not hashed.
_LONGEST = 256


class InvalidKey(Refusal):
    """The request has no key, or a key that is not accepted: 401."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, status=401, code="invalid_api_key", headers={"www-authenticate": "Bearer"}
        )


class Known(msgspec.Struct, frozen=True, gc=False):
    """The tenant of a key, and until when the key is accepted.

    until_s: Unix time; inf for a key that never expires, -inf for a revoked key. reason: the reason
    why the key is refused from then on.
    """

    tenant: Tenant
    until_s: float = math.inf
    reason: str = ""


class Reading(msgspec.Struct, frozen=True):
    """The keys in a file, by their hashes. version: differs once the file has changed."""

    version: tuple[int, ...] = ()
    known: dict[bytes, Known] = {}


class Keyring:
    """Finds tenants by the keys of a file. readings: the number of times the keys were replaced.

    path: None if requests need no key; all requests then belong to the tenant `default`. Keys are
    looked up by their hashes, so the duration of a lookup does not help to guess a key.
    """

    def __init__(self, path: Path | None, tenants: Tenants, clock: Clock = SYSTEM) -> None:
        """Raises ConfigError for a file that is missing, damaged or cannot be read."""
        self._path = path
        self._tenants = tenants
        self._wall_s = clock.wall_s
        self._default = Known(tenants.of(DEFAULT_TENANT)) if path is None else None
        self.readings = 0
        self._taken: dict[bytes, Known] = {}
        self.take(self.read())

    @property
    def is_asked(self) -> bool:
        """Whether requests need a key."""
        return self._default is None

    def known(self, authorization: str | None, api_key: str | None = None) -> Known:
        """Returns the tenant of a request with `Authorization: Bearer KEY` or `x-api-key: KEY`.

        Also returns until when the key is accepted.
        authorization, api_key: the values of these headers; None for a missing header. The result
        is valid until `readings` changes or the key expires. Raises InvalidKey.
        """
        if self._default is not None:
            return self._default
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            # Credentials of another scheme may be meant for a proxy in between.
            secret = api_key or ""
        if not secret or len(secret) > _LONGEST:
            raise _refused(secret)
        known = self._known.get(digest_of(secret.strip().encode("latin-1", "replace")))
        if known is None:
            raise _refused(secret)
        if known.until_s != math.inf and known.until_s <= self._wall_s():
            raise InvalidKey(known.reason)
        return known

    @property
    def active(self) -> int:
        """The number of keys that are accepted now."""
        now_s = self._wall_s()
        return sum(known.until_s > now_s for known in self._known.values())

    def read(self) -> Reading:
        """Returns the keys that are in the file now, for `take`; none without a file.

        Raises ConfigError if the file cannot be read or is damaged.
        """
        if self._path is None:
            return Reading()
        version = _version(self._path)
        known = {bytes.fromhex(key.sha256): self._made(key) for key in read_keys(self._path)}
        return Reading(version, known)

    def take(self, reading: Reading) -> bool:
        """Accepts these keys from now on; returns whether the previous `take` had other keys."""
        self._use(reading)
        before, self._taken = self._taken, reading.known
        return reading.known != before

    def reload_if_changed(self) -> bool:
        """Reads the file again if it was replaced or changed; returns whether it was.

        If the file cannot be read, raises ConfigError and keeps the keys.
        """
        if self._path is None or _version(self._path) == self._version:
            return False
        self._use(self.read())
        return True

    def _use(self, reading: Reading) -> None:
        self.readings += 1
        self._version, self._known = reading.version, reading.known

    def _made(self, key: Key) -> Known:
        tenant = self._tenants.of(key.tenant)
        if key.revoked is not None:
            return Known(tenant, -math.inf, f"The API key {key.id} has been revoked.")
        if key.expires is not None:
            return Known(
                tenant,
                key.expires.timestamp(),
                f"The API key {key.id} expired on {key.expires:%Y-%m-%d %H:%M} UTC.",
            )
        return Known(tenant)


def _refused(secret: str) -> InvalidKey:
    """Returns the error for an unknown secret, or for a missing one.

    The error repeats no part of the secret, which may be the key of another server.
    """
    if secret:
        return InvalidKey("Incorrect API key provided: it is not known here.")
    return InvalidKey(
        "No API key was provided: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
    )


def _version(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}",
            hint="redline keys add TENANT creates it if it is missing",
        ) from error
    return (found.st_ino, found.st_size, found.st_mtime_ns)
