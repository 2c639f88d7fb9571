"""Parses URLs of Redis streams and their groups: `redis://host:6379/0/tickets?group=labels`."""

from __future__ import annotations

import re
from hashlib import blake2b
from urllib.parse import SplitResult, parse_qsl, unquote, unquote_to_bytes, urlencode, urlsplit

import msgspec

from redline.errors import ConfigError, check_known
from redline.limits.rule import SECONDS

_SCHEMES = ("redis", "rediss")
_FORM = "for example redis://host:6379/0/tickets?group=labels"
_OPTIONS = ("group", "field", "idle", "deliveries", "orphans")
# Options that are passed to redis-py unchanged. None is a secret: the manifest stores the URL.
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_LEAST_IDLE_S, MOST_IDLE_S = 0.1, 86_400.0
_ORPHANS = ("keep", "claim")
_KEY_BYTES = 8


class StreamUrl(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer group of one stream.

    server: the URL for redis-py, which may contain a password. name: the stream's URL as it may be
    shown. field: a message that has only this field holds its row there as JSON. idle_s: another
    consumer may claim a message once its own consumer has been silent for this long.
    most_deliveries: a message fails if it was delivered this many times without an outcome.
    claims_orphans: whether to also claim messages whose outcome a dead consumer may have written.
    """

    server: str
    name: str
    stream: bytes
    group: bytes
    field: str = "json"
    idle_s: float = 60.0
    most_deliveries: int = 10
    claims_orphans: bool = False

    @property
    def marks(self) -> bytes:
        """The key of the Redis hash that records which consumer is writing which message's outcome.

        In a cluster, it is on the stream's node: keys with the same text in braces share a node.
        """
        tag = re.search(rb"\{([^}]+)\}", self.stream)
        return b"redline:{%s}:%s" % (self.stream if tag is None else tag[1], self.group)


def stream_of(place: object) -> StreamUrl | None:
    """Parses the URL of a stream; returns None if `place` is not a Redis URL.

    Raises ConfigError, which never contains a password, if the URL is invalid.
    """
    if not isinstance(place, str):
        return None
    scheme, colons, _ = place.partition("://")
    if not colons or scheme.lower() not in _SCHEMES:
        return None
    try:
        parts = urlsplit(place)
    except ValueError:
        raise ConfigError("the URL of the stream is not valid", hint=_FORM) from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ConfigError(
            "the URL of the stream is not valid: it has an @ after the host",
            hint="in a password, write / as %2F, ? as %3F, # as %23 and @ as %40",
        )
    try:
        port = parts.port
    except ValueError:
        raise ConfigError("the URL of the stream has an invalid port", hint=_FORM) from None
    host = parts.hostname or "localhost"
    host = f"[{host}]" if ":" in host else host
    database, name = _path(parts.path)
    shown = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{parts.path}"
    if parts.fragment or not name:
        raise ConfigError(f"{shown} names no stream", hint=_FORM)
    options = _options(parts, shown)
    if not options.get("group"):
        raise ConfigError(
            f"{shown} names no consumer group",
            hint=f"{_FORM}: processes that name the same group share the messages",
        )
    tls = {key: value for key, value in options.items() if key in _TLS}
    server = f"{parts.scheme}://{parts.netloc}/{database}"
    idle_s = _seconds(options.get("idle", "60s"), shown)
    most_deliveries = _count(options.get("deliveries", "10"), shown)
    orphans = options.get("orphans", "keep")
    if orphans not in _ORPHANS:
        raise ConfigError(f"orphans of {shown} must be {' or '.join(_ORPHANS)}, not {orphans}")
    return StreamUrl(
        server=f"{server}?{urlencode(tls)}" if tls else server,
        name=shown,
        stream=name,
        group=options["group"].encode(),
        field=options.get("field") or "json",
        idle_s=idle_s,
        most_deliveries=most_deliveries,
        claims_orphans=orphans == "claim",
    )


def _path(path: str) -> tuple[str, bytes]:
    """Returns the number of the database, and the name of the stream; b"" if it is missing."""
    bare = path.removeprefix("/")
    first, _, rest = bare.partition("/")
    if rest and unquote(first).isdecimal():
        return first, unquote_to_bytes(rest)
    return "0", b"" if bare.isdecimal() else unquote_to_bytes(bare)


def _options(parts: SplitResult, shown: str) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for key in options:
        check_known(f"option of {shown}", key, (*_OPTIONS, *_TLS))
    return options


def _seconds(text: str, shown: str) -> float:
    match = _TIME.fullmatch(text)
    value_s = float(match[1]) * SECONDS[match[2] or "s"] if match is not None else 0.0
    if not _LEAST_IDLE_S <= value_s <= MOST_IDLE_S:
        raise ConfigError(
            f"idle of {shown} must be a time from 100ms to 24h, not {text}",
            hint="for example idle=60s",
        )
    return value_s


def _count(text: str, shown: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise ConfigError(
            f"deliveries of {shown} must be a whole number from 1 to 1,000,000, not {text}",
            hint="for example deliveries=10",
        )
    return int(text)


def message_key(stream: bytes, content: bytes) -> int:
    """Returns the 64-bit key of a message's row. content: the bytes that identify the message."""
    data = b"message:%s %s" % (stream, content)
    return int.from_bytes(blake2b(data, digest_size=_KEY_BYTES).digest(), "big")
