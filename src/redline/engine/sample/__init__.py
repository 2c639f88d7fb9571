"""Sampling: parameters, distributions, reproducible noise and guided decoding."""

from redline.engine.sample.counter_rng import Noise, Purpose, arrivals, row_seed, uniforms
from redline.engine.sample.guided import Grammars, Guide, masked
from redline.engine.sample.params import SamplingParams
from redline.engine.sample.probabilities import (
    Past,
    adjusted,
    distribution,
    draw,
    gumbel_choice,
    logprobs,
    sample,
)
