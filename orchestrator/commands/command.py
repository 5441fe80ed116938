"""A command of ``muxrl``; its parser is made from its function's signature and docstring.

A parameter becomes an argument, a keyword-only parameter an option, and its text in ``Args:`` the
help. Brackets before the text hold an option's short form, a placeholder for the value, or both::

    lines (-n N): only the last N lines.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from muxrl import SERVERS_PYTHON, needs_newer_python
from muxrl.orchestrator.errors import ExitCode, Refused
from muxrl.protocol.suggestions import did_you_mean

COMMANDS = (
    *("launch", "check", "serve", "algorithms", "configs", "schema", "probe", "gateway", "runs"),
    *("logs", "replay", "stop", "watch", "report", "reproduce", "track", "evaluate", "exploit"),
    *("export", "sweep", "league", "compare", "compliance", "completion"),
)
"""The commands' modules in this package, in the order of the list of commands."""

_MODULES = {
    "servers": (
        "torch", "gymnasium", "omegaconf", "yaml", "starlette", "uvicorn", "h11", "rich",
        "matplotlib", "jinja2", "scipy", "pandas", "pyarrow", "tensorboardX",
    ),
    "tune": ("ray",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
}  # fmt: skip
"""By extra of pyproject.toml: the modules of its packages. uvloop, which Windows lacks, and shtab,
which only one command needs, are left out."""

_ARGUMENT = re.compile(r"^    (\w+)(?: \((-\w\b)? ?(.*)\))?: (.*(?:\n      .*)*)", re.MULTILINE)

_AROUND = (Annotated, types.UnionType, Union)
"""Forms that wrap a type; Python 3.10 wraps a parameter's with default None in a Union."""

T = TypeVar("T")


@dataclass(frozen=True)
class Command:
    """A command's function, which returns the exit code (None: it is done), and how it is run."""

    function: Callable[..., int | None]
    is_long: bool = False
    """Whether it works on when nobody reads its output; other commands only make output."""
    only_prints: bool = False
    """Whether it is done when its reader stops reading, as in ``muxrl runs | head``. Other commands
    end as quietly then, but with a failure."""
    says: Literal["nothing", "in a terminal", "always"] = "nothing"
    """Where it shows from the first second what it does, since its imports take seconds."""
    needs: tuple[str, ...] = ("servers",)
    """Extras of muxrl that have to be installed."""
    at_most_one: tuple[str, ...] = ()
    """Options of which at most one may be given."""
    one_of: tuple[str, ...] = ()
    """Options of which exactly one has to be given."""
    usage: str | None = None

    def __call__(self, args: argparse.Namespace) -> int:
        names = inspect.signature(self.function).parameters
        return self.function(**{name: getattr(args, name) for name in names}) or ExitCode.DONE

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds an argument for each parameter."""
        known = {
            name: rest for name, *rest in _ARGUMENT.findall(inspect.getdoc(self.function) or "")
        }
        kinds = get_type_hints(self.function, include_extras=True)
        alternatives = (*self.at_most_one, *self.one_of)
        group: argparse._ArgumentGroup | None = None
        for name, parameter in inspect.signature(self.function).parameters.items():
            short, placeholder, text = known.get(name, ("", "", ""))  # empty under -OO
            is_option, default = parameter.kind is parameter.KEYWORD_ONLY, parameter.default
            how = _how(kinds[name], default, is_option=is_option)
            if placeholder:
                how["metavar"] = placeholder
            if name in alternatives and group is None:
                group = parser.add_mutually_exclusive_group(required=bool(self.one_of))
            where = group if group and name in alternatives else parser
            flags = [*filter(None, [short]), f"--{name.replace('_', '-')}"]
            where.add_argument(*(flags if is_option else [name]), help=_help(text, default), **how)


def command(**how: Any) -> Callable[[Callable[..., int | None]], Command]:
    """Makes a `Command` of a function."""
    return lambda function: Command(function, **how)


def _how(kind: Any, default: Any, *, is_option: bool) -> dict[str, Any]:
    """Returns how argparse reads a parameter of this type."""
    read: list[Any] = []
    while get_origin(kind) in _AROUND:
        if get_origin(kind) is Annotated:
            kind, *read = get_args(kind)
        else:
            kind = next(one for one in get_args(kind) if one is not type(None))
    container, is_needed = get_origin(kind), default is inspect.Parameter.empty
    how: dict[str, Any] = {} if is_needed else {"default": default}
    if kind is bool:
        return {**how, "action": "store_true"}
    if container is Literal:
        return {**how, "choices": get_args(kind)}
    if container is dict:
        return {**how, "action": _Pairs, "type": read[0]}
    if is_option and is_needed:
        how["required"] = True
    if container is not None and not read:
        return {**how, "type": get_args(kind)[0], "nargs": "+" if is_needed else "*"}
    if not (is_option or is_needed):
        how["nargs"] = "?"
    return {**how, "type": read[0] if read else kind}


def _help(text: str, default: Any) -> str:
    text = " ".join(text.split()).removesuffix(".").replace("%", "%%")
    if "default: " in text or not default or default is inspect.Parameter.empty:
        return text
    return f"{text}; default: {f'{default:g}' if isinstance(default, float) else default}"


def acting_rule(explore: bool, greedy: bool) -> bool | None:
    """Returns ``should_explore``; without options None, which is the runs' own rule."""
    return explore if explore or greedy else None


def pair_of(value: Callable[[str], T], form: str) -> Callable[[str], tuple[str, T]]:
    """Returns a function that reads arguments NAME=VALUE; its errors show the `form`."""

    def read(text: str) -> tuple[str, T]:
        # A value that is text may contain "=", and so may a name before a number.
        for name, _, rest in (text.partition("="), text.rpartition("=")):
            with contextlib.suppress(ValueError):
                if name and rest:
                    return name, value(rest)
        raise argparse.ArgumentTypeError(f"{text!r} must look like {form}")

    return read


class _Pairs(argparse._AppendAction):
    """An argparse action that gathers pairs in a dict."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), **dict([values])})


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the arguments of a command line, with its `Command` as ``execute``.

    Raises:
        SystemExit: the line is wrong (2), or help or the version was asked for (0).
    """
    name = argv[0] if argv else ""
    parser = whole_parser([name] if name in COMMANDS else COMMANDS)
    if name not in COMMANDS and name and not name.startswith("-"):
        hint = did_you_mean(name, COMMANDS) or f"; choose from {', '.join(COMMANDS)}"
        parser.error(f"there is no command {name!r}{hint}")
    args, rest = parser.parse_known_args(argv)
    # argparse takes positionals only once; overrides after an option are left over.
    has_overrides = "overrides" in args
    unknown = [x for x in rest if not has_overrides or x.startswith("-") or "=" not in x]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if has_overrides:
        args.overrides = [*args.overrides, *rest]
    return args


def whole_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Imports the modules of these commands, and returns their parser."""
    parser = argparse.ArgumentParser(
        prog="muxrl",
        description="Several RL trainers, learning at the same time from one shared simulation.",
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # A module's docstring has a line for the list of commands and a paragraph for the help.
    for name in names:
        module = import_module(f"muxrl.orchestrator.commands.{name}")
        title, _, about = (module.__doc__ or "").partition("\n\n")
        command: Command = getattr(module, name)
        one = commands.add_parser(
            name,
            help=title.partition(": ")[2].removesuffix("."),
            description=about,
            usage=command.usage,
        )
        one.set_defaults(execute=command)
        command.add_arguments(one)
    return parser


class _Version(argparse._VersionAction):
    """Looks up the version only if it is asked for, since that takes time."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from muxrl.orchestrator.storage.versions import installed_version

        self.version = f"muxrl {installed_version() or '(not installed)'}"
        super().__call__(parser, *_)


def check_installed(name: str, extras: Sequence[str]) -> None:
    """Checks that a command's packages are installed, without importing them.

    An install without extras has the client, but not the servers' packages.

    Raises:
        Refused: a package is missing, or this Python is too old for it.
    """
    if extras and sys.version_info < SERVERS_PYTHON:
        raise Refused(f"{name!r} {needs_newer_python()}")
    for extra in extras:
        if missing := [one for one in _MODULES[extra] if find_spec(one) is None]:
            raise Refused(
                f"{name!r} needs {', '.join(missing)}, not installed here; "
                f"they come with: pip install 'muxrl[{extra}]'"
            )
