"""Hearing of what a run acknowledges."""

from __future__ import annotations

from collections.abc import Callable

from redline.journal import Journal, Output, Result


def hearing(hear: Callable[[list[Result]], None], base: type[Journal] = Journal) -> type[Journal]:
    """A journal that tells `hear` of the results that it is about to acknowledge."""

    class Hearing(base):  # type: ignore[valid-type, misc]
        def __init__(self, output: Output, acknowledge: Callable[[list[Result]], None]) -> None:
            def acknowledged(results: list[Result]) -> None:
                hear(results)
                acknowledge(results)

            super().__init__(output, acknowledged)

    return Hearing
