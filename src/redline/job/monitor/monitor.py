"""Updates the metrics and alerts of a run at the end of each window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from redline.apis import loose_json
from redline.calls.cost import DOLLAR, Allowance
from redline.clock import SYSTEM
from redline.events import AlertChanged, Listener
from redline.job.monitor.metrics import Family, families
from redline.job.monitor.webhook import Webhook
from redline.job.settings import Job
from redline.job.show import View
from redline.observe import Alert, Alerts
from redline.timeline import Window, merged

_NO_TIME = Window(begin_s=0.0, end_s=0.0)


def alerts_of(job: Job) -> Alerts:
    """Returns the alerts for the rules of the job; none of them is firing yet."""
    allowance = job.allowance or Allowance()
    picodollars = allowance.picodollars
    return Alerts(
        job.alerts.rules,
        budget_usd=None if picodollars is None else picodollars / DOLLAR,
        budget_tokens=allowance.tokens,
    )


@dataclass(eq=False, repr=False)
class Monitor:
    """Updates the metrics and alerts of one run.

    listener, webhook: notified when an alert begins or ends; webhook is None if no alerts are sent.
    on_figures: called with the metrics of the run at the end of each window; None for no callback.
    """

    _view: View
    _webhook: Webhook | None
    _listener: Listener
    _on_figures: Callable[[list[Family]], None] | None
    _whole: Window = _NO_TIME

    def note(self, window: Window) -> None:
        """Updates metrics and alerts with the window that has just ended."""
        self._whole = merged([self._whole, window])
        self._notify(self._view.alerts.note(self._view.sampler.windows))
        if self._on_figures is not None:
            self._on_figures(self.families())

    def families(self) -> list[Family]:
        """Returns the current metrics of the run."""
        return families(self._view, self._whole)

    async def finish(self) -> None:
        """Ends the alerts, and gives the webhook a moment to send the remaining notifications."""
        windows = self._view.sampler.windows
        self._notify(self._view.alerts.end(windows[-1].end_s if windows else 0.0))
        if self._webhook is not None:
            await self._webhook.aclose()

    def _notify(self, changed: list[Alert]) -> None:
        for alert in changed:
            event = AlertChanged(
                at_s=SYSTEM.now_s(),
                rule=alert.rule,
                number=alert.number,
                state=alert.state,
                value=alert.value,
                threshold=alert.threshold,
                what=alert.what,
                advice=alert.advice,
            )
            self._listener.on_event(event)
            if self._webhook is not None:
                self._webhook.put(self._body(alert))

    def _body(self, alert: Alert) -> dict[str, object]:
        """Returns the body of an alert's notification. Chat programs show its field `text`."""
        facts, job = self._view.sampler.facts, self._view.job
        # JSON cannot hold a file name that is not UTF-8.
        output = None if job.output is None else loose_json.paired(job.output.name)
        text = alert.text if alert.state == "firing" else alert.what
        return {
            "event": "alert",
            "id": f"{facts.host}-{facts.pid}-{facts.at:.0f}-{alert.number}-{alert.state}",
            "text": f"redline, {output or facts.input}: {text}",
            "job": {
                "input": facts.input,
                "output": output,
                "model": facts.model,
                "host": facts.host,
                "pid": facts.pid,
                "began": facts.at,
            },
            **msgspec.structs.asdict(alert),
        }
