"""`redline engine`: serves a local model with the OpenAI API."""

from __future__ import annotations

from click import Context

from redline.cli.flags import (
    ENGINE_FLAGS,
    Word,
    choice,
    flag,
    read_flags,
    settings_of,
    stated,
    whole,
)
from redline.cli.session import error_text, say_line, tell, tell_line
from redline.errors import ConfigError, JournalError, RedlineError

_LAUNCHERS = ("redline", "vllm")
_FAILED = 1

PARAMS = (
    Word(
        "model", "MODEL", "A folder that save_pretrained wrote, or a model on the Hugging Face Hub."
    ),
    whole(
        "port",
        "Port to listen on. Default: 0 (a free one).",
        least=0,
        most=65_535,
        section="Address",
    ),
    flag(
        "host",
        "ADDRESS",
        "Address to listen on; requests need no key. Default: 127.0.0.1 (this machine only).",
    ),
    *ENGINE_FLAGS,
    choice(
        "launcher",
        _LAUNCHERS,
        "Server to start: redline (the default), or vllm, if installed, which takes none of "
        "--threads, --max-wait-time, --max-cache-tokens and --max-waiting.",
    ),
)


def engine(ctx: Context, model: str) -> int:
    """Serve a local causal language model through an OpenAI-compatible API.

    Continuous batching: a request can join or leave the batch at any token. The base URL is the
    first line on stdout. Ctrl-C ends the server. GET /metrics shows its state, under vLLM's
    metric names. Except with --launcher vllm, the extra
    `engine` is required: make install-engine.

        redline engine models/tiny --draft-model models/tiny-draft --port 8000

    Send requests to that URL from another terminal, or run a job without a server:

        redline run tickets.jsonl --prompt 'Classify: {{ text }}' \\
            --endpoint engine:models/tiny

    Exit status: 0 ended by Ctrl-C or SIGTERM; 1 the engine failed; 2 bad usage or settings; 3 a
    defect in redline. After a signal while the model is loading, or a second signal: 130 for
    Ctrl-C, 143 for SIGTERM, but 0 with --launcher vllm.
    """
    try:
        return _serve(ctx, model)
    except (ConfigError, JournalError):
        raise
    except RedlineError as error:
        tell(error_text(error))
        return _FAILED


def _serve(ctx: Context, model: str) -> int:
    """Serves until it is interrupted, and returns the exit status. Raises RedlineError."""
    settings, given = settings_of(model, stated(ctx)), read_flags(ctx, PARAMS)
    host, port = given.get("host", "127.0.0.1"), given.get("port", 0)
    # Imported here, because the flags need no server.
    from redline.httpserver import check_host

    check_host(host)
    if given.get("launcher") == "vllm":
        from redline.engine import launch

        return launch(settings, host=host, port=port, on_url=say_line, on_note=tell_line)
    from redline.serve import serve_engine

    serve_engine(settings, host=host, port=port, on_url=say_line, on_note=tell_line)
    return 0
