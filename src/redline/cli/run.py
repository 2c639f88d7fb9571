"""`redline run`: the table of its flags."""

from __future__ import annotations

from typing import Annotated

from click import Context
from click.exceptions import Exit

from redline.cli.budget_flags import BudgetFlag, BudgetTokensFlag
from redline.cli.cache_flags import (
    CacheDirFlag,
    CacheFlag,
    CacheSampledFlag,
    CacheSizeFlag,
    NoCacheFlag,
)
from redline.cli.command import one_of
from redline.cli.continuous_flags import FollowFlag, UntilEmptyFlag
from redline.cli.flags import Argument, Option
from redline.cli.limit_flags import (
    ChargeFlag,
    ConcurrencyFlag,
    GuardFlag,
    HeadroomFlag,
    InputTokensFlag,
    OutputTokensFlag,
    ProfileFlag,
    RateFlag,
    RequestsFlag,
    RpmFlag,
    RpsFlag,
    ShareFlag,
    TokensFlag,
    TpmFlag,
)
from redline.cli.session import LOGS, run_command
from redline.cli.via_flag import ViaFlag
from redline.run.flaws import FAIL_ON
from redline.run.output import FORMATS
from redline.run.settings import METHODS

_PROMPT, _ENDPOINT = "How a row becomes a request", "Who answers"
_OUTPUT, _AGAIN = "What comes out", "When the output is there already"
_END, _SHOW = "When to give up", "What is shown"

# Values are text here; redline.cli.values reads them, so that every error has one form.
Text = str | None


def run(
    ctx: Context,
    rows: Annotated[
        str,
        Argument(
            metavar="INPUT",
            help="A .jsonl, .csv, .tsv or .parquet file, the text ones also as .gz or .zst, or its "
            "URL, such as s3://bucket/rows.jsonl; a folder of the datasets library; - for stdin; "
            "or a stream: redis://host:6379/0/tickets?group=labels. A row has any columns, with "
            "--prompt or --body; or it brings messages, prompt or input; or url and body (OpenAI "
            "Batch).",
        ),
    ],
    prompt: Annotated[
        Text,
        Option(
            metavar="TEMPLATE",
            help="Jinja template of the user message over the row's columns: 'Classify: "
            "{{ text }}'. @FILE reads it from a file.",
            section=_PROMPT,
        ),
    ] = None,
    system: Annotated[
        Text,
        Option(
            metavar="TEMPLATE",
            help="Template of the system message, for rows without one of their own.",
            section=_PROMPT,
        ),
    ] = None,
    model: Annotated[
        Text,
        Option(
            metavar="NAME",
            help="The model to ask, where the row names none.",
            section=_PROMPT,
        ),
    ] = None,
    temperature: Annotated[
        Text, Option(metavar="T", help="Sampling temperature.", section=_PROMPT)
    ] = None,
    max_tokens: Annotated[
        Text,
        Option(metavar="N", help="Most tokens in an answer.", section=_PROMPT),
    ] = None,
    param: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="Any other body field, its value as JSON or text: seed=7. Repeatable.",
            section=_PROMPT,
        ),
    ] = None,
    url: Annotated[
        Text,
        Option(
            metavar="PATH",
            help="Path to call. Default /v1/chat/completions; /v1/completions, /v1/embeddings and "
            "/v1/responses are known; any other takes and gives plain JSON. May be a template: "
            "'/chat?q={{ text | urlencode }}'.",
            section=_PROMPT,
        ),
    ] = None,
    method: Annotated[
        Text,
        Option(
            metavar="METHOD",
            help="HTTP method. Default POST. A GET sends no body.",
            complete=one_of(*METHODS),
            section=_PROMPT,
        ),
    ] = None,
    body: Annotated[
        Text,
        Option(
            metavar="TEMPLATE",
            help="Template of the whole JSON body: '{\"q\": {{ text | json }}}'. @FILE reads it "
            "from a file.",
            section=_PROMPT,
        ),
    ] = None,
    output_path: Annotated[
        Text,
        Option(
            metavar="PATH",
            help="Where the answer holds the output, such as result.items.0.text. Default: where "
            "the API has it, or all of a plain JSON answer.",
            section=_PROMPT,
        ),
    ] = None,
    constant_prompt: Annotated[
        bool,
        Option(
            help="The prompt or body uses no column on purpose: every row asks the same.",
            section=_PROMPT,
        ),
    ] = False,
    endpoint: Annotated[
        Text,
        Option(
            metavar="NAME",
            help="A URL, a name from redline.toml, sim: a simulated server inside, for "
            "trials, or engine:MODEL: a local model inside.",
            section=_ENDPOINT,
        ),
    ] = None,
    base_url: Annotated[
        Text,
        Option(
            metavar="URL",
            help="The server, ending in /v1 as in the openai SDK. Default: $OPENAI_BASE_URL, else "
            "OpenAI.",
            section=_ENDPOINT,
        ),
    ] = None,
    api_key_env: Annotated[
        Text,
        Option(
            metavar="NAME",
            help="The variable that holds the key, in the environment or in .env. Default "
            "OPENAI_API_KEY, for OpenAI and this machine only.",
            section=_ENDPOINT,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        Option(
            metavar="'NAME: VALUE'",
            help="Header sent with every request. Repeatable.",
            section=_ENDPOINT,
        ),
    ] = None,
    proxy: Annotated[
        Text,
        Option(
            metavar="URL",
            help="HTTP proxy. Default: as HTTP_PROXY, HTTPS_PROXY and NO_PROXY say.",
            section=_ENDPOINT,
        ),
    ] = None,
    requests: RequestsFlag = None,
    tokens: TokensFlag = None,
    input_tokens: InputTokensFlag = None,
    output_tokens: OutputTokensFlag = None,
    rps: RpsFlag = None,
    rpm: RpmFlag = None,
    tpm: TpmFlag = None,
    concurrency: ConcurrencyFlag = None,
    rate: RateFlag = None,
    profile: ProfileFlag = None,
    headroom: HeadroomFlag = None,
    guard: GuardFlag = None,
    charge: ChargeFlag = None,
    share: ShareFlag = None,
    budget: BudgetFlag = None,
    budget_tokens: BudgetTokensFlag = None,
    via: ViaFlag = None,
    cache: CacheFlag = False,
    no_cache: NoCacheFlag = False,
    cache_dir: CacheDirFlag = None,
    cache_size: CacheSizeFlag = None,
    cache_sampled: CacheSampledFlag = False,
    output: Annotated[
        Text,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Results, one JSON line each. The same command continues it. A URL such as "
            "s3://bucket/labels.jsonl is written when the run ends; until then its file is in "
            "s3.redline/. Default: stdout, which cannot be continued.",
            section=_OUTPUT,
        ),
    ] = None,
    format: Annotated[
        Text,
        Option(
            metavar="NAME",
            help="redline (the default), or batch: lines of the OpenAI Batch API.",
            complete=one_of(*FORMATS),
            section=_OUTPUT,
        ),
    ] = None,
    ordered: Annotated[
        bool,
        Option("--ordered", help="Put the finished file in input order.", section=_OUTPUT),
    ] = False,
    keep_input: Annotated[
        bool,
        Option("--keep-input", help="Repeat the row in its result line.", section=_OUTPUT),
    ] = False,
    raw: Annotated[
        bool,
        Option("--raw", help="Keep the whole reply in the result line.", section=_OUTPUT),
    ] = False,
    retry_failed: Annotated[
        bool,
        Option(
            "--retry-failed",
            help="Do just the rows that failed before.",
            section=_AGAIN,
        ),
    ] = False,
    restart: Annotated[
        bool,
        Option(
            "--restart",
            help="Start over. The old files are kept: labels.old-1.jsonl.",
            section=_AGAIN,
        ),
    ] = False,
    force: Annotated[
        bool,
        Option(
            "--force",
            help="Continue an output that was begun with another prompt, model or parameter.",
            section=_AGAIN,
        ),
    ] = False,
    max_retries: Annotated[
        Text,
        Option(metavar="N", help="Attempts after the first. Default 8.", section=_END),
    ] = None,
    timeout: Annotated[
        Text,
        Option(
            metavar="TIME",
            help="For one attempt: 30, 500ms or 5m. Default 10m.",
            section=_END,
        ),
    ] = None,
    connect_timeout: Annotated[
        Text, Option(metavar="TIME", help="For the connection. Default 10.", section=_END)
    ] = None,
    first_byte_timeout: Annotated[
        Text,
        Option(
            metavar="TIME",
            help="For the first byte of an answer. Default: as --timeout.",
            section=_END,
        ),
    ] = None,
    row_deadline: Annotated[
        Text,
        Option(
            metavar="TIME",
            help="For a row with all its retries. Default: none.",
            section=_END,
        ),
    ] = None,
    deadline: Annotated[
        Text,
        Option(metavar="TIME", help="For the run. The same command continues it.", section=_END),
    ] = None,
    limit: Annotated[Text, Option(metavar="N", help="Only the first N rows.", section=_END)] = None,
    fail_on: Annotated[
        list[str] | None,
        Option(
            metavar="REASONS",
            help="Count these answers as failures: length (cut at the token limit), empty, "
            "content_filter, refusal. Commas between them.",
            complete=one_of(*FAIL_ON),
            section=_END,
        ),
    ] = None,
    strict: Annotated[
        bool,
        Option("--strict", help="End the run at the first row that fails.", section=_END),
    ] = False,
    follow: FollowFlag = False,
    until_empty: UntilEmptyFlag = False,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Send nothing. Show rows, tokens, the least time, and the first request.",
            section=_SHOW,
        ),
    ] = False,
    quiet: Annotated[
        bool,
        Option("-q", "--quiet", help="No progress, only the summary.", section=_SHOW),
    ] = False,
    log: Annotated[
        Text,
        Option(
            metavar="NAME",
            help="text (the default), or json: progress, failures and summary as JSON lines.",
            complete=one_of(*LOGS),
            section=_SHOW,
        ),
    ] = None,
) -> None:
    r"""Send every row of INPUT to an endpoint, at its limits, and lose none.

    Interrupt it anywhere and give the same command again: it continues. Rows that fail stand in
    labels.failed.jsonl with their reason.

        redline run tickets.jsonl --prompt 'Classify: {{ text }}' \
            --model gpt-4o-mini --rpm 500 --tpm 200k -o labels.jsonl

    Try it first, without a key and without cost:

        redline run tickets.jsonl --prompt 'Classify: {{ text }}' \
            --endpoint sim --limit 5

    Ask any in-house service, and keep a part of its answer:

        redline run tickets.jsonl --base-url http://127.0.0.1:8000 --url /ask \
            --body '{"q": {{ text | json }}}' --output-path result.text \
            -o answers.jsonl

    A redline.toml in this folder may set flags under [run], such as rpm = 500, endpoints under
    [endpoints.NAME]: base_url, api_key_env, model and limits, and prices under [prices."MODEL"].

    Exit status: 0 all done, 1 some rows failed, 2 bad usage or settings, or the run could not go
    on, 3 a defect in redline, 130 interrupted.
    """
    raise Exit(run_command(ctx, rows))
