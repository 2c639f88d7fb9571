"""A program that lets a run, or a repair, die on the disk, and goes on with it each time.

    PYTHONPATH=tests python tests/crash/dying.py WHAT PLACE/LOSS [--last-first] [--seed N]
        [--mutant NAME]
    PYTHONPATH=tests python tests/crash/dying.py WHAT PLACE/LOSS/STEP... [--seed N] [--mutant NAME]

What: a scenario of scenarios.py, or `repair`. A step is one call that changes a file, or reads
results: open, write, fsync, truncate, rename, unlink, mkdir, pread. The first form takes from one
run that does not die what a death at every step would leave, and goes on with that, but of many
steps that lie at one moment only with the first few; the second kills the process at the ones of
these numbers, in one run after the other. Places: `before` a step, `after` it, or `within` it,
where it is a write. Losses: `none` of what was written (a kill), `all` that no fsync had made
durable, bytes as well as names (the power goes), or `some` of it, block by block and name by name.
In the first form each may be `any`. The seed draws rows, their groups, and what is lost.
Ends with status 0 once all was right after every death, and else with the command that replays it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Protocol

from crash.disk import LOSSES, PLACES, Death
from crash.mutating import mutated
from crash.platter import Kept
from crash.repairing import Repairs
from crash.runs import Runs
from crash.scenarios import SCENARIOS
from crash.steps import Step

ANY = "any"
# Of one case, so that the deaths at a moment are those of many.
_DEATHS_A_CASE = 6
_MOST_CASES = 5000
# Of a sweep at one moment, such as between two writes of a group: the next ones are much alike.
_MOST_OF_A_MOMENT = 4
# Where files cost least; what a disk keeps is modelled, and no fsync reaches the system.
_MEMORY = Path("/dev/shm")


class Work(Protocol):
    """Work on a disk that can be done again after any death. `base`: a folder to be made for it.

    watch: the steps of a case, none of them fatal. At those at which `choose` gives a death, `keep`
    gets it, its moment, what it would leave below the folder, and what was said until then. go_on:
    what follows such a death. die: the moments of these deaths, one in each run or repair, of which
    the last came to its end. go_on and die raise AssertionError where something is not right.
    """

    name: str

    def watch(
        self,
        seed: int,
        base: Path,
        choose: Callable[[int, Step], Death | None],
        keep: Callable[[Death, str, Kept, str], None],
    ) -> list[Step]: ...

    def go_on(self, seed: int, base: Path, death: Death, kept: Kept, said: str) -> None: ...

    def die(self, seed: int, deaths: Sequence[Death], base: Path) -> list[str]: ...


WORKS: dict[str, Work] = {**{name: Runs(name) for name in SCENARIOS}, Repairs.name: Repairs()}


def survey(work: Work, seed: int, folder: Path) -> list[Step]:
    """The steps of this case."""
    with _base(folder) as base:
        return work.watch(seed, base, lambda *_: None, lambda *_: None)


def die(work: Work, seed: int, deaths: Sequence[Death], folder: Path) -> list[str]:
    """The moments of these deaths; an AssertionError says how to see them again."""
    with _base(folder) as base, _replayable(work, seed, deaths):
        return work.die(seed, deaths, base)


@contextmanager
def _base(folder: Path) -> Iterator[Path]:
    """A folder for one trial, to be made by it."""
    base = folder / "case"
    try:
        yield base
    finally:
        shutil.rmtree(base)


@contextmanager
def _replayable(work: Work, seed: int, deaths: Sequence[Death]) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        words = " ".join(f"{death.place}/{death.loss}/{death.step}" for death in deaths)
        how = f"PYTHONPATH=tests python tests/crash/dying.py {work.name} {words} --seed {seed}"
        raise AssertionError(f"{error}; replay: {how}") from error


def sweep(
    work: Work, seed: int, manner: tuple[str, str], folder: Path, *, last_first: bool = False
) -> Counter[str]:
    """How many deaths there were at which moment: one at each step that has this place.

    No process dies: what a death would leave is taken from a run that does not die. After
    _MOST_OF_A_MOMENT at one moment, its other steps are left out. last_first: from the last step to
    the first.
    """
    left: list[tuple[Death, str, Kept, str]] = []

    def choose(number: int, step: Step) -> Death | None:
        chance = Random(f"{seed} {number}")
        places = [place for place in PLACES if step.moment(place)]
        if manner[0] != ANY:
            places = [place for place in places if place == manner[0]]
        if not places:
            return None
        loss = chance.choice(LOSSES) if manner[1] == ANY else manner[1]
        return Death(number, chance.choice(places), loss, seed)

    with _base(folder) as base:
        work.watch(seed, base, choose, lambda *found: left.append(found))
    moments: Counter[str] = Counter()
    # What follows from the same is the same, but for what a loss of power draws.
    seen: set[tuple[str, Kept, str]] = set()
    for death, moment, kept, said in reversed(left) if last_first else left:
        if moments[moment] == _MOST_OF_A_MOMENT:
            continue
        moments[moment] += 1
        if (death.loss, kept, said) in seen:
            continue
        if death.loss != "some":
            seen.add((death.loss, kept, said))
        with _base(folder) as base, _replayable(work, seed, [death]):
            work.go_on(seed, base, death, kept, said)
    return moments


def hunt(
    works: Sequence[str], wanted: Sequence[str], losses: Sequence[str], least: int, folder: Path
) -> tuple[Counter[str], int]:
    """Deaths at which moment, at least so many at each wanted one; and the number of cases.

    Each death is at a moment that lacks deaths, in a case of a new seed every few deaths. After
    every third one, the run that goes on dies, too, anywhere.
    """
    moments: Counter[str] = Counter()
    for seed in range(1, _MOST_CASES):
        chance = Random(seed)
        work = WORKS[works[seed % len(works)]]
        steps = survey(work, seed, folder)
        for _ in range(_DEATHS_A_CASE):
            lacking = [moment for moment in wanted if moments[moment] < least]
            if not lacking:
                return moments, seed
            first = _at_one_of(lacking, steps, seed, chance, chance.choice(losses))
            if first is None:
                break
            deaths = [first]
            if chance.random() < 1 / 3:
                deaths.append(_anywhere(steps, seed, chance, chance.choice(losses)))
            moments.update(die(work, seed, deaths, folder))
    raise AssertionError(f"too few deaths: {moments}")


def _at_one_of(
    moments: Sequence[str], steps: Sequence[Step], seed: int, chance: Random, loss: str
) -> Death | None:
    found = [
        (number, place)
        for number, step in enumerate(steps, 1)
        for place in PLACES
        if step.moment(place) in moments
    ]
    return Death(*chance.choice(found), loss, seed) if found else None


def _anywhere(steps: Sequence[Step], seed: int, chance: Random, loss: str) -> Death:
    return Death(chance.randint(1, len(steps)), chance.choice(PLACES), loss, seed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("deaths", nargs="+", metavar="PLACE/LOSS[/STEP]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--last-first", action="store_true")
    parser.add_argument("--mutant")
    given = parser.parse_args()
    work, words = WORKS[given.work], [death.split("/") for death in given.deaths]
    folder = given.folder or (_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    with (
        tempfile.TemporaryDirectory(prefix="redline-dying-", dir=folder) as name,
        mutated(given.mutant),
    ):
        if len(words[0]) == 2:
            manner = (words[0][0], words[0][1])
            moments = sweep(work, given.seed, manner, Path(name), last_first=given.last_first)
        else:
            deaths = [Death(int(step), place, loss, given.seed) for place, loss, step in words]
            moments = Counter(die(work, given.seed, deaths, Path(name)))
    print(f"{given.work}: {moments.total()} deaths")
    for moment, times in sorted(moments.items()):
        print(f"{times:5} {moment}")


if __name__ == "__main__":
    main()
