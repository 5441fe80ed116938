"""Importing users' code by its name, and finding the name of users' code."""

import functools
import sys
import types
from collections import OrderedDict

import pytest

from muxrl.servers.import_by_name import CannotImport, import_by_name, name_of


class Outer:
    class Inner:
        pass


@functools.lru_cache
def decorated():
    pass


@pytest.mark.parametrize("value", [Outer.Inner, decorated, name_of, OrderedDict])
def test_the_name_of_an_object_imports_the_same_object(value):
    assert import_by_name(name_of(value), "a:b") is value


def test_an_object_that_no_other_process_can_import_is_refused_with_the_reason(monkeypatch):
    def inner():
        pass

    of_notebook = type("Mine", (), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "old", types.SimpleNamespace(Mine=Outer))
    reloaded = type("Mine", (), {"__module__": "old"})
    for value, reason in (
        (lambda: 1, "is a lambda, .* define it at the top of a module of its own"),
        (inner, "is defined inside a function, so no other process"),
        (of_notebook, "'Mine' is defined in the script or notebook that runs here"),
        (functools.partial(print, 1), "is an object without a name .* its arguments separately"),
        (reloaded, "'old:Mine' is now another object than the one given"),
    ):
        with pytest.raises(CannotImport, match=reason):
            name_of(value)
