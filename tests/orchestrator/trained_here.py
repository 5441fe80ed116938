"""Trains runs in this process, without Ray; their directories are like those of other runs."""

from __future__ import annotations

from collections.abc import Sequence

from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import Experiment, to_yaml
from muxrl.orchestrator.config.seeds import evaluation_seed
from muxrl.orchestrator.launch.in_process import serve_experiment
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import Manifest


def train_here(
    experiment: Experiment,
    run: RunDirectory,
    points: Sequence[int],
    *,
    num_episodes: int = 0,
    replaces: bool = False,
    first_seed: int = 0,
) -> None:
    """Trains a run up to each of some env steps; saves a checkpoint and evaluates there.

    Args:
        experiment: resolved.
        run: its directory.
        points: env steps, in rising order.
        num_episodes: of each condition of an evaluation; 0: there are no evaluations.
        replaces: whether each server that learns is also replaced by random actions.
        first_seed: of the training episodes.
    """
    run.write_config(to_yaml(experiment.config))
    with (
        serve_experiment(experiment) as served,
        MetricsWriter(run) as metrics,
        served.client() as client,
    ):
        learning = [s for s in served.servers if s not in experiment.fixed_servers]
        servers = {
            s: {"algorithm": p.algorithm, "agents": list(p.agents), "learns": s in learning}
            for s, p in experiment.servers.items()
        }
        seed = experiment.config.seed
        run.write_plan({"servers": servers, "assignment": experiment.assignment, "seed": seed})
        loop = EnvLoop([served.simulation()], client, seeds=iter(range(first_seed, 10**6)))
        for env_steps in points:
            loop.run(should_stop=lambda: loop.num_env_steps >= env_steps)  # noqa: B023
            served.check()
            place = run.checkpoints / str(env_steps)
            for server_id in learning:
                if env_steps:
                    served.servers[server_id].finish_training()
                served.servers[server_id].policies.save(place / server_id)
            Manifest(env_steps, 0.0, "", None, {}, {}, {}, {}).write(place)
            for replaced in (None, *learning * replaces) if num_episodes else ():
                at = evaluation_seed(experiment.config)
                episodes = served.evaluate(num_episodes, replaced=replaced, first_seed=at)
                metrics.evaluation(
                    {
                        "time_s": env_steps / 100,
                        "env_steps": env_steps,
                        "replaced": replaced,
                        "should_explore": experiment.config.evaluation.should_explore,
                        "num_episodes": num_episodes,
                        "returns": {
                            agent: [episode.returns[agent] for episode in episodes]
                            for agent in experiment.facts.agents
                        },
                    }
                )
        (run.checkpoints / "last").symlink_to(str(points[-1]))
