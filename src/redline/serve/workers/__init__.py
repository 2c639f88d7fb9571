"""Runs several processes that serve one address and share its limits."""

from redline.serve.workers.elsewhere import Elsewhere
from redline.serve.workers.fellows import Fellows, Published
from redline.serve.workers.summing import joined_classes, together
from redline.serve.workers.supervisor import supervise
from redline.serve.workers.worker import Worker, slots_of, this_worker
