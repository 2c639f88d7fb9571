"""The files of this checkout that a script runs, and whether two versions of a file do the same.

A script runs the modules that it imports, directly or indirectly.

The public module `redline` is left out: it imports all of redline, but a script runs little of it.
If a script starts `redline` in another process, it runs more files than are found here.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
_SEARCHED = (ROOT / "src", ROOT / "tests", ROOT / "bench")
_PUBLIC_DOOR = ROOT / "src" / "redline" / "__init__.py"


def files_of(script: Path) -> set[Path]:
    """The script and all that it imports from this checkout."""
    found, left = set[Path](), [script]
    while left:
        path = left.pop()
        if path not in found and path != _PUBLIC_DOOR:
            found.add(path)
            left += [file for name in _imported(path) for file in _files(name)]
    return found


def code_of(source: str) -> str:
    """What a Python file does: its syntax tree, without comments, layout, docstrings and messages.

    A message is a string of one line and at least three words; of an f-string, what is filled in
    counts.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name, children in ast.iter_fields(node):
            if isinstance(children, list):
                setattr(node, name, [child for child in children if not _is_text(child)])
        if isinstance(node, ast.JoinedStr):
            texts = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
            if _is_message(" ".join(texts)):
                node.values = [part for part in node.values if not isinstance(part, ast.Constant)]
        elif isinstance(node, ast.Constant) and _is_message(node.value):
            node.value = ""
    return ast.dump(tree)


def _is_text(node: object) -> bool:
    """Whether a statement is nothing but a string, as docstrings are."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_message(value: object) -> bool:
    return isinstance(value, str) and "\n" not in value and len(value.split()) >= 3


@cache
def _imported(path: Path) -> set[str]:
    """Dotted names of what a file imports, modules and what is taken from them."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@cache
def _files(name: str) -> set[Path]:
    """The files of a module and of the packages that it lies in; none if it is not of here."""
    parts, found = name.split("."), set[Path]()
    for base in _SEARCHED:
        for length in range(1, len(parts) + 1):
            path = base.joinpath(*parts[:length])
            door, module = path / "__init__.py", path.with_suffix(".py")
            if door.exists():
                found.add(door)
            elif module.exists():
                found.add(module)
    return found
