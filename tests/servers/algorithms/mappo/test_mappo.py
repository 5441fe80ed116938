"""MAPPO's loss and targets on hand-made batches, and RLlib around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.evaluation.postprocessing import Postprocessing

from muxrl.experiments.simulations.cue_game import CueGame
from muxrl.servers.agents.keys import AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.algorithms.mappo import MAPPO, MAPPOConfig
from muxrl.servers.algorithms.mappo.mappo import CriticTargets


def box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


class CuesWithState(MultiAgentEnv):
    """The cue game for plain RLlib: observations as `MAPPOTorchRLModule` reads them."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.game = CueGame()
        self.possible_agents = list(self.game.possible_agents)
        n = len(self.possible_agents)
        self.ids = dict(zip(self.possible_agents, np.eye(n, dtype=np.float32), strict=True))
        self.observation_spaces = {
            a: spaces.Dict(
                {
                    OBS: self.game.observation_space(a),
                    STATE: self.game.state_space,
                    AGENT_ID: box(n),
                }
            )
            for a in self.possible_agents
        }
        self.action_spaces = {a: self.game.action_space(a) for a in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = self.game.reset(seed)
        self.agents = list(self.possible_agents)
        return self._with_state(observations), infos

    def step(self, actions: Any) -> Any:
        observations, rewards, _, truncations, infos = self.game.step(actions)
        is_over = all(truncations.values())
        return (
            self._with_state(observations),
            rewards,
            {"__all__": False},
            {"__all__": is_over},
            infos,
        )

    def _with_state(self, observations: Any) -> Any:
        state = self.game.state()
        return {a: {OBS: o, STATE: state, AGENT_ID: self.ids[a]} for a, o in observations.items()}


def make_config(**settings: Any) -> MAPPOConfig:
    config = MAPPOConfig().training(**settings)
    config.multi_agent(policies={"p"}, policy_mapping_fn=lambda *args, **kwargs: "p")
    config.debugging(seed=0, log_sys_usage=False)
    return config  # type: ignore[no-any-return]


def make_learner(**settings: Any) -> Any:
    space = spaces.Dict({OBS: box(2), STATE: box(3), AGENT_ID: box(2), ALIVE: box(1)})
    config = make_config(**settings)
    learner = config.build_learner(spaces={"p": (space, spaces.Discrete(3))})
    return learner


def some_batch(alive: list[float]) -> dict[str, Any]:
    n = len(alive)
    return {
        Columns.OBS: {
            OBS: torch.randn(n, 2),
            STATE: torch.randn(n, 3),
            AGENT_ID: torch.eye(2)[torch.arange(n) % 2],
            ALIVE: torch.tensor(alive).unsqueeze(-1),
        },
        Columns.ACTIONS: torch.arange(n) % 3,
        Columns.ACTION_LOGP: torch.full((n,), -1.0),
        Postprocessing.ADVANTAGES: torch.randn(n),
        Postprocessing.VALUE_TARGETS: torch.randn(n),
        Columns.VF_PREDS: torch.randn(n),
    }


def loss_of(learner: Any, batch: dict[str, Any]) -> torch.Tensor:
    outputs = learner.module["p"].forward_train(batch)
    return learner.compute_loss_for_module(
        module_id="p", config=learner.config, batch=batch, fwd_out=outputs
    )


# --- the loss -------------------------------------------------------------------------------


def test_the_loss_is_the_papers() -> None:
    learner = make_learner(clip_param=0.2, vf_clip_param=0.1, huber_delta=0.5, entropy_coeff=0.03)
    batch = some_batch([1.0] * 5)
    module = learner.module["p"]
    with torch.no_grad():
        loss = float(loss_of(learner, batch))
        logits = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS].numpy()
        values = module.normalized_values(batch).numpy()
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    advantages = batch[Postprocessing.ADVANTAGES].numpy()
    targets = batch[Postprocessing.VALUE_TARGETS].numpy()
    old = batch[Columns.VF_PREDS].numpy()
    total = 0.0
    for i in range(5):
        ratio = np.exp(log_probs[i, i % 3] + 1.0)
        total -= min(ratio * advantages[i], np.clip(ratio, 0.8, 1.2) * advantages[i])
        near = old[i] + np.clip(values[i] - old[i], -0.1, 0.1)
        total += max(_huber(values[i] - targets[i], 0.5), _huber(near - targets[i], 0.5))
        total += 0.03 * float((np.exp(log_probs[i]) * log_probs[i]).sum())
    assert loss == pytest.approx(total / 5, rel=1e-5)


def _huber(error: float, delta: float) -> float:
    size = abs(error)
    return 0.5 * size**2 if size <= delta else delta * (size - 0.5 * delta)


@pytest.mark.parametrize("clip_jointly", [False, True])
def test_a_large_error_of_the_critic_shortens_the_actors_step_if_both_are_clipped_as_one(
    clip_jointly: bool,
) -> None:
    learner = make_learner(grad_clip=10.0, clip_jointly=clip_jointly)
    module = learner.module["p"]
    of_critic = {learner.get_param_ref(p) for p in module.critic.parameters()}
    gradients = {
        ref: torch.full_like(p, 1e3 if ref in of_critic else 1e-2)
        for ref, p in learner._params.items()
    }

    def norm(of: dict[Any, torch.Tensor], is_critic: bool) -> float:
        mine = [g for ref, g in of.items() if (ref in of_critic) == is_critic]
        return float(torch.cat([g.flatten() for g in mine]).norm())

    before = norm(gradients, False)
    assert before < 10.0
    assert 0 < len(of_critic) < len(gradients)
    clipped = learner.postprocess_gradients(gradients)
    assert clipped.keys() == gradients.keys()
    assert norm(clipped, True) == pytest.approx(10.0, rel=1e-3)
    assert norm(clipped, False) == pytest.approx(0.0 if clip_jointly else before, abs=1e-3)


def test_without_clip_and_huber_the_value_loss_is_half_the_squared_error() -> None:
    learner = make_learner(vf_clip_param=None, huber_delta=None, entropy_coeff=0.0)
    batch = some_batch([1.0] * 4)
    batch[Postprocessing.ADVANTAGES].zero_()
    with torch.no_grad():
        values = learner.module["p"].normalized_values(batch)
        loss = float(loss_of(learner, batch))
    expected = 0.5 * (values - batch[Postprocessing.VALUE_TARGETS]).square().mean()
    assert loss == pytest.approx(float(expected), rel=1e-5)


def test_steps_of_absent_agents_train_the_critic_only() -> None:
    learner, alive = make_learner(), [1.0, 1.0, 0.0, 0.0]
    module, batch = learner.module["p"], some_batch(alive)

    def actor_gradient() -> torch.Tensor:
        module.zero_grad()
        loss_of(learner, batch).backward()
        return torch.cat([p.grad.flatten() for p in module.pi.parameters()])

    before = actor_gradient()
    for key, value in ((OBS, 50.0), (STATE, 0.0)):
        batch[Columns.OBS][key][2:] += value
    batch[Postprocessing.ADVANTAGES][2:] = 1e3
    batch[Columns.ACTION_LOGP][2:] = -5.0
    assert torch.equal(actor_gradient(), before)
    critic = [p.grad.clone() for p in module.critic.parameters()]
    batch[Postprocessing.VALUE_TARGETS][2:] += 3.0
    assert torch.equal(actor_gradient(), before)
    after = [p.grad for p in module.critic.parameters()]
    assert any(not torch.equal(a, b) for a, b in zip(after, critic, strict=True))


def test_a_minibatch_of_absent_agents_does_not_divide_by_zero() -> None:
    learner = make_learner()
    loss = loss_of(learner, some_batch([0.0, 0.0]))
    loss.backward()
    assert torch.isfinite(loss)
    assert all((p.grad == 0).all() for p in learner.module["p"].pi.parameters())


# --- targets --------------------------------------------------------------------------------


def test_targets_and_advantages_are_normalised() -> None:
    learner = make_learner(normalize_values=True)
    batch = {"p": some_batch([1.0, 1.0, 1.0, 0.0])}
    targets = torch.tensor([10.0, 14.0, 10.0, 14.0])
    batch["p"][Postprocessing.VALUE_TARGETS] = targets
    batch["p"][Postprocessing.ADVANTAGES] = torch.tensor([1.0, 2.0, 3.0, 100.0])
    columns = CriticTargets()(rl_module=learner.module, batch=batch)["p"]
    assert columns[Postprocessing.VALUE_TARGETS].tolist() == [-1.0, 1.0, -1.0, 1.0]
    acted = columns[Postprocessing.ADVANTAGES][:3]
    assert float(acted.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(acted.std(correction=0)) == pytest.approx(1.0, abs=1e-4)
    module = learner.module["p"]
    assert torch.equal(columns[Columns.VF_PREDS], module.normalized_values(columns))
    assert torch.allclose(
        module.compute_values(columns), columns[Columns.VF_PREDS] * 2.0 + 12.0, atol=1e-5
    )


# --- RLlib ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_kl_loss": True}, "no KL term"),
        ({"use_critic": False}, "is its critic"),
        ({"huber_delta": 0.0}, "huber_delta=0.0 must be above 0, or None"),
        ({"vf_clip_param": -1.0}, "vf_clip_param=-1.0 must be above 0, or None"),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_config(**settings).validate()


def test_several_learners_cannot_share_statistics() -> None:
    config = make_config(normalize_values=True).learners(num_learners=2)
    with pytest.raises(ValueError, match="num_learners=2: with normalize_values"):
        config.validate()


@pytest.mark.usefixtures("rllib")
def test_plain_rllib_trains_it_and_a_checkpoint_holds_the_statistics(tmp_path: Path) -> None:
    settings = {"train_batch_size_per_learner": 100, "num_epochs": 2, "minibatch_size": 100}
    config = make_config(**settings, normalize_values=True)
    algo = config.environment(CuesWithState).build_algo()
    try:
        result = algo.train()
        module = algo.learner_group._learner.module["p"]
        assert float(module.critic.normalizer.count) == 300
        assert np.isfinite(result["learners"]["p"]["vf_loss"])
        assert not hasattr(algo.env_runner.module["p"], "critic")
        algo.save_to_path(tmp_path)
        restored = MAPPO.from_checkpoint(tmp_path)
        try:
            copy = restored.learner_group._learner.module["p"]
            for name, value in module.state_dict().items():  # RLlib writes them as float32
                assert torch.allclose(copy.state_dict()[name], value, rtol=1e-6), name
        finally:
            restored.stop()
    finally:
        algo.stop()
