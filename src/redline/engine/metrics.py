"""What an engine tells Prometheus, by the names that vLLM has made the field's.

So a dashboard or a gateway that reads vLLM's /metrics reads this one as well. What vLLM has no
name for begins with `redline:`. The names are those of vLLM 0.32 (vllm/v1/metrics/loggers.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from redline.engine.core import Core

# A scheduler's reason, and vLLM's word for it.
_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "failed": "error"}


class Metrics:
    """The figures of `core`, as text. Read from any thread: each figure is one number."""

    def __init__(self, core: Core, name: str) -> None:
        self._core = core
        quoted = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._label = f'model_name="{quoted}"'

    def __str__(self) -> str:
        return "".join(line + "\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        scheduler, figures = self._core.scheduler, self._core.figures
        bounds = scheduler.bounds
        used = scheduler.used_tokens / bounds.cache_tokens
        yield from self._one("vllm:num_requests_running", len(scheduler.running))
        yield from self._one("vllm:num_requests_waiting", len(scheduler.waiting))
        yield from self._one("vllm:kv_cache_usage_perc", used)
        yield from self._one("vllm:num_preemptions_total", scheduler.preemptions)
        yield from self._one("vllm:prompt_tokens_total", figures.prompt_tokens)
        yield from self._one("vllm:prompt_tokens_cached_total", scheduler.reused_tokens)
        yield from self._one("vllm:generation_tokens_total", figures.new_tokens)
        yield "# TYPE vllm:request_success_total counter"
        for reason, word in _REASONS.items():
            labels = f'{self._label},finished_reason="{word}"'
            yield f"vllm:request_success_total{{{labels}}} {scheduler.ends[reason]}"
        yield from self._one("vllm:spec_decode_num_drafts_total", figures.drafts)
        yield from self._one("vllm:spec_decode_num_draft_tokens_total", figures.drafted_tokens)
        yield from self._one("vllm:spec_decode_num_accepted_tokens_total", figures.accepted_tokens)
        steps, drafted = max(1, figures.steps), max(1, figures.drafted_tokens)
        yield from self._one("redline:steps_total", figures.steps)
        yield from self._one("redline:batch_size_mean", figures.rows / steps)
        yield from self._one("redline:batch_efficiency", figures.rows / steps / bounds.slots)
        yield from self._one("redline:tokens_per_step_mean", figures.computed_tokens / steps)
        yield from self._one("redline:draft_acceptance", figures.accepted_tokens / drafted)

    def _one(self, name: str, value: float) -> Iterator[str]:
        kind = "counter" if name.endswith("_total") else "gauge"
        yield f"# TYPE {name} {kind}"
        yield (
            f"{name}{{{self._label}}} {value:g}"
            if isinstance(value, float)
            else (f"{name}{{{self._label}}} {value}")
        )
