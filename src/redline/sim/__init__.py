"""A simulated LLM provider: a real HTTP server with limits, latency and faults.

The server itself is redline.sim.server.Sim: its imports take 0.2 s, which the command line does not
pay for the names here.
"""

from redline.sim.faults import Faults, parse_faults
from redline.sim.latency import Constant, Latency, Lognormal, Uniform, parse_latency
from redline.sim.settings import SimSettings

__all__ = [
    "Constant",
    "Faults",
    "Latency",
    "Lognormal",
    "SimSettings",
    "Uniform",
    "parse_faults",
    "parse_latency",
]
