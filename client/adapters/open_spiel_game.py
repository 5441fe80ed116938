"""Adapts OpenSpiel's games: in turns or simultaneous, with chance drawn from the seed.

https://github.com/google-deepmind/open_spiel
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from muxrl.client.adapters.raw_values import wrong_actions
from muxrl.client.adapters.simulation import SimulationError, StepResult
from muxrl.protocol.spaces import ACTION_MASK_KEY, Box, DictSpace, Discrete, Space
from muxrl.protocol.suggestions import did_you_mean


class OpenSpielGame:
    """A game of OpenSpiel as a `Simulation`, with the agents ``player_0``, ``player_1``, ...

    An agent observes a Dict: its information state, or its observation if the game has no
    information states, float32 ``[n]``, and the mask of its legal actions. A reward is the change
    of the agent's return.

    Args:
        name: the game's name in OpenSpiel, maybe with parameters: ``leduc_poker(players=3)``.
        parameters: of the game, instead of parameters in its name.

    Raises:
        SimulationError: there is no such game, its parameters are wrong, or it has no tensors.
    """

    state_size: int | None = None

    def __init__(self, name: str, /, **parameters: Any) -> None:
        try:
            import pyspiel
        except ModuleNotFoundError as error:
            raise SimulationError(
                "OpenSpiel is not installed here; it comes with: pip install 'muxrl[open_spiel]'"
            ) from error
        names = pyspiel.registered_names()
        if (short := name.partition("(")[0]) not in names:
            hint = did_you_mean(short, names, most=3)
            raise SimulationError(f"OpenSpiel has no game {short!r}{hint}")
        try:
            self._game = pyspiel.load_game(name, *([parameters] if parameters else []))
        except pyspiel.SpielError as error:
            raise SimulationError(" ".join(str(error).split())) from error
        kind = self._game.get_type()
        if kind.dynamics == kind.Dynamics.MEAN_FIELD:
            raise SimulationError("a mean-field game has no episodes of single agents")
        if kind.provides_information_state_tensor:
            size, self._tensor = self._game.information_state_tensor_size(), "information_state"
        elif kind.provides_observation_tensor:
            size, self._tensor = self._game.observation_tensor_size(), "observation"
        else:
            raise SimulationError(
                "the game gives neither information states nor observations as tensors, so "
                "no policy can learn it"
            )
        self.notes: list[str] = []
        """Sentences on faults of the game that were tolerated."""
        if kind.chance_mode == kind.ChanceMode.SAMPLED_STOCHASTIC:
            self.notes.append(
                "the game draws its chance events itself, so the episodes differ from run to run"
            )
        agents = self.possible_agents = tuple(
            f"player_{i}" for i in range(self._game.num_players())
        )
        num_actions = self._game.num_distinct_actions()
        observed: dict[str, Space] = {
            "observation": Box((size,)),
            ACTION_MASK_KEY: Box((num_actions,), "int8", 0.0, 1.0),
        }
        self.observation_spaces: dict[str, Space] = dict.fromkeys(agents, DictSpace(observed))
        self.action_spaces: dict[str, Space] = dict.fromkeys(agents, Discrete(num_actions))
        self._acting: dict[str, int] = {}
        """By agent that was observed last: its index in OpenSpiel."""

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`."""
        if options:
            raise SimulationError(
                "OpenSpiel's games take no parameters of single episodes, but "
                f"simulation.parameters has {list(options)}; parameters of the game itself belong "
                "in simulation.kwargs"
            )
        self._random = Random(seed)
        self._state = self._game.new_initial_state()
        self._have_acted: set[str] = set()
        self._returns = [0.0] * len(self.possible_agents)
        return self._until_an_agent_acts(), {}

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        state, acting = self._state, self._acting
        if not acting or actions.keys() != acting.keys():
            raise wrong_actions(acting, actions)
        chosen = [0] * len(self.possible_agents)  # 0 for agents without a choice
        for agent, seat in acting.items():
            chosen[seat], legal = int(actions[agent]), state.legal_actions(seat)
            if chosen[seat] not in legal:
                raise SimulationError(
                    f"agent {agent!r} chose action {chosen[seat]}, but its action mask allows only "
                    f"{legal}; its policy does not follow masks"
                )
        self._have_acted |= acting.keys()
        if state.is_simultaneous_node():
            state.apply_actions(chosen)
        else:
            state.apply_action(chosen[state.current_player()])
        observations = self._until_an_agent_acts()
        agents, before, self._returns = self.possible_agents, self._returns, state.returns()
        is_over = state.is_terminal()
        rewards = {
            agent: float(after - earlier)
            for agent, after, earlier in zip(agents, self._returns, before, strict=True)
            if after != earlier or (is_over and agent in self._have_acted)
        }
        ended = dict.fromkeys(agents, True) if is_over else {}
        return StepResult(observations, rewards, ended, {}, {}, {}, is_over)

    def _until_an_agent_acts(self) -> dict[str, Any]:
        """Draws chance moves; returns the observations of the agents that act next."""
        state = self._state
        while state.is_chance_node():
            outcomes, weights = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(self._random.choices(outcomes, weights)[0])
        if state.is_terminal():
            seats = []
        elif state.is_simultaneous_node():
            seats = [i for i in range(len(self.possible_agents)) if state.legal_actions(i)]
        else:
            seats = [state.current_player()]
        self._acting = {self.possible_agents[seat]: seat for seat in seats}
        return {agent: self.observe(state, seat) for agent, seat in self._acting.items()}

    def observe(self, state: Any, seat: int) -> dict[str, Any]:
        """Returns the observation of a player in a `pyspiel.State`."""
        return {
            "observation": np.array(getattr(state, f"{self._tensor}_tensor")(seat), np.float32),
            ACTION_MASK_KEY: np.array(state.legal_actions_mask(seat), np.int8),
        }

    def state(self) -> None:
        """Returns None: there is no global state."""

    def close(self) -> None:
        """Does nothing: a game holds nothing open."""
