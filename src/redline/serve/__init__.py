"""Serves a local engine through the gateway's HTTP front; `serve.fleet` serves a fleet."""

from redline.serve.local import LocalEngine, Serving, serve_engine, serving
