"""Serves a local engine over HTTP; `serve.gateway` runs a gateway, and `serve.fleet` a fleet."""

from redline.serve.local import LocalEngine, Serving, serve_engine, serving
