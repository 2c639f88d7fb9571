"""Finds the letter that an answer to a multiple-choice question chooses.

| letters looked for, in this order  | as in                                                     |
|------------------------------------|-----------------------------------------------------------|
| the last one announced or chosen   | `The answer is (C).`, `\\boxed{C}`, `I choose C`, `So (C)` |
| the last one called right          | `Option C is correct`, `It must be C`, `选C`              |
| the letter that a line begins with | `C`, `**C) 18**`, `Best guess: C`: the first or the last  |
| the only letter that is mentioned  | `That leaves option C`, in the last sentence, or its end  |

Neither two letters at once (`A and C`, `A or B`) nor options that are only listed are a choice. A
lowercase letter counts if it cannot be a word: `b)`, `(b)`, `the answer is b`. After a letter that
is announced or chosen, `A is true` is a remark, as is common in answers to `Which is false?`. It
replaces the letter only if it corrects (`Wait, ...`) or concludes (`So A is correct`). A correction
that says little more than a letter (`Oops, D.`) replaces any letter before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from redline.tasks.answers.conclusion import BARE_CORRECTION, concludes, correction_start
from redline.tasks.answers.mark import Mark, marks
from redline.tasks.answers.markup import BOLD, BOX_END, HASHES, TAG_END, plain_text
from redline.tasks.answers.numeral import Span
from redline.tasks.answers.page import Page, page_of
from redline.tasks.answers.reasoning import spoken, without_run_on

_ALIKE = str.maketrans("АВСЕабсе", "ABCEabce")  # Cyrillic letters that look like Latin ones
_ALONE = r"(?![A-Za-z0-9'])"
_BLANK = rf"[\s\"'*_$:{BOLD}{HASHES}]{{0,8}}"
_FILLER = re.compile(
    rf"(?i)(?:[\s\"'*_$:=,—{BOLD}{HASHES}]|(?:therefore|thus|then|indeed|clearly|simply|probably|"
    r"donc|also|quindi|portanto|likely|most likely|the|option|choice|letter|answer|alternative|"
    r"number|item|i (?:think|believe|guess)|вариант|la|el|le|die|der|das|a(?= letra| alternativa)|"
    r"opción|opção|alternativa|lettre|letra|buchstabe|antwort|réponse|respuesta|"
    r"选项|選項)(?!\w))*+",
)
_LETTER = re.compile(
    rf"(?P<open>[\[(])?{_BLANK}(?P<letter>[A-Za-zАВСЕабсе]){_BLANK}(?P<close>[\])])?"
    rf"(?P<end>[.,;:!?。]|$|\n|[{BOLD}{BOX_END}{TAG_END}\"'$])?(?![A-Za-z'’])"
)
_MORE = re.compile(
    rf"{_BLANK}[\])]?{_BLANK}(?:,|/|&|(?:,[ ]?)?(?:and|or|und|oder|y|et|ou|和|或|と)(?![a-z]))"
    rf"{_BLANK}(?:option |choice )?[\[(]?(?P<letter>[A-Z]){_ALONE}"
)
_WORD_NEXT = re.compile(
    r"[ ](?!because|since|as|and|or|but|not|which|is|for|rather|with|given|here|due)[a-z]"
)
_LETTER_HERE = rf"{_BLANK}[\[(]?{_BLANK}(?P<letter>[A-Z]|[a-z](?=[).\]]|$)){_BLANK}[\])]?{_ALONE}"
# Find a letter that is chosen, one that is called right, and one that may only be conceded.
_CHOSEN, _CALLED, _CONCEDED = (
    tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns)
    for patterns in (
        (
            r"(?:(?i:\bi(?:'d|'ll| would| will)? (?:choose|select|pick|go (?:with|for)|prefer|"
            r"answer|say|guess)|\bmy (?:choice|pick|answer) is)|"
            r"(?i:(?<!second[ -])(?<!next[ -])(?<!second most )(?<!next most )(?<!least )(?<!less )"
            r"\b(?:best|correct|right|false|true|proper|good|suitable|appropriate|likely|accurate|"
            r"final|answer|my) (?:option|choice|guess|alternative|statement|one)\b)"
            r"[^.\n]{0,40}?(?:\b(?:is|be)\b|:)|"
            r"\"(?:\w{1,16}_)?(?:answer|choice|option|letter|label)(?:_\w{1,16})?\"[ ]?:)"
            rf"(?i:[ ](?:option|choice|answer))?{_LETTER_HERE}",
            r"\b(?i:so|thus|therefore|hence|i\.e\.)[ ,:]*"
            r"(?i:(?:it is|it's|the|we choose|we have)[ ])?"
            rf"(?i:option |choice )?{_LETTER_HERE}[ {BOLD}]{{0,8}}[.!]?[ {BOLD}]{{0,8}}$",
        ),
        (
            rf"(?<![A-Za-z]){_LETTER_HERE}(?:[ ]\([^()\n]{{0,60}}\))?[.:,]?"
            r"(?i:(?:[ ](?:is|must be|(?:seems|appears)(?: to be)?|would be|being)(?=[ ])|"
            r"(?=[ ]the ))[ ](?:the |indeed |therefore |thus |clearly |most |also |only |"
            r"likely |probable |appropriate |suitable )*(?:correct|right|best|better(?= (?:choice|"
            r"option))|answer|accurate|true|response|choice)\b|[ ](?:fits best|best "
            r"(?!practices)[a-z]+s)\b)",
            # As in a list of verdicts on all options.
            rf"^[| ]*{_BLANK}(?i:option |choice )?{_LETTER_HERE}[.:)]?"
            rf"(?:[ {BOLD}|—-]*(?:(?i:correct)[ {BOLD}|]*(?:[.,;!✓✔✅☑—-]|$)|[✓✔✅☑])|"
            r"(?<=[.:)\]])[^\n✗✘❌]{1,80}[✓✔✅☑][^\w\n]*$)",
            rf"{_LETTER_HERE}[)]?(?:가|이|が)[ ]?(?:정답|正解)(?!이 아니|では)",
            # As `The most appropriate next step is C. Start metformin`, unlike `C. difficile`.
            r"\b(?i:most (?:likely|appropriate|accurate|suitable)|best)(?:[ ][a-z-]+){1,6}[ ]"
            rf"(?:is|be){_BLANK}[\[(]?(?P<letter>[A-Z])[).:][ {BOLD}]*(?=[A-Z])",
            r"(?:\b(?i:choose|select|pick|richtig ist|(?:it|that|which)(?:'s| is| would"
            r" be)|it (?:must|has to|should) be|lean(?:ing)? towards?|(?<!not )correct(?=:)|"
            r"select(?:ed|ion)(?: is|(?=:))|letter is|"
            r"(?:statement|option|choice|one) (?:that|which) "
            r"(?![^.\n]{0,60}(?:eliminat|ruled|exclud|reject))[^.\n]{1,60}? is)(?:[ ]?:)?|"
            # As `most likely C`, unlike `most likely C. difficile` and `most likely B cells`.
            rf"\b(?i:most likely)(?!\W{{0,9}}[A-Z]\.?{_WORD_NEXT.pattern})|"
            # `but C` and `but C is more specific` choose, `but C is also plausible` concedes.
            r"\bbut(?:[ ]?:)?(?!\W{0,9}[A-Z]\W{0,4}[ ](?:(?:is|was|seems)(?![ ](?:the|what|more|"
            r"better|closer|closest)\b)|also|could|would|may|might)\b)|"
            rf"(?i:option|choice)[ ]?(?:is\b|:(?![ {BOLD}]*\n))|"
            r"(?:答案|答え|正解|選択肢(?=は)|정답|उत्तर|odpowied[źz] to)"
            r"[】\]\s:是為为はは은는]{0,4}|"
            rf"[选選][项項择擇]?[是为為]?(?![: {BOLD}]*\n))"
            rf"(?:(?i:[ ](?:option|choice|answer))|選択肢|选项)?{_LETTER_HERE}"
            r"(?![、和或与とか][A-Z])",
        ),
        (rf"\bbut{_LETTER_HERE}",),
    )
)
_NOT_BEFORE = re.compile(
    r"(?i)\b(?:not|isn't|n't|neither|if|either)[ ]?(?:option |choice |answer |only )?"
    r"\(?(?:[A-Z]\)?)?$"
)
_LINE = re.compile(
    rf"{_BLANK}(?:[✓✔✅☑→⇒∴➡👉]\ufe0f?{_BLANK})?(?i:(?:option|choice|answer)[ ])?[\[(]?[ ]?"
    rf"(?P<letter>[A-Za-z])(?:[ ]?[\])]|[.:。]|、(?![A-Z]{_ALONE})|"
    rf"[ {BOLD}\"'$.!]*$|"
    rf"(?<=[A-Z])(?:{BOLD}|[ ]?[—(]|[ ]-|,?(?:[ ](?:because|since|I think)\b|因)))"
)
# As `Best guess: C`, and the end of `That leaves us with C.` or of `Hmm, C.`
_LABELLED = re.compile(
    rf"[^\w\n]{{0,8}}(?!(?i:in|eliminat|exclud|reject|alternative|confidence|.*(?:options|letters|\b"
    r"(?:not|cannot|least|incorrect|wrong|eliminated?|excluded?|rejected|ruled?)\b)))"
    rf"[^\W\d]+(?:[ ][^\W\d]+){{0,3}}(?:[ ]\d{{1,3}})?[ {BOLD}]*[:=—-]"
    rf"[ {BOLD}\"'\[(]*(?P<letter>[A-Z])[\]).!\"'$ {BOLD}]*$"
)
_AT_END = re.compile(
    r"(?:(?<![A-Z]),[ ]?|(?<![A-Z] )[→⇒⟹][ ]?|"
    r"\b(?i:is|be|get|got|es|est|ist|é|è|la|a|with|probably|likely|maybe|perhaps)[ ]|"
    rf"是[ ]?)[{BOLD}(]*(?P<letter>[A-Z])[\]){BOLD}]*[.!?。]?[ {BOLD}]*$"
)
# A sentence such as `Oops, D.`, `Sorry, I meant (D)` and `いや、Dです。`, not `Let me recheck D.`
_CORRECTED = re.compile(
    rf"(?i)(?!.*\blet me re){BARE_CORRECTION}(?:option )?[{BOLD}\"'\[(]*(?P<letter>(?-i:[A-Z]))"
    rf"[\]){BOLD}\"']*(?:です)?[.!。{BOLD}]*"
)
_UNSAID = re.compile(r"(?i)\W*(?:if|suppose|assum\w+)\b|.*(?:\bnot\b|n't\b|cannot\b|never\b)")
_ALONE_ON_LINE = re.compile(rf"(?m)^{_BLANK}[\[(]?(?P<letter>[A-Z])[\]).]{{0,2}}[ {BOLD}.]*$")
_ALONE_AT_END = re.compile(rf"\n[^\w\n]*[A-Z][ {BOLD}]*\n?$")
_OPTION = re.compile(rf"(?:^|[\s(\[{BOLD}])([A-Z])[).:\]、](?:[ ]|(?=\w))")
_MENTIONED = re.compile(
    r"(?:\b(?i:options?|choice|letter|leaves|leaving|only|opción|opção|alternativa|letra|antwort|réponse|"
    rf"вариант|选项)[ {BOLD}]*[\[(]?|[\[(](?=\w[\])]))"
    rf"(?P<letter>[A-Z]){_ALONE}"
)
_ANSWERED = re.compile(
    rf"(?m)^{_BLANK}[\[(]?[A-Z][\])]?[ {BOLD}.]*$|^[ {BOLD}]*(?:A|(?i:answer))[ {BOLD}]*:|"
    rf"(?:\b(?i:answer)\b|答案|[{HASHES}])[^\n.]{{0,40}}?(?<!\w)[A-Z](?!\w)",
)
# What follows a letter that is called wrong: `is not`, `can be ruled out`, `contradicts`.
_WRONG_NEXT = re.compile(
    rf"(?i)[\])]?(?:[ {BOLD}:—-]{{1,4}}(?:incorrect|wrong|false)\b|[ {BOLD}:—-]{{0,4}}[❌✗✘]|[ ](?:"
    r"(?:is|are|was|were|(?:can|must|should|could) be)[ ](?:\w+[ ])?(?:not|wrong|"
    r"incorrect|false|eliminated|excluded|ruled out|out)\b|(?:is|was|does|do|ca)n't\b|cannot\b|"
    r"(?:does|can|could|would) not\b|contradicts\b))"
)
# A letter that is called right in passing: in a clause that concedes or gives a reason (`although A
# is true`), as the last of several (`which of A, B or C is true`), with a limit (`A is true only
# for gases`), or on a condition (`B would be correct if`).
_CONCEDES = re.compile(
    r"(?i)\b(?:although|though|while|whereas|even if|because|since)\b[^,.;!?\n]*$|\bor\W*$"
)
_LIMITED = re.compile(
    r"(?i)[^.\n]*(?:\bis only [^.\n]*\0|\0 (?:only|in general|too)\b|"
    r"\btrue\0,? (?:but|too)\b|\bwould be [^.\n]*\0[^.;!?\n]*\bif\b)"
)
_IF_BEFORE = re.compile(r"(?i)\bif\b[^.;!?\n]*$")
_SUPPOSED_NEXT = re.compile(r"[\])]?[ ](?:would|could|might|may|only)\b")
# An announcement of an answer on the next line ends in a verb or, like `Correct answer:`, begins
# its clause.
_ANNOUNCES = re.compile(r"(?i)\b(?:is|be|ist|est|es|é)\W*$")
_CLAUSE_BEGINS = re.compile(r"(?i)(?:^|[,;:.!?—]|\bhere(?:'s| is))\W*(?:[\w']+\W*){0,2}$")
_SEVERAL = re.compile(r"(?i)(?:answers|choices|options)(?: are)?\W*$")
_ITEM = re.compile(rf"\s+{_BLANK}(?i:option )?[\[(]?(?P<letter>[A-Z])[\]).:]")
_MOST_WORDS = 4  # of an announcement without a verb
_NEAR_CLAUSE = 80  # characters before an announcement in which its clause begins
_NEAR = 24
_MOST_CHOSEN = 64


def final_choice(answer: str, letters: str = "ABCD", *, is_cut: bool = False) -> str | None:
    """Returns the letter that the answer chooses, or None if it chooses none or two.

    letters: the options, as capitals. is_cut: the answer is known to have been cut off, so its last
    sentence may only consider an option. Time is linear in the answer's length. Never raises.
    """
    text = plain_text(spoken(answer))
    page = page_of(without_run_on(text, _ANSWERED))
    is_cut = is_cut and len(page.text) == len(text)  # a cut in a further question does not count
    place, letter = _chosen(page, letters, is_cut)
    if place >= 0:
        return letter or None
    listed = {option for option in _OPTION.findall(page.text) if option in letters}
    lines = [line for line in page.text.split("\n") if line.strip()]
    first, final = lines[:1], [] if is_cut else lines[-1:]
    if len(listed) > 1:
        opening = _OPTION.findall(lines[0])
        may_list = opening == [letters[0]] and any(map(_LINE.match, lines[1:]))
        first = first if len(opening) == 1 and not may_list else []
        final = [line for line in final if len(re.findall(r"\w", line)) == 1]
    for line in (*first, *final):
        found = _LINE.match(line) or _LABELLED.match(line)
        is_denied = found and _WRONG_NEXT.match(line, found.end("letter"))
        option = found["letter"].upper() if found and not is_denied else ""
        if option and option in letters:
            return option
    if is_cut:
        return None
    last = page.sentences[-1] if page.sentences else Span(0, 0)
    mentioned = {letter for _, letter in _mentions(page, last, letters)}
    if not mentioned and not _UNSAID.match(page.text, *last):
        mentioned = {one["letter"] for one in _AT_END.finditer(page.text, *last)} & {*letters}
    return mentioned.pop() if len(mentioned) == 1 else None


def _chosen(page: Page, letters: str, is_cut: bool) -> tuple[int, str]:
    """Returns the letter that counts and its place: an empty letter for two, place -1 for none.

    In a text that was cut, two kinds of letter do not count: a letter at the very end, and a letter
    that is only called right, since the text may go through the options one by one.
    """
    found = marks(page.text)
    own = [mark for mark in found if not mark.is_doubtful]
    end = len(page.text.rstrip()) - 1 if is_cut and not _ALONE_AT_END.search(page.text) else None
    chosen = [one for one in _called(page.text, letters, _CHOSEN) if one[0] != end]
    chosen += [*_announced(page, own, letters), *(() if is_cut else _concluded(page, letters))]
    first = _ALONE_ON_LINE.match(page.text)
    if first is not None and first["letter"] in letters:  # an explanation follows
        chosen.append((first.start("letter"), first["letter"]))
    elif not (chosen or is_cut):
        lines = islice(_ALONE_ON_LINE.finditer(page.text), _MOST_CHOSEN)
        bold = [one for one in lines if BOLD in one[0] and one["letter"] in letters]
        if len({one["letter"] for one in bold}) == 1:
            chosen.append((bold[0].start("letter"), bold[0]["letter"]))
    place, letter = max(chosen, default=(-1, ""))
    correction = correction_start(page, place + 1) if letter else 0
    chosen += [
        one
        for one in _called(page.text, letters, _CALLED)
        if (one[0] >= correction and (letter or not is_cut)) or concludes(page, one[0])
    ]
    chosen += [one for one in _corrected(page, letters, place) if one[0] != end]
    if not chosen:
        chosen += _announced(page, [mark for mark in found if mark.is_doubtful], letters)
        chosen += () if is_cut else _called(page.text, letters, _CONCEDED)
    return max(chosen, default=(-1, ""))


def _corrected(page: Page, letters: str, place: int) -> Iterator[tuple[int, str]]:
    """Yields the place and letter of each correction after `place` that is little more: `No, D.`"""
    for span in page.within(place + 1, len(page.text)):
        found = _CORRECTED.fullmatch(page.text, *span)
        if found is not None and found["letter"] in letters:
            yield found.start("letter"), found["letter"]


def _announced(page: Page, marks: list[Mark], letters: str) -> Iterator[tuple[int, str]]:
    """Yields the place and letter that each mark announces; an empty letter for two at once."""
    for mark in marks[-_MOST_CHOSEN:]:
        for region in page.within(mark.content, mark.limit)[:1]:
            filler = _FILLER.match(page.text, *region)
            found = _LETTER.match(page.text, filler.end() if filler else region.start, region.end)
            if found is not None and (letter := _accepted(page.text, found, letters)):
                more = _MORE.match(page.text, found.end("letter"))
                is_two = more is not None and more["letter"] in letters
                one = found.start("letter"), "" if is_two else letter
            else:
                one = next(_mentions(page, region, letters), (-1, ""))
            if one[0] >= 0 and not _is_listed(page.text, mark.start, one[0], letters):
                yield one


def _accepted(text: str, found: re.Match[str], letters: str) -> str | None:
    """Returns the option of the match, or None if the letter may be a word or is not an option."""
    letter = found["letter"].translate(_ALIKE)
    option = letter.upper()
    if not (found["close"] or found["end"] is not None):
        may_be_word = option != letter or letter in "AI"
        if may_be_word and _WORD_NEXT.match(text, found.end("letter")):
            return None
        if option != letter and not found["open"]:
            return None
    return option if option in letters else None


def _concluded(page: Page, letters: str) -> list[tuple[int, str]]:
    """Returns the only letter of the last sentence, if it opens as a conclusion: `Thus ... (C).`"""
    found = list(_mentions(page, page.sentences[-1], letters)) if page.sentences else []
    is_alone = len({letter for _, letter in found}) == 1 and concludes(page, found[0][0])
    is_supposed = is_alone and _SUPPOSED_NEXT.match(page.text, found[0][0] + 1)
    return found[:1] if is_alone and not is_supposed else []


def _called(
    text: str, letters: str, patterns: Iterable[re.Pattern[str]]
) -> Iterator[tuple[int, str]]:
    """Yields the place and letter of each match of a pattern that is not denied."""
    for pattern in patterns:
        all_found = list(islice(pattern.finditer(text), _MOST_CHOSEN))
        if pattern is _CALLED[1] and len({found["letter"] for found in all_found}) > 1:
            continue  # as in the answers to `Which is not true?`
        for found in all_found:
            start, letter = found.start("letter"), found["letter"].upper()
            is_denied = (
                _NOT_BEFORE.search(text, max(0, found.start() - _NEAR), start)
                or _WRONG_NEXT.match(text, found.end())
                or (pattern is _CALLED[0] and _is_conceded(text, found))
            )
            is_listed = _is_listed(text, found.start(), start, letters)
            is_pronoun = letter == "I" and _WORD_NEXT.match(text, start + 1)
            if letter in letters and not (is_denied or is_listed or is_pronoun):
                yield start, letter


def _is_conceded(text: str, found: re.Match[str]) -> bool:
    """Returns whether the letter is called right only in passing, such as `although A is true`."""
    before = text[max(0, found.start() - _NEAR_CLAUSE) : found.start("letter")]
    said = found[0] + "\0" + text[found.end() : found.end() + _NEAR_CLAUSE]
    is_supposed = "would be" in found[0] and _IF_BEFORE.search(before)
    return bool(is_supposed or _CONCEDES.search(before) or _LIMITED.match(said))


def _is_listed(text: str, words: int, place: int, letters: str) -> bool:
    """Returns whether the words on an earlier line introduce a list of options with this letter.

    words: where the words, such as `Let's find the correct answer:`, begin. place: where the letter
    is.
    """
    intro, is_above, _ = text[words:place].partition("\n")
    end = text.find("\n", place) % (len(text) + 1)
    if not is_above or not re.search(r"\w", text[place + 1 : end]):
        return False
    following = _ITEM.match(text, end)
    at = letters.find(text[place].upper())
    if following is not None and following["letter"] in letters[at + 1 : at + 2]:
        return True
    before = text[max(text.rfind("\n", 0, words) + 1, words - _NEAR_CLAUSE) : words]
    is_short = len(intro.split()) <= _MOST_WORDS and not _SEVERAL.search(intro)
    is_said = is_short and _CLAUSE_BEGINS.search(before)
    return not (is_said or _ANNOUNCES.search(intro))


def _mentions(page: Page, span: Span, letters: str) -> Iterator[tuple[int, str]]:
    """Yields the place and letter of each option in a sentence, unless it is denied or supposed."""
    for found in _MENTIONED.finditer(page.text, *span):
        start, letter = found.start("letter"), found["letter"]
        is_denied = _NOT_BEFORE.search(page.text, span.start, found.end()) or _WRONG_NEXT.match(
            page.text, found.end()
        )
        if letter in letters and not is_denied:
            yield start, letter
            more = _MORE.match(page.text, start + 1)
            if (
                more is not None
                and more["letter"] in letters
                and not _WRONG_NEXT.match(page.text, more.end())
            ):
                yield more.start("letter"), more["letter"]
