"""Runs jobs, from their settings to their reports: builds, runs, resumes and verifies them."""

from redline.job.api import arun, new_event_loop, run, run_job, stream
from redline.job.execution import execute
from redline.job.forecast import Plan, plan
from redline.job.interrupts import GivenUp, Interrupts
from redline.job.parts import Parts
from redline.job.show import Report
