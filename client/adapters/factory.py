"""Makes a `Simulation` from 'package.module:callable', or from a library's id of an environment.

The named code is the user's. Any exception from importing or calling it becomes a `SimulationError`
of one sentence, with the exception as its cause.
"""

from __future__ import annotations

import contextlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from muxrl.client.adapters.agent_spaces import NotYet
from muxrl.client.adapters.autoreset import AutoresetEnv
from muxrl.client.adapters.dict_env import Respawn
from muxrl.client.adapters.gymnasium_env import (
    GymnasiumEnv,
    GymnasiumMultiAgent,
    has_a_part_for_each_agent,
)
from muxrl.client.adapters.open_spiel_game import OpenSpielGame
from muxrl.client.adapters.pettingzoo_aec import PettingZooAEC
from muxrl.client.adapters.pettingzoo_parallel import PettingZooParallel
from muxrl.client.adapters.rllib_multi_agent import RLlibMultiAgent, has_dicts_by_agent
from muxrl.client.adapters.simulation import Simulation, SimulationError
from muxrl.client.adapters.vector_simulation import OnlyCopy
from muxrl.client.adapters.vmas_env import VmasEnv
from muxrl.protocol.own_modules import NoSuchName, find_by_name, submodules
from muxrl.protocol.suggestions import did_you_mean
from muxrl.protocol.user_errors import one_line

OF_LISTS = (
    "RLlib's VectorMultiAgentEnv takes and returns lists of dicts by agent, and not arrays; name "
    "the MultiAgentEnv of which it makes copies, leave out simulation.vector_env, and set "
    "simulation.num_envs_per_process"
)
FORMS = "'package.module:callable', 'gymnasium:ENV_ID', 'pettingzoo:ENV_ID' or 'open_spiel:GAME'"

_INDEX = re.compile(r"\{(?:(\d+) *\+ *)?(?:(\d+) *\* *)?index\}")


@dataclass(frozen=True)
class Copy:
    """Which of a run's copies of an environment is made; arguments may contain it, see `fill_in`.

    RLlib's environments find the other numbers as attributes of their config.
    """

    index: int = 0
    """Index among the copies of all processes of the run, from 0; training copies come first, then
    those of the evaluation."""
    worker_index: int = 0
    """Index of its process, from 1; 0: a copy made only to be looked at."""
    vector_index: int = 0
    """Index among the copies of its process, from 0."""
    num_workers: int = 0
    """Number of processes that train."""


THE_FIRST = Copy()


class EnvContext(dict[str, Any]):
    """The config of an RLlib environment, with the attributes of RLlib's own ``EnvContext``."""

    def __init__(self, config: Mapping[str, Any], copy: Copy) -> None:
        super().__init__(config)
        self.worker_index, self.vector_index = copy.worker_index, copy.vector_index
        self.num_workers, self.remote, self.recreated_worker = copy.num_workers, False, False


def fill_in(value: Any, index: int) -> Any:
    """Returns arguments with ``{index}``, ``{5000 + 2*index}`` and the like replaced by numbers.

    A text that consists of one alone becomes an integer, as a port has to be. Other braces stay.
    """
    if isinstance(value, str):
        if whole := _INDEX.fullmatch(value):
            return _number(whole, index)
        return _INDEX.sub(lambda found: str(_number(found, index)), value)
    if isinstance(value, Mapping):
        return {key: fill_in(one, index) for key, one in value.items()}
    return [fill_in(one, index) for one in value] if isinstance(value, list) else value


def _number(found: re.Match[str], index: int) -> int:
    first, factor = found.groups()
    return int(first or 0) + int(factor or 1) * index


def make_simulation(
    env: str,
    kwargs: Mapping[str, Any],
    copy: Copy = THE_FIRST,
    respawn: Respawn = "refuse",
    *,
    vector_env: bool = False,
) -> Simulation:
    """Makes the environment that `env` names and returns it as a `Simulation`.

    Args:
        env: 'package.module:callable', where the callable is a PettingZoo parallel or AEC
            factory, a Gymnasium environment class or factory, or an RLlib MultiAgentEnv
            class; or 'gymnasium:ENV_ID', an id registered with Gymnasium, or
            'gymnasium:package:ENV_ID' if importing the package registers it; or
            'pettingzoo:ENV_ID', an id registered with PettingZoo (1.27 or newer), in its parallel
            form if there is one; or 'open_spiel:GAME', see `OpenSpielGame`.
        kwargs: arguments of the callable; an RLlib class gets them as its config dict.
        copy: which copy it is, for ``{index}`` in the kwargs.
        respawn: see `adapt`.
        vector_env: whether `env` makes an environment of several copies, see
            `make_vector_simulation`; it is made with one copy.

    Raises:
        SimulationError: nothing has that name, the callable failed or made no environment, or the
            environment failed when its agents and spaces were read.
    """
    if vector_env:
        return OnlyCopy(make_vector_simulation(env, kwargs, 1, copy, respawn))
    kwargs = fill_in(kwargs, copy.index)
    module_name, attribute = _parts(env)
    with naming(env, _READING):
        if module_name == "gymnasium":
            # Gymnasium's checker expects a single agent and reward; servers check values anyway.
            kwargs = {"disable_env_checker": True, **kwargs, "id": attribute}
            attribute = "make"
        elif module_name == "pettingzoo" and "/" in attribute:
            try:
                _find("pettingzoo", "spec")("parallel", attribute)
                form = "parallel"
            except SimulationError as error:
                raise SimulationError(
                    "finding an environment by its id needs PettingZoo 1.27 or newer"
                ) from error
            except Exception:  # noqa: BLE001  # PettingZoo's error: a turn-based or unknown id
                form = "aec"
            kwargs, attribute = {**kwargs, "env_type": form, "id": attribute}, "make"
        elif module_name == "open_spiel":
            return adapt(OpenSpielGame(attribute, **kwargs), respawn)
        return adapt(_call(_find(module_name, attribute), kwargs, copy), respawn)


def make_vector_simulation(
    env: str,
    kwargs: Mapping[str, Any],
    num_copies: int,
    copy: Copy = THE_FIRST,
    respawn: Respawn = "refuse",
) -> AutoresetEnv:
    """Makes an environment that steps many copies of itself.

    Args:
        env: 'package.module:callable', which makes what `adapt_vector` takes, or
            'gymnasium:ENV_ID', which ``gymnasium.make_vec`` makes.
        kwargs: arguments of the callable.
        num_copies: how many copies; the callable gets it as the argument ``num_envs``.
        copy, respawn: see `make_simulation`.

    Raises:
        SimulationError: as `make_simulation`; or the environment has another number of copies.
    """
    given = {**fill_in(kwargs, copy.index), "num_envs": num_copies}
    module_name, attribute = _parts(env)
    with naming(env, _READING):
        if module_name == "gymnasium":
            given, attribute = {**given, "id": attribute}, "make_vec"
        factory = _find(module_name, attribute)
        if not _binds(factory, **given):
            raise SimulationError(
                f"with simulation.vector_env it is called with num_envs and the kwargs "
                f"{dict(kwargs)}, but it takes {inspect.signature(factory)}; to make single "
                "environments, leave out vector_env"
            )
        simulation = adapt_vector(_call(factory, given, copy), respawn)
    if simulation.num_copies != num_copies:
        raise SimulationError(
            f"simulation {env!r} was made with num_envs={num_copies}, but has "
            f"{simulation.num_copies} copies"
        )
    return simulation


_READING = "reading its agents and spaces"


@contextlib.contextmanager
def naming(env: str, doing: str) -> Iterator[None]:
    """Adds the simulation's name to errors.

    Args:
        env: the simulation's name.
        doing: what is done inside the context, for the text of the error.

    Raises:
        SimulationError: the code inside the context raised this, or any other exception.
    """
    try:
        yield
    except SimulationError as error:
        raise SimulationError(f"simulation {env!r}: {error}") from error.__cause__
    except (Exception, SystemExit) as error:  # the user's environment may raise anything
        raise SimulationError(
            f"simulation {env!r}: {doing} failed with {one_line(error)}"
        ) from error


def adapt_vector(env: Any, respawn: Respawn = "refuse") -> AutoresetEnv:
    """Returns an environment that steps many copies of itself as a `VectorSimulation`.

    Args:
        env: Gymnasium's ``VectorEnv``; VMAS's environment or one like it; or an object with
            ``num_envs`` and PettingZoo's methods of a ParallelEnv, see `AutoresetEnv`.
        respawn: see `AutoresetEnv`.

    Raises:
        SimulationError: `env` is none of these, or its agents or spaces cannot be read.
    """
    if any(base.__name__ == "VectorMultiAgentEnv" for base in type(env).__mro__):
        raise SimulationError(OF_LISTS)
    if hasattr(env, "num_envs"):
        if hasattr(env, "reset_at") and hasattr(env, "agents"):
            env = VmasEnv(env)
        if hasattr(env, "possible_agents") or hasattr(env, "single_observation_space"):
            return AutoresetEnv(env, respawn)
    raise SimulationError(
        "with simulation.vector_env the callable must return an environment of several copies, but "
        f"it returned {_an_instance(env)}, which is neither a Gymnasium VectorEnv nor a VMAS "
        "environment, nor has it num_envs and possible_agents"
    )


def _parts(env: str) -> tuple[str, str]:
    module_name, separator, attribute = env.partition(":")
    if not (module_name and separator and attribute):
        raise SimulationError(f"simulation {env!r} is not of the form {FORMS}")
    return module_name, attribute


def adapt(env: Any, respawn: Respawn = "refuse") -> Simulation:
    """Returns an environment as a `Simulation`.

    A Gymnasium environment has several agents if its spaces are two Tuples with equally many parts,
    or two Dicts with the same keys. RLlib's `with_agent_groups` is taken off, as servers form the
    groups. An environment that knows its agents or spaces only after a reset is reset first.

    Args:
        env: a PettingZoo ParallelEnv or AECEnv, a Gymnasium Env, or RLlib's MultiAgentEnv.
        respawn: how agents come back after their end, in environments with dicts by agent.

    Raises:
        SimulationError: it is none of these, or its agents or spaces cannot be read.
    """
    try:
        made = _adapt(env, respawn)
    except NotYet as error:
        try:
            env.reset()
        except Exception:  # noqa: BLE001  # the first error says better what is missing
            raise error from None
        made = _adapt(env, respawn)
    if respawn != "refuse" and not isinstance(made, RLlibMultiAgent | PettingZooParallel):
        raise SimulationError(
            f"simulation.respawn is {respawn!r}, which works only with environments that exchange "
            "dicts by agent (PettingZoo's ParallelEnv, RLlib's MultiAgentEnv), but this is "
            f"{_an_instance(env)}"
        )
    return made


def _adapt(env: Any, respawn: Respawn) -> Simulation:
    bases = {base.__name__ for base in type(env).__mro__}
    if "GroupAgentsWrapper" in bases:
        return _adapt_ungrouped(env)
    if isinstance(env, OpenSpielGame):
        return env
    if "MultiAgentEnv" in bases:
        return RLlibMultiAgent(env, respawn)
    if hasattr(env, "agent_iter"):  # `agent_selection` often exists only after reset()
        return PettingZooAEC(env)
    # `possible_agents` may be a property that fails before the first reset.
    has_agents = hasattr(env, "possible_agents") or hasattr(type(env), "possible_agents")
    if "ParallelEnv" in bases or (has_agents and hasattr(env, "step")):
        return PettingZooParallel(env, respawn)
    if "VectorMultiAgentEnv" in bases:
        raise SimulationError(OF_LISTS)
    if "VectorEnv" in bases or (hasattr(env, "num_envs") and hasattr(env, "reset_at")):
        raise SimulationError(
            "this is a vector environment, which steps many episodes at once, as Gymnasium's and "
            "VMAS's do; set simulation.vector_env: true, and the number of episodes in "
            "simulation.num_envs_per_process (with muxrl probe: --vector-env)"
        )
    if any(base.__module__.partition(".")[0] == "gym" for base in type(env).__mro__):
        raise SimulationError(
            "the environment is of the old 'gym' package, whose reset() and step() return other "
            "values; wrap it with shimmy's GymV26CompatibilityV0 or move it to gymnasium"
        )
    if "Env" in bases or all(
        hasattr(env, name) for name in ("reset", "step", "observation_space", "action_space")
    ):
        if has_dicts_by_agent(env):
            return RLlibMultiAgent(env, respawn)
        return GymnasiumMultiAgent(env) if has_a_part_for_each_agent(env) else GymnasiumEnv(env)
    raise SimulationError(
        f"the callable returned {_an_instance(env)}, which is no environment: a PettingZoo "
        "ParallelEnv has possible_agents, an AECEnv has agent_iter, a Gymnasium Env has "
        "observation_space and action_space, an RLlib env derives from MultiAgentEnv"
    )


def _adapt_ungrouped(env: Any) -> Simulation:
    """Adapts the environment inside RLlib's GroupAgentsWrapper, which has spaces only for groups.

    Raises:
        SimulationError: the environment inside has no agents or spaces.
    """
    try:
        return adapt(env.env)
    except SimulationError as error:
        raise SimulationError(
            f"the environment inside with_agent_groups, whose groups {dict(env.groups)} belong in "
            f"a server's 'groups': {error}"
        ) from error


def _find(module_name: str, attribute: str) -> Callable[..., Any]:
    try:
        found = find_by_name(module_name, attribute, most=3)
    except NoSuchName as error:
        raise SimulationError(str(error)) from None
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{module_name}.".startswith(f"{missing}."):
            raise SimulationError(
                f"importing {module_name!r} needs the module {missing!r}, which is not installed "
                "here"
            ) from error
        parent = missing.rpartition(".")[0]
        known = submodules(sys.modules.get(parent)).values() if parent else (
            module.name for module in pkgutil.iter_modules())  # fmt: skip
        hint = did_you_mean(missing, known, most=3)
        raise SimulationError(f"no module {missing!r}{hint}") from error
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise SimulationError(f"importing {module_name!r} failed with {one_line(error)}") from error
    if isinstance(found, ModuleType):
        raise SimulationError(
            f"{attribute!r} is a module; name the factory or class in it, as "
            f"'{found.__name__}:{'parallel_env' if hasattr(found, 'parallel_env') else 'Env'}'"
        )
    if not callable(found):
        raise SimulationError(
            f"{attribute!r} is {_an_instance(found)}, not something to "
            "call; name the factory or class that makes the environment"
        )
    return found


def _call(factory: Callable[..., Any], kwargs: Mapping[str, Any], copy: Copy) -> Any:
    takes_config = inspect.isclass(factory) and any(
        base.__name__ == "MultiAgentEnv" for base in factory.__mro__
    )
    try:
        if takes_config or not _binds(factory, **kwargs):
            if _binds(factory, kwargs) and (takes_config or _is_config_named(factory)):
                named = kwargs.get(_first_parameter(factory)) if len(kwargs) == 1 else None
                config = named if isinstance(named, Mapping) else kwargs
                return factory(EnvContext(config, copy))
            if not takes_config:
                parameters = inspect.signature(factory).parameters
                wrong = [name for name in kwargs if name not in parameters]
                hint = did_you_mean(wrong[0], parameters, most=3) if wrong else ""
                raise SimulationError(
                    f"it takes {inspect.signature(factory)}, but the kwargs are {kwargs}{hint}"
                )
        return factory(**kwargs)
    except SimulationError:
        raise
    except (Exception, SystemExit) as error:  # the user's factory may raise anything
        raise SimulationError(
            f"making it with kwargs {kwargs} failed with {one_line(error)}"
        ) from error


def _binds(factory: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(factory).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # a callable written in C, without a signature
        return not args
    return True


def _is_config_named(factory: Callable[..., Any]) -> bool:
    # RLlib's creator functions take a config dict, too; only the parameter's name tells.
    first = _first_parameter(factory).lower()
    return any(word in first for word in ("config", "cfg", "context", "ctx"))


def _first_parameter(factory: Callable[..., Any]) -> str:
    return next(iter(inspect.signature(factory).parameters), "")


def _an_instance(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
