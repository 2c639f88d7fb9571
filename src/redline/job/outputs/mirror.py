"""An output in an object store: its files are on this machine, and objects are made of them.

A store has no append, no fsync and no lock. So a run writes files, as it always does, and they
become objects as a whole: when the run ends, however it ends. Before a run, what the store has is
looked at. For the results and for the failures:

  no object                                        the file becomes one later
  no file                                          fetched
  the object is the one last seen here             nothing to do
  the object is the file's beginning, or equal     the file has all of it: it becomes the object
  the file is the object's beginning               fetched: the run went on elsewhere
  the file is as when it was last uploaded         put aside, the object fetched: it was rewritten
                                                   elsewhere, as by --ordered
  else                                             refused: each has what the other has not
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec

from redline.errors import ConfigError, JournalError, RedlineError
from redline.journal import Output, OutputLock, check_place, names_of
from redline.journal import manifest as manifests
from redline.process import replace_file, write_all
from redline.sources import ObjectReader
from redline.store import Found, ObjectStore, ObjectUrl, StoreError, store_of

_RANGE_BYTES = 8 * 1024 * 1024
_Relation = Literal["file is ahead", "object is ahead", "apart"]


class _Seen(msgspec.Struct):
    """An object and the file that were the same, the last time that they were looked at."""

    found: Found
    digest: str


class _State(msgspec.Struct):
    """objects.json. seen: by the name of the file."""

    url: str
    seen: dict[str, _Seen] = {}


class Mirror:
    """The objects of one output. Calls block; `stop` ends one from any thread."""

    def __init__(self, output: Output) -> None:
        assert output.url is not None
        self.output = output
        self.url = output.url
        self._stopped = threading.Event()
        self._store = store_of(output.url, "writing")
        self._state = _State(output.url.name)

    def stop(self) -> None:
        """Ends what goes on; an object that is being written stays what it was."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def prepare(self, *, restart: bool, force: bool) -> None:
        """Makes the files on this machine those that a run goes on from.

        Raises ConfigError if the store refuses, or holds what must not be replaced.
        """
        try:
            self._store.check_writable(self.url)
            if not self.output.state_path.exists() and _has_old_names(self.url, self._store):
                self.output = msgspec.structs.replace(self.output, has_old_names=True)
            check_place(self.output)
            self._make_folder()
            with OutputLock(self.output):
                self._load()
                if restart:
                    self._put_aside()
                else:
                    self._reconcile_all(is_forced=force)
        except StoreError as error:
            raise ConfigError(
                f"cannot write to {self.url.name}: {error.reason}", hint=error.hint
            ) from error

    def upload(self) -> None:
        """Makes the objects what the files are now: the manifest first, failures last.

        So death on the way leaves no row out. Raises JournalError if the store refuses or
        holds what this output has not seen, ConfigError if another run has begun meanwhile.
        """
        output = self.output
        try:
            with OutputLock(output):
                pairs = [(path, self._replaceable(path)) for path in _files(output)]
                manifest = manifests.path_of(output)
                self._upload(manifest, self._store.find(self._url(manifest)))
                for path, found in pairs:
                    self._upload(path, found)
        except StoreError as error:
            if error.store_kind == "changed":
                raise self._refusal(JournalError) from error
            raise JournalError(
                f"cannot upload to {self.url.name}: {error.reason}",
                hint=f"{error.hint.partition('; ')[0]}; every result is in {output.path}: "
                "run the same command again, and it is uploaded",
            ) from error
        except InterruptedError as error:
            raise JournalError(
                f"the upload to {self.url.name} was interrupted",
                hint=f"every result is in {output.path}: run the same command again, and it is "
                "uploaded",
            ) from error

    def _upload(self, path: Path, found: Found | None) -> None:
        """Makes an object of the file, or removes the one whose file is gone."""
        url, seen = self._url(path), self._state.seen.get(path.name)
        if not path.exists():
            if found is not None:
                self._store.remove(url, found)
            self._state.seen.pop(path.name, None)
        elif found is None or seen is None or seen != _seen(path, found):
            found = self._store.upload(path, url, found, self._stopped.is_set)
            self._state.seen[path.name] = _seen(path, found)
        self._save()

    def _replaceable(self, path: Path) -> Found | None:
        """The object that the file may replace. Raises StoreError if it holds anything else."""
        url, seen = self._url(path), self._state.seen.get(path.name)
        found = self._store.find(url)
        if found is None or (seen is not None and seen.found == found):
            return found
        if path.exists() and self._relation(path, url, found) == "file is ahead":
            return found
        raise StoreError(url, "changed", "something else has changed it")

    def _reconcile_all(self, *, is_forced: bool) -> None:
        manifest = manifests.path_of(self.output)
        has_manifest = self._store.find(self._url(manifest)) is not None
        self._check_owner(has_manifest=has_manifest)
        is_fetched = False
        for path in _files(self.output):
            found = self._store.find(self._url(path))
            if found is not None and found.size_bytes and not has_manifest and not is_forced:
                raise ConfigError(
                    f"{self.url.name} exists and is not a results file of redline",
                    hint="choose another -o, put that object aside with --restart, or continue "
                    "with it by --force if its lines are redline's",
                )
            is_fetched |= self._reconcile(path, found)
        if has_manifest and (is_fetched or not manifest.exists()):
            _fetch(self._store, self._url(manifest), manifest, self._stopped)

    def _check_owner(self, *, has_manifest: bool) -> None:
        """Raises ConfigError if the manifest is that of `labels`, and this is `labels.jsonl`."""
        older = self.url.beside(self.url.file.name.removesuffix(".jsonl"))
        is_begun = not has_manifest or older == self.url or self._store.find(self.url) is not None
        if is_begun or self.output.path.exists() or not _has_old_names(older, self._store):
            return
        if self._store.find(older) is not None:
            raise ConfigError(
                f"{self._url(self.output.state_path).name} belongs to {older.name}, which an older "
                "redline has begun",
                hint="choose another -o",
            )

    def _reconcile(self, path: Path, found: Found | None) -> bool:
        """Whether the file was fetched. Raises ConfigError if it and the object are apart."""
        url, seen = self._url(path), self._state.seen.get(path.name)
        if found is None:
            self._state.seen.pop(path.name, None)
            return False
        is_fetched = not path.exists()
        if not is_fetched:
            if seen is not None and seen.found == found:
                return False
            match self._relation(path, url, found):
                case "object is ahead":
                    is_fetched = True
                case "apart" if seen is not None and seen == _seen(path, seen.found):
                    path.rename(_free_name(path))
                    is_fetched = True
                case "apart":
                    raise self._refusal(ConfigError)
        if is_fetched:
            _fetch(self._store, url, path, self._stopped)
        elif found.size_bytes != path.stat().st_size:
            # The file is longer: its object is not its copy, but may be replaced by it.
            self._state.seen[path.name] = _Seen(found, "")
            self._save()
            return False
        self._state.seen[path.name] = _seen(path, found)
        self._save()
        return is_fetched

    def _relation(self, path: Path, url: ObjectUrl, found: Found) -> _Relation:
        """Which of the two begins with all of the other. Reads both as far as they are equal."""
        reader = ObjectReader(url, self._store)
        reader.open()
        at = 0
        with path.open("rb") as file:
            while data := reader.read(at, _RANGE_BYTES):
                mine = file.read(len(data))
                if not data.startswith(mine):
                    return "apart"
                at += len(mine)
                if len(mine) < len(data):
                    return "object is ahead"
        return "file is ahead"

    def _put_aside(self) -> None:
        """Gives the objects of an earlier run the first free names `labels.old-N`."""
        stem, suffix = self.output.path.stem, self.output.path.suffix
        for number in count(1):
            asides = [
                self.url.beside(f"{stem}.old-{number}{ending}")
                for ending in (suffix, ".failed.jsonl")
            ]
            if all(self._store.find(aside) is None for aside in asides):
                break
        urls = [self._url(path) for path in _files(self.output)]
        found = [self._store.find(url) for url in urls]
        # Both are copied before one is removed, so that no death on the way loses any.
        for url, aside, there in zip(urls, asides, found, strict=True):
            if there is not None:
                self._store.copy(url, aside)
        for url, there in zip(urls, found, strict=True):
            if there is not None:
                self._store.remove(url, there)
        self._state.seen.clear()
        self._save()

    def _make_folder(self) -> None:
        folder = self.output.state_path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot make the folder {folder}: {error.strerror}",
                hint=f"run it in a folder that can be written: the run's files for {self.url.name} "
                "stay there until they are uploaded",
            ) from error

    def _url(self, path: Path) -> ObjectUrl:
        name = path.relative_to(self.output.path.parent)
        return self.url.beside(name.as_posix())

    def _refusal(self, kind: type[ConfigError] | type[JournalError]) -> ConfigError | JournalError:
        path = self.output.path
        return kind(
            f"{self.url.name} was changed by something else, and holds what {path} does not",
            hint=f"both are kept: to go on from the object, move {path.parent}/{path.stem}* away; "
            "to keep what is here, move the object away; then run the same command again",
        )

    def _load(self) -> None:
        try:
            state = msgspec.json.decode(self._state_path.read_bytes(), type=_State)
        except (FileNotFoundError, ValueError):
            # Whether a file and its object agree can also be seen from themselves.
            return
        if state.url != self.url.name:
            raise ConfigError(
                f"{self.output.path} belongs to {state.url}, not to {self.url.name}",
                hint=f"move {self.output.path.parent} away, or run it in another folder",
            )
        self._state = state

    def _save(self) -> None:
        data = msgspec.json.encode(self._state)
        try:
            replace_file(self._state_path, lambda fd: write_all(fd, [data]))
        except JournalError:
            # A full disk must not keep the results from being uploaded. What was seen is only a
            # short cut: the next run compares the file with the object.
            return

    @property
    def _state_path(self) -> Path:
        return self.output.state_path / "objects.json"


@contextmanager
def fetched(url: ObjectUrl) -> Generator[Output]:
    """The output at `url`, as files that last as long as the block; those that are there. Blocks.

    An error of the block that names a file names the object instead. Raises ConfigError if the
    store refuses.
    """
    # Imported here: it brings modules for archives, which no other part needs.
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
    """The output, with the names that its objects have."""
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
    """As `output.has_old_names`, of the objects in the store."""
    name = url.file.name
    old, new = names_of(name, are_old=True), names_of(name)
    if old == new or store.find(url.beside(f"{new.state}/manifest.json")) is not None:
        return False
    is_there = store.find(url.beside(f"{old.state}/manifest.json")) is not None
    return is_there and store.find(url.beside(f"{name}.jsonl")) is None


def _files(output: Output) -> tuple[Path, Path]:
    """What becomes objects, besides the manifest."""
    return output.path, output.failed_path


def _free_name(path: Path) -> Path:
    """The first free `labels.old-N.jsonl`: the object may be a mistake, and this the only copy."""
    stem, ending = path.stem, path.suffix
    if stem.endswith(".failed"):
        stem, ending = stem.removesuffix(".failed"), f".failed{ending}"
    names = (path.with_name(f"{stem}.old-{number}{ending}") for number in count(1))
    return next(name for name in names if not name.exists())


def _seen(path: Path, found: Found) -> _Seen:
    # Not by its times: opening a results file changes them.
    with path.open("rb") as file:
        return _Seen(found, hashlib.file_digest(file, "blake2b").hexdigest()[:32])


def _fetch(store: ObjectStore, url: ObjectUrl, path: Path, stopped: threading.Event) -> None:
    """Puts a copy of the object in place of the file, as a whole."""
    reader = ObjectReader(url, store)
    reader.open()

    def write(fd: int) -> None:
        at = 0
        while data := reader.read(at, _RANGE_BYTES):
            if stopped.is_set():
                raise JournalError(f"fetching {url.name} was interrupted")
            write_all(fd, [data])
            at += len(data)
        reader.check_unchanged()

    replace_file(path, write)
