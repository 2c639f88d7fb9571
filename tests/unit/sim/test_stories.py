"""Stories that a simulated model makes up, and those that it tells again."""

from __future__ import annotations

from itertools import combinations

import pytest

from redline.apis import ResponseFormat
from redline.sim.answers import Answers, Stories

Runs = set[tuple[str, ...]]


def runs_of(story: str) -> Runs:
    """The runs of three words."""
    words = story.lower().replace(".", "").split()
    return {tuple(words[at : at + 3]) for at in range(len(words) - 2)}


def similarity(one: Runs, other: Runs) -> float:
    """The Jaccard index."""
    return len(one & other) / len(one | other)


def test_a_question_and_a_seed_have_one_story() -> None:
    told = [Stories(0.0, 1).tell("Of rain.", 5) for _ in range(2)]
    assert told[0] == told[1]
    same = Stories(0.0, 1)
    others = [same.tell("Of rain.", 6), same.tell("Of tea.", 5)]
    others.append(Stories(0.0, 2).tell("Of rain.", 5))
    assert len({told[0], *others}) == 4


def test_without_a_seed_each_answer_is_another_story() -> None:
    stories = Stories(0.0, 0)
    assert stories.tell("a", None) != stories.tell("a", None)


def test_stories_have_little_in_common_and_are_of_some_length() -> None:
    stories = Stories(0.0, 0)
    told = [stories.tell("a", seed) for seed in range(60)]
    assert all(100 <= len(story.split()) <= 180 for story in told)
    assert max(similarity(*pair) for pair in combinations(map(runs_of, told), 2)) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_share_that_is_told_again_is_nearly_an_earlier_one(share: float) -> None:
    stories = Stories(share, 0)
    told = [runs_of(stories.tell("a", seed)) for seed in range(300)]
    nearest = [
        max((similarity(runs, other) for other in told[:place]), default=0.0)
        for place, runs in enumerate(told)
    ]
    again = [each for each in nearest if each >= 0.3]
    assert min(again) >= 0.83
    assert max(again) < 1
    assert len(again) / len(told) == pytest.approx(share, abs=0.07)


def test_a_story_is_told_in_json_too() -> None:
    answers = Answers(stories=Stories(0.0, 0))
    plain = answers.answer("a", seed=1)
    assert answers.answer("a", ResponseFormat(type="json_object"), 1) == f'{{"answer":"{plain}"}}'
    schema = {"properties": {"x": {"type": "integer"}}}
    form = ResponseFormat(type="json_schema", schema=schema)
    assert len({answers.answer("a", form, seed) for seed in range(20)}) > 1
