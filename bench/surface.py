"""The part of bench/inventory.py that runs inside the process whose redline is described.

It prints the commands with their flags and help, the settings of `redline.toml` and of an
evaluation's task file, and the Python API. With the argument `refusals`, it prints the errors for
values that flags and options do not accept. It uses only public modules.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import os
import re
import runpy
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

MODULES = (
    *("redline", "redline.errors", "redline.limits", "redline.testing"),
    "redline.route.scale",
)
PROTOCOL = {
    *("__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__", "__call__"),
    *("__contains__", "__enter__", "__exit__", "__iter__", "__len__", "__next__"),
}
# An unknown name far from every known one, so that the error lists them all.
UNKNOWN = "qqqqqqqqqqqq"
# What a setting must be, asked by a value that fits none.
MISFIT = "[[1], [2]]"


TASK = 'prompt = "{{ a }}"\ngold = "a"\nmetric = "exact"\n'
MISFITTING = {1: (2,)}
_PROMPTED = ["--prompt={{ a }}", "--model=m", "--endpoint=sim", "--dry-run"]
# Each sends nothing.
ASKING = {
    "run": ["run", "in.jsonl", *_PROMPTED],
    "tag": ["tag", "in.jsonl", "--schema=labels.json", *_PROMPTED],
    "synth": ["synth", "--count=3", "--output=out.jsonl", *_PROMPTED],
    "eval": ["eval", "--task=task.toml", "--data=in.jsonl", "--endpoint=sim", "--dry-run"],
    "verify": ["verify", "out.jsonl"],
}


class _Found(BaseException):
    """Ends the program before the command runs."""


def program() -> click.Group:
    """The command line's group, as `python -m redline` makes it."""
    found: list[click.Command] = []
    usual = click.Command.main

    def caught(command: click.Command, *_: object, **__: object) -> None:
        found.append(command)
        raise _Found

    click.Command.main = caught  # type: ignore[method-assign, assignment]
    try:
        runpy.run_module("redline", run_name="__main__")
    except _Found:
        pass
    finally:
        click.Command.main = usual  # type: ignore[method-assign]
    (group,) = found
    assert isinstance(group, click.Group)
    return group


def commands(group: click.Group) -> Iterator[str]:
    """Each command's parameters, and its help line by line."""
    context = click.Context(group, info_name="redline", **group.context_settings)
    yield from command("redline", group, context)
    for name in group.list_commands(context):
        child = group.get_command(context, name)
        assert child is not None
        yield f"command {name}"
        own = click.Context(child, parent=context, info_name=name)
        yield from command(f"redline {name}", child, own)


def command(path: str, of: click.Command, context: click.Context) -> Iterator[str]:
    for param in of.get_params(context):
        names = " ".join([*param.opts, *param.secondary_opts])
        facts = {
            "name": param.name,
            "type": param.type.name,
            "default": param.default,
            "metavar": param.metavar,
            "multiple": param.multiple,
            "nargs": param.nargs,
            "required": param.required,
            "flag": getattr(param, "is_flag", False),
            "section": getattr(param, "section", None),
        }
        shown = ", ".join(f"{key}={plain(repr(value))}" for key, value in facts.items())
        yield f"flag {path} {names}: {shown}"
    for line in of.get_help(context).splitlines():
        yield f"help {path}: {line}".rstrip()


def told(arguments: list[str]) -> str:
    """What the command line writes to stderr."""
    stderr, argv = io.StringIO(), sys.argv
    sys.argv = ["redline", *arguments]
    try:
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_module("redline", run_name="__main__")
    except SystemExit:
        pass
    finally:
        sys.argv = argv
    return stderr.getvalue()


def settings() -> Iterator[str]:
    """The names that each table of `redline.toml`, and a task file, takes; and what each holds."""
    run = ["run", "in.jsonl", "--prompt", "{{ a }}", "--model", "m", "--endpoint", "sim"]
    tables = {
        "{}": "",
        "[run]\n{}": "",
        "[endpoints.e]\n{}": 'base_url = "http://127.0.0.1:1/v1"',
        '[prices."m"]\n{}': "input = 1\noutput = 1",
    }
    for form, needed in tables.items():
        for name in _known(form, run, Path("redline.toml")):
            others = "\n".join(line for line in needed.split("\n") if not line.startswith(name))
            Path("redline.toml").write_text(form.format(f"{name} = {MISFIT}\n{others}\n"))
            yield f"redline.toml {_table(form)}{name}: {_first_line(told(run))}"
        Path("redline.toml").unlink()
    task = ["eval", "--task", "task.toml", "--data", "in.jsonl", "--endpoint", "sim"]
    for name in _known("{}", task, Path("task.toml")):
        Path("task.toml").write_text(f"{name} = {MISFIT}\n")
        yield f"task file {name}: {_first_line(told(task))}"


def _known(form: str, arguments: list[str], path: Path) -> list[str]:
    path.write_text(form.format(f"{UNKNOWN} = 1\n"))
    error = " ".join(told(arguments).split())
    listed = re.search(r"known (?:settings|are):? ([\w, ]+)", error)
    assert listed is not None, f"{path} with {form!r}: {error}"
    return sorted(listed[1].replace(" ", "").split(","))


def _table(form: str) -> str:
    return form.partition("\n")[0] + " " if "\n" in form else ""


def _first_line(text: str) -> str:
    return text.split("\n\n")[0].replace("\n", " ").replace(os.getcwd(), "HERE").strip()


def refusals(group: click.Group) -> Iterator[str]:
    """What is said to a value that most flags refuse, and to one that most options of `run` do."""
    context = click.Context(group)
    for name, arguments in ASKING.items():
        child = group.get_command(context, name)
        assert child is not None
        for param in child.params:
            if isinstance(param, click.Option) and not param.is_flag:
                flag = max(param.opts, key=len)
                given = [word for word in arguments if not word.startswith(f"{flag}=")]
                said = _first_line(told([*given, f"{flag}={UNKNOWN}"])) or "nothing"
                yield f"refusal {name} {flag} {UNKNOWN}: {said}"
    run = importlib.import_module("redline").run
    for option in inspect.signature(run).parameters:
        if option != "rows":
            try:
                run([{"prompt": "one"}], **{"endpoint": "sim", "model": "m", option: MISFITTING})
                said = "nothing"
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            yield f"refusal redline.run({option}=MISFITTING): {plain(said)}"


def python() -> Iterator[str]:
    """Every public name of the public modules; then the types that these return."""
    described: dict[type, str] = {}
    for module_name in MODULES:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError:
            # An earlier version does not have it.
            continue
        listed = getattr(module, "__all__", None)
        yield f"module {module_name}: __all__ {'is stated' if listed else 'is not stated'}"
        for name in sorted(listed or _own_names(module)):
            value = getattr(module, name)
            yield from _described(f"{module_name}.{name}", value, described)
    waiting = list(described)
    while waiting:
        for kind in returned(waiting.pop()):
            if kind not in described:
                waiting.append(kind)
                yield from _described(f"(returned) {kind.__name__}", kind, described)


def _own_names(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("redline")
    ]


def _described(path: str, value: Any, described: dict[type, str]) -> Iterator[str]:
    if inspect.isclass(value):
        if value in described:
            yield f"python {path}: is {described[value]}"
        else:
            described[value] = path
            yield from (f"python {path}{line}" for line in kind_lines(value))
    elif callable(value):
        yield f"python {path}{signature(value)}"
        # So that what it returns is described, too.
        for kind in _named(str(getattr(value, "__annotations__", {}).get("return")), value):
            described.setdefault(kind, f"{path}'s result")
            if described[kind] == f"{path}'s result":
                yield from (f"python (returned) {kind.__name__}{line}" for line in kind_lines(kind))
    elif not inspect.ismodule(value):
        yield f"python {path} = {plain(repr(value))}"


def kind_lines(kind: type) -> list[str]:
    """A class: its bases, its constructor, and its public attributes."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("redline")]
    bases = ", ".join(base.__name__ for base in kind.__mro__[1:-1])
    lines = [f": class({bases})", f": constructor{signature(kind)}"]
    seen: set[str] = set()
    for base in own:
        for name, value in list(vars(base).items()):
            if name in seen or (name.startswith("_") and name not in PROTOCOL):
                continue
            seen.add(name)
            annotation = getattr(base, "__annotations__", {}).get(name)
            lines.append(f".{name}{attribute(value, annotation)}")
        for name in sorted(_assigned(base) - seen):
            seen.add(name)
            lines.append(f".{name}: set on instances")
    return lines[:2] + sorted(lines[2:])


def attribute(value: Any, annotation: object) -> str:
    if isinstance(value, (classmethod, staticmethod)):
        return f"{signature(value.__func__)}, {type(value).__name__}"
    if isinstance(value, property):
        settable = "" if value.fset is None else ", settable"
        return f": property{signature(value.fget)}{settable}"
    if inspect.isfunction(value):
        return signature(value)
    if inspect.ismemberdescriptor(value) or inspect.isgetsetdescriptor(value):
        return f": field {plain(str(annotation))}"
    return f" = {plain(repr(value))}"


def _assigned(kind: type) -> set[str]:
    """The public names that the class's own methods assign to `self`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return set()
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and not node.attr.startswith("_")
    }


def signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ": no signature"
    return plain(text + (", async" if inspect.iscoroutinefunction(value) else ""))


def returned(kind: type) -> Iterator[type]:
    """The classes of redline that a class's methods return and its fields hold."""
    for base in kind.__mro__:
        if not base.__module__.startswith("redline"):
            continue
        for text in getattr(base, "__annotations__", {}).values():
            yield from _named(str(text), base)
        for name, value in list(vars(base).items()):
            function = value.fget if isinstance(value, property) else value
            function = getattr(function, "__func__", function)
            if inspect.isfunction(function) and not name.startswith("_"):
                yield from _named(str(function.__annotations__.get("return")), base)


def _named(annotation: str, within: Any) -> Iterable[type]:
    """The classes of redline that an annotation names, as the module it is in knows them."""
    known = vars(sys.modules[within.__module__])
    for name in re.findall(r"[A-Z]\w+", annotation):
        value = known.get(name)
        if inspect.isclass(value) and value.__module__.startswith("redline"):
            yield value


def plain(text: str) -> str:
    """Text without the modules and addresses in it, which may change."""
    text = re.sub(r"\bredline(?:\.\w+)+\.(?=\w)", "", text)
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def main() -> None:
    stdout = os.dup(1)
    os.environ.update(COLUMNS="100", NO_COLOR="1", TERM="dumb")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("in.jsonl").write_text('{"a": 1}\n')
        Path("labels.json").write_text('["bug", "question"]')
        group = program()
        if sys.argv[1:] == ["refusals"]:
            Path("task.toml").write_text(TASK)
            lines = [*refusals(group)]
        else:
            lines = [*commands(group), *sorted(settings()), *sorted(python())]
        os.chdir("/")
    # The command line may have closed stdout after an error.
    with open(stdout, "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
