"""What all adapters share: agents as strings, spaces as plain data, the global state.

Action masks that an environment puts into its infos, as newer ones do, become part of observations.
What is known of an agent before the first step is worked out here once; a step looks it up by
the environment's own agent id.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.env_values import (
    Reader,
    Writer,
    as_it_is,
    read_alike,
    reader,
    writer,
)
from muxrl.client.adapters.simulation import COMMON, SimulationError
from muxrl.protocol.spaces import (
    ACTION_MASK_KEY,
    Box,
    DictSpace,
    Discrete,
    Space,
    from_gymnasium,
)

logger = logging.getLogger(__name__)


def plain_reward(agent: Hashable, reward: Any) -> float:
    """Returns the reward of an agent; an array has to be of one element.

    Raises:
        SimulationError: it is of several, or no number.
    """
    try:
        if not isinstance(reward, str | bytes):  # a text is no number
            return float(reward.item() if isinstance(reward, np.ndarray) else reward)
        raise TypeError
    except (TypeError, ValueError):
        came = f"an array of the shape {shape}" if (shape := np.shape(reward)) else repr(reward)
        raise SimulationError(
            f"the reward of agent {agent!r} is {came}; it must be one number"
        ) from None


def came_back(agent: Hashable) -> SimulationError:
    """Returns the refusal of an agent that acts again in an episode in which it is done."""
    return SimulationError(
        f"the environment observes agent {agent!r} again, which is done in this episode; one that "
        "comes back needs a new agent id, a new episode, or simulation.respawn"
    )


class NotYet(SimulationError):
    """The environment does not say who its agents are, or what they see; maybe after a reset."""


_MANY = 16
"""Agents from which one array for all is faster than one for each."""


class Names(dict[Hashable, str]):
    """The name of each of the environment's agent ids; refuses an unknown one."""

    def __missing__(self, agent: Hashable) -> str:
        raise SimulationError(
            f"the environment spoke of agent {agent!r}, which is not among its possible_agents "
            f"{list(self)}; list every agent that may ever appear there, or as many as live at a "
            "time, with simulation.respawn: new_ids"
        )


class AdaptedEnv:
    """An environment seen as a `Simulation`; subclasses know how it is reset and stepped.

    Where no mask is in the observations of agents with Discrete actions, it is reset once to see
    whether one is in its infos, under ``action_mask``. If any is, all such agents observe a Dict
    with a mask, all ones where an agent's info has none.

    Args:
        env: the environment.
        ids: its own agent ids, in its order.
        observation_space: the Gymnasium space of an id.
        action_space: the Gymnasium space of an id.
        has_state: whether its method `state()`, if there is one, gives a global state.

    Attributes:
        speaks_by_agent: whether what it returns from reset and step are dicts by agent.

    Raises:
        SimulationError: there are no agents, two ids have the same name, or a space is missing
            or of a kind that the protocol does not have.
    """

    speaks_by_agent: ClassVar[bool] = False

    def __init__(
        self,
        env: Any,
        ids: Iterable[Hashable] | None,
        observation_space: Callable[[Any], Any],
        action_space: Callable[[Any], Any],
        *,
        has_state: bool = True,
    ) -> None:
        self._env = env
        self.notes: list[str] = []
        """What of the environment is not as it should be, and was taken all the same."""
        self.takes_seed = True
        """Whether its reset does, as far as is known."""
        self._names = Names((agent, str(agent)) for agent in ids or ())
        self.possible_agents: tuple[str, ...] = tuple(self._names.values())
        if not self.possible_agents:
            raise NotYet(
                "the environment lists no agents; set possible_agents to every agent that may "
                "ever appear, in its constructor"
            )
        if len(set(self.possible_agents)) < len(self.possible_agents):
            raise SimulationError(
                f"two of the environment's agent ids {list(self._names)} have the same name as "
                "strings; rename one"
            )
        self.observation_spaces: dict[str, Space] = {}
        self.action_spaces: dict[str, Space] = {}
        self._readers: dict[Hashable, Reader] = {}
        self._writers: dict[Hashable, Writer] = {}
        for agent, name in self._names.items():
            space = _ask(observation_space, agent, "observation")
            self.observation_spaces[name] = _plain(space, agent, "observation")
            self._readers[agent] = reader(space)
            space = _ask(action_space, agent, "action")
            self.action_spaces[name] = _plain(space, agent, "action")
            self._writers[agent] = writer(space)
        self._alike = _space_of_many(list(self.observation_spaces.values()))
        self._acts_plainly = all(write is as_it_is for write in self._writers.values())
        self._unmasked: frozenset[str] = frozenset()
        """Agents of which no mask is read, and whose infos could have one."""
        self._masked = self._find_masked()
        self.state_problem = ""
        """Why there is no state to be had from an environment with a `state()`; "" if there is."""
        self.state_size = self._find_state_size() if has_state else None
        self._acting: dict[str, Hashable] = {}
        """Agents that were observed last and are to act, in the environment's order."""
        self._is_closed = False

    def state(self) -> NDArray[np.float32] | None:
        """See `Simulation.state`.

        Raises:
            SimulationError: the state is no array, or has another length than the environment
                declared.
        """
        if self.state_size is None:
            return None
        state = self._read_state()
        if state.size != self.state_size:
            raise SimulationError(
                f"the environment's state() gave {state.size} numbers and {self.state_size} were "
                "declared; make state_space and state() agree"
            )
        return state

    def _read_state(self) -> NDArray[np.float32]:
        given = self._env.state()
        try:
            return np.array(given, dtype=np.float32).reshape(-1)
        except (TypeError, ValueError, RuntimeError):  # a dict, ragged, a tensor elsewhere
            raise SimulationError(
                f"the environment's state() returned a {type(given).__name__} that makes no array "
                f"of numbers: {given!r:.80}"
            ) from None

    def render(self) -> Any:
        """Returns what the environment shows of itself, by the render mode it was made with."""
        return self._env.render()

    def close(self) -> None:
        """See `Simulation.close`; what the environment raises meanwhile is logged, as a note."""
        close = getattr(self._env, "close", None)
        if self._is_closed or close is None:
            return
        self._is_closed = True
        try:
            close()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the user's code may raise anything
            self._note(f"its close() raised {told(error)}; it counts as closed")

    def _note(self, sentence: str) -> None:
        self.notes.append(sentence)
        logger.warning("of the environment: %s", sentence)

    def _reset_env(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> Any:
        """Resets the environment, even one that takes no seed; returns what it returned."""
        given = {"options": dict(options)} if options else {}
        try:
            if self.takes_seed:
                try:
                    return self._env.reset(seed=seed, **given)
                except TypeError as error:
                    if "keyword argument 'seed'" not in str(error):
                        raise
                self.takes_seed = False
                self._note("its reset() takes no seed, so its episodes are others in every run")
            return self._env.reset(**given)
        except TypeError as error:
            if "keyword argument 'options'" not in str(error):
                raise
            raise SimulationError(
                f"its reset() takes no options, and simulation.parameters {list(options or ())} "
                "are given so: reset(seed=None, options=None)"
            ) from error

    def _observe_reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[Any, Any]:
        """Resets the environment; returns and raises what `read_reset` does."""
        return read_reset(self._reset_env(seed, options), is_by_agent=self.speaks_by_agent)

    def _step_env(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Steps the environment; returns and raises what `read_step` does."""
        return read_step(self._env.step(actions), is_by_agent=self.speaks_by_agent)

    def _begin(
        self, given: Mapping[Any, Any], infos: Mapping[Any, Any]
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Lets the agents act that a reset observed; returns what `Simulation.reset` does."""
        self._acting = {self._names[agent]: agent for agent in given}
        seen = self._read(given)
        plain_infos = self._plain_infos(infos)
        self._add_masks(plain_infos, seen)
        return seen, plain_infos

    def _env_actions(self, actions: Mapping[str, Any]) -> dict[Hashable, Any]:
        """Returns plain actions as the environment takes them.

        Raises:
            SimulationError: they are not of exactly the agents to act.
        """
        acting, writers = self._acting, self._writers
        if not acting or actions.keys() != acting.keys():
            raise wrong_actions(acting, actions)
        if self._acts_plainly:
            return {agent: actions[name] for name, agent in acting.items()}
        return {agent: writers[agent](actions[name]) for name, agent in acting.items()}

    def _read(self, given: Mapping[Any, Any]) -> dict[str, Any]:
        """Returns the environment's observations plain, by agent name."""
        names, readers = self._names, self._readers
        if self._alike is not None:
            rows = read_alike(given.values(), self._alike)
            if rows is not None:
                return dict(zip(map(names.__getitem__, given), rows, strict=True))
        return {names[agent]: readers[agent](value) for agent, value in given.items()}

    def _first_infos(self) -> Mapping[Any, Any]:
        """Resets the environment; returns the infos by its own agent ids."""
        infos: Mapping[Any, Any] = self._observe_reset()[1]
        return infos

    def _find_masked(self) -> dict[str, int]:
        """Returns the number of actions of each agent whose mask comes in infos.

        Their observation spaces get a mask.
        """
        masked = {
            name: space.n
            for name, space in self.action_spaces.items()
            if isinstance(space, Discrete)
            and ACTION_MASK_KEY not in getattr(self.observation_spaces[name], "spaces", ())
        }
        if not masked or not any(
            ACTION_MASK_KEY in info
            for info in self._first_infos().values()
            if isinstance(info, Mapping)
        ):
            self._unmasked = frozenset(masked)
            return {}
        for name, num_actions in masked.items():
            space = self.observation_spaces[name]
            parts = space.spaces if isinstance(space, DictSpace) else {"observation": space}
            mask = Box((num_actions,), "int8", 0, 1)
            self.observation_spaces[name] = DictSpace({**parts, ACTION_MASK_KEY: mask})
        return masked

    def _find_state_size(self) -> int | None:
        """Returns the length of `env.state()` flattened, None if the environment has none.

        An environment that does not declare a `state_space` is reset once to look at its state.
        """
        state = getattr(self._env, "state", None)
        if not callable(state) or _is_inherited_stub(self._env):
            return None
        shape = getattr(getattr(self._env, "state_space", None), "shape", None)
        if shape is not None:
            return math.prod(shape)
        self._reset_env()
        try:
            return self._read_state().size
        except NotImplementedError:  # another stub, or a wrapper's
            return None
        except (Exception, SystemExit) as error:  # noqa: BLE001  # nobody may want to read it
            self.state_problem = told_of("state()", error)
            return None

    def _add_masks(
        self, infos: Mapping[str, Mapping[str, Any]], *observations: dict[str, Any]
    ) -> None:
        """Puts the masks of infos into plain observations, in place.

        Raises:
            SimulationError: a mask is not of one number for each action, or the first reset gave
                none.
        """
        for name in self._unmasked & infos.keys() if self._unmasked else ():
            if isinstance(infos[name], Mapping) and ACTION_MASK_KEY in infos[name]:
                raise SimulationError(
                    f"the infos of agent {name!r} have an {ACTION_MASK_KEY!r} now, and those of "
                    "the first reset() had none, so that masks are not read; give one in the infos "
                    "of reset(), too (all ones where everything is allowed), or have observations "
                    f"be a Dict with {ACTION_MASK_KEY!r}"
                )
        for seen in observations:
            for name in seen.keys() & self._masked.keys():
                num_actions, value = self._masked[name], seen[name]
                given = infos.get(name, {}).get(ACTION_MASK_KEY)
                mask = np.ones(num_actions) if given is None else np.asarray(given)
                if mask.shape != (num_actions,):
                    raise SimulationError(
                        f"the action mask in the infos of agent {name!r} has the shape "
                        f"{list(mask.shape)}, and it has {num_actions} actions"
                    )
                parts = value if isinstance(value, dict) else {"observation": value}
                seen[name] = {**parts, ACTION_MASK_KEY: (mask != 0).astype(np.int8)}

    def _plain_infos(self, infos: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
        """Returns the infos by agent name or `COMMON`, without other keys ('common').

        Copied: an environment may fill the same dict in its next step.
        """
        names = self._names
        plain = {names[agent]: _copied(info) for agent, info in infos.items() if agent in names}
        if COMMON in infos:
            plain[COMMON] = _copied(infos[COMMON])
        return plain


def _copied(info: Any) -> Any:
    return {**info} if type(info) is dict else info


def _space_of_many(spaces: Sequence[Space]) -> Box | None:
    """Returns the space of floats that many agents share, if it is one."""
    first = spaces[0]
    if len(spaces) < _MANY or not isinstance(first, Box) or not first.dtype.startswith("float"):
        return None
    return first if spaces.count(first) == len(spaces) else None


def space_lookup(env: Any, method: str, mapping: str) -> Callable[[Any], Any]:
    """Returns a function that asks `env` for an agent's space: by its method, else its dict."""

    def lookup(agent: Any) -> Any:
        ask = getattr(env, method, None)
        if callable(ask):
            with warnings.catch_warnings():  # PettingZoo warns when it falls back on its dict
                warnings.simplefilter("ignore")
                return ask(agent)
        return getattr(env, mapping)[agent]

    return lookup


def _ask(space_of: Callable[[Any], Any], agent: Hashable, kind: str) -> Any:
    cause: Exception | None = None
    try:
        space = space_of(agent)
    # What an environment without such a space raises depends on its framework.
    except (AttributeError, KeyError, TypeError, NotImplementedError) as error:
        space, cause = None, error
    if space is None:
        reason = f" ({type(cause).__name__}: {cause})" if cause else ""
        raise NotYet(
            f"the environment has no {kind} space of agent {agent!r}{reason}; give it a method "
            f"{kind}_space(agent) or a dict {kind}_spaces"
        ) from cause
    return space


def _plain(space: Any, agent: Hashable, kind: str) -> Space:
    try:
        return from_gymnasium(space)
    except TypeError as error:
        raise SimulationError(f"the {kind} space of agent {agent!r}: {error}") from None


def told(error: BaseException) -> str:
    """Returns an exception in one line, with the file and line of the user's code it came from."""
    frame = user_frame(error)
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    if frame is None:
        return text
    line = f": {frame.line}" if text == type(error).__name__ and frame.line else ""
    told = f"{text} ({os.path.basename(frame.filename)}, line {frame.lineno}{line})"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        told += (
            "; another program has the port, or another copy of the environment: each copy gets "
            "its own where simulation.kwargs count them, as in '{5000 + index}'"
        )
    return told


def told_of(where: str, error: BaseException) -> str:
    """Returns in one line what became of a call of one of the environment's methods."""
    return str(error) if isinstance(error, SimulationError) else f"{where} raised {told(error)}"


def user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Returns where an exception came from in code that is not muxrl's: the innermost line that is
    not of an installed package, if there is one. None: it is all muxrl's."""
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    written = [frame for frame in others if not frame.filename.startswith(_INSTALLED)]
    return next(reversed(written or others), None)


_OWN = tuple(
    os.path.join(os.path.abspath(__file__).rpartition("client")[0], room, "")
    for room in ("client", "orchestrator")
)
"""Folders of muxrl's code that calls environments."""
_INSTALLED = ("<", *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def _are_infos(given: Any) -> bool:
    """Whether it is a dict, or one for each agent, or None; else it is an agent's observation."""
    if isinstance(given, list | tuple):
        return all(isinstance(one, Mapping) for one in given)
    return given is None or isinstance(given, Mapping)


def read_reset(given: Any, *, is_by_agent: bool) -> tuple[Any, Any]:
    """Returns the observations and infos of a reset, if need be none of the latter.

    Raises:
        SimulationError: it returned nothing, or observations that are not by agent.
    """
    if given is None:
        raise SimulationError(
            "the environment's reset() returned None; expected (observations, infos)"
        )
    is_pair = isinstance(given, tuple | list) and len(given) == 2 and _are_infos(given[1])
    seen, infos = (given[0], given[1] or {}) if is_pair else (given, {})
    if is_by_agent and not hasattr(seen, "items"):
        came = "observations as " if is_pair else ""
        raise SimulationError(
            f"the environment's reset() returned {came}a {type(seen).__name__}; expected "
            "(observations, infos), dicts by agent"
        )
    return seen, infos


_DICTS = {dict}
_PARTS = ("observations", "rewards", "terminations", "truncations", "infos")


def read_step(given: Any, *, is_by_agent: bool) -> tuple[Any, Any, Any, Any, Any]:
    """Returns the five parts of a step; its infos may have been None.

    Raises:
        SimulationError: there are not five, or they are not by agent.
    """
    if not isinstance(given, Sized) or len(given) != 5:
        raise _wrong_step(given)
    parts: Any = given
    if not is_by_agent or set(map(type, parts)) == _DICTS:
        return parts
    if parts[4] is None:
        parts = (*parts[:4], {})
    for what, part in zip(_PARTS, parts, strict=True):
        if not hasattr(part, "items"):
            raise SimulationError(
                f"the environment's step() returned its {what} as a "
                f"{type(part).__name__}; expected a dict by agent"
            )
    return parts


def _wrong_step(given: Any) -> SimulationError:
    came = f"{len(given)} values" if isinstance(given, Sized) else f"a {type(given).__name__}"
    why = ""
    if came == "4 values":
        why = (
            "; with one dict of dones, as in the old gym, an episode that was cut off cannot be "
            "told from one that has ended, and learning needs to know"
        )
    return SimulationError(
        f"the environment's step() returned {came}; expected five: {', '.join(_PARTS)}{why}"
    )


def _is_inherited_stub(env: Any) -> bool:
    method = getattr(type(getattr(env, "unwrapped", env)), "state", None)
    # PettingZoo's base classes have a state() that only raises.
    return getattr(method, "__qualname__", "") in {"ParallelEnv.state", "AECEnv.state"}


def wrong_actions(expected: Iterable[str], got: Iterable[str]) -> SimulationError:
    """Returns the error for actions that are not those of the agents to act."""
    expected, got = sorted(expected), sorted(got)
    if not expected:
        return SimulationError(
            f"step() got actions of {got}, but nobody is to act: the episode is over or was "
            "never started; call reset() first"
        )
    missing = [agent for agent in expected if agent not in got]
    extra = [agent for agent in got if agent not in expected]
    story = [f"missing {missing}"] if missing else []
    story += [f"not to act now {extra}"] if extra else []
    return SimulationError(
        f"step() takes the actions of {expected}, the agents observed last, and got those of "
        f"{got}: {', '.join(story)}"
    )
