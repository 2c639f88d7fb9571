"""Generated requests to `redline serve`; `make campaign NAME=fuzz-gateway` has many more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.door_fuzzing import PROPERTIES, Door, fuzzed_gateway

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]
EXAMPLES = 60


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with fuzzed_gateway(tmp_path_factory.mktemp("gateway")) as door:
        yield door


@pytest.mark.slow
@pytest.mark.parametrize("check", PROPERTIES, ids=lambda each: each.__name__)
def test_the_front_door(door: Door, check: Callable[[Door, int, int | None], None]) -> None:
    check(door, EXAMPLES, None)
