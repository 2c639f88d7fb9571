"""Each strategy does what its line says, with whatever is known of the endpoints."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.calls import Call, Request
from redline.route import STRATEGIES, Asked, Figures, Pool, Seat, Strategy, strategy_of
from redline.route.balance import STALE_S, LongestPrefix, draws, review
from redline.testing import virtual_run
from support.fleet import LoopClock, ModelServer

CLOCK = LoopClock()
ASKED = Asked()
NOW_S = 1000.0

figures = st.builds(
    Figures,
    weight=st.floats(0.01, 100),
    in_flight=st.integers(0, 1000),
    tokens=st.floats(0, 1e9),
    tokens_per_s=st.floats(0, 1e6),
    latency_s=st.floats(0, 1e4),
    availability=st.floats(0, 1),
    price=st.floats(0, 1e3),
    queued=st.integers(0, 1000),
    gpu=st.none() | st.floats(0, 1),
    seen_s=st.sampled_from([-math.inf, 0.0, NOW_S - 1, NOW_S]),
    room_s=st.floats(0, 1e6) | st.just(math.inf),
    answered_s=st.floats(0, NOW_S),
)


def named(among: Sequence[Figures]) -> list[Figures]:
    for number, one in enumerate(among):
        one.name = f"e{number}"
    return list(among)


def index_of(strategy: Strategy, among: Sequence[Figures], asked: Asked = ASKED) -> int:
    """Of the one that it chooses, all figures being up to date."""
    review(among, NOW_S)
    found = strategy.choose(among, asked, NOW_S)
    return next(index for index, one in enumerate(among) if one is found)


def chosen(strategy: str | Strategy, *among: Figures, asked: Asked = ASKED) -> int:
    if isinstance(strategy, str):
        strategy = strategy_of(strategy, random.Random(1))
    return index_of(strategy, named(among), asked)


def shares(strategy: str, *among: Figures, calls: int = 4000) -> list[float]:
    """The share of the calls that each endpoint gets; none of them is ever answered."""
    made, found = strategy_of(strategy, random.Random(1)), named(among)
    counts = Counter(index_of(made, found) for _ in range(calls))
    return [counts[index] / calls for index in range(len(found))]


@given(among=st.lists(figures, min_size=1, max_size=12), tokens=st.floats(0, 1e6))
def test_every_strategy_chooses_one_of_those_it_is_given(
    among: list[Figures], tokens: float
) -> None:
    asked = Asked(tokens=tokens, blocks=(1, 2, 3))
    for strategy in STRATEGIES:
        made = strategy_of(strategy, random.Random(1))
        for _ in range(3):
            assert 0 <= index_of(made, named(among), asked) < len(among), strategy


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_single_endpoint_gets_the_call(strategy: str) -> None:
    assert chosen(strategy, Figures()) == 0
    assert chosen(strategy, Figures(availability=0.0, in_flight=99, latency_s=99.0)) == 0


def test_an_unknown_strategy_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        strategy_of("fastest", random.Random(1))


class TestDraws:
    @pytest.mark.parametrize(("count", "most"), [(1, 8), (8, 8), (9, 8), (32, 8), (5, 0), (5, 1)])
    def test_each_begins_one_and_is_in_as_many_as_any_other(self, count: int, most: int) -> None:
        among = named([Figures() for _ in range(count)])
        found = list(itertools.islice(draws(among, most, lambda: 0.5), 2 * count))
        size = min(most or count, count)
        assert {len({one.name for one in draw}) for draw in found} == {size}
        assert {draw[0].name for draw in found[:count]} == {one.name for one in among}
        seen = Counter(one.name for draw in found[:count] for one in draw)
        assert set(seen.values()) == {size}
        assert [list(draw) for draw in found[count:]] == [list(draw) for draw in found[:count]]

    def test_those_that_stand_together_are_not_drawn_together(self) -> None:
        among = named([Figures() for _ in range(32)])
        alike = {one.name for one in among[:8]}
        for draw in itertools.islice(draws(among, 8, lambda: 0.0), 32):
            assert len([one for one in draw if one.name in alike]) <= 5


@pytest.mark.parametrize("strategy", ["p2c", "least_tokens", "room", "prefix", "cheapest"])
class TestLoad:
    """What these go by when nothing else tells the endpoints apart."""

    def test_fewer_calls_win(self, strategy: str) -> None:
        assert chosen(strategy, Figures(in_flight=3), Figures(in_flight=2)) == 1

    def test_calls_count_by_capacity(self, strategy: str) -> None:
        among = Figures(in_flight=3, weight=4.0), Figures(in_flight=2)
        assert chosen(strategy, *among) == 0

    def test_calls_that_the_server_has_of_others_count_while_that_is_fresh(
        self, strategy: str
    ) -> None:
        for seen_s, best in ((NOW_S - STALE_S, 1), (NOW_S - STALE_S - 0.1, 0), (-math.inf, 0)):
            busy = Figures(in_flight=1, foreign=5, seen_s=seen_s)
            assert chosen(strategy, busy, Figures(in_flight=2)) == best


def in_flight_of(
    count: int, calls: int, *, latency_s: Callable[[int], float] = lambda _: 1.0
) -> list[int]:
    """What p2c makes of calls that are not answered, by endpoint."""
    among = named([Figures(latency_s=latency_s(n), answered_s=NOW_S) for n in range(count)])
    made = strategy_of("p2c", random.Random(1))
    for _ in range(calls):
        among[index_of(made, among)].in_flight += 1
    return [one.in_flight for one in among]


class TestP2c:
    def test_equal_endpoints_get_equal_numbers(self) -> None:
        assert in_flight_of(4, 40) == [10] * 4

    def test_a_slow_endpoint_gets_as_many_fewer(self) -> None:
        found = in_flight_of(2, 50, latency_s=lambda n: (4.0, 1.0)[n])
        assert found == [10, 40]

    def test_of_idle_ones_the_fastest(self) -> None:
        among = [Figures(latency_s=latency_s, answered_s=NOW_S) for latency_s in (3.0, 1.0, 2.0)]
        assert chosen("p2c", *among) == 1

    @given(scale=st.floats(1e-3, 1e3), latencies=st.lists(st.integers(1, 100), min_size=1))
    def test_the_unit_of_latency_does_not_matter(self, scale: float, latencies: list[int]) -> None:
        def best(scale: float) -> int:
            draw = random.Random(3)
            return chosen(
                "p2c",
                *(
                    Figures(latency_s=one * scale, in_flight=draw.randrange(9), answered_s=NOW_S)
                    # Distinct costs: equal ones may be told apart by rounding.
                    for one in (7919 + 97 * number for number in latencies)
                ),
            )

        assert best(2.0 ** round(math.log2(scale))) == best(1.0)

    def test_an_endpoint_of_unknown_latency_counts_as_the_mean_of_the_others(self) -> None:
        fast, slow = (Figures(latency_s=one, answered_s=NOW_S) for one in (1.0, 3.0))
        assert chosen("p2c", Figures(), slow) == 0
        assert chosen("p2c", Figures(), slow, fast) == 2
        # Its calls count, so that it is not flooded before it has answered once.
        assert chosen("p2c", Figures(in_flight=2), fast, slow) == 1

    def test_an_endpoint_that_was_slow_long_ago_gets_a_call_again(self) -> None:
        fast = Figures(latency_s=1.0, answered_s=NOW_S)
        assert chosen("p2c", Figures(latency_s=4.0, answered_s=NOW_S - 10), fast) == 1
        assert chosen("p2c", Figures(latency_s=4.0, answered_s=NOW_S - 300), fast) == 0

    def test_one_slow_answer_of_a_fast_endpoint_is_soon_forgotten(self) -> None:
        fast = Figures(latency_s=0.02, in_flight=7, answered_s=NOW_S)
        assert chosen("p2c", Figures(latency_s=0.5, answered_s=NOW_S - 0.1), fast) == 1
        assert chosen("p2c", Figures(latency_s=0.5, answered_s=NOW_S - 10), fast) == 0


class TestLeastTokens:
    def test_the_fewest_seconds_of_work(self) -> None:
        many, few = Figures(tokens=900, tokens_per_s=100), Figures(tokens=500, tokens_per_s=50)
        assert chosen("least_tokens", many, few) == 0
        # With the call's own tokens: 10.9 s against 14 s, and 5 s against 4.2 s.
        many.tokens, few.tokens = 500, 210
        assert chosen("least_tokens", many, few) == 1
        assert chosen("least_tokens", many, few, asked=Asked(tokens=200)) == 0

    def test_an_endpoint_of_unknown_speed_is_as_fast_as_the_others_by_weight(self) -> None:
        known = Figures(tokens=100, tokens_per_s=200, weight=2.0)
        assert chosen("least_tokens", known, Figures(tokens=49)) == 1
        assert chosen("least_tokens", known, Figures(tokens=51)) == 0

    def test_without_any_speed_tokens_count_by_weight(self) -> None:
        among = Figures(tokens=100, weight=3.0), Figures(tokens=50)
        assert chosen("least_tokens", *among) == 0


def test_room_takes_the_earliest() -> None:
    assert chosen("room", Figures(room_s=1.0), Figures(room_s=0.5, in_flight=9)) == 1
    assert chosen("room", Figures(room_s=math.inf), Figures(room_s=1e9)) == 1


def test_cheapest_takes_the_lowest_price() -> None:
    assert chosen("cheapest", Figures(price=2.0), Figures(price=1.0, in_flight=9)) == 1


class TestPrefix:
    def test_a_prompt_goes_where_its_longest_prefix_has_been(self) -> None:
        made, among = LongestPrefix(), named([Figures(), Figures(), Figures()])
        among[0].in_flight = 1
        assert index_of(made, among, Asked(blocks=(1, 2))) == 1
        among[1].in_flight = 1
        assert index_of(made, among, Asked(blocks=(1, 3))) == 1
        assert index_of(made, among, Asked(blocks=(9,))) == 2
        assert index_of(made, among, Asked(blocks=(1, 2, 7))) == 1

    def test_no_endpoint_gets_more_than_its_bound(self) -> None:
        made, among = LongestPrefix(slack=1.25), named([Figures() for _ in range(4)])
        for _ in range(400):
            among[index_of(made, among, Asked(blocks=(1,)))].in_flight += 1
        most = max(one.in_flight for one in among)
        assert most <= 1.25 * 100 + 2
        assert min(one.in_flight for one in among) > 50

    def test_its_memory_is_bounded(self) -> None:
        made, among = LongestPrefix(most=100), named([Figures(), Figures(in_flight=1)])
        for block in range(1000):
            index_of(made, among, Asked(blocks=(block, -block)))
        among[0].in_flight, among[1].in_flight = 1, 0
        # The latest 100 hashes are of 50 prompts: only they are still known.
        found = [index_of(made, among, Asked(blocks=(999 - age,))) for age in (0, 40, 60, 500)]
        assert found == [0, 0, 1, 1]

    def test_more_blocks_than_it_remembers(self) -> None:
        made = LongestPrefix(most=3)
        asked = Asked(blocks=tuple(range(10)))
        assert index_of(made, named([Figures(), Figures(in_flight=1)]), asked) == 0
        # The shortest prefixes are kept.
        among = named([Figures(in_flight=1), Figures()])
        assert index_of(made, among, asked) == 0

    def test_of_two_that_have_seen_it_the_one_with_fewer_calls_gets_it(self) -> None:
        made, among = LongestPrefix(), named([Figures(), Figures()])
        for owner in among:
            index_of(made, [owner], Asked(blocks=(1,)))
        among[0].in_flight, among[1].in_flight = 2, 1
        assert index_of(made, among, Asked(blocks=(1,))) == 1

    def test_the_load_bound_is_that_of_its_docstring(self) -> None:
        for in_flight, best in ((2, 0), (3, 1)):
            made, among = LongestPrefix(), named([Figures(), Figures()])
            index_of(made, among[:1], Asked(blocks=(1,)))
            # Of 2 and 3 calls, 1.25 times the mean and one more are 2.25 and 2.875.
            among[0].in_flight = in_flight
            assert index_of(made, among, Asked(blocks=(1,))) == best

    def test_an_endpoint_that_has_left_is_no_obstacle(self) -> None:
        made, among = LongestPrefix(), named([Figures(), Figures(in_flight=5)])
        assert index_of(made, among, Asked(blocks=(1,))) == 0
        assert index_of(made, among[1:], Asked(blocks=(1,))) == 0


class TestPrefixesOfCallsThatWait:
    """Which of the waiting calls goes next to an endpoint that has room."""

    def made(self) -> LongestPrefix:
        """1 has been at e0, 2 at e1, and 3 at both."""
        made, among = LongestPrefix(), named([Figures(), Figures()])
        for block, name in ((1, 0), (2, 1), (3, 0), (3, 1)):
            index_of(made, among[name : name + 1], Asked(blocks=(block,)))
        return made

    @pytest.mark.parametrize(
        ("names", "waiting", "best"),
        [
            (["e0"], [(2,), (9,), (1,)], 2),
            (["e1"], [(1,), (9,), (2,)], 2),
            (["e0", "e1"], [(9,), (2,), (1,)], 1),
            (["e1"], [(1,), (9,), (8,)], 1),
            (["e1"], [(1,), (), (9,)], 1),
            (["e2"], [(1,), (3,), (9,)], 1),
            (["e2"], [(1,), (2,)], 0),
            # The longest known prefix decides.
            (["e0"], [(2, 7), (1, 7)], 1),
        ],
        ids=["its own", "the other's", "either", "unseen", "empty", "of all", "none", "longer"],
    )
    def test_first_its_own_then_those_of_no_endpoint_then_the_first(
        self, names: list[str], waiting: list[tuple[int, ...]], best: int
    ) -> None:
        assert self.made().next_for(names, [Asked(blocks=blocks) for blocks in waiting]) == best


class TestRoundRobin:
    @given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=6))
    def test_each_has_its_share_of_any_period(self, weights: list[int]) -> None:
        made = strategy_of("round_robin", random.Random(1))
        among = named([Figures(weight=weight) for weight in weights])
        found = [index_of(made, among) for _ in range(3 * sum(weights))]
        for begin in range(0, len(found), sum(weights)):
            counts = Counter(found[begin : begin + sum(weights)])
            assert [counts[index] for index in range(len(weights))] == weights

    @given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=6))
    def test_it_is_smooth(self, weights: list[int]) -> None:
        made = strategy_of("round_robin", random.Random(1))
        among = named([Figures(weight=weight) for weight in weights])
        given_out = [0] * len(weights)
        for calls in range(1, 100):
            given_out[index_of(made, among)] += 1
            for count, weight in zip(given_out, weights, strict=True):
                assert abs(count - calls * weight / sum(weights)) < len(weights)

    def test_every_fourth_call_goes_to_the_lighter_one(self) -> None:
        made = strategy_of("round_robin", random.Random(1))
        among = named([Figures(weight=3.0), Figures()])
        found = [index_of(made, among) for _ in range(12)]
        places = [place for place, index in enumerate(found) if index == 1]
        assert [after - before for before, after in itertools.pairwise(places)] == [4, 4]

    def test_the_order_in_which_they_are_given_does_not_matter(self) -> None:
        made, draw = strategy_of("round_robin", random.Random(1)), random.Random(2)
        among, counts = named([Figures(weight=2.0), Figures(), Figures()]), Counter[str]()
        for _ in range(400):
            draw.shuffle(among)
            counts[among[index_of(made, among)].name] += 1
        assert counts == {"e0": 200, "e1": 100, "e2": 100}

    @pytest.mark.parametrize("pattern", ["heavy one full every second time", "full at random"])
    def test_each_has_its_share_of_the_calls_that_it_could_take(self, pattern: str) -> None:
        made, draw = strategy_of("round_robin", random.Random(1)), random.Random(2)
        all_ones = named([Figures(weight=3.0), Figures(), Figures()])
        counts, due = Counter[str](), Counter[str]()
        for call in range(1000):
            among = all_ones[call % 2 :]
            if pattern == "full at random":
                among = draw.sample(all_ones, draw.randrange(1, 4))
            counts[among[index_of(made, among)].name] += 1
            for one in among:
                due[one.name] += one.weight / sum(other.weight for other in among)
        assert dict(counts) == pytest.approx(dict(due), abs=2)


class TestWeightedScore:
    def test_it_is_the_formula(self) -> None:
        # 0.3 * 0.5 + 0.3 / 3 + 0.2 / 0.5 + 0.2 * 0.9 = 0.83
        known = Figures(gpu=0.5, queued=2, seen_s=NOW_S, latency_s=0.4, availability=0.9)
        # 0.3 + 0.3 / 4 + 0.2 / (latency + 0.1) + 0.2 = 0.83, at a latency of 0.68431
        for latency_s, best in ((0.6842, 1), (0.6844, 0)):
            assert (
                chosen("weighted_score", known, Figures(in_flight=3, latency_s=latency_s)) == best
            )

    def test_an_unknown_latency_counts_as_0_and_so_does_an_unknown_gpu(self) -> None:
        # 0.3 + 0.3 + 2 + 0.2 = 2.8, against 0.3 + 0.3 + 0.2 / 0.11 + 0.2 = 2.618
        assert chosen("weighted_score", Figures(latency_s=0.01), Figures()) == 1
        assert chosen("weighted_score", Figures(gpu=0.01), Figures()) == 1

    def test_the_first_of_equal_scores_is_chosen_whatever_else_differs(self) -> None:
        # Fresh reports of equal queues: the calls in flight are no part of the score.
        busy, idle = (Figures(in_flight=n, queued=2, seen_s=NOW_S) for n in (9, 0))
        assert chosen("weighted_score", busy, idle) == 0
        assert chosen("weighted_score", idle, busy) == 0

    def test_its_choice_depends_on_the_unit_of_latency(self) -> None:
        def best(unit: float) -> int:
            fast = Figures(latency_s=1.0 * unit, in_flight=9)
            return chosen("weighted_score", fast, Figures(latency_s=2.0 * unit))

        assert best(1.0) == 1
        assert best(0.05) == 0


class TestNormalizedScore:
    @given(among=st.lists(figures, min_size=1, max_size=8), exponent=st.integers(-8, 8))
    def test_the_unit_of_latency_does_not_matter(self, among: list[Figures], exponent: int) -> None:
        def drawn(unit: float) -> list[int]:
            made = strategy_of("normalized_score", random.Random(1))
            found = named(among)
            for one in found:
                one.latency_s *= unit
            choices = [index_of(made, found) for _ in range(20)]
            for one in found:
                one.latency_s /= unit
            return choices

        assert drawn(2.0**exponent) == drawn(1.0)

    def test_it_draws_in_proportion(self) -> None:
        # 0.3 + 0.3 + 0.2 + 0.2 = 1, and 0.3 + 0.3 * 0.5 + 0.2 * 0.25 + 0.2 = 0.7
        among = Figures(latency_s=1.0), Figures(latency_s=4.0, in_flight=1)
        assert shares("normalized_score", *among) == pytest.approx([1 / 1.7, 0.7 / 1.7], abs=0.03)

    def test_one_that_fails_gets_its_share_of_success(self) -> None:
        among = Figures(), Figures(availability=0.25), Figures(availability=0.0)
        assert shares("normalized_score", *among) == pytest.approx([0.8, 0.2, 0.0], abs=0.03)

    def test_if_none_works_all_are_drawn(self) -> None:
        among = [Figures(availability=0.0) for _ in range(4)]
        assert shares("normalized_score", *among) == pytest.approx([0.25] * 4, abs=0.03)

    def test_stale_figures_do_not_count(self) -> None:
        busy = Figures(gpu=1.0, foreign=50, seen_s=NOW_S - STALE_S - 1)
        assert shares("normalized_score", busy, Figures()) == pytest.approx([0.5, 0.5], abs=0.03)
        busy.seen_s = NOW_S
        idle = Figures(gpu=0.0, seen_s=NOW_S)
        assert shares("normalized_score", busy, idle)[0] < 0.35


class TestFigures:
    def test_the_token_rate_is_that_of_the_latest_answers(self) -> None:
        one = Figures(weight=3.0)
        one.drained(10.0, 0.0)
        assert one.tokens_per_s == 0
        one = Figures(weight=3.0)
        one.drained(50.0, 0.5)
        assert one.tokens_per_s == pytest.approx(300.0)
        for _ in range(160):
            one.drained(5.0, 0.5)
        assert one.tokens_per_s == pytest.approx(30.0, rel=0.01)

    def test_a_forgotten_speed_is_unknown_and_the_last_known_one_is_noted(self) -> None:
        one = Figures(in_flight=1)
        one.answered(0.4, NOW_S)
        for _ in range(2):
            one.forget()
            assert (one.latency_s, one.answers, one.forgotten_s) == (0.0, 0, 0.4)

    def test_the_latency_is_the_mean_of_late(self) -> None:
        one = Figures()
        for number, latency_s in enumerate((30.0, 1.0, 2.0)):
            one.answered(latency_s, float(number))
        assert one.latency_s == pytest.approx(11.0)
        assert (one.answers, one.answered_s) == (3, 2.0)
        for _ in range(100):
            one.answered(4.0, 3.0)
        assert one.latency_s == pytest.approx(4.0, rel=0.01)

    def test_many_answers_that_are_taken_up_together_are_all_in_the_mean(self) -> None:
        one = Figures(latency_s=30.0, answers=100)
        one.fresh_s += [1.0, 3.0] * 500
        one.take_up(1.0)
        assert one.latency_s == pytest.approx(2.0)
        assert (one.answers, one.fresh_s) == (1_100, [])

    def test_what_is_forgotten_has_no_part_in_later_means(self) -> None:
        one, other = Figures(weight=2.0), Figures(weight=2.0)
        for _ in range(20):
            one.began()
            one.answered(30.0, 1.0)
            one.drained(100.0, 30.0)
        one.forget()
        for each in (one, other):
            each.began()
            each.answered(2.0, 3.0)
            each.drained(500.0, 2.0)
        assert one.latency_s == other.latency_s == 2.0
        assert one.tokens_per_s == other.tokens_per_s == 500.0
        assert one.answers == other.answers == 1

    @given(results=st.lists(st.booleans(), max_size=200))
    def test_availability_is_a_share(self, results: list[bool]) -> None:
        one = Figures()
        for is_success in results:
            if is_success:
                one.answered(1.0, 0.0)
            else:
                one.failed()
            assert 0 <= one.availability <= 1
        for _ in range(200):
            one.answered(1.0, 0.0)
        assert one.availability > 0.99


def test_draws_begin_anywhere_so_that_pools_do_not_all_begin_with_the_first() -> None:
    among = named([Figures() for _ in range(8)])
    firsts = {next(draws(among, 1, lambda share=share: share / 8))[0].name for share in range(8)}
    assert len(firsts) == 8


def pool_of(servers: Sequence[ModelServer]) -> Pool:
    def seat(server: ModelServer) -> Seat:
        return Seat(name=server.name, make=lambda on_room: server)

    strategy = strategy_of("p2c", random.Random(1))
    return Pool([seat(server) for server in servers], strategy, seed=1, clock=CLOCK)


async def run_rows(pool: Pool, rows: int, *, at_once: int) -> tuple[float, float]:
    """The total and the largest work of rows of 0.05 to 0.15 s, `at_once` at any time."""
    draw = random.Random(2)
    works_s = [draw.uniform(0.05, 0.15) for _ in range(rows)]
    left = iter(works_s)

    async def work() -> None:
        for work_s in left:
            assert (await pool.send(Request(body={"work": work_s}), Call())).is_success

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    return sum(works_s), max(works_s)


@pytest.mark.parametrize("slots", [1, 4, 16])
def test_a_job_uses_all_that_four_unequal_servers_can_do(slots: int) -> None:
    async def main() -> None:
        speeds = [1.0, 1.0, 0.5, 0.25]
        servers = [
            ModelServer(f"s{n}", speed=speed, slots=slots, bound=slots)
            for n, speed in enumerate(speeds)
        ]
        begun_s = CLOCK.now_s()
        total_s, longest_s = await run_rows(pool_of(servers), 8_000, at_once=64)
        took_s = CLOCK.now_s() - begun_s
        capacity = slots * sum(speeds)
        assert took_s <= 1.03 * total_s / capacity + longest_s / min(speeds)

    virtual_run(main())


def test_calls_go_to_fast_endpoints_while_those_have_room() -> None:
    async def main() -> None:
        servers = [
            ModelServer(f"s{n}", speed=speed, slots=8, bound=8)
            for n, speed in enumerate((0.1, 1.0, 1.0))
        ]
        pool = pool_of(servers)
        await run_rows(pool, 300, at_once=1)
        seen = servers[0].calls
        await run_rows(pool, 1_000, at_once=8)
        assert servers[0].calls - seen <= 30

    virtual_run(main())


def test_an_endpoint_that_has_become_fast_again_is_found() -> None:
    async def main() -> None:
        servers = [
            ModelServer(f"s{n}", speed=speed, slots=8, bound=8)
            for n, speed in enumerate((0.25, 1.0))
        ]
        pool = pool_of(servers)
        await run_rows(pool, 1_000, at_once=2)
        assert servers[0].calls < 200
        servers[0].speed = 4.0
        # Some 500 s.
        await run_rows(pool, 10_000, at_once=2)
        assert servers[0].calls > servers[1].calls

    virtual_run(main())
