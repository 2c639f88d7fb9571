"""Reads the numbers in plain text, in digits or words, with sign, currency, percent and magnitude.

| text                          | number        | why                                           |
|-------------------------------|---------------|-----------------------------------------------|
| `1,234` `1'234` `1,00,000`    | 1234 ...      | groups of three, or Indian ones               |
| `1.234,56` `1.234.567`        | 1234.56 ...   | no other reading is possible                  |
| `1.234`                       | 1.234         | a decimal point, as in English ...            |
| `70.000` in a text in German  | 70000         | ... unless the language groups by it          |
| `1.250 €`                     | 1250          | ... or euros follow: prices end in two digits |
| `12,50` `0,5`                 | 12.5, 0.5     | no group of three, so a decimal comma         |
| `25%`                         | 25, percent   | questions ask for 25, not for 0.25            |
| `1万5000` `3万5千`            | 15000, 35000  | digits after a magnitude are added to it      |
| `x = - 18`                    | -18           | other minuses before a space are dashes       |
| `3:30` `12/25/2024` `1.2.3`   | nothing       | a time, a date, a version; `5:00` is 5        |
| more than 100 digits          | nothing       | a model in a loop; bounds the work as well    |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from typing import NamedTuple

from redline.tasks.answers.markup import BOLD, BOX, THIN, plain_text

MOST_DIGITS = 100
_MOST_EXPONENT = 100
_MOST_BASE = 1000  # of a power such as `2^10`
_MOST_SCALES = 4  # magnitudes of one number, as in `5 hundred million`
_NEAR = 24  # characters before a numeral that can belong to it

_LETTER = r"A-Za-zÀ-ÖØ-öø-ɏͰ-ϿЀ-ӿ"
_MONEY = (
    rf"(?:(?:(?<![{_LETTER}])[A-Z]{{1,2}})?\$+|[£¥€฿₠-⃀]"
    rf"|(?<![{_LETTER}])(?:USD|EUR|GBP|INR|CNY|CHF|Rs\.?|Rp\.?|kr\.?))"
)
_DIGITS = re.compile(rf"\d+(?:[.,'_{THIN}]\d+)*|(?<![\w.])\.\d+")
# The forms of digits with separators: the form, its group separators, its decimal separator.
_FORMS = tuple(
    (re.compile(form), groups, decimal)
    for form, groups, decimal in (
        (r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|[1-9]\d?(?:,\d{2})+,\d{3}(?:\.\d+)?", ",", "."),
        (rf"[1-9]\d{{0,2}}(?:(?:['_]\d{{3}})+|(?:{THIN}\d{{3}})+)(?:[.,]\d+)?", f"'_{THIN}", ","),
        (r"[1-9]\d{0,2}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})", ".", ","),
        (r"\d*[.,]\d+", "", ","),
    )
)
_POINT_GROUP = re.compile(r"[1-9]\d{0,2}\.\d{3}")
_MAY_LEAD = re.compile(r"[1-9]\d{0,2}")
_SPACE_GROUPS = re.compile(r"(?:[ ]\d{3})+(?!\d)(?:[.,]\d+)?(?!\d)")

_LEAD = re.compile(rf"(?P<minus>-[ {THIN}]?)?(?P<money>{_MONEY}[ {THIN}]?)?(?P<inner>-?)$")
_MINUS_WORD = re.compile(r"(?i)(?:minus|negative|moins|menos|meno|минус|负|負|マイナス)[ ]?$")
# A minus after these subtracts: a number, a bracket, a variable; a hyphen joins a word.
_MINUEND = re.compile(rf"(?:[\d)%°-]|(?<![{_LETTER}])[{_LETTER}])[ $*{BOLD}{THIN}]*$|[{_LETTER}]$")
# After these, a minus is a sign even if a space follows it.
_VALUE_NEXT = re.compile(rf"(?i)(?:[=≈{BOX}]|\b(?:is|are|was|equals))[ $*{BOLD}{THIN}]*$")
_NAME = re.compile(rf"(?:[{_LETTER}_^#@]|[{_LETTER}]{{2}}-)$")  # as in `H2O`, `x_1`, `COVID-19`

# The 2 of `rounded to 2 decimal places`.
_PRECISION = re.compile(
    r"(?i)(?:(?<=\bto )|(?<=\bauf )|(?<=\bдо )|(?<=\b[aà] ))\d{1,2}[ -]"
    r"(?:d[eé]cima|dezima|nachk|signif|cifr[ea]s? (?:dec|sig)|знак|[ds]\.?[pf]\b)|"
    r"(?:(?<=[留到])|(?<=[留到] ))\d{1,2}[ ]?位(?:小数|有效)"
)
_TAIL = re.compile(
    rf"(?P<time>:(?P<minutes>\d\d?)(?!\d)(?::\d\d)?|/\d{{1,2}}/\d{{2,4}}(?!\d))"
    rf"|(?:(?:[eE]|[ {THIN}]?[×x*·][ {THIN}]?10[ ]?(?:\^|"
    rf"{BOLD})[ ]?\(?)(?P<tens>[+-]?\d{{1,12}})(?!\w)"
    rf"|\^\(?(?P<power>[+-]?\d{{1,12}})|(?:[ {THIN}-]|"
    rf"[ ]and[ ])(?P<top>\d{{1,4}})/(?P<bottom>\d{{1,4}})(?![\d/])"
    rf"|[ ]?/[ ]?(?P<below>\d[\d,]{{0,99}})(?![.,]?\d))?"
    rf"(?:(?P<percent>[ {THIN}]?%|[ -]?(?i:per ?cent|prozent|por cien\w+|pour cent)\b)"
    r"|(?:[ ](?:dollars?|euros?|pounds?))?,? and (?P<cents>\d\d?) (?:cents?|pence)\b)?"
)
_MAGNITUDE = re.compile(
    r"(?:(?P<near>[kKMB]|[bm]n?)|[ -]?(?i:(?P<e2>hundred)|(?P<e3>thousands?|tausend|mil(?:le)?"
    r"|tsd|тыс\w*)|(?P<e5>lakhs?)|(?P<e6>mill?i?(?:on|ón|one)\w*|milh\w+|mio|mln|миллион\w*|млн)"
    r"|(?P<e7>crores?)"
    r"|(?P<e9>billions?|milliard\w*|mrd|млрд)|(?P<e12>trillions?)))(?![^\W\d])"
    r"|[ ]?(?P<sign>[万萬만亿億억])|(?P<thousand>[千천])(?![克米瓦卡])"  # 千克 is a kilogram
)
_SIGNS = {**dict.fromkeys("千천", 3), **dict.fromkeys("万萬만", 4), **dict.fromkeys("亿億억", 8)}
_LOWER = re.compile(r"[ ]?(?P<digits>\d+(?:[.,]\d+)*)")  # as the 5000 of `1万5000`
_NEAR_MAGNITUDES = {"k": 3, "m": 6, "b": 9}
_MONEY_AFTER = re.compile(
    rf"[ {THIN}]?(?:[$£¥€₠-⃀元円]|(?:(?:US )?dollars?|euros?|cents?|pounds?|rupees?|USD|EUR|"
    r"zł|Kč|kr|Ft|lei|PLN|CZK|SEK|NOK|DKK|HUF|CHF)\b)"
)
_EURO_AFTER = re.compile(rf"[ {THIN}]?(?:€|Euro\b)(?!(?:/| per )[lL])")  # fuel: `1.859 €/l`

_SMALL = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|"
    "sixteen|seventeen|eighteen|nineteen"
)
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_FACTORS = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "tenth": 10}
_VALUES = {
    **{word: value for value, word in enumerate(_SMALL.split("|"))},
    **{word: 10 * tens for tens, word in enumerate(_TENS.split("|"), 2)},
    **_FACTORS,
}
_WORD = rf"(?:{'|'.join(sorted(_VALUES, key=len, reverse=True))}|halves|(?:{'|'.join(_PARTS)})s?)"
_PHRASE = re.compile(
    rf"(?i)(?<![\w-])(?:an?[ ])?{_WORD}(?:(?:[ -]|(?<=red|and|ion)[ ]and[ ]|[ ]and[ ](?=(?:an?|"
    rf"one)[ ]))"
    rf"(?:an?[ ])?{_WORD}){{0,24}}(?![\w-])",
)

_CHINESE_DIGITS = {sign: value for value, sign in enumerate("零一二三四五六七八九")} | {
    "两": 2,
    "兩": 2,
}
_CHINESE_TENS = {"十": 10, "百": 100, "千": 1000}
_CHINESE_LARGE = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_CHINESE = re.compile(f"[{''.join([*_CHINESE_DIGITS, *_CHINESE_TENS, *_CHINESE_LARGE])}]{{1,24}}")
# A number that needs more digits is shown as a fraction, like one whose decimals do not end.
_EXACTLY = Context(prec=2000, traps=[Inexact])


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value; `25%` is 25 with is_percent."""

    value: Fraction
    is_percent: bool = False

    def __str__(self) -> str:
        """Returns text such as `18`, `-4.5` or `25%`; `1/3` if its decimals would not end."""
        top, bottom = self.value.as_integer_ratio()
        try:
            text = f"{_EXACTLY.divide(Decimal(top), Decimal(bottom)):f}"
        except Inexact:
            text = f"{top}/{bottom}"
        return f"{text}%" if self.is_percent else text


def is_same(one: Number, other: Number) -> bool:
    """Returns whether two numbers are equal without rounding, as 18, 18.0 and $18.00 are.

    A percentage equals the bare number (`25%` equals 25, as in GSM8K's answers) and the share
    (`25%` equals 0.25). Two percentages must be equal.
    """
    if one.value == other.value:
        return True
    if one.is_percent == other.is_percent:
        return False
    percent, share = (one, other) if one.is_percent else (other, one)
    return percent.value == 100 * share.value


class Span(NamedTuple):
    """A part of a text, from `start` up to `end`."""

    start: int
    end: int


class Numeral(NamedTuple):
    """A numeral and its place in a text; `number` is None for a time, a date or a version."""

    start: int
    end: int
    number: Number | None


def read_number(text: str) -> Number | None:
    """Parses `text` as one number in digits or words; None if it is anything more."""
    return whole_number(plain_text(text))


def whole_number(text: str) -> Number | None:
    """Parses all of a plain text as one number; None if it is anything more."""
    plain = text.replace(BOLD, "").strip().removesuffix(".").removeprefix("+").strip()
    digits = numerals(plain, 0, len(plain), points_group=False, spaces_group=True)
    words = word_numerals(plain, 0, len(plain))
    found = next(digits, None) or next(words, None) or chinese_numeral(plain, 0)
    if found is None or plain[: found.start].strip("$"):
        return None
    money = _MONEY_AFTER.match(plain, found.end)
    return None if plain[money.end() if money else found.end :].strip(" $") else found.number


def numerals(
    text: str, start: int, end: int, points_group: bool, spaces_group: bool
) -> Iterator[Numeral]:
    """Yields the numerals in digits of the plain text `text[start:end]`, in linear time.

    Digits in a name, as in `H2O` or `m^2`, are not numerals, and neither is the 2 of `to 2 decimal
    places`. points_group: the text's language writes `70.000` for 70000. spaces_group: `1 234` is
    one number; otherwise it is two, unless points_group is true, the numeral is money, its group
    begins with 0, or it has several groups.
    """
    at = start
    while found := _DIGITS.search(text, at, end):
        run, at = found[0], found.end()
        lead = _lead(text, max(start, found.start() - _NEAR), found.start())
        if lead is None or _PRECISION.match(text, found.start()):
            continue
        first, is_negative = lead
        has_lead = first < found.start()  # mostly a currency
        groups = _SPACE_GROUPS.match(text, at, end) if _MAY_LEAD.fullmatch(run) else None
        if groups is not None and (
            (spaces_group or points_group or has_lead or len(groups[0]) > 4 or groups[0][1] == "0")
            or _MONEY_AFTER.match(text, groups.end(), end)
        ):
            run, at = run + groups[0].replace(" ", THIN), groups.end()
        is_grouped = points_group or _EURO_AFTER.match(text, at, end) is not None
        value, tail = _value_of(run, is_grouped), _TAIL.match(text, at, end)
        assert tail is not None  # it may be empty
        if value is not None:
            value, at = _with_tail(value, tail), tail.end()
        number = None
        if value is not None:
            value, at, unit = _scaled(text, at, end, value, has_lead)
            while unit > 1 and (lower := _LOWER.match(text, at, end)):
                part = _value_of(lower["digits"], points_group)
                if part is None:
                    break
                part, after, unit_of_part = _scaled(text, lower.end(), end, part, has_lead)
                if part >= unit:
                    break
                value, at, unit = value + part, after, unit_of_part
            number = Number(-value if is_negative else value, bool(tail["percent"]))
        yield Numeral(first, at, number)


def word_numerals(text: str, start: int, end: int) -> Iterator[Numeral]:
    """Yields the numerals in English words of the plain text `text[start:end]`, in order.

    `a dozen` is 12, `half a million` 500000, `one and a half` 3/2, `two thirds` 2/3. A lone `one`
    or `half` is a numeral; ordinals are not.
    """
    for found in _PHRASE.finditer(text, start, end):
        value = _worded(found[0].lower())
        if value is not None:
            minus = _MINUS_WORD.search(text, max(start, found.start() - _NEAR), found.start())
            first = minus.start() if minus else found.start()
            yield Numeral(first, found.end(), Number(-value if minus else value))


def chinese_numeral(text: str, at: int) -> Numeral | None:
    """Returns the numeral in Chinese characters that begins at `at`, such as 十八, or None."""
    found = _CHINESE.match(text, at)
    if found is None:
        return None
    total, group, digit = 0, 0, 0
    for sign in found[0]:
        if sign in _CHINESE_DIGITS:
            digit = 10 * digit + _CHINESE_DIGITS[sign]
        elif sign in _CHINESE_TENS:
            group, digit = group + (digit or 1) * _CHINESE_TENS[sign], 0
        else:
            total += (group + digit or 1) * _CHINESE_LARGE[sign]
            group, digit = 0, 0
    return Numeral(*found.span(), Number(Fraction(total + group + digit)))


def _lead(text: str, begin: int, digits: int) -> tuple[int, bool] | None:
    """Returns where a numeral with its currency or minus begins, and whether it is negative.

    Returns None if the digits are part of a name.
    """
    head = text[begin:digits]
    lead = _LEAD.search(head)
    if lead is None or (not lead["money"] and _NAME.search(head)):
        return None
    start = begin + (lead.start("money") if lead["money"] else len(head))
    if lead["money"] and lead["inner"]:
        return start, True  # `$-5`
    outside = head[: lead.start()]
    word = _MINUS_WORD.search(outside)
    sign = word.start() if word else lead.start()
    is_spaced = len(lead["minus"] or "") > 1
    is_dash = is_spaced and not _VALUE_NEXT.search(text, max(0, begin - _NEAR), begin + sign)
    if is_dash or lead["inner"] or not (word or lead["minus"]) or _MINUEND.search(outside[:sign]):
        return start, False
    return begin + sign, True


def _scaled(
    text: str, at: int, end: int, value: Fraction, has_lead: bool
) -> tuple[Fraction, int, int]:
    """Returns a value times the magnitudes that follow it, and where they end.

    The third result is the product of the East Asian magnitudes. has_lead: a currency precedes the
    value.
    """
    unit = 1
    for _ in range(_MOST_SCALES):
        scale = _MAGNITUDE.match(text, at, end)
        if scale is None:
            break
        near, sign = scale["near"], scale["sign"] or scale["thousand"]
        if near in {"m", "b"} and not has_lead:
            break  # `m` is metres here
        if near:
            power = _NEAR_MAGNITUDES[near[0].lower()]
        elif sign:
            power = _SIGNS[sign]
            unit *= 10**power
        else:
            power = int((scale.lastgroup or "")[1:])
        value, at = value * 10**power, scale.end()
    return value, at, unit


def _value_of(run: str, points_group: bool) -> Fraction | None:
    """Returns the value of digits with separators, or None if they are not one number."""
    if len(run) > MOST_DIGITS:
        return None
    if run.isdigit() or (points_group and _POINT_GROUP.fullmatch(run)):
        return Fraction(run.replace(".", ""))
    for form, groups, decimal in _FORMS:
        if form.fullmatch(run):
            bare = "".join(sign for sign in run if sign not in groups)
            return Fraction(bare.replace(decimal, "."))
    return None


def _with_tail(value: Fraction, tail: re.Match[str]) -> Fraction | None:
    """Returns the value with the suffix of its digits applied.

    Returns None for a time, a date or a zero divisor, and for too large a power or exponent.
    """
    tens, power = int(tail["tens"] or 0), int(tail["power"] or 1)
    top, bottom = int(tail["top"] or 0), int(tail["bottom"] or 1)
    below = int((tail["below"] or "1").replace(",", ""))
    is_bounded = max(abs(tens), abs(power)) <= _MOST_EXPONENT and (
        power == 1 or value <= _MOST_BASE
    )
    if not is_bounded or (tail["time"] and tail["minutes"] != "00"):
        return None
    try:
        whole = value**power * Fraction(10) ** tens / below
        return whole + Fraction(top, bottom) + Fraction(int(tail["cents"] or 0), 100)
    except ZeroDivisionError:
        return None


def _worded(phrase: str) -> Fraction | None:
    """Returns a phrase's value; None if it is not one number, such as `two three` or `third`."""
    words = [word for word in re.split(r"[ -]", phrase) if word not in {"a", "an", "and"}]
    if words[0] == "half" and len(words) > 1:
        rest = _worded(" ".join(words[1:]))
        return rest and rest / 2
    part = _PARTS.get(words[-1].replace("halves", "half").removesuffix("s"))
    if part is not None:
        whole, joined, share = phrase.rpartition(" and ")
        if joined:
            one, other = _worded(whole), _worded(share)
            return None if one is None or other is None else one + other
        is_one = phrase.startswith("a") or words == ["half"]
        count = _worded(" ".join(words[:-1])) if len(words) > 1 else Fraction(is_one)
        is_share = count == 1 or words[-1].endswith("s")
        return count / part if count and is_share else None
    total, group, last = 0, 0, 100
    for word in words:
        value = _VALUES.get(word)
        if value is None or not (last >= 100 or word in _FACTORS or (last >= 20 and value < 10)):
            return None
        if value >= 1000:
            total, group = total + (group or 1) * value, 0
        else:
            group = (group or 1) * value if word in _FACTORS else group + value
        last = value
    return Fraction(total + group)
