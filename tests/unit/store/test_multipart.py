"""A file in parts: each byte once and in order, few of them held, nothing left of a failure."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from redline.store import ObjectUrl, StoreError, multipart, upload_parts

OF = {"Bucket": "b", "Key": "k"}
URL = ObjectUrl("s3", "b/k")


class Store:
    """Takes parts; fails the call of the name `fails`, if any."""

    def __init__(self, fails: str = "", code: str = "") -> None:
        self.fails = fails
        self.code = code
        self.calls: list[str] = []
        self.parts: dict[int, bytes] = {}
        self.held_bytes = 0
        self.most_held_bytes = 0
        self.body = b""
        self._lock = threading.Lock()

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        with self._lock:
            self.calls.append(method)
        if method == self.fails and not (self.code and "IfMatch" not in given):
            raise StoreError(URL, "other", "boom", code=self.code)
        if method == "create_multipart_upload":
            return {"UploadId": "u"}
        if method == "upload_part":
            self._take(given["PartNumber"], given["Body"])
            return {"ETag": f"e{given['PartNumber']}"}
        if method == "complete_multipart_upload":
            numbers = [part["PartNumber"] for part in given["MultipartUpload"]["Parts"]]
            assert [part["ETag"] for part in given["MultipartUpload"]["Parts"]] == [
                f"e{number}" for number in numbers
            ]
            self.body = b"".join(self.parts[number] for number in numbers)
        if method == "put_object":
            self.body = given["Body"]
        return {"ETag": "whole"}

    def _take(self, number: int, body: bytes) -> None:
        with self._lock:
            self.held_bytes += len(body)
            self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
        time.sleep(0.002)
        with self._lock:
            self.held_bytes -= len(body)
            self.parts[number] = body


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(multipart, "PART_BYTES", 100)
    return tmp_path / "file"


def upload(store: Store, path: Path, only_if: dict[str, str] | None = None) -> str:
    return upload_parts(store.call, path, OF, only_if or {}, lambda: False)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 200, 4321])
def test_every_byte_once_and_in_order(file: Path, size: int) -> None:
    file.write_bytes(bytes(number % 251 for number in range(size)))
    store = Store()
    assert upload(store, file) == "whole"
    assert store.body == file.read_bytes()
    assert store.calls[0] == ("put_object" if size <= 100 else "create_multipart_upload")
    assert store.most_held_bytes <= 400


def test_a_file_of_any_size_has_no_more_parts_than_a_store_takes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart, "MOST_PARTS", 3)
    file.write_bytes(b"0123456789" * 1000)
    store = Store()
    upload(store, file)
    assert sorted(map(len, store.parts.values())) == [3332, 3334, 3334]
    assert store.body == file.read_bytes()


@pytest.mark.parametrize("fails", ["upload_part", "complete_multipart_upload"])
def test_what_fails_is_given_up(file: Path, fails: str) -> None:
    file.write_bytes(b"x" * 1000)
    store = Store(fails)
    with pytest.raises(StoreError, match="boom"):
        upload(store, file)
    assert store.calls[-1] == "abort_multipart_upload"
    assert store.body == b""


def test_the_first_error_is_told_where_giving_up_fails_too(file: Path) -> None:
    file.write_bytes(b"x" * 1000)

    class Broken(Store):
        def call(self, method: str, **given: Any) -> dict[str, Any]:
            if method == "abort_multipart_upload":
                raise StoreError(URL, "other", "second")
            return super().call(method, **given)

    with pytest.raises(StoreError, match="boom"):
        upload(Broken("upload_part"), file)


@pytest.mark.parametrize("size", [50, 500])
def test_a_condition_that_a_store_has_not_is_left_out(file: Path, size: int) -> None:
    file.write_bytes(b"x" * size)
    last = "put_object" if size <= 100 else "complete_multipart_upload"
    store = Store(last, "NotImplemented")
    assert upload(store, file, {"IfMatch": "e"}) == "whole"
    assert store.calls[-2:] == [last, last]
    refusing = Store(last, "PreconditionFailed")
    with pytest.raises(StoreError):
        upload(refusing, file, {"IfMatch": "e"})
    assert refusing.calls.count(last) == 1


def test_it_is_stopped_between_parts(file: Path) -> None:
    file.write_bytes(b"x" * 10_000)
    store = Store()
    with pytest.raises(InterruptedError):
        upload_parts(store.call, file, OF, {}, lambda: store.calls.count("upload_part") >= 8)
    assert store.calls.count("upload_part") <= 12
    assert store.calls[-1] == "abort_multipart_upload"
