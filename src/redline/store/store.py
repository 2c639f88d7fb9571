"""Accesses an object store through its fsspec driver.

The driver's caches are not used: each query goes to the store, because other processes write to the
store as well. fsspec and the driver are imported only when an ObjectStore is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from redline.errors import ConfigError, nearest
from redline.store.errors import Asking, StoreError, changed_error
from redline.store.url import ObjectUrl

_PACKAGES = {"s3": "redline[s3]", "s3a": "redline[s3]", "gs": "gcsfs", "gcs": "gcsfs"}
_PACKAGES |= dict.fromkeys(("az", "abfs", "abfss"), "adlfs")
_PACKAGES |= dict.fromkeys(("http", "https"), "fsspec[http]")
# Properties that change with the content of an object, the most reliable first. Each driver reports
# only some of them.
_IDENTITIES = (
    *("ETag", "etag", "generation", "md5Hash", "md5", "content_md5"),
    *("LastModified", "last_modified", "updated", "mtime", "created"),
)
# One page of a listing: the search for a similar name is not worth a second request.
_MOST_LISTED = 1000
# A long file is uploaded in parts, several at once; the parts being uploaded are in memory.
PART_BYTES, _PARTS_AT_ONCE = 8 * 1024 * 1024, 4
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
MOST_PARTS = 10_000


class Found(msgspec.Struct, frozen=True):
    """The metadata of an existing object.

    size_bytes: None if the store does not report it. identity: a string that changes with the
    object's content, such as its ETag; empty if the store reports none.
    """

    size_bytes: int | None
    identity: str
    is_folder: bool = False


class ObjectStore:
    """The store that contains `url`. All calls block; any thread may call, one at a time.

    doing: the purpose, such as `reading`, for the error if the driver is not installed. The
    constructor raises ConfigError if there is no driver. All methods except `similar` raise
    StoreError if the store refuses or cannot be reached.
    """

    def __init__(self, url: ObjectUrl, doing: str) -> None:
        self._fs = _driver(url, f"{doing} {url.name}")

    def find(self, url: ObjectUrl) -> Found | None:
        """Returns the metadata of an object; None if it does not exist."""
        try:
            with Asking(url):
                self._fs.invalidate_cache()
                info: dict[str, Any] = self._fs.info(self._path(url))
        except StoreError as error:
            if error.store_kind == "missing":
                return None
            raise
        return _found(info)

    def open(self, url: ObjectUrl) -> Any:
        """Returns a file object for reading, which requests only the ranges that are read."""
        with Asking(url):
            return self._fs.open(self._path(url), "rb", cache_type="none")

    def similar(self, url: ObjectUrl) -> str:
        """Returns a hint for a missing object: the most similar name beside it, or ""."""
        return ""

    def check_writable(self, url: ObjectUrl) -> None:
        """Raises StoreError if the object certainly cannot be written; changes nothing."""

    def upload(
        self, path: Path, url: ObjectUrl, seen: Found | None, is_stopped: Callable[[], bool]
    ) -> Found:
        """Uploads the file at `path` as the object; returns the new object.

        seen: the object that may be replaced; None if no object may exist. Raises StoreError of
        kind `changed` if a different object is found there, and InterruptedError soon after
        `is_stopped` returns True.
        """
        if self.find(url) != seen:
            raise changed_error(url)
        self._put(path, url, seen, _callback(is_stopped))
        found = self.find(url)
        # A different size means that another program has written there in the meantime.
        if found is None or found.size_bytes not in (None, path.stat().st_size):
            raise changed_error(url)
        return found

    def _put(self, path: Path, url: ObjectUrl, seen: Found | None, callback: Any) -> None:
        with Asking(url):
            self._fs.put_file(str(path), self._path(url), callback=callback)

    def copy(self, url: ObjectUrl, target: ObjectUrl) -> None:
        """Copies an object within the store."""
        with Asking(url):
            self._fs.copy(self._path(url), self._path(target))

    def remove(self, url: ObjectUrl, seen: Found) -> None:
        """Removes an object, if any. Raises StoreError of kind `changed` if it is not `seen`."""
        found = self.find(url)
        if found is None:
            return
        if found != seen:
            raise changed_error(url)
        with Asking(url):
            self._fs.rm_file(self._path(url))

    def _path(self, url: ObjectUrl) -> str:
        return str(self._fs._strip_protocol(url.text))


class S3Store(ObjectStore):
    """A store with S3's protocol.

    If the store supports conditions, it checks itself, when an upload ends, that no other program
    has changed the object in the meantime.
    """

    _has_conditions = True  # until the store reports that it does not support them

    def find(self, url: ObjectUrl) -> Found | None:
        """Returns the metadata of an object; None if it does not exist."""
        try:
            return super().find(url)
        except StoreError as error:
            if error.code in ("403", "401"):
                # A HEAD response gives no reason. The response to a listing shows whether the
                # credentials are wrong.
                with Asking(url):
                    self._fs.call_s3("list_objects_v2", Bucket=url.bucket, MaxKeys=1)
            raise

    def similar(self, url: ObjectUrl) -> str:
        """Returns a hint for a missing object: the most similar name beside it, or ""."""
        folder, _, name = self._key(url).rpartition("/")
        try:
            with Asking(url):
                page = self._fs.call_s3(
                    "list_objects_v2",
                    Bucket=url.bucket,
                    Prefix=f"{folder}/" if folder else "",
                    Delimiter="/",
                    MaxKeys=_MOST_LISTED,
                )
        except StoreError:
            return ""
        names = [str(found["Key"]).rpartition("/")[2] for found in page.get("Contents", [])]
        return nearest(name, names)

    def check_writable(self, url: ObjectUrl) -> None:
        """Raises StoreError if the object cannot be written: starts an upload, and aborts it."""
        of = {"Bucket": url.bucket, "Key": self._key(url)}
        with Asking(url):
            begun = self._fs.call_s3("create_multipart_upload", **of)
            self._fs.call_s3("abort_multipart_upload", UploadId=begun["UploadId"], **of)

    def _put(self, path: Path, url: ObjectUrl, seen: Found | None, callback: Any) -> None:
        """Uploads the file; a store with conditions checks then that the upload replaces `seen`."""
        only_if = {"IfNoneMatch": "*"}
        if not self._has_conditions:
            only_if = {}
        elif seen is not None:
            only_if = {"IfMatch": f'"{seen.identity.removeprefix("ETag ")}"'}
        try:
            self._put_parts(path, url, only_if, callback)
        except StoreError as error:
            if only_if and error.code in ("NotImplemented", "501"):
                # The store does not support conditions, so the check by `upload` must suffice.
                self._has_conditions = False
                self._put_parts(path, url, {}, callback)
            elif seen is not None and error.store_kind == "missing":
                raise StoreError(url, "changed", "something else has removed it") from error
            else:
                raise

    def _put_parts(
        self, path: Path, url: ObjectUrl, only_if: dict[str, str], callback: Any
    ) -> None:
        # The driver passes the conditions to each request that accepts them: to the request that
        # changes the object, but not to the requests that upload its parts.
        usual = self._fs.s3_additional_kwargs
        self._fs.s3_additional_kwargs = {**usual, **only_if}
        try:
            with Asking(url):
                self._fs.put_file(
                    str(path),
                    self._path(url),
                    callback=callback,
                    chunksize=max(PART_BYTES, -(-path.stat().st_size // MOST_PARTS)),
                    max_concurrency=_PARTS_AT_ONCE,
                )
        finally:
            self._fs.s3_additional_kwargs = usual

    def _key(self, url: ObjectUrl) -> str:
        return self._path(url).partition("/")[2]


def store_of(url: ObjectUrl, doing: str) -> ObjectStore:
    """Returns the store that contains `url`. Raises ConfigError if there is no driver for it."""
    return S3Store(url, doing) if url.scheme in ("s3", "s3a") else ObjectStore(url, doing)


def _driver(url: ObjectUrl, purpose: str) -> Any:
    """Returns a new fsspec file system for `url`: a shared one might have old credentials."""
    try:
        fsspec = importlib.import_module("fsspec")
        known = sorted(fsspec.available_protocols())
        if url.scheme not in known:
            raise ConfigError(
                f"{url.name}: {url.scheme}:// is not a URL scheme that fsspec knows",
                hint=nearest(url.scheme, known) or "for example s3://, gs://, az:// or https://",
            )
        # The driver is loaded separately, so that a missing package is not reported as an error of
        # the store.
        fsspec.get_filesystem_class(url.scheme)
    except ImportError as error:
        package = _PACKAGES.get(url.scheme, "fsspec" if error.name == "fsspec" else None)
        raise ConfigError(
            f"{purpose} needs a driver, but {package or 'its package'} is not installed",
            # For other schemes, fsspec's own message names the package.
            hint=str(error) if package is None else f"pip install '{package}'",
        ) from error
    with Asking(url):
        fs, _ = fsspec.core.url_to_fs(url.text, skip_instance_cache=True)
    return fs


def _found(info: dict[str, Any]) -> Found:
    size = info.get("size")
    # Only some responses have an ETag in quotes.
    known = (name + " " + str(info[name]).strip('"') for name in _IDENTITIES if info.get(name))
    return Found(
        size if isinstance(size, int) else None, next(known, ""), info.get("type") == "directory"
    )


def _callback(is_stopped: Callable[[], bool]) -> Any:
    """Returns a driver's progress callback, which ends a transfer once `is_stopped()` is true."""

    def stop(size: int | None, value: int, **_: object) -> None:
        if is_stopped() and (size is None or value < size):
            raise InterruptedError

    return importlib.import_module("fsspec.callbacks").Callback(hooks={"stop": stop})
