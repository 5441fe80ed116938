"""What a server does with the networks that trainers tell: clients', files', checkpoints'."""

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
from muxrl.protocol.messages import (
    DenseLayer,
    EndEpisode,
    PlayedSteps,
    PolicyWeights,
    Recorded,
    StartEpisode,
    Step,
)
from muxrl.protocol.spaces import Box, DictSpace, Discrete
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB
from muxrl.servers.config import ServerPlan
from muxrl.servers.fixed_policies.exported import export_checkpoint
from muxrl.servers.fixed_policies.loaded_policies import load_checkpoint
from muxrl.servers.server import make_policies
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.acting import IS_LOGGED
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
def test_or_the_reason_why_not(make: Any, plan: ServerPlan, why: str) -> None:
    policies = make(plan)
    told = weights_of(policies)
    assert not told.policies
    assert re.search(why, told.problem)


@pytest.mark.parametrize(("version", "is_stale"), [(1, False), (0, True)])
def test_what_a_client_played_is_recorded_as_the_servers_own(
    make: Any, version: int, is_stale: bool
) -> None:
    policies = make(dataclasses.replace(drawing(), while_learning="wait"))
    policies.acting.weights_seq_no = 2 if is_stale else 1
    store, logits = policies.store, np.array([0.5, -1.0, 2.0], np.float32)
    store.accept(StartEpisode("e"), 0.0)
    steps = [
        Step("e", t, dict.fromkeys("ab", SEEN), logged_actions=dict.fromkeys("ab", 2))
        for t in range(3)
    ]
    played = PlayedSteps("e", version, steps, {a: np.tile(logits, (3, 1)) for a in "ab"})
    reply = store.accept(played, 0.0)
    assert isinstance(reply, Recorded)
    store.accept(EndEpisode("e", 3, terminations=dict.fromkeys("ab", True)), 0.0)
    store.finish_frame()
    (chunk,) = policies.store.pending
    for one in chunk.trajectories:
        assert one.outputs[IS_LOGGED].tolist() == [is_stale] * 3
        np.testing.assert_array_equal(one.outputs[DISTRIBUTION], [logits] * 3)
        assert np.isinf(one.outputs[LOG_PROB]).all() == is_stale


def test_the_server_goes_on_from_the_states_of_a_client(make: Any) -> None:
    policies = make(team())
    store, state = policies.store, np.full((2, 4), 0.5, np.float32)
    store.accept(StartEpisode("e"), 0.0)
    step = Step("e", 0, dict.fromkeys("ab", SEEN), logged_actions=dict.fromkeys("ab", 1))
    store.accept(PlayedSteps("e", 0, [step], {}, {"team": state}), 0.0)
    asked = store.accept(Step("e", 1, dict.fromkeys("ab", SEEN)), 0.0)
    seen: list[Any] = []
    trainer: Any = policies.acting.acting("both")
    act = trainer.act
    trainer.act = lambda rows: (seen.append(rows.states["h"].copy()), act(rows))[1]
    policies.acting.act([asked.block])
    np.testing.assert_array_equal(seen[0], [state])


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
    with pytest.raises(AlgorithmProblem, match="no critic values"):
        one.value(seen)


def test_a_loaded_policy_has_the_critic_of_its_checkpoint(make: Any, tmp_path: Path) -> None:
    policies = make(drawing())
    trainer: Drawing = policies.acting.learners["both"]
    policies.save(tmp_path / "saved")
    loaded = load_checkpoint(tmp_path / "saved")["a"]
    expected = trainer.critic(torch.from_numpy(SEEN)).item()
    assert loaded.value(SEEN) == pytest.approx(expected, rel=1e-6)
    assert not loaded.remembers


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
