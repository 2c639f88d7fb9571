"""Accesses object stores such as S3: URLs, reads, uploads in parts, and errors."""

from redline.store.errors import Asking, StoreError, changed_error, store_error
from redline.store.store import Found, ObjectStore, S3Store, store_of
from redline.store.url import ObjectUrl, OpenedObject, local_path, url_of
