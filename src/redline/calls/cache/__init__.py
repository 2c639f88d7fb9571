"""Caches answers: keys, SQLite files, and single flight for identical requests."""

from redline.calls.cache.backend import Cached
from redline.calls.cache.file import Database
from redline.calls.cache.key import identity, is_determined, key_of, only_asks
from redline.calls.cache.store import AnswerStore, Cache
