"""What holds a job back, from the windows of its timeline; plain functions, without a clock."""

from redline.observe.binding import bindings, current
from redline.observe.causes import Binding, Cause
from redline.observe.shares import Share, Summary, stretches, summary
