"""`redline eval`: defines the flags of an evaluation, runs it and prints its score."""

from __future__ import annotations

from pathlib import Path

from click import Context
from msgspec.structs import replace

from redline.cli.commands.run import run_flags
from redline.cli.flags import Word, flag, read_flags, whole
from redline.cli.results import open_results
from redline.cli.session import Session, say
from redline.errors import ConfigError
from redline.job.settings import Flags, Job, Prompting
from redline.job.work import Renderer
from redline.tasks.evaluate import (
    BUILT_IN,
    Evaluation,
    Grading,
    Scores,
    built_in,
    compare,
    load,
    shots_of,
)

_MOST_SAMPLES = 10_000

_OWN = (
    flag(
        "data",
        "FILE",
        "The questions: a file as for `redline run`, or a dataset folder (Hugging Face datasets). "
        "Required.",
        section="Requests",
    ),
    flag("task", "FILE", "An evaluation of your own, as a TOML file."),
    whole(
        "samples",
        "Ask each question N times, and report pass@k and the majority vote as well. Use it with "
        "a --temperature above 0. Default: 1.",
        most=_MOST_SAMPLES,
    ),
    whole(
        "shots",
        "Put the first N rows of --shots-file, or of the task's shots_file, with their answers, "
        "before each question. 0 leaves out the shots of a task file.",
        least=0,
        most=1000,
    ),
    flag("shots_file", "FILE", "File with the example rows for --shots."),
)
PARAMS = (
    Word(
        "words",
        "NAME",
        f"A built-in evaluation: {', '.join(BUILT_IN)}. Or `compare A B`, where A and B "
        "are the results files of two evaluations of the same questions.",
        is_many=True,
    ),
    *_OWN,
    # The evaluation sets the other flags itself, or does not use them.
    *run_flags(
        *("prompt", "system", "body", "url", "method", "output_path", "fail_on", "format"),
        *("ordered", "follow", "until_empty"),
        output="Results file, or its URL, such as s3://bucket/results.jsonl. The same command "
        "continues it. Default: named after the task, such as gsm8k.results.jsonl.",
    ),
)


def evaluate(ctx: Context, words: list[str] | None) -> int:
    r"""Ask a model every question of a test set, and report how many answers are right.

    Each graded answer gets one line in the results, with the fields correct, strict, extracted and
    verdict. Without -o or output in redline.toml, their file is named after the task, such as
    gsm8k.results.jsonl. If the evaluation is interrupted, the same command continues it, and no
    answer counts twice.

        redline eval gsm8k --data test.jsonl --model gpt-4o-mini --rpm 500

    A TOML file describes any other evaluation: prompt, and optionally gold (the column of the right
    answer, by default answer), metric (exact by default, or number, choice, regex, json or judge),
    system, pattern, fields, letters, judge, shots, shots_file, params and name. --max-tokens does
    not bound the judge's replies: set max_tokens in the judge's params.

        redline eval --task capitals.toml --data capitals.csv

    Is one model better than another on the same questions?

        redline eval compare small.jsonl large.jsonl

    The last line on stdout is the accuracy, as in: accuracy: 458/1319; or, if no question was
    answered, the number of failures. Exit status: as for `redline run`; of compare: 0 compared; 2
    bad usage, or no question in common; 3 a defect in redline.
    """
    words = words or []
    if words[:1] == ["compare"]:
        if len(words) != 3:
            raise ConfigError("compare takes two results files", hint="redline eval compare A B")
        with open_results(words[1]) as one, open_results(words[2]) as two:
            found = compare(one.output.path, two.output.path)
            say(replace(found, first=one.name, second=two.name).text())
        return 0
    given = read_flags(ctx, _OWN)
    evaluation = _evaluation(words, given)
    if "data" not in given:
        task = f"--task {given['task']}" if "task" in given else evaluation.name
        raise ConfigError(
            "an evaluation needs its questions", hint=f"redline eval {task} --data FILE"
        )
    return _carry_out(Session(ctx), evaluation, given)


def _evaluation(named: list[str], given: Flags) -> Evaluation:
    """Returns the evaluation, built in or from a file, with the shots of the command line.

    Raises ConfigError unless exactly one evaluation is given, and for shots without a file or a
    file without a number of shots. `--shots 0` turns off the shots of a task file.
    """
    path = given.get("task")
    if (path is None) == (not named):
        raise ConfigError(
            "no evaluation is named" if path is None else "a name and --task cannot be combined",
            hint="redline eval gsm8k --data FILE, or redline eval --task my_task.toml --data FILE",
        )
    if len(named) > 1:
        raise ConfigError(
            f"one argument too many: {named[1]}", hint="pass the questions with --data FILE"
        )
    evaluation = built_in(named[0]) if path is None else load(Path(path))
    stated = given.keys() & {"shots", "shots_file"}
    evaluation = replace(evaluation, **{name: given[name] for name in stated})
    if evaluation.shots and evaluation.shots_file is None:
        raise ConfigError("no file of shots is set", hint="set it with --shots-file FILE")
    if evaluation.shots_file is not None and not (evaluation.shots or "shots" in given):
        raise ConfigError(
            f"the number of shots from {evaluation.shots_file} is not set",
            hint="set it: --shots N",
        )
    return evaluation


def _carry_out(session: Session, evaluation: Evaluation, given: Flags) -> int:
    # The score is read from the results, so there must be a results file.
    usual = f"{evaluation.name}.results.jsonl"
    output = session.configuration.run.get("output", usual)
    resolved = session.resolved(given["data"], {"output": output, **session.given})
    resolved.job = _job(resolved.job, evaluation, given.get("samples", 1))
    status, output = session.carry_out(resolved), resolved.job.output
    if output is not None and not session.is_dry and output.path.exists():
        say(Scores(output).text())
    return status


def _job(job: Job, evaluation: Evaluation, samples: int) -> Job:
    """Returns the job with the evaluation's prompt and grading.

    Raises ConfigError if the job has no output file.
    """
    if job.output is None:
        raise ConfigError("an evaluation's results need a file", hint="leave out -o -")
    prompting = Prompting(
        prompt=evaluation.prompt,
        system=evaluation.system,
        model=job.prompting.model,
        params={**evaluation.params, **job.prompting.params},
        constant_prompt=job.prompting.constant_prompt,
    )
    if evaluation.shots:
        shots = shots_of(evaluation, Renderer(prompting).prompt)
        prompting = replace(prompting, shots=shots)
    # [run] in redline.toml may set other values for other commands.
    output = replace(job.output, format="redline", ordered=False)
    return replace(
        job,
        prompting=prompting,
        samples=samples,
        task=Grading(evaluation),
        output=output,
        fail_on=(),
    )
