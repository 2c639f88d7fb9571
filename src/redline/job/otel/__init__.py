"""Sends a job's data to OpenTelemetry; separate, so that runs without it import none of this."""

from redline.job.otel.telemetry import Telemetry, open_telemetry
