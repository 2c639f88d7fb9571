"""Reads and writes the errors of endpoints, and judges what a status and an error object mean."""

from redline.apis.errors.error_object import error_body, read_error
from redline.apis.errors.provider_errors import lacks_model
from redline.apis.errors.status import judge
