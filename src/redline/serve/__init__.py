"""The HTTP front: any backend, published with the OpenAI API; and a local engine behind it."""

from redline.serve.local import LocalEngine

__all__ = ["LocalEngine"]
