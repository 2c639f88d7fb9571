"""Odd files of results from a Batch API: each row its own answer, none paid twice, no dead end."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.calls import RetryPolicy
from redline.cli import main
from redline.job.batch import ledger as batch_ledger
from redline.job.batch import plan as batch_plan
from redline.job.batch import runner as batch_module
from support.scripted import Answer, Asked, Scripted, chat, said, scripted
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

Line = dict[str, Any]
# The lines of a file of results, as the provider would write them, to the file.
Writes = Callable[[list[Line]], bytes]
KEY = "sk-secret-key-123456"
ROWS = 8


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_proxy: None) -> None:
    """A folder of its own with rows; looks that do not become rare while a test waits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(batch_plan, "FIRST_LOOK_S", 0.02)
    monkeypatch.setattr(batch_plan, "MOST_MAKING_S", 0.5)
    monkeypatch.setattr(batch_plan, "MOST_LOOK_S", 0.05)
    monkeypatch.setattr(batch_module, "MOST_RESULTS_S", 0.5, raising=False)
    monkeypatch.setattr(batch_module, "MOST_LOST_S", 0.5, raising=False)
    monkeypatch.setattr(RetryPolicy, "pause_s", lambda *_: 0.02)
    rows = [{"custom_id": f"r{n}", "prompt": f"say {n}"} for n in range(ROWS)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def jsonl(lines: list[Line]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def answered(line: Line) -> Line:
    body = chat(said(f"echo {line['body']['messages'][-1]['content']}"))
    return {"custom_id": line["custom_id"], "response": {"status_code": 200, "body": body}}


class Provider:
    """A Batch API. writes: the file of results of each batch in turn, plain for those after.

    shows: what a look shows, given the batch as it is and how often it was looked at. outages: of a
    method and the end of a path, the requests, from 1, whose answers get lost.
    """

    def __init__(
        self, *writes: Writes, shows: Callable[[Line, int], Line] = lambda batch, looks: batch
    ) -> None:
        self.writes = list(writes)
        self.shows = shows
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Line] = {}
        self.looks: dict[str, int] = {}
        self.asked_live: list[str] = []
        self.refused: set[str] = set()
        self.billed = 0
        self.hidden_downloads = 0
        self.asked: Counter[str] = Counter()
        self.outages: dict[str, range] = {}

    def __call__(self, request: Asked) -> Any:
        name = f"{request.method} {request.path.partition('?')[0].rpartition('/')[2]}"
        self.asked[name] += 1
        is_lost = self.asked[name] in self.outages.get(name, ())
        if is_lost and request.method == "GET":
            return Answer(503)
        answer = self._answer(request)
        return Answer(503) if is_lost else answer

    def _answer(self, request: Asked) -> Any:
        path, body = request.path, request.body
        parts = path.partition("?")[0].strip("/").split("/")[1:]
        if parts == ["files"]:
            name = f"file-{len(self.files)}"
            content = body.split(b"application/jsonl\r\n\r\n", 1)[1].rsplit(b"\r\n--", 1)[0]
            self.files[name] = content
            return {"id": name}
        if parts[0] == "files" and parts[-1] == "content":
            if self.hidden_downloads:
                self.hidden_downloads -= 1
                return Answer(404, {"error": {"message": "no such file"}})
            return self.files.get(parts[1]) or Answer(404, {"error": {"message": "no such file"}})
        if parts == ["batches"] and isinstance(body, dict):
            return self._made(body)
        if parts == ["batches"]:
            return {"data": list(self.batches.values())[::-1]}
        if parts[0] == "batches":
            batch_id = parts[1]
            self.looks[batch_id] = self.looks.get(batch_id, 0) + 1
            return self.shows(dict(self.batches[batch_id]), self.looks[batch_id])
        if parts == ["chat", "completions"]:
            self.asked_live.append(body["messages"][-1]["content"])
            text = self.asked_live[-1]
            return (
                Answer(400, {"error": {"message": "no"}})
                if text in self.refused
                else chat(said(f"echo {text}"))
            )
        return {"id": "x", "deleted": True}

    def _made(self, body: Line) -> Line:
        asked = [json.loads(line) for line in self.files[body["input_file_id"]].splitlines()]
        self.billed += len(asked)
        number = len(self.batches)
        writes = self.writes[number] if number < len(self.writes) else jsonl
        name = f"results-{number}"
        self.files[name] = writes([answered(line) for line in asked])
        batch = {"id": f"batch-{number}", "created_at": 1, "metadata": body["metadata"]}
        self.batches[batch["id"]] = {**batch, "status": "completed", "output_file_id": name}
        return {**batch, "status": "in_progress"}


@contextmanager
def serving(provider: Provider) -> Iterator[Scripted]:
    with scripted(provider) as server:
        yield server


def run(server: Scripted, rows: Any = "rows.jsonl", **options: Any) -> redline.Report:
    given = {"via": "batch", "model": "m", "output": "out.jsonl", "progress": False, **options}
    endpoint = redline.Endpoint(base_url=server.base_url, api_key=KEY)
    return redline.run(rows, endpoint=endpoint, **given)


def results() -> dict[str, str]:
    lines = map(json.loads, Path("out.jsonl").read_text().splitlines())
    return {line["custom_id"]: line["output"] for line in lines}


def failures() -> list[Line]:
    return [json.loads(line) for line in Path("out.failed.jsonl").read_text().splitlines()]


ALL = {f"r{n}": f"echo say {n}" for n in range(ROWS)}
READ: dict[str, Writes] = {
    "blank lines": lambda lines: jsonl(lines).replace(b"\n", b"\n\n \n"),
    "byte order mark": lambda lines: b"\xef\xbb\xbf" + jsonl(lines),
    "crlf": lambda lines: jsonl(lines).replace(b"\n", b"\r\n"),
    "a page around it": lambda lines: b"<html>\n" + jsonl(lines) + b"</html>",
    "another's line": lambda lines: jsonl([{**lines[0], "custom_id": "x"}, *lines]),
    "a line without a name": lambda lines: jsonl([{**lines[0], "custom_id": None}, *lines]),
    "twice": lambda lines: jsonl(lines * 2),
    "loosely written": lambda lines: jsonl(lines).replace(b'"index"', b'"x": NaN, "index"'),
    "a status that is text": lambda lines: jsonl(lines).replace(b": 200", b': "200"'),
}


@pytest.mark.parametrize("writes", READ.values(), ids=READ.keys())
def test_an_odd_file_is_read_and_nothing_is_paid_twice(writes: Writes) -> None:
    provider = Provider(writes)
    with serving(provider) as server:
        report = run(server)
    assert (report.succeeded, report.unfinished) == (ROWS, 0)
    assert results() == ALL
    assert provider.billed == ROWS


def without_name(lines: list[Line], name: Any = None) -> bytes:
    return jsonl([{**lines[2], "custom_id": name}, *lines[:2], *lines[3:]])


LOST: dict[str, Writes] = {
    "null": without_name,
    "a number": lambda lines: without_name(lines, 7),
    "torn": lambda lines: jsonl(lines)[:-30],
    "garbage": lambda lines: jsonl(lines[1:]) + b"<html>\n",
    "missing": lambda lines: jsonl(lines[1:]),
}


@pytest.mark.parametrize("writes", LOST.values(), ids=LOST.keys())
def test_a_row_whose_line_is_lost_is_asked_again_alone(writes: Writes) -> None:
    provider = Provider(writes)
    with serving(provider) as server:
        report = run(server)
    assert (report.succeeded, report.unfinished) == (ROWS, 0)
    assert results() == ALL
    assert provider.billed == ROWS + 1


def test_lines_that_never_name_their_row_end_as_failures_and_block_nothing() -> None:
    Path("rows.jsonl").write_text('{"custom_id": "r0", "prompt": "say 0"}\n')
    provider = Provider(*[lambda lines: jsonl([{**lines[0], "custom_id": None}])] * 9)
    with serving(provider) as server:
        report = run(server)
        assert (report.failed, report.unfinished) == (1, 0)
        assert provider.billed == 3
        (failure,) = failures()
        assert failure["error"]["kind"] == "bad_reply"
        assert "no line for the row, and 1 line names no row" in failure["error"]["message"]
        # The output is free for whatever comes next.
        Path("rows.jsonl").write_text('{"custom_id": "r1", "prompt": "say 1"}\n')
        provider.writes = []
        assert run(server).succeeded == 1


@pytest.mark.parametrize("looks", [1, 4])
def test_a_batch_whose_results_are_not_visible_yet_is_looked_at_again(looks: int) -> None:
    def shows(batch: Line, seen: int) -> Line:
        return {**batch, "output_file_id": None} if seen <= looks else batch

    provider = Provider(shows=shows)
    with serving(provider) as server:
        assert run(server).succeeded == ROWS
    assert provider.billed == ROWS


def test_a_file_that_is_not_visible_or_not_whole_yet_is_fetched_again() -> None:
    provider = Provider()
    provider.hidden_downloads = 2

    def shows(batch: Line, seen: int) -> Line:
        whole = provider.files["results-0"]
        if seen == 1:
            provider.files["cut"] = whole[: len(whole) // 2]
            return {**batch, "output_file_id": "cut"}
        return batch

    provider.shows = shows
    with serving(provider) as server:
        assert run(server).succeeded == ROWS
    assert results() == ALL
    assert provider.billed == ROWS


@pytest.mark.parametrize("counts", [{"completed": ROWS}, {}])
@pytest.mark.parametrize("status", ["completed", "expired"])
def test_a_file_of_errors_that_does_not_exist_keeps_no_answers_back(
    status: str, counts: Line
) -> None:
    def shows(batch: Line, looks: int) -> Line:
        return {**batch, "status": status, "error_file_id": "none", "request_counts": counts}

    provider = Provider(shows=shows)
    with serving(provider) as server:
        report = run(server)
    assert (report.stopped, report.succeeded, provider.billed) == (None, ROWS, ROWS)


def test_results_that_never_come_are_asked_again_after_a_while() -> None:
    def shows(batch: Line, seen: int) -> Line:
        return {**batch, "output_file_id": None} if batch["id"] == "batch-0" else batch

    provider = Provider(shows=shows)
    with serving(provider) as server:
        assert run(server).succeeded == ROWS
    assert provider.looks["batch-0"] > 2


def write_rows_of_two_models() -> None:
    """Rows that go into two batches."""
    with Path("rows.jsonl").open("w") as file:
        for number in range(ROWS):
            row = {"custom_id": f"r{number}", "prompt": f"say {number}", "model": f"m{number % 2}"}
            file.write(json.dumps(row) + "\n")


def test_a_run_outlasts_an_outage_while_results_are_fetched() -> None:
    provider = Provider()
    # Longer than results may take to become visible, and that time begins after it.
    provider.outages = {"GET content": range(1, 16)}
    provider.hidden_downloads = 1
    with serving(provider) as server:
        assert run(server, max_retries=0).succeeded == ROWS
    assert provider.asked["GET content"] > 16
    assert results() == ALL
    assert provider.billed == ROWS


def test_a_run_outlasts_an_outage_while_batches_are_made_and_makes_none_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_module, "MOST_LOOK_S", 0.05)
    write_rows_of_two_models()
    provider = Provider()
    provider.outages = {"POST files": range(2, 4), "POST batches": range(2, 3)}
    with serving(provider) as server:
        assert run(server, max_retries=0).succeeded == ROWS
    assert provider.asked["POST files"] == 4
    assert provider.asked["POST batches"] == 2
    assert results() == ALL
    assert provider.billed == ROWS


@pytest.mark.parametrize(
    "outage", [{"GET content": range(1, 10**6)}, {"POST files": range(2, 10**6)}]
)
def test_an_outage_without_end_ends_the_run_and_the_next_one_continues(
    outage: dict[str, range], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "MOST_LOOK_S", 0.05)
    monkeypatch.setattr(batch_ledger, "MOST_SILENCE_S", 0.3)
    write_rows_of_two_models()
    provider = Provider()
    provider.outages = outage
    with serving(provider) as server:
        stopped = run(server, max_retries=0).stopped
        assert stopped is not None
        assert "503" in stopped.what
        provider.outages = {}
        assert run(server, max_retries=0).is_complete
    assert results() == ALL
    assert provider.billed == ROWS


class Crowded(Provider):
    """A Batch API that takes no second batch while the first one runs, nor for a while after it."""

    def __init__(self) -> None:
        super().__init__(shows=lambda batch, looks: running(batch, 0) if self._runs() else batch)
        self.refusals = 10

    def _runs(self) -> bool:
        return self.looks.get("batch-0", 0) < 20

    def _made(self, body: Line) -> Any:
        if not self.batches or not self.refusals:
            return super()._made(body)
        self.refusals -= not self._runs()
        return Answer(429, {"error": {"message": "1 batch is unfinished, the most allowed."}})


def test_a_provider_that_takes_no_more_batches_for_now_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_module, "MOST_LOOK_S", 0.05)
    monkeypatch.setattr(batch_ledger, "MOST_SILENCE_S", 0.3)
    write_rows_of_two_models()
    provider = Crowded()
    with serving(provider) as server:
        report = run(server, max_retries=0)
    assert (report.stopped, report.succeeded) == (None, ROWS)
    assert results() == ALL
    assert provider.billed == ROWS


class Choosy(Provider):
    """A Batch API that refuses all batches of one model."""

    def _made(self, body: Line) -> Any:
        if b'"m1"' in self.files[body["input_file_id"]]:
            return Answer(400, {"error": {"message": "no batches of this model"}})
        return super()._made(body)


@pytest.mark.parametrize("via", ["batch", "auto"])
def test_a_refused_batch_holds_up_no_other_and_auto_sends_its_rows_live(
    via: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "PROBE_ROWS", 1)
    write_rows_of_two_models()
    provider = Choosy()
    with serving(provider) as server:
        report = run(server, via=via, deadline_s=60 if via == "auto" else None)
    if via == "auto":
        assert (report.stopped, report.succeeded) == (None, ROWS)
        assert (provider.billed, len(provider.asked_live)) == (ROWS // 2 - 1, ROWS // 2 + 1)
        return
    assert report.stopped is not None
    assert "no batches of this model" in report.stopped.what
    assert "--via live" in (report.stopped.hint or "")
    assert (report.succeeded, report.unfinished) == (ROWS // 2, ROWS // 2)
    assert len(results()) == ROWS // 2


def test_a_provider_that_does_not_take_the_first_file_is_told_at_once() -> None:
    provider = Provider()
    provider.outages = {"POST files": range(1, 2)}
    with serving(provider) as server:
        report = run(server, max_retries=0)
    assert report.stopped is not None
    assert (report.unfinished, provider.billed) == (ROWS, 0)


def refusing(lines: dict[str, int]) -> Callable[[Line, int], Line]:
    """What shows these batches as failed, each for one line."""

    def shows(batch: Line, _: int) -> Line:
        if batch["id"] not in lines:
            return batch
        problem = {"code": "invalid", "message": "a bad line", "line": lines[batch["id"]]}
        return {**batch, "status": "failed", "output_file_id": None, "errors": {"data": [problem]}}

    return shows


def test_refused_lines_cost_the_other_rows_no_retry() -> None:
    provider = Provider(shows=refusing({"batch-0": 2, "batch-1": 1, "batch-2": 6}))
    with serving(provider) as server:
        report = run(server, max_retries=0)
    assert (report.succeeded, report.failed) == (ROWS - 3, 3)
    assert {line["custom_id"] for line in failures()} == {"r0", "r1", f"r{ROWS - 1}"}
    assert all("a bad line" in line["error"]["message"] for line in failures())
    lines = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert {line["attempts"] for line in lines} == {1}


def test_refused_lines_that_are_none_of_the_file_cost_a_retry() -> None:
    provider = Provider(shows=refusing({f"batch-{n}": 99 for n in range(9)}))
    with serving(provider) as server:
        report = run(server, max_retries=1)
    assert (report.failed, len(provider.batches)) == (ROWS, 2)


def test_odd_fields_of_a_batch_that_do_not_matter_do_not_matter() -> None:
    def shows(batch: Line, seen: int) -> Line:
        odd = {"errors": [], "request_counts": None, "created_at": "yesterday", "metadata": [1]}
        return {**batch, **odd}

    provider = Provider(shows=shows)
    with serving(provider) as server:
        assert run(server).succeeded == ROWS


@pytest.mark.parametrize("status", ["COMPLETED", "EXPIRED", "CANCELLED"])
def test_a_status_in_upper_case_is_the_same_status(status: str) -> None:
    def shows(batch: Line, looks: int) -> Line:
        return {**batch, "status": ("IN_PROGRESS", status, "completed")[min(looks, 3) - 1]}

    provider = Provider(shows=shows)
    with serving(provider) as server:
        assert run(server).succeeded == ROWS
    assert (provider.looks, provider.billed) == ({"batch-0": 2}, ROWS)


def test_an_error_beside_the_failed_response_that_it_repeats_is_that_response() -> None:
    error = {"message": "the prompt is too long", "code": "context_length_exceeded"}

    def writes(lines: list[Line]) -> bytes:
        lines[0]["response"] = {"status_code": 400, "body": {"error": error}}
        return jsonl([{**lines[0], "error": error}, *lines[1:]])

    provider = Provider(writes)
    with serving(provider) as server:
        report = run(server)
    assert (report.succeeded, report.failed, provider.billed) == (ROWS - 1, 1, ROWS)
    assert "too long" in failures()[0]["error"]["message"]


def test_a_row_with_an_error_instead_of_a_response_is_in_three_batches_at_most() -> None:
    def writes(lines: list[Line]) -> bytes:
        error = {"code": "inference_failed", "message": "400 Bad Request"}
        bad = {"custom_id": lines[0]["custom_id"], "response": None, "error": error}
        return jsonl([bad, *lines[1:]])

    provider = Provider(*[writes] * 9)
    with serving(provider) as server:
        report = run(server)
    assert (report.succeeded, report.failed, len(provider.batches)) == (ROWS - 1, 1, 3)
    assert "inference_failed: 400 Bad Request" in failures()[0]["error"]["message"]


@pytest.mark.parametrize("status", [400, 401])
def test_a_key_that_a_line_quotes_is_masked(status: int, capfd: pytest.CaptureFixture[str]) -> None:
    def writes(lines: list[Line]) -> bytes:
        error = {"error": {"message": "x" * 250 + f"bad key Bearer {KEY}"}}
        bad = {**lines[0], "response": {"status_code": status, "body": error}}
        return jsonl([bad, *lines[1:]])

    flags = ["--model", "m", "--via", "batch", "-o", "out.jsonl", "-q"]
    with serving(Provider(writes)) as server:
        argv = ["run", "rows.jsonl", "--base-url", server.base_url, *flags]
        with pytest.raises(SystemExit):
            main(argv)
    told = "".join(capfd.readouterr())
    files = "".join(path.read_text() for path in Path().glob("out.*jsonl"))
    assert "<key>" in told + files
    assert "sk-s" not in told + files


def test_a_key_that_a_refused_batch_quotes_is_masked() -> None:
    def shows(batch: Line, seen: int) -> Line:
        problem = {"code": "x", "message": f"no batches for {KEY}", "line": None}
        return {**batch, "status": "failed", "errors": {"data": [problem]}}

    with serving(Provider(shows=shows)) as server:
        report = run(server)
    assert report.stopped is not None
    assert "no batches for <key>" in report.stopped.what


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, {"message": "bad key"}), (429, {"message": "no", "code": "insufficient_quota"})],
)
def test_a_line_that_ends_the_run_does_not_end_every_run_after_it(status: int, error: Line) -> None:
    def writes(lines: list[Line]) -> bytes:
        bad = {**lines[0], "response": {"status_code": status, "body": {"error": error}}}
        return jsonl([bad, *lines[1:]])

    provider = Provider(writes)
    with serving(provider) as server:
        report = run(server)
        assert report.stopped is not None
        assert (report.succeeded, report.failed, report.unfinished) == (ROWS - 1, 0, 1)
        # Once that is mended, the same command continues.
        report = run(server)
    assert (report.stopped, report.succeeded) == (None, 1)
    assert results() == ALL
    assert provider.billed == ROWS + 1


def test_half_answers_and_miscounted_ones_are_failures_in_batches_too() -> None:
    def writes(lines: list[Line]) -> bytes:
        bodies = [
            chat(said("half", "network_error")),
            chat(said("half", error={"code": 502, "message": "died"})),
            {"error": {"message": "busy", "code": 503}},
            chat(said("a"), said("b")),
        ]
        for line, body in zip(lines, bodies, strict=False):
            line["response"]["body"] = body
        lines[4] |= {"error": {"code": "server_error", "message": "died"}}
        return jsonl(lines)

    with serving(Provider(writes)) as server:
        report = run(server, max_retries=0)
    assert (report.succeeded, report.failed) == (ROWS - 5, 5)
    kinds = sorted((line["custom_id"], line["error"]["kind"]) for line in failures())
    assert [kind for _, kind in kinds] == ["server_failed"] * 3 + ["bad_reply"] * 2


def test_a_batch_without_room_whose_rows_have_changed_frees_its_budget() -> None:
    def refused(batch: Line, seen: int) -> Answer:
        return Answer(401, {"error": {"message": "bad key"}})

    def full(batch: Line, seen: int) -> Line:
        if batch["id"] != "batch-0":
            return batch
        problem = {"code": "token_limit_exceeded", "message": "no room", "line": None}
        return {**batch, "status": "failed", "errors": {"data": [problem]}}

    # Room for one row's worst case, not for two.
    options: Line = {"params": {"max_tokens": 1000}, "budget_tokens": 1500}
    provider = Provider(shows=refused)  # type: ignore[arg-type]
    with serving(provider) as server:
        Path("rows.jsonl").write_text('{"custom_id": "r0", "prompt": "say 0"}\n')
        assert run(server, **options).unfinished == 1
        Path("rows.jsonl").write_text('{"custom_id": "r0", "prompt": "say 1"}\n')
        provider.shows = full
        report = run(server, **options)
    assert (report.stopped, report.succeeded, report.unfinished) == (None, 1, 0)
    assert results() == {"r0": "echo say 1"}


def test_a_changed_row_counts_once_if_its_new_batch_ends_first() -> None:
    def refused(batch: Line, seen: int) -> Answer:
        return Answer(401, {"error": {"message": "bad key"}})

    def late(batch: Line, seen: int) -> Line:
        is_first = batch["id"] == "batch-0"
        return {**batch, "status": "in_progress"} if is_first and seen < 9 else batch

    provider = Provider(shows=refused)  # type: ignore[arg-type]
    with serving(provider) as server:
        assert run(server).unfinished == ROWS
        changed = Path("rows.jsonl").read_text().replace("say 2", "say two")
        Path("rows.jsonl").write_text(changed)
        provider.shows = late
        report = run(server)
    assert (report.offered, report.succeeded, report.unfinished) == (ROWS, ROWS, 0)
    assert results() == ALL | {"r2": "echo say two"}


OLD: dict[str, Writes] = {
    "answered": jsonl,
    "failed": lambda lines: jsonl(
        [
            line
            if "say 2" not in line["response"]["body"]["choices"][0]["message"]["content"]
            else line | {"response": {"status_code": 400, "body": {"error": {"message": "bad"}}}}
            for line in lines
        ]
    ),
    "left": lambda lines: jsonl(lines[3:]),
}


@pytest.mark.parametrize("via", ["batch", "live"])
@pytest.mark.parametrize("writes", OLD.values(), ids=OLD.keys())
def test_a_changed_row_counts_once_if_its_former_batch_ends_first(
    via: str, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(batch: Line, seen: int) -> Answer:
        return Answer(401, {"error": {"message": "bad key"}})

    provider = Provider(writes, shows=refused)  # type: ignore[arg-type]
    more = "".join(json.dumps({"custom_id": f"n{n}", "prompt": f"ask {n}"}) + "\n" for n in (0, 1))
    with serving(provider) as server:
        assert run(server).unfinished == ROWS
        changed = Path("rows.jsonl").read_text().replace("say 2", "say two")
        Path("rows.jsonl").write_text(more + changed)
        # With batches of one row, the former batch ends before the changed row is read.
        monkeypatch.setattr(batch_plan, "MOST_ROWS", 1)
        provider.shows = lambda batch, seen: batch
        report = run(server, via=via)
    counts = (report.offered, report.succeeded, report.failed, report.unfinished, report.results)
    assert counts == (ROWS + 2, ROWS + 2, 0, 0, ROWS + 2)
    assert results() == ALL | {"r2": "echo say two", "n0": "echo ask 0", "n1": "echo ask 1"}
    assert not Path("out.failed.jsonl").exists()
    assert "say 2" not in provider.asked_live


def test_rows_that_a_batch_has_left_do_not_wait_for_the_end_of_a_file_that_grows() -> None:
    def refused(batch: Line, seen: int) -> Answer:
        return Answer(401, {"error": {"message": "bad key"}})

    provider = Provider(OLD["left"], shows=refused)  # type: ignore[arg-type]
    with serving(provider) as server:
        assert run(server).unfinished == ROWS
        provider.shows = lambda batch, seen: batch
        report = run(server, via="live", follow=True, deadline_s=3.0)
    assert (report.succeeded, report.unfinished) == (ROWS, 0)
    assert results() == ALL


def test_rows_that_a_batch_has_left_do_not_wait_for_an_iterable_and_count_apart_from_its_rows() -> (
    None
):
    def refused(batch: Line, seen: int) -> Answer:
        return Answer(401, {"error": {"message": "bad key"}})

    provider = Provider(OLD["left"], shows=refused)  # type: ignore[arg-type]
    left = ["say 0", "say 1", "say 2"]

    async def rows() -> AsyncIterator[Line]:
        await until(lambda: sorted(provider.asked_live) == left)
        yield {"custom_id": "r2", "prompt": "say two"}

    with serving(provider) as server:
        assert run(server).unfinished == ROWS
        provider.shows = lambda batch, seen: batch
        report = run(server, rows=rows(), via="live", deadline_s=5.0)
    assert provider.asked_live[3:] == ["say two"]
    # The row that has changed counts with its former content, and with that of the input.
    assert (report.offered, report.succeeded, report.unfinished) == (ROWS + 1, ROWS + 1, 0)
    assert results().keys() == ALL.keys()


def test_a_changed_row_that_fails_in_place_of_its_former_batch_has_one_failure() -> None:
    def refused(batch: Line, seen: int) -> Answer:
        return Answer(401, {"error": {"message": "bad key"}})

    provider = Provider(OLD["failed"], shows=refused)  # type: ignore[arg-type]
    provider.refused = {"say two"}
    with serving(provider) as server:
        assert run(server).unfinished == ROWS
        changed = Path("rows.jsonl").read_text().replace("say 2", "say two")
        Path("rows.jsonl").write_text(changed)
        provider.shows = lambda batch, seen: batch
        report = run(server, via="live")
    assert (report.offered, report.succeeded, report.failed) == (ROWS, ROWS - 1, 1)
    assert [line["input"]["prompt"] for line in failures()] == ["say two"]


def running(batch: Line, _: int) -> Line:
    """What shows a batch as one that is not over."""
    return {**batch, "status": "in_progress", "output_file_id": None}


class Ended(Provider):
    """A Batch API that refuses a cancel as OpenAI does once a batch has ended."""

    def _answer(self, request: Asked) -> Any:
        if request.path.endswith("/cancel"):
            text = "Cannot cancel a batch with status 'completed'."
            return Answer(409, {"error": {"message": text, "type": "invalid_request_error"}})
        return super()._answer(request)


def test_via_live_reads_a_batch_that_has_ended_meanwhile() -> None:
    provider = Ended(shows=running)
    with serving(provider) as server:
        assert run(server, deadline_s=0.5).unfinished == ROWS
        provider.shows = lambda batch, looks: batch
        report = run(server, via="live")
    assert (report.stopped, report.succeeded) == (None, ROWS)
    assert provider.asked["POST cancel"] == 1
    assert results() == ALL
    assert provider.asked_live == []


class Busy(Provider):
    """A Batch API that refuses the first cancel, for a reason that passes."""

    def _answer(self, request: Asked) -> Any:
        if request.path.endswith("/cancel"):
            if self.asked["POST cancel"] == 1:
                return Answer(409, {"error": {"message": "The batch is being validated."}})
            self.shows = lambda batch, looks: {**batch, "status": "cancelled", "output_file_id": ""}
        return super()._answer(request)


def test_a_cancel_that_is_refused_for_now_is_asked_for_again() -> None:
    provider = Busy(shows=running)
    with serving(provider) as server:
        assert run(server, deadline_s=0.5).unfinished == ROWS
        report = run(server, via="live", deadline_s=20)
    assert (report.stopped, report.succeeded) == (None, ROWS)
    assert results() == ALL


def test_via_live_outlasts_an_outage_while_it_cancels() -> None:
    provider = Provider(shows=running)
    # The batch is made, and no answer says so.
    provider.outages = {"POST batches": range(1, 2), "GET batches": range(1, 10**6)}
    with serving(provider) as server:
        assert run(server, max_retries=0, deadline_s=0.5).unfinished == ROWS
        provider.asked.clear()
        provider.outages = {"GET batches": range(1, 4), "POST cancel": range(1, 4)}
        provider.shows = lambda batch, looks: batch
        report = run(server, via="live", max_retries=0)
    assert (report.stopped, report.succeeded) == (None, ROWS)
    assert provider.asked["POST cancel"] == 4
    assert results() == ALL
    assert provider.billed == ROWS


class Stalled(Provider):
    """A Batch API that answers no request of one kind until its batch is cancelled."""

    def __init__(self, stalls: str) -> None:
        super().__init__()
        self.stalls = stalls
        self.cancelled = threading.Event()

    def _answer(self, request: Asked) -> Any:
        if request.path.endswith("/cancel"):
            self.cancelled.set()
        elif self.stalls in f"{request.method} {request.path}":
            self.cancelled.wait(20)
        return super()._answer(request)


@pytest.mark.parametrize(
    ("stalls", "cancelled"), [("GET /v1/batches/", 1), ("POST /v1/files", 0), ("/content", 1)]
)
def test_auto_gives_up_what_stalls_when_the_time_for_the_other_rows_begins(
    stalls: str, cancelled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "PROBE_ROWS", 2)
    provider = Stalled(stalls)
    with serving(provider) as server:
        report = run(server, via="auto", deadline_s=6)
        provider.cancelled.set()
    assert (report.stopped, report.succeeded) == (None, ROWS)
    assert provider.asked["POST cancel"] == cancelled
    assert results() == ALL


def stuck(batch: Line, _: int) -> Line:
    """What shows the first batch as one that is being cancelled, and the others as cancelled."""
    status = "cancelling" if batch["id"] == "batch-0" else "cancelled"
    return {**batch, "status": status, "output_file_id": None}


class Lingering(Provider):
    """A Batch API whose batches run until they are cancelled, the first even longer."""

    def _answer(self, request: Asked) -> Any:
        if request.path.endswith("/cancel"):
            self.shows = stuck
        if request.path.endswith("/completions"):
            time.sleep(0.8)
        return super()._answer(request)


def test_a_batch_that_does_not_end_keeps_no_other_rows_from_being_sent_live_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_module, "PROBE_ROWS", 1)
    write_rows_of_two_models()
    provider = Lingering(shows=running)
    with serving(provider) as server:
        report = run(server, via="auto", deadline_s=6)
        assert (report.succeeded, report.unfinished) == (ROWS // 2, ROWS // 2)
        provider.shows = lambda batch, looks: batch
        assert run(server).succeeded == ROWS // 2
    assert len(provider.asked_live) == ROWS // 2
    assert results() == ALL


def test_batches_at_another_provider_are_continued_there() -> None:
    before, after = Provider(), Provider(shows=running)
    with serving(before) as server, serving(after) as other:
        assert run(server).succeeded == ROWS
        with Path("rows.jsonl").open("a") as file:
            file.write('{"custom_id": "new", "prompt": "say more"}\n')
        assert run(other, deadline_s=0.5).unfinished == 1
        with pytest.raises(redline.ConfigError, match="is still at the provider") as caught:
            run(server)
        assert other.base_url in caught.value.what
        after.shows = lambda batch, looks: batch
        assert run(other).succeeded == 1
    assert results() == ALL | {"new": "echo say more"}
    assert (before.billed, after.billed) == (ROWS, 1)


def test_auto_learns_the_pace_of_another_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "PROBE_ROWS", 2)
    before, after = Provider(), Provider()
    with serving(before) as server, serving(after) as other:
        assert run(server, via="auto", deadline_s=3600).succeeded == ROWS
        with Path("rows.jsonl").open("a") as file:
            for number in range(3):
                file.write(f'{{"custom_id": "n{number}", "prompt": "ask {number}"}}\n')
        assert run(other, via="auto", deadline_s=3600).succeeded == 3
    assert sorted(after.asked_live) == ["ask 0", "ask 1"]


def test_rows_of_many_models_in_turn_make_one_batch_for_each() -> None:
    with Path("rows.jsonl").open("w") as file:
        for number in range(60):
            row = {"custom_id": f"r{number}", "prompt": "say", "model": f"m{number % 20}"}
            file.write(json.dumps(row) + "\n")
    provider = Provider()
    with serving(provider) as server:
        assert run(server).succeeded == 60
    assert len(provider.batches) == 20


def with_status(status: int) -> Writes:
    """Writes lines whose answers have this status and no content."""

    def writes(lines: list[Line]) -> bytes:
        return jsonl([{**line, "response": {"status_code": status, "body": {}}} for line in lines])

    return writes


def unexecuted(line: Line) -> Line:
    return {**line, "response": None, "error": {"code": "batch_expired", "message": "too late"}}


# What a batch has for its row, and whether the provider may have been paid for that.
MAY_BE_BILLED: dict[str, tuple[Writes, bool]] = {
    "unreadable": (with_status(200), True),
    "no line": (lambda lines: b"{}\n", True),
    "a gateway that timed out": (with_status(504), True),
    "an error": (with_status(400), False),
    "not executed": (lambda lines: jsonl([unexecuted(line) for line in lines]), False),
}


@pytest.mark.parametrize(("writes", "is_billed"), MAY_BE_BILLED.values(), ids=MAY_BE_BILLED.keys())
def test_a_budget_counts_what_may_have_been_billed(writes: Writes, is_billed: bool) -> None:
    Path("rows.jsonl").write_text('{"custom_id": "r0", "prompt": "say 0"}\n')
    provider = Provider(writes)
    with serving(provider) as server:
        options: Line = {"budget_tokens": 100_000, "params": {"max_tokens": 1000}}
        report = run(server, max_retries=0, **options)
    assert (report.failed, provider.billed) == (1, 1)
    assert report.spent_tokens is not None
    assert (report.spent_tokens >= 1000) == is_billed
    assert report.spent_tokens < 2000


def test_rows_of_a_batch_that_was_cancelled_elsewhere_are_no_failures() -> None:
    def writes(lines: list[Line]) -> bytes:
        error = {"code": "batch_cancelled", "message": "This request was not executed."}
        late = [{**line, "response": None, "error": error} for line in lines[2:-1]]
        # The last row has no line at all.
        return jsonl(lines[:2] + late)

    def shows(batch: Line, _: int) -> Line:
        return {**batch, "status": "cancelled"} if batch["id"] == "batch-0" else batch

    provider = Provider(writes, shows=shows)
    with serving(provider) as server:
        report = run(server, max_retries=0)
        assert "was cancelled at the provider" in str(report.stopped)
        assert (report.succeeded, report.failed, report.unfinished) == (2, 0, ROWS - 2)
        assert run(server, max_retries=0).succeeded == ROWS - 2
    assert results() == ALL


def test_an_input_that_fails_ends_the_run_once_the_batches_of_the_rows_before_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_plan, "MOST_ROWS", 3)

    def rows() -> Iterator[Line]:
        for number in range(ROWS):
            yield {"custom_id": f"r{number}", "prompt": f"say {number}"}
        raise OSError("the queue is gone")

    provider = Provider(shows=running)
    with serving(provider) as server:
        # All rows are sent, also those of a part that was not whole.
        assert run(server, rows=rows(), deadline_s=1).unfinished == ROWS
        assert provider.billed == ROWS
        provider.shows = lambda batch, looks: batch
        report = run(server, rows=rows())
    assert "the queue is gone" in str(report.stopped)
    assert (report.succeeded, report.unfinished) == (ROWS, 0)
    assert results() == ALL
    assert provider.billed == ROWS


@pytest.mark.parametrize("then", [{"via": "batch"}, {"via": "live"}, {"retry_failed": True}])
def test_the_answers_of_rows_to_retry_are_saved_however_the_output_is_continued(then: Line) -> None:
    """`--retry-failed` names the rows of the run that sends them; their answers are paid for."""

    def writes(lines: list[Line]) -> bytes:
        refused = {"status_code": 400, "body": {"error": {"message": "no"}}}
        return jsonl([{**line, "response": refused} for line in lines[:3]] + lines[3:])

    provider = Ended(writes)
    with serving(provider) as server:
        assert run(server).failed == 3
        provider.shows = running
        assert run(server, retry_failed=True, deadline_s=0.5).unfinished == 3
        provider.shows = lambda batch, looks: batch
        report = run(server, **then)
    assert (report.offered, report.succeeded, report.skipped, report.untried) == (3, 3, ROWS - 3, 0)
    assert results() == ALL
    assert not Path("out.failed.jsonl").exists()
    assert provider.billed == ROWS + 3
    assert not provider.asked_live


class Slow(Provider):
    """A Batch API behind a proxy that gives up the first creation of a batch before it is done."""

    late: threading.Timer

    def _made(self, body: Line) -> Line:
        if self.asked["POST batches"] > 1:
            return super()._made(body)
        self.late = threading.Timer(0.2, super()._made, [body])
        self.late.start()
        return {}

    def _answer(self, request: Asked) -> Any:
        answer = super()._answer(request)
        return answer if answer != {} else Answer(504)


def test_a_batch_that_appears_after_its_creation_seemed_to_fail_is_not_made_again() -> None:
    provider = Slow()
    with serving(provider) as server:
        assert run(server).succeeded == ROWS
    provider.late.join()
    assert len(provider.batches) == 1
    assert provider.billed == ROWS


class Unpaid(Provider):
    """A Batch API that makes no batch of the first file, and does not know it later."""

    def _answer(self, request: Asked) -> Any:
        if request.path.endswith("/batches") and self.asked["POST batches"] == 1:
            self.files.clear()
            error = {"code": "insufficient_quota", "message": "no credit"}
            return Answer(429, {"error": error})
        body = request.body
        if isinstance(body, dict) and body["input_file_id"] not in self.files:
            return Answer(400, {"error": {"message": "No such File object"}})
        return super()._answer(request)


def test_a_batch_may_be_unknown_for_a_while() -> None:
    def shows(batch: Line, looks: int) -> Any:
        if looks in (1, 2, 4):
            return Answer(404, {"error": {"message": "no such batch"}})
        return {**batch, "status": "in_progress"} if looks == 3 else batch

    provider = Provider(shows=shows)
    with serving(provider) as server:
        report = run(server)
    assert (report.stopped, report.succeeded, provider.billed) == (None, ROWS, ROWS)


class Processing(Provider):
    """Like Azure, it creates a batch only from a file that it has processed: in three looks."""

    def _answer(self, request: Asked) -> Any:
        method, name = request.method, request.path.rpartition("/")[2]
        is_ready = self.asked[f"GET {name}" if method == "GET" else "GET file-0"] > 2
        if method == "POST" and name == "batches" and not is_ready:
            return Answer(400, {"error": {"message": "the file is not processed"}})
        answer = super()._answer(request)
        if name in ("files", "file-0") and method != "DELETE":
            return {**answer, "id": "file-0", "status": "processed" if is_ready else "pending"}
        return answer


def test_a_batch_is_made_once_its_file_is_processed() -> None:
    with serving(Processing()) as server:
        report = run(server)
    assert (report.stopped, report.succeeded) == (None, ROWS)


def test_a_file_that_the_provider_has_deleted_is_uploaded_again() -> None:
    provider = Unpaid()
    with serving(provider) as server:
        assert "no credit" in str(run(server).stopped)
        assert run(server).succeeded == ROWS
    assert provider.billed == ROWS
    # No batch was made that has to be looked for.
    assert provider.asked["GET batches"] == 0


class Tidied(Provider):
    """A Batch API whose own file of requests was deleted by hand."""

    def _answer(self, request: Asked) -> Any:
        if request.method == "DELETE" and request.path.endswith("/file-0"):
            return Answer(404, {"error": {"message": "No such File object"}})
        return super()._answer(request)


def test_files_are_deleted_also_if_a_line_ends_the_run_or_one_is_gone() -> None:
    def writes(lines: list[Line]) -> bytes:
        refused = {"status_code": 401, "body": {"error": {"message": "no such key"}}}
        return jsonl([{**lines[0], "response": refused}, *lines[1:]])

    provider = Tidied(writes)
    with serving(provider) as server:
        assert "refused the key" in str(run(server).stopped)
    assert provider.asked["DELETE results-0"] == 1
