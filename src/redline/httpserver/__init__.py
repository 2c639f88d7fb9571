"""The socket of an HTTP server, shared by `sim` and `serve`."""

from redline.httpserver.listening import HttpServer
