"""Generated requests to `redline serve`; `make campaign NAME=fuzz-gateway` has many more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.door_fuzzing import PROPERTIES, Door
from support.serve_process import Serve, keys_of
from support.sim_process import SimProcess

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]
EXAMPLES = 60


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A gateway with keys, which is well and has written nothing in the end."""
    folder = tmp_path_factory.mktemp("gateway")
    key = keys_of(folder, "one")["one"]
    with (
        SimProcess() as sim,
        Serve(folder, "--endpoint", sim.base_url, "--keys", "keys.jsonl") as serve,
    ):
        door = Door(serve.url, key)
        yield door
        assert door.ask("GET", b"/healthz").status == 200
        assert serve.end() == (0, "")
        stats = sim.stats()
    assert stats["in_flight"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("check", PROPERTIES, ids=lambda each: each.__name__)
def test_the_front_door(door: Door, check: Callable[[Door, int, int | None], None]) -> None:
    check(door, EXAMPLES, None)
