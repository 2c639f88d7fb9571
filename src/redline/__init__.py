"""redline runs very many LLM calls as fast as their limits allow, and loses none of them."""

from redline import _start  # noqa: F401, isort: skip, before all slow imports
from redline._version import __version__
from redline.calls import (
    BatchBounds,
    BatchFigures,
    Cache,
    Call,
    Chunk,
    Client,
    DynamicBatcher,
    Endpoint,
    Outcome,
    Reply,
    Request,
    RetryPolicy,
    Timeouts,
)
from redline.engine import EngineSettings
from redline.errors import (
    ConfigError,
    RedlineError,
)
from redline.job import Report, arun, run, stream
from redline.limits import Cost, Limiter, Limits, Rate, SyncLimiter
from redline.measure import ThroughputMetrics
from redline.route import EndpointPool as Pool
from redline.serve import LocalEngine

__all__ = [
    "BatchBounds",
    "BatchFigures",
    "Cache",
    "Call",
    "Chunk",
    "Client",
    "ConfigError",
    "Cost",
    "DynamicBatcher",
    "Endpoint",
    "EngineSettings",
    "Limiter",
    "Limits",
    "LocalEngine",
    "Outcome",
    "Pool",
    "Rate",
    "RedlineError",
    "Reply",
    "Report",
    "Request",
    "RetryPolicy",
    "SyncLimiter",
    "ThroughputMetrics",
    "Timeouts",
    "__version__",
    "arun",
    "run",
    "stream",
]
