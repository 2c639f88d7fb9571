"""The numbers of plain text, in digits or words, with their sign, currency and unit of count.

What digits say with their separators, and with a fraction, `million` or `%` behind them:

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
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from redline.tasks.answers.number_words import chinese, worded
from redline.tasks.answers.plain_text import BOLD, THIN, plain_text

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

_NEAR = 24  # characters before a numeral that can belong to it

_LETTER = r"A-Za-zÀ-ÖØ-öø-ɏͰ-ϿЀ-ӿ"
_CODES = r"USD|EUR|GBP|INR|JPY|CNY|RMB|CHF|CAD|AUD|SEK|NOK|DKK|PLN|BRL|Rs\.?|Rp\.?|RM|kr\.?"
_MONEY = (
    rf"(?:(?:(?<![{_LETTER}])(?:US|CA|AU|NZ|HK|NT|[RCAS]))?\$+|[€£¥₹₩₽₺₫฿₱₦₴₪]"
    rf"|(?<![{_LETTER}])(?:{_CODES}))"
)
_DIGITS = re.compile(rf"\d+(?:[.,'_{THIN}]\d+)*|(?<![\w.])\.\d+")
_BEFORE = re.compile(rf"(-[ ]?)?({_MONEY}[ {THIN}]?)?(-?)$")
_NAME = re.compile(rf"[{_LETTER}_^#@]$")
_WORD_END = re.compile(rf"[{_LETTER}]{{2}}$")
_MINUS_WORD = re.compile(
    r"(minus|negative|moins|menos|meno|минус|负|負|マイナス)[ ]?$", re.IGNORECASE
)
_IS_SIGNED = re.compile(r"(?:[=(≈]|\bis|\bequals)[ $]*$")
_IS_LETTER = re.compile(f"[{_LETTER}]")
_LIST = re.compile(r"\d+(?:,\d+)+")
_SPACED = re.compile(r"(?:[ ]\d{3})+(?!\d)(?:[.,]\d+)?(?!\d)")
_MONEY_AFTER = re.compile(
    rf"[ {THIN}]?(?:[€£¥₹₽₺$]|(?:US )?dollars?\b|bucks\b|euros?\b|cents?\b|pounds?\b|rupees?\b|"
    r"USD\b|EUR\b|GBP\b|美元|元|円|ドル|달러|원)"
)
_CENTS = re.compile(
    r"(?:[ ](?:dollars?|euros?|pounds?))?(?:,? and|,)[ ](\d{1,2})[ ](?:cents?|pence)\b", re.I
)
_COEFFICIENT = re.compile(r"[xyzn](?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value; `25%` is 25 with is_percent."""

    value: Fraction
    is_percent: bool = False

    def __str__(self) -> str:
        """`18`, `-4.5`, `25%`; a fraction where decimals would not end: `1/3`."""
        sign = "%" if self.is_percent else ""
        places = _places(self.value.denominator)
        if places is None:
            return f"{self.value}{sign}"
        digits = str(abs(self.value.numerator) * 10**places // self.value.denominator)
        if places:
            digits = digits.rjust(places + 1, "0")
            digits = f"{digits[:-places]}.{digits[-places:]}"
        return f"{'-' if self.value < 0 else ''}{digits}{sign}"


def is_same(one: Number, other: Number) -> bool:
    """Whether two numbers say the same; 18, 18.0 and $18.00 do. Nothing is rounded.

    A percentage is the same as the bare number (`25%` as 25, which is how GSM8K's answers state
    percentages) and as the share (`25%` as 0.25); two percentages must be equal.
    """
    if one.value == other.value:
        return True
    if one.is_percent == other.is_percent:
        return False
    percent, share = (one, other) if one.is_percent else (other, one)
    return percent.value == 100 * share.value


def _places(denominator: int) -> int | None:
    """The decimals that a fraction with this denominator needs, or None where they never end."""
    twos = fives = 0
    while denominator % 2 == 0:
        denominator //= 2
        twos += 1
    while denominator % 5 == 0:
        denominator //= 5
        fives += 1
    return max(twos, fives) if denominator == 1 else None


@dataclass(frozen=True, slots=True)
class Numeral:
    """Where a numeral stands in its text, and what it says; `number` is None for a time or date.

    is_ordinal: `18th`. is_money: a currency stands with it. is_coefficient: `2x`, which is no
    number of its own.
    """

    start: int
    end: int
    number: Number | None
    is_ordinal: bool = False
    is_money: bool = False
    is_coefficient: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """How numerals are read where their digits do not say.

    points_group: the text's language writes `70.000` for 70000. spaces_group: `1 234` is one
    number; else it is two, unless it is money, has decimals, or has two such groups.
    """

    points_group: bool = False
    spaces_group: bool = False


class _Lead(NamedTuple):
    """What stands before digits and belongs to them."""

    start: int
    is_negative: bool
    is_money: bool


class _Tail(NamedTuple):
    """What digits say together with what follows them, up to `end`. A time has no value."""

    end: int
    value: Fraction | None
    is_percent: bool = False
    is_ordinal: bool = False


def read_number(text: str) -> Number | None:
    """The number that `text` is, in digits or in words, and None where it is anything else."""
    return whole_number(plain_text(text))


def whole_number(text: str) -> Number | None:
    """The number that a plain text is as a whole, and None where it is anything else."""
    plain = text.replace(BOLD, "").strip().removesuffix(".").removeprefix("+").strip()
    found = (
        next(numerals(plain, 0, len(plain), Reading(spaces_group=True)), None)
        or next(word_numerals(plain, 0, len(plain)), None)
        or chinese_numeral(plain, 0)
    )
    if found is None or found.is_ordinal or plain[: found.start].strip("$"):
        return None
    money = _MONEY_AFTER.match(plain, found.end)
    rest = plain[money.end() if money else found.end :]
    return None if rest.strip(" $") else found.number


def numerals(text: str, start: int, end: int, reading: Reading) -> Iterator[Numeral]:
    """The numerals in digits of the plain text `text[start:end]`, in order, in linear time.

    Digits that belong to a name, as in `H2O` or `m^2`, are none. A list without spaces, such as
    `3,5,7`, is several.
    """
    at = start
    while found := _DIGITS.search(text, at, end):
        lead = _lead(text, max(start, found.start() - _NEAR), found.start())
        if lead is None:
            at = found.end()
            continue
        run, stop = found[0], found.end()
        groups = _spaced(text, found, end, reading, lead.is_money)
        if groups is not None:
            run, stop = run + groups[0].replace(" ", THIN), groups.end()
        value = _value_of(run, points_group=reading.points_group)
        if value is None:
            yield from _unread(run, found.start(), stop)
            at = stop
            continue
        numeral = _numeral(text, run, value, lead, (stop, end))
        yield numeral
        at = max(stop, numeral.end)


def word_numerals(text: str, start: int, end: int) -> Iterator[Numeral]:
    """The numerals in English words of the plain text `text[start:end]`, in order."""
    for found in worded(text, start, end):
        head = text[max(start, found.start - _NEAR) : found.start]
        minus = _MINUS_WORD.search(head)
        first = found.start - (len(head) - minus.start()) if minus else found.start
        yield Numeral(first, found.end, Number(-found.value if minus else found.value))


def chinese_numeral(text: str, at: int) -> Numeral | None:
    """The numeral in Chinese characters that begins exactly at `at`."""
    found = chinese(text, at, len(text))
    return found and Numeral(found.start, found.end, Number(found.value))


def _unread(run: str, start: int, end: int) -> Iterator[Numeral]:
    """The numbers of a list without spaces, or one numeral without a number."""
    if len(run) > MOST_DIGITS or not _LIST.fullmatch(run):
        yield Numeral(start, end, None)
        return
    for part in re.finditer(r"\d+", run):
        yield Numeral(start + part.start(), start + part.end(), Number(Fraction(part[0])))


def _numeral(text: str, run: str, value: Fraction, lead: _Lead, span: tuple[int, int]) -> Numeral:
    tail = _with_tail(text, run, value, span, lead.is_money)
    at, full = tail.end, tail.value
    is_money = lead.is_money or _MONEY_AFTER.match(text, at, span[1]) is not None
    cents = _CENTS.match(text, at, span[1]) if is_money else None
    if cents is not None and full is not None and full.denominator == 1:
        full, at = full + Fraction(int(cents[1]), 100), cents.end()
    if full is not None and lead.is_negative:
        full = -full
    return Numeral(
        lead.start,
        at,
        None if full is None else Number(full, tail.is_percent),
        is_ordinal=tail.is_ordinal,
        is_money=is_money,
        is_coefficient=_COEFFICIENT.match(text, at, span[1]) is not None,
    )


def _spaced(
    text: str, found: re.Match[str], end: int, reading: Reading, is_money: bool
) -> re.Match[str] | None:
    """The groups after ordinary spaces that belong to the digits of `found`."""
    run = found[0]
    if len(run) > 3 or not run.isdigit() or run[0] == "0":
        return None
    groups = _SPACED.match(text, found.end(), end)
    if groups is None:
        return None
    is_doubtful = len(groups[0]) == 4 and groups[0][1] != "0"  # as in `2 500 ml bottles`
    is_money = is_money or _MONEY_AFTER.match(text, groups.end(), end) is not None
    is_one = reading.spaces_group or reading.points_group or is_money or not is_doubtful
    return groups if is_one else None


def _lead(text: str, begin: int, digits: int) -> _Lead | None:
    """The sign and currency of the digits at `digits`; None where they are part of a name."""
    head = text[begin:digits]
    before = _BEFORE.search(head)
    assert before is not None  # it matches the empty end
    is_money = before[2] is not None
    first = before.start(2) if is_money else before.start(3)
    if before[3] and is_money:
        return _Lead(begin + first, True, True)  # `$-5`
    outside = head[: before.start()]
    if not is_money and _is_name(outside, has_hyphen=before.start() < len(head)):
        return None
    if before[1] or before[3]:
        is_double = bool(before[1] and before[3])
        is_apart = before[1] == "- "
        is_minus = _IS_SIGNED.search(outside) is not None if is_apart else _is_minus(outside)
        if is_double or not is_minus:
            return _Lead(begin + first if is_money else digits, False, is_money)
        return _Lead(begin + before.start(), True, is_money)
    word = _MINUS_WORD.search(outside)
    if word is None or (word[1].lower() != "negative" and not _is_minus(head[: word.start()])):
        return _Lead(begin + first, False, is_money)
    return _Lead(begin + word.start(), True, is_money)


def _is_name(head: str, *, has_hyphen: bool) -> bool:
    """Whether digits after `head` belong to a name, as in `H2O`, `x_1`, `COVID-19`."""
    if not has_hyphen:
        return _NAME.search(head) is not None
    return _WORD_END.search(head) is not None


def _is_minus(head: str) -> bool:
    """Whether a minus sign after `head` makes a number negative; else it subtracts."""
    bare = head.rstrip(f" $*{BOLD}{THIN}")
    if not bare:
        return True
    if not _IS_LETTER.match(bare[-1]):
        return bare[-1] not in "0123456789)%°-"
    is_variable = len(bare) == 1 or not bare[-2].isalpha()
    return bare != head and not is_variable


def _value_of(run: str, *, points_group: bool) -> Fraction | None:
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


def _with_tail(
    text: str, run: str, value: Fraction, span: tuple[int, int], is_money: bool
) -> _Tail:
    """What the digits `run` say with what follows them.

    span: where the digits end in `text`, and where reading must stop. is_money: a currency stands
    before them.
    """
    at, end = span
    is_whole = run.isdigit()
    date = _DATE.match(text, at, end) if is_whole else None
    if date is not None and (date[0][0] == "/" or len(run) == 4):
        return _Tail(date.end(), None)
    time = _TIME.match(text, at, end) if is_whole else None
    if time is not None:
        return _Tail(time.end(), value if time[1] == "00" else None)
    scaled, at = _fraction_or_power(text, value, at, end)
    if scaled is None:
        return _Tail(at, None)
    percent = _PERCENT.match(text, at, end)
    if percent is not None:
        return _Tail(percent.end(), scaled, is_percent=True)
    if is_whole and _ORDINAL.match(text, at, end):
        return _Tail(at, scaled, is_ordinal=True)
    scaled, at = _magnified(text, scaled, at, end, is_money)
    return _Tail(at, scaled)


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
