"""Hearing of what a run acknowledges."""

from __future__ import annotations

from collections.abc import Callable

from redline.journal import Brief, Journal, Output


def hearing(hear: Callable[[list[Brief]], None], base: type[Journal] = Journal) -> type[Journal]:
    """A journal that tells `hear` of the rows that it is about to acknowledge."""

    class Hearing(base):  # type: ignore[valid-type, misc]
        def __init__(self, output: Output, acknowledge: Callable[[list[Brief]], None]) -> None:
            def acknowledged(rows: list[Brief]) -> None:
                hear(rows)
                acknowledge(rows)

            super().__init__(output, acknowledged)

    return Hearing
