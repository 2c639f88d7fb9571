"""An interrupt from another thread, at whatever moment of a run's beginning it comes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redline.job import Interrupts


class Drained:
    """A runner that counts what it is told."""

    def __init__(self) -> None:
        self.is_draining = False
        self.aborted = 0

    def drain(self) -> None:
        self.is_draining = True

    def abort(self) -> None:
        self.aborted += 1


def test_an_interrupt_while_the_run_begins_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts, runner = Interrupts(), Drained()
    loop_of = asyncio.get_running_loop

    def meanwhile() -> Any:
        # The only call between the two stores of `watch`, where threads may change places.
        monkeypatch.setattr(asyncio, "get_running_loop", loop_of)
        interrupts.interrupt_from_outside()
        return loop_of()

    async def main() -> None:
        monkeypatch.setattr(asyncio, "get_running_loop", meanwhile)
        interrupts.watch(runner)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert runner.is_draining
        assert not runner.aborted

    try:
        asyncio.run(main())
    except KeyboardInterrupt as error:
        raise AssertionError("the interrupt ended its own thread") from error
    finally:
        monkeypatch.setattr(asyncio, "get_running_loop", loop_of)


def test_a_second_interrupt_aborts() -> None:
    async def main() -> None:
        interrupts, runner = Interrupts(), Drained()
        interrupts.watch(runner)  # type: ignore[arg-type]
        interrupts.interrupt_from_outside()
        await asyncio.sleep(0)
        assert runner.is_draining
        interrupts.interrupt_from_outside()
        await asyncio.sleep(0)
        assert runner.aborted == 1

    asyncio.run(main())
