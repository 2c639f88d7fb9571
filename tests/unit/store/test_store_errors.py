"""What drivers raise, in redline's words, and whether trying again may help."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from redline.errors import ConfigError
from redline.store import Asking, ObjectUrl, StoreError, store_error

URL = ObjectUrl("s3", "bucket/key")


def client_error(code: str, status: int = 400) -> ClientError:
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "GetObject")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class OtherDriversError(Exception):
    """As those of drivers whose errors carry an HTTP status and no more."""

    def __init__(self, status: int) -> None:
        super().__init__("no")
        self.status = status


@pytest.mark.parametrize(
    ("error", "kind", "reason", "may_pass"),
    [
        (caused(FileNotFoundError("x"), client_error("NoSuchBucket")), "no_bucket",
         "there is no bucket bucket", False),
        (FileNotFoundError("bucket/key"), "missing", "it does not exist", False),
        (caused(PermissionError("x"), client_error("AccessDenied")), "denied",
         "no permission (AccessDenied)", False),
        (caused(PermissionError("x"), client_error("403")), "denied", "no permission", False),
        (caused(PermissionError("x"), client_error("ExpiredToken")), "credentials",
         "the credentials are refused (ExpiredToken)", False),
        (NoCredentialsError(), "credentials", "unable to locate credentials", False),
        (caused(OSError(22, "pre"), client_error("PreconditionFailed")), "changed",
         "something else has changed it", False),
        (FileExistsError("x"), "changed", "something else has changed it", False),
        (EndpointConnectionError(endpoint_url="u"), "other",
         'could not connect to the endpoint URL: "u"', True),
        (ConnectionResetError(104, "Connection reset by peer"), "other",
         "connection reset by peer", True),
        (TimeoutError(), "other", "no answer in time", True),
        (caused(OSError(5, "x"), client_error("InternalError")), "other", "x", True),
        (OtherDriversError(403), "denied", "no permission", False),
        (OtherDriversError(404), "missing", "it does not exist", False),
        (OtherDriversError(503), "other", "no", True),
        (RuntimeError("a\nb"), "other", "a", True),
        (RuntimeError("y" * 300), "other", "y" * 197 + "...", True),
    ],
)  # fmt: skip
def test_kinds(error: Exception, kind: str, reason: str, may_pass: bool) -> None:
    told = store_error(error, URL)
    assert (told.store_kind, told.reason, told.may_pass) == (kind, reason, may_pass)
    assert told.hint
    assert told.what == f"cannot use s3://bucket/key: {reason}"
    # Another store's hint does not speak of Amazon.
    assert "AWS" not in store_error(error, ObjectUrl("gs", "b/k")).hint or kind == "no_bucket"


def raising(error: BaseException) -> None:
    with Asking(URL):
        raise error


def test_whatever_a_driver_raises_is_told() -> None:
    with pytest.raises(StoreError):
        raising(KeyError("x"))
    for error in (ConfigError("mine"), InterruptedError(), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            raising(error)
        assert caught.value is error


def test_an_error_that_a_driver_met_while_it_looked_at_another() -> None:
    """s3fs looks for a number in errors of the wire that have none (2026.9.0, _fetch_range)."""

    def fetch() -> None:
        try:
            raise TimeoutError
        except OSError as error:
            error.args[0]

    with pytest.raises(StoreError) as caught, Asking(URL):
        fetch()
    assert caught.value.store_kind == "other"
