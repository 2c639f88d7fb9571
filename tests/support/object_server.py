"""A store of objects that speaks S3, in a process of its own, and a wire to it that can break."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import botocore.loaders
import fsspec
import pytest
import s3fs

from support import starting

_DRIVERS: dict[tuple[str, str], Any] = {}
LOADER = botocore.loaders.create_loader()
KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret-of-tester"}
# Nothing of whoever runs the tests, and no question to a cloud's own address.
SURROUNDINGS = {
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    # botocore waits up to 15 s between five attempts of its own; redline's are what is tested.
    "AWS_MAX_ATTEMPTS": "1",
    "NO_PROXY": "127.0.0.1",
}


class ObjectServer:
    """A running store. s3: a client of another maker, to see what is really there."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.s3: Any = self.client("s3")

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self.s3.put_object(Bucket=bucket, Key=key, Body=data)

    def get(self, bucket: str, key: str) -> bytes:
        data: bytes = self.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        return data

    def keys(self, bucket: str) -> list[str]:
        return [
            found["Key"] for found in self.s3.list_objects_v2(Bucket=bucket).get("Contents", [])
        ]

    def unfinished(self, bucket: str) -> int:
        """Uploads that were begun and neither completed nor given up."""
        return len(self.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []))

    @contextmanager
    def checking_keys(self) -> Iterator[None]:
        """Every request is checked for its key, signature and policies meanwhile."""
        self._check_after("0")
        try:
            yield
        finally:
            self._check_after("inf")

    def _check_after(self, requests: str) -> None:
        request = urllib.request.Request(
            f"{self.url}/moto-api/reset-auth",
            data=requests.encode(),
            headers={"Content-Type": "text/plain"},
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.status == 200


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Starts a store on a free port; ends it at the end."""
    port = starting.free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = starting.start(command, lambda: starting.answers(port))
    try:
        yield ObjectServer(port)
    finally:
        starting.end(process, signal.SIGTERM)


class Wire:
    """A relay before a server, whose connections can be made to break.

    cut_after: bytes that an answer may have before it breaks off, but for every third one that is
    longer. is_down: every connection is reset at once. is_stuck: answers wait; has_waited: one
    has. given: bytes of answers so far.
    """

    def __init__(self, port: int) -> None:
        self.cut_after: int | None = None
        self.is_down = False
        self.is_stuck = False
        self.has_waited = False
        self.given = 0
        self.cuts = 0
        self._long_answers = 0
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def close(self) -> None:
        self.is_stuck = False
        # A listener that is closed does not wake who waits in it; one that is shut down does.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        threads = []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            if self.is_down:
                _reset(client)
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            for work in (self._ask, self._answer):
                threads.append(threading.Thread(target=work, args=(client, server)))
                threads[-1].start()
        for thread in threads:
            thread.join(timeout=10)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        carried = 0
        try:
            while data := server.recv(65536):
                while self.is_stuck:
                    self.has_waited = True
                    time.sleep(0.01)
                was_short = self.cut_after is None or carried <= self.cut_after
                carried += len(data)
                is_cut = False
                if was_short and self.cut_after is not None and carried > self.cut_after:
                    self._long_answers += 1
                    is_cut = self._long_answers % 3 > 0
                if self.is_down or is_cut:
                    self.cuts += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                self.given += len(data)
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            server.close()
            client.close()


def _reset(connection: socket.socket) -> None:
    """Ends a connection as a machine does that has gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    wire = Wire(port)
    try:
        yield wire
    finally:
        wire.close()


class Surroundings:
    """Sets the environment of one test: whose keys, which address of a store."""

    def __init__(self, patch: pytest.MonkeyPatch, url: str) -> None:
        self._patch = patch
        for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
            patch.delenv(name)
        for name, value in {**SURROUNDINGS, **KEYS}.items():
            patch.setenv(name, value)
        self.point_to(url)
        # The driver's own tries double the waits that redline's are tested with.
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        # What S3 is, 5 MB of JSON, is read once and not by each client of each test.
        patch.setattr(botocore.loaders, "create_loader", lambda *_: LOADER)

    def share_drivers(self) -> None:
        """One driver for all stores of one address, where a test is not about credentials."""
        make, made = fsspec.core.url_to_fs, _DRIVERS

        def url_to_fs(url: str, **options: Any) -> Any:
            key = (url.partition(":")[0], os.environ["AWS_ENDPOINT_URL"])
            if key not in made:
                made[key] = make(url, **options)
            return made[key]

        self._patch.setattr(fsspec.core, "url_to_fs", url_to_fs)

    def point_to(self, url: str) -> None:
        """The store that every client asks from now on."""
        self._patch.setenv("AWS_ENDPOINT_URL", url)

    def without_keys(self) -> None:
        for name in KEYS:
            self._patch.delenv(name)

    def with_keys(self, access: str, secret: str) -> None:
        for name, value in zip(KEYS, (access, secret), strict=True):
            self._patch.setenv(name, value)
