"""Formats an engine's Prometheus metrics, under the names that vLLM uses.

A dashboard or a gateway that reads vLLM's /metrics can also read this page. Metrics for which vLLM
has no name begin with `redline:`. The names are those of vLLM 0.32 (vllm/v1/metrics/loggers.py).
"""

from __future__ import annotations

from redline.engine.step.core import Core

# The scheduler's reason for the end of a sequence, and vLLM's word for it.
_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "failed": "error"}


class Metrics:
    """Formats the figures of `core`. Any thread may do so, since each figure is one number."""

    def __init__(self, core: Core, name: str) -> None:
        self._core = core
        quoted = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._label = f'model_name="{quoted}"'

    @property
    def batch_rows(self) -> int:
        """The number of sequences in each step, summed over all steps."""
        return self._core.figures.rows

    @property
    def batch_places(self) -> int:
        """The number of sequences that all steps together had room for."""
        return self._core.figures.steps * self._core.scheduler.bounds.slots

    def __str__(self) -> str:
        scheduler, figures = self._core.scheduler, self._core.figures
        cache_tokens = scheduler.bounds.cache_tokens
        steps, drafted = max(1, figures.steps), max(1, figures.drafted_tokens)
        told = {
            "vllm:num_requests_running": len(scheduler.running),
            "vllm:num_requests_waiting": len(scheduler.waiting),
            "vllm:kv_cache_usage_perc": scheduler.used_tokens / cache_tokens,
            "vllm:num_preemptions_total": scheduler.preemptions,
            "vllm:prompt_tokens_total": figures.prompt_tokens,
            "vllm:prompt_tokens_cached_total": scheduler.reused_tokens,
            "vllm:generation_tokens_total": figures.new_tokens,
            "vllm:spec_decode_num_drafts_total": figures.drafts,
            "vllm:spec_decode_num_draft_tokens_total": figures.drafted_tokens,
            "vllm:spec_decode_num_accepted_tokens_total": figures.accepted_tokens,
            "redline:steps_total": figures.steps,
            "redline:batch_size_mean": figures.rows / steps,
            "redline:batch_efficiency": self.batch_rows / max(1, self.batch_places),
            "redline:tokens_per_step_mean": figures.computed_tokens / steps,
            "redline:draft_acceptance": figures.accepted_tokens / drafted,
        }
        lines = []
        for name, value in told.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            shown = f"{value:g}" if isinstance(value, float) else value
            lines += [f"# TYPE {name} {kind}", f"{name}{{{self._label}}} {shown}"]
        name = "vllm:request_success_total"
        lines += [f"# TYPE {name} counter"]
        for reason, word in _REASONS.items():
            labels = f'{self._label},finished_reason="{word}"'
            lines += [f"{name}{{{labels}}} {scheduler.ends[reason]}"]
        return "\n".join([*lines, ""])
