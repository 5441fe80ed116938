"""A user's own policies, imported by their path.

``settings.policy`` names a callable that makes a policy for one agent in one episode,

    make(agent_id, observation_space, action_space, seed, **kwargs) -> policy
    policy(observation) -> action

with Gymnasium's spaces, a new seed for every episode, and ``settings.kwargs``. The policy is called
once for each step at which its agent acts, with the observation as the simulation sent it (a Dict
observation with its ``action_mask``), and returns an action of the action space. It lives as long
as the episode. Many episodes may be open at a time, each with its own policies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from muxrl.servers.algorithms.settings import AlgorithmProblem
from muxrl.servers.config import ServerPlan
from muxrl.servers.fixed_policies.plain import Policy
from muxrl.servers.import_by_name import CannotImport, import_by_name
from muxrl.servers.spaces import to_gymnasium

EXAMPLE = "my_package.my_module:make_policy"


class Script:
    """Makes the policies of one server's agents.

    Args:
        plan: the server.
        settings: name the callable.

    Raises:
        AlgorithmProblem: see `find_script`.
    """

    def __init__(self, plan: ServerPlan, settings: Mapping[str, Any]) -> None:
        self._path: str = settings["policy"]
        self._kwargs: dict[str, Any] = dict(settings["kwargs"])
        self._make = find_script(self._path)
        self._spaces = {
            agent_id: (to_gymnasium(agent.observation_space), to_gymnasium(agent.action_space))
            for agent_id, agent in plan.agents.items()
        }

    def __call__(self, agent_id: str, seed: int) -> Policy:
        """Makes an agent's policy for one episode.

        Raises:
            AlgorithmProblem: the callable raised, or what it returned is not callable.
        """
        try:
            policy = self._make(agent_id, *self._spaces[agent_id], seed, **self._kwargs)
        except Exception as error:  # the user's code may raise anything
            raise AlgorithmProblem(
                f"policy {self._path!r} could not be made for agent {agent_id!r}: "
                f"{type(error).__name__}: {error}; it is called with (agent_id, "
                "observation_space, action_space, seed, **kwargs)"
            ) from error
        if not callable(policy):
            raise AlgorithmProblem(
                f"policy {self._path!r} made {_kind_of(policy)} for agent {agent_id!r}; expected "
                "something to call with an observation, that returns an action"
            )
        return policy


def find_script(path: str) -> Callable[..., Any]:
    """Returns the callable at "package.module:callable".

    Raises:
        AlgorithmProblem: it cannot be imported, or is not callable.
    """
    if not isinstance(path, str) or not path:
        raise AlgorithmProblem(
            f"SCRIPTED needs the setting 'policy', an import path such as {EXAMPLE!r}"
        )
    try:
        found = import_by_name(path, EXAMPLE)
    except CannotImport as error:
        raise AlgorithmProblem(f"policy {error}") from error
    if not callable(found) or inspect.ismodule(found):
        raise AlgorithmProblem(f"policy {path!r} is {_kind_of(found)}, nothing that can be called")
    return found


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"an object of {type(value).__name__}"
