"""One HTTP endpoint that answers several jobs, as behind a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.calls import Endpoint, HttpBackend
from redline.errors import NoEndpoint
from redline.job import Parts, execute
from redline.job.settings import Job, Prompting
from redline.journal import Output, read_results
from redline.limits import Limits
from redline.limits.shared import limiter as shared_module
from support.scripted import Answer, Asked, completion, scripted

PROMPTING = Prompting(model="m", prompt="{{ n }}")


def job(name: str, count: int, **settings: Any) -> Job:
    rows = [{"n": f"{name} {number}"} for number in range(count)]
    return Job(rows=rows, prompting=PROMPTING, **settings)


def prompt_of(asked: Asked) -> str:
    text: str = asked.body["messages"][-1]["content"]
    return text


def endpoint(url: str, **limits: Any) -> Endpoint:
    return Endpoint(base_url=url, limits=Limits(**limits))


def test_each_of_two_jobs_has_its_own_results_and_counts(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        is_first_try = asked.number == 1
        return Answer(503) if is_first_try else Answer(200, completion(prompt_of(asked)))

    outputs = {name: Output.at(tmp_path / f"{name}.jsonl") for name in ("live", "night")}
    counts = {"live": 30, "night": 50}

    async def main(url: str) -> list[Any]:
        backend = HttpBackend(endpoint(url, requests="2000/1s", concurrency=4))
        jobs = [job(name, counts[name], output=outputs[name]) for name in counts]
        try:
            return await asyncio.gather(*[execute(one, Parts(backend=backend)) for one in jobs])
        finally:
            await backend.aclose()

    with scripted(answer) as server:
        reports = asyncio.run(main(server.base_url))
        assert len(server.asked) == 81
    assert [report.succeeded for report in reports] == [30, 50]
    assert sum(report.attempts for report in reports) == 81
    assert sum(report.retries for report in reports) == 1
    assert [report.input_tokens for report in reports] == [90, 150]
    for name, output in outputs.items():
        said = {line["output"] for line in lines(output)}
        assert said == {f"{name} {number}" for number in range(counts[name])}


def lines(output: Output) -> list[dict[str, Any]]:
    return list(read_results(output.path, dict))


def test_what_was_answered_is_in_the_file_before_the_next_request_is_on_the_wire(
    tmp_path: Path,
) -> None:
    output = Output.at(tmp_path / "out.jsonl")
    seen: list[int] = []

    def answer(asked: Asked) -> Answer:
        seen.append(output.path.read_bytes().count(b"\n") if output.path.exists() else 0)
        return Answer(200, completion())

    async def main(url: str) -> None:
        backend = HttpBackend(endpoint(url))
        one = job("row", 20, output=output, limits=Limits(concurrency=1))
        report = await execute(one, Parts(backend=backend))
        await backend.aclose()
        assert report.is_complete

    with scripted(answer) as server:
        asyncio.run(main(server.base_url))
    assert seen == [*range(20)]


def test_the_job_with_the_lower_number_goes_first_at_the_endpoints_slot() -> None:
    async def main(url: str) -> None:
        backend = HttpBackend(endpoint(url, concurrency=1))
        night = job("night", 20, priority=9, limits=Limits(concurrency=8))
        live = job("live", 20, limits=Limits(concurrency=8))
        both = [execute(one, Parts(backend=backend)) for one in (night, live)]
        await asyncio.gather(*both)
        await backend.aclose()

    with scripted(lambda asked: Answer(200, completion())) as server:
        asyncio.run(main(server.base_url))
        order = [prompt_of(asked).split()[0] for asked in server.asked]
    last_live = len(order) - order[::-1].index("live") - 1
    # The other job may have rows before this one has any, and while its next rows are read.
    assert order[: last_live + 1].count("night") < 10


def test_a_run_with_several_endpoints_ends_once_their_shared_limits_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_module, "GIVE_UP_S", 0.5)
    share = tmp_path / "limits"

    def answer(asked: Asked) -> Answer:
        share.write_text("not a ledger any more")
        return Answer(200, completion())

    with scripted(answer) as one, scripted(answer) as other:
        urls = one.base_url, other.base_url
        endpoints = [endpoint(url, requests="20/1s", share=str(share)) for url in urls]
        report = redline.run([{"prompt": "hello"}] * 100, model="m", endpoint=endpoints)
    assert isinstance(report.stopped, NoEndpoint)
    assert "none of 2 endpoints is left" in str(report.stopped)
