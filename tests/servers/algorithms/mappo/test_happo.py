"""HAPPO is MAPPO agent by agent, and weighs each one's advantages by what those before it did."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.policy import PolicySpec
from tests.servers.algorithms.mappo.test_mappo import CuesWithState
from tests.servers.resumable import Served, assert_same, plan_of

from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.servers.agents.keys import AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.algorithms.mappo import HAPPOConfig, MAPPOConfig
from muxrl.servers.algorithms.mappo.joint_steps import JOINT_STEP, JointSteps


def box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


SEES = spaces.Dict({OBS: box(2), STATE: box(3), AGENT_ID: box(2), ALIVE: box(1)})
ACTS = spaces.Discrete(3)


def make_learner(
    config: MAPPOConfig | None = None, agents: str = "ab", seed: int = 0, **settings: Any
) -> Any:
    config = (config or HAPPOConfig()).training(lr=0.01, **settings)
    config.multi_agent(
        policies={a: PolicySpec(None, SEES, ACTS) for a in agents},
        policy_mapping_fn=lambda agent_id, *args, **kwargs: agent_id,
    )
    config.debugging(seed=seed, log_sys_usage=False)
    config.validate()
    return config.build_learner(spaces=dict.fromkeys(agents, (SEES, ACTS)))


@dataclass
class Piece:
    """What an agent did in a piece of an episode: a letter for each of its steps.

    `a` is an action, `-` a step at which it is absent, `x` an action that was chosen elsewhere.
    """

    steps: str
    first: int = 0


def play(played: Mapping[str, Mapping[str, Piece]], seed: int = 0) -> list[MultiAgentEpisode]:
    """Returns chunks as a server's recorder makes them: by episode and agent, "a~2" for the second
    life of a."""
    rng = np.random.default_rng(seed)
    chunks = []
    for episode_id, pieces in played.items():
        chunk = MultiAgentEpisode(id_=episode_id, agent_to_module_mapping_fn=lambda a, *_: a)
        for key, piece in pieces.items():
            agent, num = key[0], len(piece.steps)
            alive = [float(step != "-") for step in piece.steps] + [1.0]
            logp = [-np.inf if s == "x" else float(rng.normal(-1.0, 0.3)) for s in piece.steps]
            chunk.agent_episodes[key] = SingleAgentEpisode(
                observations=[_observation(rng, agent, here) for here in alive],
                actions=[int(action) for action in rng.integers(3, size=num)],
                rewards=list(rng.normal(size=num)),
                extra_model_outputs={
                    Columns.ACTION_LOGP: [np.float32(value) for value in logp],
                    Columns.ACTION_DIST_INPUTS: list(rng.normal(size=(num, 3))),
                },
                len_lookback_buffer=0,
                t_started=piece.first,
                agent_id=agent,
                module_id=agent,
                multi_agent_episode_id=episode_id,
            )
        chunks.append(chunk)
    return chunks


def _observation(rng: np.random.Generator, agent: str, alive: float) -> dict[str, Any]:
    return {
        OBS: rng.normal(size=2).astype(np.float32),
        STATE: rng.normal(size=3).astype(np.float32),
        AGENT_ID: np.eye(2, dtype=np.float32)["ab".index(agent)],
        ALIVE: np.array([alive], np.float32),
    }


PLAYED = {
    "0": {"a": Piece("aaaa", 3), "b": Piece("a-xa", 3)},
    "1": {"a": Piece("-aa"), "b": Piece("aa")},  # b's last step is in no batch
    "2": {"b": Piece("aaa", 5)},
    "3": {"a": Piece("aaaaaa", 2), "b": Piece("aaa", 4)},
}
LIVES = {
    **PLAYED,
    "4": {"a": Piece("aaa"), "a~2": Piece("aa-a"), "b": Piece("aa-"), "b~2": Piece("aaaa")},
    "5": {"a~2": Piece("aa", 2), "a~3": Piece("aaa"), "b~2": Piece("aa", 2), "b~3": Piece("aaa")},
}
"""The team has ended, and come back in the same episode, in which its steps begin at 0 again."""


def columns_of(learner: Any, episodes: list[MultiAgentEpisode]) -> dict[str, Any]:
    return learner._learner_connector(
        rl_module=learner.module, batch={}, episodes=episodes, shared_data={}
    )


def turns(learner: Any, batches: Any, **how: Any) -> Any:
    how = {"size": None, "num_epochs": 1, "should_shuffle": False, **how}
    return learner._minibatches(batches, **{"note_progress": lambda share: None, **how})


# --- M --------------------------------------------------------------------------------------


@pytest.mark.parametrize("played", [PLAYED, LIVES])
@pytest.mark.parametrize("first", ["a", "b"])
def test_the_second_ones_advantages_are_weighted_by_the_firsts_ratios(
    first: str, played: dict[str, dict[str, Piece]]
) -> None:
    learner, second = make_learner(), "ab".replace(first, "")
    batches = columns_of(learner, play(played))
    seed = next(s for s in range(99) if _order_of(learner, batches, s)[0] == first)
    torch.manual_seed(seed)
    updates = turns(learner, batches)

    (mine,) = next(updates).policy_batches.items()
    assert mine[0] == first
    raw = {m: batches[m][Postprocessing.ADVANTAGES] for m in "ab"}
    assert torch.equal(mine[1][Postprocessing.ADVANTAGES], raw[first]), "M is 1 for the first"
    module = learner.module[first]
    with torch.no_grad():  # in place of an update
        for parameter in module.pi.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        logits = module.forward_train(batches[first])[Columns.ACTION_DIST_INPUTS].numpy()

    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ratio_at: dict[tuple[str, str, int], float] = {}
    for row, (key, step) in enumerate(_rows(played, first)):
        if step == "a":
            new = log_probs[row, int(batches[first][Columns.ACTIONS][row])]
            ratio_at[key] = float(np.exp(new - float(batches[first][Columns.ACTION_LOGP][row])))
    expected = [ratio_at.get(key, 1.0) for key, _ in _rows(played, second)]
    assert sum(factor != 1.0 for factor in expected) >= 5
    assert 1.0 in expected

    (other,) = next(updates).policy_batches.items()
    assert other[0] == second
    weighted = other[1][Postprocessing.ADVANTAGES]
    assert not weighted.requires_grad
    np.testing.assert_allclose(weighted, raw[second].numpy() * expected, rtol=1e-4)
    assert next(updates, None) is None


def _rows(
    played: dict[str, dict[str, Piece]], agent: str
) -> list[tuple[tuple[str, str, int], str]]:
    """Returns episode, life and step of each row of an agent's batch, and what it did there."""
    return [
        ((episode_id, who[1:], piece.first + i), step)
        for episode_id, pieces in played.items()
        for who, piece in pieces.items()
        if who[0] == agent
        for i, step in enumerate(piece.steps)
    ]


def test_agents_of_another_team_do_not_count() -> None:
    learner = make_learner(HAPPOConfig().teams({"a": "one", "b": "other"}))
    batches = columns_of(learner, play(PLAYED))
    seen = []
    for minibatch in turns(learner, batches):
        ((module_id, columns),) = minibatch.policy_batches.items()
        seen.append(module_id)
        advantages = columns[Postprocessing.ADVANTAGES]
        assert torch.equal(advantages, batches[module_id][Postprocessing.ADVANTAGES])
        with torch.no_grad():
            for parameter in learner.module[module_id].pi.parameters():
                parameter.add_(1.0 * torch.randn_like(parameter))
    assert sorted(seen) == ["a", "b"]


# --- one after another ----------------------------------------------------------------------


def _order_of(learner: Any, batches: Any, seed: int, **how: Any) -> list[str]:
    torch.manual_seed(seed)
    return [m for one in turns(learner, batches, **how) for m in one.policy_batches]


def test_the_order_is_drawn_anew_from_torchs_seed() -> None:
    learner = make_learner()
    batches = columns_of(learner, play(PLAYED))
    orders = [tuple(_order_of(learner, batches, seed)) for seed in range(30)]
    assert set(orders) == {("a", "b"), ("b", "a")}
    assert 5 < orders.count(("a", "b")) < 25
    assert orders == [tuple(_order_of(learner, batches, seed)) for seed in range(30)]


def test_all_epochs_of_one_come_before_the_next_ones() -> None:
    learner, told = make_learner(), []
    batches = columns_of(learner, play(PLAYED))
    order = _order_of(learner, batches, 0, size=7, num_epochs=2, note_progress=told.append)
    # 13 rows of a are two minibatches, 12 of b likewise.
    assert order == [order[0]] * 4 + [order[-1]] * 4
    assert order[0] != order[-1]
    assert told == [(i + 1) / 8 for i in range(8)]


@pytest.mark.parametrize("size", [None, 5])
def test_alone_it_is_mappo_bit_for_bit(size: int | None) -> None:
    learners = [
        make_learner(config, agents="a", entropy_coeff=0.02)
        for config in (HAPPOConfig(), MAPPOConfig())
    ]
    assert_same(*(learner.module.get_state() for learner in learners))
    results, states = [], []
    for learner in learners:
        torch.manual_seed(3)
        before = copy.deepcopy(learner.module.get_state())
        for seed in range(3):
            alone = {i: {"a": pieces["a"]} for i, pieces in PLAYED.items() if "a" in pieces}
            result = learner.update(
                episodes=play(alone, seed),
                num_epochs=3,
                minibatch_size=size,
                shuffle_batch_per_epoch=True,
            )
        after = learner.module.get_state()
        assert any((after["a"][name] != before["a"][name]).any() for name in after["a"])
        states.append((after, learner._get_optimizer_state(), torch.get_rng_state().numpy()))
        results.append({name: float(stats.peek()) for name, stats in result["a"].items()})
    assert_same(*states)
    np.testing.assert_equal(*results)


def test_each_module_learns_and_logs_what_mappos_does() -> None:
    happo, mappo = make_learner(), make_learner(MAPPOConfig())
    before = copy.deepcopy(happo.module.get_state())
    results = [
        learner.update(episodes=play(PLAYED), num_epochs=2, minibatch_size=6)
        for learner in (happo, mappo)
    ]
    for module_id in "ab":
        ours, theirs = (result[module_id] for result in results)
        assert ours.keys() == theirs.keys()
        assert {"total_loss", "policy_loss", "gradients_actor_global_norm"} <= ours.keys()
        assert float(ours["gradients_actor_global_norm"].peek()) > 0.0
        count = "num_module_steps_trained"
        assert ours[count].peek() == theirs[count].peek()
        after = happo.module[module_id].get_state()
        assert any((after[name] != before[module_id][name]).any() for name in after)
    total = [float(results[0][m]["total_loss"].peek()) for m in "ab"]
    assert total[0] != total[1]


# --- rows of one step -----------------------------------------------------------------------


def test_rllibs_episodes_say_when_who_takes_turns_has_acted() -> None:
    episode = MultiAgentEpisode(id_="e", agent_to_module_mapping_fn=lambda a, *_: a)
    seen = ["ab", "a", "ab", "a", "ab"]
    episode.add_env_reset(observations=dict.fromkeys(seen[0], 0.0))
    for now, after in itertools.pairwise(seen):
        episode.add_env_step(
            observations=dict.fromkeys(after, 0.0),
            actions=dict.fromkeys(now, 0),
            rewards=dict.fromkeys(after, 0.0),
        )
    batch = {m: {Postprocessing.ADVANTAGES: torch.zeros(n)} for m, n in (("a", 4), ("b", 2))}
    JointSteps({})(batch=batch, episodes=[episode], rl_module=None)
    assert batch["a"][JOINT_STEP].tolist() == [0, 1, 2, 3]
    assert batch["b"][JOINT_STEP].tolist() == [0, 2]
    episode.env_t_started = 7  # as if it were a later piece
    with pytest.raises(ValueError, match=r"cannot tell when agent 'b' acted.*complete_episodes"):
        JointSteps({})(batch=batch, episodes=[episode], rl_module=None)


class Spy(ConnectorV2):
    """Keeps what a learner's pipeline makes of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[dict[str, Any]] = []

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        self.batches.append(tree.map_structure(lambda x: x.detach().clone(), batch))
        return batch


def test_on_a_server_rows_of_one_step_have_one_state(rllib: None) -> None:
    plan = plan_of("HAPPO", late_members="allow", agents_return=True)
    settings = {"train_batch_size_per_learner": 12, "num_epochs": 2}
    served = Served(replace(plan, settings=settings))
    learner: Any = served.policies.algo.learner_group._learner
    spy = Spy()
    learner._learner_connector.append(spy)
    store, rng = served.policies.store, np.random.default_rng(0)
    asked_in = (["a", "ab", "ab", "b", "a", "ab", "b"], ["b", "b", "ab"] * 4)
    asked_in = *asked_in, ["ab", "ab", "ab", "b", "a", "ab", "a", "b", "ab"]
    for number, asked in enumerate(asked_in):
        store.accept(StartEpisode(str(number)), 0.0)
        for t, agents in enumerate(asked):
            seen = {agent: rng.random(2, np.float32) for agent in agents}
            rewards = dict.fromkeys(asked[t - 1], 1.0) if t else {}
            # In the last episode all end with the step before twice, and come back at once.
            ends = dict.fromkeys("ab", True) if number == 2 and t in (2, 5) else {}
            served._act(store.accept(Step(str(number), t, seen, rewards, ends), 0.0))
            store.finish_frame()
        store.accept(
            EndEpisode(str(number), len(asked), terminations=dict.fromkeys("ab", True)), 0.0
        )
        store.finish_frame()
        served.wait()
    served.end()
    assert not served.problems
    assert spy.batches
    for batch in spy.batches:
        state_at = [
            dict(zip(c[JOINT_STEP].tolist(), c[Columns.OBS][STATE].tolist(), strict=True))
            for c in (batch["a"], batch["b"])
        ]
        assert state_at[0] == state_at[1]
        assert len(state_at[0]) == 12
        assert not batch["a"][Columns.OBS][ALIVE].all()


def test_plain_rllib_trains_it(rllib: None) -> None:
    agents = CuesWithState().possible_agents
    config = HAPPOConfig().training(train_batch_size_per_learner=60, num_epochs=2)
    config.multi_agent(
        policies=set(agents), policy_mapping_fn=lambda agent_id, *args, **kwargs: agent_id
    )
    config.debugging(seed=0, log_sys_usage=False)
    algo = config.environment(CuesWithState).build_algo()
    spy = Spy()
    algo.learner_group._learner._learner_connector.append(spy)
    try:
        for _ in range(2):  # the second batch may begin in the middle of an episode
            result = algo.train()
    finally:
        algo.stop()
    assert all(np.isfinite(result["learners"][agent]["total_loss"]) for agent in agents)
    for batch in spy.batches:
        first, *rest = (columns for columns in batch.values())
        assert len(rest) == 2
        for other in rest:
            assert torch.equal(other[JOINT_STEP], first[JOINT_STEP])
            assert torch.equal(other[Columns.OBS][STATE], first[Columns.OBS][STATE])


# --- refusals -------------------------------------------------------------------------------


def test_agents_that_share_a_policy_are_refused() -> None:
    learner = make_learner()
    episodes = play({"0": {"a": Piece("aa"), "b": Piece("aa")}})
    episodes[0].agent_episodes["b"].module_id = "a"
    with pytest.raises(ValueError, match=r"policy 'a' acts for \['a', 'b'\]; give each agent"):
        columns_of(learner, episodes)


def test_settings_without_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match="obs_agent_id must be False, or use MAPPO"):
        make_learner(obs_agent_id=True)
    several = HAPPOConfig().training(normalize_values=False).learners(num_learners=2)
    with pytest.raises(ValueError, match="num_learners=2: HAPPO's learner compares the rows"):
        several.validate()


def test_recurrent_networks_are_refused() -> None:
    config = HAPPOConfig().rl_module(model_config={"use_lstm": True})
    with pytest.raises(ValueError, match="it takes neither recurrent networks"):
        make_learner(config)
