"""`redline run`: defines the flags of a job and of its display."""

from __future__ import annotations

from click import Context

from redline.cli.flags import Word, choice, switch, with_helps
from redline.cli.session import LOGS, Session
from redline.job.settings import FLAGS, Option

_FLAGS = (
    *FLAGS.values(),
    switch(
        "dry_run",
        "Send nothing. Show the numbers of rows and tokens, the first request and, except for "
        "batches, the minimum time.",
        section="Display",
    ),
    switch("quiet", "Print no progress, but still notes, errors and the summary.", short="-q"),
    choice(
        "log",
        LOGS,
        "Form of progress, failures and summary: text (the default), or json (JSON lines).",
    ),
)
PARAMS = (
    Word(
        "rows",
        "INPUT",
        "A .jsonl, .csv, .tsv or .parquet file (text may be .gz or .zst), or its URL, such as "
        "s3://bucket/rows.jsonl; a dataset folder (Hugging Face datasets); - for stdin; or a "
        "stream: redis://host:6379/0/tickets?group=labels. With --prompt or --body, or with a "
        "--url that takes plain JSON, a row may have any columns; otherwise it must have messages, "
        "prompt or input, or url and body (OpenAI Batch).",
    ),
    *_FLAGS,
)


def run_flags(*left_out: str, **helps: str) -> list[Option]:
    """Returns the flags of `redline run` for another command, except those in `left_out`.

    helps: as for `with_helps`.
    """
    return with_helps([option for option in _FLAGS if option.key not in left_out], helps)


def run(ctx: Context, rows: str) -> int:
    r"""Send every row of INPUT to an endpoint, as fast as its limits allow, without losing any.

    With -o labels.jsonl, the same command continues a run that was interrupted at any point, and
    rows that fail are in labels.failed.jsonl, with the reason.

        redline run tickets.jsonl --prompt 'Classify: {{ text }}' \
            --model gpt-4o-mini --rpm 500 --tpm 200k -o labels.jsonl

    Try it first, without a key and without cost:

        redline run tickets.jsonl --prompt 'Classify: {{ text }}' \
            --endpoint sim --limit 5

    Call any in-house service, and keep a part of its answer:

        redline run tickets.jsonl --base-url http://127.0.0.1:8000 --url /ask \
            --body '{"q": {{ text | json }}}' --output-path result.text \
            -o answers.jsonl

    A redline.toml in this folder may set flags under [run] (rpm = 500), endpoints under
    [endpoints.NAME] (base_url, api_key_env, model, limits), and prices under [prices."MODEL"].
    Several endpoints share the rows, each within its own limits: --endpoint a --endpoint b.

    Exit status: 0 all done; 1 some rows failed or, with --dry-run, cannot be sent; 2 bad usage or
    settings, or the run was stopped early, or its results could not be uploaded; 3 a defect in
    redline; 130 interrupted.
    """
    session = Session(ctx)
    return session.carry_out(session.resolved(rows, session.given))
