"""A run: source -> workers -> backend -> journal; resume, progress and report."""

from redline.run.api import arun, run, run_job, stream
from redline.run.report import Report

__all__ = ["Report", "arun", "run", "run_job", "stream"]
