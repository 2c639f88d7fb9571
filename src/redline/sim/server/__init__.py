"""The simulated provider as a running HTTP server."""

from redline.sim.server.server import Sim, serve_forever

__all__ = ["Sim"]
