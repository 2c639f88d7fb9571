"""Simulates an LLM provider: a real HTTP server with limits, latency and faults.

The server itself is `redline.sim.server.Sim`. Importing it takes 0.2 s, so this module does not
import it, to keep the command line fast.
"""

from redline.sim.admission import (
    Admission,
    Charge,
    FixedWindow,
    MovingWindow,
    Reading,
    SlidingCounter,
    TokenBucket,
    Window,
)
from redline.sim.faults import KINDS, Faults, parse_faults
from redline.sim.headers import duration, limit_headers, retry_details, retry_headers
from redline.sim.latency import Constant, Latency, Lognormal, Uniform, parse_latency
from redline.sim.settings import (
    ALGORITHMS,
    CHARGES,
    HEADER_STYLES,
    MAX_WINDOW_S,
    SimSettings,
)
from redline.sim.slots import Slots
from redline.sim.stats import CLASSES, Stats, Ticket

__all__ = [
    "Constant",
    "Faults",
    "Lognormal",
    "SimSettings",
    "Uniform",
    "parse_faults",
    "parse_latency",
]
