"""Converts a model's answer to plain text: removes LaTeX, Markdown and HTML, but keeps numerals.

Markup that matters for a number becomes one character of Unicode's private use area. Later steps
recognize these characters; they are removed from the answer itself beforehand:

| mark           | represents                                                              |
|----------------|-------------------------------------------------------------------------|
| BOX, BOX_END   | `\\boxed{` and its own brace; a box that never closes has no end         |
| TAG, TAG_END   | `<answer>` and `</answer>`                                              |
| BOLD           | `**`, `__`, `<b>`, `<strong>` and their ends                            |
| HASHES         | four or more `#`                                                        |

Every pattern here takes time linear in its text: nested repetitions are bounded or possessive.
"""

from __future__ import annotations

import html
import re
import unicodedata

BOX, BOX_END, BOLD, TAG, TAG_END, _FRACTION, HASHES = map(chr, range(0xE000, 0xE007))
THIN = "\u202f"  # a space that may group digits

_CHARACTERS = {
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full width
    **dict.fromkeys(range(0xE000, 0xE007), " "),
    **str.maketrans(
        "‐‑‒–−\u00a0\u2009\u202f‘’“”„«»⁄∕⋅٫٬٪\u3000\r",
        f'-----{THIN}{THIN}{THIN}\'\'"""""//·.,% \n',
        "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad₀₁₂₃₄₅₆₇₈₉",
    ),
}
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁻]+")
_RUPEES = re.compile(r"(?<=\d)/-(?![\w(])")  # as in `Rs. 450/-`
_VULGAR = re.compile(r"(\d?)([¼-¾⅐-⅞])")

# Long runs are shortened before each step, so that no pattern meets them.
_SPACES = re.compile(rf"[ \t{THIN}]{{2,}}")
_BLANK_LINES = re.compile(r"\n(?:[ \t]?\n){2,}")
_RUN = re.compile(r"([^\w\s])\1{12,}")

_ELEMENT = re.compile(r"<(/?)([A-Za-z]\w{0,15})(?:\s[^<>\n]{0,200})?/?>")
_MARKS = {
    **dict.fromkeys(("/b", "/strong", "b", "strong"), BOLD),
    **{"answer": TAG, "final_answer": TAG, "/answer": TAG_END, "/final_answer": TAG_END},
    **{"sup": "^", "sub": "_", "del": "~~", "/del": "~~"},
}

# A calculator annotation, as in GSM8K's own solutions: `3*6=<<3*6=18>>18`.
_CALCULATION = re.compile(r"<<([^<>\n]{0,300})>>([ $]?[\d.])?")

# A `\b` or `\f` that was read as an escape earlier is now a backspace or a form feed.
_EATEN = re.compile(r"\x08(?=oxed)|\x0c(?=rac\b|rac\{)")
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[^{}]{0,30}\}")
_BARE_BOX = re.compile(r"\\boxed[ \t]*(-?\d[\d.,]*)")
_N = r"[^{}]*+"
_NESTED = rf"({_N}(?:\{{{_N}(?:\{{{_N}\}}{_N})*+\}}{_N})*+)\}}"  # up to the brace that closes
_BOX_START = r"\\?\bf?boxed\s*\{"
_BOXED = re.compile(_BOX_START + _NESTED)
_COMMAND = re.compile(r"\\([a-zA-Z]+\*?|[^a-zA-Z])")
# The replacements of LaTeX commands; any other command becomes a space.
_COMMANDS = {
    **dict.fromkeys(("frac", "dfrac", "tfrac", "cfrac"), _FRACTION),
    **dict.fromkeys(("begin", "end", "[", "]", "\\", "\n"), "\n"),
    **{"times": "×", "cdot": "·", "approx": "≈", "div": "÷", "pounds": "£", "euro": "€"},
    **{"circ": "°", "degree": "°", "percent": "%", "pi": "π", "sqrt": "√"},
    **{",": THIN, "!": ""},
    **{sign: sign for sign in "$%#&_"},
}
_FRACTION_OF = re.compile(rf"(\d?){_FRACTION}\s*(?:\{{{_NESTED}\s*\{{{_NESTED}|(\d)\s*(\d))")
_NUMERAL_ONLY = re.compile(r"\s*-?[\d.,]+\s*")

_FENCE = re.compile(r"(?m)^[ \t]*(?:```|~~~)[^\n`]*$")
_RULE = re.compile(r"(?m)^[ \t]*(?:_{3,}|\*{3,}|={3,}|[|:\- \t]++)$")
_DELETED = re.compile(r"(?<!~)~~(?=[^\s~])[^~\n]{1,200}~~(?!~)")
_LINK = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\s]{0,500}\)")
_HASHES = re.compile(r"#{4,}")
_HEAD = re.compile(r"(?m)^[ \t]*(?:>[ \t]?)*(?:#{1,3}(?!#)[ \t]*)?(?:[-*+•‣◦▪●][ \t]+(?=\S))?")
_STRONG = re.compile(r"\*{2,3}|__")
_EMPHASIS = re.compile(r"(?<![\w*)])\*(?=[^\s*])([^*\n]{1,200})(?<=\S)\*(?![\w*])")
_UNDERLINE = re.compile(r"(?<!\w)_(?=[^\s_])([^_\n]{1,200})(?<=\S)_(?!\w)")
_NUMBERING = re.compile(rf"(?m)^([ \t{BOLD}{HASHES}]*)\(?(\d{{1,2}})[.)][ \t]+(?=\S)")


def plain_text(answer: str) -> str:
    """Returns the answer without markup and deleted text, but with the marks in the table above.

    Digits and signs of other scripts become their ASCII equivalents. The time and the length of the
    result are linear in the length of the answer.
    """
    text = html.unescape(answer).replace("\r\n", "\n").translate(_CHARACTERS)
    text = _RUPEES.sub("", _shortened(text))
    if not text.isascii():
        text = _SUPERSCRIPT.sub(_raised, text)
        text = _FOREIGN_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), text)
        text = _VULGAR.sub(_fraction_sign, text)
    text = _ELEMENT.sub(_element, _CALCULATION.sub(_calculated, text))
    return _without_numbering(_shortened(_without_markdown(_shortened(_without_latex(text)))))


def _shortened(text: str) -> str:
    """Returns the text with long runs of spaces, blank lines or one sign shortened."""
    text = _RUN.sub(lambda found: 12 * found[1], _SPACES.sub(" ", text))
    return _BLANK_LINES.sub("\n\n", text)


def _raised(found: re.Match[str]) -> str:
    return "^" + unicodedata.normalize("NFKC", found[0]).replace("−", "-")


def _fraction_sign(found: re.Match[str]) -> str:
    parts = unicodedata.normalize("NFKC", found[2]).replace("\u2044", "/")
    return f"{found[1]} {parts}" if found[1] else parts


def _calculated(found: re.Match[str]) -> str:
    """Drops the annotation if its result follows in the text; otherwise keeps only the result."""
    return found[2] or found[1].rpartition("=")[2]


def _element(found: re.Match[str]) -> str:
    return _MARKS.get((found[1] + found[2]).lower(), " ")


def _without_latex(text: str) -> str:
    text = _EATEN.sub(lambda found: "\\b" if found[0] == "\x08" else "\\f", _COLOUR.sub("", text))
    text = _BARE_BOX.sub(rf"{BOX}\1{BOX_END}", text)
    for _ in range(2):  # a box may contain another
        text = _BOXED.sub(rf"{BOX}\1{BOX_END}", text)
    text = re.sub(_BOX_START, BOX, text)
    text = _COMMAND.sub(lambda found: _COMMANDS.get(found[1], " "), text.replace("$$", " "))
    return _without_braces(text)


def _without_braces(text: str) -> str:
    text = _FRACTION_OF.sub(_fraction, text).replace("}{", ", ")
    return text.translate(str.maketrans(f"{_FRACTION}&", "  ", "{}"))


def _fraction(found: re.Match[str]) -> str:
    """Returns a fraction as `3/4`, `1 3/4` after a digit, or `(9 × 2)/(1)` for expressions."""
    top, bottom = (_without_braces(part) for part in found.groups()[1:] if part is not None)
    if _NUMERAL_ONLY.fullmatch(top) and _NUMERAL_ONLY.fullmatch(bottom):
        text = f"{top.strip()}/{bottom.strip()}"
        return f"{found[1]} {text}" if found[1] else text
    return f"{found[1]}({top})/({bottom})"


def _without_markdown(text: str) -> str:
    text = _DELETED.sub("", _RULE.sub("", _FENCE.sub("", text)))
    text = _LINK.sub(r"\1", text)
    text = _STRONG.sub(BOLD, _HEAD.sub("", _HASHES.sub(HASHES, text)))
    return _UNDERLINE.sub(r"\1", _EMPHASIS.sub(r"\1", text)).replace("`", "")


def _without_numbering(text: str) -> str:
    """Returns the text without item numbers that count up from 1; other numbers are kept."""
    last = 0

    def head(found: re.Match[str]) -> str:
        nonlocal last
        number = int(found[2])
        if number not in (1, last + 1):
            return found[0]
        last = number
        return found[1].replace(HASHES, "")

    return _NUMBERING.sub(head, text)
