"""A local engine behind the gateway's HTTP front; a fleet is in `serve.fleet`."""

from redline.serve.local import LocalEngine, Serving, serve_engine, serving
