"""Answers found in a model's text: numbers, choice letters and JSON."""

from redline.tasks.answers.choices import final_choice
from redline.tasks.answers.extract import Form, Found, final_number, gold_number, strict_number
from redline.tasks.answers.json_in_text import Kind, find_json
from redline.tasks.answers.numerals import Number, is_same, read_number
from redline.tasks.answers.sections import spoken
