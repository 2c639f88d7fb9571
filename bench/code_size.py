"""The size of the code in src/redline: python bench/code_size.py [COMMIT ...] [--files FOLDER].

Counts Python tokens by folder, for each commit; `.` is this checkout, which is the default.
Comments, docstrings, line ends and indentation are not counted, so neither wrapping nor
documentation changes the count. A plain string is one token of any length; `chars`, the number of
characters in the same tokens, shows code that is hidden in regular expressions. Compare counts only
if they come from the same Python version: 3.12 and later split f-strings into parts. --files counts
the files of one folder, such as `tasks/answers`. Writes no record.
"""

from __future__ import annotations

import argparse
import ast
import io
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import record
from versions import checked_out

# What may have a docstring.
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_LAYOUT = {
    *(tokenize.ENCODING, tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


class Size(NamedTuple):
    """The size of some code: its tokens, and their characters."""

    tokens: int = 0
    chars: int = 0

    def plus(self, other: Size) -> Size:
        return Size(self.tokens + other.tokens, self.chars + other.chars)


def size_of(source: str) -> Size:
    """The size of one module's source; it must parse."""
    documented = _docstring_starts(ast.parse(source))
    size = Size()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT and token.start not in documented:
            size = size.plus(Size(1, len(token.string)))
    return size


def _docstring_starts(tree: ast.Module) -> set[tuple[int, int]]:
    """Row and column, as tokenize counts them, of every docstring."""
    starts: set[tuple[int, int]] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            # ast counts columns in bytes, tokenize in characters; before a docstring are spaces.
            starts.add((node.body[0].lineno, node.body[0].col_offset))
    return starts


def sizes(package: Path, folder: str | None = None) -> dict[str, Size]:
    """The size of each folder of a package, or of each file of one folder, `total` last."""
    found: dict[str, Size] = defaultdict(Size)
    for path in sorted((package / (folder or "")).rglob("*.py")):
        where = path.relative_to(package)
        name = str(where if folder else where.parent)
        found[name] = found[name].plus(size_of(path.read_text("utf-8")))
    found["total"] = Size(*map(sum, zip(*found.values(), strict=True)) if found else ())
    return dict(found)


def _show(columns: list[tuple[str, dict[str, Size]]]) -> Iterable[str]:
    names = list(dict.fromkeys(name for _, column in columns for name in column if name != "total"))
    wide = max(map(len, names), default=0)
    yield " " * wide + "".join(f"{name[:12]:>14} tokens      chars" for name, _ in columns)
    for name in [*sorted(names), "total"]:
        cells = [column.get(name, Size()) for _, column in columns]
        yield f"{name:{wide}}" + "".join(f"{tokens:21,}{chars:11,}" for tokens, chars in cells)


def _sources(commit: str) -> Iterator[Path]:
    """The `src` of this checkout or of a commit, for as long as it is iterated."""
    if commit == ".":
        yield record.ROOT / "src"
        return
    with tempfile.TemporaryDirectory() as folder, checked_out(commit, Path(folder) / "at") as src:
        yield src


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("commits", nargs="*", default=["."], metavar="COMMIT")
    parser.add_argument("--files", metavar="FOLDER", help="the files of this folder of src/redline")
    arguments = parser.parse_args()
    columns = [
        (commit, sizes(source / "redline", arguments.files))
        for commit in arguments.commits
        for source in _sources(commit)
    ]
    print("\n".join(_show(columns)))


if __name__ == "__main__":
    main()
