"""Runs a job's rows live: reads rows ahead, renders requests, sends them, and counts outcomes."""

from redline.job.work.backpressure import Backpressure
from redline.job.work.bill import Bill, Spent
from redline.job.work.endpoints import Endpoints
from redline.job.work.feed import Feed, Picked, Supply
from redline.job.work.holding import Moment, holder_of
from redline.job.work.runner import (
    GRACE_S,
    OnFailure,
    OnResult,
    Results,
    Runner,
)
from redline.job.work.sampler import Sampler
from redline.job.work.selection import Selection, fate
from redline.job.work.stopping import (
    HOPELESS_ROWS,
    LEAST_ROWS,
    WINDOW_ROWS,
    Failures,
    longest_wait,
)
from redline.job.work.supplied import Acknowledge, SuppliedBackend, SuppliedResults
from redline.job.work.tally import BatchUse, EndpointUse, Outages, Tally
from redline.job.work.template import PARAMETERS, Renderer, parse_output_path, renderer_of
