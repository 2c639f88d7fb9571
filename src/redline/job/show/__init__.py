"""Displays a job: its progress, notices, row counts and report."""

from redline.job.show import notices
from redline.job.show.layout import screen, text_of
from redline.job.show.notebook import NotebookProgress, is_notebook
from redline.job.show.notices import TELEMETRY, failing, finishing, outage_now, outages_ended
from redline.job.show.progress import JsonProgress, PlainProgress, line_of
from redline.job.show.report import Report
from redline.job.show.row_count import InputCounts, RowCount
from redline.job.show.snapshot import Bound, Meter, Snapshot, usd_text
from redline.job.show.terminal import TerminalProgress, can_redraw, is_terminal, screen_size
from redline.job.show.view import Display, View
