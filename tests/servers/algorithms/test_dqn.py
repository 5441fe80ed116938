"""DQN: its action values, the targets they are learned towards, and how it acts by them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.servers.algorithms.playing import make, spec_of
from torch import Tensor

from muxrl.protocol.dense import forward
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.algorithms.dqn import DQN, projected
from muxrl.servers.trainers.interface import Rows

ROWS = 6
GAMMA = 0.5
ACTS = gymnasium.spaces.Discrete(4)


def made(
    shape: tuple[int, ...] = (3,),
    *,
    cls: Any = DQN,
    space: gymnasium.Space = ACTS,
    has_masks: bool = False,
    **settings: Any,
) -> Any:
    """Returns a trainer whose target network differs from its online network."""
    model = {"fcnet_hiddens": [8], **settings.pop("model", {})}
    trainer = make(cls, spec_of(space, shape, has_masks=has_masks), model, gamma=GAMMA, **settings)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.net.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return trainer


def some_masks() -> Tensor:
    """Returns masks that allow at least one action of each row, and forbid at least one."""
    masks = (torch.rand(ROWS, 4) < 0.5).float()
    masks[:, 0], masks[:, 3] = 1.0, 0.0
    masks[0] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    return masks


def make_batch(masks: Tensor, next_masks: Tensor, actions: Any = None) -> dict[str, Any]:
    """Returns a batch of which row 1 has terminated, and row 2 has a return of two steps."""
    return {
        "obs": {OBS: torch.randn(ROWS, 3), ACTION_MASK: masks},
        "new_obs": {OBS: torch.randn(ROWS, 3), ACTION_MASK: next_masks},
        "actions": masks.argmax(-1) if actions is None else actions,
        "rewards": torch.randn(ROWS),
        "terminateds": (torch.arange(ROWS) == 1).float(),
        "n_step": torch.where(torch.arange(ROWS) == 2, 2, 1),
        "weights": torch.rand(ROWS),
    }


def rows_of(obs: np.ndarray, masks: np.ndarray | None = None, **fields: Any) -> Rows:
    fields = {"rng": np.random.default_rng(0), **fields}
    return Rows(obs.astype(np.float32), masks, None, ("a",) * len(obs), True, True, **fields)


# --- learning -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["mse", "huber"])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double_q", [False, True])
def test_dqn_learns_towards_the_best_allowed_action(
    double_q: bool, dueling: bool, loss: Any
) -> None:
    settings: dict[str, Any] = {"double_q": double_q, "dueling": dueling, "td_error_loss_fn": loss}
    trainer = made(has_masks=True, **settings)
    net, batch = trainer.net, make_batch(some_masks(), torch.ones(ROWS, 4))
    following = batch["new_obs"][OBS]
    with torch.no_grad():
        judged = (net.online if double_q else net.target)(following)
        # The action that looks best is forbidden.
        batch["new_obs"][ACTION_MASK].scatter_(1, judged.argmax(-1, keepdim=True), 0.0)
        target_values, values = net.target(following), net.online(batch["obs"][OBS])
    errors, losses = [], []
    for row in range(ROWS):
        allowed = batch["new_obs"][ACTION_MASK][row].nonzero().flatten().tolist()
        best = max(allowed, key=lambda action, i=row: judged[i, action])
        discount = 0.0 if row == 1 else GAMMA ** (2 if row == 2 else 1)
        target = batch["rewards"][row] + discount * target_values[row, best]
        error = abs(float(values[row, batch["actions"][row]] - target))
        of_huber = 0.5 * error**2 if error < 1 else error - 0.5
        errors.append(error)
        losses.append(float(batch["weights"][row]) * (of_huber if loss == "huber" else error**2))
    metrics, priorities = trainer.update_on(batch)
    assert float(metrics["qf_loss"]) == pytest.approx(np.mean(losses), rel=1e-5)
    assert priorities.numpy() == pytest.approx(np.array(errors), rel=1e-4)
    assert trainer.steps["default_optimizer"].norms[""] > 0.0


def test_an_episodes_end_needs_no_available_action() -> None:
    trainer = made(has_masks=True)
    batch = make_batch(some_masks(), some_masks())
    batch["new_obs"][ACTION_MASK][1] = 0.0
    _, priorities = trainer.update_on(batch)
    assert torch.isfinite(priorities).all()
    assert not trainer.skipped.num


def test_dueling_is_a_value_and_centred_advantages() -> None:
    net, seen = made(dueling=True).net.online, torch.randn(ROWS, 3)
    features = net.encoder(seen)
    advantages = net.advantage(features)
    expected = net.state_value(features) + advantages - advantages.mean(-1, keepdim=True)
    torch.testing.assert_close(net(seen), expected)
    assert made(dueling=False).net.online.state_value is None


def test_atoms_are_projected_onto_those_around_them() -> None:
    """Five atoms, from -2 to 2 and moved by r = 0.25 and gamma = 0.5, equal the closed form."""
    atoms = torch.linspace(-2.0, 2.0, 5)
    probs = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    # The first row's atoms move to -0.75, -0.25, 0.25, 0.75, 1.25; the second row's beyond the
    # last.
    moved = torch.stack([0.25 + 0.5 * atoms, 3.0 + 0.5 * atoms])
    expected = [
        [0.0, 0.1 * 0.75 + 0.2 * 0.25, 0.1 * 0.25 + 0.2 * 0.75 + 0.3 * 0.75 + 0.4 * 0.25,
         0.3 * 0.25 + 0.4 * 0.75, 0.0],
        [0.0, 0.0, 0.0, 0.0, 1.0],
    ]  # fmt: skip
    found = projected(probs, moved, atoms)
    torch.testing.assert_close(found, torch.tensor(expected))
    # A place on an atom is that atom's alone, and the mean stays if nothing is cut off.
    torch.testing.assert_close(projected(probs, atoms.expand(2, -1), atoms), probs)
    torch.testing.assert_close((found * atoms).sum(-1)[0], (probs * moved).sum(-1)[0])


@pytest.mark.parametrize("double_q", [False, True])
def test_atoms_are_learned_towards_those_of_the_best_allowed_action(double_q: bool) -> None:
    trainer = made(has_masks=True, num_atoms=5, v_min=-2.0, v_max=2.0, double_q=double_q)
    net, batch = trainer.net, make_batch(some_masks(), some_masks())
    with torch.no_grad():
        # Action 3, which is forbidden, is surely worth most.
        for one in (net.online, net.target):
            one.advantage[-1].bias.view(4, 5)[3, -1] += 100.0
        following = batch["new_obs"][OBS]
        judged = (net.online if double_q else net.target)(following)
        probs, logits = (
            net.target.logits(following).softmax(-1),
            net.online.logits(batch["obs"][OBS]),
        )
    atoms, losses = torch.linspace(-2.0, 2.0, 5), []
    for row in range(ROWS):
        allowed = batch["new_obs"][ACTION_MASK][row].nonzero().flatten().tolist()
        best = max(allowed, key=lambda action, i=row: judged[i, action])
        discount = 0.0 if row == 1 else GAMMA ** (2 if row == 2 else 1)
        target = [0.0] * 5
        for atom, prob in zip(atoms, probs[row, best], strict=True):
            place = (float((batch["rewards"][row] + discount * atom).clamp(-2, 2)) + 2.0) / 1.0
            below = min(int(place), 3)
            target[below] += float(prob) * (below + 1 - place)
            target[below + 1] += float(prob) * (place - below)
        log_probs = logits[row, batch["actions"][row]].log_softmax(-1)
        losses.append(-float((torch.tensor(target) * log_probs).sum()))
    metrics, priorities = trainer.update_on(batch)
    assert priorities.numpy() == pytest.approx(np.array(losses), rel=1e-4)
    expected = np.mean(batch["weights"].numpy() * losses)
    assert float(metrics["qf_loss"]) == pytest.approx(expected, rel=1e-4)


# --- acting ---------------------------------------------------------------------------------

NETWORKS: list[dict[str, Any]] = [
    {},
    {"dueling": False},
    {"model": {"head_fcnet_hiddens": [16, 8], "head_fcnet_activation": "tanh"}},
    {"dueling": False, "model": {"head_fcnet_hiddens": [16]}},
    {"model": {"fcnet_hiddens": []}},
]


@pytest.mark.parametrize("settings", NETWORKS, ids=str)
def test_values_as_plain_layers_and_in_numpy_are_the_network_s(settings: Any) -> None:
    trainer = made(**settings)
    seen = np.random.default_rng(0).standard_normal((32, 3), np.float32)
    expected = trainer.network()(torch.from_numpy(seen)).detach().numpy()
    network = trainer.acting_network()
    np.testing.assert_allclose(forward(network.layers, seen), expected, rtol=1e-4, atol=1e-5)
    predicted = trainer.asked_of_net(rows_of(seen), pytest.fail)
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for parameter in trainer.net.parameters():
            parameter.zero_()
    assert not trainer.asked_of_net(rows_of(seen), pytest.fail).any(), "weights count at once"


@pytest.mark.parametrize("settings", [{"num_atoms": 5}, {"model": {"fcnet_activation": "elu"}}])
def test_values_that_numpy_cannot_compute_are_computed_in_torch(settings: Any) -> None:
    trainer = made(**settings)
    assert trainer.acting_network() is None
    seen = np.random.default_rng(0).standard_normal((5, 3), np.float32)
    values = trainer.network()(torch.from_numpy(seen))
    rows = rows_of(seen)
    rows.should_explore = False
    assert trainer.act(rows).actions.tolist() == values.argmax(-1).tolist()


def test_the_greedy_action_is_the_best_available_one() -> None:
    trainer = made(has_masks=True)
    seen, masks = np.random.default_rng(0).standard_normal((ROWS, 3)), some_masks().numpy()
    rows = rows_of(seen, masks)
    rows.should_explore = False
    values = trainer.net.online(torch.from_numpy(rows.observations)).detach().numpy()
    chosen = trainer.act(rows).actions
    assert chosen.tolist() == np.where(masks > 0, values, -np.inf).argmax(-1).tolist()
    assert chosen.tolist() != values.argmax(-1).tolist()
    assert trainer.value(rows) == pytest.approx(values[np.arange(ROWS), chosen])


@pytest.mark.parametrize("kind", ["flat", "atoms", "image"])
@pytest.mark.parametrize("has_masks", [False, True])
def test_all_available_actions_are_drawn_alike(kind: str, has_masks: bool) -> None:
    """Actions of value 0 are drawn, too; RLlib takes them for forbidden."""
    shape = (42, 42, 3) if kind == "image" else (3,)
    num_atoms = 11 if kind == "atoms" else 1
    trainer = made(shape, has_masks=has_masks, epsilon=1.0, num_atoms=num_atoms)
    with torch.no_grad():
        for parameter in trainer.net.parameters():
            parameter.zero_()
    num = 400
    masks = np.tile(np.float32([0, 1, 1, 0]), (num, 1)) if has_masks else None
    drawn = trainer.act(rows_of(np.zeros((num, *shape)), masks)).actions
    counts = np.bincount(drawn, minlength=4)
    expected = num / (2 if has_masks else 4)
    for action, count in enumerate(counts):
        is_available = not has_masks or action in (1, 2)
        # The count may differ by at most five deviations of a binomial.
        assert abs(count - is_available * expected) <= 50 * is_available


def test_epsilon_is_the_share_of_random_actions_and_follows_env_steps() -> None:
    trainer = made(epsilon=[[0, 0.6], [1_000, 0.0]])
    num = 30_000
    seen = np.zeros((num, 3))
    best = int(trainer.net.online(torch.zeros(1, 3)).argmax())
    for env_steps, epsilon in ((500, 0.3), (1_000, 0.0)):
        drawn = trainer.act(rows_of(seen, env_steps=env_steps)).actions
        share = np.bincount(drawn, minlength=4) / num
        expected = [epsilon / 4 + (1 - epsilon) * (action == best) for action in range(4)]
        np.testing.assert_allclose(share, expected, atol=0.01)
        trainer.env_steps = env_steps
        assert trainer.epsilon == pytest.approx(epsilon)


def test_a_support_without_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"v_min=1\.0 must be below v_max=1\.0"):
        DQN.Settings(num_atoms=5, v_min=1.0, v_max=1.0).validate()
