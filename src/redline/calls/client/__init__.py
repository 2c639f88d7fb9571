"""Provides `Client`, retries, user functions as backends, and the Batch API."""

from redline.calls.client.batch_api import BatchApi
from redline.calls.client.bounded import Bounded
from redline.calls.client.client import Client
from redline.calls.client.function import FunctionBackend, check_timeout, function_limiter, label_of
from redline.calls.client.retry import Retry, RetryBudget, RetryPolicy
from redline.calls.client.user_errors import call_error_of
