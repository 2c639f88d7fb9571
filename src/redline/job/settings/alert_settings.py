"""Reads alert rules from redline.toml, or from the argument `alerts` in Python.

The value of a rule is one of:
  20, 0.2 or "20%"               the threshold
  {above = "20%", for = "2m"}    the threshold, under `above` or `below` depending on the rule, and
                                 how long the figure must be beyond it before an alert fires; either
                                 may be left out if the rule has a default for it
  false                          leaves the rule out
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from redline.calls.wire import is_http_url
from redline.errors import ConfigError
from redline.job.settings import values
from redline.job.settings.tables import errors_in, refuse_unknown
from redline.observe import BUILT_IN, KNOWN_RULES, AlertSettings, Rule

_KEYS = ("webhook", "built_in", *KNOWN_RULES)
_MOST = 1e12


def parse_alerts(table: Mapping[str, Any], where: str) -> AlertSettings:
    """Returns the table's rules, with the other built-in rules unless `built_in` is false.

    where: the table's name in errors. Raises ConfigError for an unknown key or rule, or an invalid
    value.
    """
    refuse_unknown(table, _KEYS, where)
    has_built_in = table.get("built_in", True)
    if not isinstance(has_built_in, bool):
        raise ConfigError("built_in must be true or false", where=where)
    rules = {rule.name: rule for rule in BUILT_IN} if has_built_in else {}
    for name in KNOWN_RULES:
        if name in table:
            rules.pop(name, None)
            if table[name] is not False:
                rules[name] = _rule(name, table[name], where)
    webhook = _webhook(table.get("webhook", ""), where)
    return AlertSettings(rules=tuple(rules.values()), webhook=webhook)


def _rule(name: str, stated: object, where: str) -> Rule:
    known = KNOWN_RULES[name]
    usual = "" if known.usual is None else known.usual
    if not isinstance(stated, Mapping):
        stated = dict[str, object]({known.word: stated})
    where_rule = f"{where}, {name}"
    for key in stated:
        if key not in (known.word, "for"):
            raise ConfigError(
                f"unknown setting: {key}",
                where=where_rule,
                hint=f'for example {name} = {{ {known.word} = {usual or 20}, for = "2m" }}',
            )
    threshold, for_s = stated.get(known.word, known.usual), known.for_s
    if threshold is None:
        raise ConfigError(
            f"{name} needs a target", where=where_rule, hint=f"for example {name} = 20"
        )
    if "for" in stated:
        with errors_in(where_rule):
            for_s = values.duration(str(stated["for"]), "for")
    value = _threshold(name, threshold, where_rule)
    return Rule(name=name, threshold=value, for_s=for_s, is_stated=True)


def _threshold(name: str, stated: object, where: str) -> float:
    known = KNOWN_RULES[name]
    value, is_percent = values.as_share(stated), str(stated).strip().endswith("%")
    what = ""
    if is_percent and not known.is_share:
        what = f"{name} must be a number above 0, not a percentage: {stated}"
    elif not value > 0:
        what = f"{name} is not a number above 0: {stated}"
    elif value > _MOST:
        what = f"{name} must be at most 10^12, not {stated}"
    elif known.is_part and value >= 1:
        what = f"{name} must be below 100 %, not {stated}"
    if what:
        example = '0.2, or "20%"' if known.is_share else "20"
        raise ConfigError(what, where=where, hint=f"for example {example}")
    return value


def _webhook(stated: object, where: str) -> str:
    """Returns the URL. Errors do not show it, since its path is often a secret."""
    if stated == "":
        return ""
    is_url = isinstance(stated, str) and is_http_url(stated) and "#" not in stated
    if not is_url or "@" in urlsplit(str(stated)).netloc:
        raise ConfigError(
            "webhook must be an http:// or https:// URL without a user name or a fragment",
            where=where,
            hint='for example webhook = "https://hooks.example.com/redline"',
        )
    return str(stated)
