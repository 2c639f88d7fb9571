"""Sends a job's data to OpenTelemetry; runs without OpenTelemetry import nothing from here."""

from redline.job.otel.telemetry import Telemetry, open_telemetry
