"""Targets of a team's values: returns over whole episodes.

They are one-step targets, n-step returns, or lambda-returns. All of them end with their episode,
and none reaches into the padding. The value after a terminated episode is 0; an episode that was
cut short is bootstrapped from its last observation. With more than one step, the rewards of
exploratory actions count uncorrected (Peng's Q(lambda) of Peng and Williams 1996, as in PyMARL2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from muxrl.servers.algorithms.settings.teams import QMIXSettings


def bootstrapped_returns(
    rewards: Tensor,
    following: Tensor,
    terminated: Tensor,
    mask: Tensor,
    own: QMIXSettings,
) -> Tensor:
    """Returns the target of every step.

    With ``G1(t) = r(t) + gamma (1 - terminated(t)) V(t + 1)``: n steps are the recursion
    ``Gn(t) = r(t) + gamma (1 - terminated(t)) Gn-1(t + 1)``, and lambda-returns (Sutton and Barto
    2018, equation 12.18) ``G(t) = r(t) + gamma (1 - terminated(t)) ((1 - lambda) V(t + 1) +
    lambda G(t + 1))``. At an episode's last step ``V(t + 1)`` stands for ``G(t + 1)``.

    Args:
        rewards: ``[B, T, 1]``.
        following: ``V(t + 1)``, ``[B, T, k]``.
        terminated: ``[B, T, 1]``, 1 where nothing follows.
        mask: ``[B, T, 1]``, 1 where there is data.
        own: the settings ``gamma``, ``n_step`` and ``td_lambda``.

    Returns:
        ``[B, T, k]``.
    """
    discount, td_lambda = own.gamma * (1.0 - terminated), own.td_lambda
    one_step = rewards + discount * following
    if own.n_step > 1:
        has_next = mask[:, 1:] > 0
        returns = one_step
        for _ in range(own.n_step - 1):
            ahead = torch.where(has_next, returns[:, 1:], following[:, :-1])
            ahead = torch.cat([ahead, following[:, -1:]], 1)
            returns = rewards + discount * ahead
        return returns
    if td_lambda > 0.0:
        carried = td_lambda * discount * _next(mask)
        return _from_the_end(one_step - carried * following, carried)
    return one_step


def follow_absent(
    following: Tensor,
    asked: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    mask: Tensor,
    *,
    gamma: float,
) -> Tensor:
    """Returns each member's next value, looking past the steps at which it does not act.

    Without a mixer, a member has no value at a step at which it does not act. Its next value is
    then the discounted sum of the team's rewards until the member acts again, and its value there;
    if it never does, of the rewards up to the end of the episode, since a member's actions have
    effects after its death. (If the episode was cut short while the member was absent, the sum
    ends with 0, as there is no value to bootstrap from.)

    Args:
        following: each member's value at t + 1, ``[B, T, n]``; ignored for absent members.
        asked: 1 where the member acts at t + 1, ``[B, T, n]``.
        rewards, terminated, mask: as for `bootstrapped_returns`.
        gamma: discount.

    Returns:
        ``[B, T, n]``.
    """
    absent = 1.0 - asked
    reward_then, alive_then = _next(rewards), _next(mask * (1.0 - terminated))
    continues = _next(mask)
    return _from_the_end(
        following * asked + absent * continues * reward_then, absent * gamma * alive_then
    )


def _next(x: Tensor) -> Tensor:
    """Returns ``x(t + 1)``, 0 at the end."""
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1)


def _from_the_end(base: Tensor, factor: Tensor) -> Tensor:
    """Solves ``x(t) = base(t) + factor(t) x(t + 1)``; the last factor is 0."""
    steps = [base[:, -1]]
    for t in range(base.shape[1] - 2, -1, -1):
        steps.append(torch.addcmul(base[:, t], factor[:, t], steps[-1]))
    return torch.stack(steps[::-1], 1)
