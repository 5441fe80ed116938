"""The output of libraries is held back, and shown only after an unexpected error."""

import os

import pytest

from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import CannotEvaluate
from muxrl.servers.training.policies import ServerProblem


def make_noise(error=None):
    with quiet():
        os.write(1, b"NOISE")
        if error:
            raise error


def test_output_while_loading_is_shown_only_after_an_unexpected_error(capfd):
    make_noise()
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ZeroDivisionError):
        make_noise(ZeroDivisionError())
    assert capfd.readouterr() == ("", "NOISE")
    for expected in (CannotEvaluate(), ServerProblem(), FileNotFoundError()):
        with pytest.raises(type(expected)):
            make_noise(expected)
        assert capfd.readouterr() == ("", "")
