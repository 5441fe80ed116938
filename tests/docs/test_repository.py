"""Files for contributors and for deployment have the right format and agree with each other."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from muxrl.orchestrator.config import load_config

ROOT = Path(__file__).parents[2]
DEPLOY, GITHUB = ROOT / "deploy", ROOT / ".github"

# Stands in for `muxrl` in a job: a run that writes a checkpoint and then goes on until it ends.
MUXRL = """#!/usr/bin/env bash
echo "$@" >> commands
if [[ $2 == --resume ]]; then exit "$CODE"; fi
while [[ $1 != --run-dir ]]; do shift; done
mkdir -p "$2/checkpoints/last"
trap 'exit 130' TERM
touch ready
while [[ ! $CODE ]]; do sleep 0.05; done
exit "$CODE"
"""


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", [".github/workflows/ci.yml"]),
        ("dependabot", [".github/dependabot.yml"]),
        ("github-issue-forms", [".github/ISSUE_TEMPLATE/bug.yml",
                                ".github/ISSUE_TEMPLATE/question.yml"]),
        ("github-issue-config", [".github/ISSUE_TEMPLATE/config.yml"]),
        ("compose-spec", ["deploy/compose.yaml"]),
        ("citation-file-format", ["CITATION.cff"]),
    ],
)  # fmt: skip
def test_files_are_of_their_format(schema: str, files: list[str]) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--default-filetype", "yaml"]
    command += ["--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_github_runs_the_jobs_of_ci_with_the_pythons_that_tests_look_for() -> None:
    (job,) = _yaml(GITHUB / "workflows/ci.yml")["jobs"].values()
    assert job["steps"][-1]["run"] == ".ci/run"
    assert os.access(ROOT / ".ci/run", os.X_OK)
    (pythons,) = [s["with"]["python-version"] for s in job["steps"] if "setup-python" in str(s)]
    assert {"3.10", "3.13"} < set(pythons.split())
    assert pythons.split()[-1] == "3.11"


def test_hooks_are_the_tools_of_make_test() -> None:
    (local,) = _yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for hook in local["hooks"]]
    assert entries == ["ruff check --fix", "ruff format", "mypy"]
    makefile = (ROOT / "Makefile").read_text()
    for entry in entries:
        assert f"$(BIN)/{entry}" in makefile


def test_the_image_has_all_files_of_the_build_and_no_others() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = {source for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]}
    folders = {link.name for link in (ROOT / "src/muxrl").iterdir() if link.is_symlink()}
    files = {"pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "constraints.txt"}
    assert copied == folders | files | {"src"}
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", "\n".join(lines))
    # The cluster of kuberay.yaml runs this image, too, and sweeps run in it.
    assert {"servers", "tune", "rllib"} <= set(extras.split(","))
    if hadolint := shutil.which("hadolint"):
        subprocess.run([hadolint, DEPLOY / "Dockerfile"], check=True)


def test_prometheus_asks_the_servers_of_the_run_and_grafana_shows_them() -> None:
    services = _yaml(DEPLOY / "compose.yaml")["services"]
    _, config, *overrides = services["muxrl"]["command"]
    name = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", config)
    servers = load_config(name, [x for x in overrides if "=" in x]).servers
    (job,) = _yaml(DEPLOY / "prometheus.yaml")["scrape_configs"]
    (targets,) = [of["targets"] for of in job["static_configs"]]
    assert sorted(targets) == sorted(f"127.0.0.1:{server.port}" for server in servers.values())
    mounted = [v.split(":") for s in ("prometheus", "grafana") for v in services[s]["volumes"]]
    for source, *_ in mounted:
        assert (DEPLOY / source).is_file(), source
    (provider,) = _yaml(DEPLOY / "grafana/dashboards.yaml")["providers"]
    (dashboard,) = [target for source, target, _ in mounted if source.endswith("grafana.json")]
    assert Path(dashboard).parent == Path(provider["options"]["path"])
    (source,) = _yaml(DEPLOY / "grafana/datasources.yaml")["datasources"]
    first = json.loads((ROOT / "docs/grafana.json").read_text())["templating"]["list"][0]
    assert (first["type"], first["query"]) == ("datasource", source["type"])


def test_kubernetes_gets_the_ray_that_is_pinned_and_asks_ports_that_it_opens() -> None:
    cluster = _yaml(DEPLOY / "kuberay.yaml")["spec"]
    assert f"\nray=={cluster['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        ray = group["rayStartParams"]
        assert container["resources"]["requests"]["cpu"] == ray["num-cpus"]
        ports = {
            container[f"{kind}Probe"]["tcpSocket"]["port"] for kind in ("liveness", "readiness")
        }
        assert ports <= {6379, int(ray["node-manager-port"])}
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in group["template"]["spec"]["volumes"]}


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """Gives the environment of a job in whose folder `muxrl` and `scontrol` are stand-ins."""
    for name, script in (("muxrl", MUXRL), ("scontrol", "#!/bin/sh\necho $@ >> requeued\n")):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    return {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "CODE": ""}


def test_a_job_at_its_time_limit_is_queued_again_and_resumed(
    tmp_path: Path, job: dict[str, str]
) -> None:
    command = ["bash", DEPLOY / "slurm.sh", "chase", "seed=3"]
    with subprocess.Popen(command, cwd=tmp_path, env=job) as first:
        deadline = time.monotonic() + 20.0
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        first.send_signal(signal.SIGTERM)
        assert first.wait(20.0) == 130
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    again = job | {"SLURM_RESTART_COUNT": "1", "CODE": "0"}
    assert subprocess.run(command, cwd=tmp_path, env=again, check=False).returncode == 0
    assert (tmp_path / "commands").read_text().splitlines() == [
        "launch chase seed=3 --run-dir runs/slurm-7.0 --no-progress",
        "launch --resume runs/slurm-7.0 --no-progress",
    ]
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


@pytest.mark.parametrize("code", ["0", "1", "2"])
def test_a_job_whose_run_has_ended_is_not_queued_again(
    tmp_path: Path, job: dict[str, str], code: str
) -> None:
    command = ["bash", DEPLOY / "slurm.sh", "chase"]
    done = subprocess.run(command, cwd=tmp_path, env=job | {"CODE": code}, check=False)
    assert done.returncode == int(code)
    assert not (tmp_path / "requeued").exists()


def test_the_unit_resumes_from_a_checkpoint_and_begins_again_without_one(
    tmp_path: Path, job: dict[str, str]
) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", (DEPLOY / "muxrl.service").read_text(), re.MULTILINE)
    (tmp_path / "run" / "logs").mkdir(parents=True)  # it was killed before its first checkpoint
    for _ in range(2):
        subprocess.run(shlex.split(line), cwd=tmp_path, env=job | {"CODE": "0"}, check=True)
    assert (tmp_path / "commands").read_text().splitlines() == [
        "launch /etc/muxrl/experiment.yaml --run-dir run --no-progress",
        "launch --resume run --no-progress",
    ]
    assert (tmp_path / "run.lost" / "logs").is_dir()


def test_the_job_s_script_and_the_unit_are_well_formed() -> None:
    script = (DEPLOY / "slurm.sh").read_text()
    options = re.findall(r"^#SBATCH (\S+)", script, re.MULTILINE)
    assert {"--requeue", "--signal=B:TERM@300", "--open-mode=append"} < set(options)
    for program, command in (("shellcheck", ["slurm.sh"]),
                             ("systemd-analyze", ["verify", "muxrl.service"])):  # fmt: skip
        if shutil.which(program):
            done = subprocess.run([program, *command], cwd=DEPLOY, capture_output=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())
