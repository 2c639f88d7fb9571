"""Carries a command from its settings to its exit status: configuration, display and errors."""

from redline.cli.session.configuration import ENDPOINT_KEYS, RUN_KEYS, Configuration, load
from redline.cli.session.destination import new_file
from redline.cli.session.folding import aligned, folded, screen_width
from redline.cli.session.output import (
    Notes,
    forget_stdout,
    hold_standard_streams,
    say,
    say_json,
    say_line,
    say_lines,
    tell,
    tell_line,
)
from redline.cli.session.present import (
    error_text,
    plan_text,
    summary_line,
    summary_text,
    without_secret,
)
from redline.cli.session.resolve import resolve_endpoints, resolve_run
from redline.cli.session.session import LOGS, Session
from redline.cli.session.status_line import StatusLine
