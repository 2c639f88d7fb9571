"""How deep each folder of src/redline is: python bench/depth.py.

Of each folder, with all below it: the longest chain of modules of which each imports the next, in
that folder, and its lines of code without docstrings, comments and blank lines. Lazy and type-only
imports count as others do. Modules that import each other in a ring count once each, in braces.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import record

SOURCE = record.ROOT / "src"
EMPTY = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER"}
Graph = dict[str, set[str]]
Chain = list[list[str]]


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def targets(path: Path, known: set[str]) -> Iterator[str]:
    """The modules that a module imports anywhere; a name that is a module is that module."""
    package = name_of(path).split(".")[: None if path.name == "__init__.py" else -1]
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package[: len(package) - level + 1] if level else []
                start = ".".join([*above, *([module] if module else [])])
                inner = [f"{start}.{each.name}" for each in names]
                yield from (name if name in known else start for name in inner)
            case ast.Call(args=[ast.Constant(value=str(name))]):
                yield name  # of import_module, if it is a module


def longest(graph: Graph) -> Chain:
    """Rings and single modules, top first, with the most modules among all such chains."""
    reached: Graph = {}
    for name in graph:
        waiting, reached[name] = [name], set()
        while waiting:
            new = graph[waiting.pop()] - reached[name]
            reached[name] |= new
            waiting += new
    rings = {
        name: frozenset({name, *(other for other in below if name in reached[other])})
        for name, below in reached.items()
    }

    @cache
    def chain(ring: frozenset[str]) -> Chain:
        below = {rings[target] for name in ring for target in graph[name]} - {ring}
        return [sorted(ring), *max(map(chain, sorted(below, key=sorted)), key=size, default=[])]

    return max(map(chain, sorted({*rings.values()}, key=sorted)), key=size)


def size(chain: Chain) -> int:
    return sum(map(len, chain))


def code_lines(path: Path) -> int:
    text, lines = path.read_text(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if tokenize.tok_name[token.type] not in EMPTY:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant(value=str())) as said, *_]:
                lines -= {*range(said.lineno, (said.end_lineno or said.lineno) + 1)}
    return len(lines)


def main() -> None:
    paths = {name_of(path): path for path in sorted((SOURCE / "redline").rglob("*.py"))}
    graph = {name: {*targets(path, {*paths})} & {*paths} - {name} for name, path in paths.items()}
    for folder in sorted({path.parent for path in paths.values()}):
        door = name_of(folder / "__init__.py")
        inside = {name for name in paths if f"{name}.".startswith(f"{door}.")}
        chain = longest({name: graph[name] & inside for name in inside})
        lines = sum(code_lines(paths[name]) for name in inside)
        shown = [", ".join(name.removeprefix(f"{door}.") for name in ring) for ring in chain]
        shown = [f"{{{names}}}" if ", " in names else names for names in shown]
        print(f"{door}: {size(chain)} levels, {len(inside)} modules, {lines:,} lines of code")
        print(f"  {' > '.join(shown)}")


if __name__ == "__main__":
    main()
