"""What libraries print is kept back, and shown after the unexpected only."""

import os

import pytest

from muxrl.orchestrator.commands.quiet import quiet


def make_noise(but_raise, error=None):
    with quiet(but_raise=but_raise):
        os.write(1, b"NOISE")
        if error:
            raise error


def test_what_is_printed_while_loading_is_shown_only_after_the_unexpected(capfd):
    make_noise(())
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ZeroDivisionError):
        make_noise((KeyError,), ZeroDivisionError())
    assert capfd.readouterr() == ("", "NOISE")
    with pytest.raises(KeyError):
        make_noise((KeyError,), KeyError())
    assert capfd.readouterr() == ("", "")
