"""What an exported policy asks of its session, tested without ONNX Runtime."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from muxrl.client.onnx_policy import OnnxPolicy


def test_an_observation_that_the_network_cannot_read_is_named() -> None:
    about = {"muxrl.agents": json.dumps({"a": {"agent_id": [1.0]}}), "muxrl.frame_stack": "1"}
    ports = [SimpleNamespace(name=n, type="tensor(float)", shape=[1, 2]) for n in ("x", "mask")]
    session: Any = SimpleNamespace(
        get_modelmeta=lambda: SimpleNamespace(custom_metadata_map=about),
        get_inputs=lambda: ports,
        get_outputs=lambda: [],
    )
    with pytest.raises(ValueError, match=r"agent 'a': the network reads 'mask', .* has x$"):
        OnnxPolicy(session, "a")({"x": np.zeros(2)})
