"""Finds limits that the server does not state, by probing: a request rate and a concurrency."""

from redline.limits.discover.bounds import Bucket, Evidence, likeliest, named
from redline.limits.discover.concurrency import AdaptiveConcurrency
from redline.limits.discover.found_rates import FoundRates
from redline.limits.discover.search import RateSearch
from redline.limits.discover.tracking import Hold, Word, plain_above, scaled
