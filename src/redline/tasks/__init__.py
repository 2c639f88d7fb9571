"""Jobs on top of a run: what is found in answers, so that they can be scored and validated."""

from redline.tasks.choices import final_choice
from redline.tasks.extract import Form, Found, final_number, gold_number, strict_number
from redline.tasks.json_in_text import Kind, find_json
from redline.tasks.numbers import Number, is_same

__all__ = [
    "Form",
    "Found",
    "Kind",
    "Number",
    "final_choice",
    "final_number",
    "find_json",
    "gold_number",
    "is_same",
    "strict_number",
]
