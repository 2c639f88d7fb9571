"""The numerals of plain text: digits, or words, with the sign and the currency that are theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from redline.tasks.digits import MOST_DIGITS, value_of, with_tail
from redline.tasks.number_words import chinese, worded
from redline.tasks.numbers import Number
from redline.tasks.plain import BOLD, THIN, plain_text

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
        value = value_of(run, points_group=reading.points_group)
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
    tail = with_tail(text, run, value, span, lead.is_money)
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
