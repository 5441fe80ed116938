"""What recurrent MAPPO learns from is what a plain loop over each agent's episode computes.

Two agents of a team play through the server's own store, inference and feed, with weights that stay
as they are. Batches cut their episode where it happens to be, and cut it again into sequences.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import tree
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ENCODER_OUT
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.evaluation.postprocessing import Postprocessing
from tests.servers.resumable import Served
from tests.servers.scripted_store import make_plan

from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.protocol.spaces import Box, DictSpace, MultiBinary
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.rllib.action_masks import mask_logits

GAMMA, LAMBDA = 0.9, 0.8
MAX_SEQ_LEN = 4
MASKED = DictSpace({"observation": Box((2,)), "action_mask": MultiBinary(3)})

# Episodes: the steps at which each agent is asked, and whether the last step truncates.
EPISODES = [
    ({"a": set(range(17)), "b": {0, 1, 2, 7, 8, 11, 12, 13, 16}}, True),
    ({"a": {0, 3, 4, 5, 6, 9, 10, 11, 12}, "b": set(range(1, 13))}, False),
]
NUM_ENV_STEPS = 30


@dataclass
class Spy:
    """Keeps what goes into the learner's connectors and what comes out of them."""

    episodes: list[list[MultiAgentEpisode]] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)

    def watch(self, learner: Any) -> None:
        learner._learner_connector.prepend(_Before(self))
        learner._learner_connector.append(_After(self))


class _Before(ConnectorV2):
    def __init__(self, spy: Spy) -> None:
        super().__init__()
        self._spy = spy

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        self._spy.episodes.append(copy.deepcopy(episodes))
        return batch


class _After(_Before):
    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        self._spy.batches.append(tree.map_structure(lambda x: x.detach().clone(), batch["team"]))
        return batch


def play(served: Served) -> None:
    """Plays `EPISODES`; every observation is a number of its own."""
    store, rng = served.policies.store, np.random.default_rng(0)

    def observe(agents: Sequence[str]) -> dict[str, Any]:
        seen = {}
        for agent in agents:
            mask = np.append(rng.integers(2, size=2), 1).astype(np.int8)
            seen[agent] = {"observation": rng.normal(size=2), "action_mask": mask}
            seen[agent]["observation"] = seen[agent]["observation"].astype(np.float32)
        return seen

    for number, (asked, is_truncated) in enumerate(EPISODES):
        episode_id, rewards = str(number), {}
        store.accept(StartEpisode(episode_id), 0.0)
        t = 0
        while acting := [agent for agent in "ab" if t in asked[agent]]:
            pending = store.accept(Step(episode_id, t, observe(acting), rewards), 0.0)
            store.finish_frame()
            served._act(pending)
            rewards = {agent: float(rng.normal()) for agent in acting}
            t += 1
        ends: dict[str, Any] = {"terminations": dict.fromkeys("ab", True)}
        if is_truncated:
            ends = {"is_truncated": True, "final_observations": observe("ab")}
        store.accept(EndEpisode(episode_id, t, rewards=rewards, **ends), 0.0)
        store.finish_frame()
        served.wait()


def key_of(obs: dict[str, Any]) -> bytes:
    """Names a step: no two have the same observations, states and agents."""
    parts = [np.asarray(obs[k], np.float32).ravel() for k in (OBS, STATE, AGENT_ID, ALIVE)]
    return np.concatenate(parts).tobytes()


@dataclass
class Plain:
    """What the plain loop says of one step."""

    logp: float
    value: float
    advantage: float = 0.0


class PlainLoop:
    """Goes over each agent's whole episode, one step after the other, with the module's layers."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._states: dict[tuple[str, str], list[Any]] = {}

    def chunk(self, episode_id: str, single: SingleAgentEpisode) -> dict[bytes, Plain]:
        """Returns the steps of the next piece of an agent's episode; bootstraps at its end."""
        first = [self._zeros(), self._zeros()]
        states = self._states.setdefault((episode_id, single.agent_id), first)
        observations = [single.get_observations(t) for t in range(len(single) + 1)]
        steps = []
        for t in range(len(single)):
            obs, action = observations[t], int(single.get_actions(t))
            value, states[1] = self._value(obs, states[1])
            logp, states[0] = self._act(obs, action, states[0])
            steps.append(Plain(logp, value))
        last = 0.0 if single.is_terminated else self._value(observations[-1], states[1])[0]
        values = [step.value for step in steps] + [last]
        running = 0.0
        for t in reversed(range(len(steps))):
            error = float(single.get_rewards(t)) + GAMMA * values[t + 1] - values[t]
            running = steps[t].advantage = error + GAMMA * LAMBDA * running
        keys = [key_of(obs) for obs in observations[:-1]]
        return dict(zip(keys, steps, strict=True))

    def _zeros(self) -> Any:
        size = self._module.model_config["lstm_cell_size"]
        return {key: torch.zeros(1, 1, size) for key in "hc"}

    def _act(self, obs: Any, action: int, state: Any) -> tuple[float, Any]:
        x = torch.from_numpy(obs[OBS])[None, None]
        outputs = self._module.encoder({Columns.OBS: x, Columns.STATE_IN: state})
        logits = self._module.pi(outputs[ENCODER_OUT])[0, 0]
        logits = mask_logits(logits, torch.from_numpy(obs[ACTION_MASK]))
        logp = float(logits.log_softmax(-1)[action])
        return logp, outputs[Columns.STATE_OUT] if obs[ALIVE][0] else state

    def _value(self, obs: Any, state: Any) -> tuple[float, Any]:
        x = np.concatenate([obs[STATE], obs[AGENT_ID], obs[OBS]])
        critic = self._module.critic
        inputs = {Columns.OBS: torch.from_numpy(x)[None, None], Columns.STATE_IN: state}
        outputs = critic.encoder(inputs)
        return float(critic.head(outputs[ENCODER_OUT])), outputs[Columns.STATE_OUT]


@pytest.mark.parametrize("batch_env_steps", [5, 12])
def test_the_batch_is_what_a_plain_loop_over_each_episode_says(
    rllib: None, batch_env_steps: int
) -> None:
    """12 steps are whole sequences, so that the bootstrap value is in one of its own."""
    plan = replace(
        make_plan(dict.fromkeys("ab", MASKED), groups={"team": ("a", "b")}),
        algorithm="MAPPO",
        settings={
            "lr": 0.0,
            "gamma": GAMMA,
            "lambda_": LAMBDA,
            "num_epochs": 1,
            "normalize_values": False,
            "train_batch_size_per_learner": batch_env_steps,
        },
        model={
            "fcnet_hiddens": [8],
            "use_lstm": True,
            "lstm_cell_size": 6,
            "max_seq_len": MAX_SEQ_LEN,
        },
    )
    served, spy = Served(plan), Spy()
    algo: Any = served.policies.algo
    learner = algo.learner_group._learner
    module = learner.module["team"].unwrapped()
    with torch.no_grad():  # far from the first ones, which hardly remember
        for parameter in module.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    served.policies.acting.load(learner.module.get_state(inference_only=True), 0)
    spy.watch(learner)
    play(served)
    served.end()

    assert len(spy.batches) == NUM_ENV_STEPS // batch_env_steps
    loop, num_absent = PlainLoop(module), 0
    with torch.no_grad():
        for episodes, batch in zip(spy.episodes, spy.batches, strict=True):
            expected: dict[bytes, Plain] = {}
            for episode in episodes:
                for single in episode.agent_episodes.values():
                    expected |= loop.chunk(episode.id_, single)
            num_absent += check(module, batch, expected)
    assert num_absent > 5


def check(module: Any, batch: dict[str, Any], expected: dict[bytes, Plain]) -> int:
    """Compares a padded batch with the plain loop; returns how many steps were of absent agents."""
    logits = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    logp = module.get_train_action_dist_cls().from_logits(logits).logp(batch[Columns.ACTIONS])
    recorded, obs = batch[Columns.LOSS_MASK], batch[Columns.OBS]
    assert recorded.shape[1] == MAX_SEQ_LEN
    assert not recorded.all()
    rows = [tuple(row) for row in recorded.nonzero().tolist()]
    plain = [expected.pop(key_of({k: x[row] for k, x in obs.items()})) for row in rows]
    assert not expected, "every step is in the batch once"
    acted = torch.tensor([bool(obs[ALIVE][row][0]) for row in rows])
    values = torch.tensor([step.value for step in plain])
    advantages = torch.tensor([step.advantage for step in plain])

    def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)

    close(batch[Columns.VF_PREDS][recorded], values)
    close(batch[Postprocessing.VALUE_TARGETS][recorded], values + advantages)
    # Standardised over the steps at which agents acted.
    mine = advantages[acted]
    standard = (advantages - mine.mean()) / mine.std(correction=0)
    torch.testing.assert_close(
        batch[Postprocessing.ADVANTAGES][recorded], standard, rtol=1e-4, atol=1e-4
    )
    log_probs = torch.tensor([step.logp for step in plain])[acted]
    close(logp[recorded][acted], log_probs)
    close(batch[Columns.ACTION_LOGP][recorded][acted], log_probs)
    return int((~acted).sum())
