"""What is encoded once for all rows gives the same requests as what is made row by row."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.errors import Rejected
from redline.job.settings import Prompting
from redline.job.work import Renderer

NAMES = ("text", "n", "range", "body", "prompt", "stream", "model", "Été", "items", "row")
# What JSON, JSON strings, Jinja and %-formats treat in a way of their own.
TEXTS = st.text(st.sampled_from('ab "\\\n\r\t\0%s{}é\u2028😀') | st.characters(codec="utf-8"))
SCALARS = TEXTS | st.none() | st.booleans() | st.integers() | st.floats() | st.just("\ud800")
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=4
)
ROWS = st.dictionaries(st.sampled_from(NAMES), TEXTS | VALUES)
FORMS = ("{{ %s }}", '{{ row["%s"] }}', "{{ row.%s }}", "{{ %s.x }}")
# Jinja takes a line break of any kind for \n, and braces for its own.
FIXED = st.text(st.sampled_from('ab "\\\n\t%sé\u2028😀<&'))


def templates(*names: str) -> st.SearchStrategy[str]:
    columns = st.sampled_from([form % name for name in names for form in FORMS])
    return st.lists(FIXED | columns, max_size=6).map("".join)


URLS = st.sampled_from(
    ["/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings", "/generate"]
)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(),
        "n": st.integers(0, 5),
        "stream": st.booleans(),
        "messages": TEXTS,
        "response_format": VALUES,
        "bad": st.builds(object),
    },
)
SHOTS = st.lists(st.tuples(TEXTS, TEXTS), max_size=2)


def sent(row: dict[str, Any], prompting: Prompting) -> tuple[Any, ...] | str:
    """What goes to the server for the row, or why nothing does."""
    try:
        request = Renderer(prompting).request(row)
        body = request.raw if request.raw is not None else msgspec.json.encode(request.body)
    except (Rejected, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    # By these, answers are counted.
    asked = {name: request.asked.get(name) for name in ("n", "prompt", "input")}
    return body, repr(asked), request.method, request.url, request.output_path


@pytest.mark.slow
@given(
    ROWS,
    templates(*NAMES, "missing"),
    st.none() | templates(*NAMES, "missing"),
    URLS,
    PARAMS,
    SHOTS,
)
def test_templates_of_columns_give_what_jinja_gives(
    row: dict[str, Any],
    prompt: str,
    system: str | None,
    url: str,
    params: dict[str, Any],
    shots: list[tuple[str, str]],
) -> None:
    def of(prompt: str, system: str | None) -> Prompting:
        return Prompting(
            prompt=prompt, system=system, url=url, params=params, shots=shots, constant_prompt=True
        )

    if url not in ("/v1/chat/completions", "/v1/responses"):
        system = None
    # Jinja itself renders what has a statement in it.
    by_jinja = of(_stated(prompt), system and _stated(system))
    assert sent(row, of(prompt, system)) == sent(row, by_jinja)


@given(ROWS, TEXTS, st.none() | templates(*NAMES[:-1]), URLS, PARAMS)
def test_rows_with_a_prompt_give_what_other_rows_give(
    row: dict[str, Any], text: str, system: str | None, url: str, params: dict[str, Any]
) -> None:
    if url not in ("/v1/chat/completions", "/v1/responses"):
        system = None
    row.setdefault("prompt", text)
    prompting = Prompting(
        system=system and _stated(system), url=url, params=params, model="m", constant_prompt=True
    )
    plain = msgspec.structs.replace(prompting, system=system)
    # A row that brings messages is not of the common form; with none, it means the same.
    other = {"messages": None, **row} if url != "/generate" else row
    ours, theirs = sent(row, plain), sent(other, prompting)
    if isinstance(theirs, str):
        theirs = theirs.replace("row's columns are: messages, ", "row's columns are: ")
    assert ours == theirs


def _stated(template: str) -> str:
    return f"{{% if true %}}{template}{{% endif %}}"
