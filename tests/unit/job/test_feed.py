"""Rows handed out in order, and when it is known that there are no more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from redline.job.work import Feed
from redline.sources import open_source


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "{number}"}}\n' for number in range(3)))
    return path


def test_the_end_of_a_file_is_known_with_its_last_rows(rows: Path) -> None:
    async def main() -> None:
        feed = Feed(open_source(rows), lambda keys, undone, marks: undone, None)
        try:
            picked = await feed.next()
            assert picked is not None
            assert picked.row.number == 1
            # Though two rows wait here still: an error on the first must not say that the input
            # was not read.
            assert feed.is_read
            assert feed.rows_read == 3
            assert not feed.is_input_done
        finally:
            await feed.aclose()

    asyncio.run(main())
