"""Opens the right source for a path, a URL, stdin, or Python objects."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path, PurePath

from redline.errors import ConfigError, nearest
from redline.sources.blocks import Blocks, FileBlocks, reason
from redline.sources.csv import CsvRows
from redline.sources.follow import FollowedRows
from redline.sources.iterable import AsyncRows, IterableRows
from redline.sources.jsonl import LineRows
from redline.sources.parquet import open_dataset, open_parquet
from redline.sources.repeated import sampled
from redline.sources.row import Row, Source
from redline.sources.stream_url import stream_of
from redline.sources.text import COMPRESSIONS, ByteStream
from redline.store import ObjectUrl, OpenedObject, local_path, url_of

_LINES = (".jsonl", ".ndjson", ".jsonlines", ".json", ".txt", "")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_MAX_LISTED = 2000
_FRAMES = {
    "iterrows": 'pass df.to_dict("records")',
    "iter_rows": "pass df.iter_rows(named=True)",
    "to_pylist": "pass table.to_pylist()",
}


def open_source(rows: object, *, is_followed: bool = False) -> Source | AsyncRows:
    """Returns the source of `rows`: a path or URL, "-" for stdin, an iterable or async iterable.

    The suffix of a path decides its format: JSON Lines (.jsonl, .ndjson, .jsonlines, .json, .txt,
    or none), .csv or .tsv, each also with .gz or .zst; or .parquet. A folder must have been written
    by Dataset.save_to_disk. A URL, such as s3://bucket/rows.jsonl, is read in the same way, but
    must not be a folder. is_followed: wait for new rows at the end of a file, see follow.py. A
    row longer than MAX_ROW_BYTES is a bad row. Close the source when done. Raises ConfigError if
    `rows` cannot be read. The beginning of a file or an object is read here; a pipe is first read
    by `batches`.
    """
    if is_followed:
        return _followed(rows)
    if isinstance(rows, OpenedObject):
        opened: Source = rows.source
        return opened
    if isinstance(rows, (str, os.PathLike)):
        if os.fspath(rows) == "-":
            return LineRows(ByteStream(FileBlocks(None)))
        if (stream := stream_of(rows)) is not None:
            raise ConfigError(
                f"{stream.name} is a stream, which only a run can read, because each message goes "
                "to one run"
            )
        url = url_of(rows)
        if url is not None:
            return _open_object(url)
        return _open_path(local_path(rows))
    if isinstance(rows, AsyncIterable):
        return AsyncRows("<async iterable>", rows)
    for method, hint in _FRAMES.items():
        if hasattr(rows, method):
            raise ConfigError(f"a {type(rows).__name__} is not an iterable of rows", hint=hint)
    if isinstance(rows, Mapping):
        raise ConfigError("one mapping is not an iterable of rows", hint="pass [row] for one row")
    if isinstance(rows, Iterable) and not isinstance(rows, (bytes, bytearray, memoryview)):
        return IterableRows("<iterable>", rows)
    raise ConfigError(
        f"rows cannot come from a value of type {type(rows).__name__}",
        hint="pass a path, or an iterable of dicts or strings",
    )


@contextmanager
def opened_source(rows: object, samples: int = 1) -> Iterator[Source]:
    """Opens the source of `rows`, each row `samples` times, for a `with` block.

    rows: as for `open_source`, but not an async iterable. Raises ConfigError.
    """
    source = sampled(open_source(rows), samples)
    assert not isinstance(source, AsyncRows)
    with closing(source):
        yield source


@contextmanager
def first_rows(path: str, most: int) -> Iterator[Iterator[Row]]:
    """Opens a file or a URL for a `with` block, to read at most `most` rows. Raises ConfigError."""
    with opened_source(path) as source:
        yield islice(chain.from_iterable(source.batches()), most)


def row_counts(rows: object) -> Iterator[int] | None:
    """Returns an iterator of numbers that add up to a local text file's number of rows.

    The iterator reads the file once more, and raises ConfigError as `open_source` does. Returns
    None for any other input, such as a Parquet file, a URL, a pipe or a missing file.
    """
    if not isinstance(rows, (str, os.PathLike)) or url_of(rows) is not None:
        return None
    try:
        if os.fspath(rows) == "-":
            return _stdin_counts()
        path = local_path(rows)
        if not path.is_file() or path.suffix.lower() == ".parquet":
            return None
        return _text_rows(FileBlocks(path), path).counts()
    except (ConfigError, OSError, ValueError):
        return None


def _stdin_counts() -> Iterator[int] | None:
    """Returns the counts of stdin, as in `row_counts`; None if it is a pipe or a terminal."""
    if sys.stdin is None or not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        return None
    begins_at = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR)
    return LineRows(ByteStream(FileBlocks(None, begins_at=begins_at))).counts()


def opened(rows: object) -> object:
    """Returns `rows`, or, for the URL of an object, the opened object; opening it blocks.

    Raises ConfigError as `open_source` does.
    """
    url = url_of(rows)
    if url is None or isinstance(rows, OpenedObject) or stream_of(rows) is not None:
        return rows
    return OpenedObject(url, _open_object(url))


def _followed(rows: object) -> FollowedRows:
    """Opens the rows of a growing file. Raises ConfigError for an input that cannot be followed."""
    url = url_of(rows)
    if url is not None:
        is_stream = stream_of(rows) is not None
        raise ConfigError(
            f"{url.name} {'need ' if is_stream else 'can'}not be followed: "
            + (
                "a stream has no end; leave out follow"
                if is_stream
                else "an object does not grow; leave out follow"
            )
        )
    if not isinstance(rows, (str, os.PathLike)):
        raise ConfigError(
            "only a file can be followed",
            hint="leave out follow: an iterable may wait for its next row itself",
        )
    if os.fspath(rows) == "-":
        raise ConfigError(
            "stdin is read until it ends, so it need not be followed: leave out follow"
        )
    path = local_path(rows)
    mode = _mode(path)
    if stat.S_ISFIFO(mode):
        raise ConfigError(
            f"{path} is a pipe, which is read until it ends, so it need not be followed: leave "
            "out follow"
        )
    if not stat.S_ISREG(mode) or path.suffix.lower() not in _LINES:
        raise ConfigError(
            f"{path} cannot be followed: only files of JSON lines can",
            hint="supported suffixes: .jsonl, .ndjson, .jsonlines, .json and .txt, uncompressed",
        )
    # The existing content must be JSON Lines too.
    stream = ByteStream(FileBlocks(path))
    beginning = LineRows(stream)
    try:
        beginning.open()
        if stream.is_compressed:
            raise ConfigError(f"{path} is compressed, so it cannot be followed: decompress it")
    finally:
        beginning.close()
    return FollowedRows(path)


def _open_path(path: Path) -> Source:
    mode = _mode(path)
    if stat.S_ISDIR(mode):
        return open_dataset(path)
    if path.suffix.lower() == ".parquet":
        return open_parquet(path, str(path))
    source = _text_rows(FileBlocks(path), path)
    if stat.S_ISREG(mode):
        source.open()
    return source


def _open_object(url: ObjectUrl) -> Source:
    # Imported here, so that runs on local files do not load the store libraries.
    from redline.sources.object import ObjectBlocks, ObjectFile

    if url.file.suffix.lower() == ".parquet":
        return open_parquet(ObjectFile(url), url.name)
    source = _text_rows(ObjectBlocks(url), url.file)
    source.open()
    return source


def _text_rows(blocks: Blocks, path: PurePath) -> CsvRows | LineRows:
    """Returns the rows of text, in the format that the suffix of `path` indicates.

    Raises ConfigError for an unknown suffix.
    """
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS:
        suffix = PurePath(path.stem).suffix.lower()
    if suffix in _DELIMITERS:
        return CsvRows(ByteStream(blocks), _DELIMITERS[suffix])
    if suffix in _LINES:
        return LineRows(ByteStream(blocks))
    raise ConfigError(
        f"{blocks.name} has an unknown suffix: {suffix}",
        hint="supported suffixes: .jsonl, .ndjson, .jsonlines, .json, .txt, .csv and .tsv, also "
        "with .gz or .zst, and .parquet",
    )


def _mode(path: Path) -> int:
    """Returns the file's type and permissions. Raises ConfigError if they cannot be read."""
    try:
        return path.stat().st_mode
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist", hint=_hint_for(path)) from error
    except PermissionError as error:
        raise ConfigError(
            f"no permission to read {path}", hint=f"check the permissions of {path.parent}"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}") from error


def _hint_for(path: Path) -> str:
    """Returns a hint: the most similar name in the same folder, or what the folder lacks."""
    try:
        names = [entry.name for entry in islice(os.scandir(path.parent), _MAX_LISTED)]
    except OSError:
        return f"the folder {path.parent} does not exist or cannot be read"
    # Stems are compared: a shared suffix makes any two short names similar.
    stems = {Path(name).stem: name for name in names}
    close = nearest(path.stem, stems).removeprefix("did you mean ").removesuffix("?")
    return (
        f"did you mean {stems[close]}?"
        if close
        else f"no file in {path.parent.resolve()} has a similar name"
    )
