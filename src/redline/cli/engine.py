"""`redline engine`: a local model with the OpenAI API."""

from __future__ import annotations

import sys
from typing import Annotated

from click import Context
from click.exceptions import Exit

from redline.cli import values
from redline.cli.command import one_of, stated
from redline.cli.engine_flags import settings_of
from redline.cli.flags import Argument, Option
from redline.cli.output import tell
from redline.cli.present import error_text
from redline.cli.values import Flags
from redline.engine.settings import DTYPES
from redline.errors import ConfigError, RedlineError

_WHERE, _SIZE = "Where it listens", "How much at once"
_LAUNCHERS = ("redline", "vllm")
_FAILED = 1
_SPEED, _PROCESSES = "Speculative decoding", "How it runs"


def engine(
    ctx: Context,
    model: Annotated[
        str,
        Argument(
            metavar="MODEL", help="A folder that save_pretrained wrote, or a name on the hub."
        ),
    ],
    port: Annotated[
        str | None,
        Option(metavar="N", help="Default 0: a free one.", section=_WHERE),
    ] = None,
    host: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="Default 127.0.0.1: this machine only. Nobody is asked for a key.",
            section=_WHERE,
        ),
    ] = None,
    max_batch_size: Annotated[
        str | None,
        Option(metavar="N", help="Sequences computed together. Default 32.", section=_SIZE),
    ] = None,
    max_step_tokens: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Tokens that one step computes; a longer prompt takes several. Default 512.",
            section=_SIZE,
        ),
    ] = None,
    max_wait_time: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="How long an idle engine waits for more requests before it begins, such as 5ms. "
            "Default: not at all.",
            section=_SIZE,
        ),
    ] = None,
    max_model_len: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Tokens of a prompt and its answer. Default: the model's own, 4096 at most.",
            section=_SIZE,
        ),
    ] = None,
    max_cache_tokens: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Tokens the cache has room for. Each sequence takes --max-model-len of them, so "
            "fewer are computed together. Default: enough for --max-batch-size.",
            section=_SIZE,
        ),
    ] = None,
    max_waiting: Annotated[
        str | None,
        Option(
            metavar="N", help="Answers in the queue; more get 503. Default 1024.", section=_SIZE
        ),
    ] = None,
    no_prefix_reuse: Annotated[
        bool,
        Option(help="Compute again what prompts begin with alike.", section=_SIZE),
    ] = False,
    draft_model: Annotated[
        str | None,
        Option(
            metavar="MODEL",
            help="A smaller model of the same vocabulary, whose guesses the model checks.",
            section=_SPEED,
        ),
    ] = None,
    lookup: Annotated[
        bool,
        Option(help="Guess what followed the last tokens when they came before.", section=_SPEED),
    ] = False,
    draft_tokens: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Guesses at a time, at most; how many there are follows what pays. Default 4.",
            section=_SPEED,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="auto (the default: the model's own), float32, bfloat16 or float16.",
            complete=one_of(*DTYPES),
            section=_PROCESSES,
        ),
    ] = None,
    threads: Annotated[
        str | None,
        Option(metavar="N", help="Of PyTorch in each process. Default 1.", section=_PROCESSES),
    ] = None,
    tensor_parallel: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Split every layer over so many processes, each with a share of the weights.",
            section=_PROCESSES,
        ),
    ] = None,
    pipeline_parallel: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Split the layers into so many stages, each a process; as many batches are under "
            "way. With both, N x N processes.",
            section=_PROCESSES,
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="vllm starts vLLM with the same settings, where it is installed.",
            complete=one_of(*_LAUNCHERS),
            section=_PROCESSES,
        ),
    ] = None,
) -> None:
    """Serve a local causal language model with the OpenAI API.

    Requests are computed together, a token each at a time, and join and leave as they come. The
    base URL is the first line on stdout. Ctrl-C ends it. GET /metrics tells how it goes, by
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
    """Serves until it is interrupted, and says the exit status. Raises RedlineError."""
    settings, host = settings_of(model, flags), flags.get("host", "127.0.0.1")
    port = values.whole(flags, "port", 0, 65_535) or 0

    def on_url(url: str) -> None:
        print(url, flush=True)

    def on_note(note: str) -> None:
        print(note, file=sys.stderr, flush=True)

    # Imported here: no other command pays for a server's start-up.
    if values.choice(flags, "launcher", _LAUNCHERS) == "vllm":
        from redline.engine.vllm import launch

        return launch(settings, host=host, port=port, on_url=on_url, on_note=on_note)
    from redline.serve.foreground import serve_engine

    serve_engine(settings, host=host, port=port, on_url=on_url, on_note=on_note)
    return 0
