"""What every test may ask for."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A busy machine may take any time for an example, and for drawing one.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in each run, so that a failure is of the change at hand: --hypothesis-profile
# explore draws others.
settings.register_profile("redline", settings.get_profile("explore"), derandomize=True)
settings.load_profile("redline")

# Where files cost least: an fsync of a disk may take milliseconds. What it makes durable is what
# tests/crash/platter.py models.
MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 2**30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > LEAST_FREE_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# One entry for each descriptor of this process.
DESCRIPTORS = "/dev/fd"

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


# Files whose tests share what is slow to make, so that one worker runs all of a file.
TOGETHER = (
    "tests/docs/test_contributing.py",
    "tests/real/test_engine_ranks.py",
    "tests/real/test_feedback.py",
    "tests/real/test_limits.py",
    "tests/real/test_object_errors.py",
    "tests/real/test_object_input.py",
    "tests/real/test_object_output.py",
    "tests/real/test_report_page.py",
    "tests/real/test_synth.py",
    "tests/test_architecture.py",
)

# From tests that wait for processes and for time to tests that only compute. Between them are those
# that take least, so that all workers end at about the same time.
FROM_WAITING_TO_COMPUTING = ("real", "docs", "crash", "cli", "unit", "sim", "property")

# Of the worker that computes. Beside two that want both of two cores it still gets 40 % of one.
NICENESS = 3


def pytest_configure() -> None:
    """Let what the tests start be interrupted, even if a shell started them in the background.

    A shell without job control starts such a command with SIGINT ignored, and children inherit it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests of a worker of pytest-xdist from waiting to computing."""

    def place(item: pytest.Item) -> int:
        folder = item.nodeid.split("/")[1]
        known = folder in FROM_WAITING_TO_COMPUTING
        return FROM_WAITING_TO_COMPUTING.index(folder) if known else len(FROM_WAITING_TO_COMPUTING)

    if hasattr(config, "workerinput"):
        items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The worker that begins with tests that compute leaves the processor to those that wait."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and _is_last(worker["workerid"], worker["workercount"]):
        os.nice(NICENESS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A scheduler of pytest-xdist: tests singly, but for the files of TOGETHER.

    The last worker begins with the tests that compute, and the others with those that wait, so that
    the processor is busy while tests wait. The marks for `--dist loadgroup` have no effect with
    pytest 9.2 and pytest-xdist 3.8.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file in TOGETHER else nodeid

        def _assign_work_unit(self, node: Any) -> None:
            if _is_last(node.workerinput["workerid"], node.workerinput["workercount"]):
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    # In the order of the tests, and not by the number of tests of a unit.
    config.option.loadscopereorder = False
    return Scheduler(config, log)


def _is_last(worker: str, count: int) -> bool:
    """Whether this is the last of two or more workers, which begins with tests that compute."""
    return count > 1 and worker == f"gw{count - 1}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """What is imported and collected stays: the garbage collector need not walk it in each test.

    With torch and thousands of tests in memory a full walk takes up to a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Test processes share the cores already: a second thread would only wait for the first."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    """A test that leaves a socket or a file open is the one that fails by it.

    What is in a cycle warns when it is collected, which may be many tests later. To collect after
    every test would take too long.
    """
    before = len(os.listdir(DESCRIPTORS))
    yield
    if len(os.listdir(DESCRIPTORS)) > before:
        gc.collect()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data that lies beside the checkout, or a skip."""
    if not SHARED_DATA.is_dir():
        pytest.skip("real data: there is no ../shared/data beside this checkout")
    return SHARED_DATA


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where engine_models leaves what it makes: one folder for all workers of a run."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "models"
