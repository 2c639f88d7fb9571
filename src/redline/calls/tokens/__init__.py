"""Estimates the tokens that a request will use, and bounds the tokens that it can use."""

from redline.calls.tokens.asked import keep_facts, kept_facts
from redline.calls.tokens.body_facts import (
    MOST_OUTPUT_TOKENS,
    NOT_JSON,
    TRUE,
    BodyFacts,
    Chat,
    facts_of,
)
from redline.calls.tokens.estimate import (
    UNFOLLOWED,
    Sending,
    TokenEstimator,
)
from redline.calls.tokens.kalman import Prior, Weights
from redline.calls.tokens.pending_outputs import PendingOutputs
from redline.calls.tokens.prefixes import PREFIX_CHARS, prefixes_of
from redline.calls.tokens.prompt import CLASSES, Prompt
from redline.calls.tokens.tokenizer import TOKENIZERS, Tokenizer, Tokenizers
from redline.calls.tokens.upper_bound import Worst, worst_of
