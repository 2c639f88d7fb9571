"""Converts the errors of object store drivers to redline's own errors.

Drivers are not imported here, and each has its own exceptions. So errors are recognized by their
codes and statuses, by the names of their classes, and by the built-in exceptions that they extend.
"""

from __future__ import annotations

from typing import Any, Literal

from redline.errors import ConfigError, RedlineError
from redline.process import clipped
from redline.store.url import ObjectUrl

Kind = Literal["missing", "no_bucket", "denied", "credentials", "changed", "other"]

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_BAD_CREDENTIALS = {
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_CHANGED = {"PreconditionFailed", "ConditionalRequestConflict", "412"}
_NO_CREDENTIALS = {
    "ClientAuthenticationError",
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
}
_AMAZON = ("s3", "s3a")
_SOMETHING_ELSE = "something else has changed it"
_LONGEST_REASON = 200


class StoreError(ConfigError):
    """Raised if an operation of a store fails.

    url: of the object. kind: the kind of failure, stored as store_kind. reason: a short text. code:
    the store's own error code, or an HTTP status; "" if there is neither.
    """

    def __init__(self, url: ObjectUrl, kind: Kind, reason: str, *, code: str = "") -> None:
        super().__init__(f"cannot use {url.name}: {reason}", hint=_hint(url, kind))
        self.url = url
        self.store_kind = kind
        self.reason = reason
        self.code = code

    @property
    def may_pass(self) -> bool:
        """Whether the same operation may succeed later, for example after a lost connection."""
        return self.store_kind == "other"


class Asking:
    """Converts any exception of a driver in the block to a StoreError about `url`.

    The block should contain only calls to the driver. Redline's own errors pass through, as does
    the InterruptedError of a stopped transfer.
    """

    def __init__(self, url: ObjectUrl) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, (RedlineError, InterruptedError)):
            raise store_error(_cause(error), self._url) from error


def store_error(error: Exception, url: ObjectUrl) -> StoreError:
    """Converts a driver's error to a StoreError, with a hint about what to do."""
    code = _code(error)
    kind, reason = _kind_and_reason(error, code, url)
    return StoreError(url, kind, reason, code=code)


def changed_error(url: ObjectUrl) -> StoreError:
    """Returns the error for an object that another program has changed."""
    return StoreError(url, "changed", _SOMETHING_ELSE)


def _kind_and_reason(error: Exception, code: str, url: ObjectUrl) -> tuple[Kind, str]:
    name = type(error).__name__
    shown = f" ({code})" if code and not code.isdigit() else ""
    if name in _NO_CREDENTIALS:
        return "credentials", _words(error)
    if code in _BAD_CREDENTIALS:
        return "credentials", f"the credentials are refused{shown}"
    if code == "NoSuchBucket":
        return "no_bucket", f"there is no bucket {url.bucket}"
    if code in _CHANGED or name in ("FileExpired", "FileExistsError"):
        return "changed", _SOMETHING_ELSE
    if isinstance(error, FileNotFoundError) or code in ("404", "NoSuchKey"):
        return "missing", "it does not exist"
    if isinstance(error, PermissionError) or code in ("401", "403", "AccessDenied"):
        return "denied", f"no permission{shown}"
    return "other", _words(error)


def _cause(error: Exception) -> Exception:
    """Returns the error, or the network error that made s3fs raise it if it is a LookupError."""
    context = error.__context__
    return context if isinstance(error, LookupError) and isinstance(context, OSError) else error


def _code(error: BaseException) -> str:
    """Returns the store's code for the error, such as NoSuchKey, or its HTTP status, or ""."""
    for found in (error, error.__cause__):
        response: Any = getattr(found, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        for name in ("status", "status_code", "code"):
            status = getattr(found, name, None)
            if isinstance(status, int):
                return str(status)
    return ""


def _words(error: Exception) -> str:
    """Returns the first line of the error's text, or the name of its class if it has no text."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    nothing = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    line = (text.strip().splitlines() or [nothing])[0]
    line = line[:1].lower() + line[1:] if line[1:2].islower() else line
    return clipped(line, _LONGEST_REASON)


def _hint(url: ObjectUrl, kind: Kind) -> str:
    is_amazon = url.scheme in _AMAZON
    match kind:
        case "missing":
            return "check the name, which is case-sensitive"
        case "no_bucket":
            return (
                "check the name of the bucket, and which store it is in: AWS_ENDPOINT_URL, "
                "AWS_PROFILE"
            )
        case "credentials" if is_amazon:
            return (
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public "
                "bucket, FSSPEC_S3_ANON=true"
            )
        case "denied" if is_amazon:
            return (
                "allow these credentials s3:ListBucket on the bucket and s3:GetObject on the "
                "object, and s3:PutObject and s3:DeleteObject if it is an output"
            )
        case "credentials" | "denied":
            return f"check the credentials for {url.scheme}://"
        case "other" if is_amazon:
            return "check the network, and AWS_ENDPOINT_URL if it is set, then try again"
        case "other":
            return "check the network and the URL, then try again"
        case "changed":
            return "run the same command again"
