"""Trainers of users are exported by their ``network()``, or refused with the reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.nights import at_night
from tests.servers.export.test_export import MASKED, play_an_episode
from tests.servers.export.untrained import plan_of, save
from tests.servers.trainers.dense import Drawing

from muxrl.protocol.spaces import Box, Discrete, MultiDiscrete
from muxrl.servers.export.network import CannotExport
from muxrl.servers.export.verify import Differs
from muxrl.servers.fixed_policies.exported import export_checkpoint

DRAWING = "tests.servers.trainers.dense:Drawing"


class Closed(Drawing):
    network = None  # type: ignore[assignment]


class Elsewhere(Drawing):
    def network(self) -> Any:
        raise RuntimeError("the network is elsewhere")


class Weights(Drawing):
    def network(self) -> Any:
        return self.weights()


class Wide(Drawing):
    def network(self) -> Any:
        return torch.nn.Linear(2, 5)


class Otherwise(Drawing):
    """A trainer whose network does not choose its actions."""

    def act(self, rows: Any) -> Any:
        return super().act(rows).actions

    def network(self) -> Any:
        return torch.nn.Sequential(self.actor, torch.nn.Linear(3, 3))


_FEW = {"batch_env_steps": 8, "total_timesteps": 100}
_NARROW = {**_FEW, "policy_kwargs": {"net_arch": [8]}}
PLANS = {
    "RLLIB_PPO, masked": plan_of("RLLIB_PPO", MASKED, Discrete(3)),
    "RLLIB_PPO, continuous": plan_of(
        "RLLIB_PPO", Box((3,)), Box((2, 1), "float64", [[-2.0], [0.0]], [[1.0], [5.0]])
    ),
    "RLLIB_DQN": plan_of("RLLIB_DQN", Box((3,)), MultiDiscrete((3, 2))),
    "RLLIB_SAC": plan_of("RLLIB_SAC", Box((3,)), Box((2,), "float32", -1.0, 3.0)),
    "masked, stacked": plan_of(DRAWING, MASKED, Discrete(3), model={}, frame_stack=2),
    "SB3_PPO": plan_of(
        "SB3_PPO", MultiDiscrete((4, 5)), MultiDiscrete((3, 2)), settings=_NARROW, model={}
    ),
    "SB3_DQN": plan_of("SB3_DQN", Box((3,)), Discrete(3, start=2), settings=_NARROW, model={}),
    "SB3_SAC": plan_of(
        "SB3_SAC", Box((3,)), Box((2,), "float32", -1.0, 3.0), settings=_NARROW, model={},
        normalize_observations=True,
    ),
    "SB3_TD3": plan_of(
        "SB3_TD3", Box((3,)), Box((2,), "float32", -1.0, 3.0), settings=_NARROW, model={}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", at_night(PLANS, ["SB3_DQN", "SB3_TD3", "RLLIB_DQN"]))
def test_a_trainers_network_acts_as_the_trainer_does(name: str, tmp_path: Path) -> None:
    """At night, more cases run, with other ways to the same two kinds of answer."""
    plan = PLANS[name]
    saved = save(plan, tmp_path / "saved", None)
    (exported,) = export_checkpoint(saved, tmp_path / "out")
    assert exported.num_verified >= 1_000
    assert exported.outputs == ("action", "scores")
    play_an_episode(plan, saved, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Closed", "Closed has no method network(), which returns the torch module behind act()"),
        ("Elsewhere", "Elsewhere.network(): RuntimeError: the network is elsewhere"),
        ("Weights", "Weights.network(): expected a torch.nn.Module, got dict"),
        (
            "Wide",
            "Linear returns scores of the shape [5] for an observation, but Discrete(3) needs [3]",
        ),
    ],
)
def test_a_network_that_is_not_the_policy_s_is_refused(
    name: str, reason: str, tmp_path: Path
) -> None:
    plan = plan_of(f"{__name__}:{name}", Box((2,)), Discrete(3), model={})
    with pytest.raises(CannotExport, match=re.escape(reason)):
        list(export_checkpoint(save(plan, tmp_path / "saved", None), tmp_path / "out"))


def test_a_network_that_acts_otherwise_is_not_kept(tmp_path: Path) -> None:
    plan = plan_of(f"{__name__}:Otherwise", Box((2,)), Discrete(3), model={})
    with pytest.raises(Differs, match="does not act as the server does: agent 'a': the server"):
        list(export_checkpoint(save(plan, tmp_path / "saved", None), tmp_path / "out"))
    assert not list(tmp_path.glob("out/*.onnx"))
