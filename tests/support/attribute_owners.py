"""Of which classes of a package an expression may be, read from annotations and constructions.

It knows what is written down: annotations of parameters, fields and results, and calls of classes.
Where several classes are possible, each of them is meant; where nothing is known, none is.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_MOST_STEPS = 5
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Class:
    """path: of its module. attributes: those that it declares or sets on itself.

    is_record: it declares its fields and has no constructor of its own, or it is an error.
    """

    path: str
    name: str
    bases: list[str]
    is_record: bool
    attributes: set[str] = field(default_factory=set)


class Owners:
    """All classes of modules, which are given by path with all nodes of their trees."""

    def __init__(self, modules: Iterable[tuple[str, Iterable[ast.AST]]]) -> None:
        self._classes: dict[str, list[Class]] = defaultdict(list)
        self._types: dict[str, list[ast.expr]] = defaultdict(list)  # of attributes
        self._results: dict[str, list[ast.expr]] = defaultdict(list)  # of functions
        for path, nodes in modules:
            for node in nodes:
                if isinstance(node, ast.ClassDef):
                    self._add(path, node)
                elif isinstance(node, Function) and node.returns is not None:
                    self._results[node.name].append(node.returns)

    def classes(self, value: ast.expr, function: Function) -> list[Class]:
        """The classes that `value`, in `function`, may be of."""
        names = self._names(value, function, _MOST_STEPS)
        return [one for name in sorted(names) for one in self._classes[name]]

    def having(self, attribute: str) -> list[Class]:
        """All classes that have the attribute."""
        every = [one for found in list(self._classes.values()) for one in found]
        return [one for one in every if self.has(one, attribute)]

    def has(self, one: Class, attribute: str) -> bool:
        """The class or one that it inherits from has the attribute."""
        return any(attribute in each.attributes for each in self._lineage(one))

    def is_record(self, one: Class) -> bool:
        """It and all that it inherits from only hold data; see Class."""
        return all(each.is_record for each in self._lineage(one))

    def _lineage(self, one: Class) -> Iterator[Class]:
        yield one
        for base in one.bases:
            for found in self._classes.get(base, ()):
                if found is not one:
                    yield from self._lineage(found)

    def _add(self, path: str, node: ast.ClassDef) -> None:
        bases = [name for base in node.bases for name in _mentioned(base)]
        declared = [part for part in node.body if isinstance(part, ast.AnnAssign)]
        functions = [part for part in node.body if isinstance(part, Function)]
        is_error = any(name.endswith(("Error", "Exception")) for name in [node.name, *bases])
        has_init = any(function.name == "__init__" for function in functions)
        one = Class(path, node.name, bases, is_error or (bool(declared) and not has_init))
        one.is_record |= not declared and not has_init and bool(bases)
        for part in declared:
            if isinstance(part.target, ast.Name):
                one.attributes.add(part.target.id)
                self._types[part.target.id].append(part.annotation)
        for function in functions:
            parameters = _parameters(function)
            for target, value in _assigned(function):
                if not (isinstance(target, ast.Attribute) and _is_self(target.value)):
                    continue
                one.attributes.add(target.attr)
                if isinstance(value, ast.Name) and value.id in parameters:
                    value = parameters[value.id]
                self._types[target.attr].append(value)
        self._classes[node.name].append(one)

    def _names(self, value: ast.expr, function: Function, steps: int) -> set[str]:
        """Names of classes that are possible, within so many steps."""
        if steps == 0:
            return set()
        if isinstance(value, ast.Name):
            parameters = _parameters(function)
            if value.id in parameters:
                return self._known(parameters[value.id])
            found: set[str] = set()
            for target, given in _assigned(function):
                if isinstance(target, ast.Name) and target.id == value.id:
                    found |= self._known(given) or self._names(given, function, steps - 1)
            return found
        if isinstance(value, ast.Attribute):
            return {name for kind in self._types[value.attr] for name in self._known(kind)}
        if isinstance(value, ast.Call):
            called = value.func.attr if isinstance(value.func, ast.Attribute) else ""
            if isinstance(value.func, ast.Name):
                called = value.func.id
            if called in self._classes:
                return {called}
            return {name for kind in self._results[called] for name in self._known(kind)}
        inner = [child for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr)]
        if isinstance(value, ast.Subscript):
            inner = [value.value]
        return {name for child in inner for name in self._names(child, function, steps - 1)}

    def _known(self, annotation: ast.expr) -> set[str]:
        """The package's classes that an annotation, or the call of a class, mentions."""
        if isinstance(annotation, ast.Call):
            annotation = annotation.func
        return {name for name in _mentioned(annotation) if name in self._classes}


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


def _mentioned(annotation: ast.expr) -> Iterator[str]:
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.replace("|", " ").split()


def _parameters(function: Function) -> dict[str, ast.expr]:
    args = function.args
    return {
        arg.arg: arg.annotation
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)
        if arg.annotation is not None
    }


def _assigned(function: Function) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned in a function, and what to: a value, or its annotation."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _matched(target, node.value)
        elif isinstance(node, ast.AnnAssign):
            yield node.target, node.annotation
        elif isinstance(node, ast.NamedExpr | ast.AugAssign):
            yield node.target, node.value
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield from _matched(node.target, node.iter)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield from _matched(node.optional_vars, node.context_expr)


def _matched(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    for place, part in enumerate(target.elts):
        yield from _matched(part, values[place] if len(values) == len(target.elts) else value)
