"""The value of digits with their separators, and of what follows them: a fraction, `million`, `%`.

| text                          | number        | why                                           |
|-------------------------------|---------------|-----------------------------------------------|
| `1,234` `1'234` `12,345,678`  | 1234 ...      | groups of three                               |
| `1,00,000`                    | 100000        | Indian groups                                 |
| `1.234,56` `1.234.567`        | 1234.56 ...   | no other reading is left                      |
| `1.234`                       | 1.234         | a decimal point, as in English ...            |
| `70.000` in a text in German  | 70000         | ... but not where the language groups by it   |
| `12,50` `0,5`                 | 12.5, 0.5     | no group of three, so a decimal comma         |
| `25%`                         | 25, a percent | a percentage is asked for as 25               |
| `3:30` `12/25/2024` `1.2.3`   | nothing       | a time, a date, a version; `5:00` is 5        |
| more than 100 digits          | nothing       | a model in a loop; it bounds the work as well |
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from redline.tasks.plain import BOLD, THIN

MOST_DIGITS = 100
_MOST_EXPONENT = 100

_GROUPED = re.compile(
    r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|[1-9]\d?(?:,\d{2})+,\d{3}(?:\.\d+)?"
    rf"|[1-9]\d{{0,2}}(?:(?:'\d{{3}})+|(?:{THIN}\d{{3}})+)(?:[.,]\d+)?|[1-9]\d{{0,2}}(?:_\d{{3}})+"
)
_POINT_GROUPED = re.compile(r"[1-9]\d{0,2}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})")
_ONE_POINT_GROUP = re.compile(r"[1-9]\d{0,2}\.\d{3}")
_DECIMAL = re.compile(r"\d*[.,]\d+")
_GROUP_SIGNS = re.compile(f"['_{THIN}]")

_DATE = re.compile(r"/\d{1,2}/\d{2,4}(?!\d)|-(?:0\d|1[0-2])-(?:[0-2]\d|3[01])(?!\d)")
_TIME = re.compile(r":(\d\d?)(?!\d)(?::\d\d)?")
_EXPONENT = re.compile(r"[eE]([+-]?\d{1,12})(?!\w)")
_POWER = re.compile(rf"[ {THIN}]?[×x*·][ {THIN}]?10[ ]?(?:\^|{BOLD})[ ]?\(?([+-]?\d{{1,12}})\)?")
_OWN_POWER = re.compile(r"\^\(?([+-]?\d{1,12})\)?")
_OVER = re.compile(r"[ ]?/[ ]?(\d[\d,]*)(?![.,]?\d)")
_AND_OVER = re.compile(rf"(?:[ {THIN}]|[ ]and[ ]|-)(\d{{1,4}})/(\d{{1,4}})(?![\d/])")
_PERCENT = re.compile(
    rf"[ {THIN}]?%|[ -]?(?:percent\b|per cent\b|pct\b|Prozent\b|por ciento\b|por cento\b|"
    r"pour cent\b|per cento\b|процент\w*|パーセント|퍼센트)",
    re.IGNORECASE,
)
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b|[ºª](?!C)", re.IGNORECASE)
_MAGNITUDES = {
    **dict.fromkeys(("hundred", "百"), 10**2),
    **dict.fromkeys(("thousand", "thousands", "tausend", "tsd", "тыс", "千", "k"), 10**3),
    **dict.fromkeys(("million", "millions", "millionen", "mio", "mln", "mn", "m"), 10**6),
    **dict.fromkeys(("millón", "millones", "milhão", "milhões", "milione", "milioni"), 10**6),
    **dict.fromkeys(("miljoen", "миллион", "миллиона", "миллионов", "млн"), 10**6),
    **dict.fromkeys(("billion", "billions", "bn", "b", "milliard", "milliards"), 10**9),
    **dict.fromkeys(("milliarde", "milliarden", "mrd", "млрд", "miljard"), 10**9),
    **dict.fromkeys(("trillion", "trillions", "tn"), 10**12),
    **dict.fromkeys(("lakh", "lakhs", "लाख"), 10**5),
    **dict.fromkeys(("crore", "crores", "करोड़"), 10**7),
    **{"万": 10**4, "萬": 10**4, "만": 10**4, "亿": 10**8, "億": 10**8, "억": 10**8},
}
_ATTACHED = {"k", "m", "b", "bn", "mn", "tn"}  # these stand at their digits; `5 m` are metres
_AMBIGUOUS = {"m", "b"}
_MAGNITUDE = re.compile(r"([ -]?)([百千万萬만亿億억]|लाख|करोड़|[A-Za-zÀ-ÖØ-öø-ɏЀ-ӿ]+)")
_LONGEST_MAGNITUDE = 16


class Tail(NamedTuple):
    """What digits say together with what follows them, up to `end`. A time has no value."""

    end: int
    value: Fraction | None
    is_percent: bool = False
    is_ordinal: bool = False


def value_of(run: str, *, points_group: bool) -> Fraction | None:
    """The value of digits with their separators, or None where they are no one number.

    points_group: the text's language writes `70.000` for 70000.
    """
    if len(run) > MOST_DIGITS:
        return None
    if run.isdigit():
        return Fraction(run)
    is_point_grouped = _POINT_GROUPED.fullmatch(run) or (
        points_group and _ONE_POINT_GROUP.fullmatch(run)
    )
    if is_point_grouped:
        return Fraction(run.replace(".", "").replace(",", "."))
    if _GROUPED.fullmatch(run):
        has_comma_decimals = "," in run and _GROUP_SIGNS.search(run)
        return Fraction(_GROUP_SIGNS.sub("", run.replace(",", "." if has_comma_decimals else "")))
    return Fraction(run.replace(",", ".")) if _DECIMAL.fullmatch(run) else None


def with_tail(text: str, run: str, value: Fraction, span: tuple[int, int], is_money: bool) -> Tail:
    """What the digits `run` say with what follows them.

    span: where the digits end in `text`, and where reading must stop. is_money: a currency stands
    before them.
    """
    at, end = span
    is_whole = run.isdigit()
    date = _DATE.match(text, at, end) if is_whole else None
    if date is not None and (date[0][0] == "/" or len(run) == 4):
        return Tail(date.end(), None)
    time = _TIME.match(text, at, end) if is_whole else None
    if time is not None:
        return Tail(time.end(), value if time[1] == "00" else None)
    scaled, at = _fraction_or_power(text, value, at, end)
    if scaled is None:
        return Tail(at, None)
    percent = _PERCENT.match(text, at, end)
    if percent is not None:
        return Tail(percent.end(), scaled, is_percent=True)
    if is_whole and _ORDINAL.match(text, at, end):
        return Tail(at, scaled, is_ordinal=True)
    scaled, at = _magnified(text, scaled, at, end, is_money)
    return Tail(at, scaled)


def _fraction_or_power(
    text: str, value: Fraction, at: int, end: int
) -> tuple[Fraction | None, int]:
    """The value with its fraction or its power of ten, and where that ends."""
    power = _EXPONENT.match(text, at, end) or _POWER.match(text, at, end)
    own = _OWN_POWER.match(text, at, end) if value == 10 else None
    found = power or own
    if found is not None:
        exponent = int(found[1])
        base = value if power else Fraction(1)  # `10^6` is 1 times a million
        is_small = abs(exponent) <= _MOST_EXPONENT
        return base * Fraction(10) ** exponent if is_small else None, found.end()
    mixed = _AND_OVER.match(text, at, end) if value.denominator == 1 else None
    if mixed is not None and 0 < int(mixed[1]) < int(mixed[2]):
        return value + Fraction(int(mixed[1]), int(mixed[2])), mixed.end()
    over = _OVER.match(text, at, end)
    if over is None:
        return value, at
    below = over[1].replace(",", "")
    is_number = len(below) <= MOST_DIGITS and int(below) > 0
    return value / int(below) if is_number else None, over.end()


def _magnified(
    text: str, value: Fraction, at: int, end: int, is_money: bool
) -> tuple[Fraction, int]:
    """The value times `thousand`, `k`, `万`; a lone m is metres, but millions after a currency."""
    for _ in range(2):
        found = _MAGNITUDE.match(text, at, min(end, at + _LONGEST_MAGNITUDE))
        if found is None:
            break
        word = found[2].lower()
        is_unit = word in _ATTACHED and (
            found[1] != "" or (word in _AMBIGUOUS and found[2] == word and not is_money)
        )
        if is_unit or word not in _MAGNITUDES:
            break
        value *= _MAGNITUDES[word]
        at = found.end()
    return value, at
