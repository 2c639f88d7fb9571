"""Jobs with a purpose: evaluate, tag and synthesize; and answers found in replies."""

from redline.tasks.answers import (
    final_choice,
    final_number,
    find_json,
    gold_number,
    is_same,
    strict_number,
)
