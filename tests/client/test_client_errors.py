"""Errors travel from a simulation's process to the launcher's, with all that they say."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from muxrl.client import errors
from muxrl.client.errors import ClientError, EpisodeAborted, RefusedByServer, ServerUnavailable
from muxrl.protocol.errors import ProtocolError, ValueMismatch
from muxrl.protocol.messages import Refused


def below(kind: type[Exception]) -> Iterator[type[Exception]]:
    for cls in kind.__subclasses__():
        if cls.__module__ == errors.__name__:
            yield cls
            yield from below(cls)


@pytest.mark.parametrize(
    "error",
    [
        ClientError("plain"),
        ServerUnavailable("gone", server_id="qmix"),
        EpisodeAborted("why", episode_id="e", server_id="qmix"),
        RefusedByServer(
            Refused("e", 422, "no", agent_id="a", expected="x", got="y"),
            episode_id="e",
            server_id="s",
        ),
        ValueMismatch("no", agent_id="a", expected="x", got="y"),
    ],
)
def test_an_error_can_be_pickled(error: ClientError | ProtocolError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)


@pytest.mark.parametrize("kind", list(below(ClientError)))
def test_each_is_drawn_in_the_tree(kind: type[Exception]) -> None:
    assert f"── {kind.__name__} " in (errors.__doc__ or "")
