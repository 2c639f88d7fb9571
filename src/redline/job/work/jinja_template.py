"""Renders Jinja templates with a row's columns; only data can be printed.

A name refers to data first: `{{ order.items }}` is the item `items` of the column `order`, not the
method of dict, which can be called but not printed. A missing column can be tested, but not
printed:

  in a template            missing      null         a method, a global function
  {{ note }}               fails        fails        fails
  {{ note | default(0) }}  0            0            0
  {% if note %}            no           no           no
  note is defined          no           yes          no
  note is none             no           yes          no
  note()                   fails        fails        its result

Columns whose names are not identifiers are written as `{{ row["Customer Name"] }}`. In this
expression, `row` is a column only if that column is an object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context

from redline.errors import BadTemplate, ConfigError
from redline.process import listed

_ROW = "row"
# Names that Jinja itself binds, to the template and to a loop, and `row` in `row["column"]`. The
# template looks them up under the second name, which no template can contain.
_BOUND = {"self": "0self", "loop": "0loop", _ROW: "0row"}
_DATA = (str, int, float, dict, list, tuple, type(None))
# Types that `{{ }}` prints as `str` does.
PRINTED_AS_STR = frozenset({str, int, bool})
_PRINTED = (str, int, list, dict, tuple, jinja2.Undefined)
# What filters and the methods of values raise, besides errors of Jinja's own.
_RAISED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RecursionError,
    TypeError,
    ValueError,
)
_BRACES = re.compile(r"(?<![{\w])\{\s*([^\W\d]\w*)\s*\}(?!\})")


class _Missing(jinja2.StrictUndefined):
    """A column that a row lacks."""

    __slots__ = ()

    def __bool__(self) -> bool:  # type: ignore[override]
        return False

    def __repr__(self) -> str:
        # Called to print a list or an object that contains a missing column: raises, as `str` does.
        return str(self)


class _Null(_Missing):
    """A column that is null, or a float that is NaN or infinite."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return other is None or isinstance(other, _Null)

    def __ne__(self, other: object) -> bool:  # type: ignore[override]
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(None)

    def __repr__(self) -> str:
        return "None"


class _Function(_Missing):
    """A name that the row has no column for, but that can be called as a function."""

    __slots__ = ("_function",)
    # Jinja reads this attribute of a callable; None means that it does not take the context.
    jinja_pass_arg = None

    _function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def _function(function: Any, name: str, **of: Any) -> _Function:
    made = _Function(name=name, **of)
    made._function = function
    return made


class _Environment(jinja2.Environment):
    """An environment in which names refer to data; methods of data can only be called."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if not isinstance(obj, _DATA) and not isinstance(obj, _Null):
            return super().getattr(obj, attribute)
        found = self.getitem(obj, attribute)
        if isinstance(found, jinja2.Undefined) and not isinstance(found, _Null):
            method = getattr(obj, attribute, None) if isinstance(obj, _DATA) else None
            if callable(method):
                return _function(method, attribute, obj=obj)
        return found

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, _Null):
            return self.undefined(hint=f"{obj._undefined_hint}, so it has no '{argument}'")
        if not isinstance(obj, _DATA):
            return super().getitem(obj, argument)
        try:
            return obj[argument]  # type: ignore[index]
        except (TypeError, LookupError):
            return self.undefined(obj=obj, name=argument)


class Plain(NamedTuple):
    """A template of only text and columns. format: the left operand of `%`, with one %s per column.

    columns: the columns, in the order of the format. others: columns that, if a row has them,
    change which values the template reads.
    """

    format: str
    columns: list[str]
    others: frozenset[str]


class Template:
    """Renders one template. name: the template's name in errors.

    columns: the names that the template looks up, `row` included. braced: the first name in single
    braces, such as `{text}`, which Jinja does not replace; None if there is none. plain: set if the
    template has only text and columns, such as `{{ text }}` or `{{ row["text"] }}`; None otherwise.
    Raises ConfigError for an invalid template.
    """

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        try:
            self._compile(text)
        except jinja2.TemplateError as error:
            hint = "columns are written as {{ column }}"
            if "expected token 'end of print statement', got" in str(error):
                hint += ', and those with spaces as {{ row["Customer Name"] }}'
            raise ConfigError(
                f"the {name} template is not valid: {error.message}", hint=hint
            ) from error

    def _compile(self, text: str) -> None:
        tree = _ENVIRONMENT.parse(text)
        self.plain = _plain(tree)
        self._bound = _unbound(tree)
        names = {name.name for name in tree.find_all(nodes.Name)}
        called = {
            call.node.name
            for call in tree.find_all(nodes.Call)
            if isinstance(call.node, nodes.Name)
        }
        self.columns = find_undeclared_variables(tree) - (called & _FUNCTIONS.keys())
        self._names = sorted(names)
        self._functions: dict[str, Any] = {
            name: _FUNCTIONS[name] for name in names & _FUNCTIONS.keys()
        }
        template = _ENVIRONMENT.from_string(tree)
        self._begin = partial(Context, _ENVIRONMENT, name=template.name, blocks=template.blocks)
        self._parts = template.root_render_func
        braced = _BRACES.search(text)
        self.braced = None if braced is None else braced[1]

    def render(self, row: Mapping[str, Any]) -> str:
        """Renders the template with a row's columns. Raises BadTemplate if that fails."""
        plain = self.plain
        try:
            if plain is not None and plain.others.isdisjoint(row):
                columns = list(map(row.get, plain.columns))
                if PRINTED_AS_STR.issuperset(map(type, columns)):
                    return plain.format % tuple(columns)
            # As jinja2.Template.render does, but without merging in globals, since there are none.
            return "".join(self._parts(self._begin(self._values(row))))
        except jinja2.UndefinedError as error:
            raise BadTemplate(
                f"the {self._name} template does not fit the row: {error.message}; "
                f"the row's columns are: {listed(row)}"
            ) from error
        except (jinja2.TemplateError, *_RAISED) as error:
            raise BadTemplate(f"the {self._name} template fails on the row: {error}") from error

    def _values(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of the names that the template looks up."""
        values = self._functions.copy()
        for name in self._names:
            if name in row:
                value = row[name]
                values[name] = value if type(value) is str else _with_nulls(value, name)
            elif name == _ROW:
                values[name] = _with_nulls(row, name)
        for name in self._bound:
            if name == _ROW and not isinstance(row.get(name), Mapping):
                found = _with_nulls(row, name)
            else:
                found = _with_nulls(row[name], name) if name in row else _Missing(name=name)
            values[_BOUND[name]] = found
        return values


def _plain(tree: nodes.Template) -> Plain | None:
    """Returns the template as a format for `%`; None if it is more than text and columns."""
    texts, columns, others = [], [], set()
    for output in tree.body:
        if not isinstance(output, nodes.Output):
            return None
        for node in output.nodes:
            if isinstance(node, nodes.TemplateData):
                texts.append(node.data.replace("%", "%%"))
                continue
            texts.append("%s")
            if isinstance(node, nodes.Name) and node.name not in _BOUND:
                columns.append(node.name)
            elif (name := _item_of_row(node)) is not None:
                columns.append(name)
                others.add(_ROW)
            else:
                return None
    return Plain("".join(texts), columns, frozenset(others))


def _item_of_row(node: nodes.Node) -> str | None:
    """Returns the column's name in `row["column"]` or `row.column`; None for other expressions."""
    of = getattr(node, "node", None)
    if not isinstance(of, nodes.Name) or of.name != _ROW:
        return None
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value if type(node.arg.value) is str else None
    return None


def _unbound(tree: nodes.Template) -> list[str]:
    """Renames each name in `_BOUND` if it can only be a column or the row; returns the old names.

    `self` can only be a column. `loop` can only be one if it is printed: a loop's attributes can
    be read, and the loop can be passed on, but it cannot be printed. `row` in `row["column"]` is
    the row, unless the template assigns to `row`, for example as the variable of a loop.
    """
    names = list(tree.find_all(nodes.Name))
    printed = [_filtered(node) for output in tree.find_all(nodes.Output) for node in output.nodes]
    rows = [item.node for item in tree.find_all(nodes.Getitem) if _item_of_row(item) is not None]
    if any(name.name == _ROW and name.ctx != "load" for name in names):
        rows = []
    renamed: dict[str, list[Any]] = {"self": names, "loop": printed, _ROW: rows}
    found = set()
    for name in names:
        if any(name is node for node in renamed.get(name.name, ())):
            found.add(name.name)
            name.name = _BOUND[name.name]
    return sorted(found)


def _filtered(node: nodes.Node | None) -> nodes.Node | None:
    """Returns the expression without its filters."""
    while isinstance(node, nodes.Filter):
        node = node.node
    return node


def _with_nulls(value: Any, name: str) -> Any:
    """Returns the value with each null, NaN and infinite float replaced by a `_Null`.

    name: the value's name in messages, such as `order.items`.
    """
    if type(value) is str or not _has_null(value):
        return value
    if isinstance(value, Mapping):
        return {key: _with_nulls(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_nulls(item, f"{name}.{place}") for place, item in enumerate(value)]
    what = "null" if value is None else f"{value}, which is not a number"
    return _Null(hint=f"'{name}' is {what}")


def _has_null(value: Any) -> bool:
    """Whether the value is or contains null, NaN or an infinite float."""
    kind = type(value)
    # Checked first, because the test against Mapping is slow for other types.
    if kind is str or kind is int:
        return False
    if isinstance(value, Mapping):
        return any(map(_has_null, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_null, value))
    return value is None or (kind is float and not math.isfinite(value))


def _printed(value: Any) -> Any:
    """Returns the value if `{{ }}` may print it; otherwise raises jinja2.UndefinedError."""
    if type(value) is str or isinstance(value, _PRINTED):
        return value
    if value is None:
        raise jinja2.UndefinedError("a value is null")
    is_none = not math.isfinite(value) if isinstance(value, float) else value != value
    if is_none is True:
        # A user's function returned a NaN of NumPy, pandas or decimal, which differs from itself.
        raise jinja2.UndefinedError(f"a value is {value}, which is not a number")
    if isinstance(value, GeneratorType):
        raise jinja2.UndefinedError(
            "a generator is not text: put `| join(', ')` or `| list` after it"
        )
    if callable(value) or type(value).__module__.startswith("jinja2"):
        raise jinja2.UndefinedError(f"a value of type {type(value).__name__} cannot be printed")
    return value


def _is_defined(value: Any) -> bool:
    return isinstance(value, _Null) or not isinstance(value, jinja2.Undefined)


def _json_of(value: object) -> None:
    """Returns None, which is JSON's null, for a null column.

    Raises jinja2.UndefinedError for a missing column, TypeError for any other object.
    """
    if isinstance(value, _Null):
        return
    if isinstance(value, jinja2.Undefined):
        str(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_json_of)


_ENVIRONMENT = _Environment(
    undefined=_Missing, autoescape=False, keep_trailing_newline=True, finalize=_printed
)
# The functions range, dict, namespace, cycler, joiner and lipsum. They are passed to a template
# together with the row's columns, which take precedence.
_FUNCTIONS: dict[str, Any] = {
    name: _function(made, name) for name, made in _ENVIRONMENT.globals.items()
}
_ENVIRONMENT.globals.clear()
_ENVIRONMENT.filters["json"] = lambda value: _ENCODER.encode(value).decode()
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"sort_keys": True, "default": _json_of}
_ENVIRONMENT.tests["none"] = lambda value: value is None or isinstance(value, _Null)
_ENVIRONMENT.tests["defined"] = _is_defined
_ENVIRONMENT.tests["undefined"] = lambda value: not _is_defined(value)
