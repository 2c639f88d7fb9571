"""Serves a user's Python function as a backend with the OpenAI API."""

from redline.serve.functions.backend import FunctionSettings, ServedFunction, function_backend
