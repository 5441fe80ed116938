"""Which runs can be compared, which are refused and why, and what a sweep adds."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.comparisons.compared_runs import (
    HUNTERS,
    KWARGS,
    PREY,
    made_up_run,
    made_up_runs,
)

from muxrl.orchestrator.comparisons.compare import compare_runs
from muxrl.orchestrator.comparisons.findings.compared_runs import read_compared_runs
from muxrl.orchestrator.comparisons.findings.contestants import (
    find_contestants,
    find_roles,
    is_cooperative,
)
from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord


def test_a_run_in_which_a_shadow_was_promoted_says_which_server_acted_until_when(
    tmp_path: Path,
) -> None:
    folder = RunDirectory(made_up_run(tmp_path, "DQN", "PPO", 1, 5.0))
    assert read_compared_runs([folder.path]).notes == ()
    plan = json.loads((folder.path / "plan.json").read_text())
    hunters = plan["servers"]["hunters"]
    plan["servers"] |= {
        "hunters": hunters | {"replaced_by": "sac"},
        "sac": hunters | {"algorithm": "SAC", "shadow": "hunters"},
    }
    folder.write_plan(plan)
    with (folder.path / "metrics" / "evaluation.jsonl").open("a") as file:
        last = {"env_steps": 2_000, "num_episodes": 1, "should_explore": False}
        for replaced in (None, "sac"):
            returns = {agent: [1.0] for agent in (*HUNTERS, *PREY)}
            file.write(json.dumps({**last, "replaced": replaced, "returns": returns}) + "\n")
    (note,) = read_compared_runs([folder.path]).notes
    assert "was evaluated with hunters up to 1,000 env steps, then with sac, which" in note


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"env": "muxrl.experiments.simulations.cue_game:CueGame"}, "cue_game:CueGame;"),
        ({"kwargs": {**KWARGS, "num_steps": 6}}, "simulation.kwargs.num_steps is 5 against 6"),
        ({"kwargs": {"num_agents": 3}}, "simulation.kwargs.num_steps is 5 against its default"),
        ({"should_explore": True}, "actions are greedy against sampled"),
        (
            {"simulation": {"metrics": {"hits": "mean"}}},
            "simulation.metrics.hits is sum against mean",
        ),
    ],
)
def test_runs_that_differ_in_more_than_the_assignment_are_refused_and_the_difference_named(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    summed = {"simulation": {"metrics": {"hits": "sum"}}}
    first = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0, **summed)
    other = made_up_run(tmp_path, "PPO", "PPO", 1, 5.0, **summed | changed)
    with pytest.raises(CannotCompare) as refused:
        read_compared_runs([first, other])
    assert first.name in str(refused.value)
    assert other.name in str(refused.value)
    assert named in str(refused.value)


def test_folders_that_are_no_runs_and_runs_without_evaluations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotCompare, match="there is no such folder"):
        read_compared_runs([tmp_path / "nothing"])
    run = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0)
    (run / "metrics" / "evaluation.jsonl").write_text("")
    with pytest.raises(CannotCompare, match=f"{run.name}' was never evaluated"):
        read_compared_runs([run])


def test_two_runs_of_one_contestant_with_the_same_seed_are_refused(tmp_path: Path) -> None:
    run = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0)
    twin = made_up_run(tmp_path / "again", "QMIX", "PPO", 1, 4.0)
    runs = read_compared_runs([run, twin]).runs
    with pytest.raises(CannotCompare, match="the same seed 1; they are not independent"):
        find_contestants(runs, find_roles(runs, {}))


@pytest.mark.parametrize(
    ("begun_from", "seeds"),
    [
        # Each seed begins with a source of its own, at both rates.
        ([(1, "a"), (2, "b")], [(1, 2), (1, 2)]),
        ([(1, "a"), (2, "a")], [(1, 2), (1, 2)]),
        ([(1, "a"), (2, "")], [(1,), (2,), (1,), (2,)]),  # one run begins with new weights
        # Runs from scratch are compared with fine-tuned ones.
        ([(1, "a"), (2, "b"), (1, ""), (2, "")], [(1, 2)] * 4),
        ([(1, "a"), (1, "b"), (2, "a"), (2, "b")], [(1, 2)] * 4),  # two sources are compared
    ],
)
def test_seeds_may_begin_with_a_checkpoint_each(
    tmp_path: Path, begun_from: list[tuple[int, str]], seeds: list[tuple[int, ...]]
) -> None:
    paths = []
    for lr in (0.1, 0.2):
        for seed, source in begun_from:
            folder = tmp_path / (source or "new")
            path = made_up_run(folder, "QMIX", "PPO", seed, 5.0, settings={"lr": lr})
            config = RunDirectory(path).read_config()
            config.servers["hunters"].initialize_from = source
            RunDirectory(path).write_config(to_yaml(config))
            paths.append(path)
    compared = compare_runs(paths, num_episodes=2)
    assert [c.seeds for c in compared.contestants] == seeds
    is_said = any("began with different checkpoints" in n for n in compared.notes)
    assert is_said == (begun_from[:2] == [(1, "a"), (2, "b")])


_SCHEDULE = "[[0, 1.0], [10000, 0.5], [20000, 0.25], [40000, {}]]"


def _by_epsilon(*ends_and_seeds: tuple[float, Sequence[int]]) -> list[tuple[int, dict[str, Any]]]:
    return [
        (seed, {"settings": {"epsilon": _SCHEDULE.format(end)}})
        for end, seeds in ends_and_seeds
        for seed in seeds
    ]


_EPSILON = "[epsilon=[[0, 1.0], [10000, 0.5], [20000, 0.25],…]"
_QMIX = "qmix hunters | ppo prey"


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            [
                (seed, {"settings": {"lr": lr, "gamma": 0.9}})
                for lr in (0.1, 0.2)
                for seed in (1, 2)
            ],
            {f"qmix [lr={lr}] hunters | ppo prey": (1, 2) for lr in (0.1, 0.2)},
        ),
        # Values are shortened when shown, but runs are grouped by the whole values.
        (
            _by_epsilon((0.1, (1, 2)), (0.02, (2, 3)), (0.05, (1,))),
            {
                f"qmix {number}{_EPSILON} hunters | ppo prey": seeds
                for number, seeds in (("", (1, 2)), ("#2 ", (2, 3)), ("#3 ", (1,)))
            },
        ),
        (
            [
                (1, {"simulation": {"parameters": {"size": 8}}}),
                (2, {"simulation": {"parameters": {"size": 8}, "metrics": {"hits": "sum"}}}),
                (3, {"simulation": {"parameters": {"size": [[0, 2], [100, 8]]},
                                    "num_envs_per_process": 4}}),
            ],
            {
                f"{_QMIX} [parameters.size=8, num_envs_per_process=1]": (1, 2),
                f"{_QMIX} [parameters.size=[[0, 2], [100, 8]], num_envs_per_process=4]": (3,),
            },
        ),
    ],
    ids=["settings", "late in their text", "how it was played"],
)  # fmt: skip
def test_contestants_are_named_by_their_different_values(
    tmp_path: Path, made: list[tuple[int, dict[str, Any]]], told: dict[str, tuple[int, ...]]
) -> None:
    paths = [made_up_run(tmp_path, "QMIX", "PPO", seed, 5.0, **how) for seed, how in made]
    runs = read_compared_runs(paths).runs
    found = [(c.name, c.seeds) for c in find_contestants(runs, find_roles(runs, {}))]
    assert found == list(told.items())


def test_roles_may_be_named_and_are_checked(tmp_path: Path) -> None:
    runs = read_compared_runs([made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0)]).runs
    assert find_roles(runs, {"wolves": ["agent_0"]}) == {
        "wolves": ("agent_0",),
        "agent_1": ("agent_1",),
        "prey": ("agent_2",),
    }
    with pytest.raises(CannotCompare, match="'wolf_\\*' matches no agent"):
        find_roles(runs, {"wolves": ["wolf_*"]})
    with pytest.raises(CannotCompare, match="on the servers hunters, prey"):
        find_roles(runs, {"all": ["agent_*"]})
    with pytest.raises(CannotCompare, match="in the roles 'a' and 'b'"):
        find_roles(runs, {"a": ["agent_0"], "b": ["agent_0"]})


def sweep(root: Path, *changed: Mapping[str, Any]) -> Path:
    """Writes a sweep with two finished trials, one that failed and one that waits.

    The prey of the failed trial is scripted. `changed` replaces all four trials.
    """
    runs = [made_up_run(root / "runs", hunters, "PPO", 1, 5.0) for hunters in ("QMIX", "PPO")]
    trials = [
        {"status": "done", "run_dir": f"runs/{runs[0].name}"},
        {"status": "failed", "roles": {"prey": "flee"}, "cause": "it raised"},
        {"status": "done", "run_dir": f"runs/{runs[1].name}"},
        {"status": "waiting"},
    ]
    records = [
        TrialRecord(
            **{"id": str(i), "assignment": "", "roles": {}, "parameters": {}, "seed": 1, **trial}
        )
        for i, trial in enumerate(changed or trials)
    ]
    SweepDirectory(root).write_trials(records)
    (root / "sweep.yaml").write_text(
        "roles: {hunters: ['agent_[01]'], prey: [agent_2]}\n"
        "algorithms:\n"
        "  flee: {algorithm: SCRIPTED, settings: {policy: 'a:b'}}\n"
        "  stay: {algorithm: SCRIPTED, settings: {policy: 'a:c'}}\n"
        "  ppo: {}\n"
    )
    return root


def test_a_sweep_gives_its_finished_runs_its_roles_and_its_scripts(tmp_path: Path) -> None:
    sources = read_compared_runs([sweep(tmp_path)])
    assert [run.name.split("-")[0] for run in sources.runs] == ["qmix", "ppo"]
    assert find_roles(sources.runs, sources.roles) == {
        "hunters": tuple(HUNTERS),
        "prey": tuple(PREY),
    }
    assert {role: [s.label for s in found] for role, found in sources.scripts.items()} == {
        "prey": ["flee"]
    }
    assert [note.partition(": ")[2] for note in sources.notes] == [
        "1 of 4 trials, failed (1)",
        "1 of 4 trials, waiting (3)",
    ]


def test_a_run_that_two_sweeps_share_counts_once(tmp_path: Path) -> None:
    first, second = (sweep(tmp_path / name) for name in "ab")
    extra = made_up_run(second / "runs", "QMIX", "PPO", 2, 5.0)
    done = {"id": "9", "assignment": "", "roles": {}, "parameters": {}, "status": "done"}
    trials = SweepDirectory(second).trials()
    more = TrialRecord(**done, seed=2, run_dir=f"runs/{extra.name}")
    SweepDirectory(second).write_trials([*trials, more])
    sources = read_compared_runs([first, second])
    assert [run.path.parent.parent for run in sources.runs] == [first, first, second]
    assert [run.seed for run in sources.runs] == [1, 1, 2]
    assert "'b': 2 of 5 trials, since an earlier one has the same settings" in sources.notes[-1]


def test_a_trial_that_a_sweep_draws_twice_counts_once(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    trials = SweepDirectory(folder).trials()
    done = next(trial for trial in trials if trial.status == "done")
    SweepDirectory(folder).write_trials([*trials, replace(done, id="9")])
    sources = read_compared_runs([folder])
    assert len(sources.runs) == 2
    assert "1 of 5 trials, since an earlier one has the same settings" in sources.notes[-1]


def test_a_sweep_s_masked_tokens_are_not_asked_for(tmp_path: Path) -> None:
    config = sweep(tmp_path) / "sweep.yaml"
    config.write_text(config.read_text().replace("ppo: {}", "ppo: {token: '???'}"))
    assert len(read_compared_runs([tmp_path]).runs) == 2


def test_a_sweep_without_a_finished_run_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path, {"status": "failed"})
    with pytest.raises(CannotCompare, match=r"no finished run .* 1 of 1 trials, failed"):
        read_compared_runs([tmp_path])
    (tmp_path / "trials.jsonl").write_text("no trial\n")
    with pytest.raises(CannotCompare, match=r"trials.jsonl cannot be read"):
        read_compared_runs([tmp_path])


def test_the_command_gives_the_reason_and_ends_with_code_2(tmp_path: Path, muxrl: Muxrl) -> None:
    told = muxrl("compare", tmp_path / "nothing", code=2).err
    assert "nothing is not the directory of a run: there is no such folder" in told
    for wrong in (["--threshold", "prey"], ["--role", "prey"]):
        assert "must look like" in muxrl("compare", "run", *wrong, code=2).err


def test_different_versions_are_noted(tmp_path: Path) -> None:
    paths = made_up_runs(tmp_path)[:2]
    for path, version in zip(paths, ("2.60.0", "2.61.0"), strict=True):
        (path / "versions.json").write_text(json.dumps({"ray": version}))
    assert read_compared_runs(paths).notes == (
        "the runs were made with different versions of ray: 2.60.0, 2.61.0",
    )
    shutil.rmtree(paths[0] / "metrics")
    with pytest.raises(CannotCompare, match=paths[0].name):
        read_compared_runs(paths)


def test_agents_cooperate_in_one_role_or_where_all_have_one_return(tmp_path: Path) -> None:
    path = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0)
    roles = {"hunters": ("agent_0", "agent_1"), "prey": ("agent_2",)}

    def cooperate() -> bool:
        return is_cooperative(read_compared_runs([path]).runs, roles)

    assert not cooperate()
    assert is_cooperative(read_compared_runs([path]).runs, {"all": ("agent_0",)})
    file = path / "metrics" / "evaluation.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        record["returns"]["agent_2"] = record["returns"]["agent_0"]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert cooperate()
