"""What a disk holds after a power loss: a model of what no fsync has made durable.

The model knows of each file what it held when its last fsync began, and of each folder the names
that its last fsync found. After a power loss:

  bytes   each block of a file is as the last fsync left it or as it was written since, whatever
          its neighbours are; a block that was never written reads as zeros. The size is the old
          one, the new one, or one between them.
  names   each file made, renamed or removed since its folder's last fsync may have been or not,
          whatever became of the others; one rename is done wholly or not at all.

This is what POSIX allows and file systems have been seen to do (Pillai et al. 2014, "All File
Systems Are Not Created Equal"). A block is a disk's sector of 512 bytes or a page of 4,096.
"""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

_BLOCKS_BYTES = (512, 4096)


@dataclass
class File:
    """synced: its bytes at the last fsync. last: its bytes when its last name went away."""

    synced: bytes = b""
    last: bytes | None = None


@dataclass
class Folder:
    """names: as of the last fsync. changes: since then, each done wholly or not at all."""

    names: dict[str, File | Folder] = field(default_factory=dict)
    changes: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def survivors(self, changes: list[dict[str, File | Folder | None]]) -> dict[str, File | Folder]:
        """The names, had these changes alone come about."""
        found: dict[str, File | Folder | None] = {**self.names}
        for change in changes:
            found |= change
        return {name: thing for name, thing in found.items() if thing is not None}


@dataclass(frozen=True)
class Kept:
    """What the system shows below a root, and what of it is durable.

    files: by their paths below the root; None: a folder.
    """

    files: tuple[tuple[str, bytes | None], ...]
    durable: bytes

    def put_back(self, root: Path) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for name, content in self.files:
            if content is None:
                (root / name).mkdir()
            else:
                (root / name).write_bytes(content)
        _saved(root).write_bytes(self.durable)


class Platter:
    """The durable side of `root`, beside the files that the system shows.

    It must be told of every name that is made, moved or removed, and of every fsync. `save` and
    `load` carry it over the death of a process.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shown: dict[str, File | Folder] = {}
        self._show(root)

    @classmethod
    def load(cls, root: Path) -> Platter:
        """As it was saved; without that, all that is there is durable."""
        saved = _saved(root)
        if not saved.exists():
            return cls(root)
        platter: Platter = pickle.loads(saved.read_bytes())
        return platter

    def save(self) -> None:
        _saved(self.root).write_bytes(pickle.dumps(self))

    def keep(self) -> Kept:
        """All that there is now."""
        below = sorted(self.root.rglob("*"))
        return Kept(
            tuple(
                (str(path.relative_to(self.root)), None if path.is_dir() else path.read_bytes())
                for path in below
            ),
            pickle.dumps(self),
        )

    def make(self, path: str, *, is_folder: bool) -> None:
        """A name that stood for nothing does now."""
        self._change({path: Folder() if is_folder else File()})

    def content(self, path: str) -> bytes:
        """What the system shows of a file."""
        return Path(path).read_bytes()

    def remove(self, path: str, content: bytes) -> None:
        """content: what the file held."""
        self._end(path, content)
        self._change({path: None})

    def rename(self, old: str, new: str, replaced: bytes | None) -> None:
        """replaced: what the file held that had the new name, if there was one."""
        if replaced is not None:
            self._end(new, replaced)
        thing = self.shown[old]
        self._change({old: None, new: thing})

    def sync(self, path: str, content: bytes) -> None:
        """An fsync of a file, begun when it held `content`."""
        thing = self.shown.get(path)
        if isinstance(thing, File):
            thing.synced = content

    def sync_names(self, path: str) -> None:
        """An fsync of a folder."""
        folder = self._folder(path)
        folder.names = folder.survivors(folder.changes)
        folder.changes.clear()

    def lose(self, chance: Random | None) -> None:
        """Lets the power go: below the root stands what a disk may then hold, and is durable.

        chance: draws what survives of what no fsync has covered; None: nothing does.
        """
        tree = self._survivors(self.shown[str(self.root)], chance)
        assert isinstance(tree, dict)
        for path in self.root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        _write(self.root, tree)
        _saved(self.root).unlink(missing_ok=True)

    def _show(self, path: Path) -> File | Folder:
        thing: File | Folder
        if path.is_dir():
            thing = Folder({below.name: self._show(below) for below in path.iterdir()})
        else:
            thing = File(path.read_bytes())
        self.shown[str(path)] = thing
        return thing

    def _folder(self, path: str) -> Folder:
        folder = self.shown[path]
        assert isinstance(folder, Folder)
        return folder

    def _end(self, path: str, content: bytes) -> None:
        thing = self.shown[path]
        assert isinstance(thing, File)
        thing.last = content

    def _change(self, change: dict[str, File | Folder | None]) -> None:
        (folder,) = {os.path.dirname(path) for path in change}
        self._folder(folder).changes.append(
            {os.path.basename(path): thing for path, thing in change.items()}
        )
        for path, thing in change.items():
            if thing is None:
                del self.shown[path]
            else:
                self.shown[path] = thing

    def _survivors(self, thing: File | Folder, chance: Random | None) -> _Tree:
        if isinstance(thing, File):
            return blocks(thing.synced, self._now(thing), chance)
        names = thing.survivors(_some(thing.changes, chance))
        return {name: self._survivors(below, chance) for name, below in names.items()}

    def _now(self, file: File) -> bytes:
        if file.last is not None:
            return file.last
        (path,) = [path for path, thing in self.shown.items() if thing is file]
        return self.content(path)


_Tree = bytes | dict[str, "_Tree"]


def _saved(root: Path) -> Path:
    return root.parent / f"{root.name}.platter"


def _write(folder: Path, tree: dict[str, _Tree]) -> None:
    for name, below in tree.items():
        if isinstance(below, bytes):
            (folder / name).write_bytes(below)
        else:
            (folder / name).mkdir()
            _write(folder / name, below)


def _some(
    changes: list[dict[str, File | Folder | None]], chance: Random | None
) -> list[dict[str, File | Folder | None]]:
    """The changes that survive: none, the first ones, or each by itself."""
    if chance is None:
        return []
    if chance.random() < 0.5:
        return changes[: chance.randint(0, len(changes))]
    return [change for change in changes if chance.random() < 0.5]


def blocks(synced: bytes, now: bytes, chance: Random | None) -> bytes:
    """A file after a power loss: wholly as synced, a beginning of the new bytes, or any blocks."""
    if chance is None or synced == now:
        return synced
    way = chance.choice(("none", "all", "beginning", "beginning", "blocks", "blocks", "blocks"))
    size = chance.choice((len(now), len(now), len(synced), chance.randint(*_ends(synced, now))))
    if way == "none":
        return synced
    if way == "all":
        return now
    if way == "beginning":
        # What comes after it was not written: the file ends there, or goes on as it was.
        at = chance.randint(0, len(now))
        return now[:at] if at >= len(synced) else now[:at] + synced[at:]
    block = chance.choice(_BLOCKS_BYTES)
    share = chance.choice((0.2, 0.5, 0.8))
    old, new = synced.ljust(size, b"\0")[:size], now.ljust(size, b"\0")[:size]
    pieces = (
        (new if chance.random() < share else old)[at : at + block] for at in range(0, size, block)
    )
    return b"".join(pieces)


def _ends(synced: bytes, now: bytes) -> tuple[int, int]:
    return min(len(synced), len(now)), max(len(synced), len(now))
