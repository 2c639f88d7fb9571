"""Serves any backend over HTTP with the OpenAI API and Anthropic's Messages API."""

from redline.serve.http.door import Door, model_entry
from redline.serve.http.event_stream import STREAM_HEADERS
from redline.serve.http.front import Front
from redline.serve.http.held_bytes import HeldBytes
from redline.serve.http.messages import count_tokens
from redline.serve.http.refusals import Refusal, busy, come_back, no_model, shortened
from redline.serve.http.relay import Relay, pass_on, status_of
from redline.serve.http.replies import body_of, events_of
from redline.serve.http.requests import (
    CALLS,
    Asked,
    Bounds,
    check_fields,
    malformed,
    not_json,
    other_choice,
    read_call,
    read_of,
)
from redline.serve.http.routes import Answer, Route, Routes, wrong_method
