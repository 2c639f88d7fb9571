"""Opens an engine from its settings: loads models, makes caches and prepares the thread."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import torch
from transformers import GenerationConfig

from redline.engine.api.backend import EngineBackend, Speaker
from redline.engine.api.detokenize import Pieces
from redline.engine.draft import Drafter, DraftLength, LookupDrafter, ModelDrafter
from redline.engine.model import model_len, read_config, read_tokenizer, reading
from redline.engine.parallel import make_computer
from redline.engine.sample import Grammars
from redline.engine.schedule import Bounds, Scheduler
from redline.engine.settings import EngineSettings
from redline.engine.step import Core, EngineThread, Metrics, Speculation, open_runner
from redline.errors import ConfigError
from redline.process import counted


class Engine(NamedTuple):
    """A loaded engine, whose thread must be started in the event loop that uses it.

    name: the model's name for clients. notes: lines for a terminal that describe the engine.
    """

    backend: EngineBackend
    thread: EngineThread
    metrics: Metrics
    name: str
    notes: list[str]


def open_engine(settings: EngineSettings) -> Engine:
    """Loads the models and makes the engine; takes seconds, or minutes for a large model.

    Raises ConfigError if that fails, and EngineFailed if a rank ends before it is ready.
    """
    torch.set_num_threads(settings.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = read_config(settings.model)
    tokenizer = read_tokenizer(settings.model)
    length = model_len(settings.max_model_len, config, settings.model)
    slots = _slots(settings, length)
    settings = msgspec.structs.replace(settings, max_batch_size=slots)
    bounds = Bounds(
        slots=slots,
        step_tokens=settings.max_step_tokens,
        cache_tokens=slots * length,
        waiting=settings.max_waiting,
        wait_s=settings.max_wait_s,
        reuses_prefixes=settings.reuses_prefixes,
        steps_at_once=settings.pipeline_parallel,
    )
    ends = _ends(settings.model, config, tokenizer)
    speculation = _speculation(settings, config.vocab_size, length, device)
    # This comes last: it may start processes, and only the thread ends them.
    computer = make_computer(settings, config, capacity=length, device=device)
    core = Core(Scheduler(bounds), computer, ends=ends, speculation=speculation)
    thread = EngineThread(core)
    name = settings.name
    grammars = Grammars(tokenizer, config.vocab_size, ends)
    speaker = Speaker(tokenizer, Pieces(tokenizer), grammars, config.vocab_size, length, ends)
    backend = EngineBackend(thread, speaker, name=name, most_sequences=settings.max_waiting)
    by_rank = computer.parameter_bytes
    where = "in this process" if len(by_rank) == 1 else "by rank"
    note = (
        f"{name}: {', '.join(f'{size / 1e6:,.1f}' for size in by_rank)} MB of weights {where} "
        f"on {device}, up to {counted(slots, 'sequence')} of {length:,} tokens at once"
    )
    return Engine(backend, thread, Metrics(core, name), name, [note])


def _slots(settings: EngineSettings, length: int) -> int:
    """Returns how many sequences of `length` tokens are computed at once.

    The cache has room for a whole sequence in each slot, so max_cache_tokens bounds the slots. The
    padding of a slot to a multiple of 16 tokens is not counted. Raises ConfigError if no slot fits.
    """
    if settings.max_cache_tokens is None:
        return settings.max_batch_size
    if settings.max_cache_tokens < length:
        raise ConfigError(
            f"max_cache_tokens is {settings.max_cache_tokens:,}, but one sequence may have "
            f"{length:,} tokens",
            hint="raise it, or lower max_model_len",
        )
    return min(settings.max_batch_size, settings.max_cache_tokens // length)


def _speculation(
    settings: EngineSettings, vocabulary: int, length: int, device: str
) -> Speculation | None:
    """Returns the drafter and its lengths from the settings; None without speculative decoding.

    Raises ConfigError if the draft model cannot be loaded or has another vocabulary.
    """
    if not settings.draft_tokens or not (settings.draft_model or settings.has_lookup):
        return None
    drafter: Drafter = LookupDrafter()
    if settings.draft_model is not None:
        config = read_config(settings.draft_model)
        if config.vocab_size != vocabulary:
            raise ConfigError(
                f"the draft model's vocabulary has {config.vocab_size:,} tokens, the model's "
                f"{vocabulary:,}",
                where=settings.draft_model,
                hint="choose a draft model with the same vocabulary",
            )
        name = settings.draft_model
        model_len(length, config, name)
        drafter = ModelDrafter(open_runner(name, config, settings, capacity=length, device=device))
    return Speculation(drafter, DraftLength(settings.draft_tokens))


def _ends(name: str, config: Any, tokenizer: Any) -> frozenset[int]:
    """Returns the tokens that the generation settings or the tokenizer define as ends of answers.

    Raises ConfigError for settings that are not valid.
    """
    with reading("cannot read the generation settings in", name):
        try:
            stated = GenerationConfig.from_pretrained(name).eos_token_id
        except OSError:
            stated = getattr(config, "eos_token_id", None)
    listed = stated if isinstance(stated, list) else [stated]
    # Some settings have -1 for no token, or a token of another vocabulary.
    known = range(config.vocab_size)
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if token in known)
