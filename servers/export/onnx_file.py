"""From a `PolicyGraph` to the bytes of an ONNX file, and how one is asked."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from muxrl.servers.export.graph import PolicyGraph
from muxrl.servers.export.network import CannotExport

# It warns at every call that torchvision, which nothing here needs, is not installed.
logging.getLogger("torch.onnx").setLevel(logging.ERROR)

_EXAMPLE_ROWS = 2
"""Of the inputs that the exporter traces: one row would be taken for a constant."""


def to_onnx(graph: PolicyGraph, about: Mapping[str, str]) -> bytes:
    """Returns a graph as ONNX, all weights inside.

    Args:
        graph: the policy.
        about: the file's metadata.

    Raises:
        CannotExport: the exporter fails; with its reason.
    """
    examples = tuple(torch.from_numpy(port.zeros(_EXAMPLE_ROWS)) for port in graph.inputs)
    batch = torch.export.Dim("batch", min=1)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch's own parts that it is about to rename
            graph.eval()(*examples)  # what it refuses, torch would wrap in its own words
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
    except Exception as error:  # the exporter, or a user's module, may raise anything
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
    """Takes out what only torch reads: stack traces with this machine's paths, shapes in between.

    It is half of a small file.
    """
    del graph.value_info[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _strip(attribute.g)


class OnnxPolicy:
    """A policy's file in ONNX Runtime.

    Args:
        content: of the file.
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
        """Returns the outputs by name, from inputs by name, ``[B, ...]`` all."""
        return dict(zip(self._outputs, self._session.run(None, dict(inputs)), strict=True))
