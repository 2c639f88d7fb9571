"""The gateway's HTTP front, and a local engine behind it."""

from redline.serve.local import LocalEngine, Serving, serve_engine, serving
