"""Whatever lines an output has, what `show` and `compare` count are its rows, each once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redline.job.inspect import (
    KINDS,
    Selection,
    Tariff,
    compare_outputs,
    figures_of,
    opened,
    select,
)
from redline.journal import Output
from support.output_files import failure, result, write_output

FEW = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Written(NamedTuple):
    """A line of the row of this number. mark: of its content, 0 for a row without a name."""

    row: int
    mark: int
    said: str
    is_damaged: bool


# Rows of an even number have a name, and two contents that they may have had.
LINES = st.lists(
    st.builds(
        lambda row, mark, said, is_damaged: Written(row, mark if row % 2 else 0, said, is_damaged),
        st.integers(1, 8),
        st.integers(1, 2),
        st.sampled_from("abc"),
        st.sampled_from([False] * 9 + [True]),
    ),
    max_size=16,
)
TAIL = st.sampled_from([b"", b'{"v":1,"hash":"00', b'{"v":'])


def written(path: Path, results: list[Written], failures: list[Written], tail: bytes) -> Output:
    def bytes_of(line: Written, data: bytes) -> bytes:
        return data.replace(b'"v":1', b'"v":7') if line.is_damaged else data

    good = [bytes_of(one, result(one.row, one.said, mark=one.mark)) for one in results]
    bad = [bytes_of(one, failure(one.row, one.said, mark=one.mark)) for one in failures]
    return write_output(path, [*good, tail], bad)


def by_the_rules(results: list[Written], failures: list[Written]) -> dict[int, tuple[bool, str]]:
    """For each row whether it has succeeded and what its line says, in the plainest way."""
    good: dict[int, Written] = {}
    for line in results:
        if not line.is_damaged and (line.row not in good or line.mark != good[line.row].mark):
            good[line.row] = line
    bad = {line.row: line.said for line in failures if not line.is_damaged}
    return {
        **{row: (False, said) for row, said in bad.items()},
        **{row: (True, line.said) for row, line in good.items()},
    }


@FEW
@given(results=LINES, failures=LINES, tail=TAIL)
def test_counts_are_those_of_the_file(
    tmp_path: Path, results: list[Written], failures: list[Written], tail: bytes
) -> None:
    output = written(tmp_path / "labels.jsonl", results, failures, tail)
    truth = by_the_rules(results, failures)
    with opened(output) as found:
        figures = figures_of(found, Tariff())
        shown = [json.loads(row.data) for row in select(found, Selection())]
        sampled = [json.loads(row.data) for row in select(found, Selection(sample=3))]
        assert found.lines.damaged == sum(line.is_damaged for line in [*results, *failures])
        assert found.lines.is_torn == bool(tail)
        lines = len(results) + len(failures)
        left_out = (found.lines.damaged, found.lines.results.repeated)
        outdated = found.lines.results.outdated + found.lines.failures.outdated
        assert lines == sum(left_out) + outdated + len(truth)
    assert figures.succeeded == sum(is_good for is_good, _ in truth.values())
    assert figures.failed == len(truth) - figures.succeeded
    assert Counter({kind: one.rows for (kind, _), one in figures.errors.items()}) == Counter(
        said for is_good, said in truth.values() if not is_good
    )
    said = {line["row"]: line["output"] or line["error"]["kind"] for line in shown}
    assert said == {row: said for row, (_, said) in truth.items()}
    assert len(shown) == len(truth)
    assert len(sampled) == min(3, len(truth))
    assert all(line in shown for line in sampled)


@FEW
@given(first=st.tuples(LINES, LINES), second=st.tuples(LINES, LINES))
def test_pairs_are_those_of_the_rows_in_common(tmp_path: Path, first: Any, second: Any) -> None:
    one = written(tmp_path / "a.jsonl", *first, b"")
    two = written(tmp_path / "b.jsonl", *second, b"")
    ones, others = by_the_rules(*first), by_the_rules(*second)
    expected: Counter[str] = Counter()
    for row in ones.keys() & others.keys():
        (is_good, said), (is_good_there, said_there) = ones[row], others[row]
        if is_good and is_good_there:
            expected["equal" if said == said_there else "different"] += 1
        else:
            kinds = {(True, False): "lost", (False, True): "gained", (False, False): "failed"}
            expected[kinds[is_good, is_good_there]] += 1
    if not expected:
        return
    with opened(one) as left, opened(two) as right:
        found = compare_outputs(left, right, Tariff(), sample=2)
        shown = {kind: [one.lines() for one in each] for kind, each in found.samples.items()}
    assert found.pairs == expected
    assert set(expected) <= set(KINDS)
    assert found.only_first == len(ones) - expected.total()
    assert found.only_second == len(others) - expected.total()
    for kind, pairs in shown.items():
        assert len(pairs) == min(2, expected[kind])
        for line, there in pairs:
            assert line is not None
            assert there is not None
            assert line.row == there.row
