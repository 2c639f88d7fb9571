"""A model's answer as plain text: LaTeX, Markdown and HTML are gone, numerals read as before.

What markup says of a number is kept as single characters of the private use area, so that the
later steps see it and never meet it in an answer:

| mark           | stands for                                                              |
|----------------|-------------------------------------------------------------------------|
| BOX, BOX_END   | `\\boxed{` and its own brace; a box that never closes has no end         |
| TAG, TAG_END   | `<answer>` and `</answer>`                                              |
| BOLD           | `**`, `__`, `<b>`, `<strong>` and their ends                            |
| HASHES         | four or more `#`                                                        |

Every pattern here takes time linear in its text: none holds one unbounded repetition in another.
"""

from __future__ import annotations

import html
import re
import unicodedata

BOX, BOX_END, BOLD, TAG, TAG_END, _FRACTION, HASHES = map(chr, range(0xE000, 0xE007))
THIN = "\u202f"  # every space that is no ordinary one, some of which group digits

_CHARACTERS: dict[int, str | None] = {
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full width
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63"), "-"),
    **dict.fromkeys(map(ord, "\u00a0\u2007\u2008\u2009\u200a\u202f"), THIN),
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad"), None),
    **dict.fromkeys(map(ord, "₀₁₂₃₄₅₆₇₈₉"), None),
    **dict.fromkeys(range(0xE000, 0xE007), " "),
    **dict.fromkeys(map(ord, "‘’ʼ＇"), "'"),
    **dict.fromkeys(map(ord, "“”„«»＂"), '"'),
    **dict.fromkeys(map(ord, "⁄∕"), "/"),
    **dict.fromkeys(map(ord, "⋅·∙"), "·"),
    **{ord("٫"): ".", ord("٬"): ",", ord("،"): ",", ord("٪"): "%", ord("\u3000"): " "},
    **{ord("\r"): "\n", ord("\u2028"): "\n", ord("\u2029"): "\n"},
}
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_SUPERSCRIPT = re.compile(f"[{_SUPERSCRIPTS}]+")
_VULGAR = re.compile(r"(\d?)([¼-¾⅐-⅞])")

# Runs are cut short before each step, so that no pattern meets one that is long.
_SPACES = re.compile(rf"[ \t{THIN}]{{2,}}")
_BLANK_LINES = re.compile(r"\n(?:[ \t]?\n){2,}")
_RUN = re.compile(r"([^\w\s])\1{12,}")

_ENTITY = re.compile(
    r"&(?:nbsp|thinsp|minus|amp|lt|gt|quot|apos|euro|pound|yen|cent|dollar|percnt|times|divide|"
    r"frac12|frac14|frac34|ndash|mdash|#\d{1,6}|#x[0-9a-fA-F]{1,5});"
)
_ELEMENT = re.compile(
    r"<(/?)(final_answer|answer|strong|b|em|i|u|p|br|hr|div|span|li|ul|ol|tr|td|th|table|thead|"
    r"tbody|h[1-6]|sup|sub|code|pre|mark|font|center|small|big|blockquote)\b[^<>\n]{0,200}>",
    re.IGNORECASE,
)
_DELETED = re.compile(r"<del>[^<>\n]{0,200}</del>|~~[^~\n]{1,200}~~", re.IGNORECASE)
_LINES = {"p", "br", "hr", "div", "li", "ul", "ol", "tr", "table", "blockquote", "pre"}

# What GSM8K's own solutions hold for a calculator: `3*6=<<3*6=18>>18`.
_CALCULATION = re.compile(r"<<([^<>\n]{0,300})>>([ $]?[\d.])?")

# A backslash that was read as an escape before it came here leaves a backspace or a form feed.
_EATEN = re.compile(r"\x08(?=oxed)|\x0c(?=rac\b|rac\{)")
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[^{}]{0,30}\}")
_BARE_BOX = re.compile(r"\\boxed[ \t]*(-?\d[\d.,]*)")
_BRACE = re.compile(r"\\?\bf?boxed\s*\{|\\[{}]|[{}]")
_COMMAND = re.compile(r"\\([a-zA-Z]+\*?|[^a-zA-Z])")
_STYLE = re.compile(
    r"text(?:bf|it|rm|sf|tt|style)?|math(?:rm|bf|it|sf|tt)|[mh]box|bf|rm|left|right|[bB]ig[lr]?|"
    r"displaystyle|boldsymbol|operatorname|emph|underline|overline"
)
_COMMANDS = {
    **dict.fromkeys(("frac", "dfrac", "tfrac", "cfrac"), _FRACTION),
    **dict.fromkeys(("times", "ast"), "×"),
    **dict.fromkeys(("cdot", "bullet"), "·"),
    **dict.fromkeys(("approx", "simeq"), "≈"),
    **dict.fromkeys(("begin", "end"), "\n"),
    **{"div": "÷", "pounds": "£", "euro": "€", "yen": "¥", "textdollar": "$", "degree": "°"},
    **{"circ": "°", "percent": "%", "over": "/", "cents": " cents"},
    **{",": THIN, "!": "", ";": " ", ":": " ", " ": " ", "(": " ", ")": " "},
    **{"[": "\n", "]": "\n", "\\": "\n", "\n": "\n"},
    **{c: c for c in "$%#&_"},
}
_ENVIRONMENT = re.compile(r"\n\{(?:align|aligned|equation|gather|cases|array|split|multline)\*?\}")
_FRACTION_OF = re.compile(
    rf"(\d?){_FRACTION}\s*(?:\{{([^{{}}]{{0,80}})\}}\s*\{{([^{{}}]{{0,80}})\}}|(\d)\s*(\d))"
)
_NUMERAL_ONLY = re.compile(r"\s*[\d.,]+\s*")

_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n`]*$", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*(?:_{3,}|\*{3,}|={3,}|[|:\- \t]++)$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\s]{0,500}\)")
_HASHES = re.compile(r"#{4,}")
_HEAD = re.compile(r"^[ \t]*(?:>[ \t]?)*(?:#{1,3}(?!#)[ \t]*)?(?:[-*+•‣◦▪●][ \t]+(?=\S))?", re.M)
_STRONG = re.compile(r"\*{2,3}|__")
_EMPHASIS = re.compile(r"(?<![\w*)])\*(?=[^\s*])([^*\n]{1,200})(?<=\S)\*(?![\w*])")
_UNDERLINE = re.compile(r"(?<!\w)_(?=[^\s_])([^_\n]{1,200})(?<=\S)_(?!\w)")
_TIE = re.compile(r"(?<=\d)~(?=\d{3})")
_NUMBERING = re.compile(rf"^([ \t{BOLD}{HASHES}]*)\(?(\d{{1,2}})[.)][ \t]+(?=\S)", re.MULTILINE)


def plain_text(answer: str) -> str:
    """The answer without markup, with the marks that the table above names; one reading of digits.

    Digits and signs of other scripts become the ASCII ones. Time and length are linear.
    """
    text = answer.replace("\r\n", "\n").translate(_CHARACTERS)
    text = _shortened(text)
    if not text.isascii():
        text = _SUPERSCRIPT.sub(_raised, text)
        text = _FOREIGN_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), text)
        text = _VULGAR.sub(_fraction_sign, text)
    if "&" in text:
        text = _ENTITY.sub(lambda found: html.unescape(found[0]).replace("\xa0", THIN), text)
    text = _DELETED.sub(" ", text)
    if "<" in text:
        text = _CALCULATION.sub(_calculated, text)
        text = _ELEMENT.sub(_element, text)
    return _without_numbering(_shortened(_without_markdown(_shortened(_without_latex(text)))))


def _shortened(text: str) -> str:
    """The text with no run of spaces, blank lines or one sign that is long."""
    text = _RUN.sub(lambda found: 12 * found[1], _SPACES.sub(" ", text))
    return _BLANK_LINES.sub("\n\n", text)


def _raised(found: re.Match[str]) -> str:
    digits = "".join("0123456789-"[_SUPERSCRIPTS.index(c)] for c in found[0])
    return f"^{digits}"


def _fraction_sign(found: re.Match[str]) -> str:
    parts = unicodedata.normalize("NFKC", found[2]).replace("\u2044", "/")
    return f"{found[1]} {parts}" if found[1] else parts


def _calculated(found: re.Match[str]) -> str:
    """Nothing where the result follows; the result where it stands in the annotation alone."""
    if found[2]:
        return found[2]
    return found[1].rpartition("=")[2]


def _element(found: re.Match[str]) -> str:
    name, is_end = found[2].lower(), bool(found[1])
    if name in {"answer", "final_answer"}:
        return TAG_END if is_end else TAG
    if name in {"b", "strong"}:
        return BOLD
    if name in {"sup", "sub"} and not is_end:
        return "^" if name == "sup" else "_"
    return "\n" if name in _LINES or name[0] == "h" else ""


def _without_latex(text: str) -> str:
    if "color" in text:
        text = _COLOUR.sub("", text)
    if "boxed" in text or "\x08" in text or "\x0c" in text:
        text = _EATEN.sub(lambda found: "\\b" if found[0] == "\x08" else "\\f", text)
        text = _boxes(_BARE_BOX.sub(rf"{BOX}\1{BOX_END}", text))
    text = _TIE.sub(THIN, text.replace("$$", " "))
    if "\\" in text:
        text = _COMMAND.sub(_command, text)
        text = _ENVIRONMENT.sub("\n", text)
        text = _FRACTION_OF.sub(_fraction, text).replace(_FRACTION, " ").replace("&", " ")
    return text.replace("{", "").replace("}", "")


def _command(found: re.Match[str]) -> str:
    name = found[1].rstrip("*")
    return "" if _STYLE.fullmatch(name) else _COMMANDS.get(name, " ")


def _boxes(text: str) -> str:
    """The text with each box's own braces as marks: one pass, however deep the braces nest."""
    parts: list[str] = []
    is_box: list[bool] = []
    at = 0
    for found in _BRACE.finditer(text):
        token = found[0]
        parts.append(text[at : found.start()])
        at = found.end()
        if token.endswith("{") and len(token) > 2:
            is_box.append(True)
            parts.append(BOX)
        elif token == "}" and is_box:
            parts.append(BOX_END if is_box.pop() else token)
        else:
            if token == "{":
                is_box.append(False)
            parts.append(token)
    parts.append(text[at:])
    return "".join(parts)


def _fraction(found: re.Match[str]) -> str:
    """`3/4`, `1 3/4` after a digit, `(9 × 2)/(1)` of more than numerals."""
    top, bottom = (found[2], found[3]) if found[4] is None else (found[4], found[5])
    if _NUMERAL_ONLY.fullmatch(top) and _NUMERAL_ONLY.fullmatch(bottom):
        text = f"{top.strip()}/{bottom.strip()}"
        return f"{found[1]} {text}" if found[1] else text
    return f"{found[1]}({top})/({bottom})"


def _without_markdown(text: str) -> str:
    text = _RULE.sub("", _FENCE.sub("", text))
    text = _LINK.sub(r"\1", text)
    text = _STRONG.sub(BOLD, _HEAD.sub("", _HASHES.sub(HASHES, text)))
    return _UNDERLINE.sub(r"\1", _EMPHASIS.sub(r"\1", text)).replace("`", "")


def _without_numbering(text: str) -> str:
    """The text without the numbers of its lists, which count up from 1; others are kept."""
    last = 0

    def head(found: re.Match[str]) -> str:
        nonlocal last
        number = int(found[2])
        if number not in (1, last + 1):
            return found[0]
        last = number
        return found[1].replace(HASHES, "")

    return _NUMBERING.sub(head, text)
