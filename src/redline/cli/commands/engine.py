"""`redline engine`: a local model with the OpenAI API."""

from __future__ import annotations

import sys
from functools import partial

from click import Context
from click.exceptions import Exit

from redline.cli.flags import Word, flag, settings_of, stated
from redline.cli.session import error_text, tell
from redline.engine import DTYPES
from redline.errors import ConfigError, RedlineError
from redline.job.settings import Flags, Kind, values

_WHERE, _SIZE = "Address", "Size"
_LAUNCHERS = ("redline", "vllm")
_FAILED = 1
_SPEED, _PROCESSES = "Speculative decoding", "Processes"

PARAMS = (
    Word("model", "MODEL", "A folder that save_pretrained wrote, or a name on the hub."),
    flag("port", "N", "Default 0: a free one.", section=_WHERE),
    flag("host", "ADDRESS", "Default 127.0.0.1: this machine only. No key is asked for."),
    flag("max_batch_size", "N", "Sequences computed together. Default 32.", section=_SIZE),
    flag(
        "max_step_tokens",
        "N",
        "Tokens that one step computes; a longer prompt takes several. Default 512.",
    ),
    flag(
        "max_wait_time",
        "TIME",
        "How long an idle engine waits for more requests before it begins, such as 5ms. "
        "Default: not at all.",
    ),
    flag(
        "max_model_len",
        "N",
        "Tokens of a prompt and its answer. Default: the model's own, 4096 at most.",
    ),
    flag(
        "max_cache_tokens",
        "N",
        "Tokens the cache has room for. Each sequence takes --max-model-len of them, so "
        "fewer are computed together. Default: enough for --max-batch-size.",
    ),
    flag("max_waiting", "N", "Requests in the queue; further ones get 503. Default 1024."),
    flag(
        "no_prefix_reuse",
        None,
        "Compute common beginnings of prompts again for each of them.",
        kind=Kind.FLAG,
    ),
    flag(
        "draft_model",
        "MODEL",
        "A smaller model with the same vocabulary, whose draft tokens the model verifies.",
        section=_SPEED,
    ),
    flag(
        "lookup",
        None,
        "Draft the tokens that followed the latest ones when they last occurred.",
        kind=Kind.FLAG,
    ),
    flag(
        "draft_tokens",
        "N",
        "Most draft tokens at a time; their number adapts to what pays off. Default 4.",
    ),
    flag(
        "dtype",
        "NAME",
        "auto (the default: the model's own), float32, bfloat16 or float16.",
        section=_PROCESSES,
        complete=DTYPES,
    ),
    flag("threads", "N", "Threads of PyTorch in each process. Default 1."),
    flag(
        "tensor_parallel",
        "N",
        "Split every layer over N processes, each with a share of the weights.",
    ),
    flag(
        "pipeline_parallel",
        "N",
        "Split the layers into N stages, each a process; N batches are under way at once. "
        "With both, the product of the two is the number of processes.",
    ),
    flag(
        "launcher",
        "NAME",
        "vllm starts vLLM with the same settings, if it is installed.",
        complete=_LAUNCHERS,
    ),
)


def engine(ctx: Context, model: str) -> None:
    """Serve a local causal language model with the OpenAI API.

    Requests are computed together, a token each at a time, and join and leave as they come. The
    base URL is the first line on stdout. Ctrl-C ends it. GET /metrics shows its state, under
    vLLM's names. It needs the extra `engine`: make install-engine.

        redline engine models/tiny --draft-model models/tiny-draft --port 8000

    Ask it from another terminal, or run a job without a server:

        redline run tickets.jsonl --prompt 'Classify: {{ text }}' \\
            --endpoint engine:models/tiny

    Exit status: 0 ended by Ctrl-C, 1 the engine failed, 2 bad usage or settings, 3 a defect in
    redline.
    """
    try:
        raise Exit(_serve(model, stated(ctx)))
    except ConfigError:
        raise
    except RedlineError as error:
        tell(error_text(error))
        raise Exit(_FAILED) from None


def _serve(model: str, flags: Flags) -> int:
    """Serves until it is interrupted, and returns the exit status. Raises RedlineError."""
    settings, host = settings_of(model, flags), flags.get("host", "127.0.0.1")
    port = values.whole(flags, "port", 0, 65_535) or 0

    on_url, on_note = partial(print, flush=True), partial(print, file=sys.stderr, flush=True)
    # Imported here: no other command pays for a server's start-up.
    if values.choice(flags, "launcher", _LAUNCHERS) == "vllm":
        from redline.engine import launch

        return launch(settings, host=host, port=port, on_url=on_url, on_note=on_note)
    from redline.serve import serve_engine

    serve_engine(settings, host=host, port=port, on_url=on_url, on_note=on_note)
    return 0
