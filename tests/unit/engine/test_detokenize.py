"""What a stream hands on, joined, is what decoding all tokens at once gives."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.engine.api import Pieces, TextStream
from support import vocabularies

PIECES = {name: Pieces(make()) for name, make in vocabularies.ALL.items()}
EVERY = pytest.mark.parametrize("name", vocabularies.ALL)
FRAGMENTS = [
    *("a", " ", "  ", "é", "e\u0301", "世界", "ꦗꦮ", "안녕", "\n", "hello ", " the fox", "\ufffd"),
    *(
        "👩‍👩‍👧",
        "🛑",
        "🚀🚀",
        "🏳️‍🌈",
        "👋🏽",
        "\u200d",
        "\U0001d518\U0001d52b",
        "\x00",
        "▁",
        "</s>",
        "<0x41>",
    ),
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)


def encoded(name: str, text: str) -> list[int]:
    tokens: list[int] = vocabularies.ALL[name]().encode(text, add_special_tokens=False)
    return tokens


def whole(name: str, tokens: list[int]) -> str:
    return PIECES[name].decode(tokens)


def parts(tokens: list[int], pieces: Pieces, stops: tuple[str, ...] = ()) -> list[str]:
    """What each push gives, and last what finishing gives."""
    stream = TextStream(pieces, stops)
    return [*(stream.push(token) for token in tokens), stream.finish()]


@EVERY
@given(text=TEXTS)
@settings(max_examples=80, deadline=None)
def test_texts_come_whole(name: str, text: str) -> None:
    tokens = encoded(name, text)
    assert "".join(parts(tokens, PIECES[name])) == whole(name, tokens)


@functools.cache
def odd_tokens(name: str, seed: int) -> list[int]:
    """Tokens as no text has them: bytes of broken characters, special and unknown tokens."""
    draws = random.Random(seed)
    size = len(vocabularies.ALL[name]())
    pieces = PIECES[name]
    bytewise = [token for token in range(size) if len(pieces.of(token).data) == 1]
    high = [token for token in bytewise if pieces.of(token).data[0] >= 0x80]
    pools = [range(size + 3), high, high, bytewise, encoded(name, vocabularies.TEXT), [1, 2]]
    tokens: list[int] = []
    while len(tokens) < 100:
        pool = draws.choice(pools)
        tokens += draws.choices(pool, k=draws.randrange(1, 12))
    return tokens


def longest_run(name: str, tokens: list[int]) -> int:
    longest = run = 0
    for piece in map(PIECES[name].of, tokens):
        if not piece.is_silent:
            run = run + 1 if piece.is_byte else 0
            longest = max(longest, run)
    return longest


def test_tokens_that_are_no_text_come_as_the_whole_has_them() -> None:
    for name in vocabularies.ALL:
        for seed in range(30):
            tokens = odd_tokens(name, seed)
            if longest_run(name, tokens) < 64:
                assert "".join(parts(tokens, PIECES[name])) == whole(name, tokens)


@EVERY
def test_every_cut_of_a_text_is_flushed_as_the_whole_has_it(name: str) -> None:
    tokens = encoded(name, "hi 👩‍👩‍👧 世界 café 🛑")
    for size in range(len(tokens) + 1):
        assert "".join(parts(tokens[:size], PIECES[name])) == whole(name, tokens[:size])


def test_nothing_is_sent_too_early() -> None:
    """What was sent is never taken back: it always begins the text that comes in the end."""
    for name in vocabularies.ALL:
        for seed in range(20):
            tokens = odd_tokens(name, seed)
            if longest_run(name, tokens) >= 64:
                continue
            sent, end = "", whole(name, tokens)
            for part in parts(tokens, PIECES[name]):
                sent += part
                assert end.startswith(sent)


def test_nothing_is_sent_too_late() -> None:
    """A token of plain words is handed on at once, and a character when its last byte has come."""
    tokens = encoded("byte_level", "the quick brown fox jumps over the lazy dog " * 3)
    assert all(parts(tokens, PIECES["byte_level"])[:-1])
    for name in vocabularies.ALL:
        given_parts = parts(encoded(name, "é" + "世 " * 40), PIECES[name])
        # The text ends with a space, and that is whole when it comes.
        assert given_parts[-1] == ""
        assert max(len(part) for part in given_parts) <= 3


@EVERY
def test_a_special_token_does_not_swallow_the_space_after_it(name: str) -> None:
    words = encoded(name, "the fox")
    space = encoded(name, "a the")[len(encoded(name, "a")) :]
    tokens = [*words, *[2] * 20, *space]
    assert "".join(parts(tokens, PIECES[name])) == whole(name, tokens) == "the fox the"


def test_a_long_run_of_bytes_goes_out_in_parts() -> None:
    pieces = PIECES["byte_fallback"]
    text = "ꦗꦮ\U0001d518" * 60
    tokens = encoded("byte_fallback", text)
    given_parts = parts(tokens, pieces)
    assert "".join(given_parts) == text
    assert len([part for part in given_parts if part]) > 5
    assert max(len(part) for part in given_parts) <= 32
    assert not any("\ufffd" in part for part in given_parts)


def test_an_endless_run_of_bytes_that_is_no_text_still_comes() -> None:
    for name in vocabularies.ALL:
        tokens = [token for token in range(300) if PIECES[name].of(token).data == b"\x80"] * 1000
        assert "".join(parts(tokens, PIECES[name])) == "\ufffd" * 1000


class Counted(Pieces):
    """Counts the tokens that it decodes."""

    decoded = 0
    most = 0

    def decode(self, tokens: list[int]) -> str:
        self.decoded += len(tokens)
        self.most = max(self.most, len(tokens))
        return super().decode(tokens)


@EVERY
@pytest.mark.parametrize("text", ["the fox ", "🚀", "\ufffd", "世 "])
def test_a_token_costs_the_same_however_long_the_answer_is(name: str, text: str) -> None:
    """Measured in tokens decoded, from the second thousand tokens to the sixth."""
    tokens = encoded(name, text * 6000)[:6000]
    counted = Counted(vocabularies.ALL[name]())
    stream = TextStream(counted)
    spent = []
    for place, token in enumerate(tokens):
        if place % 1000 == 0:
            spent.append(counted.decoded)
        stream.push(token)
    steps = [after - before for before, after in itertools.pairwise(spent[1:])]
    assert max(steps, default=0) <= 17 * 1000
    assert max(steps, default=0) <= 1.2 * min(steps, default=0)
    assert counted.most <= 80


def cut_at(text: str, stops: tuple[str, ...]) -> str:
    """The text before the stop that is whole first, read character by character."""
    for end in range(len(text) + 1):
        whole_ones = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if whole_ones:
            return text[: end - max(whole_ones)]
    return text


def test_a_stop_string_cuts_wherever_tokens_begin() -> None:
    for name, pieces in PIECES.items():
        for seed in range(40):
            draws = random.Random(seed)
            text = "".join(draws.choices(["a", "b", "c", "é", "🛑", "ab "], k=30))
            stops = tuple(
                "".join(draws.choices(["a", "b", "é", "🛑"], k=draws.randrange(1, 5)))
                for _ in range(draws.randrange(1, 4))
            )
            tokens = encoded(name, text)
            stream = TextStream(pieces, stops)
            end, sent = cut_at(whole(name, tokens), stops), ""
            for token in tokens:
                sent += stream.push(token)
                assert end.startswith(sent), "a part of a stop string was sent"
            sent += stream.finish()
            assert sent == end
            assert stream.is_stopped == (end != whole(name, tokens))
            if stream.is_stopped:
                assert stream.push(tokens[0]) == stream.finish() == ""


def test_the_stop_that_is_whole_first_wins_and_then_the_longer_one() -> None:
    """Once with a letter a token, and once with letters that come together as one run of bytes."""
    rare = str.maketrans("abcdx", "ꦗꦮꦲꦴꦶ")
    for stops, left in [
        (["abcd", "bc"], "xa"),
        (["bc", "abc"], "x"),
        (["dx", "x"], ""),
        (["cdx", "q"], "xab"),
        (["xabcdxy"], "xabcdx"),
    ]:
        for name, letters in [("byte_level", {}), ("byte_fallback", rare)]:
            tokens = encoded(name, "xabcdx".translate(letters))
            wanted = tuple(stop.translate(letters) for stop in stops)
            given_parts = parts(tokens, PIECES[name], wanted)
            assert "".join(given_parts) == left.translate(letters)


def test_a_stop_is_noticed_with_the_token_that_completes_it() -> None:
    stream = TextStream(PIECES["byte_level"], ("fox",))
    for token in encoded("byte_level", "the brown fo"):
        stream.push(token)
    assert not stream.is_stopped
    stream.push(encoded("byte_level", "x")[0])
    assert stream.is_stopped


def test_a_stop_that_ends_in_a_byte_is_noticed_with_that_byte() -> None:
    pieces = PIECES["byte_fallback"]
    line: int = vocabularies.ALL["byte_fallback"]().convert_tokens_to_ids("<0x0A>")
    assert pieces.of(line).is_byte
    stream = TextStream(pieces, ("\n",))
    said = [stream.push(token) for token in encoded("byte_fallback", "the fox")]
    assert not stream.is_stopped
    said.append(stream.push(line))
    assert stream.is_stopped
    assert "".join(said) + stream.finish() == "the fox"


@EVERY
def test_an_answer_that_continues_a_text_keeps_its_first_space(name: str) -> None:
    pieces = PIECES[name]
    tokens = encoded(name, "the brown fox")
    begun = next(at for at in range(1, len(tokens)) if pieces.of(tokens[at]).data[:1] == b" ")
    stream = TextStream(pieces, continues=True)
    rest = "".join(stream.push(token) for token in tokens[begun:]) + stream.finish()
    assert whole(name, tokens[:begun]) + rest == whole(name, tokens)
    stopped = TextStream(pieces, (rest[:2],), continues=True)
    assert "".join(stopped.push(token) for token in tokens[begun:]) == ""
    assert stopped.is_stopped


def test_text_that_only_began_like_a_stop_is_sent() -> None:
    tokens = encoded("byte_level", "END of")
    assert "".join(parts(tokens, PIECES["byte_level"], ("END.",))) == "END of"
    tokens = encoded("byte_level", "the EN")
    assert "".join(parts(tokens, PIECES["byte_level"], ("END.",))) == "the EN"


@EVERY
def test_length_is_where_a_tokens_text_begins(name: str) -> None:
    stream = TextStream(PIECES[name])
    tokens = encoded(name, "the fox 世 dog")
    offsets = []
    for token in tokens:
        offsets.append(stream.length)
        stream.push(token)
    stream.finish()
    text = whole(name, tokens)
    assert stream.length == len(text)
    assert offsets == sorted(offsets)
    for offset, token, before in zip(offsets[1:], tokens[1:], tokens, strict=False):
        # After a run of bytes the length is that before the run: its text is not certain yet.
        if not PIECES[name].of(token).is_byte and not PIECES[name].of(before).is_byte:
            shown = PIECES[name].of(token).data.decode("utf-8", "ignore")
            assert text.startswith(shown, offset)


@EVERY
def test_the_bytes_of_tokens_are_the_texts(name: str) -> None:
    """Joined they are the text, but for the space before it that some tokenizers add."""
    for text in [vocabularies.TEXT, "  two  spaces", *FRAGMENTS]:
        tokens = [token for token in encoded(name, text) if not PIECES[name].of(token).is_silent]
        data = b"".join(PIECES[name].of(token).data for token in tokens)
        text_data = whole(name, tokens).encode()
        assert data in (text_data, b" " + text_data)


def test_special_and_unknown_tokens_are_silent() -> None:
    pieces = PIECES["byte_level"]
    assert pieces.of(2) == (b"</s>", True, False)
    assert pieces.of(10**6) == (b"", True, False)


@EVERY
def test_no_token_stands_for_more_bytes_than_the_most(name: str) -> None:
    pieces = PIECES[name]
    sizes = [len(pieces.of(token).data) for token in range(len(vocabularies.ALL[name]()))]
    assert max(sizes) <= pieces.most_bytes <= 3 * max(sizes)
