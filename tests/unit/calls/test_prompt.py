"""What of a body becomes tokens, and in which class its characters are."""

from __future__ import annotations

from typing import Any

import pytest

from redline.calls.tokens import CLASSES, Prompt


def counts(text: str, most_chars: int = 4096) -> dict[str, float]:
    return dict(zip(CLASSES, Prompt({"prompt": text}).classes(most_chars), strict=True))


def test_ascii_is_letters_spaces_digits_and_marks() -> None:
    found = counts("ab cD 12,{}\n\t_")
    assert found == {
        "letters": 4, "spaces": 2, "digits": 2, "marks": 6, "accented": 0, "wide": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("éßжЖαאع", "accented"),
        ("字かなカナ한글กक", "wide"),
        ("😀\U0001d518", "wide"),
        ("\ud800", "wide"),
        ("\u2019\u201c\u2026\u20ac", "marks"),
    ],
)
def test_every_character_is_counted_once_in_its_class(text: str, kind: str) -> None:
    found = counts(text)
    assert found[kind] == sum(found.values()) == len(text)


def test_messages_are_counted_and_their_labels_are_not_read() -> None:
    prompt = Prompt(
        {
            "model": "a-long-model-name",
            "user": "somebody",
            "messages": [
                {"role": "system", "content": "ab"},
                {"role": "user", "content": [{"type": "text", "text": "cd"}]},
            ],
        }
    )
    assert prompt.messages == 2
    assert sorted(prompt.texts) == ["ab", "cd"]
    assert prompt.length == 4


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://x.test/picture.png"}},
        {"type": "input_audio", "input_audio": {"data": "QUJD" * 1000, "format": "wav"}},
        {"image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf"}},
    ],
)
def test_media_are_counted_and_not_read(part: dict[str, Any]) -> None:
    prompt = Prompt({"messages": [{"role": "user", "content": [part]}]})
    assert (prompt.media, prompt.length) == (1, 0)


def test_a_long_text_is_judged_by_pieces_from_all_of_it() -> None:
    text = "a" * 40_000 + "1" * 30_000 + "字" * 30_000
    found = counts(text, 4096)
    assert sum(found.values()) == pytest.approx(100_000)
    # Eight pieces tell shares apart to an eighth.
    assert found["letters"] == pytest.approx(40_000, abs=12_500)
    assert found["digits"] == pytest.approx(30_000, abs=12_500)
    assert found["wide"] == pytest.approx(30_000, abs=12_500)


@pytest.mark.parametrize("length", [4096, 4097, 4103, 5000, 8192, 10**6])
def test_a_sample_is_as_long_as_it_may_be(length: int) -> None:
    assert len(Prompt({"prompt": "x" * length}).sample(4096)) == 4096


def test_many_short_texts_are_sampled_like_a_long_one() -> None:
    prompt = Prompt({"input": ["abc 1"] * 2048})
    assert 500 <= len(prompt.sample(512)) <= 512
    found = dict(zip(CLASSES, prompt.classes(512), strict=True))
    assert sum(found.values()) == pytest.approx(5 * 2048)
    assert found["letters"] == pytest.approx(3 * 2048, rel=0.1)


def test_a_body_that_holds_itself_ends() -> None:
    ring: list[Any] = ["a"]
    ring.append(ring)
    prompt = Prompt({"messages": ring, "tools": ring})
    assert prompt.length > 0


def test_a_deep_body_is_no_trouble() -> None:
    deep: Any = "abc"
    for _ in range(5000):
        deep = [deep]
    assert Prompt({"messages": deep}).length == 3
    assert Prompt({"tools": deep}).length == 0


@pytest.mark.parametrize("value", [{("a", "b"): 1}, object(), {"a": "\ud800"}])
def test_tools_that_are_no_json_count_nothing(value: Any) -> None:
    assert Prompt({"tools": value, "prompt": "abc"}).length == 3


@pytest.mark.parametrize("value", [None, True, 3, 1.5, [], {}, [None], [[]], {"type": ["image"]}])
def test_what_is_no_text_counts_nothing(value: Any) -> None:
    prompt = Prompt({"messages": value})
    assert (prompt.length, prompt.media, prompt.ids) == (0, 0, 0)
