"""Reads rows from JSONL, CSV, Parquet, iterables, followed files, object stores and streams."""

from redline.sources.blocks import CorruptInput, FileBlocks
from redline.sources.iterable import AsyncRows
from redline.sources.jsonl import LongLine, split_lines
from redline.sources.object import ObjectReader
from redline.sources.open import first_rows, open_source, opened, opened_source, row_counts
from redline.sources.parquet import ArrowRows
from redline.sources.repeated import sampled
from redline.sources.row import (
    MAX_ROW_BYTES,
    Row,
    Rows,
    Source,
    custom_id,
    plain_form,
    sort_sets,
)
from redline.sources.stream_url import StreamUrl, message_key, stream_of
from redline.sources.text import ByteStream, extra
