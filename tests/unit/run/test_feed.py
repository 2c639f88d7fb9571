"""Rows handed out in order, and when it is known that there are no more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mutants import assert_caught, mutant
from redline.run import feed as feed_module
from redline.run.source import open_source


def check_the_end_is_known(module: Any, path: Path) -> None:
    async def main() -> None:
        feed = module.Feed(open_source(path), lambda keys, undone: undone, None)
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


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "{number}"}}\n' for number in range(3)))
    return path


def test_the_end_of_a_file_is_known_with_its_last_rows(rows: Path) -> None:
    check_the_end_is_known(feed_module, rows)


def test_a_feed_that_looks_for_the_end_later_is_caught(rows: Path) -> None:
    lazy = mutant(
        feed_module, "if batch.picked and source.read_fraction() != 1.0:", "if batch.picked:"
    )
    assert_caught(lambda module: check_the_end_is_known(module, rows), feed_module, lazy)
