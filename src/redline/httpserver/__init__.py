"""The HTTP/1.1 server of `sim` and `serve`: one handler, a bound on everything, no framework."""

from redline.httpserver.bounds import HttpBounds
from redline.httpserver.exchange import BodyError, ClientGoneError, Exchange, State
from redline.httpserver.forms import FormPart, OnFile, read_form
from redline.httpserver.heads import JSON, PROMETHEUS, TEXT, header_lines
from redline.httpserver.server import Address, HttpServer, cannot_listen, check_host, stop_accepting
