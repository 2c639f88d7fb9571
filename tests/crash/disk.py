"""A disk on which the process dies at a chosen step, by a kill or by a loss of power."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from crash.platter import Kept, Platter
from crash.steps import CALLS, Step, step_of

PLACES = ("before", "within", "after")
# What a death takes with it: nothing that was written, all that was not synced, or some of it.
LOSSES = ("none", "all", "some")


@dataclass(frozen=True)
class Death:
    """At the step of this number, from 1. place and loss: see PLACES and LOSSES.

    seed: draws how much of a write is done within it, and what a loss of power leaves.
    """

    step: int
    place: str
    loss: str = "none"
    seed: int = 1

    def chance(self) -> Random:
        return Random(f"{self.seed} {self.step} {self.place}")


class Disk:
    """The calls that change files below `folder`, or read results; the process dies at one.

    From its making on, for the life of the process. fsyncs are not passed on to the system: what
    they make durable is known here, and a process's own death loses nothing of what it has written.
    tell: hears of the moment of death.
    """

    def __init__(
        self, folder: Path, death: Death | None = None, tell: Callable[[str], None] = str
    ) -> None:
        self.steps: list[Step] = []
        self._folder = str(folder)
        self._death = death
        self._tell = tell
        self._platter = Platter.load(folder)
        self._lock = threading.RLock()
        self._dying: int | None = None  # the thread in which the process dies
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            setattr(os, name, self._stepping(name))

    def stop(self) -> None:
        """Lets calls through again, and keeps what is not durable for whoever comes next."""
        self._let_through()
        self._platter.save()

    def _let_through(self) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def _stepping(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def step(*given: Any, **more: Any) -> Any:
            if self._dying == threading.get_ident():
                return real(*given, **more)
            path = self._path(given[0])
            if not self._counts(name, path, given):
                return real(*given, **more)
            with self._lock:
                self.steps.append(step_of(name, path, sys._getframe(1)))
                place = self._place()
                done = 0
                if place == "within" and name == "pwrite":
                    real(given[0], given[1][: self._part(len(given[1]))], given[2])
                elif place == "within" and name == "write":
                    done = real(given[0], given[1][: self._part(len(given[1]))])
                    given = given[0], given[1][done:]
                if place in ("before", "within"):
                    self._die(place)
                learn = self._lesson(name, path, given)
            result = None if name == "fsync" else real(*given, **more)
            if done:
                result += done
            with self._lock:
                learn()
                if place == "after":
                    self._die(place)
            return result

        return step

    def _counts(self, name: str, path: str, given: tuple[Any, ...]) -> bool:
        if path != self._folder and not path.startswith(self._folder + os.sep):
            return False
        if name == "open":
            return bool(given[1] & os.O_CREAT)
        # Nothing is changed by what is done already.
        return os.path.exists(path) == (name != "mkdir") if name in ("mkdir", "unlink") else True

    def _path(self, place: Any) -> str:
        return os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else os.fspath(place)

    def _place(self) -> str:
        death = self._death
        return death.place if death is not None and len(self.steps) == death.step else ""

    def _part(self, size: int) -> int:
        assert self._death is not None
        return self._death.chance().randint(min(1, size - 1), size - 1)

    def _lesson(self, name: str, path: str, given: tuple[Any, ...]) -> Callable[[], None]:
        """What the platter is to be told once the call is done."""
        platter = self._platter
        if name == "fsync" and os.path.isdir(path):
            return lambda: platter.sync_names(path)
        if name == "fsync":
            # What is written while it goes on may or may not be covered.
            content = platter.content(path)
            return lambda: platter.sync(path, content)
        if name in ("open", "mkdir") and not os.path.exists(path):
            return lambda: platter.make(path, is_folder=name == "mkdir")
        if name in ("replace", "rename"):
            new = os.fspath(given[1])
            replaced = platter.content(new) if os.path.exists(new) else None
            return lambda: platter.rename(path, new, replaced)
        if name == "unlink" and os.path.exists(path):
            content = platter.content(path)
            return lambda: platter.remove(path, content)
        return lambda: None

    def _die(self, place: str) -> None:
        """The lock is held: other threads stop at their next step."""
        death = self._death
        assert death is not None
        self._dying = threading.get_ident()
        step = self.steps[-1]
        # Within what is no write is before it.
        self._tell(step.moment(place) or step.before)
        if death.loss == "none":
            self._platter.save()
        else:
            self._platter.lose(death.chance() if death.loss == "some" else None)
        os.kill(os.getpid(), signal.SIGKILL)
        # It may return before it takes effect; nothing more may be done then.
        while True:
            signal.pause()


class Onlooker(Disk):
    """A disk on which nothing dies: it keeps what deaths would leave.

    choose: the death to think of at the step of a number, if any. keep: gets that death, its
    moment, and what it would find below the folder.
    """

    def __init__(
        self,
        folder: Path,
        choose: Callable[[int, Step], Death | None],
        keep: Callable[[Death, str, Kept], None],
    ) -> None:
        super().__init__(folder)
        self._choose = choose
        self._keep = keep

    def _place(self) -> str:
        self._death = self._choose(len(self.steps), self.steps[-1])
        return super()._place()

    def _die(self, place: str) -> None:
        assert self._death is not None
        step = self.steps[-1]
        self._keep(self._death, step.moment(place) or step.before, self._platter.keep())
