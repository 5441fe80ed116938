"""What a value is fitted to: one-step targets, n-step returns, or lambda-returns of episodes.

All three end where their episode ends. A terminated episode is followed by 0, one that was cut
short by the value of its last observation, and padding by nothing: no return reaches into it.
With more than one step the rewards are those of the actions taken, exploration included, and are
not corrected for it (Peng's Q(lambda) of Peng and Williams 1996, as PyMARL2 uses it).
"""

from __future__ import annotations

import torch
from torch import Tensor


def bootstrapped_returns(
    rewards: Tensor,
    following: Tensor,
    terminated: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    n_step: int = 1,
    td_lambda: float = 0.0,
) -> Tensor:
    """Targets of every step.

    With ``G1(t) = r(t) + gamma (1 - terminated(t)) V(t + 1)``: n steps are the recursion
    ``Gn(t) = r(t) + gamma (1 - terminated(t)) Gn-1(t + 1)``, and lambda-returns (Sutton and Barto
    2018, equation 12.18) ``G(t) = r(t) + gamma (1 - terminated(t)) ((1 - lambda) V(t + 1) +
    lambda G(t + 1))``. At an episode's last step ``V(t + 1)`` stands for ``G(t + 1)``.

    Args:
        rewards: ``[B, T, 1]``.
        following: ``V(t + 1)``, ``[B, T, k]``.
        terminated: ``[B, T, 1]``, 1 where nothing follows.
        mask: ``[B, T, 1]``, 1 where there is data.
        gamma: discount.
        n_step: rewards that are added up before a value is looked at.
        td_lambda: 0 for one step, 1 for all that is left of the episode; with ``n_step = 1``.

    Returns:
        ``[B, T, k]``.
    """
    discount = gamma * (1.0 - terminated)
    one_step = rewards + discount * following
    if n_step > 1:
        has_next = mask[:, 1:] > 0
        returns = one_step
        for _ in range(n_step - 1):
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
    """Lets each member's value reach past the steps at which it is not asked to act.

    A member without a mixer has no value of such a step. What follows then is what the team earns
    until the member is asked again, and its value there; or up to the end of the episode, if it
    never is: death does not end what a member has brought about. (An episode that was cut short
    while the member was absent ends in 0 for it: nobody knows better.)

    Args:
        following: each member's value at t + 1, ``[B, T, n]``; that of an absent one is ignored.
        asked: whether it acts at t + 1, ``[B, T, n]``.
        rewards, terminated, mask: as for `bootstrapped_returns`.
        gamma: discount.

    Returns:
        ``[B, T, n]``.
    """
    absent = 1.0 - asked
    reward_then, going_on = _next(rewards), _next(mask * (1.0 - terminated))
    goes_on = _next(mask)
    return _from_the_end(
        following * asked + absent * goes_on * reward_then, absent * gamma * going_on
    )


def _next(x: Tensor) -> Tensor:
    """``x(t + 1)``, 0 at the end."""
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1)


def _from_the_end(base: Tensor, factor: Tensor) -> Tensor:
    """Solves ``x(t) = base(t) + factor(t) x(t + 1)``; the last factor is 0."""
    steps = [base[:, -1]]
    for t in range(base.shape[1] - 2, -1, -1):
        steps.append(torch.addcmul(base[:, t], factor[:, t], steps[-1]))
    return torch.stack(steps[::-1], 1)
