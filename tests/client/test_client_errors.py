"""Errors travel from a simulation's process to the launcher's with all their fields."""

from __future__ import annotations

import pickle

import pytest

from muxrl.client.errors import ClientError, EpisodeAborted, RefusedByServer, ServerUnavailable
from muxrl.protocol.errors import ProtocolError, ValueMismatch
from muxrl.protocol.messages import Refused


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
