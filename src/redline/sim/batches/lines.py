"""Reads the lines of a batch from its file, and writes their results."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import msgspec

from redline.apis import (
    MOST_LINES,
    LineChecker,
    Problem,
    answer_object,
    error_body,
    result_object,
)
from redline.sim.answers import ENDPOINTS, Answers, BadCall
from redline.sim.faults import Faults
from redline.sim.settings import SimSettings

_MOST_ERRORS = 20


class BatchLine(msgspec.Struct, gc=False):
    """One request of a batch. latency_s: from the batch's creation; inf for a line that stalls."""

    custom_id: str
    body: bytes
    latency_s: float
    fault: str | None


class _Named(msgspec.Struct):
    model: str = ""


_NAMED = msgspec.json.Decoder(_Named)


class LineReader:
    """Reads the lines of batches, and draws a latency and a fault for each line."""

    def __init__(self, settings: SimSettings) -> None:
        self._settings = settings
        self.faults = settings.faults
        self._rng = Random(f"{settings.seed} batch")

    def disturb(self, faults: Faults) -> None:
        """Injects these faults from now on."""
        self.faults = faults

    def read(self, data: bytes, endpoint: str) -> tuple[list[BatchLine], list[Problem]]:
        """Returns the lines of a file and the file's problems; no lines if there are problems."""
        lines: list[BatchLine] = []
        problems: list[Problem] = []
        checker = LineChecker(endpoint)
        models: set[str] = set()
        for number, raw in enumerate(data.splitlines(), 1):
            found = self._line(raw, number, checker, models)
            if isinstance(found, BatchLine):
                lines.append(found)
            elif len(problems) < _MOST_ERRORS:
                problems.append(found)
        if len(lines) > MOST_LINES:
            text = f"The file has more than {MOST_LINES} requests."
            problems.append(Problem("too_many_requests", text))
        return ([] if problems else lines), problems

    def _line(
        self, raw: bytes, number: int, checker: LineChecker, models: set[str]
    ) -> BatchLine | Problem:
        """Returns the line, or its problem."""
        asked = checker.read(raw, number)
        if isinstance(asked, Problem):
            return asked
        try:
            model = _NAMED.decode(asked.body).model
        except msgspec.ValidationError:
            model = ""
        if not model:
            text = "Missing required parameter: 'body.model'."
            return Problem("missing_required_parameter", text, number, "body.model")
        models.add(model)
        if len(models) > 1:
            text = f"The model '{model}' is not the model of the other requests."
            return Problem("mismatched_model", text, number, "body.model")
        fault = self.faults.draw(self._rng)
        latency_s = self._settings.batch_latency.draw_s(self._rng)
        # The decoder returns a view, which would keep the whole file in memory.
        body = bytes(asked.body)
        return BatchLine(asked.custom_id, body, math.inf if fault == "stall" else latency_s, fault)


def answered(
    line: BatchLine, endpoint: str, answers: Answers, number: int, created_s: int
) -> tuple[int, bytes, tuple[int, int]]:
    """Returns the HTTP status, the result's JSON line and the tokens (in, out) of an answered line.

    number: the number of the request, counted over all batches. created_s: Unix time.
    """
    tokens = (0, 0)
    if line.fault is not None:
        status = int(line.fault) if line.fault.isdecimal() else 500
        body = error_body("The request failed (injected fault).", "server_error")
    else:
        try:
            draft = ENDPOINTS[endpoint](line.body, answers)
            status, body = 200, draft.whole(number, created_s)
            tokens = (draft.prompt_tokens, draft.completion_tokens)
        except BadCall as error:
            status = error.status
            body = error_body(error.message, "invalid_request_error", code=error.code)
    response = answer_object(status, f"req-sim-b{number}", body)
    return status, _result(line, number, response, None), tokens


def unanswered(line: BatchLine, number: int, code: str, message: str) -> bytes:
    """Returns the JSON line of the result of a line that had no answer when its batch ended."""
    return _result(line, number, None, {"code": code, "message": message})


def _result(line: BatchLine, number: int, response: Any, error: Any) -> bytes:
    shown = result_object(f"batch_req-sim{number}", line.custom_id, response, error)
    return msgspec.json.encode(shown) + b"\n"
