"""The metrics page of a job; separate, so that runs without the page do not import it."""

from redline.job.exporter.metrics_page import MetricsPage
from redline.job.exporter.metrics_server import MetricsServer
