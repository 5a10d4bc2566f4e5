"""Releases as ONNX models: the same steps as `linear`, in doubles, as a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from perennial.encoders import Encoder
from perennial.errors import Unsupported
from perennial.feature_maps import (
    Center,
    ClippedScale,
    FeatureMap,
    HashedCategories,
    HashedText,
    Linear,
    Normalize,
    OrientedGradients,
    RandomFourier,
    Standardize,
    Step,
    public_normals,
)
from perennial.linear import INFLATION, LinearModel

OPSET = 18
IR_VERSION = 9
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class _Graph:
    """Nodes in the order in which they are added. Values are named by what `add` returns."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str | ArrayLike, **attributes: Any) -> str:
        """Add a node and return its output; inputs that are no names are constants."""
        names = [name if isinstance(name, str) else self.constant(name) for name in inputs]
        output = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return output

    def constant(self, values: ArrayLike) -> str:
        """Add a constant: floats as doubles, whole numbers as 64-bit ones."""
        array = np.asarray(values)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float64)
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def cast(self, value: str, to: int) -> str:
        return self.add("Cast", value, to=to)

    def as_float32(self, value: str) -> str:
        """Return the doubles rounded to what float32 holds."""
        return self.cast(self.cast(value, TensorProto.FLOAT), TensorProto.DOUBLE)

    def reshape(self, value: str, *shape: int) -> str:
        return self.add("Reshape", value, list(shape))

    def total(self, value: str, *axes: int, operator: str = "ReduceSum", keep: bool = False) -> str:
        """Return the sum along axes, or another reduction."""
        return self.add(operator, value, list(axes), keepdims=int(keep))


def as_onnx(model: LinearModel, properties: Mapping[str, str]) -> onnx.ModelProto:
    """Return the model: input `x` (records, features), float32; outputs `labels` (records,) and `scores`, doubles.

    Rows that are not finite once they are mapped have scores NaN. Raises Unsupported where ONNX lacks what it takes.
    """
    graph = _Graph()
    mapped = _mapped(graph, model.feature_map, graph.cast("x", TensorProto.DOUBLE))
    largest = graph.total(graph.add("Abs", mapped), 1, operator="ReduceMax", keep=True)
    finite = graph.add("LessOrEqual", largest, LARGEST_FLOAT32)
    rows = mapped if model.encoder is None else _encoded(graph, model.encoder, mapped)
    weights = model.weights.T
    if model.intercept is not None:  # the intercept adds a constant to every score
        cosine, sine = model.intercept
        scores = graph.add("MatMul", _clipped(graph, rows, model.norm_bound), weights[:-1] * cosine)
        scores = graph.add("Add", scores, weights[-1] * (model.norm_bound * sine))
    else:
        scores = graph.add("MatMul", _clipped(graph, rows, model.norm_bound), weights)
    scores = graph.add("Where", finite, _chosen(graph, model, scores), np.nan)
    return _whole(graph, model, scores, properties)


def _whole(graph: _Graph, model: LinearModel, scores: str, properties: Mapping[str, str]) -> onnx.ModelProto:
    labels, scores = _read(graph, model, scores)
    graph.nodes += [
        helper.make_node("Identity", [labels], ["labels"]),
        helper.make_node("Identity", [scores], ["scores"]),
    ]
    kind = TensorProto.DOUBLE if model.loss == "squared" else TensorProto.INT64
    made = helper.make_graph(
        graph.nodes,
        "perennial",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["records", model.feature_map.input_features])],
        [
            helper.make_tensor_value_info("labels", kind, ["records"]),
            helper.make_tensor_value_info("scores", TensorProto.DOUBLE, ["records", None]),
        ],
        graph.constants,
    )
    whole = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="perennial-client"
    )
    helper.set_model_props(whole, dict(properties))
    onnx.checker.check_model(whole)
    return whole


def _read(graph: _Graph, model: LinearModel, margins: str) -> tuple[str, str]:
    """Return labels and scores, as `LinearModel.read`."""
    if model.loss == "squared":
        bound = float(model.bound or 0.0)
        return graph.reshape(graph.add("Clip", margins, -bound, bound), -1), margins
    scores = margins
    if model.loss == "softmax":
        scores = graph.add("Softmax", margins, axis=1)
    elif model.loss == "logistic":
        half = graph.add("Mul", graph.add("Tanh", graph.add("Mul", margins, 0.5)), 0.5)
        positive = graph.add("Add", half, 0.5)
        scores = graph.add("Concat", graph.add("Sub", 1.0, positive), positive, axis=1)
    elif model.classes == 2:
        scores = graph.add("Concat", graph.add("Neg", margins), margins, axis=1)
    return graph.add("ArgMax", scores, axis=1, keepdims=0), scores


def _chosen(graph: _Graph, model: LinearModel, scores: str) -> str:
    """Return the scores of the task that each record belongs to."""
    if model.tasks is None:
        return scores
    tasks, columns = model.tasks, len(model.weights)
    by_task = graph.add("Slice", scores, [columns - tasks], [columns], [1])
    task = graph.add("ArgMax", by_task, axis=1, keepdims=1)
    own = graph.reshape(graph.add("Slice", scores, [0], [columns - tasks], [1]), -1, tasks, columns // tasks - 1)
    return graph.add("GatherND", own, task, batch_dims=1)


def _clipped(graph: _Graph, rows: str, norm_bound: float) -> str:
    length = graph.add("Sqrt", graph.total(rows, 1, operator="ReduceSumSquare", keep=True))
    factor = graph.add("Div", norm_bound, graph.add("Max", graph.add("Mul", length, INFLATION), 1e-300))
    return graph.add("Mul", rows, graph.add("Min", factor, 1.0))


def _encoded(graph: _Graph, encoder: Encoder, mapped: str) -> str:
    values = graph.add("Mul", _clipped(graph, mapped, encoder.norm_bound), encoder.scale)
    for layer in encoder.layers:
        if layer.index is not None:
            values = graph.add("Gather", values, layer.index, axis=1)
        values = graph.add("Tanh", graph.add("Add", graph.add("MatMul", values, layer.matrix), layer.bias))
        if layer.index is not None:
            values = graph.reshape(values, -1, layer.index.shape[0] * layer.matrix.shape[1])
    return graph.as_float32(_of_length_one(graph, values))


def _of_length_one(graph: _Graph, rows: str) -> str:
    length = graph.add("Sqrt", graph.total(rows, 1, operator="ReduceSumSquare", keep=True))
    return graph.add("Div", rows, graph.add("Where", graph.add("Greater", length, 0.0), length, 1.0))


def _mapped(graph: _Graph, feature_map: FeatureMap, x: str) -> str:
    if not feature_map.steps:
        return x
    for step in feature_map.steps:
        x = _step(graph, step, x)
    return graph.as_float32(x)


def _step(graph: _Graph, step: Step, x: str) -> str:
    match step:
        case RandomFourier():
            return _random_fourier(graph, step, x)
        case OrientedGradients():
            return _oriented_gradients(graph, step, x)
        case Standardize():
            return graph.add(
                "Div", graph.add("Sub", x, np.asarray(step.mean, np.float64)), np.asarray(step.scale, np.float64)
            )
        case ClippedScale():
            shifted = graph.add("Sub", x, np.asarray(step.center, np.float64))
            scaled = graph.add("Mul", shifted, np.asarray(step.factor, np.float64))
            return graph.add("Clip", scaled, -step.limit, step.limit)
        case Linear():
            return graph.add("MatMul", x, np.asarray(step.matrix, np.float64).T)
        case Center() | Normalize():
            return _by_itself(graph, step, x)
        case HashedText() | HashedCategories():
            raise Unsupported(
                "ONNX has no hash functions, so a release with a feature map `hashing` can't be exported."
            )
    raise Unsupported("This feature map can't be exported to ONNX.")


def _by_itself(graph: _Graph, step: Center | Normalize, x: str) -> str:
    if isinstance(step, Normalize):
        return _of_length_one(graph, x)
    return graph.add("Sub", x, graph.total(x, 1, operator="ReduceMean", keep=True))


def _random_fourier(graph: _Graph, step: RandomFourier, x: str) -> str:
    frequencies, offsets = public_normals(step.input_features, step.features, step.seed)
    phases = graph.add("Add", graph.add("MatMul", graph.add("Div", x, step.width), frequencies.T), offsets)
    return graph.add("Mul", graph.add("Cos", phases), float(np.sqrt(2.0 / step.features)))


def _oriented_gradients(graph: _Graph, step: OrientedGradients, x: str) -> str:
    histograms = _histograms(graph, step, graph.reshape(x, -1, step.height, step.width))
    vectors = graph.add(
        "Gather", graph.reshape(histograms, -1, int(np.prod(step.cells)) * step.orientations), _of_blocks(step), axis=1
    )
    clipped = graph.add("Min", _nearly_unit(graph, vectors), 0.2)
    return graph.reshape(_nearly_unit(graph, clipped), -1, step.features)


def _histograms(graph: _Graph, step: OrientedGradients, images: str) -> str:
    """Return (images, cell rows, cell columns, orientations)."""
    rows, columns = step.cells
    inside = [rows * step.cell, columns * step.cell]
    across = graph.add("MatMul", images, _differences(step.width).T)
    down = graph.add("MatMul", _differences(step.height), images)
    across, down = (graph.add("Slice", matrix, [0, 0], inside, [1, 2]) for matrix in (across, down))
    squares = graph.add("Add", graph.add("Mul", across, across), graph.add("Mul", down, down))
    length = graph.add("Sqrt", squares)
    upwards = graph.add("Less", down, 0.0)
    backwards = graph.add("And", graph.add("Equal", down, 0.0), graph.add("Less", across, 0.0))
    across = graph.add("Where", graph.add("Or", upwards, backwards), graph.add("Neg", across), across)
    down = graph.add("Abs", down)
    across, down, length = (graph.add("Unsqueeze", array, [3]) for array in (across, down, length))
    within = graph.constant(np.zeros(1))  # with a single bin, it has all of the magnitude
    if step.orientations > 1:
        cosines, sines = (np.array(pair) for pair in zip(*step.directions(), strict=True))
        past = graph.add("GreaterOrEqual", graph.add("Mul", down, cosines), graph.add("Mul", across, sines))
        within = graph.total(graph.cast(past, TensorProto.DOUBLE), 3, keep=True)
    own = graph.add("Equal", within, np.arange(float(step.orientations)))
    lengths = graph.add("Where", own, length, 0.0)
    cells = graph.reshape(lengths, -1, rows, step.cell, columns, step.cell, step.orientations)
    return graph.add("Div", graph.total(cells, 2, 4), float(step.cell**2))


def _differences(size: int) -> NDArray[np.float64]:
    """Return the matrix that makes of each place the next one less the one before; 0 at both ends."""
    matrix = np.eye(size, k=1) - np.eye(size, k=-1)
    matrix[[0, -1]] = 0.0
    return matrix


def _of_blocks(step: OrientedGradients) -> NDArray[np.int64]:
    """Return which numbers of flat histograms each block has, (blocks, block² · orientations)."""
    rows, columns = step.cells
    places = np.arange(rows * columns * step.orientations).reshape(rows, columns, step.orientations)
    blocks = np.lib.stride_tricks.sliding_window_view(places, (step.block, step.block), axis=(0, 1))
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2)).reshape(-1, step.block**2 * step.orientations)


def _nearly_unit(graph: _Graph, vectors: str) -> str:
    squares = graph.total(vectors, 2, operator="ReduceSumSquare", keep=True)
    return graph.add("Div", vectors, graph.add("Sqrt", graph.add("Add", squares, 1e-10)))


__all__: Sequence[str] = ["as_onnx"]
