"""Rows from a real store of objects: as from files, in bounded memory, over a wire that breaks."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

import redline
from redline.errors import ConfigError
from redline.journal import Identifier
from redline.sources import AsyncRows, Source, open_source, opened
from redline.sources import object as source_object
from support.catching import assert_caught
from support.object_server import ObjectServer, Surroundings, Wire, object_server, wire_to

pytestmark = pytest.mark.real

ROWS = [{"custom_id": f"r{number}", "text": f"row {number} ß"} for number in range(1, 2001)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectServer]:
    with object_server() as server:
        server.s3.create_bucket(Bucket="data")
        yield server


@pytest.fixture
def wire(store: ObjectServer) -> Iterator[Wire]:
    with wire_to(store.port) as wire:
        yield wire


@pytest.fixture(autouse=True)
def around(store: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Surroundings:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(source_object, "WAITS_S", (0.01,) * 5)
    surroundings = Surroundings(monkeypatch, store.url)
    surroundings.share_drivers()
    return surroundings


def source_of(rows: object) -> Source:
    source = open_source(rows)
    assert not isinstance(source, AsyncRows)
    return source


def read(rows: object) -> list[tuple[int, int, Any]]:
    """Each row's key, number and data."""
    identifier = Identifier()
    source = source_of(rows)
    found = [row for batch in source.batches() for row in batch]
    source.close()
    keys, *_ = identifier.keys(found)
    return [(key, row.number, row.data) for key, row in zip(keys, found, strict=True)]


def write_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=300)


def write_bytes(data: bytes, path: Path) -> None:
    path.write_bytes(data)


CSV = b"custom_id,text\n" + b"".join(b"r%d,one\r\n" % number for number in range(500))
FILES: dict[str, Callable[[Path], None]] = {
    "a folder/b?c#d ß.JSONL": partial(write_bytes, LINES),
    "rows.ndjson.zst": partial(write_bytes, zstandard.compress(LINES)),
    "rows.csv.gz": partial(write_bytes, gzip.compress(CSV)),
    "rows": partial(write_bytes, LINES),
    "rows.parquet": write_parquet,
}


@pytest.mark.parametrize("name", FILES)
def test_rows_and_their_keys_are_those_of_the_same_file(
    store: ObjectServer, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    FILES[name](path)
    store.put("data", name, path.read_bytes())
    here = read(path)
    assert len(here) in (500, 2000)
    assert read(f"s3://data/{name}") == here
    assert read(f"file://{path}") == here


def test_every_driver_of_fsspec_will_do(tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/in/rows.jsonl", LINES)
    assert len(read("memory://in/rows.jsonl")) == 2000
    with pytest.raises(ConfigError, match=r"memory://in/none\.jsonl does not exist"):
        open_source("memory://in/none.jsonl")


def test_a_web_server_is_read_though_it_knows_no_ranges(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(LINES)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/rows.jsonl?token=hidden"
        try:
            source = source_of(url)
            assert source.name == url.replace("token=hidden", "...")
            assert len(read(url)) == 2000
            report = redline.run(url, model="m", endpoint="sim", prompt="{{ text }}", output="o")
            with pytest.raises(ConfigError) as caught:
                open_source(url.replace("rows", "none"))
        finally:
            server.shutdown()
            thread.join()
    assert report.succeeded == 2000
    assert "none.jsonl?... does not exist" in caught.value.what
    written = "".join(path.read_text() for path in Path("o.redline").glob("*.json"))
    assert "hidden" not in written


def big(store: ObjectServer, key: str, megabytes: int) -> int:
    """Puts an object of so many lines of 1 MB; its size."""
    line = b'{"prompt":"' + b"x" * (1024 * 1024 - 14) + b'"}\n'
    data = line * megabytes
    store.put("data", key, data)
    return len(data)


def test_memory_holds_a_range_whatever_the_size(store: ObjectServer) -> None:
    size = big(store, "big.jsonl", 64)
    source = source_of("s3://data/big.jsonl")
    tracemalloc.start()
    try:
        rows = sum(len(batch) for batch in source.batches())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == 64
    # A range of 8 MB, and twice the same again in the driver's hands while it comes in; then the
    # lines at hand, their text and their data: 29 MB at 64 MB, and at any other size.
    assert peak < 36 * 1024 * 1024 < 0.6 * size


def counting_rows(waits_s: tuple[float, ...], url: str) -> int:
    """The rows that are read with these waits before new tries."""
    source_object.WAITS_S = waits_s
    try:
        return sum(len(batch) for batch in source_of(url).batches())
    except ConfigError as error:
        raise AssertionError(str(error)) from error


def test_a_read_that_breaks_off_goes_on_at_its_offset(
    store: ObjectServer, wire: Wire, around: Surroundings
) -> None:
    """Without new tries, the same wire ends the reading: so the tries are what is seen here."""
    size = big(store, "long.jsonl", 30)
    around.point_to(wire.url)
    wire.cut_after = 600_000

    def check(waits_s: tuple[float, ...]) -> None:
        wire.given = wire.cuts = 0
        assert counting_rows(waits_s, "s3://data/long.jsonl") == 30
        assert wire.cuts >= 5
        # Of each range that is cut twice, 0.6 MB came and then 0.6 MB again.
        assert wire.given < 1.5 * size

    assert_caught(check, (0.01,) * 5, ())


def test_a_store_that_stays_away_ends_the_run_and_the_same_command_goes_on(
    store: ObjectServer, wire: Wire, around: Surroundings
) -> None:
    big(store, "away.jsonl", 12)
    around.point_to(wire.url)
    options: dict[str, Any] = {"model": "m", "endpoint": "sim", "output": "o.jsonl"}
    rows = opened("s3://data/away.jsonl")
    wire.is_down = True
    stopped = redline.run(rows, **options)
    assert stopped.stopped is not None
    assert stopped.stopped.what.startswith("cannot continue reading s3://data/away.jsonl: ")
    assert stopped.stopped.where.startswith("after ")
    assert "try again" in stopped.stopped.hint
    assert not stopped.is_input_done
    done = stopped.succeeded
    assert done == stopped.offered
    wire.is_down = False
    again = redline.run("s3://data/away.jsonl", **options)
    assert (again.skipped, again.succeeded, again.is_complete) == (done, 12 - done, True)
    assert len(Path("o.jsonl").read_bytes().splitlines()) == 12


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s3: s3.delete_object(Bucket="data", Key="fleeting.jsonl"), "vanished while it was"),
        (
            lambda s3: s3.put_object(Bucket="data", Key="fleeting.jsonl", Body=LINES),
            "was changed while it was read",
        ),
    ],
)
def test_an_object_that_does_not_stay_is_told(
    store: ObjectServer, change: Callable[[Any], None], what: str
) -> None:
    big(store, "fleeting.jsonl", 12)
    rows = opened("s3://data/fleeting.jsonl")
    change(store.s3)
    report = redline.run(rows, model="m", endpoint="sim", output="o.jsonl")
    assert report.stopped is not None
    assert f"s3://data/fleeting.jsonl {what}" in report.stopped.what
    assert "run the same command again" in report.stopped.hint
    # What came before is saved, and nothing of another object is mixed in.
    assert report.succeeded == report.offered < 12


def test_the_event_loop_goes_on_while_the_store_does_not_answer(
    store: ObjectServer, wire: Wire, around: Surroundings
) -> None:
    store.put("data", "slow.jsonl", LINES)
    around.point_to(wire.url)
    wire.is_stuck = True

    def release() -> None:
        wire.is_stuck = False

    async def main() -> None:
        outcomes = redline.stream(
            "s3://data/slow.jsonl", prompt="{{ text }}", model="m", endpoint="sim", limit=3
        )
        first = asyncio.ensure_future(anext(outcomes))
        while not wire.has_waited:  # noqa: ASYNC110, set by a thread
            await asyncio.sleep(0.005)
        for _ in range(100):
            await asyncio.sleep(0.005)
        # Were the store asked on the loop, it would stand still until the store answers.
        assert wire.is_stuck
        assert not first.done()
        release()
        assert (await first).is_success
        await outcomes.aclose()  # type: ignore[attr-defined]

    at_last = threading.Timer(60, release)
    at_last.start()
    try:
        asyncio.run(main())
    finally:
        at_last.cancel()


@pytest.mark.slow
def test_closing_ends_the_waits_between_tries(
    store: ObjectServer, wire: Wire, around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    big(store, "closed.jsonl", 12)
    around.point_to(wire.url)
    monkeypatch.setattr(source_object, "WAITS_S", (60.0,))
    source = source_of("s3://data/closed.jsonl")
    wire.is_down = True
    threading.Timer(0.3, source.close).start()
    # Ends at all, and quietly: the test's own time limit is longer than the wait.
    assert sum(len(batch) for batch in source.batches()) < 12
