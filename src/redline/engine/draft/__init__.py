"""Speculative decoding: draft tokens, their verification, and how many to draft."""

from redline.engine.draft.acceptance import Chance, Judged, judge, noise_of
from redline.engine.draft.length import DraftLength
from redline.engine.draft.lookup import Lookup
from redline.engine.draft.proposers import Drafter, Drafts, LookupDrafter, ModelDrafter
from redline.engine.draft.verification import Acceptance, verify, verify_choices
