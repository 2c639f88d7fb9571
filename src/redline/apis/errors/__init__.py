"""Errors as endpoints report them: the error object, and what a status and it mean together."""

from redline.apis.errors.error_object import error_body, read_error
from redline.apis.errors.status import judge
