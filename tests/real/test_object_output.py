"""Results in a real store of objects: uploaded, gone on from, and never written over unseen."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
from botocore.exceptions import ClientError
from s3fs.errors import translate_boto_error

import redline
from redline.errors import ConfigError, JournalError, Rejected
from redline.job.outputs import Mirror, mirror
from redline.journal import Output
from redline.store import Found, ObjectStore, ObjectUrl, S3Store, StoreError, store_of
from redline.store import store as object_store
from support.catching import assert_caught
from support.object_server import ObjectServer, Surroundings, object_server, wire_to

pytestmark = pytest.mark.real

URL = "s3://data/out/labels.jsonl"
OBJECT = ObjectUrl("s3", "data/out/labels.jsonl")
COPY = Path("s3.redline/data/out/labels.jsonl")
ROWS = [{"custom_id": f"r{number}"} for number in range(1, 9)]


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with object_server() as server:
        yield server


@pytest.fixture
def store(server: ObjectServer) -> ObjectServer:
    """The server with one bucket that is empty."""
    names = [bucket["Name"] for bucket in server.s3.list_buckets()["Buckets"]]
    for name in names:
        for key in server.keys(name):
            server.s3.delete_object(Bucket=name, Key=key)
    if "data" not in names:
        server.s3.create_bucket(Bucket="data")
    return server


@pytest.fixture(autouse=True)
def around(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Surroundings:
    monkeypatch.chdir(tmp_path)
    surroundings = Surroundings(monkeypatch, server.url)
    surroundings.share_drivers()
    return surroundings


class Asked:
    """A function to call that knows which rows it was asked, and fails those in `bad`.

    when: what else happens when a row of this name is asked.
    """

    def __init__(self, *bad: str, **when: Callable[[], object]) -> None:
        self.names: list[str] = []
        self.bad = set(bad)
        self.when = when

    async def call(self, row: Any) -> str:
        self.names.append(row["custom_id"])
        if (happens := self.when.pop(row["custom_id"], None)) is not None:
            happens()
            # A signal is heard by the loop, in its next turn.
            await asyncio.sleep(0.05)
        if row["custom_id"] in self.bad:
            raise Rejected("no")
        return f"done {row['custom_id']}"


def run(asked: Asked, rows: object = ROWS, **options: Any) -> redline.Report:
    return redline.run(rows, call=asked.call, output=URL, concurrency=1, **options)


def on(machine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another folder has no state of this one, as another machine has none."""
    (tmp_path / machine).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / machine)


def names_in(data: bytes) -> list[str]:
    return [json.loads(line)["custom_id"] for line in data.splitlines()]


ALL = [row["custom_id"] for row in ROWS]


def test_the_object_is_the_file_and_stands_proven(store: ObjectServer) -> None:
    asked = Asked("r3")
    report = run(asked)
    assert (report.succeeded, report.failed, report.not_uploaded) == (7, 1, None)
    assert store.get("data", "out/labels.jsonl") == COPY.read_bytes()
    failed = store.get("data", "out/labels.failed.jsonl")
    assert names_in(failed) == ["r3"]
    assert store.keys("data") == [
        "out/labels.failed.jsonl",
        "out/labels.jsonl",
        "out/labels.redline/manifest.json",
    ]
    # Mended failures have no object any more, as they have no file.
    asked.bad.clear()
    assert run(asked, retry_failed=True).succeeded == 1
    assert "out/labels.failed.jsonl" not in store.keys("data")
    assert sorted(names_in(store.get("data", "out/labels.jsonl"))) == ALL
    # What is done is not uploaded again.
    before = store.s3.head_object(Bucket="data", Key="out/labels.jsonl")["LastModified"]
    assert run(asked).skipped == 8
    after = store.s3.head_object(Bucket="data", Key="out/labels.jsonl")["LastModified"]
    assert (before, len(asked.names)) == (after, 9)


def test_another_machine_goes_on_from_the_object_and_back(
    store: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = Asked("r2")
    on("first", monkeypatch, tmp_path)
    assert run(asked, limit=3).succeeded == 2
    on("second", monkeypatch, tmp_path)
    asked.bad.clear()
    assert run(asked, limit=6).succeeded == 3
    assert run(asked, limit=6, retry_failed=True).succeeded == 1
    # The first machine's files are older than the objects, and its failures are mended by now.
    on("first", monkeypatch, tmp_path)
    assert run(asked).succeeded == 2
    assert sorted(asked.names) == sorted([*ALL, "r2"])
    assert sorted(names_in(store.get("data", "out/labels.jsonl"))) == ALL
    assert not COPY.with_name("labels.failed.jsonl").exists()


def test_a_run_that_is_interrupted_is_uploaded_and_goes_on(store: ObjectServer) -> None:
    asked = Asked(r4=lambda: os.kill(os.getpid(), signal.SIGINT))
    report = run(asked)
    assert report.interrupted
    assert report.not_uploaded is None
    assert names_in(store.get("data", "out/labels.jsonl")) == ALL[:4]
    assert run(asked).succeeded == 4
    assert asked.names == ALL


class Careless:
    """A store that is told to replace whatever is there, and says before that it holds nothing."""

    def __init__(self, url: ObjectUrl, doing: str) -> None:
        self._store = store_of(url, doing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def find(self, url: ObjectUrl) -> None:
        return None

    def upload(self, path: Path, url: ObjectUrl, _: object, is_stopped: Any) -> Any:
        return self._store.upload(path, url, self._store.find(url), is_stopped)


def two_writers(store: ObjectServer, folder: Path) -> None:
    """Two machines begin on the same object, and both end: the second must not undo the first."""
    store.s3.delete_object(Bucket="data", Key="out/labels.jsonl")
    outputs = []
    for name in ("first", "second"):
        (folder / name).mkdir()
        os.chdir(folder / name)
        output = Output.at(URL)
        writer = Mirror(output)
        writer.prepare(restart=False, force=False)
        output.path.write_bytes(f'{{"by": "{name}"}}\n'.encode())
        (output.state_path / "manifest.json").write_bytes(b"{}")
        outputs.append((folder / name, writer))
    os.chdir(outputs[0][0])
    outputs[0][1].upload()
    os.chdir(outputs[1][0])
    with pytest.raises(JournalError) as caught:
        outputs[1][1].upload()
    assert f"{URL} was changed by something else, and has content that" in caught.value.what
    # No other output, such as `labels`, is moved.
    assert "move aside labels.jsonl, labels.failed.jsonl and labels.redline in" in caught.value.hint
    assert store.get("data", "out/labels.jsonl") == b'{"by": "first"}\n'
    assert COPY.read_bytes() == b'{"by": "second"}\n'
    # And before a run: nothing is sent, nothing changed.
    with pytest.raises(ConfigError, match="was changed by something else"):
        Mirror(Output.at(URL)).prepare(restart=False, force=False)


def test_two_writers_are_told_and_both_are_kept(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = iter((tmp_path / "good", tmp_path / "careless"))

    def check(making: Any) -> None:
        monkeypatch.setattr(mirror, "store_of", making)
        folder = next(folders)
        folder.mkdir()
        try:
            two_writers(store, folder)
        except BaseException as error:
            raise AssertionError(repr(error)) from error

    assert_caught(check, store_of, Careless)


def test_failures_that_something_else_has_changed_are_named(store: ObjectServer) -> None:
    asked = Asked("r8", r8=lambda: store.put("data", "out/labels.failed.jsonl", b"{}\n"))
    report = run(asked)
    assert report.not_uploaded is not None
    failures = "s3://data/out/labels.failed.jsonl"
    assert report.not_uploaded.what.startswith(f"{failures} was changed by something else")


def between(
    server: ObjectServer, making: Any, seen_before: bool, folder: Path, looks: int = 2
) -> None:
    """Another program writes after so many looks at the object: it must not be overwritten.

    The second look is the last one before the write, the third one follows it.
    """
    folder.mkdir()
    os.chdir(folder)
    server.s3.delete_object(Bucket="data", Key="out/labels.jsonl")
    if seen_before:
        server.put("data", "out/labels.jsonl", b"old")
    Path("file").write_bytes(b"mine")
    objects: ObjectStore = making(OBJECT, "writing")
    find, left = objects.find, iter(range(looks, 0, -1))

    def look(url: ObjectUrl) -> Found | None:
        is_last = next(left, 0) == 1
        if is_last and looks == 3:
            server.put("data", "out/labels.jsonl", b"theirs")
        found = find(url)
        if is_last:
            server.put("data", "out/labels.jsonl", b"theirs")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "find", look)
        seen = objects.find(OBJECT)
        with pytest.raises(StoreError, match="something else has changed it"):
            objects.upload(Path("file"), OBJECT, seen, lambda: False)
    assert server.get("data", "out/labels.jsonl") == b"theirs"


@pytest.mark.parametrize("seen_before", [False, True])
def test_the_store_refuses_what_changed_after_the_last_look(
    store: ObjectServer, tmp_path: Path, seen_before: bool
) -> None:
    folders = iter((tmp_path / "good", tmp_path / "careless"))

    def check(making: Any) -> None:
        try:
            between(store, making, seen_before, next(folders))
        except BaseException as error:
            raise AssertionError(repr(error)) from error

    # One that looks before it writes, and sets no condition.
    assert_caught(check, S3Store, ObjectStore)


def test_what_replaced_the_object_right_after_the_upload_is_not_taken_for_it(
    store: ObjectServer, tmp_path: Path
) -> None:
    between(store, S3Store, True, tmp_path / "late", looks=3)


def test_a_lost_note_of_the_upload_is_no_change_by_somebody_else(store: ObjectServer) -> None:
    """Death between the upload and the note of it: the object is known by its content."""
    asked = Asked()
    run(asked, limit=3)
    (COPY.parent / "labels.redline" / "objects.json").unlink()
    assert run(asked, limit=5).succeeded == 2
    (COPY.parent / "labels.redline" / "objects.json").write_bytes(b'{"url":"\xff"}')
    assert run(asked).succeeded == 3
    assert asked.names == ALL
    assert sorted(names_in(store.get("data", "out/labels.jsonl"))) == ALL


KILLED = """
import os, signal, sys
import redline

async def call(row):
    if row["custom_id"] == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    print(row["custom_id"], flush=True)
    return "done"

rows = [{"custom_id": f"r{number}"} for number in range(1, 9)]
redline.run(rows, call=call, output=sys.argv[1], concurrency=1)
"""


@pytest.mark.slow
def test_what_was_written_before_a_kill_is_uploaded_by_the_next_run(store: ObjectServer) -> None:
    asked = []
    for fatal, status in (("r6", -signal.SIGKILL), ("none", 0)):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, URL, fatal],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr
        asked += done.stdout.split()
        # The store has nothing of a run that was killed, and all of one that has ended.
        assert ("out/labels.jsonl" in store.keys("data")) == (status == 0)
    assert asked == ALL
    assert sorted(names_in(store.get("data", "out/labels.jsonl"))) == ALL


def test_a_full_disk_does_not_keep_results_from_being_uploaded(
    store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note of what was uploaded cannot be written then; the next run does without."""

    def full(path: Path, write: object) -> None:
        raise JournalError(f"cannot write {path}: No space left on device")

    asked = Asked()
    with monkeypatch.context() as patch:
        patch.setattr(mirror, "replace_file", full)
        assert run(asked, limit=3).not_uploaded is None
    assert names_in(store.get("data", "out/labels.jsonl")) == ALL[:3]
    assert run(asked).is_complete
    assert asked.names == ALL


def test_an_object_that_is_gone_is_made_again(store: ObjectServer) -> None:
    asked = Asked()
    run(asked)
    store.s3.delete_object(Bucket="data", Key="out/labels.jsonl")
    assert run(asked).not_uploaded is None
    assert sorted(names_in(store.get("data", "out/labels.jsonl"))) == ALL
    assert asked.names == ALL


def test_another_programs_object_is_refused_and_put_aside_by_restart(store: ObjectServer) -> None:
    store.put("data", "out/labels.jsonl", b"something else\n")
    with pytest.raises(ConfigError) as caught:
        run(Asked())
    assert caught.value.what == f"{URL} exists and is not a results file of redline"
    assert "--restart" in caught.value.hint
    assert store.get("data", "out/labels.jsonl") == b"something else\n"
    asked = Asked("r1")
    assert run(asked, restart=True).succeeded == 7
    assert store.get("data", "out/labels.old-1.jsonl") == b"something else\n"
    first, failed = (store.get("data", f"out/labels.{end}jsonl") for end in ("", "failed."))
    assert run(asked, restart=True).succeeded == 7
    assert store.get("data", "out/labels.old-2.jsonl") == first
    assert store.get("data", "out/labels.old-2.failed.jsonl") == failed


@pytest.mark.parametrize(
    "refused", [{"rows": "missing.jsonl"}, {"rows": ["a"], "prompt": "the same for all rows"}]
)
def test_a_restart_that_is_refused_leaves_the_objects(
    refused: dict[str, Any], store: ObjectServer
) -> None:
    run(Asked("r1"))
    before = {key: store.get("data", key) for key in store.keys("data")}
    with pytest.raises(ConfigError):
        redline.run(**refused, endpoint="sim", model="m", output=URL, restart=True)
    assert {key: store.get("data", key) for key in store.keys("data")} == before
    assert run(Asked()).skipped == 8


def test_failures_put_aside_are_beside_their_results(store: ObjectServer) -> None:
    def labels(**options: Any) -> redline.Report:
        return redline.run(ROWS, call=Asked("r1").call, output="s3://data/out/labels", **options)

    labels()
    failed = store.get("data", "out/labels-failed.jsonl")
    labels(restart=True)
    assert store.get("data", "out/labels.old-1-failed.jsonl") == failed


@pytest.fixture
def long_file(tmp_path: Path) -> Path:
    """Three parts and a little."""
    path = tmp_path / "long"
    path.write_bytes(os.urandom(1 << 20) * 17)
    return path


def test_a_long_file_goes_in_parts_and_is_whole_or_not_there(
    store: ObjectServer, long_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 5 << 20)
    objects = store_of(OBJECT, "writing")
    found = objects.upload(long_file, OBJECT, None, lambda: False)
    assert store.get("data", "out/labels.jsonl") == long_file.read_bytes()
    assert found == objects.find(OBJECT)
    assert found.identity.endswith("-4")
    # It is stopped after its second part: nothing has changed, and no part is left behind.
    looks = iter([False] * 3)
    long_file.write_bytes(b"x" * (17 << 20))
    with pytest.raises(InterruptedError):
        objects.upload(long_file, OBJECT, found, lambda: next(looks, True))
    assert objects.find(OBJECT) == found
    assert store.unfinished("data") == 0
    # Of any size, it has no more parts than a store takes.
    monkeypatch.setattr(object_store, "MOST_PARTS", 2)
    found = objects.upload(long_file, OBJECT, found, lambda: False)
    assert store.get("data", "out/labels.jsonl") == long_file.read_bytes()
    assert found.identity.endswith("-2")


def test_memory_holds_a_few_parts_of_an_upload(store: ObjectServer, tmp_path: Path) -> None:
    path, objects = tmp_path / "long", store_of(OBJECT, "writing")
    path.write_bytes(bytes(96 << 20))
    tracemalloc.start()
    try:
        objects.upload(path, OBJECT, None, lambda: False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Four parts of 8 MB, as they are read and as they are sent.
    assert peak < 72 << 20


def test_an_upload_that_fails_is_told_and_done_by_the_next_run(
    store: ObjectServer, around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wire_to(store.port) as wire:
        around.point_to(wire.url)
        asked = Asked(r8=lambda: setattr(wire, "is_down", True))
        report = run(asked)
        assert report.succeeded == 8
        assert report.not_uploaded is report.stopped is not None
        assert report.stopped.what.startswith(f"cannot upload to {URL}: ")
        assert f"every result is in {COPY.absolute()}" in report.stopped.hint
        assert store.keys("data") == []
        wire.is_down = False
        again = run(asked)
    assert (again.skipped, again.stopped, asked.names) == (8, None, ALL)
    assert sorted(names_in(store.get("data", "out/labels.jsonl"))) == ALL


async def wrong(row: Any) -> str:
    raise Rejected("the model does not exist")


def test_failures_that_are_done_again_do_not_come_back_after_a_failed_upload(
    store: ObjectServer, around: Surroundings
) -> None:
    """Corrected settings remove the failures here; their object stays until the next upload."""
    redline.run(ROWS, call=wrong, output=URL)
    assert len(names_in(store.get("data", "out/labels.failed.jsonl"))) == 8
    with wire_to(store.port) as wire:
        around.point_to(wire.url)
        asked = Asked(r3=lambda: setattr(wire, "is_down", True))
        assert run(asked, limit=3).not_uploaded is not None
        wire.is_down = False
        assert run(asked).succeeded == 5
    assert asked.names == ALL
    assert sorted(names_in(store.get("data", "out/labels.jsonl"))) == ALL
    assert "out/labels.failed.jsonl" not in store.keys("data")


def test_without_the_files_here_all_objects_are_fetched(store: ObjectServer) -> None:
    """What was noted of the objects stays beside them, and says nothing of files that are gone."""
    asked = Asked("r3")
    run(asked)
    COPY.unlink()
    COPY.with_name("labels.failed.jsonl").unlink()
    assert run(asked).skipped == 8
    assert COPY.with_name("labels.failed.jsonl").exists()
    assert asked.names == ALL


def test_an_interrupt_gives_up_the_upload(
    store: ObjectServer, around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked()
    upload = S3Store.upload

    def interrupted(self: Any, *given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(0.2)
        return upload(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(S3Store, "upload", interrupted)
        report = run(asked)
    assert report.interrupted
    assert report.stopped is not None
    assert report.stopped.what == f"the upload to {URL} was interrupted"
    assert store.keys("data") == []
    assert run(asked).is_complete
    assert sorted(names_in(store.get("data", "out/labels.jsonl"))) == ALL


def test_a_cancelled_upload_is_over_when_the_run_is(
    store: ObjectServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_uploading, upload = threading.Event(), S3Store.upload

    def slow(self: Any, *given: Any) -> Any:
        is_uploading.set()
        threading.Event().wait(0.3)
        return upload(self, *given)

    async def main() -> None:
        running = asyncio.create_task(
            redline.arun(ROWS, output=URL, call=asked.call, progress=False)
        )
        assert await asyncio.to_thread(is_uploading.wait, 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asked = Asked()
    with monkeypatch.context() as patch:
        patch.setattr(S3Store, "upload", slow)
        asyncio.run(main())
    gc.collect()
    assert not caplog.records, caplog.text
    # The next one is not refused for a lock that is still held.
    assert run(asked).is_complete
    assert sorted(names_in(store.get("data", "out/labels.jsonl"))) == ALL


def test_one_process_an_output(store: ObjectServer) -> None:
    second = Asked()
    refused: list[ConfigError] = []

    def attempt() -> None:
        try:
            run(second)
        except ConfigError as error:
            refused.append(error)

    def in_thread() -> None:
        other = threading.Thread(target=attempt)
        other.start()
        other.join()

    assert run(Asked(r2=in_thread)).is_complete
    assert "is being written by another redline" in refused[0].what
    assert second.names == []


@pytest.mark.parametrize("size", [0, 4, 17 << 20])
def test_a_store_without_conditions_is_written_to_all_the_same(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Some answer 501 to a condition: then the look before is all there is."""
    path, objects = tmp_path / "file", store_of(OBJECT, "writing")
    path.write_bytes(b"x" * size)
    conditions: list[bool] = []
    call: Any = vars(s3fs.S3FileSystem)["_call_s3"]

    async def refuse(driver: Any, method: str, *given: Any, **options: Any) -> Any:
        if method in ("put_object", "complete_multipart_upload"):
            conditions.append("IfNoneMatch" in driver.s3_additional_kwargs)
            if conditions[-1]:
                refusal: Any = {"Error": {"Code": "NotImplemented"}}
                raise translate_boto_error(ClientError(refusal, method))
        return await call(driver, method, *given, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", refuse)
    objects.upload(path, OBJECT, None, lambda: False)
    assert conditions == [True, False]
    assert store.get("data", "out/labels.jsonl") == path.read_bytes()
    assert store.unfinished("data") == 0


def test_a_store_of_any_driver_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    asked = Asked("r5")

    def labels(**options: Any) -> redline.Report:
        return redline.run(
            ROWS, call=asked.call, output="memory://out/labels.jsonl", concurrency=1, **options
        )

    on("first", monkeypatch, tmp_path)
    assert labels(limit=5).succeeded == 4
    on("second", monkeypatch, tmp_path)
    assert labels().succeeded == 3
    asked.bad.clear()
    assert labels(retry_failed=True).succeeded == 1
    assert sorted(names_in(files.cat_file("/out/labels.jsonl"))) == ALL
    assert not files.exists("/out/labels.failed.jsonl")
    assert len(asked.names) == 9
    # What somebody else has put there is refused, and what was here is kept.
    mine = Path("memory.redline/out/labels.jsonl").read_bytes()
    files.pipe_file("/out/labels.jsonl", b"{}\n")
    with pytest.raises(JournalError, match=r"line 1 of .* is damaged"):
        labels()
    assert Path("memory.redline/out/labels.old-1.jsonl").read_bytes() == mine


def test_a_stream_uploads_when_it_is_read_or_left(store: ObjectServer) -> None:
    asked = Asked()

    async def main(most: int) -> int:
        count = 0
        async for outcome in redline.stream(ROWS, call=asked.call, output=URL, concurrency=1):
            count += outcome.is_success
            if count == most:
                break
        return count

    async def leave() -> None:
        stream = redline.stream(ROWS, call=asked.call, output=URL, concurrency=1)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())
    assert len(names_in(store.get("data", "out/labels.jsonl"))) >= 1
    asyncio.run(main(8))
    assert sorted(names_in(store.get("data", "out/labels.jsonl"))) == ALL
    assert sorted(asked.names) == ALL


def test_objects_whose_names_are_alike_have_nothing_in_common(
    store: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = Asked("r2")

    def labels(name: str, rows: object = ROWS[:3]) -> redline.Report:
        return redline.run(rows, call=asked.call, output=f"s3://data/out/{name}")

    on("first", monkeypatch, tmp_path)
    labels("labels.jsonl")
    before = {key: store.get("data", key) for key in store.keys("data")}
    on("second", monkeypatch, tmp_path)
    labels("labels", ROWS[1:])
    assert {key: store.get("data", key) for key in before} == before
    assert len(store.keys("data")) == 2 * len(before)
    asked.bad.clear()
    on("third", monkeypatch, tmp_path)
    assert labels("labels", ROWS[1:]).offered == 0
    assert labels("labels.jsonl").offered == 0


@pytest.mark.slow
def test_objects_of_an_older_redline_are_found_and_not_taken_by_another_output(
    store: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = Asked("r2")

    def labels(name: str, **options: Any) -> redline.Report:
        return redline.run(ROWS, call=asked.call, output=f"s3://data/out/{name}", **options)

    on("first", monkeypatch, tmp_path)
    labels("labels")
    # As it was named when `labels` and `labels.jsonl` had the same names beside them.
    for old, new in (
        ("labels-redline/manifest.json", "labels.redline/manifest.json"),
        ("labels-failed.jsonl", "labels.failed.jsonl"),
    ):
        store.put("data", f"out/{new}", store.get("data", f"out/{old}"))
        store.s3.delete_object(Bucket="data", Key=f"out/{old}")
    before = {key: store.get("data", key) for key in store.keys("data")}
    on("second", monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match="belongs to s3://data/out/labels, which an older"):
        labels("labels.jsonl")
    assert {key: store.get("data", key) for key in store.keys("data")} == before
    asked.bad.clear()
    on("third", monkeypatch, tmp_path)
    assert labels("labels").offered == 0
    assert labels("labels", retry_failed=True).succeeded == 1
    assert sorted(names_in(store.get("data", "out/labels"))) == ALL
    assert store.keys("data") == ["out/labels", "out/labels.redline/manifest.json"]
