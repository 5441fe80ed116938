"""Reads the declarations of config keys and algorithm settings: what they say besides the type.

A declaration is an annotated line of a class with its description as a docstring below:

.. code-block:: python

    num_processes: Adjustable[AboveZero[int]] = 1
    '''Simulation processes.'''

Type, range, description, and what a change of the value means are declared there and nowhere else.
Reading, JSON Schema, reference pages, resuming, comparing and masking use this module.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """A condition on a value.

    Attributes:
        sentence: what to say of a value for which `holds` is false.
        bounds: the condition in keywords of JSON Schema, if they can express it.
    """

    holds: Callable[[Any], bool]
    sentence: str
    bounds: tuple[tuple[str, float], ...] = ()

    def find_problem(self, name: str, value: Any) -> str:
        """Returns what is wrong with a setting's value, "" for nothing."""
        return "" if self.holds(value) else f"{name}={value!r} {self.sentence}"

    def find(self, value: Any) -> str:
        """Returns what is wrong with a key's value, "" for nothing."""
        return "" if self.holds(value) else f"is {value}, {self.sentence}"


@dataclass(frozen=True)
class Form:
    """A condition on a value: `find` returns what is wrong with it, "" for nothing."""

    find: Callable[[Any], str]


def between(low: float, high: float, sentence: str) -> Check:
    """Returns a check that a number, if given, is between two bounds, both included."""
    bounds = (("minimum", low), ("maximum", high))
    return Check(lambda v: v is None or low <= v <= high, sentence, bounds)


AboveZero = Annotated[
    T,
    Check(lambda v: v is None or 0 < v < math.inf, "must be above 0", (("exclusiveMinimum", 0),)),
]
NotNegative = Annotated[
    T, Check(lambda v: v is None or 0 <= v < math.inf, "must not be negative", (("minimum", 0),))
]


@dataclass(frozen=True)
class Use:
    """What a change of a key's value means for a run; by default, that the task is another one.

    Attributes:
        may_change: whether a resumed run may have another value.
        shapes_results: whether the value affects policies, or how they are measured, so that
            runs which differ in it are not seeds of one experiment.
        is_secret: whether the value is masked wherever it is written.
    """

    may_change: bool = False
    shapes_results: bool = True
    is_secret: bool = False


Adjustable = Annotated[T, Use(may_change=True)]
"""May change when a run is resumed, and affects its results."""
Free = Annotated[T, Use(may_change=True, shapes_results=False)]
"""May change when a run is resumed, and affects no result."""
NotInResults = Annotated[T, Use(shapes_results=False)]
"""Cannot change in a run, and is compared in other ways: names, agents, seeds."""
Secret = Annotated[T, Use(may_change=True, shapes_results=False, is_secret=True)]
"""Free, and never written in clear text."""


@dataclass(frozen=True)
class KeysOf:
    """Marks a mapping that has keys of this class, but need not have all of them."""

    cls: type


def bare(kind: Any) -> Any:
    """Returns the type of an annotation, without its metadata."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def metadata(kind: Any, what: type[T]) -> Iterator[T]:
    """Yields an annotation's metadata of some class, the innermost first."""
    return (one for one in getattr(kind, "__metadata__", ()) if isinstance(one, what))


def of_mapping(kind: Any) -> Any:
    """Returns the type of an annotated value as a mapping: without metadata and ``None``."""
    given = next(metadata(kind, KeysOf), None)
    kind = given.cls if given else bare(kind)
    args = [one for one in get_args(kind) if one is not types.NoneType]
    is_optional = get_origin(kind) in (Union, types.UnionType) and len(args) == 1
    return args[0] if is_optional else kind


@functools.cache
def hints_of(cls: type) -> Mapping[str, Any]:
    """Returns the annotation of each key of a class, with its metadata."""
    return get_type_hints(cls, include_extras=True)


def below(kind: Any, key: Any) -> Any:
    """Returns the annotation of a key inside a value; `Any` if none is declared."""
    kind = of_mapping(kind)
    if is_dataclass(kind):
        return hints_of(kind).get(key, Any)  # type: ignore[arg-type]
    return (get_args(kind) or (Any, Any))[1] if get_origin(kind) is dict else Any


def use_of(schema: type, path: Sequence[Any]) -> Use:
    """Returns what a change of a key means, as the key itself declares it, or its section.

    Args:
        schema: the class of the whole config.
        path: the keys from the top down.
    """
    kind: Any = schema
    found = Use()
    for key in path:
        kind = below(kind, key)
        found = next(metadata(kind, Use), found)
    return found


def keys_of(schema: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields path and annotation of each key of a class and of the classes below it, section by
    section; "NAME" stands for a key that the user chooses."""
    for name, hint in hints_of(schema).items():
        yield (*at, name), hint
        inner, path = of_mapping(hint), (*at, name)
        if get_origin(inner) is dict:
            inner, path = of_mapping(get_args(inner)[1]), (*path, "NAME")
        if is_dataclass(inner):
            yield from keys_of(inner, path)


def value_problem(value: Any, kind: Any) -> str:
    """Returns what is wrong with a value of an annotated type, or "": "is 0, must be above 0"."""
    checks: list[Check | Form] = [*metadata(kind, Check), *metadata(kind, Form)]
    problems = [check.find(value) for check in reversed(checks)]  # the narrowest is the outermost
    if isinstance(value, list) and (args := get_args(bare(kind))):
        problems += [value_problem(one, args[0]) for one in value]
    return next(filter(None, problems), "")


@functools.cache
def meanings(cls: type) -> Mapping[str, str]:
    """Returns the docstring below each declaration of a class and its bases, in one line.

    Raises:
        ValueError: a declaration has no docstring.
    """
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__[:-1]):
        tree = ast.parse(inspect.getsource(one)).body[0]
        assert isinstance(tree, ast.ClassDef)
        for line, following in zip(tree.body, [*tree.body[1:], None], strict=True):
            match line, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    found[name] = " ".join(text.split())
                case ast.AnnAssign(annotation=kind), _ if "ClassVar" in ast.unparse(kind):
                    pass  # no setting
                case ast.AnnAssign(target=ast.Name(id=name)), _:
                    raise ValueError(f"{one.__name__}.{name} has no line of documentation")
    return found
