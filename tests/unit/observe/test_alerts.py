"""Which alerts the windows of a run raise, when, and when they end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import redline
from redline.errors import ConfigError
from redline.job.settings import EmbeddedSim, make_job, parse_alerts
from redline.observe import BUILT_IN, KNOWN_RULES, Alert, Alerts, AlertSettings, Rule
from redline.timeline import ServerUse, Sketch, Totals, Window
from support.catching import assert_caught

BUSY = {"limit": 10}
RATE = Rule(name="rows_per_s", threshold=20, for_s=10)


def run(*parts: tuple[int, dict[str, Any]]) -> list[Window]:
    """The windows of a run: for so many seconds, each with these fields."""
    found: list[Window] = []
    for seconds, fields in parts:
        for _ in range(seconds):
            at_s = float(len(found))
            stated = {"samples": 10, "held": BUSY, **fields}
            found.append(Window(begin_s=at_s, end_s=at_s + 1, **stated))
    return found


def raised(rules: Iterable[Rule], windows: list[Window], **budget: Any) -> list[Alert]:
    alerts = Alerts(tuple(rules), **budget)
    return [one for n in range(1, len(windows) + 1) for one in alerts.note(windows[:n])]


def told(found: Iterable[Alert]) -> list[tuple[str, str]]:
    return [(one.rule, one.state) for one in found]


def test_an_alert_fires_once_after_its_time_and_ends_once() -> None:
    fast, slow = {"done": 40}, {"done": 5}
    found = raised([RATE], run((30, fast), (60, slow), (40, fast)))
    assert told(found) == [("rows_per_s", "firing"), ("rows_per_s", "ended")]
    first, last = found
    # Half of the ten seconds that it is of are slow, and then it takes ten more.
    assert 40 <= first.at_s <= 46
    assert first.at_s - first.since_s == 10
    assert 100 <= last.at_s <= 108
    assert first.number == last.number == 1
    assert first.text == (
        "rows/s below 20 for 10 s: 5; rule of thumb: a higher limit or budget, or another key "
        "or endpoint (bound by a rate limit)"
    )
    assert last.what == "rows/s no longer below 20: 40 now"


def test_a_figure_that_is_beyond_for_less_than_its_time_raises_nothing() -> None:
    parts = [(20, {"done": 40}), (7, {"done": 0})] * 5
    assert raised([RATE], run(*parts)) == []


def test_a_figure_that_swings_about_its_threshold_keeps_one_alert() -> None:
    swings = [(8, {"done": 5}), (1, {"done": 100})] * 10
    found = raised([RATE], run((30, {"done": 5}), *swings))
    assert told(found) == [("rows_per_s", "firing")]

    class Hasty(Alerts):
        """Ends an alert as soon as its figure is better."""

        def note(self, windows: list[Window]) -> list[Alert]:  # type: ignore[override]
            if self.firing and windows[-1].done > 5:
                return self.end(windows[-1].end_s)
            return super().note(windows)

    def told_by(kind: type[Alerts]) -> None:
        alerts, windows = kind([RATE]), run((30, {"done": 5}), *swings)
        states = [one for n in range(1, len(windows) + 1) for one in alerts.note(windows[:n])]
        assert len(states) == 1

    assert_caught(told_by, Alerts, Hasty)


def test_the_end_of_a_run_ends_its_alerts() -> None:
    windows = run((60, {"done": 5}))
    alerts = Alerts([RATE])
    for n in range(1, 61):
        alerts.note(windows[:n])
    assert [one.rule for one in alerts.firing] == ["rows_per_s"]
    assert alerts.firing[0].what == "rows/s below 20 for 52 s: 5"
    assert told(alerts.end(60.0)) == [("rows_per_s", "ended")]
    assert alerts.firing == []
    assert alerts.end(60.0) == []


IDLE = [{"rest": 10}, {"input": 10}, {"batch": 10}]


@pytest.mark.parametrize("held", IDLE)
@pytest.mark.parametrize("name", ["rows_per_s", "tokens_per_s", "tokens_falling"])
def test_a_run_without_rows_to_send_is_not_slow(name: str, held: dict[str, int]) -> None:
    rule = Rule(name=name, threshold=0.9 if name == "tokens_falling" else 20, for_s=10)
    fast = {"done": 40, "output_tokens": 4000}
    assert raised([rule], run((80, fast), (60, {"held": held}))) == []
    # Otherwise it would be.
    assert told(raised([rule], run((80, fast), (60, {})))) == [(name, "firing")]


FAILING = {"answered": 7, "errors": {"rate_limited": 2, "timed_out": 1, "cancelled": 9}}
WELL = {"answered": 10, "output_tokens": 500}


def test_the_built_in_rules_are_quiet_in_a_healthy_run() -> None:
    waits = {"waiting": 60.0, "totals": Totals(rows=9000, done=100, spent_usd=0.1)}
    windows = run((1, {"held": {"client": 10}}), (600, {**WELL, **waits}), (5, {"held": IDLE[0]}))
    assert raised(BUILT_IN, windows, budget_usd=5.0) == []


def test_failing_attempts() -> None:
    found = raised(BUILT_IN, run((30, WELL), (70, FAILING), (120, WELL)))
    assert told(found) == [("error_rate", "firing"), ("error_rate", "ended")]
    assert found[0].value == pytest.approx(0.3, abs=0.1)
    assert "--rpm" in found[0].advice
    assert "most are rate_limited" in found[0].advice


def test_few_attempts_say_nothing_of_their_share() -> None:
    one = {"errors": {"timed_out": 1}}
    parts = [(1, one), (9, {})] * 20
    assert raised(BUILT_IN, run(*parts)) == []


def test_tokens_that_fall() -> None:
    found = raised(BUILT_IN, run((90, WELL), (120, {"answered": 10, "output_tokens": 200})))
    assert told(found) == [("tokens_falling", "firing")]
    assert found[0].value == pytest.approx(0.4, abs=0.02)


def test_a_queue_that_grows() -> None:
    growing = [(1, {**WELL, "retrying": 10.0 * 1.02**second}) for second in range(200)]
    found = raised(BUILT_IN, run((30, WELL), *growing))
    assert told(found) == [("queue_growth", "firing")]


@pytest.mark.parametrize("stopped_s", [15, 600])
def test_a_stop_of_the_process_does_not_make_the_queue_grow(stopped_s: int) -> None:
    rule = Rule(name="queue_growth", threshold=1.2, for_s=5)
    parts = [(60, {"waiting": 300.0}), (1, {"samples": 0}), (90, {"waiting": 300.0})]
    windows = run(*parts)
    for at, window in enumerate(windows[60:], 60):
        begin_s = window.begin_s + (stopped_s if at > 60 else 0)
        end_s = window.end_s + stopped_s
        windows[at] = replace(window, begin_s=begin_s, end_s=end_s)
    assert raised([rule], windows) == []


@pytest.mark.parametrize("kind", ["usd", "tokens"])
def test_a_budget_that_will_not_do(kind: str) -> None:
    def windows(each: float) -> Iterator[tuple[int, dict[str, Any]]]:
        for second in range(120):
            rows = 10 * second
            spent = {"spent_usd": each * rows, "spent_tokens": round(1000 * each * rows)}
            yield 1, {"done": 10, "totals": Totals(rows=10_000, done=rows, **spent)}

    budget = {"budget_usd": 5.0} if kind == "usd" else {"budget_tokens": 5000}
    found = raised(BUILT_IN, run(*windows(0.001)), **budget)
    assert told(found) == [("budget_burn", "firing")]
    assert found[0].value == pytest.approx(2.0, rel=0.05)
    assert raised(BUILT_IN, run(*windows(0.0004)), **budget) == []
    assert raised(BUILT_IN, run(*windows(0.001))) == []


@pytest.mark.parametrize(
    ("rule", "low", "high"),
    [
        ("batch_efficiency", {"batch_rows": 2, "batch_places": 4}, {"batch_rows": 3}),
        ("gpu_utilization", {"gpu_busy": 0.4, "gpu_reads": 1}, {"gpu_busy": 0.6}),
    ],
)
def test_a_model_that_is_not_used_raises_an_alert(
    rule: str, low: dict[str, Any], high: dict[str, Any]
) -> None:
    few, many = ServerUse(**low), ServerUse(**{**low, **high})
    found = raised(BUILT_IN, run((70, {"server": many}), (110, {"server": few})))
    assert told(found) == [(rule, "firing")]
    assert raised(BUILT_IN, run((180, {"server": many}))) == []
    assert raised(BUILT_IN, run((180, {"server": few, "held": {"rest": 10}}))) == []


class Model(EmbeddedSim):
    """An embedded server that reports its use. gpu_reads: 0 without a GPU."""

    def __init__(self, gpu_reads: int = 0) -> None:
        self.gpu_reads = gpu_reads

    def use(self) -> ServerUse:
        return ServerUse(gpu_reads=self.gpu_reads)


@pytest.mark.parametrize("rule", ["batch_efficiency", "gpu_utilization"])
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9/v1", "sim"])
def test_a_stated_rule_without_a_figure_is_refused(rule: str, endpoint: str) -> None:
    job = {"endpoint": endpoint, "prompt": "a"}
    with pytest.raises(ConfigError) as caught:
        make_job([{}], {**job, "alerts": {rule: 0.5}}, {})
    assert caught.value.what.startswith(f"the job has no figure for the alert {rule}: ")
    assert "--endpoint engine:MODEL" in caught.value.hint
    make_job([{}], {**job, "alerts": {rule: False}}, {})
    make_job([{}], {**job, "endpoint": Model(), "alerts": {rule: 0.5}}, {})


def test_a_rule_for_a_gpu_is_refused_once_the_model_has_none() -> None:
    def ask(endpoint: object, **alerts: float) -> redline.Report:
        return redline.run(["a"], endpoint=endpoint, model="m", alerts=alerts)

    with pytest.raises(ConfigError) as caught:
        ask(Model(), gpu_utilization=0.5)
    assert caught.value.what.startswith("the job has no figure for the alert gpu_utilization: ")
    assert ask(Model(), batch_efficiency=0.5).succeeded == 1
    assert ask(Model(gpu_reads=1), gpu_utilization=0.5).succeeded == 1
    assert ask(Model()).succeeded == 1


def test_settings_replace_and_leave_out_built_in_rules() -> None:
    settings = parse_alerts({"error_rate": "30%", "tokens_falling": False, "rows_per_s": 20}, "x")
    rules = {rule.name: (rule.threshold, rule.for_s) for rule in settings.rules}
    assert rules["error_rate"] == (0.3, 30)
    assert rules["rows_per_s"] == (20, 60)
    assert "tokens_falling" not in rules
    assert "queue_growth" in rules
    assert parse_alerts({"built_in": False}, "x") == AlertSettings(rules=())


WRONG = {
    "unknown": ({"error_rte": 0.2}, "unknown setting: error_rte", "did you mean error_rate?"),
    "word": ({"error_rate": {"below": 0.2}}, "unknown setting: below", "above = 0.2"),
    "text": ({"error_rate": "lots"}, "error_rate is not a number above 0: lots", "20%"),
    "percent": ({"rows_per_s": "20%"}, "rows_per_s must be a number above 0, not a perc", "e 20"),
    "nothing": ({"rows_per_s": {"for": "2m"}}, "rows_per_s needs a target", "rows_per_s = 20"),
    "five": ({"error_rate": 5}, "error_rate must be below 100 %, not 5", "20%"),
    "all": ({"error_rate": "100%"}, "error_rate must be below 100 %, not 100%", "20%"),
    "most": ({"tokens_falling": 50}, "tokens_falling must be below 100 %, not 50", "20%"),
    "huge": ({"rows_per_s": 2e12}, "rows_per_s must be at most 10^12, not 2", "20"),
    "endless": ({"rows_per_s": {"below": "inf"}}, "rows_per_s must be at most 10^12, not inf", ""),
    "true": ({"error_rate": True}, "error_rate is not a number above 0: True", "20%"),
    "time": ({"error_rate": {"for": "soon"}}, "for is not a time: soon", "5m"),
    "webhook": ({"webhook": "hooks.example.com"}, "webhook must be an http", "https://"),
    "user": ({"webhook": "https://me:pass@h/x"}, "webhook must be an http", "https://"),
    "built in": ({"built_in": "no"}, "built_in must be true or false", ""),
}


@pytest.mark.parametrize(("table", "what", "hint"), WRONG.values(), ids=WRONG.keys())
def test_wrong_settings_are_refused_by_name(table: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_alerts(table, "redline.toml, [alerts]")
    assert caught.value.what.startswith(what)
    assert hint in caught.value.hint
    assert caught.value.where.startswith("redline.toml, [alerts]")
    assert "pass" not in str(caught.value)


def test_a_webhook_is_not_printed() -> None:
    settings = parse_alerts({"webhook": "https://hooks.example.com/T00/secret"}, "x")
    assert "secret" not in repr(settings)
    assert settings.webhook.endswith("/secret")


def test_every_rule_has_a_usual_time() -> None:
    assert all(known.for_s > 0 for known in KNOWN_RULES.values())


def test_an_alert_advises_what_the_run_has_shown_to_help() -> None:
    """At 4, 8 and 16 calls in flight the answers grew in proportion."""

    def level(seconds: int, n: int, **fields: Any) -> tuple[int, dict[str, Any]]:
        """So many calls in flight, each of 0.2 s."""
        latency = Sketch.of([0.2 + 0.001 * i for i in range(5 * n)])
        stated = {"in_flight": float(n), "slots": float(n), "held": {"slots": 10}, "done": 5}
        return seconds, {**stated, "answered": 5 * n, "latency": latency, **fields}

    first = Sketch.of([0.2] * 4)
    parts = [level(1, 4, latency=first, first=first), level(19, 4), level(20, 8), level(50, 16)]
    (alert,) = raised([RATE], run(*parts))[:1]
    assert "rule of thumb: more calls in flight (-c)" in alert.text
    late = Rule(name="rows_per_s", threshold=20, for_s=55)
    (alert,) = raised([late], run(*parts))[:1]
    assert "32 calls in flight would bring +" in alert.text
    assert "rule of thumb" not in alert.text
