"""The rules of src/redline, read from its syntax trees; test_architecture.py applies them.

docs/architecture.md says why the rules are what they are.
"""

from __future__ import annotations

import ast
import gc
import graphlib
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from support.attribute_owners import Owners

# Imports go to an earlier part only: the layers of docs/architecture.md, lowest first.
LAYERS = (
    "_version", "_start", "errors", "clock", "events", "inflate", "structs", "process",
    "limits", "httpserver",
    "waist", "apis", "calls",
    "testing", "sim", "store", "timeline",
    "sources", "journal",
    "engine", "observe", "route", "measure",
    "job",
    "tasks", "serve", "cluster",
    "cli",
    "__init__", "__main__",
)  # fmt: skip
# The same within a folder, "" for the modules that lie in it directly.
SUBFOLDERS = {
    "apis": ("errors", "", "messages"),
    "limits": ("rule", "server", "wait", "discover", "shared", ""),
    "calls": ("tokens", "cost", "wire", "http", "cache", "client", "batching", ""),
    "sources": ("", "stream"),
    "sim": ("", "answers", "batches", "server"),
    "route": ("", "replay", "scale"),
    "engine": ("", "sample", "schedule", "model", "draft", "step", "parallel", "api"),
    "job": (
        *("settings", "work", "batch", "show", "monitor", "exporter", "otel", "outputs", "inspect"),
        *("report", ""),
    ),
    "tasks": ("answers", "evaluate", "tag", "synth", ""),
    "serve": (
        *("http", "functions", "keys", "admission", "batches", "fleet", "dashboard", "workers"),
        *("gateway", ""),
    ),
    "cli": ("flags", "session", "results", "bench", "keys", "commands", ""),
}
# What only these parts import: the simulated provider, and virtual time, shipped for users' tests,
# which a replay runs in.
RESERVED = {"sim": {"job", "cli"}, "testing": {"route"}}
ONLY_IN = {"torch": "engine"}
MAX_FUNCTION_LINES = 60
MAX_MODULES = 14
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
    """`target` is the module imported by its full dotted name; `line`, where.

    `is_by_name`: a string names it, as an argument of `import_module`.
    """

    target: str
    line: int
    is_by_name: bool = False


@dataclass(frozen=True)
class Module:
    """A source file of the package under test."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def owners(self) -> dict[ast.AST, Function | None]:
        """Every node of the tree, and the innermost function that it is in."""
        owners: dict[ast.AST, Function | None] = {}
        left = deque[tuple[ast.AST, Function | None]]([(self.tree, None)])
        while left:
            node, owner = left.popleft()
            owners[node] = owner = node if isinstance(node, Function) else owner
            left.extend((child, owner) for child in ast.iter_child_nodes(node))
        return owners

    @cached_property
    def name(self) -> str:
        """`redline.journal.journal`; a package's own name for its `__init__.py`."""
        parts = ["redline", *Path(self.path).with_suffix("").parts]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_door(self) -> bool:
        return self.path.endswith("__init__.py")

    @property
    def part(self) -> str:
        """The name that has a layer: `job`, `errors`, or `__init__` for the public door."""
        return Path(self.path).with_suffix("").parts[0]

    def found_in_function(self, node: ast.AST, reason: str) -> Finding:
        """A finding by the name of the innermost function that `node` is in."""
        owner = self.owners[node]
        return self.found(node, owner.name if owner else "", reason)

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
        self.folders = {module.name for module in self.modules if module.is_door}
        # Modules that their folder's door offers as they are.
        self.offered = {
            f"{module.name}.{alias.name}"
            for module in self.modules
            if module.is_door
            for node in module.tree.body
            if isinstance(node, ast.ImportFrom) and node.module == module.name
            for alias in node.names
        }

        self._imports: dict[str, list[Import]] = {}
        # The trees live as long as this: the garbage collector would search them in vain.
        gc.disable()
        try:
            for module in self.modules:
                _ = module.owners
        finally:
            gc.enable()

    def imports(self, module: Module) -> list[Import]:
        """Every import of `module`: top-level, inside functions, type-only, and by name."""
        if module.path not in self._imports:
            self._imports[module.path] = [*self._read_imports(module)]
        return self._imports[module.path]

    def _read_imports(self, module: Module) -> Iterator[Import]:
        for node in module.owners:
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
                        yield Import(text.value, node.lineno, True)

    def _base(self, module: Module, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        package = module.name.split(".")
        if not module.is_door:
            package.pop()
        package = package[: len(package) - (node.level - 1)]
        return ".".join([*package, *([node.module] if node.module else [])])

    def functions(self) -> Iterator[tuple[Module, Function]]:
        for module in self.modules:
            for node in module.owners:
                if isinstance(node, Function):
                    yield module, node


def _called(call: ast.Call) -> str:
    """The last name of what is called: `command` for `app.command()`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _docstring_lines(function: Function) -> int:
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def known_parts(package: Package) -> Iterator[Finding]:
    """Every part and every subfolder has its place in the order."""
    for module in package.modules:
        part, *inner = Path(module.path).with_suffix("").parts
        if part not in LAYERS:
            yield Finding(module.path, 1, "", f"{part} has no place in LAYERS")
        elif len(inner) > 1 and inner[0] not in SUBFOLDERS.get(part, ()):
            yield Finding(module.path, 1, "", f"{part}/{inner[0]} has no place in SUBFOLDERS")


def layers(package: Package) -> Iterator[Finding]:
    for module in package.modules:
        for found in package.imports(module):
            target = found.target.split(".")
            if target[0] != "redline":
                continue
            reason = _misstep(module, [*target, "__init__"][1]) or _inner_misstep(module, target)
            if reason:
                yield Finding(module.path, found.line, found.target, reason)


def _misstep(module: Module, target: str) -> str:
    """Why `module` may not import the part `target`, or an empty string."""
    part = module.part
    if part == target or {part, target} - {*LAYERS}:
        return ""  # an unknown part is found by another rule
    if target in RESERVED and part not in RESERVED[target]:
        return f"{part} may not import {target}"
    if LAYERS.index(target) < LAYERS.index(part):
        return ""
    return f"imports go down only: {target} is above {part}"


def _inner_misstep(module: Module, target: list[str]) -> str:
    """The same between the subfolders of one part. Its door may import all of them."""
    order = SUBFOLDERS.get(module.part, ())
    inner = Path(module.path).with_suffix("").parts[1:]
    if target[1:2] != [module.part] or not order or inner == ("__init__",):
        return ""
    here = inner[0] if len(inner) > 1 else ""
    there = target[2] if target[2:] and target[2] in order else ""
    if here == there or {here, there} - {*order} or order.index(there) < order.index(here):
        return ""
    return f"imports go down only: {module.part}/{there} is above {module.part}/{here}"


def doors(package: Package) -> Iterator[Finding]:
    """A folder's names are imported from its door; inside the folder, from their module."""
    for module in package.modules:
        inside = module.name if module.is_door else module.name.rpartition(".")[0]
        for found in package.imports(module):
            if found.target.split(".")[0] != "redline" or found.is_by_name:
                continue
            folder = found.target.rpartition(".")[0]
            is_inside = f"{inside}.".startswith(f"{found.target}.")
            if found.target in package.folders:
                if is_inside and found.target != "redline":
                    reason = f"inside {found.target}, import from the module and not its door"
                    yield Finding(module.path, found.line, found.target, reason)
            elif not (
                folder == "redline"
                or f"{inside}.".startswith(f"{folder}.")
                or found.target in package.offered
            ):
                reason = f"import from the door, {folder}"
                yield Finding(module.path, found.line, found.target, reason)


def shadowed_modules(package: Package) -> Iterator[Finding]:
    """A door offers no function or class by the name of a module of its folder, which it hides."""
    for module in package.modules:
        if not module.is_door:
            continue
        for node in module.tree.body:
            if not isinstance(node, ast.ImportFrom) or node.module == module.name:
                continue
            for alias in node.names:
                name = alias.asname or alias.name
                if f"{module.name}.{name}" in package.names:
                    yield module.found(node, name, f"{name} hides the module {module.name}.{name}")


def folder_sizes(package: Package) -> Iterator[Finding]:
    counts = Counter(
        module.name.rpartition(".")[0] for module in package.modules if not module.is_door
    )
    for folder, count in sorted(counts.items()):
        if count > MAX_MODULES:
            path = "/".join([*folder.split(".")[1:], "__init__.py"])
            yield Finding(path, 1, folder, f"{count} modules in {folder}, at most {MAX_MODULES}")


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
    """Lines from `def` to the end without the docstring."""
    for module, function in package.functions():
        last = function.end_lineno or function.lineno
        lines = last - function.lineno + 1 - _docstring_lines(function)
        if lines > MAX_FUNCTION_LINES:
            reason = f"{function.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
            yield module.found(function, function.name, reason)


def parameters(package: Package) -> Iterator[Finding]:
    for module, function in package.functions():
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


def plain_doors(package: Package) -> Iterator[Finding]:
    """An `__init__.py` holds a docstring, imports and `__all__`, nothing else."""
    for module in package.modules:
        if not module.is_door:
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
        if module.part == "cli":
            continue
        for node in module.owners:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
            ):
                reason = "only the command line prints; others send events"
                yield module.found_in_function(node, reason)


def broad_excepts(package: Package) -> Iterator[Finding]:
    """No bare except, and no Exception swallowed. A handler that ends in `raise` swallows none."""
    for module in package.modules:
        for node in module.owners:
            if isinstance(node, ast.ExceptHandler):
                if node.type is None:
                    yield module.found_in_function(node, "a bare except: name the errors")
                    continue
                last = node.body[-1]
                if _is_broad(node.type) and not (isinstance(last, ast.Raise) and not last.exc):
                    reason = f"except {ast.unparse(node.type)} outside the row boundary"
                    yield module.found_in_function(node, reason)
            elif isinstance(node, ast.Call) and _called(node) == "suppress":
                for _ in filter(_is_broad, node.args):
                    yield module.found_in_function(node, "suppress(Exception) hides every error")


def _is_broad(kind: ast.expr) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(k, ast.Name) and k.id in {"Exception", "BaseException"} for k in kinds)


def outside_assignments(package: Package) -> Iterator[Finding]:
    """Attributes of an object are assigned by its own class, or where that is defined.

    Records are data: whoever has one may write its fields. A record declares its fields in its body
    and has no constructor of its own, as a dataclass or a msgspec.Struct; errors are records, too.
    """
    owners = Owners((module.path, module.owners) for module in package.modules)
    for module in package.modules:
        for node, function in module.owners.items():
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store | ast.Del):
                continue
            if function is None:
                continue
            if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
                continue
            name = node.attr
            possible = [
                one for one in owners.classes(node.value, function) if owners.has(one, name)
            ]
            if not possible:
                # Nothing is known of it: then the name decides, unless a record has it as well.
                possible = owners.having(name)
                if any(map(owners.is_record, possible)):
                    continue
            for one in possible:
                if one.path != module.path and not owners.is_record(one):
                    reason = f"{ast.unparse(node)}: only {one.name} assigns its {name}"
                    yield module.found_in_function(node, reason)
                    break


def todos(package: Package) -> Iterator[Finding]:
    for module in package.modules:
        for number, line in enumerate(module.text.splitlines(), 1):
            if re.search(r"\b(TODO|FIXME)\b(?!\s*\(?#\d+)", line):
                yield Finding(module.path, number, "", "a TODO names its issue: TODO(#12)")


RULES: dict[str, Callable[[Package], Iterator[Finding]]] = {
    rule.__name__: rule
    for rule in (
        known_parts, layers, doors, shadowed_modules, cycles, heavy_imports, folder_sizes,
        function_sizes, parameters, file_names, plain_doors, prints, broad_excepts,
        outside_assignments, todos,
    )
}  # fmt: skip
