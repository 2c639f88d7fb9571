"""Suggests the option that was probably meant by a name that redline does not know."""

from __future__ import annotations

from collections.abc import Iterable

from redline.errors import nearest

# Names that other programs use for an option, by redline's name for it.
_SYNONYMS = {
    "output": "out outfile out-file output-file output-dir outdir results save save-to dest",
    "concurrency": "threads workers parallel parallelism jobs concurrent max-concurrency "
    "max-concurrent max-parallel max-workers num-workers n-workers max-in-flight",
    "max-retries": "retries max-retry num-retries n-retries retry-count attempts max-attempts",
    "retry-failed": "retry retry-failures retry-errors rerun-failed failed-only only-failed",
    "api-key-env": "key api-key apikey api-key-var",
    "base-url": "api-base api-url openai-base-url base server",
    "endpoint": "base-url api-base api-url openai-base-url base server",
    "prompt": "template user user-prompt prompt-template prompt-file message",
    "system": "system-prompt system-message instructions",
    "temperature": "temp",
    "max-tokens": "max-output-tokens max-completion-tokens max-new-tokens",
    "restart": "overwrite clean fresh reset start-over from-scratch",
    "quiet": "silent no-progress",
    "dry-run": "dryrun plan preview estimate",
    "log": "json log-format log-json",
    "budget": "max-cost cost-limit max-spend max-budget spend-limit",
    "limit": "max-rows head first num-rows n-rows",
    "header": "headers extra-header",
    "param": "params extra-body extra parameter set",
    "timeout": "request-timeout timeout-s",
    "timeout-s": "timeout request-timeout",
    "deadline": "deadline-s max-time",
    "deadline-s": "deadline max-time",
    "row-deadline": "row-deadline-s row-timeout",
    "row-deadline-s": "row-deadline row-timeout",
    "rpm": "requests-per-minute max-rpm",
    "rps": "requests-per-second qps max-rps",
    "tpm": "tokens-per-minute max-tpm",
    "requests": "rate-limit ratelimit rate-limits rpd rph",
    "tokens": "tps tpd tph",
    "via": "batch batch-api",
    "ordered": "sorted keep-order preserve-order in-order sort",
    "keep-input": "include-input with-input",
    "raw": "raw-response full-response",
    "strict": "stop-on-error fail-fast exit-on-error",
    "stop-at-error-rate": "max-error-rate error-rate max-failure-rate failure-rate error-threshold",
    "longest-wait": "max-wait longest-wait-s max-retry-after",
    "longest-wait-s": "max-wait longest-wait max-retry-after",
    "follow": "watch tail",
}
_CONTINUES = "no flag is needed to continue an output: the same command sends the remaining rows"
# By a word that is not an option: a related option, and a hint to show if that option is known.
_SENTENCES = {
    **dict.fromkeys(("resume", "continue", "append"), ("restart", _CONTINUES)),
    **dict.fromkeys(
        (
            *("seed", "top-p", "top-k", "n", "stop", "presence-penalty", "frequency-penalty"),
            *("temperature", "max-tokens", "response-format", "tools"),
        ),
        ("param", "set it as a field of the body: {option}"),
    ),
    **dict.fromkeys(
        ("requests", "tokens", "input-tokens", "output-tokens", "profile", "headroom", "charge"),
        ("limits", "it belongs to {option}, which takes a redline.Limits"),
    ),
    **dict.fromkeys(
        ("input", "input-file", "in", "file", "dataset", "rows"),
        (
            "dry-run",
            "pass rows without a flag to run and tag, as --data to eval, as --rows-from to synth",
        ),
    ),
}


def meant(name: str, known: Iterable[str]) -> str:
    """Returns the hint for an unknown flag, setting or option, or an empty string.

    name: the unknown name as written. known: the known names, in the same form as `name`, such as
    `--max-retries` or `max_retries`.
    """
    plain = {_plain(each): each for each in known if not _is_short(each)}
    word = _plain(name)
    if word in _SENTENCES:
        option, hint = _SENTENCES[word]
        shown = f"--{option} NAME=VALUE" if name.startswith("-") else option
        if option == "param" and "params" in plain:
            option, shown = "params", f'params={{"{name}": ...}}'
        return hint.format(option=shown) if option in plain else ""
    for option, words in _SYNONYMS.items():
        if option in plain and word in words.split():
            return f"did you mean {plain[option]}?"
    return nearest(name, plain.values())


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()


def _is_short(name: str) -> bool:
    return name.startswith("-") and not name.startswith("--")
