"""A simulated LLM provider: a real HTTP server with limits, latency and faults."""

from redline.sim.faults import Faults, parse_faults
from redline.sim.foreground import serve_forever
from redline.sim.latency import Constant, Latency, Lognormal, Uniform, parse_latency
from redline.sim.server import Sim
from redline.sim.settings import SimSettings

__all__ = [
    "Constant",
    "Faults",
    "Latency",
    "Lognormal",
    "Sim",
    "SimSettings",
    "Uniform",
    "parse_faults",
    "parse_latency",
    "serve_forever",
]
