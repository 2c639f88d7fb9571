"""The feed: every wanted row once, read ahead by a bounded amount, ended at any time."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.job.work import Feed
from redline.sources import AsyncRows, Row, open_source
from redline.testing import VirtualLoop, virtual_run


def feed_of(rows: object, limit: int | None = None) -> Feed:
    return Feed(open_source(rows), lambda keys, undone, marks: undone, limit)


async def drained(feed: Feed) -> list[int]:
    numbers = []
    while (picked := await feed.next()) is not None:
        numbers.append(picked.row.number)
    await feed.aclose()
    return numbers


def rows(count: int) -> list[dict[str, int]]:
    return [{"n": number} for number in range(count)]


def test_many_workers_get_each_row_once() -> None:
    async def main() -> None:
        feed = feed_of(rows(2000))
        taken = await asyncio.gather(*(drained(feed) for _ in range(50)))
        assert sorted(number for part in taken for number in part) == list(range(1, 2001))
        assert feed.is_input_done
        assert (feed.rows_read, feed.rows_skipped) == (2000, 0)

    virtual_run(main())


def test_rows_that_are_not_wanted_are_counted_and_left_out() -> None:
    async def main() -> None:
        seen: list[int] = []

        def wanted(keys: Sequence[int], undone: Sequence[int], marks: object) -> list[int]:
            first = len(seen) + 1
            seen.extend(keys)
            return [place for place in range(len(keys)) if (first + place) % 10 == 0]

        feed = Feed(open_source(rows(1000)), wanted, None)
        assert await drained(feed) == list(range(10, 1001, 10))
        assert (feed.rows_read, feed.rows_skipped) == (1000, 900)

    virtual_run(main())


def test_reading_goes_on_past_more_rows_than_are_read_at_once() -> None:
    async def main() -> None:
        first = iter(range(50_000))
        feed = Feed(
            open_source(rows(50_010)),
            lambda keys, undone, marks: [
                place for place in range(len(keys)) if next(first, None) is None
            ],
            None,
        )
        taken = await asyncio.gather(*(drained(feed) for _ in range(3)))
        assert sorted(number for part in taken for number in part) == list(range(50_001, 50_011))

    virtual_run(main())


@pytest.mark.parametrize("limit", [1, 256, 257, 999, 1000, 5000])
def test_a_limit_ends_the_input(limit: int) -> None:
    async def main() -> None:
        feed = feed_of(rows(1000), limit)
        assert await drained(feed) == list(range(1, min(limit, 1000) + 1))
        assert feed.is_input_done
        assert (feed.is_read, feed.rows_read) == (True, min(limit, 1000))

    virtual_run(main())


def test_reading_ahead_is_bounded() -> None:
    pulled = 0

    def endless() -> Iterator[dict[str, int]]:
        nonlocal pulled
        while True:
            pulled += 1
            yield {"n": pulled}

    async def main() -> None:
        feed = feed_of(endless())
        for _ in range(1000):
            await feed.next()
        await asyncio.sleep(1)
        assert pulled < 1000 + 1024
        await feed.aclose()
        assert await feed.next() is None
        assert not feed.is_input_done

    virtual_run(main())


def test_one_workers_cancellation_does_not_end_the_reading() -> None:
    gate = asyncio.Event()

    async def slow() -> AsyncIterator[dict[str, int]]:
        await gate.wait()
        yield {"n": 1}
        yield {"n": 2}

    async def main() -> None:
        feed = feed_of(slow())
        first, second = asyncio.create_task(feed.next()), asyncio.create_task(feed.next())
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.sleep(1)
        gate.set()
        picked = await second
        assert picked is not None
        assert picked.row.number == 1
        assert await drained(feed) == [2]

    virtual_run(main())


class CountingLoop(VirtualLoop):
    """Counts what it is to call."""

    calls = 0

    def call_soon(self, *given: Any, **named: Any) -> asyncio.Handle:
        self.calls += 1
        return super().call_soon(*given, **named)


def test_a_row_wakes_one_worker_and_not_all_that_wait() -> None:
    async def slow() -> AsyncIterator[dict[str, int]]:
        for number in range(100):
            await asyncio.sleep(1)
            yield {"n": number}

    async def main() -> None:
        feed = Feed(open_source(slow()), lambda keys, undone, marks: undone, None)
        taken = await asyncio.gather(*(drained(feed) for _ in range(300)))
        assert sorted(number for part in taken for number in part) == list(range(1, 101))

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        # All of 300 workers woken for each row would be 30,000.
        assert loop.calls < 100 * 20 + 300 * 20


def after_this_reading(do: Callable[[], object]) -> None:
    """Calls `do` after the feed has woken a worker for what it reads now, and before that runs."""
    (reading,) = (task for task in asyncio.all_tasks() if "_fill" in str(task.get_coro()))
    reading.add_done_callback(lambda _: do())


def test_a_row_whose_worker_is_cancelled_as_it_comes_is_another_ones() -> None:
    """The one that is woken for it is cancelled in the same turn of the loop."""
    gate = asyncio.Event()
    workers: list[asyncio.Task[Any]] = []

    async def one() -> AsyncIterator[dict[str, int]]:
        await gate.wait()
        after_this_reading(lambda: workers[0].cancel())
        yield {"n": 1}
        await asyncio.Event().wait()

    async def main() -> None:
        feed = Feed(open_source(one()), lambda keys, undone, marks: undone, None)
        workers.extend(asyncio.create_task(feed.next()) for _ in range(3))
        await asyncio.sleep(1)
        gate.set()
        await asyncio.sleep(1)
        assert [worker.done() for worker in workers] == [True, True, False]
        picked = workers[1].result()
        assert picked is not None
        assert picked.row.number == 1
        await feed.aclose()
        await asyncio.gather(*workers, return_exceptions=True)

    virtual_run(main())


def test_closing_between_two_readings_ends_all_waits() -> None:
    feeds: list[Feed] = []

    async def some() -> AsyncIterator[dict[str, int]]:
        await asyncio.sleep(1)
        # One is woken for the row, and has not run when the feed is closed.
        after_this_reading(lambda: feeds[0].close())
        yield {"n": 1}

    async def main() -> None:
        feed = Feed(open_source(some()), lambda keys, undone, marks: undone, None)
        workers = [asyncio.create_task(feed.next()) for _ in range(3)]
        feeds.append(feed)
        assert await asyncio.gather(*workers) == [None] * 3
        await feed.aclose()

    virtual_run(main())


def test_closing_over_a_reading_that_loses_its_cancellation_ends_all_waits() -> None:
    class Deaf(AsyncRows):
        async def batches(self) -> AsyncIterator[list[Row]]:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            yield [Row(1, 1, {"n": 1}, b"", None)]

    async def items() -> AsyncIterator[object]:
        yield {}

    async def main() -> None:
        feed = Feed(Deaf("deaf", items()), lambda keys, undone, marks: undone, None)
        workers = [asyncio.create_task(feed.next()) for _ in range(3)]
        await asyncio.sleep(0.5)
        feed.close()
        assert await asyncio.gather(*workers) == [None] * 3
        await feed.aclose()

    virtual_run(main())


def test_closing_waits_until_an_async_generator_has_cleaned_up() -> None:
    ended: list[bool] = []

    async def items() -> AsyncIterator[dict[str, int]]:
        try:
            await asyncio.Event().wait()
            yield {}
        finally:
            await asyncio.sleep(1)
            ended.append(True)

    async def main() -> None:
        feed = feed_of(items())
        waiting = asyncio.create_task(feed.next())
        await asyncio.sleep(1)
        feed.close()
        await asyncio.sleep(0.5)
        await feed.aclose()
        assert ended
        assert await waiting is None

    virtual_run(main())


def test_closing_ends_a_wait_for_a_row_that_never_comes() -> None:
    async def never() -> AsyncIterator[dict[str, int]]:
        await asyncio.Event().wait()
        yield {"n": 1}

    async def main() -> None:
        feed = feed_of(never())
        waiting = asyncio.create_task(feed.next())
        await asyncio.sleep(1)
        feed.close()
        assert await waiting is None
        await feed.aclose()

    virtual_run(main())


def test_an_input_that_breaks_while_nobody_waits_is_told_to_who_asks_next() -> None:
    def broken() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise ConfigError("the input broke")

    async def main() -> None:
        feed = feed_of(broken())
        assert await feed.next() is not None
        await asyncio.sleep(1)
        with pytest.raises(ConfigError, match="the input broke"):
            await feed.next()
        assert await feed.next() is None

    virtual_run(main())


def test_an_input_that_breaks_tells_one_worker_and_ends_for_the_others() -> None:
    def broken() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise ConfigError("the input broke")

    async def main() -> None:
        feed = feed_of(broken())
        taken = await asyncio.gather(*(drained(feed) for _ in range(5)), return_exceptions=True)
        errors = [part for part in taken if isinstance(part, BaseException)]
        assert errors
        assert all(isinstance(error, ConfigError) for error in errors)
        assert not feed.is_input_done
        assert await feed.next() is None

    virtual_run(main())


def test_an_input_that_breaks_tells_it_after_the_rows_before_it() -> None:
    class Broken:
        def __len__(self) -> int:
            return 300

        def __iter__(self) -> Iterator[dict[str, int]]:
            yield from rows(300)
            raise ConfigError("the input broke")

    async def main() -> None:
        feed = feed_of(Broken())
        taken: list[int] = []

        async def take() -> None:
            while (picked := await feed.next()) is not None:
                taken.append(picked.row.number)

        ends = await asyncio.gather(*(take() for _ in range(5)), return_exceptions=True)
        assert sorted(taken) == [*range(1, 301)]
        assert sorted(str(end) for end in ends) == ["None"] * 4 + ["the input broke"]
        assert (feed.rows_read, feed.is_read, feed.is_input_done) == (300, False, False)
        await feed.aclose()

    virtual_run(main())


def waiting(path: Path, at_once: int) -> int:
    """Workers that have to wait for a row, of 1,000 that take one at once: the median of five."""

    async def main() -> int:
        feed = Feed(open_source(path), lambda keys, undone, marks: undone, None, at_once=at_once)
        await feed.next()
        counts = []
        for _ in range(5):
            # What is read ahead is there by now, unless the machine is busy with something else.
            await asyncio.sleep(0.4)
            taken = [asyncio.ensure_future(feed.next()) for _ in range(1000)]
            await asyncio.sleep(0)
            counts.append(sum(not one.done() for one in taken))
            await asyncio.gather(*taken)
        await feed.aclose()
        return sorted(counts)[2]

    return asyncio.run(main())


def test_as_many_rows_of_a_file_are_ready_as_may_be_taken_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    # Longer than what is read at once: at the end of a file, all of it is ready.
    path.write_text("".join(f'{{"n": {n}, "text": "{"x" * 500}"}}\n' for n in range(20_000)))
    assert waiting(path, 1000) == 0
    assert waiting(path, 10) > 500


def test_of_a_small_compressed_file_no_more_is_read_than_of_a_large_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for number in range(2_000):
            file.write(f'{{"n": {number}, "text": "{"x" * 20_000}"}}\n')
    assert path.stat().st_size < 2**20

    async def main() -> None:
        feed = feed_of(path)
        for _ in range(2):
            await feed.next()
        # 40 MB in all.
        assert len(feed.ready) * 20_000 < 12_000_000
        assert len(await drained(feed)) == 1_998

    asyncio.run(main())
