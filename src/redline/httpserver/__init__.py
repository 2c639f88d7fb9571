"""Serves HTTP/1.1 for all of redline's servers: one handler, and bounds on all sizes and waits."""

from redline.httpserver.bounds import HttpBounds
from redline.httpserver.exchange import BodyError, ClientGoneError, Exchange, State
from redline.httpserver.forms import FormPart, OnFile, read_form
from redline.httpserver.heads import JSON, PROMETHEUS, TEXT, header_lines
from redline.httpserver.server import (
    Address,
    HttpServer,
    cannot_listen,
    check_address,
    check_host,
    stop_accepting,
)
