"""An update of QMIX and VDN equals the papers' equations, computed by numpy and finite
differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.algorithms.qmix.pieces import GAMMA, make, spec_of

from muxrl.protocol.rows import each_array
from muxrl.servers.algorithms.qmix.trainer import QMIX

MEMBERS, OBS_DIM, ACTS, STATE_DIM, EMBED = 2, 3, 4, 5, 3
LENGTHS, LONGEST = (2, 4), 4
LR, CLIP, SMOOTHING, EPS = 0.01, 0.5, 0.9, 1e-5

Arrays = Mapping[str, np.ndarray]


def batch_of() -> dict[str, Any]:
    """Returns two episodes: the first terminates, the second is truncated; one member is absent
    once."""
    rng, shape = np.random.default_rng(0), (len(LENGTHS), LONGEST + 1, MEMBERS)
    alive = np.ones(shape)
    alive[1, 1, 0] = 0.0
    masks = (rng.random((*shape, ACTS)) < 0.6).astype(float)
    masks[..., 0] = 1.0
    masks[alive == 0] = [1.0, 0.0, 0.0, 0.0]
    is_step = np.arange(LONGEST) < np.array(LENGTHS)[:, None]
    terminated = np.zeros(is_step.shape)
    terminated[0, LENGTHS[0] - 1] = 1.0
    actions = (rng.random(masks.shape) * masks).argmax(-1)
    last = np.concatenate([-np.ones((2, 1, MEMBERS)), actions[:, :-1]], 1)
    obs = {
        "obs": rng.normal(size=(*shape, OBS_DIM)),
        "state": rng.normal(size=(*shape[:2], STATE_DIM)),
        "action_mask": masks,
        "alive": alive,
        "last_action": last,
    }
    return {
        "obs": obs, "actions": actions[:, :-1], "rewards": rng.normal(size=is_step.shape),
        "terminateds": terminated, "loss_mask": is_step.astype(float),
    }  # fmt: skip


def values_of(w: Arrays, obs: Arrays, episode: int) -> np.ndarray:
    """Returns the value of each action of each member, ``[T + 1, n, k]``, by PyMARL's
    ``RNNAgent``."""

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1.0 / (1.0 + np.exp(-x))

    hidden = np.zeros((MEMBERS, len(w["fc_in.bias"])))
    found = []
    for t in range(LONGEST + 1):
        last = obs["last_action"][episode, t]
        one_hot = (last[:, None] == np.arange(ACTS)).astype(float)
        x = np.concatenate([obs["obs"][episode, t], one_hot, np.eye(MEMBERS)], 1)
        x = np.maximum(x @ w["fc_in.weight"].T + w["fc_in.bias"], 0.0)
        of_x = np.split(x @ w["core.weight_ih"].T + w["core.bias_ih"], 3, 1)
        of_h = np.split(hidden @ w["core.weight_hh"].T + w["core.bias_hh"], 3, 1)
        reset, update = sigmoid(of_x[0] + of_h[0]), sigmoid(of_x[1] + of_h[1])
        hidden = (1.0 - update) * np.tanh(of_x[2] + reset * of_h[2]) + update * hidden
        found.append(hidden @ w["fc_out.weight"].T + w["fc_out.bias"])
    return np.array(found)


def mixed(w: Arrays, q: np.ndarray, state: np.ndarray) -> float:
    """Returns Q_tot by Rashid et al. 2018, figure 2 and appendix; without weights by Sunehag et al.
    2017."""
    if not w:
        return float(q.sum())
    # muxrl holds the first layers of the four hypernetworks in one layer.
    cuts = np.cumsum([EMBED + 1, EMBED + 1, EMBED])
    first = w["from_state.weight"] @ state + w["from_state.bias"]
    for_1, for_2, for_value, bias_1 = np.split(first, cuts)
    for_1, for_2, for_value = (np.maximum(x, 0.0) for x in (for_1, for_2, for_value))
    weights_1 = np.abs(w["weights_1.weight"] @ for_1 + w["weights_1.bias"])
    weights_2 = np.abs(w["weights_2.weight"] @ for_2 + w["weights_2.bias"])
    hidden = q @ weights_1.reshape(MEMBERS, EMBED) + bias_1
    hidden = np.where(hidden > 0, hidden, np.exp(hidden) - 1.0)
    return float(hidden @ weights_2 + w["value.weight"][0] @ for_value + w["value.bias"][0])


def loss_of(nets: Mapping[str, Arrays], batch: Any, double_q: bool, td_lambda: float) -> float:
    """Returns the loss by Rashid et al. 2018, equations 5 and 6, over the steps without padding."""
    obs, squares = batch["obs"], []
    for episode, length in enumerate(LENGTHS):
        state, alive = obs["state"][episode], obs["alive"][episode]
        allowed = obs["action_mask"][episode] > 0
        values = values_of(nets["agent"], obs, episode)
        old_values = values_of(nets["target_agent"], obs, episode)
        best = np.where(allowed, values if double_q else old_values, -np.inf).argmax(-1)
        following = [
            mixed(nets["target_mixer"], alive[t] * old_values[t, range(MEMBERS), best[t]], state[t])
            for t in range(length + 1)
        ]
        if batch["terminateds"][episode, length - 1]:
            following[length] = 0.0
        target = following[length]
        for t in reversed(range(length)):
            # After the last step only the bootstrapped value follows.
            target = (1 - td_lambda) * following[t + 1] + td_lambda * target
            target = batch["rewards"][episode, t] + GAMMA * target
            taken = alive[t] * values[t, range(MEMBERS), batch["actions"][episode, t]]
            squares.append((mixed(nets["mixer"], taken, state[t]) - target) ** 2)
    return sum(squares) / len(squares)


@pytest.mark.parametrize(
    ("mixer", "double_q", "td_lambda"),
    [("qmix", True, 0.0), ("qmix", False, 0.6), ("vdn", True, 0.0)],
)
def test_an_update_is_that_of_the_papers(mixer: str, double_q: bool, td_lambda: float) -> None:
    """The update is PyMARL's, with unscaled states, except that absent members count 0."""
    trainer: QMIX = make(
        spec_of(MEMBERS, OBS_DIM, ACTS, STATE_DIM), mixer=mixer, double_q=double_q,
        td_lambda=td_lambda, bound_state=False, hidden_dim=4, mixing_embed_dim=EMBED,
        hypernet_embed=EMBED + 1, lr=LR, grad_clip=CLIP, rmsprop_alpha=SMOOTHING,
        optimizer_epsilon=EPS,
    )  # fmt: skip
    net, batch = trainer.net.double(), batch_of()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    parts = ("agent", "mixer", "target_agent", "target_mixer")
    nets = {
        part: {k: p.detach().numpy().copy() for k, p in getattr(net, part).named_parameters()}
        for part in parts
    }
    gradients: dict[str, np.ndarray] = {}
    for part in parts[:2]:
        for name, weights in nets[part].items():
            slope = gradients[f"{part}.{name}"] = np.zeros_like(weights)
            for place in np.ndindex(weights.shape):
                middle, both = weights[place], []
                for step in (1e-5, -1e-5):
                    weights[place] = middle + step
                    both.append(loss_of(nets, batch, double_q, td_lambda))
                weights[place] = middle
                slope[place] = (both[0] - both[1]) / 2e-5
    metrics, _ = trainer.update_on(each_array(torch.from_numpy, batch))
    assert metrics["loss"].item() == pytest.approx(loss_of(nets, batch, double_q, td_lambda))
    norm = np.sqrt(sum((slope**2).sum() for slope in gradients.values()))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert norm > CLIP
    for name, slope in gradients.items():
        part, _, name = name.partition(".")
        after = getattr(net, part).get_parameter(name)
        clipped = slope * CLIP / norm
        np.testing.assert_allclose(after.grad.numpy(), clipped, rtol=1e-4, atol=1e-7, err_msg=name)
        moved = LR * clipped / (np.sqrt((1 - SMOOTHING) * clipped**2) + EPS)
        np.testing.assert_allclose(after.detach().numpy(), nets[part][name] - moved, atol=2e-5)
