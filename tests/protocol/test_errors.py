"""Every class of refusals has a code of its own and a place in the table of refusals."""

from __future__ import annotations

import re

import pytest

from muxrl.protocol import errors
from muxrl.protocol.errors import ProtocolError, error_for_code

CLASSES = ProtocolError.__subclasses__()


def test_no_two_share_a_code() -> None:
    assert len({cls.code for cls in CLASSES}) == len(CLASSES) >= 8


@pytest.mark.parametrize("cls", CLASSES)
def test_each_is_found_by_its_code_and_drawn_in_the_tree(cls: type[ProtocolError]) -> None:
    assert error_for_code(cls.code) is cls
    assert errors.__doc__ is not None
    assert re.search(rf"── {cls.__name__} +{cls.code} ", errors.__doc__)


def test_an_unknown_code_is_a_protocol_error() -> None:
    assert error_for_code(418) is ProtocolError
