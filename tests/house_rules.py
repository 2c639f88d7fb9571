"""The house rules of src/redline, read from its syntax trees; test_house.py applies them.

docs/architecture.md says why the rules are what they are.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FLOORS = {
    "errors": 0, "clock": 0, "events": 0, "locked": 0, "printable": 0, "threads": 0,
    "_version": 0, "_start": 0, "lasting": 0, "signals": 0,
    "limits": 1, "listening": 1,
    "calls": 2,
    "run": 3, "route": 3, "engine": 3, "observe": 3,
    "serve": 4, "tasks": 4, "cluster": 4,
    "cli": 5,
    "__init__": 6, "__main__": 6,
}  # fmt: skip
BESIDE = {"sim": 1, "testing": 2}  # the highest floor each may import
MAY_IMPORT_BESIDE = {"sim": {"cli", "run", "__init__"}, "testing": set[str]()}
ONLY_IN = {"torch": "engine"}
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 7
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Finding:
    """One broken rule: `path:line`, a name that an exception can be given to, and the reason."""

    path: str
    line: int
    name: str
    reason: str


@dataclass(frozen=True)
class Import:
    """`target` is the module imported by its full dotted name; `line`, where."""

    target: str
    line: int


@dataclass(frozen=True)
class Module:
    """A source file of the package under test."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def name(self) -> str:
        """`redline.run.journal`; a package's own name for its `__init__.py`."""
        parts = ["redline", *Path(self.path).with_suffix("").parts]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def part(self) -> str:
        """The name that has a floor: `run`, `errors`, or `__init__` for the public door."""
        return Path(self.path).with_suffix("").parts[0]

    def found(self, node: ast.AST, name: str, reason: str) -> Finding:
        return Finding(self.path, getattr(node, "lineno", 1), name, reason)


class Package:
    """All modules of one source tree, and who imports whom in it."""

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.rglob("*.py"))
        self.modules = [
            Module(str(file.relative_to(folder)), file.read_text("utf-8")) for file in files
        ]
        self.names = {module.name for module in self.modules}

    def imports(self, module: Module) -> Iterator[Import]:
        """Every import of `module`: top-level, inside functions, type-only, and by name."""
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(module, node)
                for alias in node.names:
                    full = f"{base}.{alias.name}"
                    yield Import(full if full in self.names else base, node.lineno)
            elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
                for text in node.args[:1]:
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        yield Import(text.value, node.lineno)

    def _base(self, module: Module, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        package = module.name.split(".")
        if not module.path.endswith("__init__.py"):
            package.pop()
        package = package[: len(package) - (node.level - 1)]
        return ".".join([*package, *([node.module] if node.module else [])])

    def functions(self) -> Iterator[tuple[Module, Function]]:
        for module in self.modules:
            for node in ast.walk(module.tree):
                if isinstance(node, Function):
                    yield module, node


def _called(call: ast.Call) -> str:
    """The last name of what is called: `command` for `app.command()`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _is_command(module: Module, function: Function) -> bool:
    """Whether it is a command: by its decorator, or since each of its parameters declares a flag.

    Such a signature is the table of the command's flags with their help, and as long as that.
    """
    if module.part != "cli":
        return False
    args = [*function.args.args, *function.args.kwonlyargs]
    return any(
        isinstance(decorator, ast.Call) and _called(decorator) in {"command", "callback"}
        for decorator in function.decorator_list
    ) or (bool(args) and all(_is_flag(arg.annotation) for arg in args))


def _is_flag(annotation: ast.expr | None) -> bool:
    """Whether it is `Annotated[..., Option(...)]`, a name for one, or the parser's Context."""
    if annotation is None or ast.unparse(annotation) in {"Context", "click.Context"}:
        return annotation is not None
    if isinstance(annotation, ast.Name) and annotation.id.endswith("Flag"):
        return True
    return (
        isinstance(annotation, ast.Subscript)
        and ast.unparse(annotation.value) in {"Annotated", "typing.Annotated"}
        and isinstance(annotation.slice, ast.Tuple)
        and any(
            isinstance(extra, ast.Call) and _called(extra) in {"Option", "Argument"}
            for extra in annotation.slice.elts[1:]
        )
    )


def _docstring_lines(function: Function) -> int:
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def known_parts(package: Package) -> Iterator[Finding]:
    for module in package.modules:
        if module.part not in FLOORS and module.part not in BESIDE:
            yield Finding(module.path, 1, "", f"{module.part} stands on no floor: give it one")


def floors(package: Package) -> Iterator[Finding]:
    for module in package.modules:
        for found in package.imports(module):
            if found.target.split(".")[0] != "redline":
                continue
            target = [*found.target.split("."), "__init__"][1]
            reason = _misstep(module.part, target)
            if reason:
                yield Finding(module.path, found.line, found.target, reason)


def _misstep(part: str, target: str) -> str:
    """Why `part` may not import `target`, or an empty string. Unknown parts fail elsewhere."""
    if part == target:
        return ""
    if target in BESIDE:
        allowed = MAY_IMPORT_BESIDE[target]
        return "" if part in allowed else f"{part} may not import {target}, which stands beside"
    if part in BESIDE:
        top = BESIDE[part]
        is_allowed = FLOORS.get(target, 0) <= top
        return "" if is_allowed else f"{part} may import floors 0 to {top} only, not {target}"
    here, there = FLOORS.get(part, 0), FLOORS.get(target, 0)
    if here == there:
        return f"{part} and {target} are both on floor {here}: they never meet"
    return "" if there < here else f"imports go down only: {part} ({here}) to {target} ({there})"


def cycles(package: Package) -> Iterator[Finding]:
    graph = {
        module.name: {found.target for found in package.imports(module)} & package.names
        for module in package.modules
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        ring: list[str] = error.args[1][::-1]
        start = next(module for module in package.modules if module.name == ring[0])
        line = next(f.line for f in package.imports(start) if f.target == ring[1])
        yield Finding(start.path, line, ring[1], "import cycle: " + " imports ".join(ring))


def heavy_imports(package: Package) -> Iterator[Finding]:
    for module in package.modules:
        for found in package.imports(module):
            owner = ONLY_IN.get(found.target.split(".")[0], module.part)
            if owner != module.part:
                yield Finding(
                    module.path, found.line, found.target, f"only {owner} imports {found.target}"
                )


def function_sizes(package: Package) -> Iterator[Finding]:
    """Lines from `def` to the end without the docstring; of a command, without the flag table."""
    for module, function in package.functions():
        first = function.body[0].lineno if _is_command(module, function) else function.lineno
        lines = (function.end_lineno or first) - first + 1 - _docstring_lines(function)
        if lines > MAX_FUNCTION_LINES:
            reason = f"{function.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
            yield module.found(function, function.name, reason)


def parameters(package: Package) -> Iterator[Finding]:
    for module, function in package.functions():
        if _is_command(module, function):
            continue
        args = function.args
        named = [*args.posonlyargs, *args.args]
        if named and named[0].arg in {"self", "cls"}:
            named = named[1:]
        spread = [arg for arg in (args.vararg, args.kwarg) if arg]
        count = len(named) + len(args.kwonlyargs) + len(spread)
        if count > MAX_PARAMETERS:
            reason = (
                f"{function.name} has {count} parameters, at most {MAX_PARAMETERS}: "
                "gather them in a frozen dataclass"
            )
            yield module.found(function, function.name, reason)


def file_names(package: Package) -> Iterator[Finding]:
    for module in package.modules:
        for part in Path(module.path).with_suffix("").parts:
            if BANNED_NAMES & set(part.lower().split("_")):
                yield Finding(module.path, 1, part, f"{part} says nothing: name the noun it holds")


def doors(package: Package) -> Iterator[Finding]:
    """An `__init__.py` holds a docstring, imports and `__all__`, nothing else."""
    for module in package.modules:
        if not module.path.endswith("__init__.py"):
            continue
        for index, node in enumerate(module.tree.body):
            is_docstring = index == 0 and ast.get_docstring(module.tree) is not None
            is_all = (
                isinstance(node, ast.Assign)
                and [ast.unparse(target) for target in node.targets] == ["__all__"]
                and all(isinstance(part, ast.Constant) for part in getattr(node.value, "elts", [0]))
            )
            if not (is_docstring or is_all or isinstance(node, ast.Import | ast.ImportFrom)):
                yield module.found(node, "", "an __init__.py exports and never computes")


def prints(package: Package) -> Iterator[Finding]:
    for module in package.modules:
        owners = _owners(module.tree)
        for node in ast.walk(module.tree):
            if (
                module.part != "cli"
                and isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
            ):
                reason = "only the command line prints; others send events"
                yield module.found(node, owners[node], reason)


def broad_excepts(package: Package) -> Iterator[Finding]:
    """No bare except, and no Exception swallowed. A handler that ends in `raise` swallows none."""
    for module in package.modules:
        owners = _owners(module.tree)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler):
                if node.type is None:
                    yield module.found(node, owners[node], "a bare except: name the errors")
                    continue
                last = node.body[-1]
                if _is_broad(node.type) and not (isinstance(last, ast.Raise) and not last.exc):
                    reason = f"except {ast.unparse(node.type)} outside the row boundary"
                    yield module.found(node, owners[node], reason)
            elif isinstance(node, ast.Call) and _called(node) == "suppress":
                for _ in filter(_is_broad, node.args):
                    yield module.found(node, owners[node], "suppress(Exception) hides every error")


def _is_broad(kind: ast.expr) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(k, ast.Name) and k.id in {"Exception", "BaseException"} for k in kinds)


def _owners(tree: ast.Module) -> dict[ast.AST, str]:
    """The function each node stands in; inner functions win, since the walk is outside in."""
    owners: dict[ast.AST, str] = dict.fromkeys(ast.walk(tree), "")
    for function in ast.walk(tree):
        if isinstance(function, Function):
            owners |= dict.fromkeys(ast.walk(function), function.name)
    return owners


def todos(package: Package) -> Iterator[Finding]:
    for module in package.modules:
        for number, line in enumerate(module.text.splitlines(), 1):
            if re.search(r"\b(TODO|FIXME)\b(?!\s*\(?#\d+)", line):
                yield Finding(module.path, number, "", "a TODO names its issue: TODO(#12)")


RULES: dict[str, Callable[[Package], Iterator[Finding]]] = {
    rule.__name__: rule
    for rule in (
        known_parts, floors, cycles, heavy_imports, function_sizes, parameters,
        file_names, doors, prints, broad_excepts, todos,
    )
}  # fmt: skip
