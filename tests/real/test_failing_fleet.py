"""A fleet of real servers, one of which fails: few calls see it, and it is back soon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop

from redline.calls import Endpoint
from redline.route.pages import Pages
from support import four_keys
from support.failing_fleet import SERVER, SLOW, SLOWER, through_fault
from support.lateness import judge
from support.sim_process import SimProcess, fleet_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]


@pytest.mark.parametrize("mode", ["reset", "black hole", SLOW])
def test_few_first_attempts_see_a_server_that_fails_and_it_is_back_soon(mode: str) -> None:
    with (
        fleet_of(3, *SERVER) as servers,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(through_fault(servers, mode, calls=800, at_once=24, timeout_s=1.0))
    assert found["unanswered"] == 0
    # Those in flight when it begins, those that prove it, and one for each pause.
    assert found["failed_first_attempts"] <= 24 + 7 + 4
    assert found["back_s"] is not None
    assert found["back_s"] <= 30
    if mode == SLOW:
        assert 0 < found["share"] <= 2 / (1 + 2 * SLOWER)
    else:
        assert found["failed_first_attempts"] > 0


@pytest.mark.slow
def test_a_server_whose_health_page_is_well_is_seen_to_fail_by_one_call_in_a_hundred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    urls, read = dict[int, str](), list[tuple[str, bool]]()
    begin, is_well = Pages.__init__, Pages.is_well

    def begun(self: Pages, endpoint: Endpoint, *rest: Any) -> None:
        begin(self, endpoint, *rest)
        urls[id(self)] = endpoint.base_url

    async def noted(self: Pages) -> bool:
        read.append((urls[id(self)], await is_well(self)))
        return read[-1][1]

    monkeypatch.setattr(Pages, "__init__", begun)
    monkeypatch.setattr(Pages, "is_well", noted)
    with (
        fleet_of(3, *SERVER) as servers,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        playing = through_fault(servers, "HTTP 500", calls=3_200, at_once=24, probe=True)
        found = runner.run(playing)
        bad = servers[-1].base_url
    assert found["unanswered"] == 0
    assert 0 < found["failed_first_attempts"] <= 0.01 * found["calls"]
    assert found["back_s"] is not None
    assert found["back_s"] <= 30
    # It was asked all the time, and said that all is well.
    said = [well for url, well in read if url == bad]
    assert len(said) >= found["fault_s"]
    assert all(said)


def test_no_row_waits_for_a_parked_key_and_none_is_rejected(tmp_path: Path) -> None:
    def check(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        with SimProcess(*four_keys.SERVER) as server:
            found = four_keys.park_one(folder, server, rows=320, after_s=1, for_s=2)
        assert found["rejected"] == 0
        # Those that were on the wire when it was parked.
        assert 1 <= found["rejected_while_parked"] <= 5
        assert found["used"] >= 0.93
        # As many as wait in the queue.
        assert found["latest_place"] <= 220

    judge(check, late_s=four_keys.GUARD_S)


def test_a_killed_run_that_goes_on_overshoots_no_key(tmp_path: Path) -> None:
    with SimProcess(*four_keys.SERVER) as server:
        found = four_keys.kill_and_resume(tmp_path, server, rows=160, kills=1)
    assert found["rejected"] == 0
