"""Answers on disk: found again, bounded, shared, and never wrong whatever befalls the file."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from redline.calls import Cache
from redline.calls.cache import AnswerStore, Database
from redline.errors import ConfigError
from redline.testing import ManualClock
from support.catching import assert_caught

MB = 1_000_000


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


def value(number: int, size: int = 1000) -> bytes:
    return (b"%d." % number) * (size // 4)


def store_in(folder: Path, kind: Any = AnswerStore, **settings: Any) -> AnswerStore:
    settings.setdefault("max_bytes", 100 * MB)
    store: AnswerStore = kind(folder, **settings)
    store.open()
    return store


async def found_in(store: AnswerStore, numbers: Iterable[int]) -> dict[int, bytes | None]:
    wanted = list(numbers)
    values = await asyncio.gather(*(store.look_up(key(number)) for number in wanted))
    return dict(zip(wanted, values, strict=True))


async def written(store: AnswerStore, numbers: Iterable[int], size: int = 1000) -> None:
    """Puts these, and waits until they are in the file."""
    for number in numbers:
        store.put(key(number), value(number, size))
    await store.flush()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".sqlite3")


async def test_an_answer_is_found_at_once_and_by_the_next_process(tmp_path: Path) -> None:
    store = store_in(tmp_path / "new" / "folder")
    assert await store.look_up(key(1)) is None
    store.put(key(1), value(1))
    assert await store.look_up(key(1)) == value(1)
    await store.aclose()
    again = store_in(tmp_path / "new" / "folder")
    assert await found_in(again, (1, 2)) == {1: value(1), 2: None}
    await again.aclose()
    assert again.notes == []
    assert files(tmp_path / "new" / "folder") == ["answers-v1.1.sqlite3"]
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o777 == 0o700


async def test_an_answer_is_found_while_it_is_being_written(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    # Every 4 MB are written at once.
    for number in range(60):
        store.put(key(number), value(number, 200_000))
        assert (await found_in(store, range(number, number + 2)))[number] == value(number, 200_000)
    await store.aclose()


async def test_lookups_of_one_turn_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    await written(store, range(300))
    turns = 0
    do = Database.do

    def counted(self: Database, *given: Any) -> Any:
        nonlocal turns
        turns += 1
        return do(self, *given)

    monkeypatch.setattr(Database, "do", counted)
    assert await found_in(store, range(400)) == {
        number: value(number) if number < 300 else None for number in range(400)
    }
    assert turns == 1
    await store.aclose()


async def test_a_lookup_that_is_given_up_disturbs_no_other(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    await written(store, [1])
    one, two = store.look_up(key(1)), store.look_up(key(1))
    one.cancel()
    assert await two == value(1)
    await store.aclose()


async def test_closing_ends_lookups_that_nobody_waits_for(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    waiting = store.look_up(key(1))
    await store.aclose()
    assert await waiting is None
    await asyncio.sleep(0)


async def test_a_closed_store_finds_and_stores_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    await written(store, [1])
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        assert await store.look_up(key(1)) is None
        store.put(key(2), value(2))
        await closing
        assert await store.look_up(key(1)) is None
        store.put(key(3), value(3))
        await store.flush()
    again = store_in(tmp_path)
    assert await found_in(again, (1, 2, 3)) == {1: value(1), 2: None, 3: None}
    await again.aclose()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix == ".sqlite3")


async def bounded(folder: Path, kind: Any, size: int = 3000) -> None:
    clock = ManualClock()
    store = store_in(folder, kind, max_bytes=2 * MB, clock=clock)
    count = 6 * MB // size // 50 * 50 or 50
    for start in range(0, count, 50):
        await written(store, range(start, start + 50), size)
        clock.advance(1)
    await store.aclose()
    assert size_of(folder) <= 2 * MB
    again = store_in(folder, kind, max_bytes=2 * MB, clock=clock)
    found = await found_in(again, range(count))
    kept = [number for number, text in found.items() if text is not None]
    assert kept == list(range(kept[0], count)), "the latest are there, without a gap"
    assert sum(len(found[number] or b"") for number in kept) >= MB
    await again.aclose()
    assert again.notes == []


@pytest.mark.parametrize("size", [500, 3000, 50_000])
async def test_the_file_is_bounded_and_the_oldest_go(tmp_path: Path, size: int) -> None:
    await bounded(tmp_path, AnswerStore, size)


class Unbounded(AnswerStore):
    def __init__(self, folder: Path, max_bytes: int, **settings: Any) -> None:
        super().__init__(folder, 10 * max_bytes, **settings)


def test_a_bound_that_does_not_hold_is_noticed(tmp_path: Path) -> None:
    places = iter((tmp_path / "a", tmp_path / "b"))
    assert_caught(lambda kind: asyncio.run(bounded(next(places), kind)), AnswerStore, Unbounded)


async def test_what_is_used_stays(tmp_path: Path) -> None:
    clock = ManualClock()
    store = store_in(tmp_path, max_bytes=2 * MB, clock=clock)
    await written(store, range(100))
    for start in range(100, 5000, 100):
        clock.advance(700)
        assert (await found_in(store, [7]))[7] == value(7)
        await written(store, range(start, start + 100))
    assert (await found_in(store, [8]))[8] is None
    await store.aclose()


async def test_a_bound_that_was_lowered_is_kept_from_the_next_answer_on(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    await written(store, range(5000))
    await store.aclose()
    assert size_of(tmp_path) > 5 * MB
    store = store_in(tmp_path, max_bytes=MB)
    await written(store, [5000])
    await store.aclose()
    assert size_of(tmp_path) <= MB


async def test_one_answer_does_not_drive_out_all_others(tmp_path: Path) -> None:
    store = store_in(tmp_path, max_bytes=2 * MB)
    store.put(key(1), bytes(MB))
    assert await store.look_up(key(1)) is None
    await store.aclose()


async def test_memory_is_bounded_where_the_disk_does_not_keep_up(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    text = bytes(5 * MB)
    for number in range(15):
        store.put(key(number), text)
    assert await store.look_up(key(0)) == text
    assert await store.look_up(key(14)) is None
    await store.aclose()
    assert ["faster than the disk" in note for note in store.notes] == [True]


async def test_two_at_once_find_each_others_answers(tmp_path: Path) -> None:
    one, two = store_in(tmp_path), store_in(tmp_path)
    await asyncio.gather(written(one, range(0, 500)), written(two, range(250, 750)))
    for store in (one, two):
        assert await found_in(store, range(750)) == {n: value(n) for n in range(750)}
    await one.aclose()
    assert await found_in(two, range(3)) == {n: value(n) for n in range(3)}
    await two.aclose()
    assert one.notes == two.notes == []


async def filled(folder: Path, count: int = 300) -> Path:
    store = store_in(folder)
    await written(store, range(count))
    await store.aclose()
    return folder / "answers-v1.1.sqlite3"


FOREIGN = {
    "no database": b"not a database, but longer than a header: " + bytes(8192),
    "a short text": b"hello",
    "random bytes": random.Random(1).randbytes(50_000),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
async def test_a_file_that_is_no_cache_stays_and_another_is_begun(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "answers-v1.1.sqlite3"
    path.write_bytes(content)
    store = store_in(tmp_path)
    await written(store, [1])
    assert (await found_in(store, [1]))[1] == value(1)
    await store.aclose()
    assert path.read_bytes() == content
    assert files(tmp_path) == ["answers-v1.1.sqlite3", "answers-v1.2.sqlite3"]
    assert len(store.notes) == 1
    assert "answers-v1.1.sqlite3 is damaged" in store.notes[0]
    assert "answers-v1.2.sqlite3 is used" in store.notes[0]
    again = store_in(tmp_path)
    assert (await found_in(again, [1]))[1] == value(1)
    await again.aclose()
    assert again.notes == []


async def test_a_foreign_table_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "answers-v1.1.sqlite3"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE answers (text TEXT)")
    database.close()
    store = store_in(tmp_path)
    await written(store, [1])
    await store.aclose()
    assert files(tmp_path) == ["answers-v1.1.sqlite3", "answers-v1.2.sqlite3"]


async def damaged_anywhere(folder: Path, seed: int, kind: Any) -> list[str]:
    """Overwrites a part of the file; whatever is found afterwards is right. The notes."""
    path, source = await filled(folder), random.Random(seed)
    content = bytearray(path.read_bytes())
    at, size = source.randrange(len(content)), source.choice((1, 30, 4096, 100_000))
    if source.random() < 0.2:
        content = content[:at]
    else:
        content[at : at + size] = source.randbytes(len(content[at : at + size]))
    path.write_bytes(content)
    store = store_in(folder, kind)
    for _ in range(2):
        for number, text in (await found_in(store, range(300))).items():
            assert text in (None, value(number))
        await written(store, range(300, 600))
    assert (await found_in(store, range(300, 600))) == {n: value(n) for n in range(300, 600)}
    await store.aclose()
    return store.notes


def test_a_file_that_is_damaged_anywhere_gives_no_wrong_answer(tmp_path: Path) -> None:
    notes = [
        asyncio.run(damaged_anywhere(tmp_path / str(seed), seed, AnswerStore)) for seed in range(15)
    ]
    assert sum(map(bool, notes)) >= 9, "most damage is noticed; some hits free pages"


async def test_an_answer_that_was_changed_is_none(tmp_path: Path) -> None:
    path = await filled(tmp_path, 20)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE answers SET value = ? WHERE key = ?", (b"x" * 100, key(3)))
        database.execute("UPDATE answers SET value = 'text' WHERE key = ?", (key(4),))
        # A whole answer, but another one's.
        database.execute(
            "UPDATE answers SET value = (SELECT value FROM answers WHERE key = ?) WHERE key = ?",
            (key(6), key(5)),
        )
    database.close()
    store = store_in(tmp_path)
    found = await found_in(store, range(20))
    assert [number for number, text in found.items() if text is None] == [3, 4, 5]
    assert ["some stored answers were damaged" in note for note in store.notes] == [True]
    await written(store, [3, 4, 5])
    assert await found_in(store, range(20)) == {number: value(number) for number in range(20)}
    await store.aclose()


def broken_in_use(path: Path) -> None:
    """Overwrites all pages while others have the file open."""
    log = path.with_name(path.name + "-wal")
    for target in (path, log):
        if target.exists():
            target.write_bytes(b"\xff" * target.stat().st_size)


async def test_damage_in_use_is_noticed_by_all_and_they_go_on_in_one_file(tmp_path: Path) -> None:
    path = await filled(tmp_path, 2000)
    one, two = store_in(tmp_path), store_in(tmp_path)
    broken_in_use(path)
    for store in (one, two):
        for text in (await found_in(store, range(2000))).values():
            assert text is None
    await written(one, [1])
    assert (await found_in(two, [1]))[1] == value(1)
    await written(two, [2])
    assert (await found_in(one, [2]))[2] == value(2)
    await one.aclose()
    await two.aclose()
    assert files(tmp_path) == ["answers-v1.1.sqlite3", "answers-v1.2.sqlite3"]
    assert all("is damaged" in store.notes[0] for store in (one, two))


async def test_a_full_disk_keeps_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def full(*given: Any, **settings: Any) -> sqlite3.Connection:
        database = connect(*given, **settings)
        database.execute("PRAGMA max_page_count = 50")
        return database

    monkeypatch.setattr(sqlite3, "connect", full)
    store = store_in(tmp_path)
    await written(store, [1])
    await written(store, range(2, 300))
    assert (await found_in(store, [1, 2])) == {1: value(1), 2: None}
    assert store.notes == ["answers cannot be stored: database or disk is full"]
    await written(store, [2])
    assert (await found_in(store, [2])) == {2: value(2)}
    await store.aclose()


async def test_a_file_that_another_holds_is_waited_for_and_then_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def impatient(*given: Any, **settings: Any) -> sqlite3.Connection:
        return connect(*given, **{**settings, "timeout": 0.05})

    monkeypatch.setattr(sqlite3, "connect", impatient)
    store = store_in(tmp_path)
    await written(store, [1])
    with sqlite3.connect(tmp_path / "answers-v1.1.sqlite3", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        await written(store, [2])
        assert await found_in(store, [1, 2]) == {1: value(1), 2: None}
        other.execute("ROLLBACK")
    other.close()
    assert store.notes == ["answers cannot be stored: database is locked"]
    await written(store, [2])
    assert await found_in(store, [2]) == {2: value(2)}
    await store.aclose()


async def test_a_folder_that_is_taken_away_costs_answers_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    store = store_in(folder)
    await written(store, [1])
    folder.rename(tmp_path / "gone")
    await written(store, [2])
    await found_in(store, [1, 2])
    await store.aclose()


Breaking = Callable[[Path], Path]


def a_file(folder: Path) -> Path:
    (folder / "taken").write_text("")
    return folder / "taken"


def below_a_file(folder: Path) -> Path:
    return a_file(folder) / "cache"


def with_a_folder_in_its_place(folder: Path) -> Path:
    (folder / "answers-v1.1.sqlite3").mkdir()
    return folder


@pytest.mark.parametrize("place", [a_file, below_a_file, with_a_folder_in_its_place])
def test_a_place_where_nothing_can_be_kept_is_told(tmp_path: Path, place: Breaking) -> None:
    folder = place(tmp_path)
    with pytest.raises(ConfigError, match="answers cannot be stored in") as told:
        AnswerStore(folder, MB).open()
    assert str(folder) in told.value.what
    assert "--cache-dir" in told.value.hint


def test_a_cache_has_a_least_size() -> None:
    with pytest.raises(ConfigError, match="at least 1,000,000 bytes"):
        Cache(max_bytes=999_999)
