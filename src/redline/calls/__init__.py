"""Requests, outcomes, and the backends that turn one into the other."""

from redline.calls.backend import Backend, Call, Chunk, Request, Sink
from redline.calls.cache_settings import Cache
from redline.calls.client import Client
from redline.calls.endpoint import Endpoint, Timeouts
from redline.calls.function import FunctionBackend
from redline.calls.http import HttpBackend
from redline.calls.outcome import Outcome, Reply, failed
from redline.calls.retry import Retry, RetryPolicy
from redline.calls.steering import Stores
from redline.calls.stream import refuse_partial
from redline.calls.tokens import TokenEstimator
from redline.limits import Cost

__all__ = [
    "Backend",
    "Cache",
    "Call",
    "Chunk",
    "Client",
    "Cost",
    "Endpoint",
    "FunctionBackend",
    "HttpBackend",
    "Outcome",
    "Reply",
    "Request",
    "Retry",
    "RetryPolicy",
    "Sink",
    "Stores",
    "Timeouts",
    "TokenEstimator",
    "failed",
    "refuse_partial",
]
