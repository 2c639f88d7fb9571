"""A model in several processes says what one says; when one process dies, all end, and it is told.

The groups are started once for all tests of them; the last test of a group kills one of its ranks.
They are forks of this process; test_engine.py starts some as the engine does.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, CohereConfig, GPTBigCodeConfig

from redline import EngineSettings, LocalEngine
from redline.engine.model import Piece, Runner, Work
from redline.engine.parallel import Ranks, make_computer
from redline.engine.parallel import coordinator as ranks_module
from redline.engine.step import EngineFailed
from redline.errors import ConfigError
from support.engine_driver import CAPACITY, Setting, loaded, make_core
from support.engine_models import near_draft, random_model
from support.engine_ranks import (
    LONGEST_S,
    Forked,
    SlowRanks,
    Split,
    bytes_of,
    check_answers,
    difference,
    odd_model,
    ranks_of,
    said_by,
    settings,
    stage_times,
    works,
)

pytestmark = [
    pytest.mark.real,
    # Python warns of forks where there are threads; those here hold nothing.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


class Group(NamedTuple):
    """A model, how it is split, what is tried with it, and which rank is killed in the end."""

    name: str
    split: Split
    settings: list[Setting]
    victim: int

    def folder(self, models: Path) -> Path:
        return odd_model(models) if self.name == "odd" else random_model(self.name, models)


GROUPS = [
    Group(
        "qwen3",
        Split(shares=2),
        [
            Setting(slots=1, drafts=6, draft="model"),
            Setting(slots=8, cache_tokens=110, step_tokens=48, drafts=2, draft="lookup"),
            Setting(slots=24, step_tokens=512, reuses_prefixes=False),
        ],
        victim=1,
    ),
    Group(
        "llama",
        Split(stages=2),
        [
            Setting(slots=6, drafts=3, draft="model", cache_tokens=110, steps_at_once=2),
            Setting(slots=3, step_tokens=7, steps_at_once=2),
            Setting(slots=24, drafts=5, draft="lookup", reuses_prefixes=False, steps_at_once=2),
        ],
        victim=0,
    ),
    Group(
        "qwen2",
        Split(shares=2, stages=2),
        [
            Setting(slots=24, drafts=4, draft="model", steps_at_once=2),
            Setting(slots=8, cache_tokens=160, drafts=1, draft="lookup", steps_at_once=2),
        ],
        victim=2,
    ),
    Group("odd", Split(shares=2), [Setting(slots=3, drafts=2, draft="lookup")], victim=0),
]


class Started(NamedTuple):
    group: Group
    ranks: Ranks
    folder: Path
    models: Path


@pytest.fixture(scope="module", params=GROUPS, ids=lambda group: f"{group.name}-{group.split}")
def started(request: pytest.FixtureRequest, models_folder: Path) -> Iterator[Started]:
    group: Group = request.param
    folder = group.folder(models_folder)
    with ranks_of(folder, group.split, Forked) as ranks:
        yield Started(group, ranks, folder, models_folder)


def test_logits_are_those_of_the_whole_model(started: Started) -> None:
    assert difference(started.ranks, started.folder) < 1e-4


def test_each_rank_holds_its_part_only(
    started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    """Norms are every rank's, and shares of a vocabulary have a row of zeros: hence the 1 %."""
    whole, even = bytes_of(started.folder, started.group.split)
    found = started.ranks.parameter_bytes
    with capsys.disabled():
        print(f"\n{started.group.name} {started.group.split}: {found} of {whole:,} bytes")
    for own, wanted in zip(found, even, strict=True):
        assert abs(own / wanted - 1) <= 0.01


@pytest.mark.slow
def test_greedy_answers_are_those_of_generate(started: Started) -> None:
    group = started.group
    said = said_by(started.folder)
    for order, setting in enumerate(group.settings):
        has_model = setting.draft == "model"
        draft = loaded(near_draft(group.name, started.models)) if has_model else None
        core = make_core(started.ranks, setting, draft)
        check_answers(core, said, order)
        if setting.cache_tokens < 1000:
            assert core.scheduler.preemptions > 0
        if has_model:
            assert core.figures.accepted_tokens > 0
        assert (core.scheduler.reused_tokens > 0) == setting.reuses_prefixes


def children(pid: int) -> list[int]:
    """The processes that `pid` has made, oldest first."""
    # In the order in which they were made; the numbers begin again after the largest one.
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [*map(int, text.split())]


def newest_child() -> int:
    """The process that made the ranks which were started last."""
    return children(os.getpid())[-1]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + LONGEST_S
    while not is_so():
        assert time.monotonic() < ends_s, "it takes too long"
        time.sleep(0.02)


def compute_on(ranks: Ranks, count: int = 100_000) -> None:
    """Steps upon steps, as many at once as may be."""
    work = works()[0]
    for _ in range(ranks.steps_at_once):
        ranks.submit(work)
    for _ in range(count):
        ranks.result()
        ranks.submit(work)


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_is_named(started: Started) -> None:
    ranks, victim = started.ranks, started.group.victim
    parent = newest_child()
    pids = children(parent)
    assert len(pids) == len(ranks.parameter_bytes)
    killer = threading.Timer(0.3, os.kill, (pids[victim], signal.SIGKILL))
    begun_s = time.monotonic()
    killer.start()
    with pytest.raises(EngineFailed, match=f"rank {victim} of {len(pids)} .* SIGKILL") as caught:
        compute_on(ranks)
    assert caught.value.hint
    assert time.monotonic() - begun_s < LONGEST_S / 2
    wait_until(lambda: not any(map(is_running, [*pids, parent])))
    # Whoever asks afterwards is told the same at once.
    with pytest.raises(EngineFailed, match="SIGKILL"):
        ranks.submit(works()[0])
    with pytest.raises(EngineFailed, match="SIGKILL"):
        ranks.result()


def coordinate(folder: Path, line: Connection) -> None:
    """Computes and computes; tells first which processes do."""
    ranks = Forked(*settings(folder, Split(shares=2)), capacity=64, device="cpu")
    pid = newest_child()
    line.send([pid, *children(pid)])
    compute_on(ranks)


def test_ranks_end_with_a_coordinator_that_is_killed(models_folder: Path) -> None:
    folder = random_model("llama", models_folder)
    forks = multiprocessing.get_context("fork")
    ours, theirs = forks.Pipe()
    coordinator = forks.Process(target=coordinate, args=(folder, theirs))
    coordinator.start()
    assert ours.poll(LONGEST_S)
    pids = ours.recv()
    assert len(pids) == 3
    assert all(map(is_running, pids))
    time.sleep(0.2)
    coordinator.kill()
    coordinator.join()
    wait_until(lambda: not any(map(is_running, pids)))


def test_whoever_watches_idle_ranks_is_told_that_one_has_ended(models_folder: Path) -> None:
    told: list[str] = []
    with ranks_of(random_model("llama", models_folder), Split(shares=2), Forked) as ranks:
        ranks.watch(lambda error: told.append(f"in time: {error}"))
        os.kill(children(newest_child())[1], signal.SIGKILL)
        wait_until(lambda: bool(told))
        ranks.watch(lambda error: told.append(f"late: {error}"))
    assert ["SIGKILL" in each for each in told] == [True, True]


def test_ranks_end_with_the_process_that_made_them(models_folder: Path) -> None:
    with ranks_of(random_model("llama", models_folder), Split(shares=2), Forked) as ranks:
        parent = newest_child()
        pids = children(parent)
        os.kill(parent, signal.SIGKILL)
        with pytest.raises(EngineFailed, match="the process that started the ranks has ended"):
            ranks.result()
        wait_until(lambda: not any(map(is_running, [*pids, parent])))


def test_ranks_that_do_nothing_any_more_are_closed(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_module, "_END_S", 0.5)
    with ranks_of(random_model("llama", models_folder), Split(shares=2), Forked):
        pids = children(newest_child())
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not any(map(is_running, pids)))


def test_ranks_of_a_model_whose_loading_was_cancelled_are_closed(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(random_model("llama", models_folder))
    parents = list[int]()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        class Cancelling(Forked):
            def __init__(self, *args: Any, **more: Any) -> None:
                super().__init__(*args, **more)
                parents.append(self._process.pid)
                loop.call_soon_threadsafe(loading.cancel)

        monkeypatch.setattr(ranks_module, "Ranks", Cancelling)
        local = LocalEngine(EngineSettings(model=folder, max_batch_size=2, tensor_parallel=2))
        loading = asyncio.create_task(local.open().__aenter__())
        with pytest.raises(asyncio.CancelledError):
            await loading

    asyncio.run(main())
    assert len(parents) == 1
    wait_until(lambda: not any(map(is_running, parents)))


def test_a_model_that_cannot_be_split_is_refused_with_no_process_left(
    models_folder: Path,
) -> None:
    told = settings(random_model("llama", models_folder), Split(shares=4))
    before = children(os.getpid())
    with pytest.raises(ConfigError, match=r"num_key_value_heads = 2.*4 ranks"):
        Forked(*told, capacity=64, device="cpu")
    assert children(os.getpid()) == before


def test_one_process_computes_where_one_is_wanted(models_folder: Path) -> None:
    told = settings(random_model("llama", models_folder), Split())
    assert isinstance(make_computer(*told, capacity=64, device="cpu"), Runner)


SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
# What only a split model shows: `q_norm` is of all heads, and GPTBigCode has other names.
UNSPLIT: dict[str, tuple[Any, Split, str]] = {
    "norms": (CohereConfig(**SMALL, num_key_value_heads=2, use_qk_norm=True), Split(2), "size of"),
    "names": (GPTBigCodeConfig(**SMALL), Split(stages=2), "no attribute 'model'"),
}


@pytest.mark.parametrize("kind", UNSPLIT)
def test_a_model_that_cannot_run_split_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, split, why = UNSPLIT[kind]
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    monkeypatch.setattr(ranks_module, "Ranks", Forked)
    with pytest.raises(ConfigError, match=f"the model in {tmp_path}: .*{why}"):
        make_computer(*settings(tmp_path, split, max_batch_size=1), capacity=64, device="cpu")


def test_a_split_model_is_tried_and_serves(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = random_model("llama", models_folder)
    monkeypatch.setattr(ranks_module, "Ranks", Forked)
    told = settings(folder, Split(stages=2), max_batch_size=4)
    computer = make_computer(*told, capacity=CAPACITY, device="cpu")
    try:
        assert difference(computer, folder) < 1e-4
    finally:
        computer.close()


def is_busy(found: float) -> bool:
    """Other work on the machine adds time; a schedule with gaps takes 1.5 times and more."""
    assert found >= 0.99, "faster than stages can be"
    return found <= 1.3


def test_every_stage_is_kept_busy_and_an_error_is_told(
    models_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ranks_of(random_model("llama", models_folder), Split(stages=2), SlowRanks) as ranks:
        for batches in (2, 3):
            found = next(
                filter(is_busy, (stage_times(ranks, batches, 4) for _ in range(5))), math.inf
            )
            with capsys.disabled():
                print(f"\n{batches} micro-batches: {found:.3f} of (m T + p - 1) stage times")
            assert is_busy(found)
        # One step at a time takes both stages' time, so the bound can be missed.
        assert stage_times(ranks, 1, 4) > 1.5
        ranks.submit(Work([], [Piece(99, 0, 1)], [5], [0]))
        with pytest.raises(EngineFailed, match=r"rank 0 of 2 .* IndexError"):
            ranks.result()
