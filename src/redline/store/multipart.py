"""A file put into S3 in parts, so that memory holds a few of them whatever its size.

    up to one part: put_object
    more:           create_multipart_upload -> upload_part, a few at once -> complete
The object is the old one until the last step and the new one after it. What fails or is stopped
on the way is given up, so that its parts are not stored and billed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from redline.store.errors import StoreError

PART_BYTES = 8 * 1024 * 1024
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
MOST_PARTS = 10_000
_AT_ONCE = 4

CallS3 = Callable[..., Any]


def upload_parts(
    call: CallS3,
    path: Path,
    of: dict[str, str],
    only_if: dict[str, str],
    is_stopped: Callable[[], bool],
) -> str:
    """The ETag of the object that now holds the file. Blocks.

    call: an S3 method by its name, which raises StoreError. of: Bucket and Key. only_if: the
    condition under which the object may change. Raises StoreError, and InterruptedError once
    `is_stopped` is true.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size <= PART_BYTES:
            if is_stopped():
                raise InterruptedError
            body = os.pread(fd, PART_BYTES, 0)
            return str(_conditionally(call, "put_object", only_if, Body=body, **of)["ETag"])
        upload_id = call("create_multipart_upload", **of)["UploadId"]
        try:
            parts = _parts(call, fd, size, {**of, "UploadId": upload_id}, is_stopped)
            done = _conditionally(
                call,
                "complete_multipart_upload",
                only_if,
                UploadId=upload_id,
                MultipartUpload={"Parts": parts},
                **of,
            )
        except BaseException:
            _give_up(call, {**of, "UploadId": upload_id})
            raise
        return str(done["ETag"])
    finally:
        os.close(fd)


def _parts(
    call: CallS3, fd: int, size: int, of: dict[str, str], is_stopped: Callable[[], bool]
) -> list[dict[str, Any]]:
    """Uploads every part; their numbers and ETags in order."""
    part_bytes = max(PART_BYTES, -(-size // MOST_PARTS))

    def put(number: int) -> dict[str, Any]:
        if is_stopped():
            raise InterruptedError
        body = _read(fd, part_bytes, (number - 1) * part_bytes)
        etag = call("upload_part", PartNumber=number, Body=body, **of)["ETag"]
        return {"PartNumber": number, "ETag": etag}

    count = -(-size // part_bytes)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="redline-upload") as threads:
        putting: list[Future[dict[str, Any]]] = [
            threads.submit(put, number) for number in range(1, count + 1)
        ]
        try:
            return [part.result() for part in putting]
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _read(fd: int, size: int, offset: int) -> bytes:
    """The bytes at `offset`; one read gives 2 GB at most on Linux."""
    pieces = []
    while size and (piece := os.pread(fd, size, offset)):
        pieces.append(piece)
        size -= len(piece)
        offset += len(piece)
    return b"".join(pieces)


def _give_up(call: CallS3, of: dict[str, str]) -> None:
    try:
        call("abort_multipart_upload", **of)
    except StoreError:
        # What ended the upload is what is told; a bucket's lifecycle rule may remove its parts.
        return


def _conditionally(call: CallS3, method: str, only_if: dict[str, str], **given: Any) -> Any:
    """Calls with the condition; without where the store says that it has none."""
    try:
        return call(method, **only_if, **given)
    except StoreError as error:
        if error.code not in ("NotImplemented", "501"):
            raise
        return call(method, **given)
