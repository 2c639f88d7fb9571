"""Tagging by a schema: structured answers, validation, tables and gold labels."""

from redline.tasks.tag.columns import Gold, first_row, gold_of, prompt_of
from redline.tasks.tag.gold import Agreement, agreement
from redline.tasks.tag.schema import Schema, as_json_schema, load
from redline.tasks.tag.structured import FORMATS, Structured, strict_form
from redline.tasks.tag.table import SUFFIXES, check_path, write_table
from redline.tasks.tag.tagging import Tagging
from redline.tasks.tag.tags import review
