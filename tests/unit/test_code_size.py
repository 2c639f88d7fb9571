"""The size of code counts what runs, and neither its layout nor what documents it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from support.scripts import script

PLAIN = 'def f(a):\n    return a + "b"\n'
DOCUMENTED = '''\
"""A module."""

# A comment.
def f(
    a
):
    """A function,

    on two lines.
    """
    return (  # another comment
        a + "b"
    )
'''


@pytest.fixture(scope="module")
def code_size() -> ModuleType:
    return script("bench/code_size.py", "record", "imports", "versions")


def test_only_tokens_of_code_count(code_size: ModuleType) -> None:
    assert code_size.size_of(PLAIN) == (10, len('deff(a):returna+"b"'))
    # The parentheses around the expression are code.
    assert code_size.size_of(DOCUMENTED) == (12, len('deff(a):return(a+"b")'))
    assert code_size.size_of('"""A module."""\nx = """no docstring"""\n').tokens == 3
    assert code_size.size_of('class C:\n    """One."""\n    x: int\n').tokens == 6
    assert code_size.size_of("") == (0, 0)


def test_folders_and_files_add_up(code_size: ModuleType, tmp_path: Path) -> None:
    for name in ("a.py", "one/b.py", "one/c.py", "one/two/d.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(PLAIN)
    counts = {name: size.tokens for name, size in code_size.sizes(tmp_path).items()}
    assert counts == {".": 10, "one": 20, "one/two": 10, "total": 40}
    files = {name: size.tokens for name, size in code_size.sizes(tmp_path, "one").items()}
    assert files == {"one/b.py": 10, "one/c.py": 10, "one/two/d.py": 10, "total": 30}
