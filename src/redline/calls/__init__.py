"""Calls endpoints: HTTP, retry, token estimates, prices and the answer cache."""

from redline.calls.batching import BatchBounds, BatchFigures, DynamicBatcher
from redline.calls.cache import Cache
from redline.calls.client import Client, FunctionBackend, Retry, RetryPolicy
from redline.calls.http import HttpBackend, Shared, Stores, refuse_partial
from redline.calls.tokens import TokenEstimator
from redline.calls.wire import Endpoint, Timeouts, check_path, is_http_url
from redline.limits import Cost
from redline.waist import (
    Attempt,
    Backend,
    Call,
    Chunk,
    Health,
    Load,
    Outcome,
    Outlet,
    Reply,
    Request,
    Sink,
    failed,
)
