"""`redline tag`: tags rows, compares the tags with gold labels, and exports tables."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from click import Context
from msgspec.structs import replace

from redline.cli.commands.run import run_flags
from redline.cli.flags import Word, choice, flag, whole
from redline.cli.session import Session, say
from redline.errors import ConfigError
from redline.job.settings import Flags, Job, Prompting, flag_of, read
from redline.journal import Output
from redline.process import counted, write_file
from redline.tasks.tag import (
    FORMATS,
    SUFFIXES,
    Gold,
    Schema,
    Structured,
    Tagging,
    check_path,
    first_row,
    gold_of,
    load,
    prompt_of,
    review,
    write_table,
)

_REASKS, _MOST_REASKS = 2, 20

_OWN = (
    flag(
        "schema",
        "FILE",
        'A JSON file: labels ["a", "b"], or {"label": ["a", "b"], "urgency": ["low", "high"]}, '
        "or a JSON Schema. Or a pydantic model: package.module:Model. Required.",
        section="Tags",
    ),
    whole(
        "reasks",
        "Ask the model at most N times to correct an invalid answer, given the error. "
        f"Default: {_REASKS}.",
        least=0,
        most=_MOST_REASKS,
    ),
    choice(
        "response_format",
        FORMATS,
        "Whether to send the schema as response_format: auto (the default: unless the "
        "endpoint refuses it), always or never.",
    ),
    flag(
        "gold",
        "COLUMN",
        "Compare the tags with the correct labels in this column: accuracy, macro F1, and a "
        "confusion matrix beside the output. FIELD=COLUMN if a tag has several fields.",
    ),
    flag(
        "export",
        "FILE",
        "Also write the rows with their tags as a table: "
        f"{' or '.join(f'*{suffix}' for suffix in SUFFIXES)}.",
    ),
)
PARAMS = (
    Word(
        "rows",
        "INPUT",
        "Rows as for `redline run`. Without --prompt, the first row of a file decides: if it has "
        "messages, prompt or input, or is a Batch line, rows are sent as by `redline run`; "
        "otherwise, the column named text is tagged, or the only column besides custom_id and the "
        "gold column. Of stdin or another pipe, the column named text is tagged.",
    ),
    *_OWN,
    # Tagging sets the other flags itself, or does not use them.
    *run_flags(
        *("body", "url", "method", "output_path", "fail_on", "format", "keep_input"),
        *("via", "follow", "until_empty"),
    ),
)


def tag(ctx: Context, rows: str) -> int:
    r"""Tag every row with labels, or with any JSON that a schema describes.

    After an invalid answer, other than a refused or filtered one, the model is asked again, at most
    --reasks times; a row without a valid answer is among the failures, with the reason. The field
    `output` of a result line is the tag.

        redline tag tickets.csv --schema labels.json --model gpt-4o-mini \
            --rpm 500 -o tagged.jsonl

    How good are the tags? Repeat the command with --gold and a column of correct labels, as often
    as you like: rows that are already tagged are not sent again.

        redline tag tickets.csv --schema labels.json --model gpt-4o-mini \
            --rpm 500 -o tagged.jsonl --gold category

    The last line on stdout is then the accuracy, as in: accuracy: 2900/3080. --gold and --export
    need -o. Exit status: as for `redline run`.
    """
    return _carry_out(Session(ctx), rows)


def _carry_out(session: Session, rows: str) -> int:
    given = session.given
    if "schema" not in given:
        raise ConfigError("tagging needs a schema", hint="set it with --schema labels.json")
    schema = load(given["schema"])
    # A result line needs its row: the comparison with gold labels and the table use the columns. A
    # project's `via` does not apply, since a row may need several requests.
    resolved = session.resolved(rows, {**given, "keep_input": True, "via": "live"})
    row = first_row(rows)
    gold = gold_of(given["gold"], schema, row) if "gold" in given else None
    table = _table_path(given, resolved.job.output, rows)
    prompt = None
    if resolved.job.prompting.prompt is None:
        prompt = prompt_of(row, rows, gold)
    own = read(_OWN, given)
    form = own.get("response_format", FORMATS[0])
    task = Tagging(schema, reasks=own.get("reasks", _REASKS), response_format=form)
    resolved.job = _job(resolved.job, schema, task, prompt)
    resolved.lines = replace(resolved.lines, format="redline")
    status, output = session.carry_out(resolved), resolved.job.output
    if output is None or session.is_dry:
        return status
    if output.path.exists() or output.failed_path.exists():
        _tell(output, schema, task, gold, table)
    return status


def _job(job: Job, schema: Schema, task: Tagging, prompt: str | None) -> Job:
    """Returns the job that tags, with a system message that describes the tags."""
    # The system message is a template, so the schema's braces must be in a string literal.
    wanted = f"{{{{ {msgspec.json.encode(Structured(schema).instructions).decode()} }}}}"
    system = job.prompting.system
    prompting: Prompting = replace(
        job.prompting,
        # A project's body template does not apply, since it leaves no room for the tags.
        body=None,
        prompt=prompt or job.prompting.prompt,
        system=wanted if system is None else f"{system}\n\n{wanted}",
    )
    output = job.output and replace(job.output, format="redline")
    return replace(job, prompting=prompting, output=output, task=task)


def _table_path(given: Flags, output: Output | None, rows: str) -> Path | None:
    """Returns the path of --export. Raises ConfigError, before sending, if it cannot be used."""
    for name in ("gold", "export"):
        if output is None and name in given:
            raise ConfigError(
                f"{flag_of(name)} needs an output file", hint="set it with -o tagged.jsonl"
            )
    if output is None or "export" not in given:
        return None
    path = Path(given["export"])
    others = (rows, given["schema"], output.path, output.failed_path, _matrix_path(output))
    if os.path.realpath(path) in map(os.path.realpath, others):
        raise ConfigError(f"--export would overwrite {path}", hint="choose another file")
    check_path(path)
    return path


def _matrix_path(output: Output) -> Path:
    """Returns the path of the confusion matrix, named like the other files beside the output."""
    stem = output.failed_path.name.removesuffix("failed.jsonl")
    return output.path.with_name(f"{stem}confusion.csv")


def _tell(
    output: Output, schema: Schema, task: Tagging, gold: Gold | None, table: Path | None
) -> None:
    """Prints a review of the tags; writes `table`, and the confusion matrix if there is `gold`."""
    found = review(output, schema, gold)
    notes = []
    if task.is_format_refused:
        notes.append(
            "the endpoint does not accept response_format: the schema was sent only in the prompt"
        )
    if found.agreement is not None:
        matrix = _matrix_path(output)
        write_file(matrix, found.agreement.as_csv().encode())
        notes.append(f"confusion matrix: {matrix}")
    if table is not None:
        count = write_table(output.path, table) if output.path.exists() else 0
        left = f"; without the {found.failed:,} that failed" if found.failed else ""
        more = "; with rows of earlier runs that the last run did not read" if found.unread else ""
        notes.append(f"table: {table}, {counted(count, 'row')}{left}{more}")
    say(found.text(*notes))
