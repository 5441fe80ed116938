"""Updates of EPyMARL's QMIX and MAPPO: a line read asks for one, the line printed has its ms.

EPyMARL is on no package index, so these are the learners of EPyMARL that PyMARLzoo+ 1.1.0 contains,
with their settings, except that rewards are not standardised, as on our side. They call networks
step by step even if these are not recurrent.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import yaml
from benchmarks.peers.work import AGENTS, EPISODE_STEPS, TEAM_UPDATES, TeamUpdate

_OBSERVATION, _ACTIONS = 8, 5
_STATE = _OBSERVATION * len(AGENTS)


def settings(work: TeamUpdate, package: Path) -> SimpleNamespace:
    """Returns EPyMARL's defaults, overridden by its algorithm's defaults, and these by ours."""
    told: dict[str, Any] = {}
    for name in ("default", f"algs/{work.algorithm.lower()}"):
        told |= yaml.safe_load((package / "config" / f"{name}.yaml").read_text())
    told |= {
        "n_agents": len(AGENTS),
        "n_actions": _ACTIONS,
        "state_shape": _STATE,
        "standardise_rewards": False,
        "use_rnn": work.is_recurrent,
        "batch_size": work.num_episodes,
        "learner_log_interval": sys.maxsize // 2,
        "epochs": work.num_epochs,
    }
    return SimpleNamespace(**told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=TEAM_UPDATES)
    work = TEAM_UPDATES[parser.parse_args().case]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # The package's own __init__ would import every environment that it knows.
    installed = importlib.metadata.distribution("pymarlzooplus")
    package = Path(str(installed.locate_file("pymarlzooplus")))
    sys.modules["pymarlzooplus"] = stand_in = ModuleType("pymarlzooplus")
    stand_in.__path__ = [str(package)]
    from pymarlzooplus.components.episode_buffer import EpisodeBatch, ReplayBuffer
    from pymarlzooplus.components.transforms import OneHot
    from pymarlzooplus.controllers.basic_controller import BasicMAC
    from pymarlzooplus.learners import REGISTRY

    args = settings(work, package)
    num_stored, length = work.num_stored, EPISODE_STEPS + 1
    scheme = {
        "state": {"vshape": _STATE},
        "obs": {"vshape": _OBSERVATION, "group": "agents"},
        "actions": {"vshape": (1,), "group": "agents", "dtype": torch.long},
        "avail_actions": {"vshape": (_ACTIONS,), "group": "agents", "dtype": torch.int},
        "reward": {"vshape": (1,)},
        "terminated": {"vshape": (1,), "dtype": torch.uint8},
    }
    groups = {"agents": len(AGENTS)}
    one_hot = {"actions": ("actions_onehot", [OneHot(out_dim=_ACTIONS)])}
    replay = ReplayBuffer(scheme, groups, args, num_stored + 1, length, preprocess=one_hot)
    controller = BasicMAC(replay.scheme, groups, args)
    learner = REGISTRY[args.learner](controller, replay.scheme, None, args)
    learner.log_stats_t = 0
    episodes = EpisodeBatch(scheme, groups, num_stored, length, preprocess=one_hot)
    each, every = (num_stored, length), (num_stored, length, len(AGENTS))
    observations = torch.randn(*every, _OBSERVATION)
    episodes.update(
        {
            "state": observations.flatten(2),
            "obs": observations,
            "actions": torch.randint(_ACTIONS, (*every, 1)),
            "avail_actions": torch.ones(*every, _ACTIONS, dtype=torch.int),
            "reward": torch.randn(*each, 1),
            "terminated": torch.zeros(*each, 1, dtype=torch.uint8),
        }
    )
    replay.insert_episode_batch(episodes)
    for _ in sys.stdin:
        before = time.process_time()
        batch = replay.sample(args.batch_size)
        learner.train(batch[:, : batch.max_t_filled()], 0, 0)
        print(1e3 * (time.process_time() - before), flush=True)


if __name__ == "__main__":
    main()
