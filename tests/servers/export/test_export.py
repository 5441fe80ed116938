"""Each algorithm's policy is exported to a file that acts as its server does, or not at all."""

from __future__ import annotations

import itertools
import math
import re
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from tests.nights import at_night
from tests.servers.export.untrained import SMALL, plan_of, save

from muxrl.orchestrator.load_policy import load_policy
from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    TupleSpace,
    bounds,
    choices,
)
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.export.network import CannotExport
from muxrl.servers.export.onnx_file import to_onnx
from muxrl.servers.export.verify import Differs
from muxrl.servers.fixed_policies import exported as door
from muxrl.servers.fixed_policies.exported import export_checkpoint
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.setting_values import AlgorithmProblem

ROOT = Path(__file__).parents[3]
RLLIB = "ray.rllib.algorithms.ppo:PPOConfig"
PIXELS = Box((2, 2), "uint8", 0, 1)
MASKED = DictSpace({"action_mask": Box((3,), "int8", 0, 1), "seen": Box((2,))})


LSTM = {**SMALL, "use_lstm": True, "lstm_cell_size": 4}
NESTED = DictSpace({"b": TupleSpace((Discrete(3, start=1), PIXELS)), "a": Box((1,))})
WITH_STATE = DictSpace({"seen": Box((3,)), "state": Box((5,))})
UNLIKE = Box((2,), "float64", [-2.0, 0.0], [1.0, 5.0])
MOVES = Box((2,), "float32", -1.0, 3.0)


def team_of(algorithm: str, sees: Any, acts: Any, **given: Any) -> ServerPlan:
    """Returns a team's server; arguments that are no fields of a plan are settings."""
    fields = {k: given.pop(k) for k in ("normalize_observations", "frame_stack") if k in given}
    settings = {"hidden_dim": 8, **given}
    return plan_of(algorithm, sees, acts, settings=settings, model={}, is_team=True, **fields)


NINE = MultiDiscrete((3, 3))


def masks(mask: Any) -> DictSpace:
    return DictSpace({"action_mask": mask, "seen": Box((2,))})


PLANS = {
    "PPO, masked": plan_of("PPO", MASKED, Discrete(3, start=2)),
    "PPO, Box actions, nested observations": plan_of("PPO", NESTED, UNLIKE),
    "A2C, MultiDiscrete": plan_of("A2C", MultiDiscrete((4, 5, 3)), MultiDiscrete((3, 2))),
    "A2C, a Box of float16": plan_of("A2C", Box((3,)), Box((2, 1), "float16", -2.0, 3.0)),
    "PPO, MultiBinary": plan_of("PPO", Box((3,)), MultiBinary(4)),
    "IMPALA, Tuple of Discrete": plan_of(
        "IMPALA", Box((3,), "float64"), TupleSpace((Discrete(2, start=1), Discrete(3)))
    ),
    "APPO, LSTM": plan_of("APPO", Box((3,)), Box((2, 2)), model=LSTM),
    "SAC": plan_of("SAC", Box((3,)), Box((2, 1), "float32", -1.0, 3.0)),
    "SAC, combinations": plan_of("SAC", Box((3,)), MultiDiscrete((2, 3))),
    "DQN, masked": plan_of("DQN", MASKED, Discrete(3, start=-1)),
    "PPO, a mask in two dimensions": plan_of("PPO", masks(Box((2, 3), "int8", 0, 1)), NINE),
    "A2C, a Tuple of masks, stacked": plan_of(
        "A2C", masks(TupleSpace((Box((2,), "bool", 0, 1), Box((3,), "float32", -1, 1)))),
        TupleSpace((Discrete(2, start=1), Discrete(3))), frame_stack=2,
    ),
    "DQN, masked combinations": plan_of("DQN", masks(Box((6,), "uint8", 0, 1)), NINE),
    "VDN, masked combinations": team_of(
        "VDN", masks(Box((6,), "float32", 0, 1)), NINE, obs_last_action=False
    ),
    "DQN, atoms": plan_of(
        "DQN", Box((3,)), Discrete(3), settings={"num_atoms": 5, "v_min": -2.0, "v_max": 2.0}
    ),
    "MAPPO, LSTM, masked team with a state": plan_of(
        "MAPPO", DictSpace({**MASKED.spaces, "state": Box((5,))}), Discrete(3),
        settings={"obs_agent_id": True}, model=LSTM, is_team=True,
    ),
    "QMIX, GRU, masked": team_of("QMIX", MASKED, Discrete(3)),
    "VDN, MLP, unlike members": team_of(
        "VDN", [MASKED, Box((3, 2))], [Discrete(3), Discrete(4)], agent="mlp"
    ),
    "IQL, GRU": team_of("IQL", Discrete(4), Box((2, 1), "int32", -1, 1), obs_last_action=False),
    "MASAC, with a state": team_of("MASAC", WITH_STATE, MOVES),
    "MASAC, normalised, without ids": team_of(
        "MASAC", Box((3,)), UNLIKE, obs_agent_id=False, normalize_observations=True
    ),
    "MADDPG, combinations, with a state": team_of(
        "MADDPG", WITH_STATE, TupleSpace((Discrete(2, start=1), Discrete(2))),
        normalize_observations=True,
    ),
    "SAC, scaled and normalised": plan_of(
        "SAC", DictSpace({"a": Box((2,), "float64"), "b": Box((3,), "float32", -2.0, 6.0)}), MOVES,
        scale_observations="bounded", normalize_observations=True,
    ),
    "A2C, masked, normalised, stacked": plan_of(
        "A2C", MASKED, Discrete(3), normalize_observations=True, frame_stack=3
    ),
    "PPO, images scaled and stacked": plan_of(
        "PPO", Box((10, 10, 3), "uint8", 0, 255), Discrete(3),
        scale_observations="images", frame_stack=2,
    ),
}  # fmt: skip


FILE = "both.onnx"


_AT_NIGHT = [
    "APPO, LSTM", "SAC, combinations", "MASAC, normalised, without ids", "PPO, masked",
    "SAC, scaled and normalised", "IMPALA, Tuple of Discrete", "PPO, MultiBinary", "DQN, masked",
    "VDN, masked combinations",
]  # fmt: skip
"""Cases all of whose properties other cases have, too."""


@pytest.mark.parametrize("name", at_night(PLANS, _AT_NIGHT))
def test_a_policy_becomes_a_file_that_acts_as_its_server(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    (exported,) = export_checkpoint(save(plan, tmp_path / "saved"), tmp_path / "out")
    assert exported.num_verified >= 1_000
    assert [path.name for path in exported.path.parent.iterdir()] == [FILE]
    content = exported.path.read_bytes()
    for path in (ROOT, sysconfig.get_path("purelib"), tmp_path):
        assert str(path).encode() not in content, "torch writes its stack into the file"
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model)
    about = {entry.key: entry.value for entry in model.metadata_props}
    assert about["muxrl.algorithm"] == plan.algorithm
    assert about["muxrl.env_steps"] == "400"
    assert [port.name for port in model.graph.input] == [
        text.partition(" ")[0] for text in exported.inputs
    ]
    assert [port.name for port in model.graph.output] == list(exported.outputs)
    if name.startswith("VDN"):  # the caller has to pad observations, see docs/export.md
        return
    play_an_episode(plan, tmp_path / "saved", tmp_path / "out")


def one_available(agent: AgentPlan, t: int) -> tuple[Any, list[int]]:
    """Returns a mask that allows one action of each choice, and these actions."""
    parts = choices(agent.action_space)
    flat = np.concatenate([np.eye(n)[t % n] for _, n in parts])
    mask: Any = agent.observation_space.spaces["action_mask"]  # type: ignore[union-attr]
    boxes = mask.spaces if isinstance(mask, TupleSpace) else (mask,)
    own = np.split(flat, np.cumsum([math.prod(box.shape) for box in boxes])[:-1])
    given = [
        np.where(x.reshape(b.shape), 1, bounds(b)[0]).astype(b.dtype)
        for x, b in zip(own, boxes, strict=True)
    ]
    only = [low + t % n for low, n in parts]
    return (tuple(given) if isinstance(mask, TupleSpace) else given[0]), only


def play_an_episode(plan: ServerPlan, checkpoint: Path, folder: Path) -> None:
    """Checks that `load_policy` of files and of the checkpoint act alike on random observations."""
    everybody, loaded = load_policy(folder), load_policy(checkpoint)
    assert everybody.keys() == loaded.keys() == plan.agents.keys()
    sees = plan.agents["a"].observation_space
    follows_masks = "action_mask" in getattr(sees, "spaces", ())
    drawn_from = ("PPO", "A2C", "APPO", "IMPALA", "MAPPO", "HAPPO", "SAC", "RLLIB_PPO")
    is_distribution = plan.algorithm in drawn_from
    drawing = {
        agent_id
        for agent_id, agent in plan.agents.items()
        if is_distribution and isinstance(agent.action_space, Discrete)
    }
    for agent_id, agent in plan.agents.items():
        drawn, does = to_gymnasium(agent.observation_space), to_gymnasium(agent.action_space)
        drawn.seed(0)
        for t in range(30):
            observation = drawn.sample()
            if follows_masks:  # the mask allows one action of each choice
                observation["action_mask"], only = one_available(agent, t)
            if t == 3:  # only other members of its team act
                for policy in (everybody[agent_id], loaded[agent_id]):
                    policy(observation, is_asked=False)
                continue
            # Asking for probabilities does not change the recurrent state.
            if t < 3 and agent_id in drawing:
                probabilities = loaded[agent_id].probabilities(observation)  # type: ignore[union-attr]
                assert probabilities.sum() == pytest.approx(1.0)
                assert not follows_masks or probabilities[only[0] - does.start] == 1.0
            elif t < 3:
                with pytest.raises(
                    AlgorithmProblem, match=r"gives no probabilities of its actions"
                ):
                    loaded[agent_id].probabilities(observation)  # type: ignore[union-attr]
            action = everybody[agent_id](observation)
            assert does.contains(action)
            if t < 8:
                same = loaded[agent_id](observation)
                if t < 3 and agent_id in drawing:
                    assert probabilities.argmax() + does.start == same
                np.testing.assert_allclose(np.ravel(action), np.ravel(same), rtol=1e-4, atol=1e-5)
            assert not follows_masks or np.ravel(action).tolist() == only
        everybody[agent_id].reset()
        loaded[agent_id].reset()


@pytest.mark.parametrize("name", ["SAC", "MASAC, with a state"])
def test_deviations_are_those_that_training_draws_with(name: str, tmp_path: Path) -> None:
    (exported,) = export_checkpoint(save(PLANS[name], tmp_path / "saved", says), tmp_path)
    session = onnxruntime.InferenceSession(exported.path)
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    feed = {p.name: np.zeros((1, *p.shape[1:]), types[p.type]) for p in session.get_inputs()}
    (logits,) = session.run(["logits"], feed)
    assert logits.tolist() == [[-9.0, 9.0, -5.0, 2.0]]


def says(parameter: torch.Tensor) -> torch.Tensor:
    """Returns zero weights, or biases of -9 and 9 in turn, so that any input has the same
    output."""
    if parameter.dim() > 1:
        return torch.zeros_like(parameter)
    return torch.tensor([-9.0, 9.0]).repeat(parameter.numel())[: parameter.numel()]


@pytest.mark.parametrize(
    ("name", "offs"), [("PPO, masked", [0.001]), ("IQL, GRU", [0.01, math.nan])]
)
def test_a_file_that_acts_in_another_way_is_not_kept(
    name: str, offs: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with any weight of any layer a little off is removed, and so is the file from
    before."""
    right: list[bytes] = []
    monkeypatch.setattr(door, "to_onnx", lambda *args: right.append(to_onnx(*args)) or right[0])
    # No unit is dead, and no gate is shut, so that every weight matters.
    saved = save(PLANS[name], tmp_path / "saved", lambda p: 0.25 * torch.rand_like(p))
    list(export_checkpoint(saved, tmp_path))
    model, rng = onnx.load_from_string(right[0]), np.random.default_rng(0)
    layers = [one for one in model.graph.initializer if one.data_type == one.FLOAT and one.dims]
    assert len(layers) >= 4
    for layer, off in itertools.product(layers, offs):
        whole = onnx.numpy_helper.to_array(layer)
        for place in rng.permutation(whole.size)[:3]:
            values = whole.copy()
            values.flat[place] += off
            layer.CopyFrom(onnx.numpy_helper.from_array(values, layer.name))
            broken = bytes(model.SerializeToString())
            monkeypatch.setattr(door, "to_onnx", lambda *_, broken=broken: broken)
            (tmp_path / FILE).write_bytes(right[0])
            with pytest.raises(
                Differs, match=r"policy 'both' \(\w+\) was not exported.*(logits|q_values) d"
            ):
                list(export_checkpoint(saved, tmp_path))
            assert [path.name for path in tmp_path.iterdir()] == ["saved"]
        layer.CopyFrom(onnx.numpy_helper.from_array(whole, layer.name))


def test_a_larger_tolerance_is_noted_in_the_file(tmp_path: Path) -> None:
    """With inputs up to 255, float32 has fewer digits left, so that a policy needs a larger
    tolerance."""
    saved = save(plan_of("PPO", Box((8,), "uint8"), Box((2,))), tmp_path / "saved")
    with pytest.raises(Differs, match=r"more than [\d.]+e-07"):
        list(export_checkpoint(saved, tmp_path, tolerance=1e-7))
    (exported,) = export_checkpoint(saved, tmp_path, tolerance=1e-3)
    about = {entry.key: entry.value for entry in onnx.load(exported.path).metadata_props}
    assert about["muxrl.tolerance"] == "0.001"


class ActsItself(TorchRLModule, ValueFunctionAPI):
    """A module that returns actions, but not the inputs of their distribution."""

    def setup(self) -> None:
        self.layer = torch.nn.Linear(1, 1)  # RLlib requires a parameter to learn

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTIONS: torch.zeros(len(batch[Columns.OBS]), dtype=torch.int64)}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Any:
        raise NotImplementedError


class LooksAtNumbers(ActsItself):
    """A module that decides in Python code, which torch cannot trace."""

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        best = int(batch[Columns.OBS].sum() > 0)
        return {Columns.ACTION_DIST_INPUTS: torch.eye(2)[best].expand(len(batch[Columns.OBS]), 2)}


UNLIKE_SEEN = [Box((2,)), Box((3,))]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (
            plan_of(
                "tests.servers.trainers.dense:BeginsElsewhere", Box((2,)), Discrete(2), model={},
                is_team=True,
            ),
            "its recurrent state does not begin with zeros",
        ),
        (
            plan_of(RLLIB, Box((2,)), Discrete(2), rl_module=f"{__name__}:ActsItself"),
            "the forward_inference of ActsItself returns actions and no action_dist_inputs",
        ),
        (
            plan_of(RLLIB, Box((2,)), Discrete(2), rl_module=f"{__name__}:LooksAtNumbers"),
            "torch cannot trace _Greedy: ",
        ),
        (
            plan_of("PPO", DictSpace({"a": Box((1,)), "logits": Box((1,))}), Discrete(2)),
            "two of its inputs and outputs are called 'logits'",
        ),
        (
            team_of("VDN", UNLIKE_SEEN, Discrete(3), normalize_observations=True),
            "its members differ in their spaces, so the file would take observations flattened and "
            "padded",
        ),
        (
            team_of("VDN", UNLIKE_SEEN, Discrete(3), frame_stack=2),
            "with frame_stack: 2 the server pads all stacked observations as a whole",
        ),
        (
            team_of("MASAC", Box((2,)), [Box((n,), "float32", 0.0, 1.0) for n in (1, 2)]),
            "its members differ in their spaces, but a file has one observation and one action",
        ),
        (
            plan_of(
                "PPO", [Box((2,), "float32", 0.0, high) for high in (1.0, 5.0)], Discrete(2),
                scale_observations="bounded",
            ),
            "it scales or normalises the observations of 'a' and 'b' differently",
        ),
        (
            team_of("QMIX", Box((2,)), Discrete(3, start=5)),
            "the simulation's actions are Discrete(3, start=5); set obs_last_action: false",
        ),
    ],
    ids=[
        "another beginning", "actions only", "not traceable", "a name twice", "padded", "stacked",
        "unlike actors", "two scales", "last actions by number",
    ],
)  # fmt: skip
def test_policies_that_cannot_be_exported_are_refused_by_name(
    plan: ServerPlan, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(CannotExport, match=re.escape(reason)) as refusal:
        list(export_checkpoint(save(plan, tmp_path / "saved"), tmp_path))
    assert str(refusal.value).startswith(f"policy 'both' ({plan.algorithm}) cannot be exported: ")
    assert not (tmp_path / FILE).exists()


def test_a_checkpoint_of_plain_rllib_is_refused(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    (saved / "learner_group").mkdir(parents=True)
    with pytest.raises(AlgorithmProblem, match=r"has no muxrl\.json, which says what"):
        list(export_checkpoint(saved, tmp_path))
