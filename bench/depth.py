"""The depth of each folder of src/redline: python bench/depth.py.

For each folder: the longest chain of modules in which each imports the next. It is given first for
the modules in the folder itself, where it may have at most MOST_LEVELS modules, and then for all
modules below the folder, with their lines of code without docstrings, comments and blank lines.
Lazy and type-only imports count like others. Modules that import each other in a cycle count once
each, and are shown in braces.
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
MOST_LEVELS = 6
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

    return max(map(chain, sorted({*rings.values()}, key=sorted)), key=size, default=[])


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


def modules() -> tuple[dict[str, Path], Graph]:
    """Each module's file, and the modules that it imports."""
    paths = {name_of(path): path for path in sorted((SOURCE / "redline").rglob("*.py"))}
    known = {*paths}
    return paths, {name: {*targets(path, known)} & known - {name} for name, path in paths.items()}


def folders(paths: dict[str, Path]) -> dict[str, tuple[set[str], set[str]]]:
    """By folder: the modules that lie in it, without its `__init__`, and all at and below it."""
    found = {}
    for folder in sorted({path.parent for path in paths.values()}):
        door = name_of(folder / "__init__.py")
        here = {name for name, path in paths.items() if path.parent == folder} - {door}
        found[door] = here, {name for name in paths if f"{name}.".startswith(f"{door}.")}
    return found


def chain_in(names: set[str], graph: Graph) -> Chain:
    """The longest chain among these modules alone."""
    return longest({name: graph[name] & names for name in names})


def shown(chain: Chain, door: str) -> str:
    rings = [", ".join(name.removeprefix(f"{door}.") for name in ring) for ring in chain]
    return " > ".join(f"{{{names}}}" if ", " in names else names for names in rings)


def main() -> None:
    paths, graph = modules()
    for door, (here, below) in folders(paths).items():
        beside, whole = chain_in(here, graph), chain_in(below, graph)
        lines = sum(code_lines(paths[name]) for name in below)
        print(f"{door}: {len(here)} modules, {size(beside)} levels: {shown(beside, door)}")
        print(
            f"  with all below: {len(below)} modules, {lines:,} lines of code, {size(whole)} levels"
        )
        print(f"  {shown(whole, door)}")


if __name__ == "__main__":
    main()
