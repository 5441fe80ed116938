"""The command line: exit codes, what is printed where, and what commands get."""

import argparse
import json
import platform
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated, Optional

import pytest

from muxrl.orchestrator import cli
from muxrl.orchestrator.commands.command import Command, pair_of
from muxrl.orchestrator.config import load_config, to_yaml
from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.league.load import load_league
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.sweeps.load import load_sweep

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def launched(monkeypatch):
    """Gives a list of the calls of `muxrl.orchestrator.launch.whole_run.run_experiment`."""
    calls = []

    def run_experiment(experiment, run_dir, *, is_resumed, show_progress, console):
        calls.append((experiment, run_dir, show_progress))
        return types.SimpleNamespace(problem="it rained", exit_code=7)

    module = types.ModuleType("muxrl.orchestrator.launch.whole_run")
    module.run_experiment = run_experiment
    monkeypatch.setitem(sys.modules, "muxrl.orchestrator.launch.whole_run", module)
    return calls


@pytest.fixture
def served(monkeypatch):
    """Gives a list of the calls of `muxrl.servers.server.serve_forever`."""
    calls = []

    def serve_forever(plan, run_dir=None, *, resume=False, interval_s=None):
        calls.append((plan, run_dir, resume, interval_s))
        return 0

    module = types.ModuleType("muxrl.servers.server")
    module.serve_forever = serve_forever
    monkeypatch.setitem(sys.modules, "muxrl.servers.server", module)
    return calls


def run(*args, module=("-m", "muxrl")):
    return subprocess.run(
        [sys.executable, *module, *args],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_check_in_a_real_process_prints_the_plan_and_nothing_else():
    done = run("check", "cartpole_ppo", "seed=3")
    assert done.returncode == 0
    assert done.stderr == ""
    first = done.stdout.splitlines()[0]
    assert first.startswith("cartpole_ppo: can be launched; it stops at env_steps: ")
    assert "simulation:" not in done.stdout
    assert " agent   ppo (PPO)  default  -      Box(4,) float32  Discrete(2) " in done.stdout
    assert done.stdout.endswith("assignment: ppo:agent\n")


def test_check_reports_what_a_bug_needs_also_of_a_refused_config(muxrl):
    arguments = ["cartpole_ppo", "servers.ppo.token=secret-of-sixteen-letters"]
    config = muxrl("check", *arguments, "--yaml").out
    assert config == to_yaml(load_config(*arguments[:1], arguments[1:]))
    output = muxrl("check", *arguments, "--report").out
    versions, end = json.JSONDecoder().raw_decode(output)
    assert versions["python"] == platform.python_version()
    assert output[end + 1 :].startswith(config)
    assert "cartpole_ppo: can be launched" in output
    assert "secret" not in output
    refused = muxrl("check", *arguments, "servers.ppo.agents=[nobody]", "--report", code=2)
    assert "agents:\n    - nobody" in refused.out
    assert "muxrl: cartpole_ppo: " in refused.err


@pytest.mark.parametrize(
    ("kind", "config", "load"), [("sweep", "tag", load_sweep), ("league", "rivals", load_league)]
)
def test_check_shows_the_whole_of_a_sweep_and_of_a_league(kind, config, load, muxrl):
    config = str(ROOT / f"experiments/{kind}s/{config}.yaml")
    text = to_yaml(load(config))
    assert muxrl("check", config, "--yaml").out == text
    output = muxrl("check", config, "--report").out
    versions, end = json.JSONDecoder().raw_decode(output)
    assert versions["python"] == platform.python_version()
    assert output[end + 1 :].startswith(text)
    assert f": muxrl {kind} {config}\n" in output


def test_a_resumed_league_or_sweep_has_its_directory_already(muxrl):
    for command, option in (("league", "--league-dir"), ("sweep", "--sweep-dir")):
        refused = muxrl(command, "here", "--resume", option, "there", code=2)
        assert f"{option} is for a new {command}; with --resume" in refused.err


def test_a_missing_gpu_is_reported_before_anything_starts(monkeypatch, tmp_path, muxrl):
    from ray._private.resource_and_label_spec import ResourceAndLabelSpec

    monkeypatch.setattr(
        ResourceAndLabelSpec, "_get_current_node_accelerator", staticmethod(lambda *_: (None, None))
    )
    monkeypatch.chdir(tmp_path)
    wants = "servers.ppo.resources.num_gpus=1"
    (tmp_path / "sweep.yaml").write_text(
        "base: cartpole_ppo\nseeds: [0]\nmetric: {of: ppo}\n"
        "experiment: {servers: {ppo: {resources: {num_gpus: 1}}}}\n"
    )
    for command in (
        ["check", "cartpole_ppo", wants],
        ["launch", "cartpole_ppo", wants],
        ["check", "sweep.yaml"],
        ["sweep", "sweep.yaml"],
        ["sweep", "sweep.yaml", "--dry-run"],
    ):
        told = muxrl(*command, code=2).err
        assert "server 'ppo': wants 1 GPU (resources.num_gpus), but this machine has 0" in told
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([], "90 every 20,000 env steps, 300 at the end"),
        (["evaluation.should_compare_untrained=true"], "90 every 20,000 env steps, 500 at the end"),
        (["evaluation.interval_env_steps=null"], "300 at the end"),
    ],
)
def test_check_says_where_a_simulation_connects_and_what_evaluations_take(overrides, told, muxrl):
    """An evaluation plays all as learned, and each of two servers at random or untrained."""
    lines = muxrl("check", "twenty_lines", *overrides).out.splitlines()
    assert "simulations connect to the gateway at 127.0.0.1:9900" in lines
    assert f"they also play the episodes of evaluations: {told}" in lines


def test_check_names_what_is_scaled_and_normalised(muxrl):
    assert "server 'ppo' " not in muxrl("check", "cartpole_ppo").out
    given = [f"servers.ppo.normalize_{what}=true" for what in ("observations", "rewards")]
    out = muxrl("check", "cartpole_ppo", *given).out
    assert "server 'ppo' normalises observations by their running mean and deviation" in out
    assert "server 'ppo' divides rewards by the running deviation of the return" in out
    out = muxrl("check", "cartpole_ppo", "servers.ppo.scale_observations=bounded").out
    assert "server 'ppo' scales Box(4,) float32 to 0..1 by the bounds of the space" in out


def test_launch_hands_on_the_experiment_and_its_exit_code(launched, tmp_path, muxrl):
    options = ["--no-progress", "stop.time_s=5", "--address", "auto", "--run-dir", tmp_path]
    told = muxrl("launch", "cartpole_ppo", "seed=1", *options, "evaluation.seed=4", code=7)
    assert told.err == "muxrl: it rained\n"
    ((experiment, run_dir, show_progress),) = launched
    config = experiment.config
    assert (config.seed, config.evaluation.seed) == (1, 4)
    assert (config.stop.time_s, config.address) == (5.0, "auto")
    assert (run_dir, show_progress) == (tmp_path, False)
    muxrl("launch", "cartpole_ppo", code=7)
    assert launched[1][1:] == (None, True)


@pytest.mark.parametrize("is_option_first", [True, False])
def test_launch_resumes_a_run_with_overrides(launched, tmp_path, is_option_first):
    run = RunDirectory.create_at(tmp_path / "run")
    run.write_config(to_yaml(load_config("cartpole_ppo", ["seed=3"])))
    option, override = ["--resume", str(run.path)], ["stop.time_s=9"]
    cli.main(["launch", *(option + override if is_option_first else override + option)])
    ((experiment, folder, _),) = launched
    assert (experiment.config.seed, experiment.config.stop.time_s) == (3, 9.0)
    assert folder == run


def test_a_launch_without_a_config_is_refused(launched, tmp_path, muxrl):
    assert "needs a CONFIG, or --resume RUN_DIR" in muxrl("launch", code=2).err
    told = muxrl("launch", "--resume", tmp_path, code=2).err
    assert "is not the directory of a run" in told
    assert "muxrl: nowhere: no such file" in muxrl("launch", "nowhere", code=2).err
    assert launched == []


def test_serve_without_a_server_names_the_servers_and_the_command_for_all(served, muxrl):
    told = muxrl("serve", "twenty_lines", code=2).err
    assert told.startswith(
        "muxrl: twenty_lines: serve runs one server, so name it: --server ppo or a2c."
    )
    assert "To start all servers of a config, use 'muxrl launch', with 'env: external'" in told
    told = muxrl("serve", "tag", "--server", "qmx", code=2).err
    assert told == "muxrl: tag: there is no server 'qmx'; did you mean 'qmix'?\n"
    assert not served


def test_serve_hands_on_one_plan_and_needs_no_stop(served, tmp_path):
    (tmp_path / "endless.yaml").write_text(
        "simulation: {env: 'gymnasium:CartPole-v1'}\nservers: {mine: {agents: [agent]}}\n"
    )
    serve = ["serve", str(tmp_path / "endless.yaml"), "--server", "mine"]
    assert cli.main(serve) == 0
    ((plan, *rest),) = served
    assert (plan.server_id, *rest) == ("mine", None, False, 600.0)
    options = ["checkpoint.interval_s=9", "--run-dir", str(tmp_path), "--resume"]
    assert cli.main([*serve, *options]) == 0
    assert served[1][1:] == (tmp_path, True, 9.0)


SWEEP = """
experiment:
  simulation: {env: "muxrl.experiments.simulations.zero_cost:ZeroCost", kwargs: {num_agents: 2}}
  stop: {env_steps: 10}
roles: {left: [agent_0], right: [agent_1]}
algorithms: {random: {}, ppo: {}}
"""


def test_a_dry_run_prints_the_trials_and_starts_nothing(tmp_path, muxrl):
    (tmp_path / "mine.yaml").write_text(SWEEP)
    told = muxrl("sweep", tmp_path / "mine.yaml", "seeds=[4]", "--dry-run", "calibration_s=0")
    lines = [line.split() for line in told.out.splitlines()]
    assert ["4", "trials"] in lines
    assert ["2", "ppo", "random", "4"] in lines
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.yaml"]


def test_check_of_a_sweep_says_what_runs_the_same_trials(tmp_path, muxrl):
    """The printed command once left out the overrides, and so ran other trials."""
    (tmp_path / "mine.yaml").write_text(SWEEP)
    given = [str(tmp_path / "mine.yaml"), "seeds=[4]", "metric={mode: min}"]
    hint = muxrl("check", *given).out.rpartition("how long it would take: ")[2]
    assert shlex.split(hint) == ["muxrl", "sweep", *given]


@pytest.mark.parametrize("name", ["mine.yaml", "chase_lr"])
def test_launch_of_a_sweep_says_what_to_run(tmp_path, monkeypatch, muxrl, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(SWEEP)
    assert muxrl("launch", name, code=2).err == (
        f"muxrl: {name}: this is a sweep, a table of runs; see what it would run with 'muxrl sweep "
        f"{name} --dry-run', and run it with 'muxrl sweep {name}'\n"
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [(["check"], 0), (["sweep", "--dry-run"], 0), (["sweep"], 1)],
    ids=["check", "dry-run", "sweep"],
)
def test_a_sweep_prints_each_warning_of_its_budget_once(
    tmp_path, muxrl, monkeypatch, command, code
):
    """It is not repeated for each trial: two roles have the same budget in six trials each."""

    def no_ray(plan):
        raise RunFailed("Ray did not start")

    monkeypatch.setattr("muxrl.orchestrator.sweeps.runner.sweep_ray", no_ray)
    (tmp_path / "mine.yaml").write_text(SWEEP)
    argv = [*command, tmp_path / "mine.yaml", "seeds=[4,5,6]", "calibration_s=0"]
    argv += [f"sweeps_dir={tmp_path}", "experiment.stop.env_steps=3000"]
    out = muxrl(*argv, code=code).out
    needs = "its first update needs 4,000 env steps (train_batch_size_per_learner: 4000)"
    assert sorted(line for line in out.splitlines() if line.startswith("warning: ")) == [
        f"warning: 6 of 12 trials ({which}): server {role!r}: {needs}, but the run stops at 3,000: "
        "it never happens"
        for role, which in (("right", "01, 03, 05, 07, 09, 11"), ("left", "02, 03, 06, 07, 10, 11"))
    ]
    assert ["12", "trials"] in [line.split() for line in out.splitlines()]


def test_the_command_can_be_run_as_its_module():
    done = run("configs", module=("-m", "muxrl.orchestrator.cli"))
    assert (done.returncode, done.stderr) == (0, "")


def test_mistakes_in_a_sweep_are_lines_and_exit_code_2(tmp_path, muxrl):
    path = tmp_path / "mine.yaml"
    path.write_text(SWEEP + "sedes: [1]\nscheduler: {kind: pbt}\n")
    told = muxrl("sweep", path, code=2).err
    assert told == f"muxrl: {path}: line 7: sedes: unknown key 'sedes'; did you mean 'seeds'?\n"
    told = muxrl("sweep", tmp_path, "--resume", code=2).err
    assert "is not the directory of a sweep: it has no sweep.yaml" in told
    told = muxrl("sweep", "chase", "seeds=0,1", "--dry-run", code=2).err
    assert "seeds: must be a list of integers, got the text '0,1'; write [0,1]" in told


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "required: COMMAND"),
        (["check"], "required: CONFIG"),
        (["check", "tag", "--sede=3"], "unrecognized arguments: --sede=3"),
        (["lanch", "tag"], "there is no command 'lanch'; did you mean 'launch'?"),
        (["xyz", "tag"], "there is no command 'xyz'; choose from launch, check, serve"),
    ],
)
def test_wrong_command_lines_exit_with_2_and_say_what_is_wrong(argv, told, muxrl):
    err = muxrl(*argv, code=2).err
    assert "usage: muxrl" in err
    assert told in err
    assert muxrl("--version").out.startswith("muxrl ")


def test_neither_muxrl_nor_any_help_loads_anything_heavy():
    code = (
        "import contextlib, sys, muxrl; dir(muxrl)\n"
        "from muxrl.orchestrator import cli\n"
        "from muxrl.orchestrator.commands.command import COMMANDS\n"
        "for command in ([], *([name] for name in COMMANDS)):\n"
        "    with contextlib.suppress(SystemExit): cli.main([*command, '--help'])\n"
        "heavy = {'ray', 'torch', 'omegaconf', 'numpy', 'pandas', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = run("-c", code, module=())
    assert (done.returncode, done.stderr) == (0, "")
    for told in ("--head-to-head", "-n N, --lines N", "NAME=AGENT,...", "default: 100", "{bash,"):
        assert told in done.stdout


def test_python_3_10_reads_the_same_options():
    """There, an annotation with a default of None is wrapped in Optional once more."""

    def one(*, pairs: Optional[Annotated[dict[str, int], pair_of(int, "A=1")]] = None) -> int:  # noqa: UP045
        """Args:
        pairs (A=1): some.
        """
        assert pairs == {"x": 1, "y": 2}
        return 0

    parser = argparse.ArgumentParser()
    Command(one).add_arguments(parser)
    assert Command(one)(parser.parse_args(["--pairs", "x=1", "--pairs", "y=2"])) == 0


def test_check_breaks_no_name_in_80_columns(muxrl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    out = muxrl("check", "tag").out
    assert " adversary_{0..2}  qmix (QMIX)  default  predators  Box(20,)        Discrete(5)" in out


READER_GONE = """
import dataclasses, functools, importlib, sys
from muxrl.orchestrator import cli
module = importlib.import_module(f"muxrl.orchestrator.commands.{sys.argv[1]}")
command = getattr(module, sys.argv[1])
@functools.wraps(command.function)
def execute(**options):
    if str(options.get("folder")) == "connection":
        raise BrokenPipeError("a server's")
    for _ in range(3):
        print("a line", flush=True)
    return 0
setattr(module, sys.argv[1], dataclasses.replace(command, function=execute))
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("command", "code"),
    [("runs", 0), ("report x", 1), ("compare x", 1), ("stop x", 1), ("launch", 0)],
)
def test_a_command_whose_reader_is_gone_ends_quietly(command, code):
    arguments = [sys.executable, "-c", READER_GONE, *command.split()]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        done.stdout.close()  # as `head` does
        assert done.stderr.read() in (b"", b"loading packages\n")
    assert done.returncode == code


def test_a_broken_connection_is_not_taken_for_a_reader_that_is_gone():
    arguments = [sys.executable, "-c", READER_GONE, "runs", "connection"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.endswith("BrokenPipeError: a server's\n")
