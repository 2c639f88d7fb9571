"""Text for a tiny model: chats about invented towns, sums with their steps, orders as JSON.

    python examples/tiny-model/make_text.py [--megabytes 4] [--seed 0] > text.txt

One document a line, as the model reads it. A seeded grammar generates all of it, so it is no one's
data, and the same settings give the same bytes. Most tokens follow from those before them: a town
keeps its river, a sum its result, an order its words. So a small model learns it in minutes, and a
smaller one predicts most of what the small one says. Free choices are uneven, like the words of a
language: the first of n options is the likeliest.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import NamedTuple, TypeVar

Option = TypeVar("Option")

END = "<|end|>"


def words(text: str) -> tuple[str, ...]:
    """Splits `text` at white space."""
    return tuple(text.split())


FIRSTS = words(
    "Alder Amber Ash Barrow Birch Bramble Clay Copper Crane Dun Elder Fern Flint Glen "
    "Hazel Heron Kestrel Lark Linden Maple Marsh Otter Raven Rowan Salt Sedge Stone "
    "Thorn Willow Yarrow"
)
LASTS = words(
    "bridge brook bury combe dale ferry field ford gate ham hollow mere ness port "
    "stead thorpe ton wick wold worth"
)
RIVERS = words("Arel Brenn Clewe Dorrin Eskel Fjälla Garrow Lönne Mève Nidder Orrel Pell Rinn Wend")
REGIONS = (
    *("the High Moors", "the Lower Vale", "the Reed Coast", "the Old Forest"),
    "the Salt Marshes",
)
CRAFTS = (
    *("glass lamps", "smoked fish", "wool blankets", "clay pots", "honey cakes", "copper bells"),
    *("wooden boats", "apple cider", "leather boots", "painted tiles", "sheep cheese", "rope"),
)
SIGHTS = (
    *("stone bridge", "clock tower", "water mill", "old harbour", "round church", "rose garden"),
    *("town wall", "glass market", "lighthouse", "castle ruin"),
)
GIVEN = words(
    "Mara Jonas Elin Tomas Ada Piet Nora Oskar Lena Hugo Ida Felix Greta Anton Rosa Emil "
    "Klara Otto Vera Noé Hanna Leo Saskia Bruno"
)
FAMILY = words(
    "Lindqvist Barrow Moreau Keller Holm Varga Brandt Osei Tanaka Quill Ferrer Novak "
    "Sørby Marsh Iversen Castel Dube Ahmadi Pryce Lund Rossi Weaver Okafor Thorne"
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ITEMS = words(
    "lamp chair basket kettle blanket bell mirror ladder bucket table candle drum hammer "
    "kite lantern barrel clock ribbon saddle teapot anchor button comb needle"
)
COLOURS = words("blue red green white black yellow brown grey orange silver")
CARGOES = words("salt timber wool apples barley fish cloth iron")

# The facts about a town: ways to ask for each, and the one way to answer.
FACTS = (
    (
        ("Which river flows through {name}?", "What is the river of {name} called?"),
        "The river {river} flows through {name}.",
    ),
    (
        ("When was {name} founded?", "In which year was {name} founded?", "How old is {name}?"),
        "{name} was founded in the year {founded}.",
    ),
    (
        ("How many people live in {name}?", "How large is {name}?"),
        "About {people} people live in {name}.",
    ),
    (
        ("Who is the mayor of {name}?", "Who governs {name}?"),
        "The mayor of {name} is {mayor}.",
    ),
    (
        ("What is {name} known for?", "What do they make in {name}?"),
        "{name} is known for its {craft}.",
    ),
    (
        ("Where is {name}?", "In which region does {name} lie?"),
        "{name} lies in {region}, {distance} km from {neighbour}.",
    ),
    (
        ("On which day is the market of {name}?", "When can I go to the market in {name}?"),
        "The market of {name} is held every {market}.",
    ),
    (
        ("What should I see in {name}?", "Is there anything to see in {name}?"),
        "In {name} you should see the {sight} by the river {river}.",
    ),
)
ORDERS = (
    "{customer} from {town} orders {count} {colour} {item}s for {day}.",
    "Please send {count} {colour} {item}s to {customer} in {town} by {day}.",
    "For {day}: {count} {item}s, {colour}, to {town}, in the name of {customer}.",
)
AS_JSON = ("Write this order as JSON: ", "Give me this as a JSON object: ", "As JSON, please: ")
OPENINGS = ("", "", "Tell me, ", "I would like to know: ")


class Message(NamedTuple):
    """One turn of a chat. role: system, user or assistant."""

    role: str
    content: str


# Plain text, or a chat. No document has a line break, so a file can hold one a line.
Document = str | tuple[Message, ...]
Town = dict[str, str]


def render(document: Document) -> str:
    """Returns the document as the model reads it, without the token that begins every text."""
    if isinstance(document, str):
        return document + END
    return "".join(f"<|{role}|>{content}{END}" for role, content in document)


def contents(document: Document) -> str:
    """Returns the text of the document, without the tokens that mark its turns."""
    if isinstance(document, str):
        return document
    return " ".join(message.content for message in document)


@cache
def _weights(count: int) -> tuple[float, ...]:
    """Running sums of Zipf's weights 1, 1/2, ... 1/count, as shares of their total."""
    sums = list(itertools.accumulate(1 / rank for rank in range(1, count + 1)))
    return tuple(value / sums[-1] for value in sums)


def pick(rng: Random, options: Sequence[Option]) -> Option:
    """One of `options`; the first is twice as likely as the second.

    Random.random() is the one draw that Python keeps the same in all its versions.
    """
    return options[bisect.bisect(_weights(len(options))[:-1], rng.random())]


def evenly(rng: Random, options: Sequence[Option]) -> Option:
    """One of `options`, each as likely as the others."""
    return options[int(rng.random() * len(options))]


def distinct(rng: Random, options: Sequence[Option], count: int) -> list[Option]:
    """`count` different ones of `options`, which must hold at least as many."""
    left = list(options)
    return [left.pop(int(rng.random() * len(left))) for _ in range(count)]


def make_towns(count: int) -> list[Town]:
    """The first `count` towns of the invented country, at most 600; always the same ones."""
    rng = Random("towns")
    names = distinct(rng, [first + last for first in FIRSTS for last in LASTS], count)
    return [
        {
            "name": name,
            "river": evenly(rng, RIVERS),
            "founded": str(900 + int(rng.random() * 950)),
            "people": f"{2 + int(rng.random() * 90)}00",
            "mayor": f"{evenly(rng, GIVEN)} {evenly(rng, FAMILY)}",
            "craft": evenly(rng, CRAFTS),
            "region": evenly(rng, REGIONS),
            "distance": str(3 + int(rng.random() * 40)),
            "neighbour": names[(place + 1) % len(names)],
            "market": evenly(rng, DAYS),
            "sight": evenly(rng, SIGHTS),
        }
        for place, name in enumerate(names)
    ]


def facts(rng: Random, towns: Sequence[Town]) -> Document:
    """A chat of one to four questions about one town."""
    town = pick(rng, towns)
    messages = []
    for questions, answer in distinct(rng, FACTS, pick(rng, (2, 1, 3, 4))):
        question = pick(rng, questions).format_map(town)
        asked = pick(rng, OPENINGS) + question[0].lower() + question[1:]
        messages.append(Message("user", asked[0].upper() + asked[1:]))
        messages.append(Message("assistant", answer.format_map(town)))
    if rng.random() < 0.15:
        messages.insert(0, Message("system", "Answer in one sentence."))
    if rng.random() < 0.15:
        messages += [Message("user", "Thank you!"), Message("assistant", "You are welcome.")]
    return tuple(messages)


def article(rng: Random, towns: Sequence[Town]) -> Document:
    """A paragraph with most of the facts about one town."""
    sentences = (
        "{name} is a town in {region}, {distance} km from {neighbour}.",
        pick(rng, ("It was founded in the year {founded}.", "Its first year was {founded}.")),
        pick(rng, ("About {people} people live there.", "It has about {people} people.")),
        pick(rng, ("The river {river} flows through it.", "It lies on the river {river}.")),
        pick(rng, ("It is known for its {craft}.", "They make {craft} there.")),
        "Its mayor is {mayor}.",
        "The market is held every {market}.",
        pick(rng, ("The {sight} is worth a visit.", "Visitors come to see the {sight}.")),
    )
    kept = [part for part in sentences[1:] if rng.random() < 0.9]
    return " ".join([sentences[0], *kept]).format_map(pick(rng, towns))


def larger(rng: Random, towns: Sequence[Town]) -> Document:
    """A chat about which of two towns has more people."""
    one, other = distinct(rng, towns, 2)
    more, less = sorted((one, other), key=lambda town: int(town["people"]), reverse=True)
    answer = "{}: it has about {} people, and {} has about {}."
    return (
        Message("user", f"Which town is larger, {one['name']} or {other['name']}?"),
        Message(
            "assistant",
            answer.format(more["name"], more["people"], less["name"], less["people"]),
        ),
    )


def order(rng: Random, towns: Sequence[Town]) -> Document:
    """A chat in which an order becomes a JSON object."""
    fields: dict[str, object] = {
        "customer": f"{evenly(rng, GIVEN)} {evenly(rng, FAMILY)}",
        "item": evenly(rng, ITEMS),
        "colour": pick(rng, COLOURS),
        "count": 2 + int(rng.random() * 18),
        "town": pick(rng, towns)["name"],
        "day": evenly(rng, DAYS),
    }
    question = pick(rng, AS_JSON) + pick(rng, ORDERS).format_map(fields)
    answer = json.dumps(fields, ensure_ascii=False)
    return Message("user", question), Message("assistant", answer)


def total(rng: Random, towns: Sequence[Town]) -> Document:
    """A chat that adds two two-digit numbers, step by step."""
    one, other = (10 + int(rng.random() * 90) for _ in range(2))
    ones = one % 10 + other % 10
    tens = one // 10 + other // 10
    steps = f"Ones: {one % 10} + {other % 10} = {ones}"
    if ones < 10:
        steps += f". Tens: {one // 10} + {other // 10} = {tens}."
    else:
        steps += f", carry 1. Tens: {one // 10} + {other // 10} + 1 = {tens + 1}."
    question = pick(rng, ("What is {} + {}?", "Add {} and {}.", "How much is {} plus {}?"))
    return (
        Message("user", question.format(one, other)),
        Message("assistant", f"{steps} So {one} + {other} = {one + other}."),
    )


def counted(rng: Random, towns: Sequence[Town]) -> Document:
    """A chat about how many items a person has after buying or selling some."""
    who, item = evenly(rng, GIVEN), evenly(rng, ITEMS)
    have, change = 11 + int(rng.random() * 9), 2 + int(rng.random() * 8)
    verb, sign, left = pick(rng, (("buys", "+", have + change), ("sells", "-", have - change)))
    return (
        Message("user", f"{who} has {have} {item}s and {verb} {change}. How many are there now?"),
        Message("assistant", f"{have} {sign} {change} = {left}. {who} has {left} {item}s now."),
    )


def alphabet(rng: Random, towns: Sequence[Town]) -> Document:
    """A chat that puts words into alphabetical order."""
    words = distinct(rng, ITEMS, 3 + int(rng.random() * 3))
    return (
        Message("user", f"Put these words into alphabetical order: {', '.join(words)}."),
        Message("assistant", ", ".join(sorted(words)) + "."),
    )


def diary(rng: Random, towns: Sequence[Town]) -> Document:
    """The harbour book of one town, on three to six consecutive days of a week."""
    town = pick(rng, towns)
    first = int(rng.random() * 4)
    lines = [
        f"{day}: {2 + int(rng.random() * 7)} boats with {pick(rng, CARGOES)}."
        + (" Market day." if day == town["market"] else "")
        for day in DAYS[first : first + 3 + int(rng.random() * 4)]
    ]
    return " ".join([f"Harbour book of {town['name']} on the river {town['river']}.", *lines])


# The kinds of document, and how many of 100 documents are of each kind.
KINDS: dict[Callable[[Random, Sequence[Town]], Document], int] = {
    facts: 34,
    order: 20,
    article: 16,
    total: 12,
    counted: 6,
    diary: 6,
    larger: 3,
    alphabet: 3,
}


def documents(seed: int, towns: int = 48) -> Iterator[Document]:
    """Yields documents without end, no two alike. towns: how many occur in them, 2 to 600."""
    rng = Random(f"text {seed}")
    known = make_towns(towns)
    deck = [kind for kind, share in KINDS.items() for _ in range(share)]
    seen: set[Document] = set()
    while True:
        document = evenly(rng, deck)(rng, known)
        if document not in seen:
            seen.add(document)
            yield document


def make_text(size_bytes: int, seed: int = 0, towns: int = 48) -> list[Document]:
    """Returns documents that take at least `size_bytes` in UTF-8 when rendered, one a line."""
    taken: list[Document] = []
    size = 0
    for document in documents(seed, towns):
        taken.append(document)
        size += len(render(document).encode()) + 1
        if size >= size_bytes:
            return taken
    raise AssertionError("documents never end")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for document in make_text(int(args.megabytes * 1e6), args.seed):
        sys.stdout.buffer.write(render(document).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
