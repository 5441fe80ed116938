"""The trackers that a config can name, and the packages that each of them needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from muxrl.protocol.suggestions import similar_or_known
from muxrl.servers.import_by_name import CannotImport, import_by_name

EXAMPLE = "package.module:Tracker"


@dataclass(frozen=True)
class _Known:
    """A tracker that comes with muxrl; its class is imported only where it is used."""

    path: str
    module: str = ""
    """The package that has to be installed; "": none."""
    extra: str = ""
    """The extra of muxrl that installs it."""
    is_local: bool = False
    """Whether it only writes files, and quickly, so that it needs no process of its own."""


TRACKERS = {
    "tensorboard": _Known(
        "muxrl.orchestrator.trackers.tensorboard:TensorBoard", "tensorboardX", "servers", True
    ),
    "wandb": _Known("muxrl.orchestrator.trackers.wandb:WeightsAndBiases", "wandb", "wandb"),
    "mlflow": _Known("muxrl.orchestrator.trackers.mlflow:MLflow", "mlflow", "mlflow"),
}
"""By the name in a config: the trackers that come with muxrl."""


def is_local(name: str) -> bool:
    """Whether a tracker only appends to files of the run, as the metrics themselves are."""
    return name in TRACKERS and TRACKERS[name].is_local


def find_problems(names: Sequence[str]) -> Iterator[str]:
    """Yields a sentence for each name that is no tracker, or whose package is not installed."""
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"{name!r} is named {names.count(name)} times; it gets each row once"
        known = TRACKERS.get(name)
        if known is not None and known.module:
            spec = find_spec(known.module)
            if spec is None or spec.origin is None:  # a mere folder wandb/ of offline runs
                yield (
                    f"{name!r} needs {known.module}, not installed here; it comes with: "
                    f"pip install 'muxrl[{known.extra}]'"
                )
        elif known is None and ":" not in name:
            hint = similar_or_known(name, TRACKERS, "there are")
            yield f"there is no tracker {name!r} (one of your own is named '{EXAMPLE}'){hint}"
        elif known is None:
            try:
                import_by_name(name, EXAMPLE)
            except CannotImport as error:
                yield str(error)
