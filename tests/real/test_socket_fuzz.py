"""The small form of the fuzzers over sockets (bench/fuzz_transport.py and bench/fuzz_server.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.socket_fuzzing import Figures, fuzz_run, fuzz_sim, fuzzed_sim

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy"), pytest.mark.timeout(200)]

# After some answers that may be another row's, a job uses no connection twice.
JOBS, ROWS = 4, 40


@pytest.mark.slow
def test_faults_in_answers_reach_no_other_row_of_a_run(tmp_path: Path) -> None:
    figures = Figures()
    for seed in range(JOBS):
        fuzz_run(tmp_path / str(seed), seed, ROWS, figures)
    assert figures.executions == JOBS * ROWS
    assert figures.checked > figures.executions / 5
    assert {"succeeded", "bad_reply", "disconnected"} <= set(figures.outcomes)


@pytest.mark.slow
def test_faults_in_requests_leave_sim_answering() -> None:
    figures = Figures()
    with fuzzed_sim() as port:
        fuzz_sim(port, 1, 400, figures)
    assert figures.executions == 400
    assert figures.checked > 400
    assert {"400", "404"} <= set(figures.outcomes)
