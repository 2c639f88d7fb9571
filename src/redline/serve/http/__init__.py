"""Any backend as an HTTP server with the OpenAI API."""

from redline.serve.http.front import Front
from redline.serve.http.refusals import Refusal
from redline.serve.http.replies import body_of, events_of
from redline.serve.http.requests import Asked, Bounds, read_call
