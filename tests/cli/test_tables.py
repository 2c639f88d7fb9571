"""Tables as other programs write them: each row is asked once, by the name that it has."""

from __future__ import annotations

import datetime
import decimal
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.scripted import model, scripted

Cli = Callable[..., Any]

SIM = ("--endpoint", "sim", "--model", "m", "--prompt", "{{ text }}")
SAID = "You said: "


def said(told: Any) -> dict[str, str]:
    """What was sent for each custom_id."""
    return {line["custom_id"]: line["output"].removeprefix(SAID) for line in told.results}


@pytest.mark.parametrize("name", ["in.tsv", "in.tsv.gz"])
def test_a_quote_in_tsv_swallows_no_line(cli: Cli, name: str) -> None:
    lines = [
        "custom_id\ttext",
        "1\tplain",
        '2\t"6 inch',
        "3\tlost row",
        '4\tanother " quote',
        '5\t"12" by 9"',
        '6\t"said ""so"""',
        '7\t"over two',
        'lines, ""quoted"""',
        '8\t"a\ttab"',
        '9\t"never closed',
    ]
    data = "\n".join(lines).encode()
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    told = cli("run", name, *SIM)
    assert told.status == 0
    assert said(told) == {
        "1": "plain",
        "2": '"6 inch',
        "3": "lost row",
        "4": 'another " quote',
        "5": '"12" by 9"',
        "6": 'said "so"',
        "7": 'over two\nlines, "quoted"',
        "8": "a\ttab",
        "9": '"never closed',
    }


def test_a_wrong_quote_in_csv_fails_its_own_line_alone(cli: Cli) -> None:
    lines = ['1,"fine\nand long"', '2,"6 inch', "3,next", '4,another " quote', "5,end"]
    Path("in.csv").write_text("\n".join(["custom_id,text", *lines]), "utf-8")
    told = cli("run", "in.csv", *SIM)
    assert told.status == 1
    assert "a quote is opened and not closed where its field ends (in.csv:4)" in told.err
    assert said(told) == {
        "1": "fine\nand long",
        "3": "next",
        "4": 'another " quote',
        "5": "end",
    }


def test_ids_of_every_type_are_kept(cli: Cli) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    stamp = int(moment.timestamp()) * 10**9
    columns = [
        (arrow.array([1.0, 2.5, float("nan"), None]), ["1", "2.5", None, None]),
        (arrow.array([2**60, 2**60 + 1]), [str(2**60), str(2**60 + 1)]),
        (arrow.array([decimal.Decimal("1.10")]), ["1.10"]),
        (arrow.array([moment], arrow.timestamp("us", "UTC")), ["2026-01-02T03:04:05Z"]),
        (
            arrow.array([stamp, stamp + 1, stamp + 1_000_002], arrow.timestamp("ns", "UTC")),
            [
                "2026-01-02T03:04:05Z",
                "2026-01-02T03:04:05.000000001Z",
                "2026-01-02T03:04:05.001000002Z",
            ],
        ),
        (arrow.array([moment.date()]), ["2026-01-02"]),
    ]
    for ids, names in columns:
        table = arrow.table({"custom_id": ids, "text": [str(n) for n in range(len(ids))]})
        parquet.write_table(table, "in.parquet")
        told = cli("run", "in.parquet", *SIM)
        assert (told.status, [line["custom_id"] for line in told.results]) == (0, names)


def test_a_number_that_is_none_is_not_sent_as_text(cli: Cli) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"custom_id": ["a", "b", "c"], "text": [1.5, float("nan"), float("inf")]})
    parquet.write_table(table, "in.parquet")
    told = cli("run", "in.parquet", *SIM)
    assert (told.status, said(told)) == (1, {"a": "1.5"})
    assert told.err.count("'text' is null") == 2


def test_columns_that_arrow_cannot_convert_across_row_groups_are_read(cli: Cli) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = 600
    table = pyarrow.table(
        {
            "custom_id": [f"{number}" for number in range(rows)],
            # A category of pandas, with other members in each row group.
            "text": pyarrow.array([f"text {number}" for number in range(rows)]).dictionary_encode(),
            "about": [{"page": 1, "note": None}] * rows,
            "at": pyarrow.array([0] * rows, pyarrow.timestamp("ns")),
        }
    )
    parquet.write_table(table, "in.parquet", row_group_size=350)
    told = cli("run", "in.parquet", *SIM)
    assert told.status == 0
    assert said(told) == {f"{number}": f"text {number}" for number in range(rows)}


def test_null_keys_of_a_table_are_not_sent_and_identify_the_row(cli: Cli) -> None:
    """All objects of a column have the same keys in Arrow."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "r"}], "tool_call_id": "c"},
    ]
    body = {"messages": messages, "seed": None, "response_format": {"type": "text"}}
    line = {"url": "/v1/chat/completions", "body": {"messages": messages, "n": 1}}
    spare = [{**body, "response_format": {"type": "x", "x": 1}}, {**line, "body": {"top_a": 1}}]
    for rows, sent in (([line, spare[1]], line["body"]), ([body, spare[0]], body)):
        table = pyarrow.Table.from_pylist(rows)
        parquet.write_table(table.slice(0, 1), "in.parquet")
        flags = ("--model", "m", "-o", f"{len(sent)}.jsonl")
        with scripted(model(lambda body: "yes")) as server:
            told = cli("run", "in.parquet", "--base-url", server.base_url, *flags)
            assert (told.status, server.bodies) == (0, [{"model": "m", **sent}])
        Path("in.jsonl").write_bytes(msgspec.json.encode(table.to_pylist()[0]))
        told = cli("run", "in.jsonl", "--endpoint", "sim", *flags)
        assert "Nothing to do: 1 done" in told.err
    told = cli("run", "in.parquet", *SIM[:-1], "{{ messages.0.tool_calls is none }}")
    assert told.outputs == [SAID + "True"]


def test_a_template_sees_the_null_keys_of_the_column_body(cli: Cli) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"body": {"seed": None}}, {"body": {"seed": 1}}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), "in.parquet")
    body = '{"messages": [{"role": "user", "content": {{ body | tojson | tojson }}}]}'
    for flags in (("--prompt", "{{ body | tojson }}"), ("--body", body)):
        told = cli("run", "in.parquet", *SIM[:-2], *flags)
        assert sorted(told.outputs) == [SAID + '{"seed": 1}', SAID + '{"seed": null}']


def test_a_message_keeps_its_null_content(cli: Cli) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    call = {"name": "f", "arguments": "{}"}
    messages: list[Any] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "1"},
    ]
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": messages}]), "in.parquet")
    with scripted(model(lambda body: "yes")) as server:
        cli("run", "in.parquet", "--base-url", server.base_url, "--model", "m")
    assert [body["messages"] for body in server.bodies] == [messages]
