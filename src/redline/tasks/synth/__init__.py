"""Synthesis: varied prompts, near-duplicate detection, and what was delivered."""

from redline.tasks.synth.delivery import delivered
from redline.tasks.synth.near_duplicates import NearDuplicates, longest_band, runs_of
from redline.tasks.synth.synthesis import MOST_TEXTS, Filters, NotKept, Synthesis
from redline.tasks.synth.variations import SAMPLING, Variations, combination
