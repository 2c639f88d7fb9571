"""Names of streams: what they mean, and that no error shows a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from redline.errors import ConfigError
from redline.job.settings import Job
from redline.journal import Output
from redline.sources import StreamUrl, open_source, stream_of

SECRET = "s3cret"


def found(place: str) -> StreamUrl:
    stream = stream_of(place)
    assert stream is not None
    return stream


@pytest.mark.parametrize(
    ("place", "server", "stream"),
    [
        ("redis://host:6379/2/tickets?group=g", "redis://host:6379/2", b"tickets"),
        ("redis://host/tickets?group=g", "redis://host/0", b"tickets"),
        ("redis:///tickets?group=g", "redis:///0", b"tickets"),
        ("rediss://me:pw@host/0/a/b?group=g", "rediss://me:pw@host/0", b"a/b"),
        ("redis://host/0/events:new%3F?group=g", "redis://host/0", b"events:new?"),
        ("redis://host/0/7?group=g", "redis://host/0", b"7"),
        (
            "rediss://host/t?group=g&ssl_cert_reqs=none",
            "rediss://host/0?ssl_cert_reqs=none",
            b"t",
        ),
    ],
)
def test_what_a_url_names(place: str, server: str, stream: bytes) -> None:
    url = found(place)
    assert (url.server, url.stream, url.group) == (server, stream, b"g")


def test_its_options() -> None:
    usual = found("redis://h/s?group=g")
    assert (usual.field, usual.idle_s, usual.most_deliveries) == ("json", 60.0, 10)
    assert not usual.claims_orphans
    url = found("redis://h/s?group=g&field=body&idle=1.5m&deliveries=3&orphans=claim")
    assert (url.field, url.idle_s, url.most_deliveries) == ("body", 90.0, 3)
    assert url.claims_orphans


def test_the_marks_stand_where_the_stream_stands() -> None:
    assert found("redis://h/s?group=g").marks == b"redline:{s}:g"
    assert found("redis://h/a%7Bb%7Dc?group=g").marks == b"redline:{b}:g"


@pytest.mark.parametrize("place", ["-", "rows.jsonl", "s3://b/rows.jsonl", Path("a"), [1], None])
def test_other_inputs_are_no_streams(place: object) -> None:
    assert stream_of(place) is None


WRONG = {
    "redis://host:99999/s?group=g": "has an invalid port",
    "redis://[host/s?group=g": "is not valid",
    "redis://host?group=g": "names no stream",
    "redis://host/0?group=g": "names no stream",
    "redis://host/s#x?group=g": "names no stream",
    "redis://host/s": "names no consumer group",
    "redis://host/s?group=": "names no consumer group",
    "redis://host/s?group=g&gruop=h": "unknown option of redis://host/s: gruop",
    "redis://host/s?group=g&ssl_password=s3cret": "unknown option of .*: ssl_password",
    "redis://host/s?group=g&idle=1ms": "idle of redis://host/s must be a time",
    "redis://host/s?group=g&idle=25h": "idle of redis://host/s must be a time",
    "redis://host/s?group=g&idle=soon": "idle of redis://host/s must be a time",
    "redis://host/s?group=g&deliveries=0": "deliveries of redis://host/s must be a whole number",
    "redis://host/s?group=g&orphans=yes": "orphans of redis://host/s must be keep or claim",
    "redis://host/s?group=g&idle=x&orphans=yes": "idle of redis://host/s must be a time",
    f"redis://me:{SECRET}@host:x/s?group=g": "has an invalid port",
    f"redis://me:{SECRET}/@host/s?group=g": "an @ after the host",
    f"redis://me:{SECRET}?@host/s?group=g": "an @ after the host",
    f"redis://me:{SECRET}#@host/s?group=g": "an @ after the host",
    f"redis://me:{SECRET}@host/s": "names no consumer group",
}


@pytest.mark.parametrize("place", WRONG)
def test_a_wrong_url_is_refused_and_its_password_not_shown(place: str) -> None:
    with pytest.raises(ConfigError, match=WRONG[place]) as caught:
        stream_of(place)
    shown = f"{caught.value} {caught.value.where} {caught.value.__cause__}"
    assert SECRET not in shown


def test_a_stream_is_no_input_that_is_read_twice() -> None:
    with pytest.raises(ConfigError, match="is a stream, which only a run can read"):
        open_source("redis://host/s?group=g")


async def answer(row: object) -> object:
    return row


REFUSED = [
    ({"output": None}, "are acknowledged once their outcomes are on disk"),
    ({"output": Output.at("s3://b/o.jsonl")}, "would be uploaded when the stream ends"),
    ({"retry_failed": True}, "messages that failed are acknowledged"),
    ({"samples": 2}, "are sent once each"),
    ({"output": Output.at("o.jsonl", ordered=True)}, "--ordered needs an input with an end"),
    ({"rows": "rows.jsonl", "until_empty": True}, "only a stream is read until it is empty"),
    (
        {"rows": "a.jsonl", "follow": True, "output": Output.at("o.jsonl", ordered=True)},
        "--ordered needs an input with an end",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_that_a_stream_cannot_have(settings: dict[str, object], message: str) -> None:
    usual = {"rows": "redis://h/s?group=g", "call": answer, "output": Output.at("o.jsonl")}
    with pytest.raises(ConfigError, match=message):
        Job(**{**usual, **settings})  # type: ignore[arg-type]
