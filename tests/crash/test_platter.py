"""The model of a disk: what is synced stays, and of the rest anything may be left."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from crash.platter import Platter, blocks

OLD, NEW = b"old" * 500, b"old" * 500 + b"new!" * 3000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one file, both durable."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_bytes(OLD)
    return root


def shown(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def after(root: Path, platter: Platter, seed: int | None) -> dict[str, bytes]:
    """The files after a loss of power; nothing survives it without a seed. They are put back."""
    before = shown(root)
    platter.save()
    try:
        Platter.load(root).lose(None if seed is None else Random(seed))
        return shown(root)
    finally:
        for name in shown(root):
            (root / name).unlink()
        for name, data in before.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(data)


def test_synced_bytes_outlive_any_loss() -> None:
    for seed in range(300):
        assert blocks(OLD, NEW, Random(seed)).startswith(OLD), seed


def test_of_unsynced_bytes_all_some_or_none_are_left_and_holes_read_as_zeros() -> None:
    found = [blocks(OLD, NEW, Random(seed)) for seed in range(300)]
    assert blocks(OLD, NEW, None) == OLD
    assert OLD in found
    assert NEW in found
    ends = {len(data) for data in found}
    assert any(len(OLD) < end < len(NEW) for end in ends)
    holes = [data for data in found if b"\0" in data]
    assert len(holes) > 50
    assert any(data.rstrip(b"\0") != data.rstrip() for data in holes), "no hole at an end"
    # Later blocks outlive earlier ones.
    assert any(b"new!" in data[data.index(b"\0") :] for data in holes)
    for data in found:
        assert len(OLD) <= len(data) <= len(NEW)
        assert all(byte in (0, whole) for byte, whole in zip(data, NEW, strict=False))


def test_of_bytes_that_were_cut_and_written_over_each_block_is_the_old_or_the_new_one() -> None:
    old, new = b"a" * 5000, b"b" * 2000
    found = {blocks(old, new, Random(seed)) for seed in range(300)}
    assert {old, new} <= found
    assert any(data[:512] == b"a" * 512 and b"b" in data for data in found)
    assert any(data[:512] == b"b" * 512 and b"a" in data for data in found)
    assert all(set(data) <= set(b"ab\0") for data in found)


def test_a_made_renamed_or_removed_name_is_durable_once_its_folder_is_synced(root: Path) -> None:
    platter = Platter(root)
    (root / "b").write_bytes(b"b")
    platter.make(str(root / "b"), is_folder=False)
    assert after(root, platter, None) == {"a": OLD}
    platter.sync_names(str(root))
    assert after(root, platter, None) == {"a": OLD, "b": b""}
    platter.sync(str(root / "b"), b"b")
    assert after(root, platter, None) == {"a": OLD, "b": b"b"}
    (root / "b").rename(root / "a")
    platter.rename(str(root / "b"), str(root / "a"), OLD)
    assert after(root, platter, None) == {"a": OLD, "b": b"b"}
    platter.sync_names(str(root))
    assert after(root, platter, None) == {"a": b"b"}
    (root / "a").unlink()
    platter.remove(str(root / "a"), b"b")
    assert after(root, platter, None) == {"a": b"b"}
    platter.sync_names(str(root))
    assert after(root, platter, None) == {}


def test_names_survive_by_themselves_and_a_rename_wholly_or_not_at_all(root: Path) -> None:
    platter = Platter(root)
    for name in ("one", "two", "three"):
        (root / name).write_bytes(name.encode())
        platter.make(str(root / name), is_folder=False)
        platter.sync(str(root / name), name.encode())
    (root / "three").rename(root / "a")
    platter.rename(str(root / "three"), str(root / "a"), OLD)
    found = [after(root, platter, seed) for seed in range(200)]
    assert {"two" in files and "one" not in files for files in found} == {True, False}
    assert {files["a"] for files in found} == {OLD, b"three"}
    assert {"three" in files for files in found} == {True, False}
    assert all("three" not in files for files in found if files["a"] == b"three")


def test_a_folder_that_was_not_synced_takes_what_is_in_it_along(root: Path) -> None:
    platter = Platter(root)
    (root / "below").mkdir()
    platter.make(str(root / "below"), is_folder=True)
    (root / "below" / "file").write_bytes(b"in it")
    platter.make(str(root / "below" / "file"), is_folder=False)
    platter.sync(str(root / "below" / "file"), b"in it")
    platter.sync_names(str(root / "below"))
    assert after(root, platter, None) == {"a": OLD}
    platter.sync_names(str(root))
    assert after(root, platter, None) == {"a": OLD, "below/file": b"in it"}


def test_a_platter_that_nobody_saved_is_durable_as_it_is_seen(root: Path) -> None:
    (root / "b").write_bytes(b"b")
    Platter.load(root).lose(None)
    assert shown(root) == {"a": OLD, "b": b"b"}
