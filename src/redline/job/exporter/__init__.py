"""Serves the metrics page of a job. Runs without the page do not import this package."""

from redline.job.exporter.metrics_page import MetricsPage
from redline.job.exporter.metrics_server import MetricsServer
