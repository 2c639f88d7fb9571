"""`redline synth`: defines the flags of a synthesis, runs it and prints its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click import Context
from msgspec.structs import replace

from redline.cli.commands.run import run_flags
from redline.cli.flags import flag, whole
from redline.cli.session import Session, say
from redline.errors import ConfigError
from redline.job.settings import Flags, Job, Kind, read, reason_of, values
from redline.sources import first_rows
from redline.tasks.synth import MOST_TEXTS, SAMPLING, Filters, Synthesis, Variations, delivered
from redline.tasks.tag import load

_OFF = "off"
_MOST_SEED = 2_000_000_000
_MOST_CHARS, _MOST_BASE, _MOST_TRIES = 10_000_000, 1_000_000, 100
_SIMILARITY, _LEAST_SIMILARITY, _TRIES = 0.8, 0.1, 10


def _first_seed(text: str, flag: str) -> int | None:
    return None if text == _OFF else values.whole(text, flag, 0, _MOST_SEED)


def _similarity(text: str, flag: str) -> float | None:
    if text == _OFF:
        return None
    share = values.number(text, flag)
    if not _LEAST_SIMILARITY <= share <= 1:
        raise ConfigError(
            f"{flag} must be {_LEAST_SIMILARITY} to 1, or off, not {text}",
            hint="1 replaces only texts with identical wording",
        )
    return share


_OWN = (
    whole("count", "How many texts to generate. Required.", most=MOST_TEXTS, section="Texts"),
    flag(
        "vary",
        "NAME=A,B,C",
        "Values of a column for the prompt, or of temperature or top_p. NAME=@FILE takes "
        "a file's lines. Repeatable: each combination occurs once before any occurs again.",
        kind=Kind.LIST,
    ),
    flag(
        "rows_from",
        "FILE",
        "Rows whose columns the prompt may use, such as topics or examples: one row for each "
        "text, in turn.",
    ),
    flag(
        "first_seed",
        "N|off",
        "The first request for text n has the seed N + n. Default: 0; off sends no seeds.",
        read=_first_seed,
    ),
    whole("min_chars", "Replace texts shorter than N characters.", most=_MOST_CHARS),
    whole("max_chars", "Replace texts longer than N characters.", most=_MOST_CHARS),
    flag(
        "schema",
        "FILE",
        "Keep only texts with JSON that is valid under this JSON Schema, or under a pydantic "
        "model, package.module:Model; the output is that JSON.",
    ),
    flag(
        "similarity",
        "SHARE|off",
        "Replace a text that has at least this much in common with an earlier one: the Jaccard "
        f"index of their three-word sequences. Default: {_SIMILARITY}; off keeps all texts.",
        read=_similarity,
    ),
    whole(
        "tries", f"Ask at most N times per run for one text. Default: {_TRIES}.", most=_MOST_TRIES
    ),
)
PARAMS = (
    *_OWN,
    # The synthesis sets the other flags itself, or does not use them.
    *run_flags(
        *("body", "url", "method", "output_path", "fail_on", "format", "ordered"),
        *("keep_input", "limit", "via", "follow", "until_empty", "constant_prompt"),
        output="File for the texts, or its URL, such as s3://bucket/stories.jsonl: one JSON line "
        "per text. The same command continues it. Required.",
    ),
)


def synth(ctx: Context) -> int:
    r"""Generate texts from a prompt, without near-duplicates.

    The prompt may use n (from 1), seed, and the columns of --vary and --rows-from. -o is required.
    If the run is interrupted, the same command continues it; a larger --count adds to the existing
    texts.

        redline synth --count 1000 --prompt 'Write a story about {{ topic }}.' \
            --vary topic=@topics.txt --vary temperature=0.7,1 \
            --model gpt-4o-mini -o stories.jsonl

    The last line on stdout states the number of texts, as in: delivered: 1000/1000. Exit status: 0
    all texts delivered; 1 fewer, with the reasons; otherwise as for `redline run`.
    """
    return _carry_out(Session(ctx))


def _carry_out(session: Session) -> int:
    given = read(_OWN, session.given)
    if "count" not in given:
        raise ConfigError("the number of texts is not set", hint="--count 1000")
    wanted, rows = given["count"], _variations(given)
    # A project's `via` does not apply, since a row may need several requests.
    resolved = session.resolved(rows, {**session.given, "via": "live"})
    task = Synthesis(
        rows,
        _filters(given),
        tries=given.get("tries", _TRIES),
        similarity=given.get("similarity", _SIMILARITY),
    )
    job = resolved.job = _job(resolved.job, task, is_dry=session.is_dry)
    has_seeds = given.get("first_seed", 0) is not None
    if not has_seeds and job.cache is not None and job.cache.includes_sampled:
        raise ConfigError(
            "without seeds, --cache-sampled would return the same text for all identical requests",
            hint="leave out --cache-sampled or --first-seed off",
        )
    if not rows.has_columns:
        # Without columns, all texts come from the same prompt.
        prompting = replace(job.prompting, constant_prompt=True)
        resolved.job = replace(job, prompting=prompting)
    status = session.carry_out(resolved)
    if not session.is_dry and job.output is not None and job.output.path.exists():
        say(delivered(job.output, wanted, task.similarity).text())
    return status


def _job(job: Job, task: Synthesis, *, is_dry: bool) -> Job:
    """Returns the job that generates the texts. Raises ConfigError for an unsuitable setting."""
    if job.prompting.prompt is None:
        raise ConfigError("no prompt is set", hint="--prompt 'Write a story about {{ topic }}.'")
    if job.prompting.params.get("n", 1) != 1:
        raise ConfigError(
            "the parameter n must be 1: each text is requested on its own",
            hint="leave out --param n=...",
        )
    if job.output is not None:
        # [run] in redline.toml may set other values for other commands.
        output = replace(job.output, format="redline", ordered=False, keep_input=True)
        job = replace(job, output=output)
    elif not is_dry:
        raise ConfigError("the texts need a file", hint="set it with -o stories.jsonl")
    return replace(job, task=task, retries_failures=not job.retry_failed, fail_on=(), limit=None)


def _variations(given: Flags) -> Variations:
    vary = dict[str, list[Any]]()
    for text in given.get("vary", ()):
        name, choices = _varied(text)
        if name in vary:
            raise ConfigError(f"--vary {name} is given twice", hint="put all values in one --vary")
        vary[name] = choices
    return Variations(
        given["count"],
        first_seed=given.get("first_seed", 0),
        vary=vary,
        base=_base(given.get("rows_from")),
    )


def _varied(text: str) -> tuple[str, list[Any]]:
    """Parses `NAME=A,B,C` or `NAME=@FILE`; returns the column and its values.

    The values are the words between commas, or the lines of the file. Raises ConfigError if the
    text has another form, if the file cannot be read, or if a value for temperature or top_p is not
    a number.
    """
    name, equals, listed = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ConfigError(f"--vary is not NAME=A,B,C: {text}", hint="for example topic=tea,rain")
    words = _lines(listed[1:]) if listed.startswith("@") else listed.split(",")
    choices: list[Any] = list(filter(None, map(str.strip, words)))
    if name in SAMPLING:
        choices = [values.number(word, f"--vary {name}") for word in choices]
    return name, choices


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        what = f"--vary cannot read {path}: {reason_of(error)}"
        raise ConfigError(what, hint="NAME=@FILE") from error


def _base(path: str | None) -> list[dict[str, Any]]:
    """Reads all rows of a file. Raises ConfigError for a bad row, or for too many rows."""
    if path is None:
        return []
    with first_rows(path, _MOST_BASE + 1) as found_rows:
        rows = list(found_rows)
    if len(rows) > _MOST_BASE:
        raise ConfigError(f"{path} has more than {_MOST_BASE:,} rows", hint="use fewer rows")
    for row in rows:
        if row.data is None:
            raise ConfigError(f"a row cannot be read: {row.problem}", where=f"{path}:{row.line}")
    return [row.data for row in rows if row.data is not None]


def _filters(given: Flags) -> Filters:
    least, most = given.get("min_chars", 1), given.get("max_chars")
    if most is not None and most < least:
        raise ConfigError(f"--max-chars {most} is below --min-chars {least}")
    schema = load(given["schema"]) if "schema" in given else None
    return Filters(least_chars=least, most_chars=most, schema=schema)
