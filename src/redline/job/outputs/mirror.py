"""Mirrors an output to an object store: uploads the run's local files when the run ends.

A store has no append, no fsync and no lock. Therefore a run writes local files, as any run does,
and the results, the failures and the manifest are each uploaded as a whole when the run ends, even
if it ends early. Before a run without --restart, both files are compared with their objects:

  the file contains the object    the file stays, and is uploaded at the end
  the object contains the file    the object is fetched
  neither contains the other      the run is refused, with the exception below

Results are only appended, so a file contains an object if it begins with all of the object's bytes,
and vice versa. An object that has not changed since it was uploaded or fetched is not read: the
file contains it. If the object has changed since then but the file has not, the output was
rewritten elsewhere, for example by --ordered: the object is fetched, and the file is kept under
another name.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from itertools import count
from pathlib import Path

import msgspec

from redline.errors import ConfigError, JournalError, RedlineError
from redline.journal import Output, OutputLock, check_place, has_old_names, names_of, stem_of
from redline.journal import manifest as manifests
from redline.process import free_name, replace_file, write_all, write_file
from redline.sources import ObjectReader
from redline.store import Found, ObjectStore, ObjectUrl, StoreError, store_of

_RANGE_BYTES = 8 * 1024 * 1024


class _Relation(Enum):
    """Says which of a file and its object contains all of the other."""

    FILE_HAS_ALL = auto()
    OBJECT_HAS_ALL = auto()
    NEITHER = auto()


class _Seen(msgspec.Struct):
    """An object and its file, as they were when one was last copied to the other.

    digest: of the file, see `_digest`; empty if the file must be uploaded in any case.
    """

    found: Found
    digest: str


class _State(msgspec.Struct):
    """The content of objects.json. seen: the last known object of each file, by the file's name."""

    url: str
    seen: dict[str, _Seen] = {}


class Mirror:
    """Fetches, uploads and renames the objects of one output.

    The methods block, except `stop`, which any thread may call.
    """

    def __init__(self, output: Output) -> None:
        assert output.url is not None
        self.output = output
        self.url = output.url
        self._stopped = threading.Event()
        self._store = store_of(output.url, "writing")
        self._state = _State(output.url.name)

    def stop(self) -> None:
        """Stops a transfer in progress; an object that is being written keeps its old content."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def prepare(self, *, restart: bool, force: bool) -> None:
        """Brings the local files into the state from which the run continues.

        restart: fetch nothing, because the run renames the files, and `put_aside` the objects.
        force: accept results without a manifest. Raises ConfigError if the store refuses access, or
        holds objects that must not be replaced; JournalError if `stop` interrupts it.
        """
        with self._telling():
            self._store.check_writable(self.url)
            if not self.output.state_path.exists() and _has_old_names(self.url, self._store):
                self.output = msgspec.structs.replace(self.output, has_old_names=True)
            check_place(self.output)
            self._make_folder()
            with OutputLock(self.output):
                self._load()
                if not restart:
                    self._reconcile_all(is_forced=force)

    def put_aside(self) -> None:
        """Renames the objects of an earlier run to the first free `labels.old-N.jsonl`.

        The caller holds the output's lock. Raises ConfigError if the store refuses.
        """
        with self._telling():
            self._put_aside()

    def upload(self) -> None:
        """Uploads the files that differ from their objects: the manifest first, failures last.

        In this order, a crash during the upload leaves no row without a line. Raises JournalError
        if the store refuses access or holds content that the files lack, or if `stop` interrupts
        the upload; ConfigError if another run has begun meanwhile.
        """
        output = self.output
        try:
            with OutputLock(output):
                pairs = [(path, self._replaced(path)) for path in _files(output)]
                manifest = manifests.path_of(output)
                self._upload(manifest, self._store.find(self._url(manifest)))
                for path, found in pairs:
                    self._upload(path, found)
        except StoreError as error:
            if error.store_kind == "changed":
                raise self._refusal(JournalError, error.url) from error
            raise JournalError(
                f"cannot upload to {self.url.name}: {error.reason}",
                hint=f"{error.hint.partition('; ')[0]}; every result is in {output.path}: "
                "run the same command again to upload it",
            ) from error
        except InterruptedError as error:
            raise JournalError(
                f"the upload to {self.url.name} was interrupted",
                hint=f"every result is in {output.path}: run the same command again to upload it",
            ) from error

    def _upload(self, path: Path, found: Found | None) -> None:
        """Uploads a changed file as its object, or removes the object if there is no file."""
        if not path.exists():
            if found is not None:
                self._store.remove(self._url(path), found)
            self._state.seen.pop(path.name, None)
            self._save()
        elif found is None or self._state.seen.get(path.name) != _Seen(found, _digest(path)):
            found = self._store.upload(path, self._url(path), found, self._stopped.is_set)
            self._remember(path, found)

    def _replaced(self, path: Path) -> Found | None:
        """Returns the object that an upload of the file may replace; None if there is none.

        Raises StoreError if something else has changed the object, so that the file lacks some of
        its content.
        """
        found = self._store.find(self._url(path))
        if self._is_seen(path, found) or self._relation(path, found) is _Relation.FILE_HAS_ALL:
            return found
        raise StoreError(self._url(path), "changed", "something else has changed it")

    def _reconcile_all(self, *, is_forced: bool) -> None:
        manifest = manifests.path_of(self.output)
        has_manifest = self._store.find(self._url(manifest)) is not None
        self._check_owner(has_manifest=has_manifest)
        had_results = self.output.path.exists()
        is_fetched = False
        for path in _files(self.output):
            found = self._store.find(self._url(path))
            if had_results and not path.exists() and self._is_seen(path, found):
                # After the upload, a run on this machine removed this file, because all failed rows
                # had succeeded when retried, and was killed before it removed the object.
                continue
            if found is not None and found.size_bytes and not has_manifest and not is_forced:
                raise ConfigError(
                    f"{self.url.name} exists and is not a results file of redline",
                    hint="choose another -o, rename that object with --restart, or continue it "
                    "with --force if redline wrote its lines",
                )
            is_fetched |= self._reconcile(path, found)
        if has_manifest and (is_fetched or not manifest.exists()):
            _fetch(self._store, self._url(manifest), manifest, self._stopped)

    def _check_owner(self, *, has_manifest: bool) -> None:
        """Raises ConfigError if this is `labels.jsonl` but the manifest belongs to `labels`."""
        older = self.url.beside(stem_of(self.url.file.name))
        is_begun = not has_manifest or older == self.url or self._store.find(self.url) is not None
        if is_begun or self.output.path.exists() or not _has_old_names(older, self._store):
            return
        if self._store.find(older) is not None:
            raise ConfigError(
                f"{self._url(self.output.state_path).name} belongs to {older.name}, which an older "
                "version of redline began",
                hint="choose another -o",
            )

    def _reconcile(self, path: Path, found: Found | None) -> bool:
        """Fetches the object if the file lacks some of its content; returns whether it was fetched.

        If neither contains the other, raises ConfigError, unless the file has not changed since it
        was last uploaded or fetched: the file is then renamed, and the object is fetched.
        """
        relation = self._relation(path, found)
        if found is None or relation is _Relation.FILE_HAS_ALL:
            if found is not None and not self._is_seen(path, found):
                # From now on, the object is not read again; the empty digest causes an upload of
                # the file.
                self._state.seen[path.name] = _Seen(found, "")
            return False
        if relation is _Relation.NEITHER:
            seen = self._state.seen.get(path.name)
            if seen is None or seen.digest != _digest(path):
                raise self._refusal(ConfigError, self._url(path))
            path.rename(free_name(path, "old"))
        _fetch(self._store, self._url(path), path, self._stopped)
        self._remember(path, found)
        return True

    def _relation(self, path: Path, found: Found | None) -> _Relation:
        """Returns the relation of the file and `found`; if necessary, compares their contents."""
        if found is None:
            return _Relation.FILE_HAS_ALL
        if not path.exists():
            return _Relation.OBJECT_HAS_ALL
        if self._is_seen(path, found):
            return _Relation.FILE_HAS_ALL
        with path.open("rb") as file:
            for data in _ranges(self._store, self._url(path)):
                mine = file.read(len(data))
                if not data.startswith(mine):
                    return _Relation.NEITHER
                if len(mine) < len(data):
                    return _Relation.OBJECT_HAS_ALL
        return _Relation.FILE_HAS_ALL

    def _is_seen(self, path: Path, found: Found | None) -> bool:
        """Whether the object is unchanged since it was last uploaded or fetched."""
        seen = self._state.seen.get(path.name)
        return seen is not None and seen.found == found

    def _remember(self, path: Path, found: Found) -> None:
        self._state.seen[path.name] = _Seen(found, _digest(path))
        self._save()

    @contextmanager
    def _telling(self) -> Generator[None]:
        """Converts a StoreError in the block to a ConfigError: the object cannot be written."""
        try:
            yield
        except StoreError as error:
            raise ConfigError(
                f"cannot write to {self.url.name}: {error.reason}", hint=error.hint
            ) from error

    def _put_aside(self) -> None:
        stem, suffix = self.output.path.stem, self.output.path.suffix
        for number in count(1):
            results = f"{stem}.old-{number}{suffix}"
            asides = [self.url.beside(name) for name in (results, names_of(results).failed)]
            if all(self._store.find(aside) is None for aside in asides):
                break
        urls = map(self._url, _files(self.output))
        pairs = [
            (url, aside, self._store.find(url)) for url, aside in zip(urls, asides, strict=True)
        ]
        # Both are copied before either is removed, so that a crash in between loses neither.
        for url, aside, found in pairs:
            if found is not None:
                self._store.copy(url, aside)
        for url, _, found in pairs:
            if found is not None:
                self._store.remove(url, found)
        self._state.seen.clear()
        self._save()

    def _make_folder(self) -> None:
        folder = self.output.state_path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot create the folder {folder}: {error.strerror}",
                hint=f"run redline in a writable folder: the run's files for {self.url.name} are "
                "written there before they are uploaded",
            ) from error

    def _url(self, path: Path) -> ObjectUrl:
        name = path.relative_to(self.output.path.parent)
        return self.url.beside(name.as_posix())

    def _refusal(
        self, kind: type[ConfigError] | type[JournalError], url: ObjectUrl
    ) -> ConfigError | JournalError:
        return kind(
            f"{url.name} was changed by something else, and has content that its local file lacks",
            hint=f"both are kept: to continue from the object, move aside {self._places}; "
            "to continue from the file, move the object aside; then run the same command again",
        )

    @property
    def _places(self) -> str:
        """The output's local files and folder, for a hint."""
        output = self.output
        files = f"{output.path.name}, {output.failed_path.name} and {output.state_path.name}"
        return f"{files} in {output.path.parent}"

    def _load(self) -> None:
        try:
            state = msgspec.json.decode(self._state_path.read_bytes(), type=_State)
        except (FileNotFoundError, ValueError):
            # The state may be missing: the contents also show how a file and its object relate.
            return
        if state.url != self.url.name:
            raise ConfigError(
                f"{self.output.path} belongs to {state.url}, not to {self.url.name}",
                hint=f"move aside {self._places}, or run redline in another folder",
            )
        self._state = state

    def _save(self) -> None:
        try:
            write_file(self._state_path, msgspec.json.encode(self._state))
        except JournalError:
            # A full disk must not keep the results from being uploaded. The saved state is only a
            # shortcut: without it, the next run compares the file with the object.
            return

    @property
    def _state_path(self) -> Path:
        return self.output.state_path / "objects.json"


@contextmanager
def fetched(url: ObjectUrl) -> Generator[Output]:
    """Yields the output at `url` as local files, which are removed after the block. Blocks.

    An object that does not exist has no file. A RedlineError raised in the block names the objects
    instead of the files. Raises ConfigError if the store refuses access.
    """
    # Imported here, because tempfile imports modules for archives, which no other part needs.
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="redline-") as folder:
        output = Output(path=Path(folder, url.file.name))
        try:
            yield _fetch_all(url, output)
        except RedlineError as error:
            base, here = url.beside("").name, f"{folder}/"
            error.what, error.hint = error.what.replace(here, base), error.hint.replace(here, base)
            raise


def _fetch_all(url: ObjectUrl, output: Output) -> Output:
    """Fetches the objects; returns `output`, with `has_old_names` set if redline 0.1 wrote them."""
    store = store_of(url, "reading")
    try:
        output = msgspec.structs.replace(output, has_old_names=_has_old_names(url, store))
        output.state_path.mkdir()
        for path in (manifests.path_of(output), *_files(output)):
            there = url.beside(path.relative_to(output.path.parent).as_posix())
            if store.find(there) is not None:
                _fetch(store, there, path, threading.Event())
    except StoreError as error:
        raise ConfigError(f"cannot read {url.name}: {error.reason}", hint=error.hint) from error
    return output


def _has_old_names(url: ObjectUrl, store: ObjectStore) -> bool:
    """Whether redline 0.1 wrote the objects; see `has_old_names`."""
    return has_old_names(url.file.name, lambda name: store.find(url.beside(name)) is not None)


def _files(output: Output) -> tuple[Path, Path]:
    """Returns the paths of the results and of the failures, each of which becomes an object."""
    return output.path, output.failed_path


def _digest(path: Path) -> str:
    """Returns a digest of the file's bytes.

    The file's times cannot show a change, because opening a results file changes them.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _ranges(store: ObjectStore, url: ObjectUrl) -> Iterator[bytes]:
    """Yields an object's bytes in order. Raises CorruptInput if the object changes meanwhile."""
    reader = ObjectReader(url, store)
    reader.open()
    at = 0
    while data := reader.read(at, _RANGE_BYTES):
        yield data
        at += len(data)
    reader.check_unchanged()


def _fetch(store: ObjectStore, url: ObjectUrl, path: Path, stopped: threading.Event) -> None:
    """Replaces the file with a copy of the object, atomically."""

    def write(fd: int) -> None:
        for data in _ranges(store, url):
            if stopped.is_set():
                raise JournalError(f"fetching {url.name} was interrupted")
            write_all(fd, [data])

    replace_file(path, write)
