"""Answers found in a model's text: numbers, choice letters and JSON."""

from redline.tasks.answers.choice import final_choice
from redline.tasks.answers.json import find_json
from redline.tasks.answers.number import final_number, gold_number, strict_number
from redline.tasks.answers.numeral import Number, is_same, read_number
from redline.tasks.answers.reasoning import names_reasoning, spoken
