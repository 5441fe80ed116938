"""Sweeps: one simulation, many assignments, settings and seeds, on Ray Tune.

    result = start_sweep(load_sweep("experiments/sweeps/chase.yaml"))
    result.frame()

A sweep's YAML (`schema`) is written out to a table of trials (`plan`), each of them an experiment
in which every name is known. Tune (`runner`) runs each one as a whole muxrl run (`trial`), and its
directory (`directory`) says at any time how they stand.
"""

from muxrl.orchestrator.errors import NotASweepDirectory, SweepIsRunning
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.plan import SweepPlan, make_plan
from muxrl.orchestrator.sweeps.result import SweepResult
from muxrl.orchestrator.sweeps.schema import SweepConfig

__all__ = [
    "NotASweepDirectory",
    "SweepConfig",
    "SweepDirectory",
    "SweepIsRunning",
    "SweepPlan",
    "SweepResult",
    "TrialRecord",
    "load_sweep",
    "make_plan",
]
