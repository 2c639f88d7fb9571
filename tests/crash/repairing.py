"""Repairs that die and are repeated: a file is the old one or the new one, and no byte is gone."""

from __future__ import annotations

import json
import signal
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from crash.disk import Death, Disk, Onlooker
from crash.platter import Kept, Platter
from crash.scenarios import FAILED, OUTPUT, Log, comes_to_its_end, in_child
from crash.steps import Step
from redline.job.outputs import repairing as repairs
from redline.journal import Output


def line(number: int, size: int = 0) -> bytes:
    """The line of row `number`, sealed, with so many bytes of text."""
    fields = {"v": 1, "hash": f"{number:016x}", "row": number, "output": "x" * size}
    body = json.dumps(fields, separators=(",", ":"))[:-1].encode()
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def draw(seed: int) -> dict[str, tuple[bytes, bytes, bytes]]:
    """Of each file the old one, the new one, and what is taken out of it."""
    chance = Random(seed)
    found = {}
    for name in (OUTPUT, FAILED):
        numbers = range(1, chance.randint(3, 9))
        sound = [line(number, chance.choice((0, 400, 6000))) for number in numbers]
        parts = [(True, text) for text in sound]
        wrong = [b"notes\n", b"\n", sound[0][:30] + b"\n", bytes(chance.randint(1, 5000)) + b"\n"]
        if name == OUTPUT:
            # In the failures, a row that stands twice was only tried again.
            wrong.append(sound[0])
        for text in chance.choices(wrong, k=chance.randint(1, 4)):
            parts.insert(chance.randint(1, len(parts)), (False, text))
        parts.append((False, b"torn"))
        kept = b"".join(text for is_sound, text in parts if is_sound)
        out = b"".join(text for is_sound, text in parts if not is_sound)
        found[name] = (b"".join(text for _, text in parts), kept, out)
    return found


class Repairs:
    """Repairs of files that are drawn from seeds. `base`: a folder to be made for each."""

    name = "repair"

    def watch(
        self,
        seed: int,
        base: Path,
        choose: Callable[[int, Step], Death | None],
        keep: Callable[[Death, str, Kept, str], None],
    ) -> list[Step]:
        """The steps of a repair that does not die."""
        folder = self._begin(seed, base)
        disk = Onlooker(folder, choose, lambda *left: keep(*left, ""))
        assert _finishes(disk, folder), "a repair that does not die did not finish"
        return disk.steps

    def go_on(self, seed: int, base: Path, death: Death, kept: Kept, said: str) -> None:
        """Raises AssertionError as `die` does."""
        folder, files = base / "out", draw(seed)
        kept.put_back(folder)
        if death.loss != "none":
            Platter.load(folder).lose(death.chance() if death.loss == "some" else None)
        _check(folder, files, is_over=False)
        assert _finishes(Disk(folder), folder), "the repeated repair did not finish"
        _check_after(folder, files, death)

    def die(self, seed: int, deaths: Sequence[Death], base: Path) -> list[str]:
        """The moments of these deaths, after which a repair came to its end."""
        folder, log = self._begin(seed, base), Log(base / "log")
        files = draw(seed)
        for death in deaths:
            status = self._repair(folder, log, death)
            assert status in (0, signal.SIGKILL), f"wait status {status} in place of a death"
            _check(folder, files, is_over=status == 0)
        assert self._repair(folder, log, None) == 0, "the repeated repair did not finish"
        _check_after(folder, files, deaths[-1])
        return log.heard("died")

    def _begin(self, seed: int, base: Path) -> Path:
        folder = base / "out"
        (folder / "labels.redline").mkdir(parents=True)
        (folder / "labels.redline" / "manifest.json").write_text('{"settings": {}}')
        (folder / "labels.redline" / "lock").touch()
        for name, (old, _, _) in draw(seed).items():
            (folder / name).write_bytes(old)
        return folder

    def _repair(self, folder: Path, log: Log, death: Death | None) -> int:
        return in_child(
            lambda: _finishes(Disk(folder, death, lambda moment: log.say("died", moment)), folder)
        )


def _finishes(disk: Disk, folder: Path) -> bool:
    """Whether a repair on this disk comes to its end."""

    def work() -> bool:
        repairs.repair(Output(path=folder / OUTPUT))
        return True

    try:
        return comes_to_its_end(work)
    finally:
        disk.stop()


def _check_after(folder: Path, files: dict[str, tuple[bytes, bytes, bytes]], death: Death) -> None:
    """After this death and a repair that came to its end; and what it did is durable."""
    _check(folder, files, is_over=True)
    Platter.load(folder).lose(death.chance() if death.loss == "some" else None)
    _check(folder, files, is_over=True)


def _check(folder: Path, files: dict[str, tuple[bytes, bytes, bytes]], *, is_over: bool) -> None:
    """Each file is the old one or the new one, and what is not in it stands beside it, whole."""
    for name, (old, new, out) in files.items():
        path = folder / name
        assert path.exists(), f"{name} is gone"
        data = path.read_bytes()
        assert data in ((new,) if is_over else (old, new)), f"{name} is neither"
        asides = [found.read_bytes() for found in folder.glob(f"{path.stem}.damaged-*.jsonl")]
        assert all(aside == out for aside in asides), f"beside {name}: {asides}"
        assert data == old or asides, f"{name} was repaired and what went out is gone"
    if is_over:
        left = [path.name for path in folder.rglob("*unfinished*")]
        assert not left, f"left behind: {left}"
