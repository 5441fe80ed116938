"""Turns a `PolicyGraph` into the bytes of an ONNX file, and runs such files."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from muxrl.servers.export.graph import PolicyGraph
from muxrl.servers.export.network import CannotExport

# The exporter warns at every call that torchvision is not installed, which is not needed.
logging.getLogger("torch.onnx").setLevel(logging.ERROR)

_EXAMPLE_ROWS = 2
"""Rows of the inputs that the exporter traces: a single row would be taken for a constant."""


def to_onnx(graph: PolicyGraph, about: Mapping[str, str]) -> bytes:
    """Returns a graph as an ONNX file that contains all weights.

    Args:
        graph: the policy.
        about: the file's metadata.

    Raises:
        CannotExport: the exporter failed; the message has its reason.
    """
    examples = tuple(torch.from_numpy(port.zeros(_EXAMPLE_ROWS)) for port in graph.inputs)
    batch = torch.export.Dim("batch", min=1)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch deprecates parts of its own
            graph.eval()(*examples)  # raises refusals before torch can wrap them
            program = torch.onnx.export(
                graph,
                examples,
                dynamo=True,
                external_data=False,
                verbose=False,
                input_names=[port.name for port in graph.inputs],
                output_names=graph.outputs,
                dynamic_shapes=(tuple({0: batch} for _ in examples),),
            )
    except CannotExport:
        raise
    except Exception as error:  # raised by the exporter, or a user's module
        reason = error.__cause__ or error  # torch wraps it in a page of advice
        first = str(reason).strip().partition("\n")[0]
        raise CannotExport(
            f"torch cannot trace {type(graph.network.module).__name__}: "
            f"{type(reason).__name__}: {first}"
        ) from error
    assert program is not None
    model: Any = program.model_proto
    _strip(model.graph)
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


def _strip(graph: Any) -> None:
    """Removes what only torch reads: stack traces with this machine's paths, inner shapes.

    They would be half of a small file.
    """
    del graph.value_info[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _strip(attribute.g)


class OnnxPolicy:
    """Runs a policy's file in ONNX Runtime.

    Args:
        content: bytes of the file.
    """

    def __init__(self, content: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"]
        )
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns outputs by name, for inputs by name, all ``[B, ...]``."""
        return dict(zip(self._outputs, self._session.run(None, dict(inputs)), strict=True))
