"""Losses and gradients of IMPALA and APPO equal the papers' equations, computed in a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.algorithms.playing import actors_of, batch_of
from torch import Tensor

from muxrl.servers.agents.keys import OBS
from muxrl.servers.agents.log_probs import LOG_PROB
from muxrl.servers.algorithms.impala import APPO, IMPALA

GAMMA, LENGTH, CLIP_RHO, CLIP_PG = 0.9, 3, 1.2, 0.9
VALUE, ENTROPY, CLIP, KL = 0.7, 0.03, 0.1, 0.4


def reference(one: Any, net: Any, target: Any) -> Tensor:
    """Returns a piece's part of the loss, by Espeholt et al. 2018, equation 1, and Luo et al. 2020,
    equation 3.

    In the latter, V-trace corrects towards pi_target.
    """
    seen, steps = {OBS: torch.from_numpy(one.observations)}, np.arange(len(one))
    (logits, values), rewards = net(seen), one.rewards
    log_probs = logits[:-1].log_softmax(-1)
    taken, acted = log_probs[steps, one.actions], torch.from_numpy(one.outputs[LOG_PROB])
    with torch.no_grad():
        old_probs = log_probs if target is None else target(seen)[0][:-1].log_softmax(-1)
        judged = old_probs[steps, one.actions]
        rhos, worth = (judged - acted).exp().tolist(), values.tolist()
    if one.is_terminated:
        worth[-1] = 0.0
    total = torch.zeros(())
    for begin in range(0, len(one), LENGTH):
        end = min(begin + LENGTH, len(one))
        corrected = []
        for s in range(begin, end):
            v, weight = worth[s], 1.0
            for t in range(s, end):
                error = rewards[t] + GAMMA * worth[t + 1] - worth[t]
                v += GAMMA ** (t - s) * weight * min(CLIP_RHO, rhos[t]) * error
                weight *= min(1.0, rhos[t])
            corrected.append(v)
        corrected.append(worth[end])
        for s in range(begin, end):
            v, following = corrected[s - begin : s - begin + 2]
            advantage = min(CLIP_PG, rhos[s]) * (rewards[s] + GAMMA * following - worth[s])
            gain = taken[s] * advantage
            if target is not None:
                ratio = min(2.0, 1.0 / rhos[s]) * (taken[s] - acted[s]).exp()
                clipped = ratio.clamp(1.0 - CLIP, 1.0 + CLIP)
                gain = torch.min(ratio * advantage, clipped * advantage)
                total = total + KL * (old_probs[s].exp() * (old_probs[s] - log_probs[s])).sum()
            entropy = -(log_probs[s].exp() * log_probs[s]).sum()
            total = total - gain + 0.5 * VALUE * (values[s] - v) ** 2 - ENTROPY * entropy
    return total


@pytest.mark.parametrize("cls", [IMPALA, APPO])
def test_an_update_is_that_of_the_papers(cls: Any) -> None:
    more: dict[str, Any] = {}
    if cls is APPO:
        more = {"circular_buffer_iterations_per_batch": 1, "clip_param": CLIP, "kl_coeff": KL}
        more |= {"use_kl_loss": True}
    actors = actors_of(
        cls, model={"fcnet_hiddens": [8]}, gamma=GAMMA, rollout_fragment_length=LENGTH,
        vtrace_clip_rho_threshold=CLIP_RHO, vtrace_clip_pg_rho_threshold=CLIP_PG, grad_clip=None,
        vf_loss_coeff=VALUE, entropy_coeff=ENTROPY, **more,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    pieces = batch_of(actors, rng, reward=lambda seen, _: float(seen[0]))
    trainer: Any = actors.learners["p"]
    target = trainer.target if cls is APPO else None
    torch.manual_seed(0)
    with torch.no_grad():  # both are newer than the policy that acted
        for network in filter(None, (trainer.net, target)):
            for parameter in network.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
    loss = torch.stack([reference(one, trainer.net, target) for one in pieces]).sum() / 20
    names, parameters = zip(*trainer.net.named_parameters(), strict=True)
    expected = torch.autograd.grad(loss, parameters)
    metrics = trainer.learn(pieces)
    assert metrics["total_loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter, gradient in zip(names, parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6, msg=name)
