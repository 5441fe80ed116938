"""What clients, exported files and checkpoints do with the networks that trainers describe."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.export.untrained import plan_of
from tests.servers.trainers.dense import Drawing, Team

from muxrl.protocol.codec import decode_weights
from muxrl.protocol.messages import DenseLayer, PolicyWeights
from muxrl.protocol.spaces import Box, DictSpace, Discrete
from muxrl.servers.config import ServerPlan
from muxrl.servers.fixed_policies.exported import export_checkpoint
from muxrl.servers.fixed_policies.loaded_policies import load_checkpoint
from muxrl.servers.server import make_policies
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.training.policies import ServerProblem

SEES, THREE = Box((2,)), Discrete(3)
MASKED = DictSpace({"action_mask": Box((3,), "int8", 0, 1), "seen": SEES})
HERE = "tests.servers.trainers.dense"
SEEN = np.array([0.5, -1.5], np.float32)


def drawing(sees: Any = SEES, name: str = "Drawing", **fields: Any) -> ServerPlan:
    return plan_of(f"{HERE}:{name}", sees, THREE, model={}, **fields)


def team(sees: Any = SEES, **fields: Any) -> ServerPlan:
    return plan_of(f"{HERE}:Team", sees, THREE, model={}, is_team=True, **fields)


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Any:
    def made(plan: ServerPlan) -> Any:
        policies: Any = make_policies(plan, pytest.fail)
        request.addfinalizer(lambda: policies.finish(10.0))
        return policies

    return made


def weights_of(policies: Any) -> PolicyWeights:
    return decode_weights(policies.weights())


# --- clients --------------------------------------------------------------------------------


def test_clients_get_the_layers_and_how_to_choose(make: Any) -> None:
    policies = make(drawing(MASKED))
    told = weights_of(policies)
    assert (told.problem, told.follows_masks, told.epsilon, told.wants_logits) == (
        "",
        True,
        None,
        1,
    )
    (layer,) = told.policies["both"].layers
    assert isinstance(layer, DenseLayer)
    trainer: Drawing = policies.acting.learners["both"]
    np.testing.assert_array_equal(layer.weight.T, trainer.actor.weight.detach().numpy())
    told = weights_of(make(team()))
    assert (told.problem, told.epsilon, told.wants_logits) == ("", 0.25, False)
    assert told.policies["both"].reads_last_action


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (drawing(name="Closed"), "not one of .*:Closed's default small networks on the CPU"),
        (drawing(frame_stack=2), "read 2 observations at once"),
        (drawing(normalize_observations=True), "'a' observes is scaled or normalised"),
        (plan_of("tests.servers.trainers.brought:Counting", SEES, THREE, model={}),
         "only the server can act with a trainer of one's own"),
    ],
)  # fmt: skip
def test_clients_get_the_reason_why_they_cannot_act(make: Any, plan: ServerPlan, why: str) -> None:
    policies = make(plan)
    told = weights_of(policies)
    assert not told.policies
    assert re.search(why, told.problem)


# --- files and functions --------------------------------------------------------------------


@pytest.mark.parametrize("sees", [SEES, MASKED], ids=["plain", "masked"])
def test_members_of_a_team_become_files_and_functions(make: Any, sees: Any, tmp_path: Path) -> None:
    policies = make(team(sees))
    trainer: Team = policies.acting.learners["both"]
    policies.save(tmp_path / "saved")
    (file,) = export_checkpoint(tmp_path / "saved", tmp_path / "out")
    assert file.outputs == ("action", "q_values", "state_out.h")
    assert [i.split(" ")[0] for i in file.inputs[-3:]] == ["last_action", "alive", "state_in.h"]
    one = load_checkpoint(tmp_path / "saved")["a"]
    assert one.remembers
    h, last = torch.zeros(1, 4), torch.tensor([-1.0])
    seen = SEEN if sees is SEES else {"seen": SEEN, "action_mask": np.ones(3, np.int8)}
    for _ in range(4):
        values, after = trainer.members(torch.from_numpy(SEEN[None]), last, {"h": h})
        h, last = after["h"], values.argmax(-1).float()
        assert one(seen) == int(last)
    with pytest.raises(AlgorithmProblem, match="no critic can value"):
        one.value(seen)


# --- first weights --------------------------------------------------------------------------


def numbers(policies: Any) -> tuple[list[Any], list[Any]]:
    trainer: Drawing = policies.acting.learners["both"]
    return trainer.actor.weight.tolist(), trainer.critic[0].weight.tolist()


def test_the_first_weights_are_all_networks_or_what_acts(make: Any, tmp_path: Path) -> None:
    first = make(drawing())
    first.save(tmp_path / "saved")
    from_first: dict[str, Any] = {"initialize_from": str(tmp_path / "saved"), "seed": 7}
    whole, actor, fresh = (
        numbers(make(drawing(**fields)))
        for fields in (from_first, {**from_first, "initialize_only": "actor"}, {"seed": 7})
    )
    assert whole == numbers(first)
    assert actor == (whole[0], fresh[1])
    assert fresh[0] != whole[0]


def test_another_network_is_refused_by_name(make: Any, tmp_path: Path) -> None:
    make(drawing()).save(tmp_path / "saved")
    wide = drawing(initialize_from=str(tmp_path / "saved"), settings={"width": 5})
    reason = (
        r"the network of policy 'both' is another: 'critic\.0\.weight' has the shape \(3, 2\) "
        r"there and \(5, 2\) here; its actor fits, so set initialize_only: actor"
    )
    with pytest.raises(ServerProblem, match=reason):
        make(wide)
    make(dataclasses.replace(wide, initialize_only="actor"))
