"""Reads experiments, starts servers and simulations, watches them and reports.

For scripts and notebooks, everything that the command `muxrl` does is a function here::

    import orchestrator

    result = orchestrator.launch("chase", ["stop.env_steps=20000"])
    sweep = orchestrator.sweep("experiments/sweeps/chase.yaml")
    sweep.frame()

They are imported when they are first asked for, so that `import orchestrator` loads nothing.
No module may have one of these names: importing it would put it in the function's place.
"""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "CannotCompare": "orchestrator.comparisons.sources:CannotCompare",
    "Comparison": "orchestrator.comparisons.comparison:Comparison",
    "ConfigError": "orchestrator.config:ConfigError",
    "RunResult": "orchestrator.whole_run:RunResult",
    "SweepResult": "orchestrator.sweeps:SweepResult",
    "compare": "orchestrator.comparisons.compare:compare_runs",
    "evaluate_run": "orchestrator.evaluate:evaluate_run",
    "launch": "orchestrator.api:launch",
    "sweep": "orchestrator.api:sweep",
}
"""Name to "module:attribute"."""

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _EXPORTS[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
